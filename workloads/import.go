package workloads

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
)

// An Imported is the result of Import.
type Imported struct {
	Definitions int    `json:"definitions"`
	Workloads   int    `json:"workloads"`
	Notes       []Note `json:"notes"`
}

// A Note describes an omission or a change in an imported file.
type Note struct {
	File      string `json:"file"`
	Text      string `json:"text"`
	Workloads int    `json:"workloads,omitempty"` // number of the file's workloads; 0 for a note on its definition
}

// An importer reads below root and collects the files of a dataset.
type importer struct {
	Imported
	root  string
	run   Python
	defs  map[string]*imported // by name
	files map[string][]byte    // to write, by path in the dataset
	blobs map[string]string    // to copy: sources by path in the dataset
}

// An imported is a definition of the dataset, with its original in was.
type imported struct {
	*trace.Definition
	was  *trace.Definition
	file string
}

// Import imports the definitions and workloads below the folder src into the dataset in the folder dst. src may also be
// the file of a definition, with a workload.jsonl next to it. The dialects are the format itself, fi_trace and
// SOL-ExecBench. A definition that the format can express is copied byte for byte. Notes lists changes and omissions,
// in the order of files. Import runs no code of a definition: a script parses references without run and the
// expressions of axes. If a file of dst already has other content, Import fails and writes nothing.
func Import(src, dst string, python Python) (*Imported, error) {
	st, err := os.Stat(src)
	if err != nil {
		return nil, err
	}
	im := &importer{Imported: Imported{Notes: []Note{}}, root: src, run: python, defs: map[string]*imported{},
		files: map[string][]byte{}, blobs: map[string]string{}}
	files := []string{src, filepath.Join(filepath.Dir(src), "workload.jsonl")}
	if !st.IsDir() {
		im.root = filepath.Dir(src)
	} else if files, err = below(src, dst); err != nil {
		return nil, err
	}
	for _, file := range files {
		if filepath.Ext(file) == ".json" {
			if err := im.definition(file, file == src); err != nil {
				return nil, err
			}
		}
	}
	for _, file := range files {
		if ext := filepath.Ext(file); ext == ".jsonl" || ext == ".ndjson" {
			if err := im.workloads(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	if im.Definitions == 0 {
		return &im.Imported, nil
	}
	if err := im.write(dst); err != nil {
		return nil, err
	}
	_, err = Open(dst, "")
	return &im.Imported, err
}

// below returns the regular files below root, without hidden folders and without skip.
func below(root, skip string) (files []string, err error) {
	err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && file != root && (strings.HasPrefix(entry.Name(), ".") || file == skip) {
			return fs.SkipDir
		}
		if err == nil && entry.Type().IsRegular() {
			files = append(files, file)
		}
		return err
	})
	return files, err
}

func (im *importer) note(file, text string) {
	im.Notes = append(im.Notes, Note{File: file, Text: text})
}

// noteWorkload notes text for one workload of file. Equal notes of a file are counted together.
func (im *importer) noteWorkload(file, text string) {
	i := slices.IndexFunc(im.Notes, func(n Note) bool { return n.File == file && n.Text == text && n.Workloads > 0 })
	if i < 0 {
		i = len(im.Notes)
		im.note(file, text)
	}
	im.Notes[i].Workloads++
}

// definition imports a definition file. It skips other JSON files unless the user named them.
func (im *importer) definition(file string, named bool) error {
	text, err := plain.ReadFile(file, trace.MaxBytes)
	keys := map[string]json.RawMessage{}
	if err == nil && json.Unmarshal(text, &keys) == nil {
		for _, key := range []string{"axes", "inputs", "outputs"} {
			if keys[key] == nil && !named {
				return nil
			}
		}
	} else if !named {
		return nil
	}
	was, err := trace.ReadDialect(file)
	if err != nil {
		im.note(file, "left out: "+strings.TrimPrefix(plain.Line(err.Error()), file+":"))
		return nil
	}
	def, _ := trace.ReadDialect(file)
	changes, faults, err := im.express(def)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if len(faults) > 0 {
		for _, fault := range faults {
			im.note(file, "left out: "+fault)
		}
		return nil
	}
	if len(changes) > 0 {
		text = append(def.JSON(trace.Indent), '\n')
	}
	def, _, err = trace.DecodeDefinition(text)
	if invalid, ok := errors.AsType[*trace.ValidationError](err); ok {
		for _, f := range invalid.Faults {
			f.Line = 0
			one := &trace.ValidationError{Model: invalid.Model, Faults: []trace.Fault{f}}
			im.note(file, "left out: "+strings.TrimPrefix(one.Error(), "definition: "))
		}
		return nil
	}
	for _, part := range []string{def.Name, def.OpType} {
		if !IsFile(part) {
			im.note(file, fmt.Sprintf("left out: %q cannot be a file name", part))
			return nil
		}
	}
	place := filepath.Join("definitions", def.OpType, def.Name+".json")
	if first := im.defs[def.Name]; first != nil {
		if !bytes.Equal(im.files[place], text) {
			im.note(file, fmt.Sprintf("left out: %s has a different definition %s", first.file, def.Name))
		}
		return nil
	}
	for _, change := range changes {
		im.note(file, change)
	}
	im.defs[def.Name], im.files[place] = &imported{def, was, file}, text
	im.Definitions++
	return nil
}

// A Python runs a script with that stdin and returns its output.
type Python func(script string, stdin []byte) (stdout []byte, err error)

//go:embed import.py
var script string

// A question about the Python of a definition is import.py's stdin.
type question struct {
	Reference string           `json:"reference"` // "" if it has a function run
	Inputs    []string         `json:"inputs"`
	Axes      [][2]string      `json:"axes"`  // names and expressions
	Sizes     []map[string]int `json:"sizes"` // of the other axes; Axes are resolved with each
}

type answer struct {
	Run   string // a function run to add to the reference, which calls the function Calls
	Calls string
	Fault string   // the reason if Run is missing
	Sizes [][]size // of Axes, for each of the question's Sizes
}

// A size is a number, or the reason why it is unknown.
type size struct {
	N              int
	Unknown, Fault string // Unknown is an axis without a size
}

// ask asks about def. It adds def's const axes to sizes.
func (im *importer) ask(def *trace.Definition, reference string, sizes ...map[string]int) (a answer, err error) {
	q := question{Reference: reference, Inputs: def.Inputs.Keys(), Axes: [][2]string{}, Sizes: sizes}
	for name, axis := range def.Axes.All() {
		if axis.Expr != "" {
			q.Axes = append(q.Axes, [2]string{name, axis.Expr})
		}
		for _, known := range sizes {
			if axis.Const && axis.Value > 0 {
				known[name] = axis.Value
			}
		}
	}
	if reference == "" && len(q.Axes) == 0 {
		a.Sizes = make([][]size, len(sizes))
		return a, nil
	}
	in, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	out, err := im.run(script, in)
	if err != nil {
		return a, usage.Errorf("install Python 3.8 or later, or set FISUB_PYTHON to one", "reading its Python: %w", err)
	}
	err = json.Unmarshal(out, &a)
	short := func(of []size) bool { return len(of) != len(q.Axes) }
	if err != nil || len(a.Sizes) != len(sizes) || slices.ContainsFunc(a.Sizes, short) {
		return a, fmt.Errorf("unexpected output of Python: %.100q", out)
	}
	return a, nil
}

// runs matches the definition of the function that the format calls.
var runs = regexp.MustCompile(`(?m)^def[ \t]+run[ \t]*\(`)

// express converts def from a dialect to the format. It returns the changes, and as faults the parts that the format
// cannot express.
func (im *importer) express(def *trace.Definition) (changes, faults []string, err error) {
	told := func(format string, args ...any) { changes = append(changes, fmt.Sprintf(format, args...)) }
	if def.OpType == "" {
		def.OpType = "other"
		told("no op_type: set to %q", def.OpType)
	}
	dropped := map[string]bool{}
	for name, in := range def.Inputs.All() {
		if in.Optional && in.Foreign != "" {
			dropped[name] = true
			told("the optional input %s is left out: dtype %s", name, in.Foreign)
		}
	}
	var outputs trace.Map[trace.TensorSpec]
	for name, out := range def.Outputs.All() {
		as, over := name, name
		if out.Param != "" {
			over = out.Param
		}
		in, inPlace := def.Inputs.Get(over)
		_, same := def.Inputs.Get(name)
		switch {
		case inPlace && in.Optional && (same || over == "out"):
			dropped[over], out.Param = true, ""
			told("the optional input %s is left out: it would receive the output %s", over, name)
		case inPlace:
			out.Param = over
			if same {
				as = name + "_out"
				told("the output %s, an input changed in place, is renamed to %s", name, as)
			}
		case out.Param != "":
			out.Param = ""
			told("the output %s becomes a separate output: its param %s is not an input", name, over)
		}
		if out.Optional {
			told("the optional output %s becomes required", name)
		}
		outputs.Set(as, out)
	}
	var inputs trace.Map[trace.TensorSpec]
	for name, in := range def.Inputs.All() {
		if !dropped[name] {
			inputs.Set(name, in)
		}
	}
	def.Inputs, def.Outputs = inputs, outputs
	reference := def.Reference
	if runs.MatchString(reference) {
		reference = ""
	}
	constAxes(def, told)
	python, err := im.ask(def, reference, map[string]int{})
	if err != nil {
		return nil, nil, err
	}
	faults = expressAxes(def, told, python.Sizes[0])
	for _, m := range []*trace.Map[trace.TensorSpec]{&inputs, &outputs} {
		for name, spec := range m.All() {
			if spec.Foreign != "" {
				faults = append(faults, fmt.Sprintf("%s has dtype %s, which the format does not support", name, spec.Foreign))
			}
		}
	}
	if python.Fault != "" {
		faults = append(faults, python.Fault)
	}
	if python.Run != "" {
		def.Reference = strings.TrimRight(def.Reference, "\n") + "\n\n\n" + python.Run
		told("its reference has no run: added one that calls %s with the inputs by name", python.Calls)
	}
	return changes, faults, nil
}

// constAxes adds axes for numbers in shapes.
func constAxes(def *trace.Definition, told func(format string, args ...any)) {
	for _, m := range []*trace.Map[trace.TensorSpec]{&def.Inputs, &def.Outputs} {
		for _, spec := range m.All() {
			for _, axis := range spec.Shape {
				if _, ok := def.Axes.Get(axis); !ok {
					if n, err := strconv.Atoi(axis); err == nil && n > 0 {
						def.Axes.Set(axis, trace.Axis{Const: true, Value: n})
						told("the size %d in a shape becomes an axis of that name", n)
					}
				}
			}
		}
	}
}

// expressAxes replaces expressions by sizes, or makes the axes var. sizes are the values of the expressions in order.
func expressAxes(def *trace.Definition, told func(format string, args ...any), sizes []size) (faults []string) {
	for name, axis := range def.Axes.All() {
		switch {
		case axis.Const && axis.Value == 0:
			told("the const axis %s has no size: becomes var", name)
		case axis.Expr != "":
			of := sizes[0]
			if sizes = sizes[1:]; of.Fault != "" {
				faults = append(faults, fmt.Sprintf("the axis %s: %s", name, of.Fault))
				continue
			}
			if of.Unknown == "" {
				def.Axes.Set(name, trace.Axis{Const: true, Value: of.N, Description: axis.Description})
				told("the axis %s, %s, becomes const %d", name, axis.Expr, of.N)
				continue
			}
			told("the axis %s, %s, becomes var, with its size in each workload", name, axis.Expr)
		default:
			continue
		}
		bound := false
		for _, in := range def.Inputs.All() {
			bound = bound || slices.Contains(in.Shape, name)
		}
		if !bound {
			faults = append(faults, fmt.Sprintf("the axis %s is in no input's shape, so its size is unknown", name))
		}
		def.Axes.Set(name, trace.Axis{Description: axis.Description})
	}
	return faults
}

// workloads imports the lines of a file: workloads of the definition in the same folder, or traces without a solution.
func (im *importer) workloads(file string) error {
	data, err := plain.ReadFile(file, trace.MaxBytes)
	if err != nil {
		return err
	}
	var all []*pending
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var t struct {
			Definition           string
			Workload             json.RawMessage
			Solution, Evaluation any
		}
		if err := json.Unmarshal(line, &t); err != nil {
			im.note(file, fmt.Sprintf("line %d is left out: %v", n, err))
			continue
		}
		if t.Solution != nil || t.Evaluation != nil {
			im.noteWorkload(file, "left out: a trace of a solution")
			continue
		}
		def := im.defs[t.Definition]
		if t.Workload == nil {
			t.Workload = line
			def = im.beside(file)
		}
		if def == nil {
			im.noteWorkload(file, "left out: its definition is left out")
			continue
		}
		w, err := trace.DecodeDialectWorkload(t.Workload)
		if err != nil {
			im.noteWorkload(file, "left out: "+plain.Line(err.Error()))
			continue
		}
		all = append(all, &pending{DialectWorkload: w, def: def})
	}
	if err := im.resolve(all); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, w := range all {
		if err := im.workload(file, w); err != nil {
			im.noteWorkload(file, "left out: "+plain.Line(err.Error()))
		}
	}
	return nil
}

