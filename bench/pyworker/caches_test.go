package pyworker

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Folders that are named or there are used; for the others a variable names one below the fallback.
func TestCaches(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, p := range programs {
		if p.variable != "" {
			t.Setenv(p.variable, "")
		}
	}
	t.Setenv("TILELANG_CACHE_DIR", "/named")
	t.Setenv("TORCHINDUCTOR_CACHE_DIR", "/named too")
	for _, folder := range []string{".cache/torch", ".cache/tilelang", ".cache/tvm-ffi"} {
		if err := os.MkdirAll(filepath.Join(home, folder), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	folders, env := Caches("/fallback")
	want := []string{filepath.Join(home, ".cache/torch"), "/named too", "/named", filepath.Join(home, ".cache/tilelang"),
		filepath.Join(home, ".cache/tvm-ffi")}
	if !slices.Equal(folders, want) {
		t.Errorf("got %q, want %q", folders, want)
	}
	want = []string{"TRITON_CACHE_DIR=/fallback/.triton", "TRITON_HOME=/fallback/.triton",
		"TORCH_EXTENSIONS_DIR=/fallback/torch_extensions", "CUDA_CACHE_PATH=/fallback/.nv",
		"FLASHINFER_WORKSPACE_BASE=/fallback/flashinfer", "DG_JIT_CACHE_DIR=/fallback/.deep_gemm"}
	if !slices.Equal(env, want) {
		t.Errorf("got %q, want %q", env, want)
	}
}
