//go:build linux && cgo

package vgpu

/*
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "glue.h"
*/
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fisub/device"
	"fisub/device/cuda/tvmffi"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// Opener returns the opener of the virtual GPU. A process has only one virtual GPU, and its kernels stay loaded.
func Opener() device.Opener { return device.Opener{Kind: "emu", Open: open} }

// sanitizers maps the tools of compute-sanitizer to their hazards. Other errors are always faults.
var sanitizers = map[string]Hazards{"memcheck": Refusals | Divisions,
	"racecheck": Races | Asynchronous | Proxies | Clusters,
	"initcheck": UnwrittenShared | UnwrittenLocal | UnwrittenGlobal | UnwrittenRegister,
	"synccheck": Ended | OutsideMask | Mbarriers}

// FirstRacesUntil is the number of warp instructions after which the check for races ends in a launch of a first call.
// The check takes about a microsecond per instruction.
const FirstRacesUntil = 2_000_000

type gpu struct {
	opts  device.Options
	root  string
	arch  string
	tools *nvcc.Toolchain // nil if kernels are prebuilt
	lib   *tvmffi.Library
	work  chan func()
	lost  error // set once a call was cancelled; later calls return it
	done  bool
	check Hazards // checked in every call
	first Hazards // also checked in the first call of a workload
	next  Hazards // also checked in the next call
	fully bool    // the next call is checked for everything
	log   io.Writer
}

func open(ctx context.Context, opts device.Options) (device.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if opts.Ordinal != 0 {
		return nil, fmt.Errorf("emu: no device %d", opts.Ordinal)
	}
	g := &gpu{opts: opts, arch: ArchOf(opts), root: opts.CacheDir, work: make(chan func())}
	var err error
	if g.root == "" {
		if g.root, err = cache.Root(); err != nil {
			return nil, err
		}
	}
	if opts.Prebuilt == "" {
		if g.tools, err = nvcc.Find(g.root); err != nil {
			return nil, fmt.Errorf("emu: %w", err)
		}
	}
	host.Lock()
	host.fault, host.lack, host.lacks = nil, "", nil
	host.machine.Strict = Sanitized(opts.Sanitize)
	g.check, host.machine.RacesUntil, host.machine.Workload = host.machine.Strict, 0, 0
	if opts.Sanitize == "" { // checks in the first call only
		g.first, host.machine.RacesUntil = Races|UnwrittenLocal|UnwrittenGlobal, FirstRacesUntil
	}
	g.next = g.first
	if g.log = opts.Stderr; g.log == nil {
		g.log = os.Stderr
	}
	host.machine.OnNote = func(text string) { fmt.Fprintln(g.log, "note: "+text) }
	host.Unlock()
	host.machine.TakeHazards()
	host.machine.Reset()
	go func() {
		runtime.LockOSThread() // tvm-ffi keeps stream and allocator per thread
		for f := range g.work {
			f()
		}
	}()
	return g, nil
}

func (g *gpu) Info() device.Info {
	name := plain.Field("/proc/cpuinfo", "model name")
	info := device.Info{Name: cmp.Or(name, runtime.GOARCH), Emulated: true}
	if g.tools == nil {
		info.Toolchain, info.CUDA = nvcc.Packed(g.opts.Prebuilt)
	} else {
		info.Toolchain, info.CUDA = g.tools.String(), g.tools.CUDAVersion
	}
	return info
}

func (g *gpu) Look(fully bool) {
	g.next, g.fully = g.first, fully
	if g.first != 0 {
		host.machine.Workload++
	}
}

func (g *gpu) Count(sample int) { host.machine.Count(sample) }

func (g *gpu) Record(f func(device.Hazard)) { host.machine.OnHazard = f }

func (g *gpu) Forget() { host.machine.TakeHazards() }

func (g *gpu) Worked() bool { return host.machine.Worked() }

func (g *gpu) Launched() bool { return host.machine.Launched() }

func (g *gpu) Measure(context.Context, func() error, device.Plan) (*device.Samples, error) {
	return nil, fmt.Errorf("emu: %w", device.ErrNoTiming)
}

func (g *gpu) Close() error {
	if !g.done {
		g.done = true
		close(g.work)
	}
	return nil
}

// do runs f on the device's thread. If ctx ends first, it stops the running kernel and the device becomes unusable.
func (g *gpu) do(ctx context.Context, f func() error) error {
	if g.lost != nil {
		return g.lost
	}
	if g.done {
		return errors.New("emu: the device is closed")
	}
	result := make(chan error, 1)
	g.work <- func() { result <- f() }
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	host.machine.Stop()
	select {
	case <-result:
		if err := verdict(); err != nil {
			fmt.Fprintln(g.log, err)
		}
	case <-time.After(2 * time.Second):
	}
	g.lost = fmt.Errorf("%w: unfinished work: %w", device.ErrFault, ctx.Err())
	return ctx.Err()
}

