// Package family holds the kernels of the decode family. Its tests call them with every option, on the virtual GPU and on a
// GPU, and hold the results against a float64 recurrence.
package family

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fisub/definitions"
	"fisub/device"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/solution/solutiontest"
)

const dim = 128

func TestEmulated(t *testing.T) {
	longtest.CI(t, "runs the family on the virtual GPU")
	d := solutiontest.Emulated(t, device.Sanitizers...)
	conform(t, d, cases())
}

func TestGPU(t *testing.T) {
	d := solutiontest.GPU(t)
	all := cases()
	for _, bf16 := range []bool{false, true} {
		for _, heads := range [][2]int{{4, 8}, {8, 16}, {16, 32}} {
			for _, batch := range []int{1, 4, 16, 64, 127} {
				for tokens := 1; tokens <= 8; tokens++ {
					all = append(all, option{batch: batch, tokens: tokens, hq: heads[0], hv: heads[1], bf16: bf16, pool: true, l2norm: true,
						padded: true, each: tokens%2 == 0})
				}
			}
		}
	}
	conform(t, d, all)
}

// A submission is for the definition that its folder is named after, by an entry point that there is.
func TestConfigs(t *testing.T) {
	kernel, err := os.ReadFile(filepath.Join("solution", "cuda", "kernel.cu"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("gdn_*/config.toml")
	if err != nil || len(files) < 17 {
		t.Fatalf("got %v, %v", files, err)
	}
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		if _, err := definitions.FS.Open("gdn/" + name + ".json"); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, entry, _ := strings.Cut(string(text), `entry_point = "kernel.cu::`)
		entry, _, _ = strings.Cut(entry, `"`)
		if !strings.Contains(string(text), fmt.Sprintf("definition = %q\n", name)) ||
			!strings.Contains(string(kernel), "_FUNC("+entry+",") {
			t.Errorf("%s: names another definition, or entry point %q is missing", file, entry)
		}
	}
}

// An option describes a call: its shapes and its optional arguments.
type option struct {
	batch, tokens, hq, hv int
	bf16, vLast, l2norm   bool
	none                  bool // no state: zeros
	pool                  bool // indices into a pool three times as large; the last slot is used
	wide                  bool // int64 indices
	split                 bool // written to other slots than read
	padded                bool // every third row has slot -1
	each                  bool // the state after each token is stored by row
	scatter               bool // the state after each token is stored by slot
	keep                  bool // the state is not updated
	gap                   int  // elements between the slots of a pool
}

func (o option) name() string { return strings.ReplaceAll(fmt.Sprintf("%+v", o), " ", ",") }

func cases() []option {
	return []option{
		{batch: 1, tokens: 1, hq: 4, hv: 8},
		{batch: 2, tokens: 1, hq: 1, hv: 2, none: true},
		{batch: 2, tokens: 1, hq: 1, hv: 2, vLast: true, l2norm: true},
		{batch: 3, tokens: 1, hq: 1, hv: 1, pool: true, padded: true, l2norm: true},
		{batch: 2, tokens: 1, hq: 1, hv: 2, bf16: true, l2norm: true},
		{batch: 4, tokens: 1, hq: 1, hv: 2, bf16: true, pool: true, padded: true, split: true, wide: true},
		{batch: 2, tokens: 2, hq: 2, hv: 2, pool: true, l2norm: true, gap: 64},
		{batch: 2, tokens: 3, hq: 1, hv: 2, bf16: true, pool: true, wide: true, split: true, l2norm: true, gap: 8},
		{batch: 3, tokens: 4, hq: 1, hv: 1, pool: true, padded: true, each: true, keep: true, l2norm: true},
		{batch: 2, tokens: 4, hq: 1, hv: 2, l2norm: true},
		{batch: 2, tokens: 4, hq: 1, hv: 1, vLast: true},
		{batch: 3, tokens: 4, hq: 1, hv: 1, bf16: true, pool: true, scatter: true, padded: true, l2norm: true},
		{batch: 2, tokens: 5, hq: 1, hv: 1, pool: true, split: true, each: true},
		{batch: 2, tokens: 8, hq: 1, hv: 2, pool: true, l2norm: true, wide: true, padded: true},
		{batch: 2, tokens: 8, hq: 1, hv: 1, bf16: true, l2norm: true, each: true},
		{batch: 1, tokens: 8, hq: 1, hv: 1, bf16: true},
		{batch: 1, tokens: 7, hq: 1, hv: 1, vLast: true, each: true},
		{batch: 1, tokens: 2, hq: 1, hv: 1, bf16: true, pool: true, keep: true, l2norm: true},
	}
}

func conform(t *testing.T, d device.Device, options []option) {
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	entries, err := pack.Sources(filepath.Join("solution", "cuda"))
	if err != nil {
		t.Fatal(err)
	}
	every, err := os.ReadFile(filepath.Join("testdata", "family.cu"))
	if err != nil {
		t.Fatal(err)
	}
	sol := &trace.Solution{Name: "family", Spec: trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::family",
		DestinationPassingStyle: true}}
	for _, e := range entries {
		if e.Path == "kernel.cu" {
			e.Content += string(every)
		}
		sol.Sources = append(sol.Sources, trace.SourceFile{Path: e.Path, Content: e.Content})
	}
	k, err := d.Build(t.Context(), nil, sol)
	var be *device.BuildError
	if errors.As(err, &be) {
		t.Fatalf("%v\n%s", err, be.Log)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	for i, o := range options {
		t.Run(o.name(), func(t *testing.T) { run(t, d, k, o, uint64(i)) })
	}
}

// A value is a tensor on the device with its actual or expected content.
type value struct {
	buffer device.Buffer
	want   []float64
	given  []byte
	dtype  tensor.DType
	arg    device.Arg
}

// place allocates exactly the bytes of the tensor.
func place(t *testing.T, d device.Device, dtype tensor.DType, x []float64, shape ...int) *value {
	t.Helper()
	v := tensor.New(dtype, len(x))
	v.WriteFloat64s(x, 0)
	b, err := d.Alloc(len(v.Data))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.Write(v.Data); err != nil {
		t.Fatal(err)
	}
	have := make([]float64, len(x)) // rounded
	v.ReadFloat64s(have, 0)
	return &value{buffer: b, want: have, given: v.Data, dtype: dtype,
		arg: device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: dtype, Shape: shape}}}
}

