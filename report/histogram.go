package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/ui"
)

// A histogram shows all timings of one workload, with a strip for each trial, or for some trials next to each other.
type histogram struct {
	ID, Title, Desc string
	W, H            float64
	Left, Right     float64
	Bottom          float64
	Strips          []strip
	Ticks           []tick
	Official        float64 // position of the official latency
	Interval        [2]float64
	Note            string // of timings beyond the right edge
}

type strip struct {
	Label string
	Base  float64
	Text  float64 // where the label stands
	Path  string
}

const (
	mostStrips = 6
	mostBins   = 48

	// tickNS is the step of a GPU's timer. Timings come within 1 ns of its multiples, so bins have their edges between.
	tickNS = 32
)

// histogram of a workload; nil where it has no timings.
func (w *Workload) histogram(id string) *histogram {
	s := w.Samples
	if s == nil {
		return nil
	}
	var trials [][]int64
	for _, t := range s.TrialsNS {
		// none that a run can have
		t = slices.DeleteFunc(slices.Clone(t), func(ns int64) bool { return ns <= 0 || ns > 1e15 })
		if len(t) > 0 {
			trials = append(trials, t)
		}
	}
	all := slices.Sorted(slices.Values(slices.Concat(trials...)))
	if len(all) == 0 {
		return nil
	}
	lo, hi := all[0], all[len(all)-1]
	if far := s.Q3NS + 6*(s.Q3NS-s.Q1NS) + 4*tickNS; s.Q3NS > 0 && float64(hi) > far {
		hi = max(lo, int64(far))
	}
	width := int64(tickNS)
	if steps := (hi - lo) / (tickNS * mostBins); steps > 0 {
		width *= steps + 1
	}
	edge := (lo - tickNS/2) / tickNS * tickNS
	edge += tickNS / 2
	for edge > lo {
		edge -= tickNS
	}
	n := int((hi-edge)/width) + 1
	h := &histogram{ID: id, W: 300, Left: 40, Right: 292,
		Title: fmt.Sprintf("%s, workload %s", axesText(w.Axes), plain.Short(w.UUID)),
		Desc: fmt.Sprintf("%d timings in %s, from %s to %s; official latency %s, interval of the median from %s to %s.",
			len(all), plain.Count(len(trials), "trial"),
			ui.Micros(float64(all[0])), ui.Micros(float64(all[len(all)-1])), ui.Micros(s.MedianNS), ui.Micros(s.Interval.LoNS),
			ui.Micros(s.Interval.HiNS))}
	end := edge + int64(n)*width
	x := func(ns float64) float64 {
		share := (ns - float64(edge)) / float64(end-edge)
		return h.Left + math.Max(0, math.Min(1, share))*(h.Right-h.Left)
	}

	const height, gap = 34, 6
	per := (len(trials) + mostStrips - 1) / mostStrips
	var counts [][]int
	beyond, most := 0, 1
	for from := 0; from < len(trials); from += per {
		bins := make([]int, n)
		for _, trial := range trials[from:min(from+per, len(trials))] {
			for _, v := range trial {
				if v >= end {
					beyond++
					continue
				}
				bins[(v-edge)/width]++
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
		h.Strips = append(h.Strips, strip{label, y, y - 4, outline(bins, h.Left, (h.Right-h.Left)/float64(n), y,
			height/float64(most))})
		y += gap
	}
	h.Bottom = y - gap
	h.H = h.Bottom + 20
	h.Official, h.Interval = x(s.MedianNS), [2]float64{x(s.Interval.LoNS), x(s.Interval.HiNS)}
	for _, v := range linearTicks(float64(edge), float64(end), 4) {
		h.Ticks = append(h.Ticks, tick{x(v), trim(v / 1e3)})
	}
	if beyond > 0 {
		h.Note = fmt.Sprintf("%d beyond %s", beyond, ui.Micros(float64(end)))
	}
	return h
}

// Band is the width of the interval's band.
func (h *histogram) Band() float64 { return math.Max(1, h.Interval[1]-h.Interval[0]) }

// outline draws bars of width w on base; empty ones are skipped.
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

// linearTicks gives about n round values between lo and hi.
func linearTicks(lo, hi float64, n int) (list []float64) {
	step := niceStep((hi - lo) / float64(n))
	for i := 0; i <= 4*n; i++ {
		if v := (math.Ceil(lo/step) + float64(i)) * step; v <= hi {
			list = append(list, v)
		}
	}
	return list
}
