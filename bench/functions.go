package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"fisub/bench/worker"
	"fisub/internal/memfile"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
	"fisub/workloads/random"
)

// functionsFile is the source that fisub adds to the functions of a definition, with their entry point.
const functionsFile = "fisub_functions.py"

// functionsOf returns the functions of def in Python, or nil. Custom inputs are those of a call "inputs".
func functionsOf(def *trace.Definition) *trace.Functions {
	if def.Python != nil || def.CustomInputs == "" {
		return def.Python
	}
	f := &trace.Functions{Inputs: "reference.py::" + def.CustomInputs, Call: "inputs"}
	f.Files.Set("reference.py", def.Reference)
	return f
}

// functionsSolution returns a solution whose calls make inputs and judge outputs with the functions f of def, and the
// definition that it is called by. Package fisub_worker's module functions has its requests and replies.
func functionsSolution(def *trace.Definition, f *trace.Functions) (*trace.Definition, *trace.Solution) {
	p := *f
	p.Files = trace.Map[string]{} // they are files
	text, _ := json.Marshal(p)    // strings and numbers
	sol := ReferenceSolution(def)
	sol.Spec.EntryPoint, sol.Sources = functionsFile+"::call", nil
	for path, text := range f.Files.All() {
		sol.Sources = append(sol.Sources, trace.SourceFile{Path: path, Content: text})
	}
	sol.Sources = append(sol.Sources, trace.SourceFile{Path: functionsFile, Content: fmt.Sprintf(
		"import json\nimport os\n\nfrom fisub_worker.functions import Functions\n\n"+
			"call = Functions(os.path.dirname(os.path.abspath(__file__)), json.loads(%q))\n", text)})
	own := *def
	own.Python = nil
	return &own, sol
}

// A made is what the functions of a definition say about inputs that they made.
type made struct {
	reference *pyReference
	arguments map[string]any
	returned  int64 // bytes of the tensors that the last judged call returned, except inputs
}

// octets returns a tensor of bytes of a file.
func octets(file *os.File, offset int64, n int) worker.Value {
	return worker.Value{Tensor: &worker.FileTensor{DType: tensor.Int8.String(), Shape: []int{n}, File: file,
		Offset: offset, Bytes: n}}
}

// ask calls the functions with a request and tensors, the outputs to judge. It decodes the reply, which is JSON, into
// reply; the tensors of the reply are in out.
func (p *pyReference) ask(ctx context.Context, request map[string]any, tensors []worker.FileTensor, out *outFile,
	reply any) (made []worker.FileTensor, err error) {
	request["seed"], request["emulated"] = p.seed, p.kind == "emu"
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	f, err := memfile.New("fisub-request", 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return nil, err
	}
	load := &worker.Tensors{Inputs: []worker.Value{octets(f, 0, len(text))},
		Outputs: []worker.Value{octets(nil, 0, 0)}, AnyCount: true}
	for _, t := range tensors {
		load.Inputs = append(load.Inputs, octets(t.File, t.Offset, t.Bytes))
	}
	err = p.call(ctx, load, out, 1, func(written []worker.FileTensor) error {
		outs, unmap, err := out.read(written)
		if err != nil {
			return err
		}
		defer unmap()
		made = written[1:]
		return json.Unmarshal(outs[0].tensor.Data, reply)
	})
	return made, err
}

// seedArgument is the argument that functions draw their inputs from.
const seedArgument = "seed"

// inputs makes the inputs of w. If seed is not nil, it replaces the workload's; without one, the result is nil.
func (p *pyReference) inputs(ctx context.Context, def *trace.Definition, w *trace.Workload, seed *int) (
	*inputs, error) {
	arguments := map[string]any{}
	for name, n := range w.Axes.All() {
		arguments[name] = n
	}
	if w.Arguments != nil {
		maps.Insert(arguments, w.Arguments.All())
	}
	if seed != nil {
		if arguments[seedArgument] == nil {
			return nil, nil
		}
		arguments[seedArgument] = *seed
	}
	in := &inputs{def: def, made: &made{reference: p, arguments: arguments}}
	return in, p.make(ctx, arguments, in)
}

// make calls the function that makes inputs, and adds their values to in, with a description for the worker.
func (p *pyReference) make(ctx context.Context, arguments map[string]any, in *inputs) error {
	f, err := memfile.New("fisub-inputs", 1)
	if err != nil {
		return err
	}
	out := &outFile{f}
	var reply struct {
		Tree    json.RawMessage
		Tensors []struct {
			worker.FileTensor
			Name  string
			Empty bool
		}
	}
	tensors, err := p.ask(ctx, map[string]any{"make": arguments}, nil, out, &reply)
	var outs []output
	var unmap func()
	if err == nil {
		outs, unmap, err = out.read(tensors)
	}
	if err != nil {
		out.close()
		return err
	}
	in.load = &worker.Tensors{Guard: guard, Tree: reply.Tree, Outputs: []worker.Value{octets(nil, 0, 0)}}
	var values []workloads.Input
	for i, t := range reply.Tensors {
		file := t.FileTensor
		file.File, file.Offset, file.Bytes = out.f, tensors[i].Offset, tensors[i].Bytes
		v := workloads.Input{Name: t.Name, Tensor: outs[i].tensor, File: out.f, Offset: file.Offset}
		dtype, ok := tensor.ParseDType(t.DType)
		if n, _ := tensor.Elements(t.Shape); ok && dtype.Bits() >= 8 && file.Bytes == n*dtype.Bits()/8 {
			v.Tensor = &tensor.Tensor{DType: dtype, Shape: t.Shape, Data: v.Tensor.Data}
		}
		values = append(values, v)
		in.load.Inputs = append(in.load.Inputs, worker.Value{Tensor: &file})
		in.load.Names = append(in.load.Names, t.Name)
		in.bytes += int64(file.Bytes)
		if t.Empty {
			in.change(i)
		}
	}
	in.Inputs, in.release = &workloads.Inputs{Values: values}, func() { unmap(); out.close() }
	return memfile.Freeze(out.f)
}

