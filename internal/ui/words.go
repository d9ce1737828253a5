package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// Micros formats nanoseconds as microseconds, with at least three significant digits.
func Micros(ns float64) string { return fmt.Sprintf("%.2f µs", ns/1e3) }

// Times formats a speed-up.
func Times(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0fx", x)
	}
	return fmt.Sprintf("%.2fx", x)
}

// Percent formats a share.
func Percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// Spread returns half of the interval of a median, in per cent of it.
func Spread(i event.Interval) string {
	half := 50 * i.Width
	if half >= 9.95 {
		return fmt.Sprintf("%.0f %%", half)
	}
	return fmt.Sprintf("%.1f %%", half)
}

// Latency explains the latency of a workload. l2 is "cold" or "warm".
func Latency(p event.Profile, l2, timer string) string {
	trials := fmt.Sprint(p.Trials)
	if p.Target > 0 {
		trials = fmt.Sprintf("%d or more", p.Trials)
	}
	return fmt.Sprintf("mean over %s trials of the median of %d calls, %s L2, %s, profile %s", trials, p.Iterations, l2,
		plain.Line(timer), plain.Line(p.Name))
}

// Profile describes the trials, calls and limits of p.
func Profile(p event.Profile) string {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	text := fmt.Sprintf("%s (%d trials of %d warm-up and %d timed calls, timeout %v", p.Name, p.Trials, p.Warmup,
		p.Iterations, seconds(p.TimeoutS))
	if p.Target > 0 {
		text += fmt.Sprintf(", more up to %g %% or %v", 100*p.Target, seconds(p.MaxTimeS))
	}
	return text + ")"
}

// Device describes a device in one line.
func Device(d event.Device) string {
	if d.Emulated {
		return plain.Line(fmt.Sprintf("emu (%s, %s)", d.Name, d.Toolchain))
	}
	return plain.Line(fmt.Sprintf("%s:%d (%s, %s, driver %s)", d.Kind, d.Ordinal, d.Name, d.Arch, d.Driver))
}

// AxisNames returns the names of the axes of all elements of list, in order.
func AxisNames[T any](list []T, axes func(T) map[string]int) []string {
	names := map[string]bool{}
	for _, v := range list {
		for name := range axes(v) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// L2 returns the word for the state of the cache before a call.
func L2(cold bool) string {
	if cold {
		return "cold"
	}
	return "warm"
}

// Age formats a duration in its largest unit.
func Age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// ScoreText describes the mean speed-up over b, which is the contest score only if b is the reference.
func ScoreText(b *event.Baseline, d *event.Done) string {
	text := fmt.Sprintf("%s on %s", plain.Line(b.Name), plain.Count(d.Scored, "workload"))
	if d.Failed > 0 && *d.Score == 0 {
		text += ": 0 because a workload failed"
	}
	if b.Score() == "contest score" {
		return fmt.Sprintf("contest score: %.3f, the mean speed-up over baseline %s", *d.Score, text)
	}
	return fmt.Sprintf("mean speed-up: %.3f over baseline %s", *d.Score, text)
}

// BoardText describes the score of a task's board, in nanoseconds.
func BoardText(ranking string, ns float64) string {
	return fmt.Sprintf("board: %s, %s of the cases; each is a mean of times between CUDA events, cold L2", Micros(ns),
		cmp.Or(map[string]string{"geom": "geometric mean"}[ranking], ranking))
}

// Tolerance describes when an output element is correct.
func Tolerance(t event.Tolerance) string {
	text := fmt.Sprintf("correct: within %g absolute or %g relative", t.Atol, t.Rtol)
	if t.MatchedRatio > 0 && t.MatchedRatio < 1 {
		text += fmt.Sprintf(", %g %% of the elements", 100*t.MatchedRatio)
	}
	return text
}
