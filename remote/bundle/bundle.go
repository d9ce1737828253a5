// Package bundle creates the files of jobs that run a solution: the program, the packed solution, its baseline, and
// kernels compiled for the hosts' GPU with their libraries. If the dataset is not embedded in the program, it adds the
// definition, the workloads and their inputs. It neither chooses the workloads nor sends the files.
package bundle

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/device/vgpu"
	"fisub/internal/cache"
	"fisub/internal/hint"
	"fisub/internal/trace"
	"fisub/remote"
	"fisub/workloads"
)

// archs maps the kinds of GPU that jobs may ask for to the default arch of their kernels.
var archs = map[string]string{
	"b200": "sm_100", "gb200": "sm_100", "b300": "sm_103", "gb300": "sm_103",
	"h200": "sm_90", "h100": "sm_90", "h20": "sm_90", "gh200": "sm_90",
	"a100": "sm_80", "a10": "sm_86", "a10g": "sm_86", "l4": "sm_89", "l40s": "sm_89",
}

// GPUs returns the kinds of GPU known to Arch, sorted.
func GPUs() []string { return slices.Sorted(maps.Keys(archs)) }

// Arch returns the arch of kernels for that kind of GPU.
func Arch(gpu string) (string, bool) {
	arch, ok := archs[strings.ToLower(gpu)]
	return arch, ok
}

// ErrNoGPUSupport is the error of a program that could not use a GPU on a host.
var ErrNoGPUSupport = hint.Wrap(errors.New("this fisub has no GPU support, which the hosts need"),
	"make build includes GPU support; --gpu none runs on the virtual GPU")

// Ready reports whether this machine can make a bundle with a compiled solution; the cache is below root. built is set
// if this program supports GPUs. The error is ErrNoGPUSupport or from nvcc.Find.
func Ready(root string, built bool) error {
	if !built {
		return ErrNoGPUSupport
	}
	_, err := nvcc.Find(root)
	return err
}

// A Spec describes a Bundle, which can be made again from its JSON.
type Spec struct {
	Solution string   `json:"solution"`           // path of the packed solution
	Baseline string   `json:"baseline,omitempty"` // path of the packed baseline; hosts know it by its base name
	Dataset  string   `json:"dataset,omitempty"`  // absolute folder; "" is the embedded dataset
	Set      string   `json:"set"`
	Arch     string   `json:"arch,omitempty"`    // "" if nothing is compiled here
	Args     []string `json:"args"`              // arguments of the command: profile, timer, device
	Command  string   `json:"command,omitempty"` // fisub command that a job runs; "" is local
	Others   []string `json:"others,omitempty"`  // packed solutions that the command takes as arguments after Solution
}

// A Bundle creates the files of jobs. It is safe for concurrent use.
type Bundle struct {
	spec Spec
	dir  string // for created files
	data *workloads.Dataset
	def  *trace.Definition
	all  map[string]*trace.Workload
	base []remote.File
}

const baselineDir = "baseline"

