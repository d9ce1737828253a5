package submit

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/trace"
)

// A Proof is what the run folders say about a solution.
type Proof struct {
	Run      *runs.Run // on all workloads of its set, all of them passed; nil where there is none
	Failed   string    // why the newest run of this content is no such run; "" where it is, or there is none
	Changed  string    // the newest run of the definition that passed, where none is of this content
	Old      string    // content hash of that run
	Warnings []string  // what the proof should be read with
}

// maxOthers is how many runs of other content are read in full.
const maxOthers = 20

// Prove looks below root for a run of sol. One on a GPU is preferred over an emulated one, then the newest. workloads
// gives the workloads of a set of the definition.
func Prove(root string, sol *trace.Solution, workloads func(set string) ([]*trace.Workload, error)) (*Proof, error) {
	ids, err := runs.IDs(root)
	if err != nil {
		return nil, err
	}
	slices.Reverse(ids)
	p := &Proof{}
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
		lacks, broke := lacking(r, sol, workloads)
		switch {
		case !same:
			if others++; lacks == "" {
				p.Changed, p.Old = id, header.ContentHash
			}
		case lacks != "":
			if p.Run == nil && p.Failed == "" {
				p.Failed = fmt.Sprintf("run %s %s", id, lacks)
			}
			if p.Run == nil && broke {
				p.Warnings = append(p.Warnings, fmt.Sprintf("run %s, of the same content, %s", id, lacks))
			}
		case p.Run == nil, p.Run.Run.Device.Emulated && !r.Run.Device.Emulated:
			p.Run = r
		}
		if p.Run != nil && !p.Run.Run.Device.Emulated {
			break
		}
	}
	if p.Run == nil {
		p.Warnings = nil // Failed tells
		return p, nil
	}
	p.Failed, p.Changed, p.Old = "", "", ""
	f, findings := p.Run.Run, 0
	for _, row := range p.Run.Rows {
		findings += len(row.Findings)
	}
	warn := func(so bool, format string, args ...any) {
		if so {
			p.Warnings = append(p.Warnings, "run "+p.Run.ID+" "+fmt.Sprintf(format, args...))
		}
	}
	warn(f.Device.Emulated, "was emulated: its results are right, its speed on a GPU is not known")
	warn(f.Solution != sol.Name, "was named %q, the submission is named %q", f.Solution, sol.Name)
	warn(f.Author != sol.Author, "was by %q, the submission is by %q", f.Author, sol.Author)
	warn(f.DPS == nil, "does not tell whether it used destination-passing style")
	warn(findings > 0, "has %d findings of the honesty checks", findings)
	return p, nil
}

// lacking says what keeps a run from being the proof that a solution of its content passes; "" where nothing does.
// broke tells that a workload did not pass.
func lacking(r *runs.Run, sol *trace.Solution, workloads func(set string) ([]*trace.Workload, error)) (text string,
	broke bool) {
	if r.Run == nil {
		return "has no run.json", false
	}
	if p := r.Run.DPS; p != nil && *p != sol.Spec.DestinationPassingStyle {
		return fmt.Sprintf("ran with destination_passing_style = %t", *p), false
	}
	passed, total := r.Passed()
	for _, row := range r.Rows {
		broke = broke || row.Evaluated != nil && row.Evaluated.Status != string(trace.Passed)
	}
	set, err := workloads(r.Run.Set)
	switch {
	case err != nil:
		return fmt.Sprintf("ran set %s: %v", r.Run.Set, err), broke
	case passed < total:
		return fmt.Sprintf("passed %d of its %d workloads", passed, total), broke
	case r.State() != "done":
		return "is " + r.State(), broke
	}
	missing := 0
	for _, w := range set {
		if !slices.ContainsFunc(r.Run.Workloads, func(ran event.Workload) bool { return ran.UUID == w.UUID }) {
			missing++
		}
	}
	if missing > 0 || total == 0 {
		return fmt.Sprintf("left out %d of the %d workloads of set %s", missing, len(set), r.Run.Set), broke
	}
	return "", false
}

// note tells in a tag's message what was run.
func (p *Proof) note(n *Note) {
	if p == nil || p.Run == nil {
		n.Run = "none"
		return
	}
	f := p.Run.Run
	n.Run = p.Run.ID
	n.Result, n.Device = Headline(p.Run), f.Device.Name
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
		if row.Evaluated == nil || row.Evaluated.Latency == nil {
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
		parts = append(parts, fmt.Sprintf("contest score %.3f over %s", *d.Score, r.Run.Baseline.Name))
	}
	return strings.Join(parts, "; ")
}
