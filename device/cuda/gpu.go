//go:build cuda && linux && cgo

package cuda

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"fisub/device"
	"fisub/device/cuda/tvmffi"
	"fisub/device/nvcc"
	"fisub/internal/cache"
)

// Built reports whether this program can use a GPU.
const Built = true

// Opener opens NVIDIA GPUs. Output of solutions goes to the process's standard output, whatever Options say: the CUDA
// runtime writes to file descriptor 1.
func Opener() device.Opener { return device.Opener{Kind: "cuda", Open: open} }

// A gpu is one GPU. One goroutine, locked to its thread, makes every CUDA and tvm-ffi call, because the current
// context, tvm-ffi's stream and its allocator belong to the thread.
type gpu struct {
	opts  device.Options
	root  string // cache folder
	info  device.Info
	tools *nvcc.Toolchain // nil if not found
	cupti []string        // folders to search for libcupti
	lib   *tvmffi.Library // nil until the first solution is loaded
	dev   cu.Device
	ctx   cu.CUContext
	strm  cu.Stream
	mark  cu.Event // event for wait
	work  chan func()
	// whether the L2 can keep persisting lines
	persisting bool
	reserved   int64 // bytes of the L2 that the driver reserves for them by default

	inner bool  // in Measure, so the current code is on the device's goroutine
	fault error // set by the first device fault, never cleared
	done  bool
}

// startDriver loads and initialises the driver, once per process.
var startDriver = sync.OnceValue(func() error {
	if message := C.fisub_driver_open(); message != nil {
		defer C.free(unsafe.Pointer(message))
		return fmt.Errorf("%w: %s", ErrNoDriver, C.GoString(message))
	}
	switch code := int(C.fisub_driver_init()); code {
	case 0:
		return nil
	case 100: // CUDA_ERROR_NO_DEVICE
		return ErrNoGPU
	case 34: // CUDA_ERROR_STUB_LIBRARY
		return fmt.Errorf("%w: %s", ErrNoDriver, errorText(code))
	default:
		return fmt.Errorf("%w: cuInit: %s", ErrUnavailable, errorText(code))
	}
})

func open(ctx context.Context, opts device.Options) (device.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := startDriver(); err != nil {
		return nil, err
	}
	root := opts.CacheDir
	if root == "" {
		var err error
		if root, err = cache.Root(); err != nil {
			return nil, err
		}
	}
	C.fisub_default_signals()
	d := &gpu{opts: opts, root: root, work: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: thread and CUDA state end with the goroutine
		for f := range d.work {
			f()
		}
	}()
	if err := d.do(d.start); err != nil {
		close(d.work)
		return nil, err
	}
	if opts.Prebuilt != "" {
		d.info.Toolchain, d.info.CUDA = nvcc.Packed(opts.Prebuilt)
		d.cupti = append([]string{filepath.Join(opts.Prebuilt, nvcc.PackedLib)}, CUPTIDirs(root, nil)...)
		return d, nil
	}
	t, err := nvcc.Find(root)
	if err == nil {
		if err := d.checkDriver(t.CUDAVersion); err != nil {
			_ = d.Close()
			return nil, err
		}
		d.tools, d.info.Toolchain, d.info.CUDA = t, t.String(), t.CUDAVersion
	}
	d.cupti = CUPTIDirs(root, t)
	return d, nil
}

// start makes the GPU's primary context current, which a solution's CUDA runtime uses too.
func (d *gpu) start() error {
	n, err := cu.NumDevices()
	if err != nil {
		return d.check("counting devices", err)
	}
	if n == 0 {
		return ErrNoGPU
	}
	if d.opts.Ordinal < 0 || d.opts.Ordinal >= n {
		var there []string
		for i := range n {
			if dev, err := cu.GetDevice(i); err == nil {
				name, _ := dev.Name()
				there = append(there, fmt.Sprintf("%d (%s)", i, name))
			}
		}
		return fmt.Errorf("%w: ordinal %d; there are %s", ErrOrdinal, d.opts.Ordinal, strings.Join(there, ", "))
	}
	if d.dev, err = cu.GetDevice(d.opts.Ordinal); err != nil {
		return d.check("opening the device", err)
	}
	if err := d.describe(); err != nil {
		return d.check("asking for the device's properties", err)
	}
	if d.ctx, err = d.dev.RetainPrimaryCtx(); err != nil {
		return d.check("retaining the primary context", err)
	}
	err = cu.SetCurrentContext(d.ctx)
	if err == nil {
		// This stream is ordered with the legacy default stream, so work launched there is timed and waited for.
		d.strm, err = cu.MakeStream(cu.DefaultStream)
	}
	if err == nil {
		d.reserved, _ = cu.Limits(limitPersistingL2)
		d.mark, err = cu.MakeEvent(cu.DefaultEvent)
	}
	if err != nil {
		_ = d.dev.ReleasePrimaryCtx()
		return d.check("making a stream", err)
	}
	return nil
}