// A pending workload has been read but not yet imported.
type pending struct {
	*trace.DialectWorkload
	def   *imported
	sizes []size // of the axes of def that are expressions
}

// resolve sets the sizes of all, with one question for each definition.
func (im *importer) resolve(all []*pending) error {
	by := map[*imported][]*pending{}
	for _, w := range all {
		by[w.def] = append(by[w.def], w)
	}
	for def, ws := range by {
		var axes []map[string]int
		for _, w := range ws {
			axes = append(axes, maps.Collect(w.Axes.All()))
		}
		a, err := im.ask(def.was, "", axes...)
		if err != nil {
			return err
		}
		for i, w := range ws {
			w.sizes = a.Sizes[i]
		}
	}
	return nil
}

// beside returns the only definition read from the folder of file, or nil.
func (im *importer) beside(file string) (def *imported) {
	for _, d := range im.defs {
		if filepath.Dir(d.file) == filepath.Dir(file) {
			if def != nil {
				return nil
			}
			def = d
		}
	}
	return def
}

// workload imports a workload; its error is the reason for leaving it out.
func (im *importer) workload(file string, w *pending) error {
	def, sizes := w.def, w.sizes
	var axes trace.Map[int]
	for name, axis := range def.Axes.All() {
		was, _ := def.was.Axes.Get(name)
		n, ok := w.Axes.Get(name)
		if was.Expr != "" {
			of := sizes[0]
			if sizes = sizes[1:]; of.Unknown != "" {
				return fmt.Errorf("axis %s: unknown axis %q", name, of.Unknown)
			} else if of.Fault != "" {
				return fmt.Errorf("axis %s: %s", name, of.Fault)
			}
			n, ok = of.N, true
		}
		if ok && !axis.Const {
			axes.Set(name, n)
		}
	}
	w.Axes = axes
	var inputs trace.Map[trace.InputSpec]
	for name, in := range w.Inputs.All() {
		_, had := def.was.Inputs.Get(name)
		if _, has := def.Inputs.Get(name); had && !has {
			continue // left out of the definition
		}
		inputs.Set(name, in)
		if in.Kind == trace.Safetensors {
			if err := im.blob(file, in.Path); err != nil {
				return fmt.Errorf("input %s: %w", name, err)
			}
		}
	}
	w.Inputs = inputs
	if faults := names(def.Definition, &w.Workload); len(faults) > 0 {
		return errors.Join(faults...)
	}
	if w.Tolerance != nil {
		im.noteWorkload(file, "its tolerance is ignored: the contest's rule applies")
	}
	name := def.Name + ".jsonl"
	if base, ok := strings.CutSuffix(filepath.Base(file), ".ndjson"); ok {
		name = def.Name + base[max(0, strings.LastIndexByte(base, '.')):] + ".ndjson"
	}
	place := filepath.Join("workloads", def.OpType, name)
	t := trace.Trace{Definition: def.Name, Workload: w.Workload}
	im.files[place] = append(append(im.files[place], t.JSON(trace.Compact)...), '\n')
	im.Workloads++
	return nil
}

