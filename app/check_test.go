package app

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"fisub/device/nvcc"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/project/preflight"
)

// TestShowReport checks the output of check about compiled kernels, as text and as JSON.
func TestShowReport(t *testing.T) {
	kernel := nvcc.Resources{Name: "scale<256>", Symbol: "_Z5scale", File: "kernel.cu", Registers: 40, SpillStores: 8,
		SpillLoads: 16, Shared: 1024, Constant: 924, MaxThreads: 256}
	r := &preflight.Report{
		Solution: &trace.Solution{Sources: []trace.SourceFile{{Path: "kernel.cu", Content: "x"}},
			Spec: trace.BuildSpec{EntryPoint: "kernel.cu::kernel"}},
		Findings: []preflight.Finding{{Code: "crlf", Severity: preflight.Warning, Path: "kernel.cu", Msg: "CRLF"}},
		Builds: []preflight.Build{{Arch: "sm_100", Toolchain: "nvcc 13.0", Kernels: []preflight.CompiledKernel{
			{Arch: "sm_100", Resources: kernel}}},
			{Arch: "sm_90"}},
	}
	for range shownKernels {
		r.Builds[0].Kernels = append(r.Builds[0].Kernels, r.Builds[0].Kernels[0])
	}
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: &out, term: &ui.Terminal{Out: &out, Err: &out}}
	a.showReport(r, false)
	for _, want := range []string{
		"compiled    sm_100: nvcc 13.0; the contest's image has CUDA 13.2\n",
		"            scale<256>: 40 registers, 8 + 16 bytes of spills, 1024 bytes shared, 924 constant, at most 256 " +
			"threads per block\n",
		"            1 more kernel, shown with -v\n", "\nsound, except for 1 warning\n", "sources     1 file, 1 bytes\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %q, want %q in it", out.String(), want)
		}
	}
	if strings.Contains(out.String(), "sm_90") {
		t.Errorf("got %q, want nothing of an arch that was not compiled", out.String())
	}
	out.Reset()
	a.showReport(r, true)
	if want := "\nnot sound: 0 errors, 1 warning\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("strict: got %q, want %q at the end", out.String(), want)
	}

	out.Reset()
	if err := a.writeJSON(newChecked(r, false)); err != nil {
		t.Fatal(err)
	}
	var got struct {
		OK       bool
		Findings []struct{ Code, Severity string }
		Kernels  []struct {
			Arch, Name string
			Registers  int
			Spills     int `json:"spill_stores"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	k := got.Kernels[0]
	if !got.OK || got.Findings[0].Code != "crlf" || k.Arch != "sm_100" || k.Name != "scale<256>" || k.Registers != 40 ||
		k.Spills != 8 {
		t.Errorf("got %+v of %s", got, out.String())
	}
}
