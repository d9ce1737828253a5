package ui

import (
	"fmt"
	"time"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// Micros gives nanoseconds as microseconds with three significant digits at least.
func Micros(ns float64) string { return fmt.Sprintf("%.2f µs", ns/1e3) }

// Times gives a speed-up, "-" where there is none.
func Times(x *float64) string {
	switch {
	case x == nil:
		return "-"
	case *x >= 100:
		return fmt.Sprintf("%.0fx", *x)
	}
	return fmt.Sprintf("%.2fx", *x)
}

// Percent gives a share, "-" where it is 0.
func Percent(share float64) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}

// Spread is half of the interval of a median, in per cent of it.
func Spread(i event.Interval) string {
	half := 50 * i.Width
	if half >= 9.95 {
		return fmt.Sprintf("%.0f %%", half)
	}
	return fmt.Sprintf("%.1f %%", half)
}

// ErrorText gives the size of an error, "-" where it is not known.
func ErrorText(f *float64) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.2e", *f)
}

// Latency says what the figure of a workload is. l2 is "cold" or "warm".
func Latency(p event.Profile, l2, timer string) string {
	trials := fmt.Sprint(p.Trials)
	if p.Target > 0 {
		trials = fmt.Sprintf("%d or more", p.Trials)
	}
	return fmt.Sprintf("mean over %s trials of the median of %d calls, %s L2, %s, profile %s", trials, p.Iterations, l2,
		plain.Line(timer), plain.Line(p.Name))
}

// Zeroed says why the score of d is 0, in a clause that begins with a colon; "" where it is not. d.Score must be set.
func Zeroed(d *event.Done) string {
	if d.Failed == 0 || *d.Score != 0 {
		return ""
	}
	return ": 0 because a workload fails"
}

// Profile says how often the solution is called and timed.
func Profile(p event.Profile) string {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	text := fmt.Sprintf("%s (%d trials of %d warm-up and %d timed calls, timeout %v", p.Name, p.Trials, p.Warmup,
		p.Iterations, seconds(p.TimeoutS))
	if p.Target > 0 {
		text += fmt.Sprintf(", more up to %g %% or %v", 100*p.Target, seconds(p.MaxTimeS))
	}
	return text + ")"
}

// Device names a device in a line.
func Device(d event.Device) string {
	if d.Emulated {
		return plain.Line(fmt.Sprintf("emu (%s, %s)", d.Name, d.Toolchain))
	}
	return plain.Line(fmt.Sprintf("%s:%d (%s, %s, driver %s)", d.Kind, d.Ordinal, d.Name, d.Arch, d.Driver))
}

// L2 is the word for the state of the cache before a call.
func L2(cold bool) string {
	if cold {
		return "cold"
	}
	return "warm"
}

// Age is how long ago something was, in its largest unit.
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