// maxPersistingL2 is CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE.
const maxPersistingL2 cu.DeviceAttribute = 108

func (d *gpu) describe() error {
	name, err1 := d.dev.Name()
	major, minor, err2 := d.dev.ComputeCapability()
	memory, err3 := d.dev.TotalMem()
	l2, err4 := d.dev.Attribute(cu.L2CacheSize)
	sms, err5 := d.dev.Attribute(cu.MultiprocessorCount)
	uuid, err6 := d.dev.UUID()
	kHz, err7 := d.dev.Attribute(cu.MemoryClockRate)
	bits, err8 := d.dev.Attribute(cu.GlobalMemoryBusWidth)
	bandwidth := 2 * 1000 * int64(kHz) * int64(bits/8) // two transfers a clock
	if err7 != nil || err8 != nil {
		bandwidth = 0 // newer drivers may not report it
	}
	if kept, err := d.dev.Attribute(maxPersistingL2); err == nil {
		d.persisting = kept > 0
	}
	d.info = device.Info{Name: name, Arch: fmt.Sprintf("sm_%d%d", major, minor), Ordinal: d.opts.Ordinal,
		Driver: driverVersion(), L2Bytes: int64(l2), MemoryBytes: memory, UUID: "GPU-" + uuid.String(),
		Multiprocessors: sms, Bandwidth: bandwidth}
	return cmp.Or(err1, err2, err3, err4, err5, err6)
}

var kernelModule = regexp.MustCompile(`Kernel Module.*?\s(\d+\.\d[\d.]*)\s`)

// driverVersion returns the driver's version, or the CUDA release it supports if the version is unknown.
func driverVersion() string {
	text, _ := os.ReadFile("/proc/driver/nvidia/version")
	if m := kernelModule.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	if text, err := os.ReadFile("/sys/module/nvidia/version"); err == nil && len(text) > 0 {
		return strings.TrimSpace(string(text))
	}
	return "for CUDA " + driverCUDA()
}

func driverCUDA() string { return fmt.Sprintf("%d.%d", cu.Version()/1000, cu.Version()%1000/10) }

// checkDriver checks the driver against a runtime's CUDA release, such as "13.0". A driver supports all runtimes of
// its major release.
func (d *gpu) checkDriver(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("cuda: release %q: %w", release, err)
	}
	if cu.Version() < major*1000 {
		return fmt.Errorf("%w: driver %s is for CUDA %s, kernels are built with CUDA %s",
			ErrDriverTooOld, d.info.Driver, driverCUDA(), release)
	}
	return nil
}

func (d *gpu) Info() device.Info { return d.info }

// do runs f on the device's goroutine.
func (d *gpu) do(f func() error) error {
	switch {
	case d.fault != nil:
		return d.fault
	case d.done:
		return errors.New("cuda: the device is closed")
	case d.inner:
		return f()
	}
	var err error
	returned := make(chan struct{})
	d.work <- func() {
		defer close(returned)
		err = f()
	}
	<-returned
	return err
}

// sticky are the errors after which the process can no longer use the GPU.
var sticky = []error{cu.EccUncorrectable, cu.NvlinkUncorrectable, cu.IllegalAddress, cu.LaunchTimeout,
	cu.ContextIsDestroyed, cu.Assert, cu.HardwareStackError, cu.IllegalInstruction, cu.MisalignedAddress,
	cu.InvalidAddressSpace, cu.InvalidPc, cu.LaunchFailed, cu.Unknown}

// check adds CUDA's name and description to an error of cu, and records faults.
func (d *gpu) check(doing string, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if v := reflect.ValueOf(err); v.CanInt() {
		text = errorText(int(v.Int()))
	}
	if slices.ContainsFunc(sticky, func(s error) bool { return errors.Is(err, s) }) {
		d.fault = fmt.Errorf("%w: %s", ErrFault, text)
		return d.fault
	}
	return fmt.Errorf("cuda: %s: %s", doing, text)
}

func errorText(code int) string {
	var description *C.char
	name := C.fisub_driver_error(C.int(code), &description)
	switch {
	case name == nil:
		return fmt.Sprintf("CUDA error %d", code)
	case description == nil:
		return C.GoString(name)
	}
	return C.GoString(name) + ": " + C.GoString(description)
}

// wait waits for all work on the device, on any stream. If ctx ends first, the work continues and the device is
// unusable.
func (d *gpu) wait(ctx context.Context) error {
	// An event on the legacy default stream follows all work on it and on ordinary streams.
	if err := d.mark.Record(cu.NoStream); err != nil {
		return d.check("recording an event", err)
	}
	if err := d.waitFor(ctx, d.mark); err != nil {
		return err
	}
	return d.check("synchronizing", cu.Synchronize())
}

