package submit

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	data "fisub/workloads"
)

// A Proof is what the run folders say about a solution.
type Proof struct {
	Run      *runs.Run // on a GPU, on all workloads of the contest's set, all of them passed; nil where there is none
	Seen     *runs.Run // the newest run of this content that passed what it ran, where there is no such; or nil
	Broken   string    // says of the newest run of this content with a workload that did not pass which it is; or ""
	Found    string    // says of the newest run of this content with findings which it is, and the first finding; or ""
	Failed   string    // why the newest run of this content is no proof; "" where it is, or there is none
	Changed  string    // the newest run of the definition that passed what it ran, where none is of this content
	Old      string    // content hash of that run
	Warnings []string  // what the proof should be read with
	Edge     string    // id of the newest run of this content on set edge, on any device; "" if there is none
	EdgeLack string    // why that run, or none, does not show that the set passes; "" if it does, or there is no such set
}

// maxOthers is how many runs of other content are read in full.
const maxOthers = 20

// Prove looks below root for runs of sol. workloads gives the workloads of a set of the definition; where there is no
// contest set, the default one counts.
func Prove(root string, sol *trace.Solution, workloads func(set string) ([]*trace.Workload, error)) (*Proof, error) {
	ids, err := runs.IDs(root)
	if err != nil {
		return nil, err
	}
	name := data.ContestSet
	set, err := workloads(name)
	if err != nil {
		name = data.DefaultSet
		set, _ = workloads(name) // a dataset without any has no run either
	}
	slices.Reverse(ids)
	p := &Proof{}
	edges, _ := workloads(data.EdgeSet)
	if len(edges) > 0 {
		p.EdgeLack = "this content has not run on set edge"
	}
	hash, others := sol.Hash(), 0
	for _, id := range ids {
		dir := filepath.Join(root, runs.Dir, id)
		header, err := runs.Header(dir)
		if err != nil || header.Definition != sol.Definition {
			continue // no run of a solution, or one that did not begin
		}
		same := header.ContentHash == hash
		if !same && (p.Changed != "" || others == maxOthers) {
			continue
		}
		r, err := runs.Read(dir)
		if err != nil {
			p.Warnings = append(p.Warnings, fmt.Sprintf("run %s: %v", id, err))
			continue
		}
		passed, total := r.Passed()
		whole := total > 0 && passed == total && r.State() == "done"
		if !same {
			if others++; whole {
				p.Changed, p.Old = id, header.ContentHash
			}
			continue
		}
		if header.Set == data.EdgeSet && len(edges) > 0 { // on hard inputs: no other run counts less for it
			if p.Edge == "" {
				p.Edge = id
				if p.EdgeLack = lacking(r, sol, data.EdgeSet, edges); p.EdgeLack != "" {
					p.EdgeLack = fmt.Sprintf("run %s %s%s", id, p.EdgeLack, failing(r))
				}
			}
			continue
		}
		lacks := lacking(r, sol, name, set)
		if lacks == "" && r.Run.Device.Emulated {
			lacks = "was emulated, which is no proof of what a GPU does"
		}
		if text := broken(r, sol); text != "" && p.Broken == "" {
			p.Broken = fmt.Sprintf("run %s, of the same content, %s", id, text)
		}
		if text := found(r); text != "" && p.Found == "" && !otherStyle(r, sol) {
			p.Found = fmt.Sprintf("run %s, of the same content, has %s", id,
				plain.Places(text, r.Run.Folder, r.Run.Sources))
		}
		switch {
		case lacks == "" && p.Run == nil:
			p.Run = r
		case lacks != "" && p.Run == nil && p.Failed == "":
			p.Failed = fmt.Sprintf("run %s %s", id, lacks)
		}
		if p.Seen == nil && whole && !otherStyle(r, sol) {
			p.Seen = r
		}
	}
	if p.Run != nil {
		p.Failed, p.Changed, p.Old, p.Seen = "", "", "", p.Run
	}
	if p.Seen == nil {
		return p, nil
	}
	f := p.Seen.Run
	warn := func(so bool, format string, args ...any) {
		if so {
			p.Warnings = append(p.Warnings, "run "+p.Seen.ID+" "+fmt.Sprintf(format, args...))
		}
	}
	warn(f.Solution != sol.Name, "was named %q, the submission is named %q", f.Solution, sol.Name)
	warn(f.Author != sol.Author, "was by %q, the submission is by %q", f.Author, sol.Author)
	return p, nil
}

