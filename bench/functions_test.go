package bench

import (
	"math"
	"testing"
	"time"

	"fisub/bench/worker"
)

// A board stops at a standard error of 0.1 % of the mean, but not before the third call.
func TestBoardOf(t *testing.T) {
	for _, tc := range []struct {
		times     []time.Duration
		runs      int
		mean, err float64
	}{
		{[]time.Duration{100, 100, 100, 900}, 3, 100, 0},
		{[]time.Duration{100, 100}, 2, 100, 0},
		{[]time.Duration{100}, 1, 100, 0},
		{[]time.Duration{90, 110, 90, 110}, 4, 100, math.Sqrt(400./3) / 2},
	} {
		b := boardOf(tc.times)
		if b.Runs != tc.runs || b.Mean != tc.mean || math.Abs(b.Err-tc.err) > 1e-9 || b.Best > b.Mean || b.Worst < b.Mean {
			t.Errorf("%v: got %+v, want %d calls, %g and %g", tc.times, b, tc.runs, tc.mean, tc.err)
		}
	}
}

// An input that a call returns may be changed from then on, and is restored before each call.
func TestLearn(t *testing.T) {
	at := func(i int) *int { return &i }
	value := worker.Value{Tensor: &worker.FileTensor{Bytes: 8}}
	in := &inputs{made: &made{}, bytes: 16,
		load: &worker.Tensors{Inputs: []worker.Value{value, value}, Outputs: []worker.Value{value}}}
	written := []worker.FileTensor{{Bytes: 10}, {Bytes: 8, Offset: 256, Bound: at(1)}, {Bytes: 40, Offset: 512},
		{Bytes: 4, Offset: 768, Bound: at(7)}}
	if !in.learn(written) || len(in.load.Outputs) != 2 || *in.load.Outputs[1].InPlace != 1 || in.size != 772 {
		t.Errorf("got %+v, size %d; want input 1 as an output", in.load.Outputs, in.size)
	}
	if in.learn(written) || len(in.load.Outputs) != 2 {
		t.Errorf("got %+v, want nothing new", in.load.Outputs)
	}
	if read, written := in.moved(); read != 16 || written != 44 {
		t.Errorf("got %d bytes read and %d written", read, written)
	}
}
