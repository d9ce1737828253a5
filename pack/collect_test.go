package pack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const configText = "[solution]\nname = \"n\"\ndefinition = \"d\"\nauthor = \"a\"\n[build]\nlanguage = " +
	"\"cuda\"\nentry_point = \"k.cu::k\"\n"

// The collector's packer ignores binding and dependencies. A packed solution is taken unchanged, and then nothing else.
func TestCollect(t *testing.T) {
	bound := strings.Replace(configText, "[build]", "[build]\nbinding = \"tvm-ffi\"\ndependencies = [\"x\"]", 1)
	dir := write(t, map[string]string{"config.toml": bound, "sub/config.toml": configText,
		"sub/deep/config.toml": configText, "broken/config.toml": "x",
		".hidden/config.toml": configText, "solution/cuda/k.cu": "1", "solution/cuda/notes.md": "1",
		"sub/solution/cuda/k.cu": "1"})
	found, err := Collect(dir)
	all := found.Taken()
	if err != nil || len(all) != 3 || all[1].Err == nil {
		t.Fatalf("got %+v, %v, want two submissions and a broken one", all, err)
	}
	if all[0].Solution.Hash() != all[2].Solution.Hash() ||
		!slices.Equal(all[0].Reads, []string{"config.toml", "solution/cuda/k.cu"}) {
		t.Errorf("got %+v, want what the contest's packer makes of it", all[0])
	}
	if of := found.Of("sub/config.toml"); of == nil || of.Definition != "d" || found.Of("sub/deep/config.toml") != nil {
		t.Errorf("got %+v, want the one of sub, and none deeper", of)
	}
	if err := os.WriteFile(filepath.Join(dir, Packed), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err = Collect(dir)
	if all = found.Taken(); err != nil || len(all) != 1 || all[0].Path != Packed || all[0].Err == nil {
		t.Errorf("got %+v, %v, want the packed one, which is broken", all, err)
	}
}
