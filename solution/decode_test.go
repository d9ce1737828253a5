// Package solution holds the repository's own kernels. Its tests call the GDN decode kernel as the contest does, on the
// emulator and, built with the tag cuda, on a GPU, and hold its results against bench/reference.
package solution

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// Extents of the definition.
const (
	headsQK, headsV, dim = 4, 8, 128
	stateBytes           = headsV * dim * dim * 4 // of one row of the batch
)

// Rows of the batch in which inputs differ, on a GPU and on the emulator: larger batches repeat them, which bounds the
// time that the reference takes. Primes, so that an offset that wraps at a power of two finds another row.
const period, periodEmulated = 17, 3

// Places of the arguments.
const (
	argQ = iota
	argK
	argV
	argState
	argALog
	argA
	argDTBias
	argB
	argScale
	argOutput
	argNewState
	numArgs
)

// rounding is the allowed relative error of a chain of a few float32 operations: 4 units of 2^-24. exponent is the
// relative error that the kernel promises for the exponent of its gates.
const rounding, exponent = 4.0 / (1 << 24), 1e-6

// poison is what outputs hold before a call: NaN in bfloat16 and float32. The bytes around tensors are guard.
const poison, guard = 0xff, 0xa5

func TestEmulated(t *testing.T) {
	longtest.Skip(t, "runs each shape of the table on the emulator")
	d := solutiontest.Emulated(t, device.Sanitizers...)
	conform(t, d, []int{1, 2, 4, 8}, []int{3, 5, 7}, []int{31, 32, 48, 64, 128}) // each shape of table.cuh
}

func TestGPU(t *testing.T) {
	d := solutiontest.GPU(t)
	once := []int{16384}
	if memory := d.Info().MemoryBytes; memory < 24<<30 {
		t.Logf("left out: batch 16384, whose states take 17 GB of the GPU's %d bytes", memory)
		once = nil
	}
	conform(t, d, []int{1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 48, 64, 127, 128, 512}, nil, once)
}

// conform runs all tests on d and closes it: every case with the batch sizes in full, each state and each scale with the
// batch sizes in some, and one case with the batch sizes in once.
func conform(t *testing.T, d device.Device, full, some, once []int) {
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	kernel, altered := build(t, d, "kernel"), build(t, d, "altered")
	for i, c := range cases() {
		batches := full
		state, scale := i/4, i%4
		for _, batch := range some {
			if scale == (state+batch)%4 {
				batches = append(batches[:len(batches):len(batches)], batch)
			}
		}
		if i == len(cases())-1 {
			batches = slices.Concat(batches, once)
		}
		for _, batch := range batches {
			t.Run(fmt.Sprintf("%s,batch=%d", c.name, batch),
				func(t *testing.T) { newCall(t, d, batch, c, uint64(i)).conform(kernel) })
		}
	}
	t.Run("refusals", func(t *testing.T) { refusals(t, d, kernel, altered) })
	t.Run("another stream", func(t *testing.T) {
		for _, batch := range []int{1, 64, 128} {
			anotherStream(newCall(t, d, batch, cases()[len(cases())-1], 1), kernel, altered) // with a state, which altered needs
		}
	})
}

// build builds solution/cuda with testdata/altered.cu behind kernel.cu, for one of its entry points.
func build(t *testing.T, d device.Device, entry string) device.Kernel {
	t.Helper()
	entries, err := pack.Sources("cuda")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "altered.cu"))
	if err != nil {
		t.Fatal(err)
	}
	sol := &trace.Solution{Name: "decode", Spec: trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::" + entry,
		DestinationPassingStyle: true}}
	for _, e := range entries {
		if e.Path == "kernel.cu" {
			e.Content = "#include <functional>\n" + e.Content + string(text)
		}
		sol.Sources = append(sol.Sources, trace.SourceFile{Path: e.Path, Content: e.Content})
	}
	k, err := d.Build(t.Context(), definition(t), sol)
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

