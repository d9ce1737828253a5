//go:build linux && cgo

package vgpu

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const lackingPrefix = "the virtual GPU does not support "

// otherLacks returns what the program uses and the virtual GPU lacks, except what was reported: functions that the
// program or its libraries import, and instructions of all kernels. The caller holds the lock of host.
func otherLacks() (all []string) {
	files := mappedFiles()
	var more []string
	for _, path := range files {
		if strings.HasPrefix(filepath.Base(path), "libcublas.so") {
			more = append(more, path)
		}
	}
	for _, path := range files {
		if !slices.Contains(more, path) {
			all = append(all, missingFunctions(path, attached.runtime, more...)...)
		}
	}
	for _, h := range host.modules {
		mod, err := h.load()
		if err != nil {
			continue // reported when one of its kernels is launched
		}
		for _, name := range mod.Names() {
			if k, err := mod.Kernel(name); err == nil {
				for _, what := range k.Lacks() {
					all = append(all, what+" (kernel "+Demangled(name)+")")
				}
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(what string) bool {
		what, _, _ = strings.Cut(what, " (kernel ")
		return slices.ContainsFunc(host.lacks, func(told string) bool {
			rest, ok := strings.CutPrefix(told, lackingPrefix+what)
			return ok && (rest == "" || rest[0] == ' ')
		})
	})
}

// mappedFiles returns the paths of the program and the libraries in this process, except the virtual GPU's.
func mappedFiles() (paths []string) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || !strings.Contains(fields[1], "x") || !strings.HasPrefix(fields[5], "/") {
			continue
		}
		path := strings.Join(fields[5:], " ")
		if path != attached.runtime && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// undefinedFunction returns what is missing if a kernel calls a function without a definition.
func undefinedFunction(name string) string {
	if name, ok := strings.CutPrefix(name, "__cudaCDP2"); ok {
		return "cuda" + name + " in kernels"
	}
	return "the function " + name
}