// blob adds the file of an input. path starts at the root or at the folder of the workloads.
func (im *importer) blob(file, path string) error {
	if filepath.IsAbs(path) {
		return nil
	}
	if !filepath.IsLocal(path) {
		return fmt.Errorf("%s is outside the dataset", path)
	}
	for _, root := range []string{im.root, filepath.Dir(file)} {
		if st, err := os.Stat(filepath.Join(root, path)); err == nil && st.Mode().IsRegular() {
			im.blobs[path] = filepath.Join(root, path)
			return nil
		}
	}
	return errors.New("missing file")
}

// write writes the dataset's files, or none if one exists with other content.
func (im *importer) write(dst string) error {
	var faults []error
	for _, place := range slices.Sorted(maps.Keys(im.files)) {
		there, err := plain.ReadFile(filepath.Join(dst, place), trace.MaxBytes)
		if err == nil && !bytes.Equal(there, im.files[place]) {
			faults = append(faults, fmt.Errorf("%s: exists with other content", filepath.Join(dst, place)))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	for place, data := range im.files {
		place = filepath.Join(dst, place)
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return err
		}
		if err := cache.WriteFile(place, data, 0o644); err != nil {
			return err
		}
	}
	for place, from := range im.blobs {
		if err := copyFile(from, filepath.Join(dst, place)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file unless the destination exists. It leaves no partial copy.
func copyFile(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := plain.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return cache.Write(to, 0o644, func(f io.Writer) error {
		_, err := io.Copy(f, in)
		return err
	})
}

// IsFile reports whether the name of a definition can be the name of a file or folder.
func IsFile(name string) bool {
	return name == filepath.Base(name) && !strings.HasPrefix(name, ".") && !strings.ContainsAny(name, `\`)
}