var definition = func() func(*testing.T) *trace.Definition {
	read := sync.OnceValues(func() (*trace.Definition, error) {
		text, err := definitions.FS.ReadFile("gdn/gdn_decode_qk4_v8_d128_k_last.json")
		if err != nil {
			return nil, err
		}
		def, _, err := trace.DecodeDefinition(text)
		return def, err
	})
	return func(t *testing.T) *trace.Definition {
		t.Helper()
		def, err := read()
		if err != nil {
			t.Fatal(err)
		}
		return def
	}
}()

// A testCase sets the state and the scale. Every case has all kinds of gates.
type testCase struct {
	name  string
	state float64 // standard deviation; negative: None
	scale *trace.Scalar
}

// cases are all combinations of four states and four scales; the last one has a normal state and a scale.
func cases() []testCase {
	float := func(x float64) *trace.Scalar { return &trace.Scalar{Kind: trace.FloatScalar, Float: x} }
	var all []testCase
	for _, state := range []testCase{{name: "state=None", state: -1}, {name: "state=zeros"},
		{name: "state=normal*0.01", state: 0.01}, {name: "state=normal", state: 1}} {
		for _, scale := range []testCase{{name: "scale=None"}, {name: "scale=0", scale: float(0)},
			{name: "scale=1", scale: float(1)},
			{name: "scale=128^-0.5", scale: float(1 / math.Sqrt(dim))}} {
			all = append(all, testCase{state.name + "," + scale.name, state.state, scale.scale})
		}
	}
	return all
}

// The gates' inputs. With dt_bias 0 the first are on both sides of softplus' threshold, those about -0.69 of the place
// where the kernel changes from a polynomial to a logarithm; exp(A_log) is up to 148, and 403 once, so that an error of
// softplus shows.
var (
	gateA      = []float64{30, -30, 100, -100, 19.875, 20, 20.125, -0.6875, -0.6953125, -2.75, -5, -8, -10, 0}
	gateB      = []float64{20, -20}
	gateALog   = []float64{5, -5, 6, 5, -5, 0, 1, -1}
	gateDTBias = []float64{0, 0, 0, 0.5, -0.5, 0, 1, -1}
)

// random holds what all calls share: q, v and the state are standard normal, k has unit length, as in the contest.
var random = sync.OnceValue(func() (r struct{ q, k, v, state []float64 }) {
	rng := rand.New(rand.NewPCG(4, 128))
	normal := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return x
	}
	r.q, r.k, r.v, r.state = normal(period*headsQK*dim), normal(period*headsQK*dim), normal(period*headsV*dim),
		normal(period*stateBytes/4)
	for k := range slices.Chunk(r.k, dim) {
		var sum float64
		for _, x := range k {
			sum += x * x
		}
		for i := range k {
			k[i] /= math.Sqrt(sum)
		}
	}
	return r
})

// A call is the arguments of one call on a device, and their rows on the host.
type call struct {
	t      *testing.T
	device device.Device
	batch  int
	rows   int // that differ, the first of the batch
	inputs []workloads.Input
	args   []device.Arg
	placed [numArgs]*placed // nil for scalars and None
}

