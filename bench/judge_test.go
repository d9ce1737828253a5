package bench

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"fisub/device"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

func floats(values ...float32) *tensor.Tensor {
	t := tensor.New(tensor.Float32, len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(v))
	}
	return t
}

func outputs(ts ...*tensor.Tensor) (outs []output) {
	for _, t := range ts {
		outs = append(outs, output{t.DType.String(), t.Shape, t})
	}
	return outs
}

// Rows that are wrong in more than half of their elements are noticed within a matched ratio below 1.
func TestWrongRows(t *testing.T) {
	const width = 8
	for _, tc := range []struct {
		name  string
		wrong []int // elements
		shape []int
		ratio float64
		want  string
	}{
		{"right", nil, []int{2, 10, width}, 0.9, ""},
		{"scattered", []int{0, 9, 18, 27, 36, 45, 54, 63, 65, 66, 67}, []int{2, 10, width}, 0.9, ""},
		{"half a row", []int{8, 9, 10, 11}, []int{2, 10, width}, 0.9, ""},
		{"most of a row", []int{8, 9, 10, 12, 15}, []int{2, 10, width}, 0.9,
			"y: most elements are wrong in 1 of 20 rows, first in row [0 1]; the contest requires only 90 % of all elements"},
		{"two rows", []int{80, 81, 82, 83, 84, 96, 97, 98, 99, 100, 101}, []int{2, 10, width}, 0.9,
			"y: most elements are wrong in 2 of 20 rows, first in row [1 0];"},
		{"elements without a row", []int{3}, []int{20}, 0.9, ""},
		{"single elements", []int{3}, []int{20, 1}, 0.9, ""},
		{"too many", []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{2, width}, 0.9, ""},
	} {
		want, got := tensor.New(tensor.Float32, tc.shape...), tensor.New(tensor.Float32, tc.shape...)
		for _, i := range tc.wrong {
			got.WriteFloat32s([]float32{1}, i)
		}
		tol := tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: tc.ratio}
		v := newVerdict()
		v.judge([]string{"y"}, outputs(got), []expected{{Tensor: want}}, tol)
		if !strings.HasPrefix(v.rows, tc.want) || (v.rows == "") != (tc.want == "") {
			t.Errorf("%s: got %q, want %q", tc.name, v.rows, tc.want)
		}
		if c := compareAll([]string{"y"}, []*tensor.Tensor{got}, []expected{{Tensor: want}}, tol); c.rows != v.rows {
			t.Errorf("%s: a later call: got %q, want %q", tc.name, c.rows, v.rows)
		}
	}
}

func TestJudge(t *testing.T) {
	tol := tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1}
	half := tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 0.5}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, tc := range []struct {
		name      string
		got, want *tensor.Tensor
		tol       tensor.Tolerance
		status    trace.Status
		abs, rel  float64
		detail    string
	}{
		{"equal", floats(1, 2), floats(1, 2), tol, trace.Passed, 0, 0, ""},
		{"within atol", floats(0.005), floats(0.001), tol, trace.Passed, 0.004, 4, ""},
		{"within rtol", floats(100.5), floats(100), tol, trace.Passed, 0.5, 0.005, ""},
		{"one wrong", floats(1, 3), floats(1, 2), tol, trace.IncorrectNumerical, 1, 0.5,
			"y[1] is 3, expected 2; 1 of 2 elements are wrong"},
		{"half may fail", floats(1, 3), floats(1, 2), half, trace.Passed, 1, 0.5, ""},
		{"inf", floats(inf, 2), floats(inf, 2), half, trace.IncorrectNumerical, math.Inf(1), math.Inf(1), "y[0] is +Inf"},
		{"nan", floats(1, nan), floats(1, 2), half, trace.IncorrectNumerical, math.NaN(), math.NaN(), "y[1] is NaN"},
		{"shape", floats(1), floats(1, 2), tol, trace.IncorrectShape, 0, 0, "y: shape [1], expected [2]"},
		{"dtype", tensor.New(tensor.BFloat16, 2), floats(1, 2), tol, trace.IncorrectDType, 0, 0,
			"y: dtype bfloat16, expected float32"},
		{"empty", floats(), floats(), tol, trace.Passed, 0, 0, ""},
	} {
		v := newVerdict()
		v.judge([]string{"y"}, outputs(tc.got), []expected{{Tensor: tc.want}}, tc.tol)
		if v.status != tc.status {
			t.Errorf("%s: got %s, want %s", tc.name, v.status, tc.status)
		}
		if !strings.HasPrefix(v.detail, tc.detail) || (tc.detail == "") != (v.detail == "") {
			t.Errorf("%s: got detail %q, want %q", tc.name, v.detail, tc.detail)
		}
		if tc.status == trace.IncorrectShape || tc.status == trace.IncorrectDType {
			if v.correctness != nil {
				t.Errorf("%s: got correctness %v, want none", tc.name, v.correctness)
			}
			continue
		}
		if got := v.correctness.MaxAbsoluteError; !close32(got, tc.abs) {
			t.Errorf("%s: max abs: got %v, want %v", tc.name, got, tc.abs)
		}
		if got := v.correctness.MaxRelativeError; !close32(got, tc.rel) {
			t.Errorf("%s: max rel: got %v, want %v", tc.name, got, tc.rel)
		}
	}
}

