package workloads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"fisub/internal/memfile"
	"fisub/internal/safetensors"
	"fisub/internal/sandbox"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads/random"
)

// An Input is one argument of a definition: a tensor or a scalar. If both are nil it is None, which no workload can
// express but reference accepts.
type Input struct {
	Name   string
	Tensor *tensor.Tensor // maps the file: read-only, and invalid after Inputs.Close
	Scalar *trace.Scalar
	File   *os.File // holds the tensor's bytes, for another process to map; nil if Path is set
	Path   string   // absolute
	Offset int64    // of the tensor's first byte in that file
}

// Inputs are the arguments of one workload, in the definition's order.
type Inputs struct {
	Values []Input
	files  []*safetensors.File
	memory *os.File // anonymous and immutable; nil if all tensors have a Path
	data   []byte   // the mapping of memory
}

// Close unmaps the tensors.
func (in *Inputs) Close() error {
	var errs []error
	for _, f := range in.files {
		errs = append(errs, f.Close())
	}
	if in.data != nil {
		errs = append(errs, unix.Munmap(in.data))
	}
	if in.memory != nil {
		errs = append(errs, in.memory.Close())
	}
	in.files, in.data, in.memory = nil, nil, nil
	return errors.Join(errs...)
}

// protected reports whether submissions cannot change files. If they can, nothing is read from the cache, and the
// contents of other files are copied into memory.
var protected = sync.OnceValue(func() bool { return sandbox.State().Files() })

// A placed is a tensor to generate or copy into memory.
type placed struct {
	value int // index in Values
	synthetic
	from *tensor.Tensor // nil if it is generated
}

func (in *Inputs) place(ctx context.Context, tensors []placed) error {
	var size int64
	for _, t := range tensors {
		n, err := t.elements()
		if err != nil {
			return fmt.Errorf("'%s': %w", in.Values[t.value].Name, err)
		}
		bytes, _ := t.dtype.Bytes(n)
		in.Values[t.value].Path, in.Values[t.value].Offset = "", size
		in.Values[t.value].Tensor = &tensor.Tensor{DType: t.dtype, Shape: t.shape}
		size += (int64(bytes) + 4095) &^ 4095 // whole pages, which a device may use as they are
	}
	if len(tensors) == 0 {
		return nil
	}
	var err error
	if in.memory, err = memfile.New("fisub-inputs", size); err != nil {
		return err
	}
	for _, t := range tensors {
		put := func(data []byte, at int) error {
			_, err := in.memory.WriteAt(data, in.Values[t.value].Offset+int64(at))
			return err
		}
		if t.from != nil {
			err = put(t.from.Data, 0)
		} else {
			err = t.generate(ctx, put)
		}
		if err != nil {
			return fmt.Errorf("'%s': %w", in.Values[t.value].Name, err)
		}
	}
	if err := memfile.Freeze(in.memory); err != nil {
		return err
	}
	if size == 0 {
		return nil
	}
	if in.data, err = unix.Mmap(int(in.memory.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("memory for inputs: %w", err)
	}
	for _, t := range tensors {
		v := &in.Values[t.value]
		v.File = in.memory
		n, _ := t.elements()
		bytes, _ := t.dtype.Bytes(n)
		v.Tensor.Data = in.data[v.Offset : v.Offset+int64(bytes) : v.Offset+int64(bytes)]
	}
	return nil
}

// Load opens the inputs of w for one of its trials, counted from 0. As in the contest, each trial has its own generated
// inputs. Load checks every tensor against the definition's dtype and the shape given by w's axes; the error names the
// workload and joins all faults, including *safetensors.LFSPointerError. An input that w declares random or omits is
// generated in memory from the uuid, the input's name and the trial. Missing or changed files of the embedded dataset
// are generated first; in any other dataset they are errors. If submissions can change files, all inputs are in memory.
// An input that a function of the definition makes has only its name.
func (d *Dataset) Load(ctx context.Context, def *trace.Definition, w *trace.Workload, trial int) (*Inputs, error) {
	in, err := d.home(def, w).load(ctx, def, w, trial)
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("workload %s: %w", w.UUID, err)
	}
	return in, nil
}

// Redrawn reports whether the trials of w differ because it has random inputs, or custom ones.
func Redrawn(def *trace.Definition, w *trace.Workload) bool {
	if def.Python != nil { // the workload has the seed
		return false
	}
	for name := range def.Inputs.All() {
		if source, _ := w.Inputs.Get(name); source.Kind == trace.Random || source.Kind == trace.CustomInput {
			return true
		}
	}
	return false
}

