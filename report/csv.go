package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/ui"
)

// CSV writes a line for each workload and contender: the solution on a cold L2, where there are such timings the same
// on a warm one, the baseline, the copy and the empty kernel. Fields that a contender has not are empty.
func (r *Report) CSV(w io.Writer) error {
	names := map[string]bool{}
	for _, run := range r.Runs {
		for _, name := range run.Axes {
			names[name] = true
		}
	}
	axes := slices.Sorted(maps.Keys(names))
	head := []string{"run", "place", "gpu", "definition", "workload"}
	for _, name := range axes {
		head = append(head, "axis "+name)
	}
	head = append(head, "contender", "name", "content_hash", "status", "max_absolute_error", "max_relative_error", "timer",
		"l2", "trials", "n",
		"latency_ns", "interval_lo_ns", "interval_hi_ns", "interval_confidence", "min_ns", "q1_ns", "median_of_all_ns",
		"q3_ns", "mean_ns", "bytes", "achieved_gb_s", "copy_share",
		"speedup", "sm_clock_mhz", "temperature_c", "power_w", "throttle_reasons", "measured", "disturbed", "findings")
	out := csv.NewWriter(w)
	write := func(fields map[string]string) {
		row := make([]string, len(head))
		for i, name := range head {
			row[i] = fields[name]
		}
		_ = out.Write(row) // Error has it
	}
	row := make([]string, len(head))
	for i, name := range head {
		row[i] = inert(name)
	}
	_ = out.Write(row)
	for _, run := range r.Runs {
		f := run.Run.Run
		for i := range run.Workloads {
			wl := &run.Workloads[i]
			id := func(contender, name, hash string) map[string]string {
				fields := map[string]string{"run": inert(run.ID), "place": inert(wl.Place), "gpu": inert(run.device(wl).Name),
					"definition": inert(f.Definition), "workload": inert(wl.UUID),
					"contender": contender, "name": inert(name), "content_hash": inert(hash)}
				for name, n := range wl.Axes {
					fields["axis "+name] = fmt.Sprint(n)
				}
				return fields
			}
			own := id("solution", f.Solution, f.ContentHash)
			own["status"] = inert(wl.Verdict)
			if e := wl.Evaluated; e != nil {
				own["max_absolute_error"], own["max_relative_error"] = floatText(e.MaxAbs), floatText(e.MaxRel)
				if e.Speedup != nil && !run.Emulated {
					own["speedup"] = exact(*e.Speedup)
				}
			}
			var checks []string
			for _, f := range wl.Findings {
				checks = append(checks, f.Check)
			}
			own["findings"] = inert(strings.Join(checks, "; "))
			s := wl.Samples
			if s == nil {
				write(own)
				continue
			}
			sampled(own, s)
			write(own)
			if s.Warm != nil {
				fields := id("solution", f.Solution, f.ContentHash)
				timedFields(fields, s.Warm)
				write(fields)
			}
			if s.Baseline != nil {
				b := event.Baseline{}
				if f.Baseline != nil {
					b = *f.Baseline
				}
				fields := id("baseline", cmp.Or(b.Name, b.Solution), b.ContentHash)
				timedFields(fields, s.Baseline)
				write(fields)
			}
			for _, floor := range []struct {
				name string
				ns   float64
			}{{"copy", s.CopyNS}, {"empty", s.EmptyNS}} {
				if floor.ns > 0 {
					fields := id(floor.name, "", "")
					fields["latency_ns"] = exact(floor.ns)
					write(fields)
				}
			}
		}
	}
	out.Flush()
	return out.Error()
}

func sampled(fields map[string]string, s *event.Samples) {
	timedFields(fields, &event.Timings{Timer: s.Timer, ColdL2: s.ColdL2, TrialsNS: s.TrialsNS, MedianNS: s.MedianNS,
		N: s.N, Interval: s.Interval, Disturbed: s.Disturbed})
	fields["min_ns"], fields["q1_ns"], fields["median_of_all_ns"], fields["q3_ns"] = fmt.Sprint(s.MinNS), exact(s.Q1NS),
		exact(s.Q2NS), exact(s.Q3NS)
	fields["mean_ns"], fields["bytes"], fields["measured"] = exact(s.MeanNS), fmt.Sprint(s.Bytes), fmt.Sprint(s.Measured)
	if s.Bandwidth > 0 {
		fields["achieved_gb_s"] = exact(s.Bandwidth)
	}
	if s.CopyShare > 0 {
		fields["copy_share"] = exact(s.CopyShare)
	}
	if st := s.Stamp; st != nil {
		median := st.During.Median
		if st.During.N == 0 {
			median = st.After
		}
		if median.SMClockMHz > 0 {
			fields["sm_clock_mhz"] = fmt.Sprint(median.SMClockMHz)
		}
		if median.TemperatureC > 0 {
			fields["temperature_c"] = fmt.Sprint(median.TemperatureC)
		}
		if median.PowerW > 0 {
			fields["power_w"] = exact(median.PowerW)
		}
		fields["throttle_reasons"] = inert(strings.Join(st.ThrottleReasons, "; "))
	}
}

func timedFields(fields map[string]string, t *event.Timings) {
	fields["timer"], fields["l2"] = inert(t.Timer), ui.L2(t.ColdL2)
	fields["trials"], fields["n"], fields["latency_ns"] = fmt.Sprint(len(t.TrialsNS)), fmt.Sprint(t.N), exact(t.MedianNS)
	fields["interval_lo_ns"], fields["interval_hi_ns"], fields["interval_confidence"] = exact(t.Interval.LoNS),
		exact(t.Interval.HiNS), exact(t.Interval.Confidence)
	fields["disturbed"] = inert(strings.Join(t.Disturbed, "; "))
}

func floatText(f *event.Float) string {
	if f == nil {
		return ""
	}
	return exact(float64(*f))
}

// inert is one line of text that a spreadsheet does not take for a formula.
func inert(s string) string {
	s = clean(s, 1000)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}
