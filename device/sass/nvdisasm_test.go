package sass_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fisub/app/scaffold"
	"fisub/definitions"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/device/sass"
	"fisub/device/vgpu/ptx"
	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/internal/trace"
)

// newSolution returns a solution without kernels.
func newSolution() *trace.Solution {
	return &trace.Solution{Name: "s", Spec: trace.BuildSpec{Language: trace.CUDA, TargetHardware: []string{"cuda"},
		EntryPoint: "entry.cpp::nothing"},
		Sources: []trace.SourceFile{{Path: "entry.cpp", Content: `extern "C" int __tvm_ffi_nothing() { return 0; }`}}}
}

// solutionOf returns a solution with the files of dir and one kernel file. Headers come along.
func solutionOf(t testing.TB, dir, kernel string) *trace.Solution {
	t.Helper()
	s := newSolution()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != kernel && path.Ext(e.Name()) != ".cuh" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		s.Sources = append(s.Sources, trace.SourceFile{Path: e.Name(), Content: string(content)})
	}
	return s
}

// sources returns the kernels to compare: some of this repository, or all of it and of fisub init.
func sources(t *testing.T) map[string]*trace.Solution {
	t.Helper()
	const root = "../.."
	all := map[string]*trace.Solution{}
	for _, pattern := range []string{"solution*/cuda", "solution*/solution/cuda", "solution/baselines/*/solution/cuda",
		"solution/*/solution/cuda", "app/testdata/kernels", "device/*/testdata", "bench/roofline", "scripts/tune"} {
		files, err := filepath.Glob(filepath.Join(root, pattern, "*.cu"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			name, _ := filepath.Rel(root, f)
			if longtest.All() || name == "solution/cuda/kernel.cu" || name == "app/testdata/kernels/async_bulk.cu" {
				all[name] = solutionOf(t, filepath.Dir(f), filepath.Base(f))
			}
		}
	}
	if !longtest.All() {
		return all
	}
	names, err := fs.Glob(definitions.FS, "*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := definitions.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		definition, _, err := trace.DecodeDefinition(text)
		if err != nil {
			t.Fatal(err)
		}
		p, err := scaffold.New(scaffold.Options{Definition: definition, Name: "s", Author: "s", Language: trace.CUDA})
		if err != nil {
			t.Fatal(err)
		}
		s := newSolution()
		for _, f := range p.Files {
			if ext := path.Ext(f.Path); ext == ".cu" || ext == ".cuh" {
				s.Sources = append(s.Sources, trace.SourceFile{Path: path.Base(f.Path), Content: string(f.Content)})
			}
		}
		all["init "+definition.Name] = s
	}
	return all
}

// Read agrees with nvdisasm on every instruction, and on its source line.
func TestAgainstNvdisasm(t *testing.T) {
	longtest.Skip(t, "runs nvcc and nvdisasm")
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nvcc.Find(root); err != nil {
		longtest.Missing(t, "toolchain", err)
	}
	all := sources(t)
	for i, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		for j, arch := range []string{"sm_90a", "sm_100a"} {
			if strings.HasPrefix(name, "init ") && i%2 != j { // they are many, and alike
				continue
			}
			t.Run(name+" "+arch, func(t *testing.T) {
				o, listings, err := nvcc.Emit(context.Background(), root, s, arch, true, func() {})
				if errors.As(err, new(*device.BuildError)) {
					t.Skipf("does not compile for %s: %v", arch, err)
				} else if err != nil && !strings.HasPrefix(err.Error(), "running nvdisasm") {
					longtest.Missing(t, "toolchain", err) // nvdisasm, which is fetched
				} else if err != nil {
					t.Fatal(err)
				}
				for i, l := range listings {
					cubin, err := os.ReadFile(filepath.Join(o.Dir, fmt.Sprintf("emit_%d.cubin", i)))
					if err != nil {
						t.Fatal(err)
					}
					all, err := sass.Read(cubin)
					if err != nil {
						t.Fatal(err)
					}
					agree(t, all, l.Text)
				}
			})
		}
	}
}

var (
	section     = regexp.MustCompile(`^//-+ \.text\.(\S+) `)
	instruction = regexp.MustCompile(`^\s+/\*([0-9a-f]{4,})\*/\s+(@\S+\s+)?([A-Z][A-Za-z0-9_.]*)`)
	source      = regexp.MustCompile(`^\s*//## ([^:]*):(\d+)`)
)