func (d *Dataset) load(ctx context.Context, def *trace.Definition, w *trace.Workload, trial int) (*Inputs, error) {
	in := &Inputs{}
	if err := d.kept(); err != nil {
		return in, err
	}
	var blobs []*blob
	files, missing := map[string]*safetensors.File{}, map[string]error{}
	if d.embedded {
		var err error
		if blobs, err = d.blobsOf(def, []*trace.Workload{w}); err != nil {
			return in, err
		}
		for _, b := range blobs {
			if !protected() {
				break
			}
			if err := d.keep(ctx, b); err != nil {
				return in, err
			}
		}
	}
	if !d.embedded || protected() {
		files, missing = d.openFiles(def, w, safetensors.Open)
	}
	for _, f := range files {
		in.files = append(in.files, f)
	}
	var faults []error
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		faults = append(faults, missing[path])
	}
	if len(faults) > 0 {
		return in, errors.Join(faults...)
	}
	axes := maps.Collect(w.Axes.All())
	var tensors []placed
	for name, spec := range def.Inputs.All() {
		source, _ := w.Inputs.Get(name) // the zero InputSpec is a random one
		var v Input
		toMake := madeOf(blobs, source)
		switch shape, err := def.Shape(spec, axes); {
		case err != nil:
			faults = append(faults, fmt.Errorf("'%s': %w", name, err))
			continue
		case source.Kind == trace.Random && spec.Scalar:
			v.Scalar = randomScalar(spec.DType, d.randomStream(w, name, trial))
		case source.Kind == trace.Random:
			t := synthetic{key: name, dtype: spec.DType, shape: shape, stream: d.randomStream(w, name, trial)}
			t.distributeRandom(def, name)
			tensors = append(tensors, placed{len(in.Values), t, nil})
		case toMake != nil && !protected():
			tensors = append(tensors, placed{len(in.Values), *toMake, nil})
		default:
			v, err = d.given(name, spec, shape, source, files[source.Path])
			if err != nil {
				faults = append(faults, err)
				continue
			}
			if x := v.Tensor; x != nil && !protected() {
				tensors = append(tensors, placed{len(in.Values), synthetic{dtype: x.DType, shape: x.Shape}, x})
			}
		}
		v.Name = name
		in.Values = append(in.Values, v)
	}
	if len(faults) > 0 {
		return in, errors.Join(faults...)
	}
	return in, in.place(ctx, tensors)
}

func madeOf(blobs []*blob, source trace.InputSpec) *synthetic {
	for _, b := range blobs {
		for i := range b.tensors {
			if source.Kind == trace.Safetensors && b.path == source.Path && b.tensors[i].key == source.TensorKey {
				return &b.tensors[i]
			}
		}
	}
	return nil
}

// openFiles opens each file that an input of def names, once. The results are files and errors by path.
func (d *Dataset) openFiles(def *trace.Definition, w *trace.Workload,
	open func(path string) (*safetensors.File, error)) (files map[string]*safetensors.File, faults map[string]error) {
	files, faults = map[string]*safetensors.File{}, map[string]error{}
	for name := range def.Inputs.All() {
		source, _ := w.Inputs.Get(name)
		if source.Kind != trace.Safetensors || files[source.Path] != nil || faults[source.Path] != nil {
			continue
		}
		path, err := d.resolve(source.Path)
		var f *safetensors.File
		if err == nil {
			f, err = open(path)
		}
		if err != nil {
			faults[source.Path] = err
		} else {
			files[source.Path] = f
		}
	}
	return files, faults
}

// resolve returns the absolute path for a path of a workload. Only a dataset that the user named may point outside its
// folder, with an absolute path or a link.
func (d *Dataset) resolve(path string) (string, error) {
	native := filepath.FromSlash(path)
	if filepath.IsAbs(native) && !d.embedded {
		return filepath.Clean(native), nil
	}
	return within(d.root, path)
}

func within(root, path string) (string, error) {
	native := filepath.FromSlash(path)
	if !filepath.IsLocal(native) || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("path %q is outside the dataset", path)
	}
	return filepath.Join(root, native), nil
}

// given returns an input that the workload gives as a scalar or as a tensor of file. Its errors use the contest's
// words.
func (d *Dataset) given(name string, spec trace.TensorSpec, shape []int, source trace.InputSpec,
	file *safetensors.File) (Input, error) {
	switch {
	case source.Kind == trace.CustomInput:
		return Input{}, nil
	case source.Kind == trace.ScalarInput && spec.Scalar:
		value := source.Value
		if math.IsNaN(value.Float) || math.IsInf(value.Float, 0) {
			return Input{}, fmt.Errorf("'%s' is %v: traces can contain only finite numbers", name, value.Float)
		}
		return Input{Scalar: &value}, nil
	case source.Kind == trace.ScalarInput:
		return Input{}, fmt.Errorf("'%s' is a tensor, the workload gives a scalar", name)
	case spec.Scalar:
		return Input{}, fmt.Errorf("'%s' is a scalar, the workload gives a tensor", name)
	}
	path, err := d.resolve(source.Path)
	if err != nil {
		return Input{}, err
	}
	return mapped(file, path, name, source.TensorKey, spec.DType, shape)
}