// fill sets the inputs that a function of the definition makes for a trial of w, if there are any.
func (p *pyReference) fill(ctx context.Context, in *inputs, w *trace.Workload, trial int) error {
	sizes, axes := map[string]any{}, maps.Collect(w.Axes.All())
	for name, axis := range in.def.Axes.All() {
		sizes[name] = cmp.Or(axes[name], axis.Value)
	}
	var want [][]any // name, dtype and shape, nil for a scalar
	for _, v := range in.Values {
		if source, _ := w.Inputs.Get(v.Name); source.Kind == trace.CustomInput {
			spec, _ := in.def.Inputs.Get(v.Name)
			shape, _ := in.def.Shape(spec, axes) // Load has done the same
			want = append(want, []any{v.Name, spec.DType.String(), shape})
		} else if v.Scalar != nil {
			sizes[v.Name] = v.Scalar.Any()
		}
	}
	if want == nil {
		return nil
	}
	seed := random.New("custom inputs", w.UUID, fmt.Sprint(trial), fmt.Sprint(p.seed)).Intn(0, mostSeed)
	var made inputs
	if err := p.make(ctx, map[string]any{"sizes": sizes, "want": want, "seed": seed}, &made); err != nil {
		return err
	}
	in.release = made.release
	var scalars map[string]*trace.Scalar
	err := json.Unmarshal(made.load.Tree, &scalars)
	for i, v := range in.Values {
		if s := scalars[v.Name]; s != nil {
			in.Values[i].Scalar = s
		}
		for _, m := range made.Values {
			if m.Name == v.Name {
				in.Values[i] = m
			}
		}
	}
	return err
}

// change permits calls to change input i. Its contents are restored before each call.
func (in *inputs) change(i int) {
	for _, v := range in.load.Outputs[1:] {
		if *v.InPlace == i {
			return
		}
	}
	in.load.Outputs = append(in.load.Outputs, worker.Value{Tensor: in.load.Inputs[i].Tensor, InPlace: &i})
}

// learn takes from the outputs of a call which inputs hold them, and how large they are. It reports whether the inputs
// must be loaded again.
func (in *inputs) learn(written []worker.FileTensor) (again bool) {
	if in.made == nil {
		return false
	}
	before := len(in.load.Outputs)
	in.made.returned = 0
	for i, t := range written {
		if t.Bound != nil && *t.Bound >= 0 && *t.Bound < len(in.load.Inputs) {
			in.change(*t.Bound)
		} else if i > 0 {
			in.made.returned += int64(t.Bytes)
		}
		in.size = max(in.size, t.Offset+int64(t.Bytes))
	}
	return len(in.load.Outputs) > before
}

// check judges the outputs in out, which written describes, with the functions of the definition.
func (in *inputs) check(ctx context.Context, out *outFile, written []worker.FileTensor) (c comparison, err error) {
	st, err := out.f.Stat()
	if err != nil {
		return c, err
	}
	for i, t := range written {
		if t.Bytes < 0 || t.Offset < 0 || t.Offset > st.Size()-int64(t.Bytes) {
			return c, lie("output %d: the worker's %d bytes at %d are not in its file", i, t.Bytes, t.Offset)
		}
		written[i].File = out.f
	}
	if len(written) == 0 {
		return comparison{text: "the worker returned no outputs"}, nil
	}
	request := map[string]any{"judge": in.made.arguments, "tensors": written[1:]}
	var reply struct {
		OK   bool
		Text string
	}
	err = worker.Pause(ctx, func() error {
		_, err := in.made.reference.ask(ctx, request, written, &in.made.reference.out, &reply)
		return err
	})
	return comparison{ok: reply.OK, text: plain.Line(reply.Text)}, err
}

// judgeMade adds the outputs of one call on in to v. It returns false when the verdict is final.
func (v *verdict) judgeMade(ctx context.Context, a *attempt, in *inputs, written []worker.FileTensor) (
	more bool, err error) {
	c, err := in.check(ctx, &a.process.out, written)
	if err == nil && !c.ok {
		extra := &trace.Map[any]{}
		extra.Set("message", c.text)
		*v = verdict{status: trace.IncorrectNumerical, detail: c.text, correctness: &trace.Correctness{Extra: extra}}
	}
	return c.ok, err
}

// mostSeed limits the seeds that are drawn.
const mostSeed = 1 << 20

// other returns inputs for another seed with the shapes of in, or nil if there are none.
func (a *attempt) other(ctx context.Context, in *inputs, purpose string) (*inputs, error) {
	seed := 1 + a.draw(purpose).Intn(0, mostSeed)
	if was, _ := a.workload.Axes.Get(seedArgument); seed == was {
		seed++
	}
	o, err := in.made.reference.inputs(ctx, in.def, a.workload, &seed)
	if o == nil || err != nil {
		return nil, err
	}
	same := func(x, y worker.Value) bool {
		s, t := x.Tensor, y.Tensor
		return s.DType == t.DType && slices.Equal(s.Shape, t.Shape) && slices.Equal(s.Stride, t.Stride) &&
			s.Bytes == t.Bytes
	}
	if string(o.load.Tree) != string(in.load.Tree) || !slices.EqualFunc(o.load.Inputs, in.load.Inputs, same) {
		return nil, o.Close()
	}
	return o, nil
}
