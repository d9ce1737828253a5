//go:build linux && cgo

package vgpu

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"testing"

	"fisub/device"
	"fisub/device/devicetest"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

//go:embed testdata/features.cu
var featuresSource string

// TestFeatures runs features that kernels of the contest use, compiled by nvcc. Other tests cover shared memory, warps,
// atomics, bfloat16, half and fp8, dynamic shared memory and printf (devicetest); spinning barriers, calls through
// pointers and recursion (control_test.go); tensor maps (driver_test.go, tensor_test.go); wgmma, tcgen05 and
// setmaxnreg, which need their own arch (compare_test.go, tensor_test.go); missing headers (TestDriver); and
// unsupported instructions with their line (TestFaults).
func TestFeatures(t *testing.T) {
	longtest.Skip(t, "compiles kernels")
	log := &bytes.Buffer{}
	d, err := Opener().Open(t.Context(), device.Options{CacheDir: devicetest.Cache(t), Stderr: log})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	k, err := d.Build(t.Context(), nil, &trace.Solution{Name: "features", Spec: trace.BuildSpec{Language: trace.CUDA,
		EntryPoint: "kernel.cu::run", DestinationPassingStyle: true},
		Sources: []trace.SourceFile{{Path: "kernel.cu", Content: featuresSource}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Alloc(4 * 64)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	first := func(values ...int) func(i int) int {
		return func(i int) int {
			if i < len(values) {
				return values[i]
			}
			return i
		}
	}
	for which, c := range []struct {
		name string
		want func(i int) int
	}{
		{"inline PTX: laneid, lop3, prmt, ex2, rcp, prefetch, bar", func(i int) int { return (i%32 ^ 6) + 1000 }},
		{"inline PTX: cp.async, ld.global.nc.v4, red", func(i int) int { return i + 63 - i + i/4*4 }},
		{"inline PTX: ldmatrix, mma.sync", func(i int) int { return i + 35 }},
		{"inline PTX: cp.async.bulk with an mbarrier", func(i int) int { return 63 - i }},
		{"__CUDA_ARCH__ >= 1000: fma.f32x2, __ffma2_rn, griddepcontrol", func(i int) int { return i + 6*6 + 6 + 12*12 + 12 }},
		{"cuda_pipeline.h", func(i int) int { return i ^ 1 }},
		{"cuda/pipeline", func(i int) int { return i ^ 2 }},
		{"cuda/barrier, cuda/atomic, cuda/std", func(i int) int { return i + (i ^ 1) + (i ^ 3) }},
		{"cooperative_groups: tiles, reduce", func(i int) int { return []int{496 + 31, 1520 + 63 + 10000}[i/32] }},
		{"cooperative_groups: the grid", first(8, 65)},
		{"cooperative_groups: clusters", first(101, 100, 103, 102)},
		{"cudaLaunchKernelEx: cluster, programmatic launch; __isShared", first(21, 21)},
		{"mma.h", func(i int) int { return i + 1 + 1240 }},
		{"cub", first(2016)},
	} {
		in, out := make([]byte, 0, 256), make([]byte, 256)
		for i := range 64 {
			in = binary.LittleEndian.AppendUint32(in, uint32(i))
		}
		if err := b.Write(in); err != nil {
			t.Fatal(err)
		}
		err := k.Call(t.Context(), []device.Arg{{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Int32, Shape: []int{64}}},
			{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: int64(which)}}})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := b.Read(out); err != nil {
			t.Fatal(err)
		}
		for i := range 64 {
			if got := int(int32(binary.LittleEndian.Uint32(out[4*i:]))); got != c.want(i) {
				t.Errorf("%s: %d is %d, want %d", c.name, i, got, c.want(i))
				break
			}
		}
	}
	if log.Len() != 0 {
		t.Errorf("it warns: %s", log)
	}
}
