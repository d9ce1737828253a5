package counters

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"fisub/internal/plain"
)

// A Report writes launches as text.
type Report struct {
	GPU *GPU
	// Source returns the lines of a source file, or nil if they are unknown.
	Source func(file string) []string
	Lines  int // of each kernel, those that cost most
}

// Write writes a section for each launch.
func (p *Report) Write(w io.Writer, launches []Launch) {
	for i := range launches {
		if i > 0 {
			fmt.Fprintln(w)
		}
		p.write(w, &launches[i])
	}
}

func (p *Report) write(w io.Writer, l *Launch) {
	title, facts := p.GPU.Describe(l)
	fmt.Fprintln(w, title)
	for _, f := range facts {
		fmt.Fprintf(w, "  %-20s%s\n", f[0], f[1])
	}
	p.lines(w, l)
}

// Describe returns the title of a launch, and facts about it, each with its name. The least time is on g.
func (g *GPU) Describe(l *Launch) (title string, facts [][2]string) {
	name := plain.Cut(cmp.Or(l.Instance, l.Kernel), 100)
	title = fmt.Sprintf("%s, %s of %d threads", name, count(l.GridBlocks(), "block"), l.Threads())
	if n := l.Cluster[0] * l.Cluster[1] * l.Cluster[2]; n > 1 {
		title += fmt.Sprintf(" in clusters of %d", n)
	}
	if l.Launches > 1 {
		title += fmt.Sprintf(", %d launches", l.Launches)
	}
	if l.Sampled() {
		title += fmt.Sprintf("; counted in %d blocks", l.Blocks)
	}
	say := func(name, format string, args ...any) {
		facts = append(facts, [2]string{name, fmt.Sprintf(format, args...)})
	}
	say("time", "%s", g.boundText(l))
	o := g.Occupancy(l)
	registers, most, unless := "unknown registers", "at most ", ", or by registers"
	if l.Registers > 0 {
		registers, most, unless = fmt.Sprintf("%d registers", l.Registers), "", ""
	}
	say("resources", "%s and %d bytes of local memory per thread, %d + %d bytes of shared memory (static + dynamic)",
		registers, l.Local, l.StaticShared, l.DynamicShared)
	say("occupancy", "%s%s fit on a multiprocessor, limited by %s%s: %s%.0f %% of its warps; %s", most,
		count(o.Blocks, "block"), o.Limiter(), unless, most, 100*o.Warps, wavesText(l, &o, g))
	var all, shared Counts
	memory := map[Class]*Counts{}
	for i := range l.Rows {
		r := &l.Rows[i]
		all.Add(r.Counts)
		shared.Waves += r.Waves
		c := ClassOf(r.Op)
		if memory[c] == nil {
			memory[c] = &Counts{}
		}
		memory[c].Add(r.Counts)
	}
	if all.Warps > 0 {
		say("instructions", "%d warp instructions of the PTX, with %.1f lanes, of %.1f the predicate is true", all.Warps,
			float64(all.Threads)/float64(all.Warps), float64(all.Active)/float64(all.Warps))
	}
	if b := memory[Branch]; b != nil && b.Divergent > 0 {
		say("branches", "%d, %d of them divergent", b.Warps, b.Divergent)
	}
	for _, c := range []Class{GlobalLoad, GlobalStore, GlobalAtomic, GlobalReduce, AsyncCopy} {
		if q := memory[c]; q != nil && q.Requests > 0 {
			say(string(c)+"s", "%d requests, %.1f sectors each, %.1f would have the same bytes", q.Requests, ratio(q.Sectors,
				q.Requests), ratio(q.Least, q.Requests))
		}
	}
	if n := l.Read + l.Written; n > 0 {
		say("global memory", "%s read, %s of it cold; %s written", size(l.Read*32), size(l.Cold*32), size(l.Written*32))
	}
	for _, c := range []Class{SharedLoad, SharedStore, SharedAtomic, LoadMatrix, StoreMatrix, GlobalLoad, GlobalStore,
		AsyncCopy} {
		if q := memory[c]; q != nil && q.Shared > 0 {
			name := string(c)
			switch c {
			case GlobalLoad:
				name = "generic load"
			case GlobalStore:
				name = "generic store"
			case AsyncCopy:
				name = "to shared"
			}
			say(name, "%d requests, %d wavefronts, %d of them by bank conflicts", q.Shared, q.Waves, q.Conflicts)
		}
	}
	for _, c := range []Class{BulkCopy, TensorCopy} {
		if q := memory[c]; q != nil {
			text := fmt.Sprintf("%d of %s", q.Requests, size(q.Bytes))
			if q.Partial > 0 {
				text += fmt.Sprintf(", %d partly outside of the tensor", q.Partial)
			}
			say(string(c)+"s", "%s", text)
		}
	}
	if q := memory[Tensor]; q != nil {
		say("tensor cores", "%s operations", large(float64(q.Operations)))
	}
	var flops uint64
	for _, c := range []Class{Single, Double, Half} {
		if q := memory[c]; q != nil {
			flops += q.Operations
		}
	}
	if flops > 0 {
		say("arithmetic", "%s floating-point operations outside of tensor cores", large(float64(flops)))
	}
	if l.AtomicChain > 1 {
		say("atomics", "up to %d operations on one address", l.AtomicChain)
	}
	switch {
	case !l.Proved:
		say("exactness", "the machine code could not be compared: memory counts are those of the PTX")
	case len(l.Differences) == 0:
		say("exactness", "the machine code has the same memory instructions as the PTX: memory counts are exact")
	default:
		say("exactness", "memory counts are exact, except where the machine code differs from the PTX: %s",
			count(len(l.Differences), "place"))
	}
	return title, facts
}

