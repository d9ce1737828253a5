//go:build cuda && linux && cgo

package cuda

// #include "driver.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"gorgonia.org/cu"

	"fisub/device"
	"fisub/device/cuda/tvmffi"
	"fisub/device/nvcc"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A kernel is a loaded solution. Its code stays loaded after Close.
type kernel struct {
	gpu  *gpu
	fn   *tvmffi.Func
	args *tvmffi.Args // of the last call, for reuse
	last []argument

	cached bool
}

// Cached reports whether the kernel came from the build cache.
func (k *kernel) Cached() bool { return k.cached }

// An argument describes the Arg of a converted argument.
type argument struct {
	none   bool
	tensor bool
	scalar trace.Scalar
	ptr    cu.DevicePtr
	n      int // bytes of the buffer
	dtype  tensor.DType
	shape  []int
}

func (d *gpu) Build(ctx context.Context, _ *trace.Definition, sol *trace.Solution) (device.Kernel, error) {
	if !sol.Spec.DestinationPassingStyle {
		return nil, fmt.Errorf("%w: fisub cannot call CUDA submissions that return their outputs "+
			"(destination_passing_style = false)", device.ErrUnsupported)
	}
	arch := cmp.Or(d.opts.Arch, d.info.Arch)
	if d.opts.LineInfo && d.opts.Prebuilt == "" {
		arch = nvcc.WithLines(arch)
	}
	build := func() (*nvcc.Object, error) { return nvcc.Build(ctx, d.root, d.tools, sol, arch) }
	if d.opts.Prebuilt != "" {
		if !nvcc.Serves(arch, d.info.Arch) {
			return nil, fmt.Errorf("cuda: %w: a kernel for %s, %s is %s", ErrArch, arch, d.info.Name, d.info.Arch)
		}
		build = func() (*nvcc.Object, error) { return nvcc.Prebuilt(d.opts.Prebuilt, sol, arch) }
	}
	object, err := build()
	if err != nil {
		return nil, nvcc.Judged(err)
	}
	if err := d.checkDriver(object.CUDAVersion); err != nil {
		return nil, err
	}
	d.info.Toolchain, d.info.CUDA = object.Toolchain, object.CUDAVersion
	k := &kernel{gpu: d, cached: object.Hit}
	err = d.do(func() (err error) {
		if d.lib == nil {
			err = d.loadFFI(object.Libs)
		} else {
			_, err = tvmffi.Load(object.Libs...)
		}
		if err == nil {
			k.fn, err = d.lib.Func(object.Path, object.Symbol)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// loadFFI loads tvm-ffi and sets its stream and allocator for the device's thread.
func (d *gpu) loadFFI(libs []string) error {
	lib, err := tvmffi.Load(libs...)
	if err != nil {
		return err
	}
	dev := tvmffi.CUDA(d.opts.Ordinal)
	if err := lib.SetStream(dev, unsafe.Pointer(d.strm.C())); err != nil {
		return err
	}
	alloc, release := symbol("cuMemAlloc_v2"), symbol("cuMemFree_v2")
	if alloc == nil || release == nil {
		return errors.New("cuda: the driver has no cuMemAlloc_v2")
	}
	if err := lib.SetAllocator(dev, alloc, release); err != nil {
		return err
	}
	d.lib = lib
	return nil
}

func symbol(name string) unsafe.Pointer {
	c := append([]byte(name), 0)
	return C.fisub_driver_symbol((*C.char)(unsafe.Pointer(&c[0])))
}

func (k *kernel) Call(ctx context.Context, args []device.Arg) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return k.gpu.do(func() error { return k.call(ctx, args) })
}

func (k *kernel) call(ctx context.Context, args []device.Arg) error {
	if !k.same(args) {
		if err := k.convert(args); err != nil {
			return err
		}
	}
	err := k.fn.Call(k.args)
	// A launch error that the solution ignored is this call's error.
	var name, description *C.char
	code := C.fisub_runtime_error(&name, &description)
	if err == nil {
		if code == 0 {
			return nil
		}
		err = &device.CallError{Kind: C.GoString(name), Text: C.GoString(description)}
	}
	if fault := k.gpu.wait(ctx); fault != nil {
		return fmt.Errorf("%w: %w", fault, err)
	}
	return err
}

// same reports whether args equal the last call's, as in timed calls, and need no conversion.
func (k *kernel) same(args []device.Arg) bool {
	if k.args == nil || len(args) != len(k.last) {
		return false
	}
	for i, a := range args {
		l := &k.last[i]
		switch {
		case a.Tensor != nil:
			b, ok := a.Tensor.Buffer.(*buffer)
			if !ok || !l.tensor || b.gpu != k.gpu || b.ptr != l.ptr || b.n != l.n || a.Tensor.DType != l.dtype ||
				!slices.Equal(a.Tensor.Shape, l.shape) {
				return false
			}
		case a.Scalar != nil:
			if l.tensor || l.none || *a.Scalar != l.scalar {
				return false
			}
		case !l.none:
			return false
		}
	}
	return true
}

func (k *kernel) convert(args []device.Arg) error {
	k.release()
	values, last := make([]tvmffi.Arg, len(args)), make([]argument, len(args))
	for i, a := range args {
		switch {
		case a.Tensor != nil:
			b, ok := a.Tensor.Buffer.(*buffer)
			if !ok || b.gpu != k.gpu {
				return fmt.Errorf("cuda: argument %d: the buffer is not of this device", i)
			}
			elements, ok := tensor.Elements(a.Tensor.Shape)
			need, ok2 := a.Tensor.DType.Bytes(elements)
			if !ok || !ok2 || need > b.n {
				return fmt.Errorf("cuda: argument %d: a buffer of %d bytes cannot hold %s %v",
					i, b.n, a.Tensor.DType, a.Tensor.Shape)
			}
			if need > 0 && b.ptr == 0 {
				return fmt.Errorf("cuda: argument %d: the buffer is closed", i)
			}
			last[i] = argument{tensor: true, ptr: b.ptr, n: b.n, dtype: a.Tensor.DType, shape: slices.Clone(a.Tensor.Shape)}
			values[i].Tensor = &tvmffi.Tensor{Data: b.ptr.Uintptr(), Device: tvmffi.CUDA(k.gpu.opts.Ordinal),
				DType: a.Tensor.DType, Shape: a.Tensor.Shape}
		case a.Scalar != nil:
			last[i] = argument{scalar: *a.Scalar}
			values[i].Scalar = a.Scalar
		default:
			last[i] = argument{none: true}
		}
	}
	converted, err := k.gpu.lib.Args(values)
	if err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	k.args, k.last = converted, last
	return nil
}

func (k *kernel) release() {
	if k.args != nil {
		k.args.Close()
		k.args, k.last = nil, nil
	}
}

// stallTimes memsets of stallBytes precede a Probe's call. They take some hundred microseconds, in which the
// solution's work on an unordered stream finishes, or at least gets far, before the fill.
const stallTimes, stallBytes = 16, 64 << 20

func (k *kernel) Probe(ctx context.Context, args []device.Arg, fill byte, into [][]byte, kept ...device.Kept) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return k.gpu.do(func() error { return k.probe(ctx, args, fill, into, kept) })
}

func (k *kernel) probe(ctx context.Context, args []device.Arg, fill byte, into [][]byte,
	kept []device.Kept) (err error) {
	d := k.gpu
	watched := slices.Clone(args[len(args)-len(into):])
	filled := len(into)
	for _, kept := range kept {
		watched, into = append(watched, args[kept.Arg]), append(into[:len(into):len(into)], kept.Into)
	}
	outputs := make([]*buffer, len(into))
	size := int64(0)
	for i, out := range watched {
		b, ok := out.Tensor.Buffer.(*buffer)
		if !ok || b.gpu != d || len(into[i]) > b.n || len(into[i]) > 0 && b.ptr == 0 {
			return fmt.Errorf("cuda: output %d: the buffer is not of this device, or shorter than %d bytes", i, len(into[i]))
		}
		outputs[i] = b
		size += int64(len(into[i]))
	}
	scratch, err := cu.MemAlloc(max(size, stallBytes))
	if err != nil {
		return d.check(fmt.Sprintf("allocating %d bytes to probe with", max(size, stallBytes)), err)
	}
	defer func() {
		if d.fault != nil {
			return
		}
		if free := d.check("freeing memory", cu.MemFree(scratch)); err == nil {
			err = free
		}
	}()

	for range stallTimes {
		if err := cu.MemsetD8Async(scratch, fill, stallBytes, d.strm); err != nil {
			return d.check("filling", err)
		}
	}
	for _, b := range outputs[:filled] {
		if b.ptr != 0 {
			if err := cu.MemsetD8Async(b.ptr, fill, int64(b.n), d.strm); err != nil {
				return d.check("filling", err)
			}
		}
	}
	if err := k.call(ctx, args); err != nil {
		return err
	}
	// The copies stay on the device: a copy to the host would start only after the CPU has seen the call end.
	each := func(f func(p []byte, b *buffer, at cu.DevicePtr) error) error {
		at := scratch
		for i, p := range into {
			if len(p) > 0 {
				if err := f(p, outputs[i], at); err != nil {
					return d.check("copying outputs", err)
				}
			}
			at += cu.DevicePtr(len(p))
		}
		return nil
	}
	err = each(func(p []byte, b *buffer, at cu.DevicePtr) error {
		return cu.MemcpyDtoDAsync(at, b.ptr, int64(len(p)), d.strm)
	})
	if err != nil {
		return err
	}
	if err := d.mark.Record(d.strm); err != nil {
		return d.check("recording an event", err)
	}
	if err := d.waitFor(ctx, d.mark); err != nil {
		return err
	}
	return each(func(p []byte, _ *buffer, at cu.DevicePtr) error {
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&p[0]), at, int64(len(p)), d.strm); err != nil {
			return err
		}
		return d.strm.Synchronize()
	})
}

func (k *kernel) Sync(ctx context.Context) error {
	return k.gpu.do(func() error { return k.gpu.wait(ctx) })
}

func (k *kernel) Close() error {
	if k.gpu.fault != nil || k.gpu.done {
		return nil
	}
	return k.gpu.do(func() error {
		k.release()
		return nil
	})
}
