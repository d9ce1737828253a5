//go:build cuda && linux && cgo

package cupti

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fisub/device"
)

func compiler(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	return cc
}

// The structs of records.h begin as CUPTI's own records do in the header used for this build.
func TestLayouts(t *testing.T) {
	cc := compiler(t)
	args := append([]string{"-fsyntax-only", "-I."},
		strings.Fields(strings.ReplaceAll(os.Getenv("CGO_CFLAGS"), "'", ""))...)
	check := func(source string) (string, error) {
		cmd := exec.Command(cc, append(args, "-xc", "-")...)
		cmd.Stdin = strings.NewReader(source)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := check("#include <cuda.h>\n#include <cupti.h>\n"); err != nil {
		t.Skipf("no cupti.h to compare with: %s", strings.TrimSpace(strings.SplitN(out, "\n", 2)[0]))
	}
	source := `#include <cuda.h>
#include <cupti.h>
#include "records.h"
#define SAME(ours, a, theirs, b)                                                                  \
  _Static_assert(offsetof(struct ours, a) == offsetof(theirs, b), #theirs "." #b " is elsewhere"); \
  _Static_assert(sizeof(((struct ours *)0)->a) == sizeof(((theirs *)0)->b), #theirs "." #b " has another size");
#define KERNEL(T) SAME(cupti_kernel, kind, T, kind) SAME(cupti_kernel, registers, T, registersPerThread) SAME(cupti_kernel, start, T, start) \
  SAME(cupti_kernel, end, T, end) SAME(cupti_kernel, grid[0], T, gridX) SAME(cupti_kernel, grid[2], T, gridZ) SAME(cupti_kernel, block[0], T, blockX) \
  SAME(cupti_kernel, static_shared, T, staticSharedMemory) SAME(cupti_kernel, dynamic_shared, T, dynamicSharedMemory) \
  SAME(cupti_kernel, local, T, localMemoryPerThread) SAME(cupti_kernel, correlation, T, correlationId) SAME(cupti_kernel, name, T, name)
#define COPY(T) SAME(cupti_memcpy, copy_kind, T, copyKind) SAME(cupti_memcpy, bytes, T, bytes) SAME(cupti_memcpy, start, T, start) \
  SAME(cupti_memcpy, end, T, end) SAME(cupti_memcpy, correlation, T, correlationId)
KERNEL(CUpti_ActivityKernel9)
KERNEL(CUpti_ActivityKernel10)
COPY(CUpti_ActivityMemcpy5)
COPY(CUpti_ActivityMemcpy6)
SAME(cupti_memset, value, CUpti_ActivityMemset4, value)
SAME(cupti_memset, bytes, CUpti_ActivityMemset4, bytes)
SAME(cupti_memset, start, CUpti_ActivityMemset4, start)
SAME(cupti_memset, end, CUpti_ActivityMemset4, end)
SAME(cupti_memset, correlation, CUpti_ActivityMemset4, correlationId)
SAME(cupti_api, cbid, CUpti_ActivityAPI, cbid)
SAME(cupti_api, start, CUpti_ActivityAPI, start)
SAME(cupti_api, thread, CUpti_ActivityAPI, threadId)
SAME(cupti_api, correlation, CUpti_ActivityAPI, correlationId)
_Static_assert(KIND_MEMCPY == CUPTI_ACTIVITY_KIND_MEMCPY && KIND_MEMSET == CUPTI_ACTIVITY_KIND_MEMSET && KIND_DRIVER == CUPTI_ACTIVITY_KIND_DRIVER &&
  KIND_RUNTIME == CUPTI_ACTIVITY_KIND_RUNTIME && KIND_CONCURRENT_KERNEL == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kinds");
_Static_assert(CUPTI_DRIVER_TRACE_CBID_cuEventQuery == 120 && CUPTI_ACTIVITY_FLAG_FLUSH_FORCED == 1 && CUPTI_ERROR_MAX_LIMIT_REACHED == 12, "constants");
_Static_assert(CUPTI_RUNTIME_TRACE_CBID_cudaStreamAddCallback_v5000 == 197 && CUPTI_RUNTIME_TRACE_CBID_cudaStreamAddCallback_ptsz_v7000 == 248 &&
  CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_v10000 == 284 && CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_ptsz_v10000 == 285 &&
  CUPTI_DRIVER_TRACE_CBID_cuStreamAddCallback == 346 && CUPTI_DRIVER_TRACE_CBID_cuStreamAddCallback_ptsz == 437 &&
  CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc == 527 && CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc_ptsz == 528, "host functions");
`
	if out, err := check(source); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestOpenErrors(t *testing.T) {
	cc := compiler(t)
	build := func(args ...string) string {
		t.Helper()
		dir := t.TempDir()
		if out, err := exec.Command(cc, append([]string{"-shared", "-fPIC", "-o", filepath.Join(dir, "libcupti.so.13")},
			args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return dir
	}
	empty := filepath.Join(t.TempDir(), "empty.c")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_CUPTI_VERSION", "18")
	for _, tt := range []struct {
		name  string
		dir   string
		major int
		want  string
	}{
		{"driver for CUDA 11", "", 11, "cupti: not supported with a driver for CUDA 11"},
		{"something else", build(empty), 13, "/libcupti.so.13: no cuptiGetVersion"},
		{"too old", build("../testdata/fakecupti.c", "../testdata/fakecuda.c"), 13, "/libcupti.so.13 is of CUDA 11 or older"},
		{"nowhere", t.TempDir(), 12, "cupti: no libcupti.so.12"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lib, err := open([]string{tt.dir}, tt.major)
			if lib != nil {
				t.Skipf("the loader finds %s", lib.Path)
			}
			if !errors.Is(err, device.ErrTimer) || !strings.HasSuffix(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}