func close32(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-4*math.Abs(b)
}

// A mismatch in one trial does not end the evaluation, so the errors are the maximum over all trials. A later trial
// that passes does not change the verdict back.
func TestJudgeOverTrials(t *testing.T) {
	tol := tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1}
	want := []expected{{Tensor: floats(1)}}
	v := newVerdict()
	for _, got := range []float32{2, 4, 1} {
		if !v.judge([]string{"y"}, outputs(floats(got)), want, tol) {
			t.Fatal("a mismatch ended the evaluation")
		}
	}
	if v.status != trace.IncorrectNumerical || v.correctness.MaxAbsoluteError != 3 {
		t.Errorf("got %s with error %v, want INCORRECT_NUMERICAL with 3", v.status, v.correctness.MaxAbsoluteError)
	}
	if !strings.HasPrefix(v.detail, "y[0] is 2") {
		t.Errorf("detail: got %q, want the first failure", v.detail)
	}
}

func TestProfiles(t *testing.T) {
	for _, tc := range []struct {
		profile, def               string
		warmup, iterations, trials int
		atol                       float64
	}{
		{"official", "gdn_decode_qk4_v8_d128_k_last", 10, 50, 3, 0.01},
		{"official", "gdn_prefill_qk4_v8_d128_k_last", 1, 5, 3, 0.01},
		{"official", "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048", 10, 50, 3, 1},
		{"quick", "gdn_decode_qk4_v8_d128_k_last", 3, 20, 1, 0.01},
	} {
		p, err := NewProfile(tc.profile, &trace.Definition{Name: tc.def})
		if err != nil {
			t.Fatal(err)
		}
		if p.Warmup != tc.warmup || p.Iterations != tc.iterations || p.Trials != tc.trials || p.Tolerance.Atol != tc.atol {
			t.Errorf("%s for %s: got %+v", tc.profile, tc.def, p)
		}
	}
	if _, err := NewProfile("fast", &trace.Definition{}); err == nil {
		t.Error("profile fast: got no error")
	}
}

func TestEvaluatorOf(t *testing.T) {
	for _, tc := range []struct {
		name, op string
		want     evaluator
	}{
		{"gdn_decode_qk4_v8_d128_k_last", "gdn", standard},
		{"moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048", "moe", lowBit},
		{"dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps1", "dsa_paged", sparseAttention},
		{"dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64", "dsa_paged", sparseAttention},
		{"dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps32", "dsa_paged", standard},
		{"dsa_topk_indexer_fp8_h64_d128_topk2048_ps64", "dsa_paged", topK},
	} {
		got, err := evaluatorOf(&trace.Definition{Name: tc.name, OpType: tc.op})
		if got != tc.want || err != nil {
			t.Errorf("%s: got %d, %v; want %d", tc.name, got, err, tc.want)
		}
	}
	_, err := evaluatorOf(&trace.Definition{Name: "top_k_sampling_from_probs_v128256", OpType: "sampling"})
	want := "definition top_k_sampling_from_probs_v128256: op type \"sampling\": fisub cannot judge random outputs"
	if err == nil || err.Error() != want {
		t.Errorf("sampling: got %v, want %s", err, want)
	}
}

