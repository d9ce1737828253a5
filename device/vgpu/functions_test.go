package vgpu

import (
	"debug/elf"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/device/devicetest"
	"fisub/device/nvcc"
	"fisub/internal/longtest"
)

// The documented functions are those that the libraries define, and no stubs.
func TestFunctions(t *testing.T) {
	longtest.Skip(t, "compiles the runtime")
	root := devicetest.Cache(t)
	tools, err := nvcc.Find(root)
	if err != nil {
		t.Skip(err)
	}
	library, err := Runtime(t.Context(), root, tools)
	if err != nil {
		t.Fatal(err)
	}
	runtime, driver := Functions()
	for path, want := range map[string][]string{library: runtime,
		filepath.Join(filepath.Dir(library), driverName): driver} {
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "cu") &&
				!strings.HasPrefix(s.Name, "cuda_") && // of the CuTe DSL
				elf.ST_BIND(s.Info) == elf.STB_GLOBAL {
				got = append(got, s.Name)
			}
		}
		for _, name := range got {
			if !slices.ContainsFunc(want, func(w string) bool { return w == name || versioned(name, w) }) {
				t.Errorf("%s: %s is not in the list", filepath.Base(path), name)
			}
		}
		for _, name := range want {
			if !slices.ContainsFunc(got, func(g string) bool { return g == name || versioned(g, name) }) {
				t.Errorf("%s: %s is listed, but not defined", filepath.Base(path), name)
			}
		}
	}
}

// versioned reports whether symbol is name with a version, which the headers' macros or fisub nvcc add.
func versioned(symbol, name string) bool {
	rest, ok := strings.CutPrefix(symbol, name+"_")
	return ok && slices.Contains([]string{"v2", "v3", "v4", "ptsz", "cuda12"}, rest)
}
