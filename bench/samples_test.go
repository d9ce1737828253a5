package bench

import (
	"testing"
	"time"

	"fisub/device"
)

func TestEventSamples(t *testing.T) {
	s := &device.Samples{Timer: "cupti", ColdL2: true, Trials: [][]time.Duration{{2000, 3000, 4000}, {1000, 1000, 7000}}}
	e := eventSamples(s, 6000, 12e9)
	if e.Timer != "cupti" || !e.ColdL2 || e.N != 6 || len(e.TrialsNS) != 2 || e.TrialsNS[1][2] != 7000 {
		t.Errorf("got %+v, want 6 timings of cupti on a cold L2", e)
	}
	for _, f := range []struct {
		name      string
		got, want float64
	}{
		{"official", e.MedianNS, 2000}, {"min", float64(e.MinNS), 1000}, {"quartile 1", e.Q1NS, 1250},
		{"median", e.Q2NS, 2500},
		{"quartile 3", e.Q3NS, 3750}, {"mean", e.MeanNS, 3000}, {"low", e.Interval.LoNS, 1000},
		{"high", e.Interval.HiNS, 7000},
		{"width", e.Interval.Width, 2.4}, {"confidence", e.Interval.Confidence, 0.96875}, {"bandwidth", e.Bandwidth, 3},
		{"peak", e.PeakShare, 0.25},
	} {
		if d := f.got - f.want; d > 1e-9 || d < -1e-9 {
			t.Errorf("%s: got %v, want %v", f.name, f.got, f.want)
		}
	}
	if e = eventSamples(&device.Samples{Trials: [][]time.Duration{{5}}}, 10, 0); len(e.Warnings) != 1 || e.PeakShare != 0 ||
		e.Interval.Width != 0 || e.Bandwidth != 2 {
		t.Errorf("one timing: got %+v, want a warning", e)
	}
	if e = eventSamples(&device.Samples{}, 10, 1e9); len(e.Warnings) != 1 || e.Bandwidth != 0 {
		t.Errorf("no timings: got %+v, want a warning and no bandwidth", e)
	}
}