// object returns the library built from sol and the path of the CUDA runtime to load with it.
func (g *gpu) object(ctx context.Context, sol *trace.Solution) (o *nvcc.Object, library string, err error) {
	if g.tools == nil {
		found, _ := filepath.Glob(filepath.Join(g.opts.Prebuilt, packed, "libcudart.so*"))
		if o, err = nvcc.Prebuilt(g.opts.Prebuilt, sol, g.arch); err == nil && len(found) != 1 {
			err = fmt.Errorf("emu: %s does not contain the virtual GPU's CUDA runtime", g.opts.Prebuilt)
		}
		return o, strings.Join(found, ""), err
	}
	if o, err = g.tools.Build(ctx, g.root, sol, g.arch); err != nil {
		return nil, "", err
	}
	library, err = Runtime(ctx, g.root, g.tools)
	return o, library, err
}

// foreign matches the error for a missing function of NVIDIA's libraries, which exists on a machine with a GPU.
var foreign = regexp.MustCompile(`undefined symbol: ((?:cu[A-Z]|cuda[A-Z]|nvrtc|nvJitLink|cublas|cudnn)\w+)`)

// install loads the runtime library and the driver next to it.
func install(library string) error {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	driver := C.CString(filepath.Join(filepath.Dir(library), driverName))
	defer C.free(unsafe.Pointer(driver))
	order := C.int(0)
	if host.machine.order != nil {
		order = 1
	}
	if message := C.vg_install(path, driver, order); message != nil {
		defer C.free(unsafe.Pointer(message))
		return fmt.Errorf("emu: loading the CUDA runtime: %s", C.GoString(message))
	}
	return nil
}