// found counts the findings of a run and names the first; "" if there is none.
func found(r *runs.Run) string {
	n, first := 0, ""
	for _, row := range r.Rows {
		for _, f := range row.Findings {
			if n++; n == 1 {
				first = fmt.Sprintf("%s on workload %s: %s", plain.Line(f.Check), plain.Short(row.UUID), plain.Line(f.Text))
			}
		}
	}
	if n == 0 {
		return ""
	}
	return plain.Count(n, "finding") + ": " + first
}

// broken says of a run with a workload that did not pass how many did; "" of another. A time limit on an emulation says
// nothing of a GPU's, and a run in another style is one of another solution.
func broken(r *runs.Run, sol *trace.Solution) string {
	if r.Run == nil || otherStyle(r, sol) {
		return ""
	}
	for _, row := range r.Rows {
		e := row.Evaluated
		if e == nil || e.Passed() || e.Status() == trace.Timeout && r.Run.Device.Emulated {
			continue
		}
		passed, total := r.Passed()
		return fmt.Sprintf("passed %d of its %d workloads: %s on %s", passed, total, e.Status(), plain.Short(row.UUID))
	}
	return ""
}

// otherStyle reports whether the run called the solution in the other style.
func otherStyle(r *runs.Run, sol *trace.Solution) bool {
	return r.Run.DPS != sol.Spec.DestinationPassingStyle
}

// lacking says what keeps a run from being the proof that a solution of its content passes the workloads of set; ""
// where nothing does.
func lacking(r *runs.Run, sol *trace.Solution, name string, set []*trace.Workload) string {
	if r.Run == nil {
		return "has no run.json"
	}
	if otherStyle(r, sol) {
		return fmt.Sprintf("ran with destination_passing_style = %t", r.Run.DPS)
	}
	missing := 0
	for _, w := range set {
		if !slices.ContainsFunc(r.Run.Workloads, func(ran event.Workload) bool { return ran.UUID == w.UUID }) {
			missing++
		}
	}
	switch passed, total := r.Passed(); {
	case passed < total:
		return fmt.Sprintf("passed %d of its %d workloads", passed, total)
	case r.State() != "done":
		return "is " + r.State()
	case missing > 0 || total == 0:
		return fmt.Sprintf("left out %d of the %d workloads of set %s", missing, len(set), name)
	}
	return ""
}

// failing names the first workload of set edge that did not pass, and what it tests.
func failing(r *runs.Run) string {
	for _, row := range r.Rows {
		if e := row.Evaluated; e != nil && !e.Passed() {
			return fmt.Sprintf(": %s on %s (%s)", e.Status(), plain.Short(row.UUID), data.Tests(r.Run.Definition, row.UUID))
		}
	}
	return ""
}

// note tells in a tag's message what was run.
func (p *Proof) note(n *Note) {
	if p == nil || p.Seen == nil {
		n.Run = "none"
		return
	}
	f := p.Seen.Run
	n.Run = p.Seen.ID
	n.Result, n.Device = Headline(p.Seen), f.Device.Name
	if f.Device.Arch != "" {
		n.Device += ", " + f.Device.Arch
	}
	if f.Device.Driver != "" {
		n.Device += ", driver " + f.Device.Driver
	}
	if f.Device.Emulated {
		n.Device = "emulated on " + n.Device
	}
}

// Headline sums a run up: verdicts, latency with its conditions, score.
func Headline(r *runs.Run) string {
	passed, total := r.Passed()
	parts := []string{fmt.Sprintf("%d of %d PASSED of set %s", passed, total, r.Run.Set)}
	timer, l2, timed := "", "cold", 0
	for _, row := range r.Rows {
		if row.Evaluated == nil || row.Evaluated.Latency() == nil {
			continue
		}
		timed++
		if s := row.Samples; s != nil {
			timer = s.Timer
			if !s.ColdL2 {
				l2 = "warm"
			}
		}
	}
	if mean := r.Official(); mean > 0 {
		parts = append(parts, fmt.Sprintf("mean latency %.2f µs over %d workloads (%s L2, %s, profile %s)", mean/1e3,
			timed, l2, timer, r.Run.Profile.Name))
	} else if !r.Run.Device.Emulated {
		parts = append(parts, "not timed")
	}
	if d := r.Done; d != nil && d.Score != nil && r.Run.Baseline != nil {
		parts = append(parts, fmt.Sprintf("%s %.3f over %s", r.Run.Baseline.Score(), *d.Score, r.Run.Baseline.Name))
	}
	return strings.Join(parts, "; ")
}
