package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/runs"
)

// A histogram shows all timings of one workload, in a strip for each trial or group of adjacent trials.
type histogram struct {
	ID, Title, Desc string
	W, H            float64
	Left, Right     float64
	Bottom          float64
	Strips          []strip
	Ticks           []tick
	Official        float64 // position of the official latency
	Interval        [2]float64
	Note            string // about timings outside the range
}

type strip struct {
	Label string
	Base  float64
	Text  float64 // y of the label
	Path  string
}

const (
	mostStrips = 6
	mostBins   = 48

	// tickNS is the step of a GPU's timer. Timings come within 1 ns of its multiples, so bins have their edges
	// halfway.
	tickNS = 32
)

// timingsOf returns the plausible timings by trial, and all of them sorted.
func timingsOf(s *event.Samples) (trials [][]int64, all []int64) {
	if s == nil {
		return nil, nil
	}
	for _, t := range s.TrialsNS {
		t = slices.DeleteFunc(slices.Clone(t), func(ns int64) bool { return ns <= 0 || ns > 1e15 })
		if len(t) > 0 {
			trials = append(trials, t)
		}
	}
	return trials, slices.Sorted(slices.Values(slices.Concat(trials...)))
}

// scale returns the range of all histograms of a run, as shares of a workload's official latency. Outliers are outside
// of it.
func scale(workloads []runs.Row) (from, to float64) {
	from, to = 1, 1
	for i := range workloads {
		s := workloads[i].Samples
		_, all := timingsOf(s)
		if len(all) == 0 || !(s.MedianNS > 0) {
			continue
		}
		hi := float64(all[len(all)-1])
		if s.Q3NS > 0 {
			hi = min(hi, s.Q3NS+6*(s.Q3NS-s.Q1NS)+4*tickNS)
		}
		from, to = min(from, (float64(all[0])-tickNS)/s.MedianNS), max(to, (hi+tickNS)/s.MedianNS)
	}
	return max(from, 0.5), min(to, 2)
}

// histogramOf returns the histogram of a workload in this range, or nil if it has no timings.
func histogramOf(w *runs.Row, id string, from, to float64) *histogram {
	s := w.Samples
	trials, all := timingsOf(s)
	if len(all) == 0 || !(s.MedianNS > 0 && s.MedianNS < 1e15) {
		return nil
	}
	lo, hi := int64(from*s.MedianNS), int64(to*s.MedianNS)
	width := int64(tickNS)
	if steps := (hi - lo) / (tickNS * mostBins); steps > 0 {
		width *= steps + 1
	}
	edge := (lo+tickNS/2)/tickNS*tickNS + tickNS/2 // the first edge at or above lo
	n := int(max(1, (hi-edge+width-1)/width))
	h := &histogram{ID: id, W: 300, Left: 40, Right: 292,
		Title: fmt.Sprintf("%s, workload %s: %s", axesText(w.Axes), plain.Short(w.UUID), ui.Micros(s.MedianNS)),
		Desc: fmt.Sprintf("%d timings in %s, from %s to %s; official latency %s, interval of the median from %s to %s.",
			len(all), plain.Count(len(trials), "trial"),
			ui.Micros(float64(all[0])), ui.Micros(float64(all[len(all)-1])), ui.Micros(s.MedianNS), ui.Micros(s.Interval.LoNS),
			ui.Micros(s.Interval.HiNS))}
	end := edge + int64(n)*width
	pixels := (h.Right - h.Left) / (to - from) / s.MedianNS // per ns
	x := func(ns float64) float64 {
		return math.Max(h.Left, math.Min(h.Right, h.Left+(ns-from*s.MedianNS)*pixels))
	}

	const height, gap = 34, 6
	per := (len(trials) + mostStrips - 1) / mostStrips
	var counts [][]int
	below, beyond, most := 0, 0, 1
	for from := 0; from < len(trials); from += per {
		bins := make([]int, n)
		for _, trial := range trials[from:min(from+per, len(trials))] {
			for _, v := range trial {
				switch {
				case v < edge:
					below++
				case v >= end:
					beyond++
				default:
					bins[(v-edge)/width]++
				}
			}
		}
		most = max(most, slices.Max(bins))
		counts = append(counts, bins)
	}
	y := 4.0
	for i, bins := range counts {
		y += height
		label := fmt.Sprint(i*per + 1)
		if to := min((i+1)*per, len(trials)); to > i*per+1 {
			label += fmt.Sprintf("–%d", to)
		}
		h.Strips = append(h.Strips, strip{label, y, y - 4, outline(bins, x(float64(edge)), float64(width)*pixels, y,
			height/float64(most))})
		y += gap
	}
	h.Bottom = y - gap
	h.H = h.Bottom + 20
	h.Official, h.Interval = x(s.MedianNS), [2]float64{x(s.Interval.LoNS), x(s.Interval.HiNS)}
	for _, v := range linearTicks(100*(from-1), 100*(to-1), 4) {
		h.Ticks = append(h.Ticks, tick{At: x((1 + v/100) * s.MedianNS), Label: signed(math.Round(10*v)/10) + " %"})
	}
	var notes []string
	if below > 0 {
		notes = append(notes, fmt.Sprintf("%d below %s", below, ui.Micros(float64(edge))))
	}
	if beyond > 0 {
		notes = append(notes, fmt.Sprintf("%d beyond %s", beyond, ui.Micros(float64(end))))
	}
	h.Note = strings.Join(notes, ", ")
	return h
}

// signed formats v with a sign, and 0 without one.
func signed(v float64) string {
	if v == 0 {
		return "0"
	}
	return fmt.Sprintf("%+g", v)
}

// Band returns the width of the interval's band.
func (h *histogram) Band() float64 { return math.Max(1, h.Interval[1]-h.Interval[0]) }

// outline returns the path of bars of width w on base. It skips empty bins.
func outline(bins []int, left, w, base, unit float64) string {
	var b strings.Builder
	for i := 0; i < len(bins); i++ {
		if bins[i] == 0 {
			continue
		}
		fmt.Fprintf(&b, "M%.1f %.1f", left+float64(i)*w, base)
		for ; i < len(bins) && bins[i] > 0; i++ {
			fmt.Fprintf(&b, "V%.1fh%.1f", base-float64(bins[i])*unit, w)
		}
		fmt.Fprintf(&b, "V%.1fz", base)
	}
	return b.String()
}

// linearTicks returns about n round values between lo and hi.
func linearTicks(lo, hi float64, n int) (list []float64) {
	step := niceStep((hi - lo) / float64(n))
	for i := 0; i <= 4*n; i++ {
		if v := (math.Ceil(lo/step) + float64(i)) * step; v <= hi {
			list = append(list, v)
		}
	}
	return list
}