func normal(rng *rand.Rand, n int, deviation float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = deviation * rng.NormFloat64()
	}
	return x
}

func number(x int) device.Arg {
	return device.Arg{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: int64(x)}}
}

func run(t *testing.T, d device.Device, kernel device.Kernel, o option, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 128))
	tokens, state := o.batch*o.tokens, o.hv*dim*dim
	q := place(t, d, tensor.BFloat16, normal(rng, tokens*o.hq*dim, 1), o.batch, o.tokens, o.hq, dim)
	keys := normal(rng, tokens*o.hq*dim, 1)
	if !o.l2norm {
		for i := range keys {
			keys[i] /= math.Sqrt(dim)
		}
	}
	k := place(t, d, tensor.BFloat16, keys, o.batch, o.tokens, o.hq, dim)
	v := place(t, d, tensor.BFloat16, normal(rng, tokens*o.hv*dim, 1), o.batch, o.tokens, o.hv, dim)
	a := place(t, d, tensor.BFloat16, normal(rng, tokens*o.hv, 2), o.batch, o.tokens, o.hv)
	b := place(t, d, tensor.BFloat16, normal(rng, tokens*o.hv, 2), o.batch, o.tokens, o.hv)
	aLog := place(t, d, tensor.Float32, normal(rng, o.hv, 1), o.hv)
	dtBias := place(t, d, tensor.Float32, normal(rng, o.hv, 1), o.hv)
	dtype := tensor.Float32
	if o.bf16 {
		dtype = tensor.BFloat16
	}

	slots, stride := o.batch, state+o.gap
	if o.pool {
		slots = 3 * o.batch
	}
	pool := place(t, d, dtype, normal(rng, slots*stride, 1), slots, o.hv, dim, dim)
	if o.gap > 0 {
		pool.arg.Tensor.Shape = []int{slots * stride}
	}
	none := func(n int) []int {
		s := make([]int, n)
		for i := range s {
			s[i] = -1
		}
		return s
	}
	reads, writes, scattered := none(o.batch), none(o.batch), none(tokens)
	order := rng.Perm(slots)
	next := func() int { s := order[0]; order = append(order[1:], s); return s }
	for i := range reads {
		reads[i] = i
		if o.pool {
			reads[i] = next()
		}
		if i == 0 && o.pool { // the last slot is one of them
			at := len(order) - 1
			for j, s := range order {
				if s == slots-1 {
					order[j], order[at] = order[at], order[j]
				}
			}
			reads[i] = slots - 1
		}
		if o.padded && i%3 == 1 {
			reads[i] = -1
		}
		writes[i] = reads[i]
	}
	indices := func(have bool, values []int, shape ...int) device.Arg {
		if !have {
			return device.Arg{}
		}
		x := make([]float64, len(values))
		for i, s := range values {
			x[i] = float64(s)
		}
		if o.wide {
			return place(t, d, tensor.Int64, x, shape...).arg
		}
		return place(t, d, tensor.Int32, x, shape...).arg
	}
	if o.split {
		for i := range writes {
			writes[i] = next()
		}
	}
	poison := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = -1e30
		}
		return x
	}
	output := place(t, d, tensor.BFloat16, poison(tokens*o.hv*dim), o.batch, o.tokens, o.hv, dim)
	newState, each := pool, &value{}
	if !o.pool {
		newState = place(t, d, dtype, poison(o.batch*state), o.batch, o.hv, dim, dim)
	}
	switch {
	case o.each:
		each = place(t, d, dtype, poison(tokens*state), o.batch, o.tokens, o.hv, dim, dim)
		for i := range scattered {
			scattered[i] = i
		}
	case o.scatter:
		each = place(t, d, dtype, poison(2*tokens*state), 2*tokens, o.hv, dim, dim)
		for i, s := range rng.Perm(2 * tokens)[:tokens] {
			scattered[i] = s
		}
		scattered[0] = -1
	}
	old := append([]float64(nil), pool.want...)
	for row := range o.batch {
		for hv := range o.hv {
			h := head{option: o, row: row, hv: hv, q: q.want, k: k.want, v: v.want}
			h.run(aLog.want[hv], dtBias.want[hv], a.want, b.want, old, newState.want, each.want, output.want, reads[row], writes[row],
				stride, scattered)
		}
	}

	stateArg, newStateArg := pool.arg, newState.arg
	if o.none {
		stateArg = device.Arg{}
	}
	if o.keep {
		newStateArg = device.Arg{}
	}
	vLast, l2norm := 0, 0
	if o.vLast {
		vLast = 1
	}
	if o.l2norm {
		l2norm = 1
	}
	args := []device.Arg{q.arg, k.arg, v.arg, stateArg, aLog.arg, a.arg, dtBias.arg, b.arg, {}, number(l2norm), number(vLast),
		indices(o.pool, reads, o.batch), indices(o.split, writes, o.batch), indices(o.scatter, scattered, o.batch, o.tokens),
		output.arg, newStateArg, each.arg, number(o.gap)}
	if err := errors.Join(kernel.Call(t.Context(), args), kernel.Sync(t.Context())); err != nil {
		t.Fatal(err)
	}
	bound := 2e-5 // of the state's terms, whose magnitude is about 1 here and below 20
	if o.bf16 {
		bound = 1.0 / 200
	}
	compare(t, "output", output, 1.0/200)
	compare(t, "state", newState, bound)
	if each.want != nil {
		compare(t, "states of tokens", each, bound)
	}
	for name, x := range map[string]*value{"q": q, "k": k, "v": v, "a": a, "b": b} {
		got := make([]byte, len(x.given))
		if err := x.buffer.Read(got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, x.given) {
			t.Errorf("%s was written to", name)
		}
	}
}