func mapped(file *safetensors.File, path, name, key string, dtype tensor.DType, shape []int) (Input, error) {
	if !file.Has(key) {
		//lint:ignore ST1005 the contest's text
		return Input{}, fmt.Errorf("Missing key '%s' in '%s'", key, path)
	}
	t, err := file.Tensor(key)
	if err != nil {
		return Input{}, err
	}
	if !slices.Equal(t.Shape, shape) {
		return Input{}, fmt.Errorf("'%s' expected %s, got %s", name, brackets(shape), brackets(t.Shape))
	}
	if t.DType != dtype {
		return Input{}, fmt.Errorf("'%s' expected torch.%v, got torch.%v", name, dtype, t.DType)
	}
	offset, _ := file.Offset(key)
	return Input{Tensor: t, Path: path, Offset: offset}, nil
}

// brackets formats a shape as Python does: [1, 4].
func brackets(shape []int) string { return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ") }

// randomStream returns the source of the values of a random input.
func (d *Dataset) randomStream(w *trace.Workload, name string, trial int) random.Stream {
	if trial == 0 {
		return d.stream(w.UUID, name)
	}
	return d.stream(w.UUID, name, fmt.Sprint("trial ", trial))
}

// An InputFaults holds the faults of one workload.
type InputFaults struct {
	UUID   string
	Files  int // number of files that the workload names
	Absent int // files not yet generated; only in the embedded dataset, and not a fault
	Faults []error
}

// Verify checks workloads by the rules of Load and by the contest's further ones: exactly the definition's var axes,
// all positive; exactly the definition's inputs; no duplicate uuid. It creates no file.
func (d *Dataset) Verify(ctx context.Context, def *trace.Definition, ws []*trace.Workload) ([]InputFaults, error) {
	if err := d.kept(); err != nil {
		return nil, err
	}
	var reports []InputFaults
	seen := map[string]bool{}
	files := opened{}
	defer files.close()
	for _, w := range ws {
		if err := ctx.Err(); err != nil {
			return reports, err
		}
		if len(files) > maxOpened {
			files.close()
		}
		r := InputFaults{UUID: w.UUID}
		if seen[w.UUID] {
			r.Faults = append(r.Faults, errors.New("duplicate uuid"))
		}
		seen[w.UUID] = true
		r.Faults = append(r.Faults, names(def, w)...)
		d.home(def, w).verifyFiles(&r, def, w, files)
		reports = append(reports, r)
	}
	return reports, nil
}

func names(def *trace.Definition, w *trace.Workload) (faults []error) {
	for name, axis := range def.Axes.All() {
		if n, ok := w.Axes.Get(name); !axis.Const && !ok {
			faults = append(faults, fmt.Errorf("missing axis '%s'", name))
		} else if ok && n <= 0 {
			faults = append(faults, fmt.Errorf("axis '%s' is %d", name, n))
		}
	}
	for name := range w.Axes.All() {
		if axis, ok := def.Axes.Get(name); !ok || axis.Const {
			faults = append(faults, fmt.Errorf("extra axis '%s'", name))
		}
	}
	for name, spec := range def.Inputs.All() {
		source, ok := w.Inputs.Get(name)
		if !ok {
			faults = append(faults, fmt.Errorf("missing input '%s'", name))
		} else if source.Kind == trace.Random && spec.Scalar {
			faults = append(faults, fmt.Errorf("'%s' is a scalar, the workload gives a random tensor", name))
		} else if source.Kind == trace.CustomInput && def.CustomInputs == "" {
			faults = append(faults, fmt.Errorf("'%s' is custom, but the definition has no custom_inputs_entrypoint", name))
		}
	}
	for name := range w.Inputs.All() {
		if _, ok := def.Inputs.Get(name); !ok {
			faults = append(faults, fmt.Errorf("extra input '%s'", name))
		}
	}
	return faults
}

// opened holds the open files of Verify by path, because many workloads may name the same file.
type opened map[string]openedFile

type openedFile struct {
	*safetensors.File
	err error
}

// maxOpened limits the number of files that Verify keeps open from one workload to the next.
const maxOpened = 256

func (o opened) open(path string) (*safetensors.File, error) {
	f, ok := o[path]
	if !ok {
		f.File, f.err = safetensors.Open(path)
		o[path] = f
	}
	return f.File, f.err
}

func (o opened) close() {
	for _, f := range o {
		if f.err == nil {
			f.Close()
		}
	}
	clear(o)
}

func (d *Dataset) verifyFiles(r *InputFaults, def *trace.Definition, w *trace.Workload, open opened) {
	files, faults := d.openFiles(def, w, open.open)
	r.Files = len(files) + len(faults)
	for _, path := range slices.Sorted(maps.Keys(faults)) {
		if err := faults[path]; d.embedded && isMissing(err) {
			r.Absent++
		} else {
			r.Faults = append(r.Faults, err)
		}
	}
	axes := maps.Collect(w.Axes.All())
	for name, spec := range def.Inputs.All() {
		source, _ := w.Inputs.Get(name)
		shape, err := def.Shape(spec, axes)
		if err != nil || source.Kind == trace.Random || faults[source.Path] != nil {
			continue // names has reported the fault of the shape
		}
		if _, err := d.given(name, spec, shape, source, files[source.Path]); err != nil {
			r.Faults = append(r.Faults, err)
		}
	}
}
