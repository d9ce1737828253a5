package activity

import (
	"cmp"
	"slices"
	"time"

	"fisub/device"
)

// Calls describes the timed calls of a recording.
type Calls struct {
	Trials [][]Window
	Apart  *int   // device.Plan's
	Thread uint32 // the lower bits of the pthread_self of the thread that makes the calls
	First  uint64 // CUPTI's clock in ns before the first call, which is a warm-up call
}

// Sample sets the trials, kernels and uncounted work of s. Its errors are Match's.
func (r *Records) Sample(s *device.Samples, c Calls) error {
	s.Trials, s.Kernels, s.Outside, s.HostFunction = nil, nil, nil, ""
	made := 0
	for i, windows := range c.Trials {
		apart := -1
		if c.Apart != nil {
			apart = *c.Apart - made
		}
		made += len(windows)
		times, kernels, err := r.Match(windows, apart)
		if err != nil {
			return err
		}
		if i == 0 {
			s.Kernels = kernels
		}
		s.Trials = append(s.Trials, times)
		s.Outside = s.Outside.Add(r.outside(windows, c.Thread, c.First))
		for _, w := range windows {
			for _, l := range r.launchesIn(w.Begin, w.Idle) {
				s.HostFunction = cmp.Or(s.HostFunction, l.Host)
			}
		}
	}
	return nil
}

// outside returns the work of a trial's calls that Match does not count, or nil: all work launched by other threads
// that runs after the first begin or before the first call, and work launched by thread between the end of a window and
// the idle device.
func (r *Records) outside(windows []Window, thread uint32, called uint64) *device.Outside {
	if len(windows) == 0 {
		return nil
	}
	first, last := windows[0].Begin, windows[len(windows)-1].Idle
	byNumber := map[uint32][]Launch{}
	for _, l := range r.launches {
		byNumber[l.Correlation] = append(byNumber[l.Correlation], l)
	}
	var early []Activity           // before the first call
	missed := map[int][]Activity{} // by call
	for number, activities := range r.activities {
		launches := byNumber[number]
		if slices.ContainsFunc(launches, func(l Launch) bool { return counted(windows, l.Start) }) {
			continue
		}
		own := len(launches) > 0 && !slices.ContainsFunc(launches, func(l Launch) bool {
			return l.Thread != thread || between(windows, l.Start)
		})
		for _, a := range activities {
			if own || a.Start > last {
				continue
			}
			if a.Start < called {
				early = append(early, a)
			}
			if a.End > first {
				i := callAt(windows, a.Start)
				missed[i] = append(missed[i], a)
			}
		}
	}
	out := &device.Outside{Calls: len(windows), Uncalled: len(early) > 0}
	var begun uint64
	note := func(activities []Activity) {
		for _, a := range activities {
			if begun == 0 || a.Start < begun {
				begun, out.Work = a.Start, a.Activity
			}
		}
	}
	if note(early); len(early) == 0 && len(missed) == 0 {
		return nil
	}
	for i, activities := range missed {
		note(activities)
		inside := r.within(windows[i])
		all := slices.Concat(inside, activities)
		out.Missed = append(out.Missed, span(all, windows[i].Begin)-span(inside, 0))
	}
	return out
}

// span returns the time from the first start, or from begin if that is later, to the last end; 0 without activities.
func span(activities []Activity, begin uint64) time.Duration {
	if len(activities) == 0 {
		return 0
	}
	start, end := activities[0].Start, activities[0].End
	for _, a := range activities {
		start, end = min(start, a.Start), max(end, a.End)
	}
	return time.Duration(end - min(end, max(start, begin)))
}

// callAt returns the index of the last window that begins before t, or 0.
func callAt(windows []Window, t uint64) int {
	i, _ := slices.BinarySearchFunc(windows, t, func(w Window, t uint64) int {
		if w.Begin <= t {
			return -1
		}
		return 1
	})
	return max(0, i-1)
}

// counted reports whether a call of CUDA at t is inside a window.
func counted(windows []Window, t uint64) bool {
	w := windows[callAt(windows, t)]
	return w.Begin <= t && t <= w.End
}

// between reports whether t is after the end of a window, and before the device was idle.
func between(windows []Window, t uint64) bool {
	w := windows[callAt(windows, t)]
	return w.End < t && t < w.Idle
}