func (g *gpu) Build(ctx context.Context, def *trace.Definition, sol *trace.Solution) (device.Kernel, error) {
	if !sol.Spec.DestinationPassingStyle {
		return nil, fmt.Errorf("%w: the virtual GPU does not support CUDA submissions that return their outputs",
			device.ErrUnsupported)
	}
	object, library, err := g.object(ctx, sol)
	if err != nil {
		return nil, nvcc.Judged(err)
	}
	k := &kernel{gpu: g, object: object.Path, cached: object.Hit}
	if def != nil {
		k.names = def.Arguments()
	}
	err = g.do(ctx, func() error {
		if g.lib == nil {
			if err := install(library); err != nil {
				return err
			}
			var libs []string
			for _, l := range object.Libs {
				if filepath.Base(l) != filepath.Base(library) {
					libs = append(libs, l)
				}
			}
			lib, err := tvmffi.Load(libs...)
			if err != nil {
				return err
			}
			stream := C.vg_stream()
			if stream == nil {
				return errors.New("emu: the CUDA runtime creates no stream")
			}
			if err := lib.SetStream(tvmffi.CUDA(0), stream); err != nil {
				return err
			}
			if err := lib.SetAllocator(tvmffi.CUDA(0), C.vg_alloc, C.vg_release); err != nil {
				return err
			}
			g.lib = lib
		}
		host.Lock()
		host.columns = object.Columns
		host.Unlock()
		var err error
		k.fn, err = g.lib.Func(object.Path, object.Symbol)
		var be *device.BuildError
		if errors.As(err, &be) {
			if m := foreign.FindStringSubmatch(be.Text); m != nil {
				return fmt.Errorf("%w: the virtual GPU does not support %s", device.ErrUnsupported, m[1])
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// A buffer is memory of this process. Kernels may use the part that belongs to an argument of the call.
type buffer struct {
	memory []byte // not Go memory
	base   *buffer
	n      int
	shadow int64 // see exec.h
}

func (g *gpu) Alloc(n int) (device.Buffer, error) {
	if n < 0 || n > math.MaxInt-1<<20 {
		return nil, fmt.Errorf("emu: allocating %d bytes", n)
	}
	p := C.vg_map(C.size_t(n), C.VG_TENSOR)
	if p == nil {
		return nil, fmt.Errorf("emu: allocating %d bytes: out of memory", n)
	}
	b := &buffer{memory: unsafe.Slice((*byte)(p), max(n, 1))[:n], n: n}
	return b, nil
}

func (b *buffer) Len() int { return b.n }

func (b *buffer) Address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b.memory))) }

func (b *buffer) Slice(offset, n int) device.Buffer {
	if offset < 0 || offset%256 != 0 || n < 0 || n > b.n-offset {
		panic(fmt.Sprintf("emu: %d bytes at %d of a buffer of %d", n, offset, b.n))
	}
	return &buffer{memory: b.memory[offset : offset+n], n: n, base: cmp.Or(b.base, b)}
}

func (b *buffer) data(n int) ([]byte, error) {
	if cmp.Or(b.base, b).memory == nil {
		return nil, errors.New("emu: the buffer is closed")
	}
	if n > b.n {
		return nil, fmt.Errorf("emu: %d bytes exceed the buffer's %d", n, b.n)
	}
	return b.memory[:n], nil
}

// fits returns an error if the machine cannot hold n bytes: a buffer takes no memory until it is written to.
func fits(n int) error {
	var machine unix.Sysinfo_t
	if n > 1<<30 && unix.Sysinfo(&machine) == nil &&
		uint64(n) > (machine.Totalram+machine.Totalswap)*uint64(machine.Unit) {
		return fmt.Errorf("emu: writing %d bytes: out of memory", n)
	}
	return nil
}

func (b *buffer) Write(p []byte) error {
	d, err := b.data(len(p))
	if err = cmp.Or(err, fits(len(d))); err != nil {
		return err
	}
	copy(d, p)
	b.shadow = 0
	return nil
}

// fewMapped is the size in bytes from which WriteFile maps the file. Below it, copying is as fast.
const fewMapped = 64 << 20

// WriteFile writes n bytes of a file to the buffer, and maps whole pages if it can.
func (b *buffer) WriteFile(f *os.File, offset int64, n int) error {
	d, err := b.data(n)
	if err != nil {
		return err
	}
	pages, to := n&^(os.Getpagesize()-1), unsafe.Pointer(unsafe.SliceData(d))
	if n < fewMapped || C.vg_map_file(to, C.size_t(pages), C.int(f.Fd()), C.int64_t(offset)) == 0 {
		pages = 0
		err = fits(n)
	}
	if err == nil {
		_, err = f.ReadAt(d[pages:], offset+int64(pages))
	}
	b.shadow = 0
	return err
}

func (b *buffer) Read(p []byte) error {
	d, err := b.data(len(p))
	copy(p, d)
	return err
}

// Fill sets all bytes to c. If c is a poison for outputs, the buffer counts as unwritten afterwards.
func (b *buffer) Fill(c byte) error {
	d, err := b.data(b.n)
	if err = cmp.Or(err, fits(len(d))); err != nil {
		return err
	}
	if b.shadow = 0; len(d) > 0 {
		p := unsafe.Pointer(unsafe.SliceData(d))
		C.memset(p, C.int(c), C.size_t(len(d)))
		if c == C.VG_POISON || c == C.VG_INTEGER_POISON {
			b.shadow = int64(C.vg_unwritten(p, C.size_t(len(d))))
		}
	}
	return err
}

func (b *buffer) Copy(from device.Buffer) error {
	d, err := b.data(b.n)
	if err != nil {
		return err
	}
	if from.Len() != b.n {
		return fmt.Errorf("emu: copying %d bytes to a buffer of %d", from.Len(), b.n)
	}
	b.shadow = 0
	return from.Read(d)
}

func (b *buffer) Close() error {
	if b.base == nil && b.memory != nil {
		C.vg_unmap(unsafe.Pointer(unsafe.SliceData(b.memory)))
		b.memory = nil
	}
	return nil
}

type kernel struct {
	gpu    *gpu
	fn     *tvmffi.Func
	object string // path of the library that contains fn
	names  []string

	cached bool
}

// Cached reports whether the build came from the cache.
func (k *kernel) Cached() bool { return k.cached }

func (k *kernel) Close() error { return nil }

func (k *kernel) Sync(context.Context) error {
	if k.gpu.lost != nil {
		return k.gpu.lost
	}
	return verdict()
}

// A fault is a *device.CallError after which no kernel runs any more, as on a GPU.
type fault struct{ device.CallError }

func (f *fault) Unwrap() []error { return []error{&f.CallError, device.ErrFault} }

// verdict returns the fault of a kernel, an error if the virtual GPU lacks a feature, or nil.
func verdict() error {
	host.Lock()
	defer host.Unlock()
	switch {
	case host.lack != "":
		return fmt.Errorf("%w: %s", device.ErrUnsupported, host.lack)
	case host.fault != nil:
		return &fault{device.CallError{Kind: "DeviceFault", Text: host.fault.Error(), Log: host.fault.Error() + "\n"}}
	}
	return nil
}

// Probe fills the outputs, calls the entry point and reads them. All work has ended when Call returns, so no work can
// be late.
func (k *kernel) Probe(ctx context.Context, args []device.Arg, fill byte, into [][]byte, kept ...device.Kept) error {
	outputs := args[len(args)-len(into):]
	for _, out := range outputs {
		if err := out.Tensor.Buffer.Fill(fill); err != nil {
			return err
		}
	}
	if err := k.Call(ctx, args); err != nil {
		return err
	}
	for i, out := range outputs {
		if err := out.Tensor.Buffer.Read(into[i]); err != nil {
			return err
		}
	}
	for _, k := range kept {
		if err := args[k.Arg].Tensor.Buffer.Read(k.Into); err != nil {
			return err
		}
	}
	return nil
}

// Call calls the entry point and waits for its kernels. A fault of a kernel is a *device.CallError of kind DeviceFault.
func (k *kernel) Call(ctx context.Context, args []device.Arg) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := verdict(); err != nil {
		return err
	}
	return k.gpu.do(ctx, func() error {
		host.machine.Begin(k.gpu.check|k.gpu.next, k.gpu.fully)
		k.gpu.next, k.gpu.fully = 0, false
		converted, mapped, err := k.convert(args)
		defer func() {
			for _, p := range mapped {
				host.machine.Unmap(p)
			}
		}()
		if err != nil {
			return err
		}
		list, err := k.gpu.lib.Args(converted)
		if err != nil {
			return err
		}
		defer list.Close()
		host.machine.Worked()
		host.machine.Launched()
		C.vg_host_begins()
		err = k.fn.Call(list)
		pending := Pending()
		C.fflush(C.stdout) // what the host code printed; other streams may belong to a thread that is reading
		C.vg_host_ends()
		hostUse(k.object)
		lateWork()
		return cmp.Or(verdict(), err, pending)
	})
}