// boundText returns "at least 20.9 µs on an H100 with a cold L2: an empty kernel 0.86, DRAM 20.04; ...".
func (g *GPU) boundText(l *Launch) string {
	bounds, least := g.Bounds(l)
	text := fmt.Sprintf("at least %s µs on %s whose L2 has none of the data", micros(least), g.withArticle())
	if l.Sampled() {
		text = fmt.Sprintf("about %s µs or more on %s (estimate)", micros(least), g.withArticle())
	}
	var parts []string
	if g.Empty > 0 {
		parts = append(parts, "an empty kernel "+micros(g.Empty))
	}
	for _, b := range bounds {
		part := b.What + " " + micros(b.Seconds)
		if b.Estimate && !l.Sampled() {
			part += " (estimate)"
		}
		parts = append(parts, part)
	}
	return text + ": " + strings.Join(parts, ", ")
}

func wavesText(l *Launch, o *Occupancy, g *GPU) string {
	if o.Blocks == 0 {
		return "no block fits"
	}
	text := fmt.Sprintf("%.2f waves on %d multiprocessors", o.Waves, g.Processors)
	whole := math.Floor(o.Waves)
	switch tail := o.Waves - whole; {
	case l.GridBlocks() < g.Processors:
		text += fmt.Sprintf(", of which %d have no block", g.Processors-l.GridBlocks())
	case whole > 0 && tail > 0:
		text += fmt.Sprintf(", the last one fills %.0f %%", 100*tail)
	}
	return text
}

// A SourceLine has the counts of all instructions of a source line.
type SourceLine struct {
	File   string
	Line   int
	Share  float64 // of the launch's cost, an estimate
	Counts Counts
	Advice []string // what an expert would say
}

// cost returns the cycles that a multiprocessor's units need for the row's instructions, as an estimate: 64 bytes of a
// sector from the L2, a wavefront, or four instructions of warps each take one.
func (r *Row) cost() float64 {
	return float64(r.Sectors)/2 + float64(r.Waves) + float64(r.Warps)/partitions
}

