package pyworker

import (
	"strings"
	"testing"
)

// What is compiled stays below the submission's folder, whatever the environment says.
func TestCaches(t *testing.T) {
	t.Setenv("TILELANG_CACHE_DIR", "/named")
	t.Setenv("TRITON_HOME", "/named")
	for _, v := range Caches("/own") {
		if _, folder, _ := strings.Cut(v, "="); folder != "/own" && !strings.HasPrefix(folder, "/own/") {
			t.Errorf("got %s, want a folder below /own", v)
		}
	}
}
