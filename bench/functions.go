package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fisub/bench/worker"
	"fisub/internal/event"
	"fisub/internal/memfile"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// functionsFile is the source that fisub adds to the functions of a definition, with their entry point.
const functionsFile = "fisub_functions.py"

// functionsSolution returns a solution whose calls make inputs and judge outputs with the functions of def, and the
// definition that it is called by. Package fisub_worker's module functions has its requests and replies.
func functionsSolution(def *trace.Definition) (*trace.Definition, *trace.Solution) {
	p := *def.Python
	p.Files = trace.Map[string]{} // they are files
	text, _ := json.Marshal(p)    // strings and numbers
	sol := &trace.Solution{Name: def.Name + "__reference", Definition: def.Name, Author: "__builtin__",
		Spec: trace.BuildSpec{Language: trace.Python, TargetHardware: []string{"cuda"},
			EntryPoint: functionsFile + "::call"}}
	for path, text := range def.Python.Files.All() {
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
	arguments json.RawMessage
	empty     []bool // by tensor: only memory for outputs
	returned  int64  // bytes of the tensors that the last judged call returned, except inputs
}

// ask calls the functions with a request and tensors, the outputs to judge. The reply is JSON; its tensors are in out.
func (p *pyReference) ask(ctx context.Context, request map[string]any, tensors []worker.FileTensor, out *outFile) (
	reply []byte, made []worker.FileTensor, err error) {
	request["seed"], request["emulated"] = p.seed, p.kind == "emu"
	text, err := json.Marshal(request)
	if err != nil {
		return nil, nil, err
	}
	f, err := memfile.New("fisub-request", 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return nil, nil, err
	}
	none := worker.FileTensor{DType: tensor.Int8.String(), Shape: []int{0}}
	load := &worker.Tensors{Outputs: []worker.Value{{Tensor: &none}}, AnyCount: true}
	for _, t := range append([]worker.FileTensor{{File: f, Bytes: len(text)}}, tensors...) {
		load.Inputs = append(load.Inputs, worker.Value{Tensor: &worker.FileTensor{DType: none.DType, Shape: []int{t.Bytes},
			File: t.File, Offset: t.Offset, Bytes: t.Bytes}})
	}
	err = p.open(ctx)
	if err == nil {
		err = out.room(1)
	}
	limit, cancel := context.WithTimeout(ctx, referenceTimeout)
	defer cancel()
	if err == nil {
		err = p.load(limit, load)
	}
	if err == nil {
		made, err = p.client.Run(limit, out.f)
	}
	if err == nil && len(made) == 0 {
		err = errors.New("no reply")
	}
	if err == nil {
		p.client.TakeLog()
		reply = make([]byte, made[0].Bytes)
		_, err = out.f.ReadAt(reply, made[0].Offset)
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if err != nil {
		text := withLog(err, strings.TrimSpace(p.log())).Error()
		p.end() // after any error, such as a lack of memory, the next workload gets a new process
		return nil, nil, &referenceError{p.def.Name, errors.New(text)}
	}
	return reply, made[1:], nil
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
	if seed != nil {
		if arguments[seedArgument] == nil {
			return nil, nil
		}
		arguments[seedArgument] = *seed
	}
	if w.Arguments != nil {
		for name, v := range w.Arguments.All() {
			arguments[name] = v
		}
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		return nil, err
	}
	f, err := memfile.New("fisub-inputs", 1)
	if err != nil {
		return nil, err
	}
	out := &outFile{f}
	reply, tensors, err := p.ask(ctx, map[string]any{"make": json.RawMessage(text)}, nil, out)
	if err != nil {
		out.close()
		return nil, err
	}
	var said struct {
		Tree    json.RawMessage
		Tensors []struct {
			Name, DType   string
			Shape, Stride []int
			Empty         bool
		}
	}
	outs, unmap, err := out.read(tensors)
	if err == nil {
		err = json.Unmarshal(reply, &said)
	}
	if err == nil && len(said.Tensors) != len(outs) {
		err = fmt.Errorf("%d tensors, expected %d", len(outs), len(said.Tensors))
	}
	if err != nil {
		out.close()
		return nil, &referenceError{def.Name, err}
	}
	in := &inputs{def: def, made: &made{reference: p, arguments: text},
		load: &worker.Tensors{Guard: guard, Tree: said.Tree}}
	none := worker.FileTensor{DType: tensor.Int8.String(), Shape: []int{0}}
	in.load.Outputs = []worker.Value{{Tensor: &none}}
	var values []workloads.Input
	for i, t := range said.Tensors {
		v := workloads.Input{Name: t.Name, Tensor: outs[i].tensor, File: out.f, Offset: tensors[i].Offset}
		file := fileTensor(v)
		file.DType, file.Shape, file.Stride = t.DType, t.Shape, t.Stride
		dtype, ok := tensor.ParseDType(t.DType)
		if n, _ := tensor.Elements(t.Shape); ok && dtype.Bits() >= 8 && len(v.Tensor.Data) == n*dtype.Bits()/8 {
			v.Tensor = &tensor.Tensor{DType: dtype, Shape: t.Shape, Data: v.Tensor.Data}
		}
		values = append(values, v)
		in.load.Inputs = append(in.load.Inputs, worker.Value{Tensor: file})
		in.load.Names = append(in.load.Names, t.Name)
		in.bytes += int64(file.Bytes)
		in.made.empty = append(in.made.empty, t.Empty)
		if t.Empty {
			in.change(i)
		}
	}
	in.Inputs = workloads.Made(values, func() error { unmap(); out.close(); return nil })
	return in, memfile.Freeze(out.f)
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

// madeTraffic is moved for inputs that functions made.
func (in *inputs) madeTraffic() (read, written int64) {
	written = in.made.returned
	for i, v := range in.load.Inputs {
		if bytes := int64(v.Tensor.Bytes); in.made.empty[i] {
			written += bytes
		} else {
			read += bytes
		}
	}
	return read, written
}

// check judges the outputs in out, which written describes, with the functions of the definition.
func (in *inputs) check(ctx context.Context, out *outFile, written []worker.FileTensor) (c comparison, err error) {
	st, err := out.f.Stat()
	if err != nil {
		return c, err
	}
	type spec struct {
		DType string `json:"dtype"`
		Shape []int  `json:"shape"`
	}
	specs := []spec{}
	for i, t := range written {
		if t.Bytes < 0 || t.Offset < 0 || t.Offset > st.Size()-int64(t.Bytes) {
			return c, lie("output %d: the worker's %d bytes at %d are not in its file", i, t.Bytes, t.Offset)
		}
		written[i].File = out.f
		if i > 0 {
			specs = append(specs, spec{t.DType, append([]int{}, t.Shape...)})
		}
	}
	if len(written) == 0 {
		return comparison{text: "the worker returned no outputs"}, nil
	}
	request := map[string]any{"judge": in.made.arguments, "tensors": specs}
	err = worker.Pause(ctx, func() error {
		reply, _, err := in.made.reference.ask(ctx, request, written, &in.made.reference.out)
		if err != nil {
			return err
		}
		var said struct {
			OK   bool
			Text string
		}
		err = json.Unmarshal(reply, &said)
		c = comparison{ok: said.OK, text: plain.Line(said.Text)}
		return err
	})
	return c, err
}

// judgeMade adds the outputs of one call to v. It returns false when the verdict is final.
func (v *verdict) judgeMade(c comparison) bool {
	if !c.ok {
		extra := &trace.Map[any]{}
		extra.Set("message", c.text)
		*v = verdict{status: trace.IncorrectNumerical, detail: c.text, correctness: &trace.Correctness{Extra: extra}}
	}
	return c.ok
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

// varyMade is vary for inputs that functions made: the varied call gets those of another seed.
func (a *attempt) varyMade(ctx context.Context) (*variation, error) {
	o, err := a.other(ctx, a.loaded, "timed call")
	if o == nil || err != nil {
		return nil, err
	}
	return &variation{what: "with the inputs of another seed", other: o}, nil
}

// judgeMade returns a finding if the outputs of the varied timed call are wrong.
func (v *variation) judgeMade(ctx context.Context, a *attempt, what string, written []worker.FileTensor) (
	*event.Finding, error) {
	c, err := v.other.check(ctx, &a.process.out, written)
	if err != nil || c.ok {
		return nil, err
	}
	old, err := a.loaded.check(ctx, &a.process.out, written)
	if err != nil {
		return nil, err
	}
	if old.ok {
		return &event.Finding{Check: cachedByContent, Text: what + ", the outputs match the other calls' inputs"}, nil
	}
	return &event.Finding{Check: wrongResult, Text: what + ": " + c.text}, nil
}
