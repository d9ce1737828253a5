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
		t.Setenv(p.variable, "")
	}
	t.Setenv("TILELANG_CACHE_DIR", "/named")
	if err := os.MkdirAll(filepath.Join(home, ".cache/tvm-ffi"), 0o777); err != nil {
		t.Fatal(err)
	}
	folders, env := Caches("/fallback")
	if want := []string{"/named", filepath.Join(home, ".cache/tvm-ffi")}; !slices.Equal(folders, want) {
		t.Errorf("got %q, want %q", folders, want)
	}
	if len(env) != len(programs)-2 || !slices.Contains(env, "FLASHINFER_WORKSPACE_BASE=/fallback/flashinfer") {
		t.Errorf("got %q", env)
	}
}
