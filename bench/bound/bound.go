// Package bound has the rule of the finding too-fast: how long the memory of a GPU needs for the bytes that a call must
// read and write. The judge applies it to the GPU that it measures on, the client of a remote run to the GPU that the
// run is for.
package bound

import (
	"fmt"
	"maps"
	"strings"

	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// TooFast is the Check of the finding.
const TooFast = "too-fast"

// Traffic counts the bytes that a call must at least read and write.
type Traffic struct {
	Read    int64 `json:"read"`
	Written int64 `json:"written"`
}

// A Memory describes the memory of a GPU: the size of its L2 in bytes, and its bandwidth in bytes a second, 0 if
// unknown.
type Memory struct{ L2, Bandwidth int64 }

// Applies reports whether every call on a workload of the definition needs all of its inputs, as far as the types of
// the inputs show. Integer tensors may choose parts of the others.
func Applies(def *trace.Definition) bool {
	if Proven(def) {
		return true
	}
	if def.Python != nil {
		return false
	}
	for _, in := range def.Inputs.All() {
		if !in.Scalar && !in.DType.IsFloat() {
			return false
		}
	}
	return def.OpType != "moe" && def.OpType != "sampling" // the values of an input choose parts of others
}

// Proven reports whether that is known of the definition.
func Proven(def *trace.Definition) bool { return def.OpType == "gdn" }

// Empty returns the finding for a latency that an empty kernel has too, or nil. Both are in nanoseconds; empty is 0 if
// unknown.
func Empty(ns, empty float64) *event.Finding {
	if ns > empty {
		return nil
	}
	text := fmt.Sprintf("%.2f µs, but an empty kernel takes %.2f µs", ns/1e3, empty/1e3)
	return &event.Finding{Check: TooFast, Text: text}
}

// Check returns the finding for an official latency in nanoseconds, or nil. The latency is of a call with a cold L2.
func Check(ns float64, t Traffic, m Memory) *event.Finding {
	floor := fastest(t, m)
	if ns >= floor {
		return nil
	}
	return &event.Finding{Check: TooFast, Text: fmt.Sprintf("%.2f µs for %.1f MB, but with a cold L2 memory of %.0f GB/s "+
		"needs %.2f µs", ns/1e3, float64(t.Read+t.Written)/1e6, float64(m.Bandwidth)/1e9, floor/1e3)}
}

// fastest returns the shortest possible time of a call in nanoseconds, with a cold L2. Outputs that fit into the L2
// need not reach memory. The clock may run 5 % above the driver's figure. The result is 0 if the bandwidth is unknown.
func fastest(t Traffic, m Memory) float64 {
	if m.Bandwidth <= 0 {
		return 0
	}
	return float64(t.Read+max(0, t.Written-m.L2)) / (1.05 * float64(m.Bandwidth)) * 1e9
}

// Least returns what is known of the traffic of a workload from its shapes alone. A pool of states does not count: its
// indices, which are contents, choose the slots that a call needs. The result is zero unless Proven.
func Least(def *trace.Definition, w *trace.Workload) (t Traffic) {
	if !Proven(def) {
		return Traffic{}
	}
	axes := maps.Collect(w.Axes.All())
	bytes := func(spec trace.TensorSpec) int64 {
		shape, err := def.Shape(spec, axes)
		n, ok := tensor.Elements(shape)
		size, fits := spec.DType.Bytes(n)
		if err != nil || spec.Scalar || !ok || !fits || size > 1<<40 {
			return 0
		}
		return int64(size)
	}
	for i, name := range def.Inputs.Keys() {
		spec, _ := def.Inputs.Get(name)
		in, given := w.Inputs.Get(name)
		_, pool := def.Slots(name)
		if given && in.Kind != trace.ScalarInput && !pool && !overwritten(def, i) {
			t.Read += bytes(spec)
		}
	}
	for name, spec := range def.Outputs.All() {
		if _, ok := def.InPlace(name); !ok {
			t.Written += bytes(spec)
		}
	}
	return t
}

// overwritten reports whether an output is changed in place in input number i.
func overwritten(def *trace.Definition, i int) bool {
	for name := range def.Outputs.All() {
		if input, ok := def.InPlace(name); ok && input == i {
			return true
		}
	}
	return false
}

// cards holds, for each kind of GPU that a run can ask for, the largest L2 and the fastest memory of all its variants.
var cards = map[string]Memory{
	"b200": {192 << 20, 8200e9}, "gb200": {192 << 20, 8200e9}, "b300": {192 << 20, 8200e9}, "gb300": {192 << 20, 8200e9},
	"h200": {60 << 20, 5000e9}, "gh200": {60 << 20, 5000e9}, "h100": {60 << 20, 3950e9}, "h20": {60 << 20, 5000e9},
	"a100": {40 << 20, 2050e9}, "a10": {6 << 20, 600e9}, "a10g": {6 << 20, 600e9},
	"l4": {48 << 20, 300e9}, "l40s": {96 << 20, 864e9},
}

// Card returns the memory of a kind of GPU, such as "b200", or the zero Memory. It does not depend on the claims of a
// host.
func Card(kind string) Memory { return cards[strings.ToLower(kind)] }