func compare(t *testing.T, name string, x *value, bound float64) {
	t.Helper()
	raw := &tensor.Tensor{DType: x.dtype, Shape: []int{len(x.want)}, Data: make([]byte, len(x.given))}
	if err := x.buffer.Read(raw.Data); err != nil {
		t.Fatal(err)
	}
	got := make([]float64, len(x.want))
	raw.ReadFloat64s(got, 0)
	was := make([]float64, len(x.want))
	(&tensor.Tensor{DType: x.dtype, Shape: raw.Shape, Data: x.given}).ReadFloat64s(was, 0)
	faults, worst := 0, 0.0
	for i, want := range x.want {
		if want == was[i] && got[i] == want { // untouched, or right
			continue
		}
		e := math.Abs(got[i]-want) / (1 + math.Abs(want))
		worst = max(worst, e)
		if want == was[i] || !(e <= bound) {
			if faults++; faults <= 5 {
				t.Errorf("%s[%d]: got %v, want %v within %.2g, before %v", name, i, got[i], want, bound*(1+math.Abs(want)), was[i])
			}
		}
	}
	if faults > 5 {
		t.Errorf("%s: and %d more of %d", name, faults-5, len(got))
	}
	t.Logf("%s: largest error %.2g of 1 + its size", name, worst)
}

