package bench

import (
	"slices"
	"strings"
	"testing"

	"fisub/bench/worker"
	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A pool changed in place is restored before each call and judged in the slots that the reference changes; the rest
// must be unchanged.
func TestInPlace(t *testing.T) {
	const pool = "gdn_mtp_pool_qk4_v8_d128_k_last"
	for _, tc := range []struct {
		name   string
		status trace.Status
		detail string
		want   []string // checks
	}{
		{"honest", trace.Passed, "", nil},
		{"wants the pool of the first call", trace.Passed, "", nil},
		{"leaves the pool", trace.IncorrectNumerical, "final_state[2 0 0 0] is ", nil},
		{"writes to slot 1", trace.IncorrectNumerical, "final_state[1 0 0 1] changed from ", []string{outsideWrite}},
		{"writes NaN to slot 1", trace.IncorrectNumerical, "final_state[1 0 0 0] changed from ", []string{outsideWrite}},
		{"late stream", trace.Passed, "", []string{lateWrite}},
		{"skips after the first call", trace.IncorrectNumerical, "", []string{skippedWork}},
		{"behind", trace.Passed, "", []string{outsideWrite}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, events := runOn(t, pool, tc.name, 1, 1) // 3 rows on 5 slots, one of them padding
			var checks []string
			for _, e := range events {
				if e.Finding != nil && !slices.Contains(checks, e.Finding.Check) {
					checks = append(checks, e.Finding.Check)
				}
				if e.Evaluated != nil && (e.Evaluated.Status() != tc.status || !strings.HasPrefix(e.Evaluated.Detail, tc.detail)) {
					t.Errorf("got %s, %q; want %s, %q", e.Evaluated.Status(), e.Evaluated.Detail, tc.status, tc.detail)
				}
				if e.Type == event.TypeFailed {
					t.Errorf("got %+v", e)
				}
			}
			if !slices.Equal(checks, tc.want) {
				t.Errorf("findings: got %q, want %q", checks, tc.want)
			}
		})
	}
}

// A call reads the slots of the given indices and writes the changed ones, not the whole pool.
func TestMoved(t *testing.T) {
	before, want := tensor.New(tensor.Float32, 8, 4), tensor.New(tensor.Float32, 8, 4)
	want.WriteFloat32s([]float32{1}, 4*3+2)
	want.WriteFloat32s([]float32{1, 2}, 4*6)
	e := expected{Tensor: want, before: before, slots: changedSlots(before, want)}
	if !slices.Equal(e.slots, []int{3, 6}) || e.whole(5) != 4*6+1 || e.part(want).Shape[0] != 2 {
		t.Fatalf("got slots %v, element %d, part %v", e.slots, e.whole(5), e.part(want).Shape)
	}
	at := tensor.New(tensor.Int32, 4)
	at.WriteFloat64s([]float64{3, -1, 5, 3}, 0)
	floats := trace.TensorSpec{Shape: []string{"slots", "k"}, DType: tensor.Float32}
	ints := trace.TensorSpec{Shape: []string{"n"}, DType: tensor.Int32}
	for _, pool := range []string{"initial_state", "cache"} {
		def := &trace.Definition{}
		def.Inputs.Set(pool, floats)
		def.Inputs.Set("x", floats)
		values := []workloads.Input{{Name: pool, Tensor: before}, {Name: "x", Tensor: tensor.New(tensor.BFloat16, 10)}}
		in := &inputs{Inputs: &workloads.Inputs{Values: values}, def: def, want: []expected{{Tensor: at}, e},
			outputs: []worker.FileTensor{{Bytes: 40}, {Bytes: 128}}}
		if read, written := in.moved(); read != 2*16+20 || written != 40+2*16 {
			t.Errorf("%s: got %d and %d bytes", pool, read, written)
		}
		def.Inputs.Set(pool+"_indices", ints)
		in.Values = append(values, workloads.Input{Name: pool + "_indices", Tensor: at})
		if read, written := in.moved(); read != 2*16+20+16 || written != 40+2*16 {
			t.Errorf("%s with indices: got %d and %d bytes", pool, read, written)
		}
		in.outputs = in.outputs[:1] // the pool stays unchanged
		if read, written := in.moved(); read != 2*16+20+16 || written != 40 {
			t.Errorf("%s not in place: got %d and %d bytes", pool, read, written)
		}
		def.Inputs.Set(pool+"_indices", floats) // not indices
		if read, _ := in.moved(); read != 128+20+16 {
			t.Errorf("%s with other numbers: got %d bytes", pool, read)
		}
	}
}

// An output declared as an argument that is not an input of its type gets no verdict.
func TestJudgeable(t *testing.T) {
	in := trace.TensorSpec{Shape: []string{"n", "k"}, DType: tensor.Float32}
	out := trace.TensorSpec{Shape: []string{"n", "k"}, DType: tensor.Float32, Param: "x"}
	change := func(s trace.TensorSpec, f func(*trace.TensorSpec)) trace.TensorSpec {
		f(&s)
		return s
	}
	for _, tc := range []struct {
		name    string
		in, out trace.TensorSpec
		twice   bool
		want    bool
	}{
		{"right", in, out, false, true},
		{"not in place", in, in, true, true},
		{"two outputs", in, out, true, false},
		{"no input", in, change(out, func(s *trace.TensorSpec) { s.Param = "y" }), false, false},
		{"another dtype", in, change(out, func(s *trace.TensorSpec) { s.DType = tensor.BFloat16 }), false, false},
		{"another shape", in, change(out, func(s *trace.TensorSpec) { s.Shape = []string{"n"} }), false, false},
		{"optional", change(in, func(s *trace.TensorSpec) { s.Optional = true }), out, false, false},
		{"a number", trace.TensorSpec{Scalar: true, DType: tensor.Float32}, out, false, false},
		{"no axes", trace.TensorSpec{DType: tensor.Float32}, trace.TensorSpec{DType: tensor.Float32, Param: "x"}, false, false},
	} {
		def := &trace.Definition{Name: "d", OpType: "t"}
		def.Inputs.Set("x", tc.in)
		def.Outputs.Set("a", tc.out)
		if tc.twice {
			def.Outputs.Set("b", tc.out)
		}
		_, err := evaluatorOf(def)
		if (err == nil) != tc.want || err != nil && !strings.Contains(err.Error(), "used by one output") {
			t.Errorf("%s: got %v", tc.name, err)
		}
	}
}