// agree compares with a listing of nvcc.Emit.
func agree(t *testing.T, all []sass.Kernel, listing string) {
	t.Helper()
	byOffset := map[string]map[int]sass.Inst{}
	for i, k := range all {
		name := k.Name
		for j := i; strings.HasPrefix(name, "$") && j > 0; j-- { // a function in the section of a kernel
			name = all[j-1].Name
		}
		if byOffset[name] == nil {
			byOffset[name] = map[int]sass.Inst{}
		}
		for _, in := range k.Insts {
			byOffset[name][in.Offset] = in
		}
	}
	total := 0
	var insts map[int]sass.Inst
	file, line, fresh := "", 0, true
	for text := range strings.Lines(listing) {
		if m := section.FindStringSubmatch(text); m != nil {
			insts, line = byOffset[m[1]], 0
		}
		if m := source.FindStringSubmatch(text); m != nil && fresh { // the innermost call comes first
			file, fresh = path.Base(m[1]), false
			line, _ = strconv.Atoi(m[2])
		}
		m := instruction.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		total++
		fresh = true
		offset, _ := strconv.ParseInt(m[1], 16, 64)
		class, width := meaning(m[3])
		if strings.HasPrefix(m[2], "@!PT") {
			class = 0
		}
		in, ok := insts[int(offset)]
		switch {
		case class == sass.Branch && !ok: // after the end
		case ok != (class != 0), in.Class != class, in.Width != width && class != 0:
			t.Errorf("%s at %x: got %v of %d, want %v of %d", m[3], offset, in.Class, in.Width, class, width)
		case ok && (in.Line != line || line > 0 && path.Base(in.File) != file):
			t.Errorf("%s at %x: got %s:%d, want %s:%d", m[3], offset, in.File, in.Line, file, line)
		}
	}
	if total == 0 && len(all) > 0 { // forge.cu has no kernels
		t.Error("the listing has no instructions")
	}
}

var classes = map[string]sass.Class{
	"LDG": sass.GlobalLoad, "LDGMC": sass.GlobalLoad, "STG": sass.GlobalStore, "ATOMG": sass.GlobalAtomic,
	"RED": sass.GlobalReduction, "REDG": sass.GlobalReduction, "LDS": sass.SharedLoad, "STS": sass.SharedStore,
	"ATOMS": sass.SharedAtomic, "LD": sass.GenericLoad, "ST": sass.GenericStore, "ATOM": sass.GenericAtomic,
	"LDL": sass.LocalLoad, "STL": sass.LocalStore, "STAS": sass.ClusterStore, "REDAS": sass.ClusterStore,
	"LDSM": sass.MatrixLoad, "STSM": sass.MatrixStore, "LDGSTS": sass.AsyncCopy, "UBLKCP": sass.BulkCopy,
	"UBLKRED": sass.BulkCopy, "UTMALDG": sass.TensorCopy, "UTMASTG": sass.TensorCopy, "UTMAREDG": sass.TensorCopy,
	"BAR": sass.Barrier, "BRA": sass.Branch, "BRX": sass.Branch, "JMP": sass.Branch, "JMX": sass.Branch,
	"SHFL": sass.Shuffle, "MUFU": sass.Special, "FADD": sass.Arithmetic, "FMUL": sass.Arithmetic,
	"FFMA": sass.Arithmetic,
}

// meaning returns the class and the width of a mnemonic.
func meaning(mnemonic string) (sass.Class, int) {
	parts := strings.Split(mnemonic, ".")
	class := classes[parts[0]]
	if strings.HasSuffix(parts[0], "MMA") {
		class = sass.Tensor
	}
	switch {
	case class == sass.MatrixLoad || class == sass.MatrixStore:
		n, err := strconv.Atoi(parts[len(parts)-1])
		if err != nil {
			n = 1
		}
		return class, n
	case class == 0 || class > sass.AsyncCopy || parts[0] == "LDGMC" || parts[0] == "REDAS":
		return class, 0
	}
	for bits, names := range map[int][]string{8: {"U8", "S8"}, 16: {"U16", "S16"}, 128: {"128", "F32x4", "F16x8", "BF16x8"},
		64: {"64", "S64", "F64", "F32x2", "F16x4", "BF16x4"}, 256: {"256"}} {
		if slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(names, p) }) {
			return class, bits
		}
	}
	return class, 32
}

// BenchmarkCompare reads the largest cubin of this repository, or compares its kernels. Its kernels are those of the
// prefill submission for sm_90a.
func BenchmarkCompare(b *testing.B) {
	longtest.Skip(b, "runs nvcc")
	root, err := cache.Root()
	if err != nil {
		b.Fatal(err)
	}
	s := solutionOf(b, "../../solution-prefill/solution/cuda", "kernel.cu")
	o, _, err := nvcc.Emit(context.Background(), root, s, "sm_90a", false, nil)
	if err != nil {
		b.Skip(err)
	}
	cubin, err := os.ReadFile(filepath.Join(o.Dir, "emit_0.cubin"))
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.Dir, "emit_0.ptx"))
	if err != nil {
		b.Fatal(err)
	}
	m, err := ptx.Parse(string(text))
	if err != nil {
		b.Fatal(err)
	}
	all, err := sass.Read(cubin)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(cubin)))
		for b.Loop() {
			if _, err := sass.Read(cubin); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("compare", func(b *testing.B) {
		for b.Loop() {
			for _, k := range all {
				sass.Compare(all, m, k.Name)
			}
		}
	})
}