// newCall makes the inputs of c, with gates by seed, and places them in device memory.
func newCall(t *testing.T, d device.Device, batch int, c testCase, seed uint64) *call {
	t.Helper()
	x := &call{t: t, device: d, batch: batch, rows: min(batch, period)}
	if d.Info().Emulated {
		x.rows = min(batch, periodEmulated)
	}
	rng := rand.New(rand.NewPCG(uint64(batch), seed)) // a test that fails does so again
	// Half of the gates are extreme values, cycled through from a position that depends on the seed.
	mixed := func(n int, extreme []float64, mean float64) []float64 {
		values, next := make([]float64, n), rng.IntN(len(extreme))
		for i := range values {
			values[i] = mean + rng.NormFloat64()
			if rng.IntN(2) == 0 {
				values[i] = extreme[next%len(extreme)]
				next++
			}
		}
		return values
	}
	first := rng.IntN(headsV)
	turned := func(values []float64) []float64 { return slices.Concat(values[first:], values[:first]) }
	r := random()
	x.add("q", tensor.BFloat16, r.q, headsQK, dim)
	x.add("k", tensor.BFloat16, r.k, headsQK, dim)
	x.add("v", tensor.BFloat16, r.v, headsV, dim)
	if c.state < 0 {
		x.inputs = append(x.inputs, workloads.Input{Name: "state"})
	} else {
		state := make([]float64, x.rows*stateBytes/4)
		for i := range state {
			state[i] = c.state * r.state[i]
		}
		x.add("state", tensor.Float32, state, headsV, dim, dim)
	}
	x.add("A_log", tensor.Float32, turned(gateALog))
	x.add("a", tensor.BFloat16, mixed(x.rows*headsV, gateA, -2), headsV)
	x.add("dt_bias", tensor.Float32, turned(gateDTBias))
	x.add("b", tensor.BFloat16, mixed(x.rows*headsV, gateB, 0), headsV)
	x.inputs = append(x.inputs, workloads.Input{Name: "scale", Scalar: c.scale})

	for i, in := range x.inputs {
		if in.Tensor == nil {
			x.args = append(x.args, device.Arg{Scalar: in.Scalar})
			continue
		}
		shape := in.Tensor.Shape
		if len(shape) > 1 {
			shape = append([]int{batch}, shape[1:]...)
		}
		x.place(i, in.Tensor.DType, shape, in.Tensor.Data)
	}
	x.place(argOutput, tensor.BFloat16, []int{batch, 1, headsV, dim}, nil)
	x.place(argNewState, tensor.Float32, []int{batch, headsV, dim, dim}, nil)
	return x
}

// add appends an input: of shape (rows, inner...), with an axis of one token except for the state, or of all heads.
func (x *call) add(name string, d tensor.DType, values []float64, inner ...int) {
	shape := []int{headsV}
	switch {
	case name == "state":
		shape = append([]int{x.rows}, inner...)
	case len(inner) > 0:
		shape = append([]int{x.rows, 1}, inner...)
	}
	v := tensor.New(d, shape...)
	v.WriteFloat64s(values[:v.Len()], 0)
	x.inputs = append(x.inputs, workloads.Input{Name: name, Tensor: v})
}

// A placed tensor is a part of a buffer that holds guard elsewhere.
type placed struct {
	whole, data device.Buffer
	rows        []byte // repeated content; nil for an output
}

const guardBytes = 4096

func (x *call) place(i int, d tensor.DType, shape []int, rows []byte) {
	x.t.Helper()
	n, _ := tensor.Elements(shape)
	n, _ = d.Bytes(n)
	if rows != nil && len(rows)%256 != 0 { // the gates: a row does not end at a valid offset of a slice
		rows = bytes.Repeat(rows, n/len(rows)+1)[:n]
	}
	whole, err := x.device.Alloc(n + 2*guardBytes)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		if err := whole.Close(); err != nil {
			x.t.Error(err)
		}
	})
	p := &placed{whole: whole, data: whole.Slice(guardBytes, n), rows: rows}
	if err := whole.Fill(guard); err != nil {
		x.t.Fatal(err)
	}
	if rows != nil {
		x.chunks(p, len(rows), func(b device.Buffer, n int) error { return b.Write(rows[:n]) })
	}
	x.placed[i] = p
	x.args = append(x.args, device.Arg{Tensor: &device.TensorArg{Buffer: p.data, DType: d, Shape: shape}})
}

