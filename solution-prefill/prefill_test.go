// Package prefill holds the repository's GDN prefill kernel. Its tests call it and the plain version of the same
// mathematics (solution/baselines/prefill-plain) as the contest does, on the emulator and on a GPU.
package prefill

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fisub/bench/reference"
	"fisub/definitions"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/solution/solutiontest"
	"fisub/workloads"
)

const headsQK, headsV, dim = 4, 8, 128

// tolerance is the contest's absolute and relative tolerance: an element fails if it exceeds both.
const tolerance = 0.01

// gate is the allowed error of a state, and of an output in addition to its rounding to bfloat16, in units of the largest
// value or of 1.
const gate = 2e-3

const (
	fast  = "solution/cuda"
	plain = "../solution/baselines/prefill-plain/solution/cuda"
)

func TestEmulated(t *testing.T) {
	longtest.CI(t, "runs the kernel on the virtual GPU")
	for name, dir := range map[string]string{"fast": fast, "plain": plain} {
		t.Run(name, func(t *testing.T) {
			d := solutiontest.Emulated(t, "memcheck", "racecheck", "synccheck") // rows past the end are read and not used
			conform(t, d, dir, cases(dir == fast))
		})
	}
}

func TestGPU(t *testing.T) {
	for name, dir := range map[string]string{"fast": fast, "plain": plain} {
		d := solutiontest.GPU(t)
		t.Run(name, func(t *testing.T) { conform(t, d, dir, cases(dir == fast)) })
	}
}

// A testCase is a call: the lengths of its sequences, and the differences from the contest's inputs.
type testCase struct {
	name    string
	lengths []int
	state   float64 // standard deviation; negative: None
	scale   *trace.Scalar
	a, b    []float64 // used cyclically, if not empty
	v       float64   // standard deviation, 0 for 1
	keys    string    // "same": one key for all tokens, "correlated": nearly that; "long": not normalised
	common  float64   // of correlated keys; 0 for 0.9
	spread  float64   // standard deviation of the logarithm of the channels' standard deviations
	part    float64   // largest allowed error, as a share of the contest's tolerance; 0: any
}

// cases has the small ones; many adds those for a GPU.
func cases(many bool) []testCase {
	half := &trace.Scalar{Kind: trace.FloatScalar, Float: -0.5}
	all := []testCase{
		{name: "one token", lengths: []int{1}, state: 0.25},
		{name: "ragged, two empty", lengths: []int{0, 33, 5, 0, 17}, state: 0.25},
		{name: "no state, a scale", lengths: []int{40, 2}, state: -1, scale: half},
		{name: "gates at their ends", lengths: []int{35}, state: 1, a: []float64{100, -30, 30, -100, 0},
			b: []float64{20, -20, 100, 0}},
		{name: "no tokens", lengths: []int{0, 0}, state: 1},
		{name: "no sequences", state: 1},
	}
	if !many {
		return all
	}
	for _, n := range []int{15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 129, 257} {
		all = append(all, testCase{name: fmt.Sprintf("length %d", n), lengths: []int{n}, state: 0.25})
	}
	equal := slices.Repeat([]int{32}, 65)
	return append(all,
		testCase{name: "three", lengths: []int{100, 7, 300}, state: 0.25},
		testCase{name: "three, long", lengths: []int{100, 700, 300}, state: 0.25},
		testCase{name: "eleven", lengths: []int{1, 31, 63, 93, 0, 123, 150, 200, 5, 9, 32}, state: 0.25},
		testCase{name: "65 equal", lengths: equal, state: 0.25},
		testCase{name: "large values", lengths: []int{70}, state: 0.25, v: 1000},
		testCase{name: "few tokens, one empty", lengths: []int{9, 0}, state: 0.25, scale: half, b: []float64{20, -20}},
		testCase{name: "one key, beta 1", lengths: []int{100}, state: 0.25, a: []float64{-12}, b: []float64{20},
			keys: "same", part: 0.25},
		testCase{name: "correlated keys", lengths: []int{200}, state: 0.25, a: []float64{-12}, keys: "correlated",
			part: 0.25},
		testCase{name: "correlated keys, beta 1", lengths: []int{200}, state: 0.25, a: []float64{-12}, b: []float64{20},
			keys: "correlated", part: 0.25},
		testCase{name: "hard keys", lengths: []int{700}, state: 0.3, a: []float64{-5, -6, -7}, v: 2, spread: 0.7,
			keys: "correlated", common: 0.6, part: 0.25},
		testCase{name: "hard keys, closer", lengths: []int{500, 300, 200}, state: 0.3, a: []float64{-12}, b: []float64{20, -20, 2},
			v: 2, spread: 0.7, keys: "correlated", part: 0.25},
		testCase{name: "long keys", lengths: []int{9, 3}, state: 0.01, keys: "long"})
}

