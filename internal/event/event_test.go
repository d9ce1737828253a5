package event

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"fisub/internal/trace"
)

func TestStreamNumbersAndDropsFailingSink(t *testing.T) {
	var got []int64
	calls := 0
	broken := errors.New("disk full")
	s := NewStream(
		func(Event) error { calls++; return broken },
		func(e Event) error { got = append(got, e.Seq); return nil },
	)
	for range 3 {
		s.Emit(Event{Type: TypeBuilding})
	}
	if want := []int64{1, 2, 3}; len(got) != 3 || got[0] != want[0] || got[2] != want[2] {
		t.Errorf("sequence: got %v, want %v", got, want)
	}
	if calls != 1 {
		t.Errorf("calls of the failing sink: got %d, want 1", calls)
	}
	if !errors.Is(s.Err(), broken) {
		t.Errorf("Err: got %v, want %v", s.Err(), broken)
	}
}

// Without a map nothing is remembered, and nothing fails.
func TestShownNil(t *testing.T) {
	f := &Finding{Check: "race", Text: "it races"}
	for range 2 {
		if got := Shown(nil).Text(f, "w"); got != "it races" {
			t.Errorf("got %q", got)
		}
	}
}

// Each field of an Event that is a pointer is a payload.
func TestPayloads(t *testing.T) {
	var e Event
	at, v := 0, reflect.ValueOf(&e).Elem()
	for i, payloads := 0, e.Payloads(); i < v.NumField(); i++ {
		f := v.Type().Field(i)
		if f.Type.Kind() != reflect.Pointer {
			continue
		}
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if at == len(payloads) || payloads[at].Key != key || payloads[at].Types == nil || payloads[at].Set {
			t.Fatalf("payload %d: got %+v, want %s, not set", at, payloads, key)
		}
		v.Field(i).Set(reflect.New(f.Type.Elem()))
		if !e.Payloads()[at].Set {
			t.Errorf("%s: not set", key)
		}
		at++
	}
	if n := len(e.Payloads()); n != at {
		t.Errorf("got %d payloads, want %d", n, at)
	}
}

func TestEventRoundTrip(t *testing.T) {
	for _, v := range []float64{0, 1.5e-7, math.NaN(), math.Inf(1)} {
		solution := "s"
		is := &trace.Trace{Definition: "d", Solution: &solution, Workload: trace.Workload{UUID: "u"},
			Evaluation: &trace.Evaluation{Status: trace.IncorrectNumerical, Timestamp: "t", Log: "<b>",
				Environment: trace.Environment{Hardware: "h"}, Correctness: &trace.Correctness{MaxAbsoluteError: v}}}
		line, err := Marshal(Event{Type: TypeEvaluated, Evaluated: &Evaluated{Trace: is}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(line), "}\n") || strings.Count(string(line), "\n") != 1 {
			t.Errorf("line: got %q, want one line", line)
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		got, _ := e.Evaluated.Errors()
		if got == nil || *got != v && !(math.IsNaN(*got) && math.IsNaN(v)) || e.Evaluated.Log() != "<b>" {
			t.Errorf("got %v, want %v", got, v)
		}
	}
	for _, line := range []string{`{}`, `{"trace":null}`,
		`{"trace":{"definition":"d","workload":{"axes":{},"inputs":{},"uuid":"u"},"solution":"s","evaluation":null}}`} {
		if err := json.Unmarshal([]byte(line), new(Evaluated)); err == nil {
			t.Errorf("%s: got no error", line)
		}
	}
}