// chunks calls f on each n bytes of p, and on the rest.
func (x *call) chunks(p *placed, n int, f func(b device.Buffer, n int) error) {
	x.t.Helper()
	for at := 0; at < p.data.Len(); at += n {
		size := min(n, p.data.Len()-at)
		if err := f(p.data.Slice(at, size), size); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *call) poison() {
	x.t.Helper()
	for _, i := range []int{argOutput, argNewState} {
		if err := x.placed[i].data.Fill(poison); err != nil {
			x.t.Fatal(err)
		}
	}
}

// results returns the distinct rows of the outputs. Each later row of a batch has the inputs of one of these, so it must
// be bitwise equal to it. The inputs, and the memory around inputs and outputs, must be unchanged.
func (x *call) results() (output, newState []byte) {
	x.t.Helper()
	for i, p := range x.placed {
		if p == nil {
			continue
		}
		name := names[i]
		want := p.rows
		if want == nil {
			want = make([]byte, p.data.Len()/x.batch*x.rows)
			if err := p.data.Read(want); err != nil {
				x.t.Fatal(err)
			}
		}
		got, at := make([]byte, len(want)), 0
		x.chunks(p, len(want), func(b device.Buffer, n int) error {
			err := b.Read(got[:n])
			if err == nil && !bytes.Equal(got[:n], want[:n]) {
				x.t.Errorf("%s: bytes from %d on: got others than in the same rows before, or than were given", name, at)
			}
			at += n
			return err
		})
		for side, at := range map[string]int{"before": 0, "behind": guardBytes + p.data.Len() - p.data.Len()%256} {
			around := make([]byte, guardBytes)
			if err := p.whole.Slice(at, min(guardBytes, p.whole.Len()-at)).Read(around); err != nil {
				x.t.Fatal(err)
			}
			if side == "behind" {
				around = around[p.data.Len()%256:]
			}
			if i := slices.IndexFunc(around, func(b byte) bool { return b != guard }); i >= 0 {
				x.t.Errorf("%s: the bytes %s it were written to, number %d first", name, side, i)
			}
		}
		switch i {
		case argOutput:
			output = want
		case argNewState:
			newState = want
		}
	}
	return output, newState
}

var names = []string{"q", "k", "v", "state", "A_log", "a", "dt_bias", "b", "scale", "output", "new_state"}

// run poisons the outputs, calls k and returns the results.
func (x *call) run(k device.Kernel, before ...device.Arg) (output, newState []byte) {
	x.t.Helper()
	x.poison()
	if err := errors.Join(k.Call(x.t.Context(), append(before, x.args...)), k.Sync(x.t.Context())); err != nil {
		x.t.Fatal(err)
	}
	return x.results()
}

func (x *call) conform(k device.Kernel) {
	output, newState := x.run(k)
	x.compare(output, newState)

	// Again, the same to the bit: with the stream busy before the call and its outputs taken in the stream's order, so
	// that nothing happens on another one. That takes the outputs' size on the host.
	if x.batch > 1000 {
		output2, newState2 := x.run(k)
		x.same(output, newState, output2, newState2)
		return
	}
	into := [][]byte{make([]byte, x.placed[argOutput].data.Len()), make([]byte, x.placed[argNewState].data.Len())}
	if err := k.Probe(x.t.Context(), x.args, poison, into); err != nil {
		x.t.Fatal(err)
	}
	x.same(output, newState, into[0][:len(output)], into[1][:len(newState)])
	output2, newState2 := x.results()
	x.same(output, newState, output2, newState2)
}

func (x *call) same(output, newState, output2, newState2 []byte) {
	x.t.Helper()
	if !bytes.Equal(output, output2) || !bytes.Equal(newState, newState2) {
		x.t.Errorf("a second call: outputs equal %v, states equal %v; want both equal to the bit",
			bytes.Equal(output, output2), bytes.Equal(newState, newState2))
	}
}

// compare holds the results against the reference, which computes in float64 and rounds at the end.
//
// The new state is g*S + delta*k. Its error may be 1e-5 of |g*S| + |delta*k|, not of their sum, which may cancel to less
// than the rounding of either. In float32, two parts are less exact than that, however well they are computed. First,
// delta is beta*(v - g*S k), where v and the 128 terms of S k may cancel: their rounding errors are proportional to their
// magnitudes, not to delta. Second, g is exp(-t), which multiplies a relative error of t by t: at the smallest g that
// matters next to the smallest beta, t is about 20.
//
// An output must be the reference's bfloat16 or one of its two neighbours: if the float64 value is close to the middle of
// two bfloat16, float32 may round to the other one. But scale * S' q is also a sum and may cancel to a value whose
// neighbours are closer than the allowed error of S'. So an output may also be off by the error that the bound of S'
// allows.
//
//go:norace
func (x *call) compare(output, newState []byte) {
	x.t.Helper()
	def := definition(x.t)
	want, err := reference.Run(x.t.Context(), def, x.inputs)
	if err != nil {
		x.t.Fatal(err)
	}
	scale := 1 / math.Sqrt(dim)
	if s := x.inputs[argScale].Scalar; s != nil && s.Float != 0 {
		scale = s.Float
	}
	in := func(arg int) []float64 {
		v := make([]float64, x.inputs[arg].Tensor.Len())
		x.inputs[arg].Tensor.ReadFloat64s(v, 0)
		return v
	}
	q, k, v, aLog, a, dtBias, b := in(argQ), in(argK), in(argV), in(argALog), in(argA), in(argDTBias), in(argB)
	state := make([]float64, x.rows*stateBytes/4)
	if x.inputs[argState].Tensor != nil {
		state = in(argState)
	}
	gotState := &tensor.Tensor{DType: tensor.Float32, Shape: want[1].Shape, Data: newState}
	got, ref := make([]float64, dim), make([]float64, dim)
	faults, worst, worstFloor := 0, 0.0, 0.0
	fault := func(format string, args ...any) {
		if faults++; faults <= 5 {
			x.t.Errorf(format, args...)
		}
	}
	for head := range x.rows * headsV {
		hv := head % headsV
		t := math.Exp(aLog[hv]) * math.Log1p(math.Exp(a[head]+dtBias[hv]))
		g := math.Exp(-t)
		beta := 1 / (1 + math.Exp(-b[head]))
		q, k := q[head/2*dim:][:dim], k[head/2*dim:][:dim]
		for i := range dim {
			row := head*dim + i
			s := state[row*dim:][:dim]
			var sk, terms float64
			for j := range dim {
				sk += g * s[j] * k[j]
				terms += math.Abs(g * s[j] * k[j])
			}
			delta := beta * (v[row] - sk)
			gotState.ReadFloat64s(got, row*dim)
			want[1].ReadFloat64s(ref, row*dim)
			var floor float64
			for j := range dim {
				bound := 1e-5*(math.Abs(g*s[j])+math.Abs(delta*k[j])) + exponent*t*math.Abs(g*s[j]) +
					rounding*beta*(math.Abs(v[row])+terms)*math.Abs(k[j])
				floor += scale * bound * math.Abs(q[j])
				e := math.Abs(got[j] - ref[j])
				if !(e <= bound) {
					fault("new_state[%d %d %d %d]: got %v, want %v within %.3g (t %.3g, beta %.3g, a %v)", head/headsV, hv, i, j,
						got[j], ref[j], bound, t, beta, a[head])
				}
				if e > 0 {
					worst = max(worst, e/bound)
				}
			}
			ours, theirs := binary.LittleEndian.Uint16(output[2*row:]), binary.LittleEndian.Uint16(want[0].Data[2*row:])
			if step := order(ours) - order(theirs); step < -1 || step > 1 {
				g, w := float64(tensor.Float32FromBFloat16(ours)), float64(tensor.Float32FromBFloat16(theirs))
				if !(math.Abs(g-w) <= floor) {
					fault("output[%d 0 %d %d]: got %v, want %v, which is %d bfloat16 away, or within %.3g", head/headsV, hv, i, g, w,
						step, floor)
				} else {
					worstFloor = max(worstFloor, math.Abs(g-w)/floor)
				}
			}
		}
	}
	if faults > 5 {
		x.t.Errorf("and %d more", faults-5)
	}
	x.t.Logf("largest error of the state: %.2g of what is allowed; of outputs that are no neighbours: %.2g", worst,
		worstFloor)
}

// order numbers the bfloat16 by value; both zeros are 0. A NaN is far from every number.
func order(h uint16) int {
	if h&0x8000 != 0 {
		return -int(h & 0x7fff)
	}
	return int(h)
}

// refusals calls the kernel with invalid arguments: its error must name the argument and the reason, and it must write
// nothing.
func refusals(t *testing.T, d device.Device, kernel, altered device.Kernel) {
	x := newCall(t, d, 2, cases()[len(cases())-1], 1)
	x.poison()
	integer := func(n int) device.Arg {
		return device.Arg{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: int64(n)}}
	}
	which := 0
	for i := range x.args {
		was := x.args[i]
		if was.Tensor == nil {
			continue
		}
		other := func(d tensor.DType, shape ...int) device.Arg {
			return device.Arg{Tensor: &device.TensorArg{Buffer: was.Tensor.Buffer, DType: d, Shape: shape}}
		}
		dtype, shape := was.Tensor.DType, was.Tensor.Shape
		narrow := slices.Clone(shape)
		narrow[len(narrow)-1] /= 2
		wrong := tensor.Float16
		if dtype == tensor.Float32 {
			wrong = tensor.Int32
		}
		type refusal struct {
			name       string
			kernel     device.Kernel
			before     []device.Arg
			arg        device.Arg
			kind, want string
		}
		rs := []refusal{
			{"dtype", kernel, nil, other(wrong, shape...), "TypeError", names[i] + ": dtype code"},
			{"rank", kernel, nil, other(dtype, append([]int{1}, shape...)...), "ValueError",
				fmt.Sprintf("%s: %d dimensions; expected %d", names[i], len(shape)+1, len(shape))},
			{"extent", kernel, nil, other(dtype, narrow...), "ValueError",
				fmt.Sprintf("%s: extent %d in dimension %d; expected %d", names[i], narrow[len(narrow)-1], len(narrow)-1,
					2*narrow[len(narrow)-1])},
			{"offset", altered, []device.Arg{integer(0), integer(which)}, was, "ValueError",
				names[i] + ": data is not aligned to 16 bytes"},
			{"pointer", altered, []device.Arg{integer(1), integer(which)}, was, "ValueError",
				names[i] + ": data is not aligned to 16 bytes"},
			{"strides", altered, []device.Arg{integer(2), integer(which)}, was, "ValueError", names[i] + ": not contiguous"},
		}
		if len(shape) > 1 && i != argQ { // q is what states the batch
			one := append([]int{1}, shape[1:]...)
			rs = append(rs, refusal{"batch", kernel, nil, other(dtype, one...), "ValueError",
				names[i] + ": extent 1 in dimension 0; expected 2"})
		}
		if i != argState {
			rs = append(rs, refusal{"None", kernel, nil, device.Arg{}, "TypeError", "None"})
		}
		for _, r := range rs {
			t.Run(names[i]+" "+r.name, func(t *testing.T) {
				x.args[i] = r.arg
				defer func() { x.args[i] = was }()
				err := errors.Join(r.kernel.Call(t.Context(), append(r.before, x.args...)), r.kernel.Sync(t.Context()))
				var ce *device.CallError
				if !errors.As(err, &ce) || ce.Kind != r.kind || !strings.Contains(ce.Text, r.want) {
					t.Errorf("got %v, want %s: %s", err, r.kind, r.want)
				}
			})
		}
		which++
	}
	output, newState := x.results()
	if i := slices.IndexFunc(slices.Concat(output, newState), func(b byte) bool { return b != poison }); i >= 0 {
		t.Errorf("a refused call wrote to its outputs, at byte %d first", i)
	}
	// The altered entry point itself is sound: it finds nothing wrong with strides that are right.
	if output, newState = x.run(altered, integer(3), integer(0)); !t.Failed() {
		x.compare(output, newState)
	}
}

// anotherStream makes a new stream the current one. The call must put exactly its kernel into that stream, and give the
// same results.
func anotherStream(x *call, kernel, altered device.Kernel) {
	zero := device.Arg{Scalar: &trace.Scalar{Kind: trace.IntScalar}}
	three := device.Arg{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: 3}}
	output, newState := x.run(kernel)
	output2, newState2 := x.run(altered, three, zero)
	x.same(output, newState, output2, newState2)
}
