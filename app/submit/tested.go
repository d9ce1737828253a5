package submit

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/runs"
	data "fisub/workloads"
)

// A Proof is the evidence for a solution in the run folders.
type Proof struct {
	Run      *runs.Run // newest GPU run of this content in which the contest's whole set passed, or nil
	Seen     *runs.Run // Run, else the newest run of this content whose workloads all passed, or nil
	Broken   string    // describes the newest run of this content with a workload that did not pass, or ""
	Found    string    // describes the newest run of this content with findings, and the first finding, or ""
	Failed   string    // why the newest run of this content does not count; "" if there was no run, or Run is set
	Changed  string    // id of the newest run of other content whose workloads all passed; "" if Run is set
	Old      string    // content hash of that run
	Warnings []string  // about the proof
	Edge     string    // id of the newest run of this content on set edge, on any device, or ""
	EdgeLack string    // why set edge is not proven to pass; "" if it is, or does not exist

	set                 string // that must pass
	brokenRun, foundRun string // ids of the runs of Broken and Found
	emulated            bool   // a run of this content passed all of set on the virtual GPU
}

// maxOthers limits the runs of other content that are read in full.
const maxOthers = 20

// Prove looks for a proof of sol in the runs below root. workloads returns a set of the definition; without a contest
// set, the default set counts.
func Prove(root string, sol *trace.Solution, workloads func(set string) ([]*trace.Workload, error)) (*Proof, error) {
	ids, err := runs.IDs(root)
	if err != nil {
		return nil, err
	}
	name := data.ContestSet
	set, err := workloads(name)
	if err != nil {
		name = data.DefaultSet
		set, _ = workloads(name) // without a default set there was no run either
	}
	slices.Reverse(ids)
	p := &Proof{set: name}
	edges, _ := workloads(data.EdgeSet)
	if len(edges) > 0 {
		p.EdgeLack = "no run of this content on set edge"
	}
	hash, others := sol.Hash(), 0
	for _, id := range ids {
		dir := filepath.Join(root, runs.Dir, id)
		header, err := runs.Header(dir)
		if err != nil || header.Definition != sol.Definition {
			continue // of another definition, or never started
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
		if header.Set == data.EdgeSet && len(edges) > 0 { // hard inputs: the run counts only for Edge
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
			p.emulated = true
			lacks = "used the virtual GPU, which proves nothing about a GPU"
		}
		if text := broken(r, sol); text != "" && p.Broken == "" {
			p.Broken = fmt.Sprintf("run %s, of the same content, %s", id, text)
			p.brokenRun = id
		}
		if text := found(r); text != "" && p.Found == "" && !otherStyle(r, sol) {
			p.Found = fmt.Sprintf("run %s, of the same content, has %s", id,
				plain.Places(text, r.Run.Folder, r.Run.Sources))
			p.foundRun = id
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
	warn(f.Solution != sol.Name, "had the name %q, now it is %q", f.Solution, sol.Name)
	warn(f.Author != sol.Author, "had the author %q, now it is %q", f.Author, sol.Author)
	return p, nil
}

// run returns the command of a run that could prove the solution. On a machine without a GPU, the first run passes on
// the virtual GPU; the next command then names hosts.
func (p *Proof) run() string {
	if p.emulated {
		return "fisub remote --gpu b200 --set " + p.set
	}
	return "fisub local --set " + p.set
}

// found counts the findings of a run and describes the first, or returns "".
func found(r *runs.Run) string {
	i := slices.IndexFunc(r.Rows, func(row runs.Row) bool { return len(row.Findings) > 0 })
	if i < 0 {
		return ""
	}
	f := r.Rows[i].Findings[0]
	return fmt.Sprintf("%s: %s on workload %s: %s", plain.Count(r.Totals().Findings, "finding"), plain.Line(f.Check),
		plain.Short(r.Rows[i].UUID), plain.Line(f.Text))
}

// broken describes a run in which a workload did not pass, or returns "". A timeout on the virtual GPU says nothing
// about a GPU, and a run in another style was of another solution.
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

// otherStyle reports whether the run called the solution in the other style (destination passing or not).
func otherStyle(r *runs.Run, sol *trace.Solution) bool {
	return r.Run.DPS != sol.Spec.DestinationPassingStyle
}

// lacking returns the reason why a run does not prove that its content passes the workloads of set, or "".
func lacking(r *runs.Run, sol *trace.Solution, name string, set []*trace.Workload) string {
	if r.Run == nil {
		return "has no run.json"
	}
	if otherStyle(r, sol) {
		return fmt.Sprintf("ran with destination_passing_style = %t", r.Run.DPS)
	}
	missing := 0
	for _, w := range set {
		if !slices.ContainsFunc(r.Run.Workloads, func(ran event.WorkloadRef) bool { return ran.UUID == w.UUID }) {
			missing++
		}
	}
	switch passed, total := r.Passed(); {
	case passed < total:
		return fmt.Sprintf("passed %d of its %d workloads", passed, total)
	case r.State() != "done":
		return "is " + r.State()
	case r.Run.KnownSecret:
		return "repeated the draws of a known secret"
	case missing > 0 || total == 0:
		return fmt.Sprintf("left out %d of the %d workloads of set %s", missing, len(set), name)
	}
	return ""
}

// failing describes the first workload of set edge that did not pass, or returns "".
func failing(r *runs.Run) string {
	for _, row := range r.Rows {
		if e := row.Evaluated; e != nil && !e.Passed() {
			return fmt.Sprintf(": %s on %s (%s)", e.Status(), plain.Short(row.UUID), data.Tests(r.Run.Definition, row.UUID))
		}
	}
	return ""
}

// note fills in the run and its result.
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
		n.Device = "on the virtual GPU, " + n.Device
	}
}

// Headline summarises a run: verdicts, latency with its conditions, score.
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
