package pyworker

import (
	"slices"
	"strings"
	"testing"

	"fisub/bench/worker"
	"fisub/device"
)

// Compiled code stays below the submission's folder, regardless of the environment.
func TestCaches(t *testing.T) {
	t.Setenv("TILELANG_CACHE_DIR", "/named")
	t.Setenv("TRITON_HOME", "/named")
	for _, v := range Caches("/own") {
		if _, folder, _ := strings.Cut(v, "="); folder != "/own" && !strings.HasPrefix(folder, "/own/") {
			t.Errorf("got %s, want a folder below /own", v)
		}
	}
}

// plants leaves byte code for its own source, and a module next to it, for the next process. total reports whether it
// found any.
const plants = `import importlib._bootstrap_external as be, importlib.util, os, sys
try:
    import planted as found
except ImportError:
    found = None
source = os.path.abspath(__file__)
cached = importlib.util.cache_from_source(source)
os.makedirs(os.path.dirname(cached), exist_ok=True)
with open(cached, "wb") as f:
    code = compile("def run(x, c, y, total):\n    y.fill_(7)\n    total.fill_(7)\n", source, "exec")
    f.write(be._code_to_hash_pyc(code, b"\0" * 8, checked=False))
with open(os.path.join(sys.path[0], "planted.py"), "w") as f:
    f.write("")
def run(x, c, y, total):
    y.copy_(x)
    total.fill_(0 if found is None else 1)
`

// A process does not find files that an earlier one wrote next to the same sources.
func TestSourcesAreFresh(t *testing.T) {
	c, root := command(t), t.TempDir()
	for range 2 {
		client, err := worker.Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Open(t.Context(), "emu", device.Options{CacheDir: root}); err != nil {
			t.Fatal(err)
		}
		if err := build(t, client, plants, true); err != nil {
			t.Fatal(err)
		}
		out := load(t, client)
		if _, err := client.Run(t.Context(), out); err != nil {
			t.Fatal(err)
		}
		if got := append(floats(t, out, 0, 3), floats(t, out, 256, 1)...); !slices.Equal(got, []float32{1, -2, 30, 0}) {
			t.Errorf("got %v, want 1 -2 30 0", got)
		}
	}
}