// New creates the files that all jobs share. For spec.Arch it compiles, with the cache below root, the solution, its
// baseline and the solutions in beside, which the program contains; Python solutions are not compiled. self is the
// program to send. Created files are stored in dir, which must exist as long as jobs are submitted. The error is a
// *device.BuildError if the solution does not compile, and a *nvcc.MissingError without a compiler.
func New(ctx context.Context, root, dir, self string, spec Spec, beside ...*trace.Solution) (*Bundle, error) {
	b := &Bundle{spec: spec, dir: dir, all: map[string]*trace.Workload{}}
	sol, _, err := trace.ReadSolution(spec.Solution)
	if err != nil {
		return nil, err
	}
	if b.data, err = workloads.Open(spec.Dataset, root); err != nil {
		return nil, err
	}
	if b.def, err = b.data.Definition(sol.Definition); err != nil {
		return nil, err
	}
	ws, err := b.data.Workloads(b.def.Name, spec.Set)
	if err != nil {
		return nil, err
	}
	for _, w := range ws {
		b.all[w.UUID] = w
	}
	paths := map[string]string{remote.Program: self, "solution.json": spec.Solution}
	if spec.Baseline != "" {
		base, _, err := trace.ReadSolution(spec.Baseline)
		if err != nil {
			return nil, err
		}
		beside = append([]*trace.Solution{base}, beside...)
		paths[path.Join(baselineDir, filepath.Base(spec.Baseline))] = spec.Baseline
	}
	for i, file := range spec.Others {
		other, _, err := trace.ReadSolution(file)
		if err != nil {
			return nil, err
		}
		beside = append(beside, other)
		paths[otherName(i)] = file
	}
	add := func(f remote.File, err error) error {
		b.base = append(b.base, f)
		return err
	}
	if spec.Arch != "" {
		packed, written, err := prebuild(ctx, root, spec.Arch, sol, beside)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(written)) {
			if err := add(b.made("prebuilt/"+name, written[name])); err != nil {
				return nil, err
			}
		}
		for name, from := range packed {
			paths["prebuilt/"+name] = from
		}
	}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		if err := add(describe(name, paths[name])); err != nil {
			return nil, err
		}
	}
	if !b.data.Embedded() {
		if err := add(b.made("dataset/definitions/definition.json", b.def.JSON(trace.Compact))); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// prebuild compiles the solutions, except in Python, and returns the files of a folder of kernels, as nvcc.Pack does.
func prebuild(ctx context.Context, root, arch string, sol *trace.Solution,
	beside []*trace.Solution) (files map[string]string, written map[string][]byte, err error) {
	tools, err := nvcc.Find(root)
	if err != nil {
		return nil, nil, err
	}
	files, written = tools.PackTimer(), map[string][]byte{}
	if arch == vgpu.Arch {
		if files, err = vgpu.Pack(ctx, root, tools); err != nil {
			return nil, nil, err
		}
	}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range append([]*trace.Solution{sol}, beside...) {
		if !s.Spec.Compiled() {
			continue
		}
		g.Go(func() error {
			o, err := tools.Build(ctx, root, s, arch)
			err = nvcc.Judged(err)
			if build := (*device.BuildError)(nil); errors.As(err, &build) && s != sol {
				return fmt.Errorf("%s does not compile for %s: %s", s.Name, arch, build.Text)
			}
			if err != nil {
				return err
			}
			packed, index, err := nvcc.Pack(root, o, s, arch)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(files, packed)
			maps.Copy(written, index)
			return err
		})
	}
	return files, written, g.Wait()
}

// otherName returns the name of a further solution in a bundle.
func otherName(i int) string { return fmt.Sprintf("others/%d.json", i+1) }

// Size returns the size in bytes of the files that all jobs share.
func (b *Bundle) Size() (sum int64) {
	for _, f := range b.base {
		sum += f.Size
	}
	return sum
}

// Files returns the files of a job and the command that runs the workloads.
func (b *Bundle) Files(ctx context.Context, uuids []string) ([]remote.File, []string, error) {
	args := []string{remote.Program, cmp.Or(b.spec.Command, "local"), "--json"}
	if len(b.spec.Others) == 0 {
		args = append(args, "--solution")
	}
	args = append(args, "solution.json")
	for i := range b.spec.Others {
		args = append(args, otherName(i))
	}
	args = append(args, b.spec.Args...)
	if b.spec.Command == "" {
		args = append(args, "--keep-going") // the process that sees all jobs decides when to stop
	}
	if b.spec.Arch != "" {
		args = append(args, "--arch", b.spec.Arch, "--prebuilt", "prebuilt")
	}
	if b.spec.Baseline != "" {
		args = append(args, "--baseline", path.Join(baselineDir, filepath.Base(b.spec.Baseline)))
	}
	files := slices.Clone(b.base)
	var ws []*trace.Workload
	for _, u := range uuids {
		if b.all[u] == nil {
			return nil, nil, fmt.Errorf("workload %s is no longer in set %s", u, b.spec.Set)
		}
		ws = append(ws, b.all[u])
	}
	makes := func(w *trace.Workload) bool { return b.data.Makes(b.def.Name, w) }
	if len(ws) > 0 && makes(ws[0]) {
		if !b.data.Embedded() {
			args = append(args, "--dataset", "dataset")
		}
		args = append(args, "--set", b.spec.Set)
		for _, u := range uuids {
			args = append(args, "--workload", u)
		}
		return files, args, nil
	}
	seen := map[string]bool{}
	var lines bytes.Buffer
	for _, w := range ws {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		w, inputs, err := b.inputs(w)
		if err != nil {
			return nil, nil, fmt.Errorf("workload %s: %w", w.UUID, err)
		}
		for _, f := range inputs {
			if !seen[f.Name] {
				files = append(files, f)
			}
			seen[f.Name] = true
		}
		t := &trace.Trace{Definition: b.def.Name, Workload: *w}
		lines.Write(append(t.JSON(trace.Compact), '\n'))
	}
	f, err := b.made("dataset/workloads/workloads.jsonl", lines.Bytes())
	if err != nil {
		return nil, nil, err
	}
	return append(files, f), append(args, "--dataset", "dataset"), nil
}

// inputs returns w as the host will read it, and its input files. A file with an absolute path gets one in the dataset.
func (b *Bundle) inputs(w *trace.Workload) (*trace.Workload, []remote.File, error) {
	copied := *w
	copied.Inputs = trace.Map[trace.InputSpec]{}
	var files []remote.File
	for name, in := range w.Inputs.All() {
		copied.Inputs.Set(name, in)
		if in.Kind != trace.Safetensors {
			continue
		}
		from := filepath.FromSlash(in.Path)
		to := path.Clean(filepath.ToSlash(in.Path))
		switch {
		case filepath.IsAbs(from):
			to = "blob/carried/" + cache.Key(from) + ".safetensors"
			in.Path = to
			copied.Inputs.Set(name, in)
		case !filepath.IsLocal(from):
			return w, nil, fmt.Errorf("path %q is outside the dataset", in.Path)
		default:
			from = filepath.Join(b.data.Root(), from)
		}
		f, err := describe("dataset/"+to, from)
		if err != nil {
			return w, nil, err
		}
		files = append(files, f)
	}
	return &copied, files, nil
}

// made stores content in a new file.
func (b *Bundle) made(name string, content []byte) (remote.File, error) {
	h := sha256.Sum256(content)
	f := remote.File{Name: name, SHA256: hex.EncodeToString(h[:]), Size: int64(len(content))}
	f.Path = filepath.Join(b.dir, f.SHA256)
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return f, err
	}
	return f, cache.WriteFile(f.Path, content, 0o644)
}

func describe(name, from string) (remote.File, error) {
	f, err := remote.FileAt(from)
	f.Name, f.Exec = name, name == remote.Program
	if err == nil && f.Size == 0 && f.Exec {
		err = errors.New(from + ": it is empty")
	}
	return f, err
}
