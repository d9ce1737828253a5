package nvcc

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// Output of ptxas 13.0 -v for sm_90 and sm_100, with a warning of another kind in between.
const ptxasLog = `kernel.cu(7): warning #177-D: variable "z" was declared but never referenced

ptxas info    : 16 bytes gmem, 8 bytes cmem[3]
ptxas info    : Compiling entry function '_ZN1a5plainEPf' for 'sm_100'
ptxas info    : Function properties for _ZN1a5plainEPf
    256 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 72 registers, used 0 barriers, 256 bytes cumulative stack size
ptxas info    : Compile time = 321.010 ms
ptxas warning : Value of threads per SM for entry is out of range
ptxas info    : Compiling entry function '_Z4kernILi3EEvPf' for 'sm_90'
ptxas info    : Function properties for _Z4kernILi3EEvPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 2 barriers, 1200 bytes smem, 536 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Function properties for _Z6devicev
    64 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
`

func TestTakeReport(t *testing.T) {
	kernels, rest := takeReport(ptxasLog, "kernel.cu")
	want := []Resources{
		{Name: "_ZN1a5plainEPf", Symbol: "_ZN1a5plainEPf", File: "kernel.cu", Registers: 72, SpillStores: 12, SpillLoads: 20,
			Stack: 256},
		{Name: "_Z4kernILi3EEvPf", Symbol: "_Z4kernILi3EEvPf", File: "kernel.cu", Registers: 12, Shared: 1200, Constant: 544,
			Barriers: 2},
	}
	if !reflect.DeepEqual(kernels, want) {
		t.Errorf("got %+v, want %+v", kernels, want)
	}
	if want := "kernel.cu(7): warning #177-D: variable \"z\" was declared but never referenced\n\nptxas warning : " +
		"Value of threads per SM for entry is out of range\n"; rest != want {
		t.Errorf("got the rest %q, want %q", rest, want)
	}
	if kernels, rest := takeReport("", "x"); kernels != nil || rest != "" {
		t.Errorf("of nothing: got %v and %q", kernels, rest)
	}
}

func TestComplete(t *testing.T) {
	dir := t.TempDir()
	ptx := ".visible .entry first(\n\t.param .u64 a\n)\n.maxntid 16, 8, 2\n.minnctapersm 3\n{\n.maxntid 7\n}\n.visible " +
		".entry second()\n.reqntid 64\n{\n}\n.entry other()\n.maxntid 5\n{\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "k.ptx"), []byte(ptx), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "k.cubin"), []byte("not ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	kernels := []Resources{{Symbol: "first"}, {Symbol: "second"}, {Symbol: "third"}}
	complete(kernels, dir)
	want := []Resources{{Symbol: "first", MaxThreads: 256, MinBlocks: 3}, {Symbol: "second", MaxThreads: 64},
		{Symbol: "third"}}
	if !reflect.DeepEqual(kernels, want) {
		t.Errorf("got %+v, want %+v", kernels, want)
	}
}

func TestOfImage(t *testing.T) {
	for header, want := range map[string]bool{"cuda_profiler_api.h": true, "cudaProfiler.h": true, "cublas_v2.h": true,
		"cute/tensor.hpp": true, "nvtx3/nvToolsExt.h": true, "torch/extension.h": false, "mine/cublas_v2.h": false, "cuda_mine.h": false} {
		if OfImage(header) != want {
			t.Errorf("%s: got %v", header, !want)
		}
	}
}
