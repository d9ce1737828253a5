package nvcc

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/trace"
)

// torch holds settings for the torch binding, as in torch.utils.cpp_extension.
type torch struct {
	version  string
	standard string // flag for the C++ standard of torch's headers
	include  []string
}

const torchModule = "fisub_submission"

// flags returns the flags of torch's extensions; none if t is nil.
func (t *torch) flags() []string {
	if t == nil {
		return nil
	}
	return []string{"-DTORCH_EXTENSION_NAME=" + torchModule, "-DTORCH_API_INCLUDE_EXTENSION_H",
		"-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
		"-D__CUDA_NO_HALF2_OPERATORS__"}
}

// instead returns flags with torch's C++ standard; unchanged if t is nil.
func (t *torch) instead(flags []string) []string {
	if t == nil {
		return flags
	}
	flags = slices.Clone(flags)
	for i, f := range flags {
		if strings.HasPrefix(f, "-std=") {
			flags[i] = t.standard
		}
	}
	return flags
}

// torchFacts locates torch without importing it, which takes seconds.
const torchFacts = `
import glob, importlib.util as u, json, os, re, sysconfig
spec = u.find_spec("torch")
home = spec.submodule_search_locations[0]
version = re.search("__version__ = '([^']*)'", open(home + "/version.py").read())[1]
with open(home + "/utils/cpp_extension.py") as f:
    standard = re.search(r"'(-std=c\+\+\w+)'", f.read())
beside = glob.glob(os.path.dirname(home) + "/nvidia/*/include")
standard = standard[1] if standard else "-std=c++17"
print(json.dumps([version, standard, home + "/include", sysconfig.get_paths()["include"]] + beside))
`

// BuildTorch is Build for the torch binding, with the torch headers of the interpreter python. The result is not
// loaded, so missing symbols of torch's libraries go undetected.
func BuildTorch(ctx context.Context, root, python string, sol *trace.Solution, arch string) (*Object, error) {
	t, err := Find(root)
	if err != nil {
		return nil, err
	}
	// Version, C++ standard, headers of torch, of Python, and of the CUDA libraries installed with torch.
	var facts []string
	out, err := exec.CommandContext(ctx, python, "-c", torchFacts).Output()
	if err != nil || json.Unmarshal(out, &facts) != nil || len(facts) < 4 || !isFile(facts[2]+"/torch/extension.h") {
		return nil, &MissingError{[]string{"torch's headers (" + python + ")"}}
	}
	if !isFile(facts[3] + "/Python.h") {
		return nil, &MissingError{[]string{"Python.h (" + python + ")"}}
	}
	bare := *sol
	bare.Spec.Binding = ""
	s, err := newSources(&bare, arch)
	if err != nil {
		return nil, err
	}
	s.symbol = "PyInit_" + torchModule
	s.torch = &torch{facts[0], facts[1], []string{"-I.", "-isystem", facts[2], "-isystem",
		filepath.Join(facts[2], "torch", "csrc", "api", "include"), "-isystem", t.CUDAInclude, "-isystem", facts[3]}}
	for _, dir := range facts[4:] {
		s.torch.include = append(s.torch.include, "-isystem", dir)
	}
	return t.object(ctx, root, s)
}

// Names returns the exported names among symbols, without the binding's prefix; mangled reports whether the entry
// point has C++ mangling.
func Names(symbols []string, entry string) (names []string, mangled bool) {
	for _, s := range symbols {
		name, plain := strings.CutPrefix(s, symbolPrefix)
		mangled = mangled || !plain && strings.Contains(s, symbolPrefix+entry)
		if plain {
			names = append(names, name)
		}
	}
	return names, mangled
}
