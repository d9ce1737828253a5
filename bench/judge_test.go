package bench

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"fisub/device"
	"fisub/internal/tensor"
	"fisub/internal/trace"
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
		{"one wrong", floats(1, 3), floats(1, 2), tol, trace.IncorrectNumerical, 1, 0.5, "y[1] is 3, expected 2; 1 of 2 elements are wrong"},
		{"half may fail", floats(1, 3), floats(1, 2), half, trace.Passed, 1, 0.5, ""},
		{"inf", floats(inf, 2), floats(inf, 2), half, trace.IncorrectNumerical, math.Inf(1), math.Inf(1), "y[0] is +Inf"},
		{"nan", floats(1, nan), floats(1, 2), half, trace.IncorrectNumerical, math.NaN(), math.NaN(), "y[1] is NaN"},
		{"shape", floats(1), floats(1, 2), tol, trace.IncorrectShape, 0, 0, "y: shape [1], expected [2]"},
		{"dtype", tensor.New(tensor.BFloat16, 2), floats(1, 2), tol, trace.IncorrectDType, 0, 0, "y: dtype bfloat16, expected float32"},
		{"empty", floats(), floats(), tol, trace.Passed, 0, 0, ""},
	} {
		v := newVerdict()
		v.judge([]string{"y"}, outputs(tc.got), []*tensor.Tensor{tc.want}, tc.tol)
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

// A trial that mismatches does not end the evaluation, so the errors are the largest of all trials; a later trial that
// passes does not mend the verdict.
func TestJudgeOverTrials(t *testing.T) {
	tol := tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1}
	want := []*tensor.Tensor{floats(1)}
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

func TestLatency(t *testing.T) {
	ns := func(values ...int) (d []time.Duration) {
		for _, v := range values {
			d = append(d, time.Duration(v))
		}
		return d
	}
	for _, tc := range []struct {
		name   string
		trials [][]time.Duration
		want   float64
	}{
		{"none", nil, 0},
		{"odd", [][]time.Duration{ns(30, 10, 20)}, 20},
		{"even", [][]time.Duration{ns(40, 10, 21, 30)}, 25.5},
		{"mean of medians", [][]time.Duration{ns(1, 2, 300), ns(5), ns(9, 9)}, 16.0 / 3},
		{"an empty trial does not count", [][]time.Duration{nil, ns(7)}, 7},
	} {
		if got := Latency(&device.Samples{Trials: tc.trials}); got != tc.want {
			t.Errorf("%s: got %v ns, want %v ns", tc.name, got, tc.want)
		}
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