func conform(t *testing.T, d device.Device, dir string, all []testCase) {
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	def := definition(t)
	kernel := build(t, d, def, dir)
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) { c.conform(t, d, def, kernel, uint64(i)) })
	}
}

func definition(t *testing.T) *trace.Definition {
	t.Helper()
	text, err := definitions.FS.ReadFile("gdn/gdn_prefill_qk4_v8_d128_k_last.json")
	if err != nil {
		t.Fatal(err)
	}
	def, _, err := trace.DecodeDefinition(text)
	if err != nil {
		t.Fatal(err)
	}
	return def
}

func build(t *testing.T, d device.Device, def *trace.Definition, dir string) device.Kernel {
	t.Helper()
	entries, err := pack.Sources(dir)
	if err != nil {
		t.Fatal(err)
	}
	spec := trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::kernel", DestinationPassingStyle: true}
	sol := &trace.Solution{Name: "prefill", Spec: spec}
	for _, e := range entries {
		sol.Sources = append(sol.Sources, trace.SourceFile{Path: e.Path, Content: e.Content})
	}
	k, err := d.Build(t.Context(), def, sol)
	var be *device.BuildError
	var missing *nvcc.MissingError
	switch {
	case errors.As(err, &be):
		t.Fatalf("%v\n%s", err, be.Log)
	case errors.As(err, &missing):
		longtest.Missing(t, "toolchain", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

// inputs are the arguments of c, in the order of the definition.
func (c testCase) inputs(seed uint64) []workloads.Input {
	rng := rand.New(rand.NewPCG(seed, 1)) // a test that fails does so again
	var all []workloads.Input
	add := func(name string, d tensor.DType, deviation float64, shape ...int) []float64 {
		x := tensor.New(d, shape...)
		values := make([]float64, x.Len())
		for i := range values {
			values[i] = deviation * rng.NormFloat64()
		}
		x.WriteFloat64s(values, 0)
		all = append(all, workloads.Input{Name: name, Tensor: x})
		return values
	}
	replace := func(values []float64) { all[len(all)-1].Tensor.WriteFloat64s(values, 0) }
	cu := []float64{0}
	for _, n := range c.lengths {
		cu = append(cu, cu[len(cu)-1]+float64(n))
	}
	tokens := int(cu[len(cu)-1])
	add("q", tensor.BFloat16, 1, tokens, headsQK, dim)
	common := cmp.Or(c.common, 0.9)
	k := add("k", tensor.BFloat16, 1, tokens, headsQK, dim)
	for i := range len(k) / dim {
		key := k[i*dim:][:dim]
		switch first := k[i%headsQK*dim:][:dim]; {
		case c.keys == "same":
			copy(key, first)
		case c.keys == "correlated" && i >= headsQK:
			for j := range key { // first has a length of 1 already
				key[j] = math.Sqrt(1-common)*key[j] + math.Sqrt(common*dim)*first[j]
			}
		}
		var sum float64
		for _, x := range key {
			sum += x * x
		}
		for j := range key {
			if c.keys != "long" && sum > 0 {
				key[j] /= math.Sqrt(sum)
			}
		}
	}
	replace(k)
	v := add("v", tensor.BFloat16, max(c.v, 1), tokens, headsV, dim)
	if c.spread > 0 {
		channels := make([]float64, headsV*dim)
		for i := range channels {
			channels[i] = math.Exp(c.spread * rng.NormFloat64())
		}
		for i := range v {
			v[i] *= channels[i%len(channels)]
		}
		replace(v)
	}
	if c.state < 0 {
		all = append(all, workloads.Input{Name: "state"})
	} else {
		add("state", tensor.Float32, c.state, len(c.lengths), headsV, dim, dim)
	}
	add("A_log", tensor.Float32, 1, headsV)
	a := add("a", tensor.BFloat16, 1, tokens, headsV)
	for i := range a {
		if len(c.a) > 0 {
			a[i] = c.a[i%len(c.a)]
		}
	}
	replace(a)
	add("dt_bias", tensor.Float32, 1, headsV)
	b := add("b", tensor.BFloat16, 1, tokens, headsV)
	for i := range b {
		if len(c.b) > 0 {
			b[i] = c.b[i%len(c.b)]
		}
	}
	replace(b)
	add("cu_seqlens", tensor.Int64, 0, len(cu))
	replace(cu)
	return append(all, workloads.Input{Name: "scale", Scalar: c.scale})
}

func (c testCase) conform(t *testing.T, d device.Device, def *trace.Definition, k device.Kernel, seed uint64) {
	inputs := c.inputs(seed)
	var args []device.Arg
	var buffers []device.Buffer
	place := func(x *tensor.Tensor) {
		buffer, err := d.Alloc(max(len(x.Data), 16))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := buffer.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := buffer.Write(x.Data); err != nil {
			t.Fatal(err)
		}
		buffers = append(buffers, buffer)
		arg := &device.TensorArg{Buffer: buffer.Slice(0, len(x.Data)), DType: x.DType, Shape: x.Shape}
		args = append(args, device.Arg{Tensor: arg})
	}
	for _, in := range inputs {
		if in.Tensor == nil {
			args = append(args, device.Arg{Scalar: in.Scalar})
			continue
		}
		place(in.Tensor)
	}
	tokens := inputs[0].Tensor.Shape[0]
	outputs := []*tensor.Tensor{
		tensor.New(tensor.BFloat16, tokens, headsV, dim),
		tensor.New(tensor.Float32, len(c.lengths), headsV, dim, dim),
	}
	for _, x := range outputs {
		place(x)
	}
	run := func() (got [2][]byte) {
		for i, buffer := range buffers[len(buffers)-2:] {
			if err := buffer.Fill(0xff); err != nil { // NaN
				t.Fatal(err)
			}
			got[i] = make([]byte, len(outputs[i].Data))
		}
		if err := errors.Join(k.Call(t.Context(), args), k.Sync(t.Context())); err != nil {
			t.Fatal(err)
		}
		for i, buffer := range buffers[len(buffers)-2:] {
			if err := buffer.Read(got[i]); err != nil {
				t.Fatal(err)
			}
		}
		return got
	}
	first, second := run(), run()
	for i, name := range []string{"output", "new_state"} {
		if !bytes.Equal(first[i], second[i]) {
			t.Errorf("%s: a second call gives other bits", name)
		}
		outputs[i].Data = first[i]
	}
	at := 0
	for _, in := range inputs {
		if in.Tensor == nil {
			continue
		}
		after := make([]byte, len(in.Tensor.Data))
		if err := buffers[at].Read(after); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(after, in.Tensor.Data) {
			t.Errorf("%s: was written to", in.Name)
		}
		at++
	}
	if len(c.lengths) == 0 {
		return
	}
	want, err := reference.Run(t.Context(), def, inputs)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"output", "new_state"} {
		got, ref := make([]float64, want[i].Len()), make([]float64, want[i].Len())
		outputs[i].ReadFloat64s(got, 0)
		want[i].ReadFloat64s(ref, 0)
		largest, part := 1.0, 0.0
		for _, x := range ref {
			largest = max(largest, math.Abs(x))
		}
		worst, where := 0.0, 0
		for j := range ref {
			e := math.Abs(got[j] - ref[j])
			beyond := e
			if i == 0 { // both are rounded to bfloat16
				e -= math.Abs(ref[j]) / 64
				beyond -= math.Abs(ref[j]) / 128
			}
			if math.IsNaN(e) {
				e = math.Inf(1)
			}
			if e > worst {
				worst, where = e, j
			}
			part = max(part, beyond/tolerance/max(1, math.Abs(ref[j])))
		}
		if worst > gate*largest {
			t.Errorf("%s, element %d: got %v, want %v; the largest is %v", name, where, got[where], ref[where], largest)
		}
		if c.part > 0 && part > c.part {
			t.Errorf("%s: an error is %.3f of the contest's tolerance, want at most %v", name, part, c.part)
		}
		t.Logf("%s: largest error %.2g of %.3g, %.3f of the contest's tolerance", name, worst, largest, part)
	}
}
