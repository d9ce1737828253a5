package vgpu

import (
	"debug/elf"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var functionDefinition = regexp.MustCompile(`(?m)^(?:cudaError_t|CUresult|const char \*|struct \w+) ?` +
	`(cu(?:da)?[A-Z]\w+)\(`)

// Functions returns the names of the functions of CUDA's runtime and driver API that the virtual GPU has, sorted.
func Functions() (runtime, driver []string) {
	for _, source := range hostSources() {
		for _, m := range functionDefinition.FindAllStringSubmatch(source, -1) {
			name := strings.TrimSuffix(strings.TrimSuffix(m[1], "_v2"), "_cuda12")
			if strings.HasPrefix(name, "cuda") {
				runtime = append(runtime, name)
			} else {
				driver = append(driver, name)
			}
		}
	}
	slices.Sort(runtime)
	slices.Sort(driver)
	return slices.Compact(runtime), slices.Compact(driver)
}

// missingFunctions returns the functions that the program or library at path imports and for which the runtime library
// at path runtime, the driver next to it, and the libraries more have only stubs. It returns nil for other files than
// ELF.
func missingFunctions(path, runtime string, more ...string) (names []string) {
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	imported, err := f.ImportedSymbols()
	if err != nil {
		return nil
	}
	stubs := map[string]bool{}
	for _, library := range append(more, runtime, filepath.Join(filepath.Dir(runtime), driverName)) {
		addStubs(stubs, library)
	}
	for _, s := range imported {
		if stubs[s.Name] {
			names = append(names, strings.TrimSuffix(s.Name, "_v2"))
		}
	}
	return names
}

// addStubs adds the functions for which a library only has stubs.
func addStubs(stubs map[string]bool, library string) {
	symbols, _ := definedSymbols(library) // a library that cannot be read has none
	for _, s := range symbols {
		if elf.ST_BIND(s.Info) == elf.STB_WEAK && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			stubs[s.Name] = true
		}
	}
}

// definedSymbols returns the symbols that a library defines for others.
func definedSymbols(library string) ([]elf.Symbol, error) {
	f, err := elf.Open(library)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	return slices.DeleteFunc(symbols, func(s elf.Symbol) bool { return s.Section == elf.SHN_UNDEF }), err
}