// A head is one head of one row of the batch.
type head struct {
	option
	row, hv int
	q, k, v []float64
}

// run takes the tokens into the state as the definitions say, in float64.
func (h head) run(aLog, dtBias float64, a, b, old, newState, each, output []float64, read, write, stride int, slots []int) {
	out := func(t int) []float64 { return output[((h.row*h.tokens+t)*h.hv0()+h.hv)*dim:][:dim] }
	if read < 0 {
		for t := range h.tokens {
			clear(out(t))
		}
		return
	}
	at := func(i, j int) int { // value i, key j
		if h.vLast {
			i, j = j, i
		}
		return h.hv*dim*dim + i*dim + j
	}
	var s [dim][dim]float64
	for i := range dim {
		for j := range dim {
			if !h.none {
				s[i][j] = old[read*stride+at(i, j)]
			}
		}
	}
	store := func(to []float64) {
		for i := range dim {
			for j := range dim {
				to[at(i, j)] = s[i][j]
			}
		}
	}
	for t := range h.tokens {
		token := h.row*h.tokens + t
		hq := h.hv / (h.hv0() / h.hq)
		q, k := h.unit(h.q[(token*h.hq+hq)*dim:][:dim]), h.unit(h.k[(token*h.hq+hq)*dim:][:dim])
		g := math.Exp(-math.Exp(aLog) * math.Log1p(math.Exp(a[token*h.hv0()+h.hv]+dtBias)))
		beta := 1 / (1 + math.Exp(-b[token*h.hv0()+h.hv]))
		for i := range dim {
			var have, sum float64
			for j := range dim {
				s[i][j] *= g
				have += s[i][j] * k[j]
			}
			delta := beta * (h.v[(token*h.hv0()+h.hv)*dim+i] - have)
			for j := range dim {
				s[i][j] += delta * k[j]
				sum += s[i][j] * q[j]
			}
			out(t)[i] = sum / math.Sqrt(dim)
		}
		if slot := slots[token]; slot >= 0 {
			store(each[slot*h.hv0()*dim*dim:])
		}
	}
	if !h.keep && write >= 0 {
		store(newState[write*stride:])
	}
}

func (h head) hv0() int { return h.option.hv }