// Pending takes this thread's error of the runtime that the submission has ignored. On a GPU it is the call's error.
func Pending() error {
	var name, text *C.char
	if C.vg_pending(&name, &text) == 0 {
		return nil
	}
	return &device.CallError{Kind: C.GoString(name), Text: C.GoString(text)}
}

// convert returns the arguments for tvm-ffi. It lets kernels use the memory of the tensors; the caller unmaps it.
func (k *kernel) convert(args []device.Arg) (all []tvmffi.Arg, mapped []uintptr, err error) {
	type part struct {
		from, to uintptr
		name     string
		shadow   int64
		element  int // bytes
	}
	var parts []part
	for i, a := range args {
		if a.Tensor == nil {
			all = append(all, tvmffi.Arg{Scalar: a.Scalar})
			continue
		}
		b, ok := a.Tensor.Buffer.(*buffer)
		if !ok || cmp.Or(b.base, b).memory == nil {
			return nil, nil, fmt.Errorf("emu: argument %d is not in the device's memory", i)
		}
		n, ok := tensor.Elements(a.Tensor.Shape)
		if ok {
			n, ok = a.Tensor.DType.Bytes(n)
		}
		if !ok || n > b.n {
			return nil, nil, fmt.Errorf("emu: argument %d: shape %v of %v exceeds the buffer's %d bytes", i, a.Tensor.Shape,
				a.Tensor.DType, b.n)
		}
		data := uintptr(unsafe.Pointer(unsafe.SliceData(b.memory)))
		name := fmt.Sprintf("argument %d", i)
		if i < len(k.names) {
			name += " (" + k.names[i] + ")"
		}
		if host.machine.Check&UnwrittenGlobal == 0 {
			b.shadow = 0
		}
		element, _ := a.Tensor.DType.Bytes(1)
		parts = append(parts, part{data, data + uintptr(n), name, b.shadow, element})
		all = append(all, tvmffi.Arg{Tensor: &tvmffi.Tensor{Data: data, Device: tvmffi.CUDA(0), DType: a.Tensor.DType,
			Shape: a.Tensor.Shape}})
	}
	// Merge arguments that share memory into one range.
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.from, b.from) })
	for i := 0; i < len(parts); i++ {
		p := parts[i]
		for i+1 < len(parts) && (parts[i+1].from < p.to || parts[i+1].from == p.from) {
			i++
			p.to, p.shadow, p.element = max(p.to, parts[i].to), 0, 0
		}
		host.machine.own(allocation{base: uint64(p.from), size: uint64(p.to - p.from), name: p.name, shadow: p.shadow,
			element: p.element})
		mapped = append(mapped, p.from)
	}
	return all, mapped, nil
}