// waitFor polls ev, at first without pauses, so that ctx can end the wait for a hanging kernel.
func (d *gpu) waitFor(ctx context.Context, ev cu.Event) error {
	start := time.Now()
	for {
		err := ev.Query()
		if err == nil {
			return nil
		}
		if !errors.Is(err, cu.NotReady) {
			return d.check("waiting for the device", err)
		}
		if err := ctx.Err(); err != nil {
			d.fault = fmt.Errorf("%w: unfinished work: %w", ErrFault, err)
			return err
		}
		if time.Since(start) > 2*time.Millisecond {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// Close frees the device, or after a fault only ends its goroutine. The primary context is kept: it holds the kernels
// of loaded solutions.
func (d *gpu) Close() error {
	if d.done {
		return nil
	}
	var err error
	if d.fault == nil {
		err = d.do(func() error {
			if d.lib != nil {
				// Later threads start without a stream.
				_ = d.lib.SetStream(tvmffi.CUDA(d.opts.Ordinal), nil)
				tvmffi.Trim()
			}
			return d.check("closing the device", errors.Join(cu.Synchronize(), cu.DestroyEvent(&d.mark), d.strm.Destroy()))
		})
	}
	d.done = true
	close(d.work)
	return err
}

// A buffer is device memory.
type buffer struct {
	gpu   *gpu
	ptr   cu.DevicePtr // 0 if n is 0
	n     int
	slice bool // frees nothing on Close
}

func (d *gpu) Alloc(n int) (device.Buffer, error) {
	b := &buffer{gpu: d, n: n}
	if n < 0 {
		return nil, fmt.Errorf("cuda: allocating %d bytes", n)
	}
	err := d.do(func() (err error) {
		if n > 0 {
			b.ptr, err = cu.MemAlloc(int64(n))
		}
		return d.check(fmt.Sprintf("allocating %d bytes", n), err)
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (b *buffer) Len() int { return b.n }

func (b *buffer) Slice(offset, n int) device.Buffer {
	if offset < 0 || offset%256 != 0 || n < 0 || n > b.n-offset {
		panic(fmt.Sprintf("cuda: %d bytes at %d of a buffer of %d", n, offset, b.n))
	}
	s := &buffer{gpu: b.gpu, n: n, slice: true}
	if n > 0 && b.ptr != 0 {
		s.ptr = b.ptr + cu.DevicePtr(offset)
	}
	return s
}

func (b *buffer) Write(p []byte) error {
	return b.copy("writing", len(p), func() error {
		return cu.MemcpyHtoDAsync(b.ptr, unsafe.Pointer(&p[0]), int64(len(p)), b.gpu.strm)
	})
}

func (b *buffer) Read(p []byte) error {
	return b.copy("reading", len(p), func() error {
		return cu.MemcpyDtoHAsync(unsafe.Pointer(&p[0]), b.ptr, int64(len(p)), b.gpu.strm)
	})
}

func (b *buffer) Copy(from device.Buffer) error {
	f, ok := from.(*buffer)
	if !ok || f.gpu != b.gpu || f.n != b.n {
		return fmt.Errorf("cuda: copying to a buffer of %d bytes from another device or length", b.n)
	}
	if b.n == 0 {
		return nil
	}
	return b.gpu.do(func() error {
		if b.ptr == 0 || f.ptr == 0 {
			return errors.New("cuda: copying a closed buffer")
		}
		return b.gpu.check("copying", cu.MemcpyDtoDAsync(b.ptr, f.ptr, int64(b.n), b.gpu.strm))
	})
}

func (b *buffer) Fill(v byte) error {
	return b.copy("filling", b.n, func() error { return cu.MemsetD8Async(b.ptr, v, int64(b.n), b.gpu.strm) })
}

// copy runs f, which starts a transfer of n bytes on the device's stream, and waits.
func (b *buffer) copy(doing string, n int, f func() error) error {
	if n > b.n {
		return fmt.Errorf("cuda: %s %d bytes of a buffer of %d", doing, n, b.n)
	}
	if n == 0 {
		return nil
	}
	return b.gpu.do(func() error {
		if b.ptr == 0 {
			return fmt.Errorf("cuda: %s a closed buffer", doing)
		}
		err := f()
		if err == nil {
			err = b.gpu.strm.Synchronize()
		}
		return b.gpu.check(fmt.Sprintf("%s %d bytes", doing, n), err)
	})
}

func (b *buffer) Close() error {
	if b.ptr == 0 || b.slice {
		return nil
	}
	return b.gpu.do(func() error {
		err := cu.MemFree(b.ptr)
		b.ptr = 0
		return b.gpu.check("freeing memory", err)
	})
}
