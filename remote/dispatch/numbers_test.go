package dispatch

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"testing"

	"fisub/internal/event"
	"fisub/internal/trace"
)

// unjudged lists what a host may say about a workload unchecked, with the reason. A number may be as large as it likes,
// but not negative; a map may have any content.
var unjudged = map[string]string{
	"Evaluated.Trace.Evaluation.Correctness.MaxRelativeError": "an output may be wrong by any amount",
	"Evaluated.Trace.Evaluation.Correctness.MaxAbsoluteError": "an output may be wrong by any amount",
	"Evaluated.Trace.Evaluation.Correctness.Extra":            "shown as text",
	"Evaluated.Trace.Evaluation.Environment.Libs":             "texts",
	"Evaluated.Trace.Workload.Axes":                           "compared with the run's, in otherTrace",
	"Evaluated.Trace.Workload.Inputs":                         "describes the workload, is no result",
	"Evaluated.Trace.Workload.Arguments":                      "describes the workload, is no result",
}

// numbers calls f with each number in v. Missing structs and empty lists get one element first, and zeros become 1.
// It calls f with a zero Value for a map, whose content it does not visit.
func numbers(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Bool, reflect.String:
	case reflect.Pointer:
		if of := v.Type().Elem(); v.IsNil() && of.Kind() == reflect.Struct && !of.Field(0).IsExported() {
			f(path, reflect.Value{})
			return
		}
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		numbers(v.Elem(), path, f)
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() && !field.Anonymous {
				f(path, reflect.Value{})
				return
			}
			name := path + "." + field.Name
			if field.Anonymous {
				name = path
			}
			numbers(v.Field(i), name, f)
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			numbers(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
	case reflect.Int, reflect.Int64:
		if v.Int() == 0 {
			v.SetInt(1)
		}
		f(path, v)
	case reflect.Float64:
		if v.Float() == 0 {
			v.SetFloat(1)
		}
		f(path, v)
	default:
		panic(path + ": numbers of this kind are not visited: " + v.Kind().String())
	}
}

// fullEvents returns an event of each type with figures about a workload, with all fields set.
func fullEvents(t *testing.T) []event.Event {
	t.Helper()
	var is trace.Trace
	if err := json.Unmarshal(fmt.Appendf(nil, passedTrace, "w0"), &is); err != nil {
		t.Fatal(err)
	}
	return []event.Event{
		{Seq: 2, Type: event.TypeSamples, Workload: "w0", Samples: &event.Samples{}},
		{Seq: 2, Type: event.TypeEvaluated, Workload: "w0", Evaluated: &event.Evaluated{Trace: &is}},
		{Seq: 2, Type: event.TypeFloor, Floor: &event.Floor{}},
	}
}

// figures returns the struct with the numbers of e, and its name.
func figures(e *event.Event) (reflect.Value, string) {
	switch {
	case e.Samples != nil:
		return reflect.ValueOf(e.Samples), "Samples"
	case e.Floor != nil:
		return reflect.ValueOf(e.Floor), "Floor"
	}
	return reflect.ValueOf(e.Evaluated), "Evaluated"
}

// merged returns the event that a run gets from a host's event e, or nil.
func merged(t *testing.T, e event.Event) *event.Event {
	t.Helper()
	line, err := event.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	g := newMerging("w0")
	r := newReader(had(1, "a", "w0"), 0)
	g.read(&r, append([]byte(`{"seq":1,`+hostRun("w0")+"}\n"), line...))
	for i := range g.events {
		if g.events[i].Type == e.Type {
			return &g.events[i]
		}
	}
	return nil
}

// No number about a workload is believed only because a host sent it: an impossible one is corrected, or its event is
// dropped. A new field needs a clause in possible or measurable.
func TestNumbersAreJudged(t *testing.T) {
	seen := map[string]bool{}
	for n, e := range fullEvents(t) {
		root, name := figures(&e)
		var paths []string
		numbers(root, name, func(path string, v reflect.Value) {
			seen[path] = true
			if v.IsValid() {
				paths = append(paths, path)
			} else if unjudged[path] == "" {
				t.Errorf("%s has content that this test does not visit: name it in unjudged with a reason", path)
			}
		})
		if merged(t, e) == nil {
			t.Errorf("%s: an event with possible numbers was dropped", name)
			continue
		}
		for _, path := range paths {
			for _, bad := range []float64{-2, math.MaxFloat64} {
				if bad > 0 && unjudged[path] != "" {
					continue
				}
				e := fullEvents(t)[n]
				root, _ := figures(&e)
				numbers(root, name, func(at string, v reflect.Value) {
					switch {
					case at != path || !v.IsValid():
					case v.CanFloat():
						v.SetFloat(bad)
					case bad < 0:
						v.SetInt(int64(bad))
					default:
						v.SetInt(math.MaxInt64)
					}
				})
				got := merged(t, e)
				if got == nil {
					continue
				}
				root, _ = figures(got)
				numbers(root, name, func(at string, v reflect.Value) {
					if at == path && (v.CanFloat() && v.Float() == bad ||
						v.CanInt() && (v.Int() == int64(bad) || bad > 0 && v.Int() == math.MaxInt64)) {
						t.Errorf("%s: merge.go believes a host that says %v", path, v)
					}
				})
			}
		}
	}
	for path := range unjudged {
		if !seen[path] {
			t.Errorf("unjudged names %s, which no event has", path)
		}
	}
	if len(seen) < 60 {
		t.Errorf("got %d numbers, want those of all nested structs", len(seen))
	}
}