const poolDefinition = `{"name":"add","op_type":"t","axes":{"n":{"type":"var"},"slots":{"type":"var"},"k":{"type":"const","value":4}},
"inputs":{"pool":{"shape":["slots","k"],"dtype":"float32"},"at":{"shape":["n"],"dtype":"int32"},"x":{"shape":["n","k"],"dtype":"float32"}},
"outputs":{"after":{"shape":["slots","k"],"dtype":"float32","param":"pool"},"y":{"shape":["n","k"],"dtype":"float32"}},
"reference":"def run(pool, at, x):\n    after = pool.clone()\n    after[at.long()] += x\n    return after, pool[at.long()] * x\n"}`

// Python submissions that change a pool return the other outputs or are passed memory for them.
func TestPythonInPlace(t *testing.T) {
	needPython(t)
	at := tensor.New(tensor.Int32, 2)
	at.WriteFloat64s([]float64{4, 1}, 0)
	for _, tc := range []struct {
		name, source string
		passing      bool
		status       trace.Status
		detail       string
		findings     []string
	}{
		{"returns", "def run(pool, at, x):\n    at = at.long()\n    y = pool[at] * x\n    pool[at] += x\n    return y\n", false, trace.Passed,
			"", nil},
		{"passed", "def run(pool, at, x, y):\n    at = at.long()\n    y.copy_(pool[at] * x)\n    pool[at] += x\n", true, trace.Passed, "", nil},
		{"returns the pool too", "def run(pool, at, x):\n    at = at.long()\n    y = pool[at] * x\n    pool[at] += x\n    return pool, y\n",
			false, trace.RuntimeError, "ValueError: Tuple/list has 2 elements but 1 outputs expected", nil},
		{"takes the pool twice", "def run(pool, at, x, after, y):\n    pass\n", true, trace.CompileError, "Destination-passing style", nil},
		{"another pool", "def run(pool, at, x, y):\n    at = at.long()\n    y.copy_(pool[at] * x)\n    pool = pool.clone()\n    pool[at] += x\n",
			true, trace.IncorrectNumerical, "after[", nil},
		{"all slots",
			"def run(pool, at, x, y):\n    at = at.long()\n    y.copy_(pool[at] * x)\n    pool[at] += x\n    pool[5] = 0\n", true,
			trace.IncorrectNumerical, "after[5 0] changed from ", []string{"outside-write: after[5 0] changed from "}},
		{"once only",
			"done = []\ndef run(pool, at, x, y):\n    at = at.long()\n    y.copy_(pool[at] * x)\n    " +
				"if len(done) < 4:\n        pool[at] += x\n    done.append(0)\n", true, trace.Passed, "",
			[]string{"skipped-work: "}},
	} {
		evaluated, failed, findings, _, err := findPython(t, poolDefinition, tc.source, tc.passing,
			[]map[string]int{{"n": 2, "slots": 7}}, map[string]*tensor.Tensor{"at": at})
		if err != nil || len(failed) > 0 || evaluated[0] == nil {
			t.Errorf("%s: got %v, failed %q, error %v", tc.name, evaluated, failed, err)
			continue
		}
		if e := evaluated[0]; e.Status != tc.status || !strings.Contains(e.Log, tc.detail) {
			t.Errorf("%s: got %s, %q; want %s, %q", tc.name, e.Status, e.Log, tc.status, tc.detail)
		}
		if got := findings["workload 0"]; !startAs(got, tc.findings) {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.findings)
		}
	}
}

// The reference of a definition with an in-place output returns that output and changes nothing. It passes as a
// baseline.
func TestReferenceInPlaceAsBaseline(t *testing.T) {
	needPython(t)
	at := tensor.New(tensor.Int32, 2)
	at.WriteFloat64s([]float64{4, 1}, 0)
	shared := sharedPython(t, poolDefinition, []map[string]int{{"n": 2, "slots": 7}}, map[string]*tensor.Tensor{"at": at})
	shared.Baseline = &Baseline{Name: "reference", Solution: ReferenceSolution(shared.Definition)}
	g, err := newGroup(t.Context(), &shared, []Entry{{Solution: shared.Baseline.Solution, Events: event.NewStream(), Run: &event.Run{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.stop()
	if err := g.runners[0].process.start(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	trials, err := g.prepare(t.Context(), shared.Workloads[0])
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []trace.Status{trace.Passed, trace.RuntimeError} { // a submission must change the argument
		b := append([]*runner{g.baseline}, g.runners...)[i].begin(0, shared.Workloads[0])
		if err := b.judge(t.Context(), trials); err != nil || b.verdict.status != want {
			t.Errorf("runner %d: got %s, %q, %v, want %s", i, b.verdict.status, b.verdict.log, err, want)
		}
	}
}