// SourceLines returns the source lines of a launch, those that cost most first. Without line information it returns
// none.
func (l *Launch) SourceLines() []SourceLine {
	total := 0.0
	all := map[string]*SourceLine{}
	var order []*SourceLine
	for i := range l.Rows {
		r := &l.Rows[i]
		total += r.cost()
		if r.Line == 0 || r.File == "" {
			continue
		}
		key := fmt.Sprintf("%s:%d", r.File, r.Line)
		s := all[key]
		if s == nil {
			s = &SourceLine{File: r.File, Line: r.Line}
			all[key], order = s, append(order, s)
		}
		s.Share += r.cost()
		s.Counts.Add(r.Counts)
		s.Advice = append(s.Advice, Advice(r)...)
	}
	for _, d := range l.Differences {
		if s := all[fmt.Sprintf("%s:%d", d.File, d.Line)]; s != nil {
			s.Advice = append(s.Advice, "not exact: "+d.Text)
		}
	}
	slices.SortStableFunc(order, func(a, b *SourceLine) int { return cmp.Compare(b.Share, a.Share) })
	lines := make([]SourceLine, len(order))
	for i, s := range order {
		lines[i] = *s
		lines[i].Share /= max(total, 1)
	}
	return lines
}

func (p *Report) lines(w io.Writer, l *Launch) {
	lines := l.SourceLines()
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(w, "  lines that cost most (estimate):")
	for _, s := range lines[:min(p.Lines, len(lines))] {
		text := ""
		if source := p.Source(s.File); s.Line <= len(source) {
			text = strings.TrimSpace(source[s.Line-1])
		}
		fmt.Fprintf(w, "  %5.1f %%  %s:%d  %s\n", 100*s.Share, s.File, s.Line, text)
		for _, advice := range s.Advice {
			fmt.Fprintf(w, "             %s\n", advice)
		}
	}
}

// Thresholds of Nsight Compute's rules.
const (
	fewLanes      = 24 // of a warp
	manyConflicts = 0.10
)

// Advice returns what an expert would say about the instructions of a row.
func Advice(r *Row) (all []string) {
	if r.Sectors > r.Least && r.Requests > 0 {
		text := fmt.Sprintf("%s: %.1f sectors per request, %.1f would do", r.Op, ratio(r.Sectors, r.Requests),
			ratio(r.Least, r.Requests))
		if s := r.GlobalStride; s != 0 && s != Varies {
			text += fmt.Sprintf(": neighbouring lanes are %d bytes apart", abs(s))
		} else if s == Varies {
			text += ": the lanes' addresses have no constant distance"
		}
		all = append(all, text)
	}
	if float64(r.Conflicts) > manyConflicts*float64(r.Waves) {
		text := fmt.Sprintf("%s: %.1f wavefronts per request, %.1f would do: bank conflicts", r.Op, ratio(r.Waves, r.Shared),
			ratio(r.Waves-r.Conflicts, r.Shared))
		if s := r.SharedStride; s != 0 && s != Varies {
			text += fmt.Sprintf(", neighbouring lanes are %d bytes apart", abs(s))
			if abs(s)%128 == 0 {
				text += fmt.Sprintf("; a row of %d bytes would have none", abs(s)+4)
			}
		}
		all = append(all, text)
	}
	if ClassOf(r.Op) == Branch && r.Divergent > 0 && r.Divergent*10 >= r.Warps {
		all = append(all, fmt.Sprintf("%s: the lanes part in %.0f %% of %d executions", r.Op,
			100*ratio(r.Divergent, r.Warps), r.Warps))
	}
	if ClassOf(r.Op) != Branch && r.Threads < fewLanes*r.Warps && (r.Requests > 0 || r.Shared > 0) {
		all = append(all, fmt.Sprintf("%s: %.1f of 32 lanes take part", r.Op, ratio(r.Threads, r.Warps)))
	}
	if r.Partial > 0 {
		all = append(all, fmt.Sprintf("%s: %d of %d boxes are partly outside of the tensor", r.Op, r.Partial, r.Requests))
	}
	return all
}

func abs(s Stride) Stride { return max(s, -s) }

func ratio(a, b uint64) float64 { return float64(a) / float64(max(1, b)) }

func micros(seconds float64) string { return fmt.Sprintf("%.2f", seconds*1e6) }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// size returns a number of bytes with a binary unit.
func size(n uint64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

// large returns a number with an SI prefix.
func large(n float64) string {
	for _, u := range []struct {
		value float64
		name  string
	}{{1e12, " T"}, {1e9, " G"}, {1e6, " M"}} {
		if n >= 10*u.value {
			return fmt.Sprintf("%.1f%s", n/u.value, u.name)
		}
	}
	return fmt.Sprintf("%.0f", n)
}
