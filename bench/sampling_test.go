package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

func TestMask(t *testing.T) {
	x := []float64{0.1, 0.4, 0, 0.3, 0.1, 0.1}
	for _, tc := range []struct {
		k    int
		p    float64
		want string // a 1 for each marked token
	}{
		{0, 1, "110111"},
		{1, 1, "010000"},
		{2, 1, "010100"},
		{3, 1, "110111"}, // the third is as likely as the fourth and fifth
		{99, 1, "110111"},
		{0, 0.4, "010000"},
		{0, 0.41, "010100"},
		{0, 0, "010000"},
		{1, 0.7, "010000"},
		{0, 1.05, "110111"},
	} {
		got := ""
		for _, m := range mask(x, tc.k, tc.p) {
			got += map[bool]string{true: "1", false: "0"}[m]
		}
		if got != tc.want {
			t.Errorf("k %d, p %v: got %s, want %s", tc.k, tc.p, got, tc.want)
		}
	}
}

// samplingInputs are two rows over four tokens; top_k leaves the first two tokens of row 0, top_p two of row 1.
func samplingInputs() []workloads.Input {
	probs, topP := tensor.New(tensor.Float32, 2, 4), tensor.New(tensor.Float32, 2)
	topK := tensor.New(tensor.Int32, 2)
	probs.WriteFloat32s([]float32{0.5, 0.25, 0.15, 0.1, 0.4, 0.3, 0.2, 0.1}, 0)
	topK.WriteFloat32s([]float32{2, 0}, 0)
	topP.WriteFloat32s([]float32{1, 0.68}, 0)
	return []workloads.Input{{Name: "probs", Tensor: probs}, {Name: "top_k", Tensor: topK}, {Name: "top_p", Tensor: topP}}
}

func TestSampler(t *testing.T) {
	want := tensor.New(tensor.Int64, 2)
	draw := func(s *sampler, tokens ...float64) *verdict {
		got := tensor.New(tensor.Int64, len(tokens)/2, 2)
		got.WriteFloat64s(tokens, 0)
		return s.count("samples", outputs(got), len(tokens)/2, want)
	}
	for _, tc := range []struct {
		tokens []float64
		detail string // "" where they are allowed
	}{
		{[]float64{0, 0, 1, 2, 0, 1}, ""},
		{[]float64{0, 0, 2, 0}, "samples: token 2 of row 0 is not among those that top-k and top-p leave"},
		// The slack of 0.05 on top_p 0.68 leaves token 2 too, whose own share lies beyond 0.7, and not token 3, beyond 0.9.
		{[]float64{0, 3}, "samples: token 3 of row 1 is not among those that top-k and top-p leave"},
		{[]float64{4, 0}, "samples: token 4 of row 0 is not among the 4 of the vocabulary"},
		{[]float64{0, -1}, "samples: token -1 of row 1 is not among the 4 of the vocabulary"},
	} {
		s, err := newSampler(samplingInputs())
		if err != nil {
			t.Fatal(err)
		}
		v := draw(s, tc.tokens...)
		if (v == nil) != (tc.detail == "") || v != nil && (v.detail != tc.detail || v.status != trace.IncorrectNumerical) {
			t.Errorf("%v: got %+v, want %q", tc.tokens, v, tc.detail)
		}
	}
	s, err := newSampler(samplingInputs())
	if err != nil {
		t.Fatal(err)
	}
	if v := s.count("samples", outputs(tensor.New(tensor.Int64, 5, 1)), 5, want); v == nil || v.status != trace.IncorrectShape {
		t.Errorf("shape: got %+v", v)
	}
	if v := s.count("samples", outputs(tensor.New(tensor.Int32, 5, 2)), 5, want); v == nil || v.status != trace.IncorrectDType {
		t.Errorf("dtype: got %+v", v)
	}

	// Row 0 is two thirds and one third; row 1 is 4/7 and 3/7. Seven draws hit row 1 and miss row 0 by 1/3.
	draw(s, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1)
	v := newVerdict()
	s.judge(&v)
	tvd, _ := v.correctness.Extra.Get("tvd")
	rows, _ := v.correctness.Extra.Get("tvds_per_batch")
	if v.status != trace.IncorrectNumerical || !strings.HasPrefix(v.detail, "the tokens of row 0 have a total variation distance of 0.333") ||
		math.Abs(tvd.(float64)-1./3) > 1e-6 || len(rows.([]any)) != 2 || rows.([]any)[1].(float64) > 1e-6 {
		t.Errorf("got %s %q, tvd %v of %v; want a third, in row 0", v.status, v.detail, tvd, rows)
	}
	s.reset()
	draw(s, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1)
	v = newVerdict()
	if s.judge(&v); v.status != trace.Passed || v.detail != "" {
		t.Errorf("got %s %q, want %s", v.status, v.detail, trace.Passed)
	}
	// What the trace's encoder must be able to write.
	c := trace.Trace{Definition: "d", Workload: trace.Workload{UUID: "u"}, Evaluation: &trace.Evaluation{Status: trace.Passed, Timestamp: "t",
		Environment: trace.Environment{Hardware: "h"}, Correctness: v.correctness, Performance: &trace.Performance{}}}
	if text := string(c.JSON(trace.Compact)); !strings.Contains(text, `"extra":{"tvd":`) || !strings.Contains(text, `"tvds_per_batch":[`) {
		t.Errorf("got %s", text)
	}
	for _, bad := range [][]workloads.Input{nil, {{Name: "probs", Tensor: want}}, slices.Concat(samplingInputs()[:1], []workloads.Input{{Name: "top_k", Tensor: tensor.New(tensor.Int32, 3)}})} {
		if _, err := newSampler(bad); err == nil {
			t.Errorf("%v: got no error", bad)
		}
	}
}

const samplingDefinition = `{"name":"top_p_sampling_from_probs_small","op_type":"sampling","axes":{"n":{"type":"var"},"vocab":{"type":"const","value":50}},
"inputs":{"probs":{"shape":["n","vocab"],"dtype":"float32"}},"outputs":{"samples":{"shape":["n"],"dtype":"int64"}},
"reference":"import torch\ndef run(probs):\n    return torch.multinomial(probs, 1).squeeze(1)\n"}`

func TestPythonSampling(t *testing.T) {
	needPython(t)
	for _, passing := range []bool{true, false} {
		source := "import torch\ncalls = 0\ndef run(probs%s):\n    global calls\n    calls += 1\n    s = torch.multinomial(probs, 1).squeeze(1)\n" +
			"    if probs.shape[0] == 2 and calls %% 70 == 0: s[1] = 50\n    %s\n"
		if passing {
			source = fmt.Sprintf(source, ", samples", "samples.copy_(s)")
		} else {
			source = fmt.Sprintf(source, "", "return s")
		}
		got, failed, _, err := runPython(t, samplingDefinition, source, passing, []map[string]int{{"n": 3}, {"n": 2}}, nil)
		if err != nil || len(got) != 2 {
			t.Errorf("%v, failed %q", err, failed)
			continue
		}
		if got[0].Status != trace.Passed {
			t.Errorf("got %s, log %s; want %s", got[0].Status, got[0].Log, trace.Passed)
		}
		if got[1].Status != trace.IncorrectNumerical || !strings.Contains(got[1].Log, "token 50 of row 1 is not among the 50 of the vocabulary") {
			t.Errorf("got %s, log %s; want %s", got[1].Status, got[1].Log, trace.IncorrectNumerical)
		}
	}
}