// topKInputs returns two sequences over a cache of four pages of two tokens of dimension 4. Token i's key is (i+1, 0,
// 0, 0) times its scale, and the query's two heads are (1, 0, 0, 0) and (-1, 0, 0, 0) with weights 2 and 100. The
// second head's product is negative, so token i scores 2*(i+1). Sequence 0 has pages 3 and 0 and three tokens: 6, 7
// and 0. Sequence 1 has page 1 twice and three tokens, but only 2 and 3, at the page's first position, count.
func topKInputs() []workloads.Input {
	q := tensor.New(tensor.Float8E4M3FN, 2, 2, 4)
	weights := tensor.New(tensor.Float32, 2, 2)
	for b := range 2 {
		q.WriteFloat32s([]float32{1, 0, 0, 0, -1}, b*8)
		weights.WriteFloat32s([]float32{2, 100}, b*2)
	}
	cache := tensor.New(tensor.Int8, 4, 2, 1, 8)
	for i := range 8 {
		page := cache.Data[i/2*16:]
		page[i%2*4] = tensor.Float8E4M3FNFromFloat32(1)
		binary.LittleEndian.PutUint32(page[8+i%2*4:], math.Float32bits(float32(i+1)))
	}
	lengths, table := tensor.New(tensor.Int32, 2), tensor.New(tensor.Int32, 2, 2)
	lengths.WriteFloat32s([]float32{3, 3}, 0)
	table.WriteFloat32s([]float32{3, 0, 1, 1}, 0)
	return []workloads.Input{{Name: "q_index_fp8", Tensor: q}, {Name: "k_index_cache_fp8", Tensor: cache},
		{Name: "weights", Tensor: weights},
		{Name: "seq_lens", Tensor: lengths}, {Name: "block_table", Tensor: table}}
}

func int32s(values ...float32) *tensor.Tensor {
	t := tensor.New(tensor.Int32, 2, len(values)/2)
	t.WriteFloat32s(values, 0)
	return t
}

func TestJudgeTopK(t *testing.T) {
	tol := tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1}
	inf := math.Inf(1)
	want := int32s(7, 6, -1, 3, 2, -1)
	for _, tc := range []struct {
		name     string
		got      *tensor.Tensor
		tol      tensor.Tolerance
		status   trace.Status
		abs, rel float64
		detail   string
	}{
		{"same", int32s(7, 6, -1, 3, 2, -1), tol, trace.Passed, 0, 0, ""},
		{"another order", int32s(-1, 6, 7, 2, -1, 3), tol, trace.Passed, 0, 0, ""},
		{"a worse token", int32s(7, 0, -1, 3, 2, -1), tol, trace.IncorrectNumerical, 12, 12. / 14,
			"i: score 1 of batch 0 is 2, expected 14"},
		{"a worse token within the ratio", int32s(7, 0, -1, 3, 2, -1),
			tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 0.8}, trace.Passed, 12, 12. / 14, ""},
		{"one too few", int32s(7, -1, -1, 3, 2, -1), tol, trace.IncorrectNumerical, inf, inf,
			"i: score 1 of batch 0 is -Inf, expected 14"},
		{"one too many", int32s(7, 6, 0, 3, 2, -1), tol, trace.IncorrectNumerical, inf, inf,
			"i: score 2 of batch 0 is 2, expected -Inf"},
		{"a page of another sequence", int32s(7, 6, -1, 3, 4, -1), tol, trace.IncorrectNumerical, inf, inf,
			"out-of-range indices in batch [1]"},
		{"behind the sequence's end", int32s(7, 1, -1, 8, 2, -1), tol, trace.IncorrectNumerical, inf, inf,
			"out-of-range indices in batch [0, 1]"},
		{"twice", int32s(7, 7, -1, 3, 2, 2), tol, trace.IncorrectNumerical, inf, inf, "duplicate indices in batch [0, 1]"},
		{"shape", int32s(7, 6, 3, 2), tol, trace.IncorrectShape, 0, 0, "i: shape [2 2], expected [2 3]"},
		{"dtype", tensor.New(tensor.Int64, 2, 3), tol, trace.IncorrectDType, 0, 0, "i: dtype int64, expected int32"},
	} {
		v := newVerdict()
		v.evaluate(topK, []string{"i"}, outputs(tc.got), []expected{{Tensor: want}}, topKInputs(), tc.tol)
		if v.status != tc.status || v.detail != tc.detail {
			t.Errorf("%s: got %s %q, want %s %q", tc.name, v.status, v.detail, tc.status, tc.detail)
			continue
		}
		if c := v.correctness; c != nil && (!close32(c.MaxAbsoluteError, tc.abs) || !close32(c.MaxRelativeError, tc.rel)) {
			t.Errorf("%s: got errors %v and %v, want %v and %v", tc.name, c.MaxAbsoluteError, c.MaxRelativeError, tc.abs, tc.rel)
		}
	}
	v := newVerdict()
	if v.evaluate(topK, []string{"i"}, outputs(want), []expected{{Tensor: want}}, topKInputs()[1:],
		tol); v.status != trace.RuntimeError {
		t.Errorf("without an input: got %s", v.status)
	}
}

