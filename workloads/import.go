package workloads

import (
	"bytes"
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
)

// An Imported is what Import took into a dataset.
type Imported struct {
	Definitions int    `json:"definitions"`
	Workloads   int    `json:"workloads"`
	Notes       []Note `json:"notes"`
}

// A Note says what of a file is left out, or stands otherwise in the dataset.
type Note struct {
	File      string `json:"file"`
	Text      string `json:"text"`
	Workloads int    `json:"workloads,omitempty"` // of the file that it is about; 0 where it is about its definition
}

// An importer reads below root and collects the files of a dataset.
type importer struct {
	Imported
	root  string
	defs  map[string]*imported // by name
	files map[string][]byte    // to write, by path in the dataset
	blobs map[string]string    // to copy: path in the dataset, and where
}

// An imported is a definition of the dataset, and as it was before.
type imported struct {
	*trace.Definition
	was  *trace.Definition
	file string
}

// Import takes the definitions and workloads below the folder src, or the definition in the file src with the
// workload.jsonl beside it, into the dataset in the folder dst: those of the format, of fi_trace and of SOL-ExecBench.
// A definition that the format can express as it stands is copied byte for byte; else what differs is in Notes, in the
// order of files, as is what is left out. No code of a definition is run. A file of dst that is there already and has
// other content is an error, and nothing is written then.
func Import(src, dst string) (*Imported, error) {
	st, err := os.Stat(src)
	if err != nil {
		return nil, err
	}
	im := &importer{Imported: Imported{Notes: []Note{}}, root: src, defs: map[string]*imported{},
		files: map[string][]byte{}, blobs: map[string]string{}}
	files := []string{src, filepath.Join(filepath.Dir(src), "workload.jsonl")}
	if !st.IsDir() {
		im.root = filepath.Dir(src)
	} else if files, err = below(src, dst); err != nil {
		return nil, err
	}
	for _, file := range files {
		if filepath.Ext(file) == ".json" {
			im.definition(file, file == src)
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

// below lists the regular files below root, without hidden folders and without skip.
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

// noteWorkload notes text of one workload of file, together with others of which it is said.
func (im *importer) noteWorkload(file, text string) {
	i := slices.IndexFunc(im.Notes, func(n Note) bool { return n.File == file && n.Text == text && n.Workloads > 0 })
	if i < 0 {
		i = len(im.Notes)
		im.note(file, text)
	}
	im.Notes[i].Workloads++
}

// definition takes a definition file. Other JSON is passed over, unless it was named.
func (im *importer) definition(file string, named bool) {
	text, err := plain.ReadFile(file, trace.MaxBytes)
	keys := map[string]json.RawMessage{}
	if err == nil && json.Unmarshal(text, &keys) == nil {
		for _, key := range []string{"axes", "inputs", "outputs"} {
			if keys[key] == nil && !named {
				return
			}
		}
	} else if !named {
		return
	}
	was, err := trace.ReadDialect(file)
	if err != nil {
		im.note(file, "left out: "+strings.TrimPrefix(plain.Line(err.Error()), file+":"))
		return
	}
	def, _ := trace.ReadDialect(file)
	changes, faults := express(def)
	if len(faults) > 0 {
		for _, fault := range faults {
			im.note(file, "left out: "+fault)
		}
		return
	}
	if len(changes) > 0 {
		text = append(def.JSON(trace.Indent), '\n')
	}
	def, _, err = trace.DecodeDefinition(text)
	var invalid *trace.ValidationError
	if errors.As(err, &invalid) {
		for _, f := range invalid.Faults {
			f.Line = 0
			one := &trace.ValidationError{Model: invalid.Model, Faults: []trace.Fault{f}}
			im.note(file, "left out: "+strings.TrimPrefix(one.Error(), "definition: "))
		}
		return
	}
	for _, part := range []string{def.Name, def.OpType} {
		if !IsFile(part) {
			im.note(file, fmt.Sprintf("left out: %q is no name for a file", part))
			return
		}
	}
	place := filepath.Join("definitions", def.OpType, def.Name+".json")
	if first := im.defs[def.Name]; first != nil {
		if !bytes.Equal(im.files[place], text) {
			im.note(file, fmt.Sprintf("left out: %s has another definition %s", first.file, def.Name))
		}
		return
	}
	for _, change := range changes {
		im.note(file, change)
	}
	im.defs[def.Name], im.files[place] = &imported{def, was, file}, text
	im.Definitions++
}

var (
	functions  = regexp.MustCompile(`(?m)^def[ \t]+(\w+)[ \t]*\(`)
	identifier = regexp.MustCompile(`^[\pL_][\pL\p{Nd}_]*$`)
)

// express changes what a dialect says into what the format can say. It tells each change, and what the format lacks.
func express(def *trace.Definition) (changes, faults []string) {
	told := func(format string, args ...any) { changes = append(changes, fmt.Sprintf(format, args...)) }
	if def.OpType == "" {
		def.OpType = "other"
		told("it has no op_type, and is %q here", def.OpType)
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
			told("the optional input %s is left out: the output %s goes there", over, name)
		case inPlace:
			out.Param = over
			if same {
				as = name + "_out"
				told("the output %s, an input changed in place, is %s here", name, as)
			}
		case out.Param != "":
			out.Param = ""
			told("the output %s is one of its own here: %s, which it is said to be, is no input", name, over)
		}
		if out.Optional {
			told("the output %s, which may be absent, is always asked for here", name)
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
	faults = expressAxes(def, told)
	for _, m := range []*trace.Map[trace.TensorSpec]{&inputs, &outputs} {
		for name, spec := range m.All() {
			if spec.Foreign != "" {
				faults = append(faults, fmt.Sprintf("%s has dtype %s, which the format lacks", name, spec.Foreign))
			}
		}
	}
	if fault := expressReference(def, told); fault != "" {
		faults = append(faults, fault)
	}
	return changes, faults
}

// expressReference adds a function run that calls the last function of a reference without one.
func expressReference(def *trace.Definition, told func(format string, args ...any)) (fault string) {
	all := functions.FindAllStringSubmatchIndex(def.Reference, -1)
	name := func(m []int) string { return def.Reference[m[2]:m[3]] }
	if len(all) == 0 || slices.ContainsFunc(all, func(m []int) bool { return name(m) == "run" }) {
		return ""
	}
	last := all[len(all)-1]
	var args []string
	params := parameters(def.Reference[last[1]:])
	_, open := params["**"]
	for _, in := range def.Inputs.Keys() {
		if _, ok := params[in]; (ok || open) && identifier.MatchString(in) {
			args = append(args, in+"="+in)
		}
	}
	for _, param := range slices.Sorted(maps.Keys(params)) {
		if _, ok := def.Inputs.Get(param); params[param] && !ok {
			return fmt.Sprintf("its reference needs %s, which is no input", param)
		}
	}
	def.Reference = fmt.Sprintf("%s\n\n\ndef run(%s):\n    return %s(%s)\n", strings.TrimRight(def.Reference, "\n"),
		strings.Join(def.Inputs.Keys(), ", "), name(last), strings.Join(args, ", "))
	told("its reference has no run: one is added that calls %s with the inputs by name", name(last))
	return ""
}

// parameters are those of a Python function whose source follows behind "def name(", and whether each must be given;
// "**" stands for any further ones.
func parameters(src string) map[string]bool {
	params := map[string]bool{}
	depth, start := 0, 0
	for i, c := range src {
		if strings.ContainsRune("([{", c) {
			depth++
		}
		if depth == 0 && (c == ',' || c == ')') {
			param := src[start:i]
			start = i + 1
			name := strings.TrimSpace(param)
			if end := strings.IndexAny(param, ":="); end >= 0 {
				name = strings.TrimSpace(param[:end])
			}
			switch {
			case strings.HasPrefix(name, "**"):
				params["**"] = false
			case identifier.MatchString(name):
				params[name] = !strings.Contains(param, "=")
			}
			if c == ')' {
				return params
			}
		}
		if strings.ContainsRune(")]}", c) {
			depth--
		}
	}
	return params
}

// expressAxes gives the axes sizes that follow from others, or makes them var.
func expressAxes(def *trace.Definition, told func(format string, args ...any)) (faults []string) {
	for _, m := range []*trace.Map[trace.TensorSpec]{&def.Inputs, &def.Outputs} {
		for _, spec := range m.All() {
			for _, axis := range spec.Shape {
				if _, ok := def.Axes.Get(axis); !ok {
					if n, err := strconv.Atoi(axis); err == nil && n > 0 {
						def.Axes.Set(axis, trace.Axis{Const: true, Value: n})
						told("the size %d in a shape is an axis of that name here", n)
					}
				}
			}
		}
	}
	sizes := constants(def)
	for name, axis := range def.Axes.All() {
		switch {
		case axis.Const && axis.Value == 0:
			told("the const axis %s has no size, and is var here", name)
		case axis.Expr != "":
			n, err := trace.Size(axis.Expr, sizes)
			if sizes[name] = n; err == nil {
				def.Axes.Set(name, trace.Axis{Const: true, Value: n, Description: axis.Description})
				told("the axis %s, %s, is const %d here", name, axis.Expr, n)
				continue
			}
			delete(sizes, name)
			var unknown trace.UnknownAxisError
			if !errors.As(err, &unknown) {
				faults = append(faults, fmt.Sprintf("the axis %s: %v", name, err))
				continue
			}
			told("the axis %s, %s, is var here, with its size in each workload", name, axis.Expr)
		default:
			continue
		}
		bound := false
		for _, in := range def.Inputs.All() {
			bound = bound || slices.Contains(in.Shape, name)
		}
		if !bound {
			faults = append(faults,
				fmt.Sprintf("the axis %s is in no input's shape, where the format takes its size from", name))
		}
		def.Axes.Set(name, trace.Axis{Description: axis.Description})
	}
	return faults
}

// constants are the sizes of the const axes.
func constants(def *trace.Definition) map[string]int {
	sizes := map[string]int{}
	for name, axis := range def.Axes.All() {
		if axis.Const && axis.Value > 0 {
			sizes[name] = axis.Value
		}
	}
	return sizes
}

// workloads takes the lines of a file: workloads of the definition beside it, or traces without a solution.
func (im *importer) workloads(file string) error {
	data, err := plain.ReadFile(file, trace.MaxBytes)
	if err != nil {
		return err
	}
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
			im.noteWorkload(file, "left out: its definition is not taken")
			continue
		}
		if err := im.workload(file, t.Workload, def); err != nil {
			im.noteWorkload(file, "left out: "+plain.Line(err.Error()))
		}
	}
	return nil
}

// beside is the one definition that was read from the folder of file, or nil.
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

// workload takes a workload of def; its error says why it is left out.
func (im *importer) workload(file string, text []byte, def *imported) error {
	w, err := trace.DecodeDialectWorkload(text)
	if err != nil {
		return err
	}
	sizes := constants(def.Definition)
	maps.Insert(sizes, w.Axes.All())
	var axes trace.Map[int]
	for name, axis := range def.Axes.All() {
		was, _ := def.was.Axes.Get(name)
		n, ok := w.Axes.Get(name)
		if was.Expr != "" {
			if n, err = trace.Size(was.Expr, sizes); err != nil {
				return fmt.Errorf("axis %s: %w", name, err)
			}
			sizes[name], ok = n, true
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
		switch in.Kind {
		case trace.CustomInput:
			return fmt.Errorf("input %s is made by the definition's function %s, which is not run", name, def.CustomInputs)
		case trace.Safetensors:
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
		im.noteWorkload(file, "its tolerance is not taken: it is judged by the contest's rule")
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

// blob takes the file of an input, whose path starts at the root or at the folder of the workloads.
func (im *importer) blob(file, path string) error {
	if filepath.IsAbs(path) {
		return nil
	}
	if !filepath.IsLocal(path) {
		return fmt.Errorf("%s leads out of the dataset", path)
	}
	for _, root := range []string{im.root, filepath.Dir(file)} {
		if st, err := os.Stat(filepath.Join(root, path)); err == nil && st.Mode().IsRegular() {
			im.blobs[path] = filepath.Join(root, path)
			return nil
		}
	}
	return errors.New("its file is not there")
}

// write writes the dataset's files, or none where one is there with other content.
func (im *importer) write(dst string) error {
	var faults []error
	for _, place := range slices.Sorted(maps.Keys(im.files)) {
		there, err := os.ReadFile(filepath.Join(dst, place))
		if err == nil && !bytes.Equal(there, im.files[place]) {
			faults = append(faults, fmt.Errorf("%s: there already, with other content", filepath.Join(dst, place)))
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

// copyFile copies a file unless the place has one; one that cannot be copied whole leaves none.
func copyFile(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return cache.Write(to, 0o644, func(f io.Writer) error {
		_, err := io.Copy(f, in)
		return err
	})
}

// IsFile reports whether a name of a definition is one for a file or folder of a dataset.
func IsFile(name string) bool {
	return name == filepath.Base(name) && !strings.HasPrefix(name, ".") && !strings.ContainsAny(name, `\`)
}
