// Package activity computes the duration of calls from CUPTI's activity records, by the official harness's rule: from
// the start of the first to the end of the last kernel, copy or memset launched by a CUDA call inside the call's
// window. It also finds work that this rule misses. device/cuda/cupti and the Python worker collect the records.
package activity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fisub/device"
)

// A Window is a timed call: CUPTI's clock in ns before and after it, and once the device was idle again.
type Window struct{ Begin, End, Idle uint64 }

// A Launch is a call of the CUDA runtime or driver.
type Launch struct {
	Start       uint64 // on CUPTI's clock
	Thread      uint32 // the lower bits of pthread_self
	Correlation uint32 // shared with the launched activities
	Host        string // the function's name if it queues a function of the host, else ""
}

// An Activity is work on the GPU.
type Activity struct {
	device.Activity
	Symbol      string // of a kernel, mangled
	Start, End  uint64 // on CUPTI's clock
	Correlation uint32
	CopyKind    int // of a copy
	Value       int // of a memset
}

// key identifies an activity within a call, in the official harness's format.
func (a *Activity) key() string {
	name, kind := a.Symbol, 10
	switch a.Kind {
	case "memcpy":
		name, kind = "MEMCPY", 1
	case "memset":
		name, kind = "MEMSET", 2
	}
	return fmt.Sprintf("%s_%d_%d_%d_%d", name, a.CopyKind, a.Bytes, a.Value, kind)
}

// Records are the records of a CUPTI session.
type Records struct {
	launches   []Launch // by Start
	activities map[uint32][]Activity
}

// New takes records in any order, from the given version of CUPTI; it keeps and sorts launches. lost counts lost
// records. Incomplete or implausible records are an Unavailable.
func New(launches []Launch, activities []Activity, version, lost int) (*Records, error) {
	if lost > 0 {
		return nil, Unavailable(fmt.Sprintf("%d records were lost", lost))
	}
	if err := check(launches, activities, known(version)); err != nil {
		return nil, err
	}
	r := &Records{launches: launches, activities: map[uint32][]Activity{}}
	slices.SortFunc(r.launches, func(a, b Launch) int { return cmp.Compare(a.Start, b.Start) })
	for _, a := range activities {
		r.activities[a.Correlation] = append(r.activities[a.Correlation], a)
	}
	return r, nil
}

// Versions of CUPTI: 19 to 28 for CUDA 12, then 130000 for 13.0 and so on.
const (
	Oldest = 19     // oldest supported
	newest = 130399 // newest with known layouts
)

// known reports whether a version's record layouts are known; others get additional checks.
func known(version int) bool { return version <= 28 || version >= 130000 && version <= newest }

// Match returns the duration of each window but number apart, which may be negative, and the first window's activities
// in order of their start, each with its median time over the windows with the same activities in the same order. A
// window without activities, or with others than the first, is the solution's fault: a *device.CallError with the
// official harness's text. Windows that overlap or have no time are an Unavailable. The device must have been idle at
// the begin of each window.
func (r *Records) Match(windows []Window, apart int) (times []time.Duration, kernels []device.Activity, err error) {
	var first map[string]bool
	var order []string
	var each [][]uint64 // ns, by activity of the first window
	var last uint64
	for i, w := range windows {
		if w.Begin == 0 || w.Begin < last || w.End < w.Begin || w.Idle < w.End {
			return nil, nil, Unavailable(fmt.Sprintf("call %d is recorded from %d to %d ns, with the device idle at %d ns, "+
				"after one that ends at %d ns", i, w.Begin, w.End, w.Idle, last))
		}
		last = w.Idle
		if i == apart {
			continue
		}
		found := r.within(w)
		if len(found) == 0 {
			return nil, nil, callError("No kernel activities recorded for iteration %d", len(times))
		}
		slices.SortStableFunc(found, func(a, b Activity) int { return cmp.Compare(a.Start, b.Start) })
		keys := map[string]bool{}
		sequence := make([]string, len(found))
		end := found[0].End
		for j, a := range found {
			sequence[j] = a.key()
			keys[sequence[j]] = true
			end = max(end, a.End)
		}
		times = append(times, time.Duration(end-found[0].Start))
		if first == nil {
			first, order, each = keys, sequence, make([][]uint64, len(found))
			for _, a := range found {
				kernels = append(kernels, a.Activity)
			}
		} else if !maps.Equal(first, keys) {
			return nil, nil, callError("Inconsistent kernel names: %s != %s", set(first), set(keys))
		}
		if slices.Equal(order, sequence) {
			for j, a := range found {
				each[j] = append(each[j], a.End-a.Start)
			}
		}
	}
	for j, t := range each {
		slices.Sort(t)
		kernels[j].MedianNS = (float64(t[(len(t)-1)/2]) + float64(t[len(t)/2])) / 2
	}
	return times, kernels, nil
}

// within returns the activities of CUDA calls that start in w.
func (r *Records) within(w Window) (found []Activity) {
	seen := map[uint32]bool{} // a runtime call and its driver call may share a number
	for _, l := range r.launchesIn(w.Begin, w.End) {
		if !seen[l.Correlation] {
			seen[l.Correlation] = true
			found = append(found, r.activities[l.Correlation]...)
		}
	}
	return found
}

// launchesIn returns the calls that start from begin to end.
func (r *Records) launchesIn(begin, end uint64) []Launch {
	at := func(t uint64) int {
		i, _ := slices.BinarySearchFunc(r.launches, t, func(l Launch, t uint64) int { return cmp.Compare(l.Start, t) })
		return i
	}
	return r.launches[at(begin):at(end+1)]
}

func set(keys map[string]bool) string {
	return "{'" + strings.Join(slices.Sorted(maps.Keys(keys)), "', '") + "'}"
}

func callError(format string, args ...any) error {
	return &device.CallError{Kind: "ValueError", Text: fmt.Sprintf(format, args...)}
}

// An Unavailable is the reason why CUPTI cannot be used or trusted; it wraps device.ErrTimer.
type Unavailable string

func (u Unavailable) Error() string { return "cupti: " + string(u) }
func (u Unavailable) Unwrap() error { return device.ErrTimer }

// check looks for signs of misread records. Unless known is set, each activity must belong to a recorded call.
func check(launches []Launch, activities []Activity, known bool) error {
	calls := map[uint32]bool{}
	for _, l := range launches {
		calls[l.Correlation] = true
	}
	for _, a := range activities {
		switch {
		case a.Start == 0 && a.End == 0:
			return Unavailable("a " + a.Kind + " was recorded without a time")
		case a.Start == 0 || a.End < a.Start:
			return Unavailable(fmt.Sprintf("a %s was recorded from %d to %d ns", a.Kind, a.Start, a.End))
		case !known && !calls[a.Correlation]:
			return Unavailable("unknown version of CUPTI's records")
		}
	}
	return nil
}