// NaN scores on both sides, caused by NaN keys, agree.
func TestJudgeTopKNaN(t *testing.T) {
	in := topKInputs()
	nan := float32(math.NaN())
	in[2].Tensor.WriteFloat32s([]float32{nan}, 0) // weights of sequence 0
	want := int32s(7, 6, -1, 3, 2, -1)
	v := newVerdict()
	v.evaluate(topK, []string{"i"}, outputs(want), []expected{{Tensor: want}}, in,
		tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1})
	if v.status != trace.Passed || v.correctness.MaxAbsoluteError != 0 {
		t.Errorf("got %s %q %+v, want PASSED without errors", v.status, v.detail, v.correctness)
	}
}

// The matched ratio is left out if a non-finite number ends the evaluation.
func TestJudgeLowBitNotFinite(t *testing.T) {
	v := newVerdict()
	if v.evaluate(lowBit, []string{"y"}, outputs(floats(1, float32(math.NaN()))), []expected{{Tensor: floats(1, 2)}}, nil,
		tensor.Tolerance{Atol: 1, Rtol: 1, MatchedRatio: 0.9}) {
		t.Error("the evaluation goes on")
	}
	if v.status != trace.IncorrectNumerical || v.correctness.Extra != nil {
		t.Errorf("got %s, extra %v; want INCORRECT_NUMERICAL without extra", v.status, v.correctness.Extra)
	}
}

// The number of outputs is unverified: the solution shares the process that reports it.
func TestJudgeNumberOfOutputs(t *testing.T) {
	tol := tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1}
	for _, e := range []evaluator{standard, lowBit, topK} {
		for _, got := range [][]output{{}, outputs(floats(1), floats(2))} {
			v := newVerdict()
			if v.evaluate(e, []string{"y"}, got, []expected{{Tensor: floats(1)}}, topKInputs(), tol) ||
				v.status != trace.RuntimeError {
				t.Errorf("evaluator %d, %d outputs of 1: got %s, want RUNTIME_ERROR", e, len(got), v.status)
			}
		}
	}
}

func TestScoresOrder(t *testing.T) {
	in := topKInputs()
	nan := float32(math.NaN())
	in[2].Tensor.WriteFloat32s([]float32{nan}, 0) // of sequence 0
	ix, err := newIndexer(in, int32s(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got := ix.scores(1, []int{2, -1, 3}, map[int]float32{}); got[0] != 8 || got[1] != 6 ||
		!math.IsInf(float64(got[2]), -1) {
		t.Errorf("got %v, want 8 6 -Inf", got)
	}
	if got := ix.scores(0, []int{-1, 7}, map[int]float32{}); got[0] == got[0] || !math.IsInf(float64(got[1]), -1) {
		t.Errorf("got %v, want NaN -Inf", got)
	}
}

// TestCheckedShort: the terminal's line names the limits of the check for races, what is not looked for, and fits.
func TestCheckedShort(t *testing.T) {
	for _, test := range []struct {
		p    process
		want string
	}{
		{process{kind: "emu", opts: device.Options{}},
			"checked: invalid accesses, races (first instructions), 14 more; not: host synchronisation; -v: all"},
		{process{kind: "emu", python: true, opts: device.Options{}},
			"checked: invalid accesses, unwritten local memory, 10 more; not: races in Triton, 4 more; -v: all"},
		{process{kind: "emu", opts: device.Options{Sanitize: "memcheck,racecheck,initcheck,synccheck"}},
			"checked: invalid accesses, races, 14 more; not: host synchronisation; -v: all"},
		{process{kind: "cuda", opts: device.Options{}},
			"checked: dependence on earlier calls, 3 more; not: other invalid accesses, 2 more; -v: all"},
	} {
		test.p.info.Emulated = test.p.kind == "emu"
		if got := checked(&test.p).Short(); got != test.want || len(got) > 100 {
			t.Errorf("got %d columns %q, want %q", len(got), got, test.want)
		}
	}
}
