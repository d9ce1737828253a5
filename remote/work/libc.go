package work

import (
	"cmp"
	"debug/elf"
	"fmt"
	"path"
	"strconv"
	"strings"

	"fisub/remote"
)

// glibc gives the version of the GNU C library that the program or library in file asks for; "" of another file, or where it
// asks for none.
func glibc(file string) (version string) {
	f, err := elf.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	needs, _ := f.DynamicVersionNeeds()
	for _, need := range needs {
		for _, dep := range need.Needs {
			if v, ok := strings.CutPrefix(dep.Dep, "GLIBC_"); ok && compareVersions(v, version) > 0 {
				version = v
			}
		}
	}
	return version
}

// compareVersions orders versions of numbers with points between them. A word that is none is 0.
func compareVersions(a, b string) int {
	for a != "" || b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, ".")
		y, b, _ = strings.Cut(b, ".")
		m, _ := strconv.Atoi(x)
		n, _ := strconv.Atoi(y)
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return 0
}

// runs tells whether the programs and libraries among the files start on the host, as far as it says which C library it has.
func (f *Facts) runs(files []remote.File) error {
	have, gnu := strings.CutPrefix(f.LibC, "glibc ")
	if !gnu {
		return nil
	}
	for _, file := range files {
		if need := glibc(file.Path); compareVersions(need, have) > 0 {
			return &remote.Denied{Code: "arch",
				Text: fmt.Sprintf("it has %.60s, and %s asks for glibc %s", f.LibC, path.Base(file.Name), need),
				Hint: "use a host with a younger system; fisub itself, as releases and make build it, runs from glibc 2.28 on"}
		}
	}
	return nil
}
