package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A submission that knows the secret can keep its results under the one element that the checks change, and a few more
// that tell other inputs apart. With any other secret it is found.
func TestSecret(t *testing.T) {
	needPython(t)
	const n, known = 1 << 20, "the secret of an earlier run"
	changed := -1
	x := &tensor.Tensor{DType: tensor.Float32, Shape: []int{n}, Data: make([]byte, 4*n)}
	a := &attempt{runner: &runner{shared: &Shared{Secret: known}}, workload: &trace.Workload{UUID: "workload 0"}}
	flip(x, a.draw("with one element of x changed", "x"), 1)
	for i, v := range x.Data {
		if v != 0 {
			changed = i / 4
			break
		}
	}
	source := fmt.Sprintf("kept = {}\ndef run(x, c):\n    key = x[%d].item(), *x[:32].tolist()\n    if key not in kept:\n        kept[key] = x * c\n"+
		"    return kept[key].clone()\n", changed)
	for secret, want := range map[string][]string{known: nil, "another": {cachedByContent}, "": {cachedByContent}} {
		shared := sharedPython(t, scaleDefinition, []map[string]int{{"n": n}}, nil)
		shared.Secret = secret
		var found []string
		var events []event.Event
		stream := event.NewStream(func(e event.Event) error {
			events = append(events, e)
			if e.Finding != nil {
				found = append(found, e.Finding.Check)
			}
			return nil
		})
		run := &event.Run{Schema: event.Schema, Fisub: "test"}
		_, err := Run(t.Context(), shared, Entry{Events: stream, Run: run, Solution: &trace.Solution{Name: "s", Definition: "scale",
			Author: "a", Spec: trace.BuildSpec{Language: trace.Python, TargetHardware: []string{"cuda"}, EntryPoint: "main.py::run"},
			Sources: []trace.SourceFile{{Path: "main.py", Content: source}}}})
		if err != nil || !slices.Equal(found, want) {
			t.Errorf("secret %q: got %v, findings %v, want %v", secret, err, found, want)
		}
		first, last := events[0], events[len(events)-1]
		if first.Run == nil || first.Run.Secret != "" || first.Run.KnownSecret != (secret != "") {
			t.Errorf("secret %q: got the run event %+v", secret, first.Run)
		}
		if last.Done == nil || last.Done.Secret == "" || secret != "" && last.Done.Secret != secret {
			t.Errorf("secret %q: got the done event %+v", secret, last.Done)
		}
		warned := slices.ContainsFunc(events, func(e event.Event) bool {
			return e.Message != nil && strings.Contains(e.Message.Text, "a known secret")
		})
		if warned != (secret != "") {
			t.Errorf("secret %q: warned: %t", secret, warned)
		}
	}
}

// Everything that a check draws depends on the secret, the workload, the purpose and, for measurements, their number and
// the solution.
func TestDraws(t *testing.T) {
	seen := map[uint64]string{}
	for _, secret := range []string{"a", "b"} {
		for _, uuid := range []string{"u", "v"} {
			for number := range 2 {
				a := &attempt{runner: &runner{shared: &Shared{Secret: secret}, number: number}, workload: &trace.Workload{UUID: uuid}}
				for _, purpose := range []string{"gap", "judged", "gap"} {
					name := fmt.Sprint(secret, uuid, number, purpose, a.draws)
					x := a.next(purpose).Uint64(0)
					if other, ok := seen[x]; ok {
						t.Errorf("%s and %s are the same", other, name)
					}
					seen[x] = name
				}
			}
		}
	}
	a := &attempt{runner: &runner{shared: &Shared{}}, workload: &trace.Workload{}}
	counts := make([]int, 10)
	for range 1000 {
		chosen := choose(a.next("judged"), 10, 4)
		if !slices.IsSorted(chosen) || len(slices.Compact(slices.Clone(chosen))) != 4 {
			t.Fatalf("got %v, want four different numbers in order", chosen)
		}
		for _, i := range chosen {
			counts[i]++
		}
	}
	if slices.Min(counts) < 300 || slices.Max(counts) > 500 {
		t.Errorf("got each number %v times, want about 400", counts)
	}
}