func (h head) unit(x []float64) []float64 {
	if !h.l2norm {
		return x
	}
	var sum float64
	for _, e := range x {
		sum += e * e
	}
	y := make([]float64, len(x))
	for i, e := range x {
		y[i] = e / math.Sqrt(sum+1e-6)
	}
	return y
}

// The Python module has FlashInfer's functions with the same argument order and defaults, and reports missing packages.
func TestModule(t *testing.T) {
	const script = `
import inspect, os, sys
sys.modules["tvm_ffi"] = None
import fisub_gdn
for name in fisub_gdn.__all__:
    print(name, inspect.signature(getattr(fisub_gdn, name)))
def tell(f):
    try:
        print("no error", f())
    except Exception as e:
        print(type(e).__name__, e)
tell(lambda: fisub_gdn.kernels(90))
os.environ.update(CUDA_HOME="/nowhere", CUDA_PATH="")
fisub_gdn.shutil.which = lambda program: None
tell(fisub_gdn.compiler)
tell(lambda: fisub_gdn.gated_delta_rule_mtp(*[None] * 9, cache_replayssm=True))
tell(lambda: fisub_gdn.gated_delta_rule_decode_pretranspose(*[None] * 8, initial_state=1))
tell(lambda: fisub_gdn.gated_delta_rule_decode_pretranspose(*[None] * 8, output_state_indices=1))
tell(lambda: fisub_gdn.gated_delta_rule_decode_pretranspose(*[None] * 8))
`
	cmd := exec.Command("python3", "-c", script)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+"python", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = `gated_delta_rule_decode (q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, backend='auto')
gated_delta_rule_decode_pretranspose (q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, ` +
		`initial_state=None, initial_state_indices=None, output_state_indices=None, intermediate_states_buffer=None, ` +
		`disable_state_update=False, backend='auto')
gated_delta_rule_mtp (q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None, ` +
		`intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None, use_qk_l2norm=True, ` +
		`output_state_indices=None, cache_replayssm=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None, ` +
		`replayssm_beta=None)
ImportError fisub_gdn: no package tvm_ffi, by which the kernels are called
hint: pip install apache-tvm-ffi
RuntimeError fisub_gdn: no nvcc in $CUDA_HOME/bin, on PATH or in /usr/local/cuda/bin
hint: set CUDA_HOME to a CUDA toolkit of 12.0 or later
ValueError cache_replayssm: these kernels keep no inputs to replay; pass intermediate_states_buffer or ssm_state_indices
ValueError initial_state_indices: None; a pool needs the slot of each row
ValueError initial_state_indices and output_state_indices: they name slots of initial_state, which is None
ValueError state: None, and initial_state too
`
	if string(out) != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// A submission is one folder, so these parts of the decode kernel are in the family and in the prefill kernel again.
func TestCopies(t *testing.T) {
	read := func(names ...string) string {
		t.Helper()
		text := ""
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			text += " " + strings.Join(strings.Fields(string(data)), " ")
		}
		return text
	}
	decode := read("../cuda/decode.cuh")
	copies := map[string]string{"family": read("solution/cuda/gdn.cuh"),
		"prefill": read("../../solution-prefill/solution/cuda/ptx.cuh", "../../solution-prefill/solution/cuda/fragments.cuh")}
	for _, ends := range [][2]string{
		{"float exp2_approx(float x) {", "}"},
		{"float log2_approx(float x) {", "}"},
		{"constexpr float kLog2OnePlus[] =", "fmaf(small, e, kLog2OnePlus[i]);"},
	} {
		part := func(text string) string {
			_, after, _ := strings.Cut(text, ends[0])
			inside, _, ok := strings.Cut(after, ends[1])
			if !ok {
				t.Errorf("no %s ... %s", ends[0], ends[1])
			}
			return inside
		}
		want := part(decode)
		for name, text := range copies {
			if got := part(text); got != want {
				t.Errorf("%s, %s: got %s, want %s, as in the decode kernel", name, ends[0], got, want)
			}
		}
	}
}
