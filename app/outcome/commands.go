package outcome

import (
	"cmp"
	"strings"

	"fisub/app/submit"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/project/preflight"
	"fisub/project/tools"
	"fisub/remote/dispatch"
	"fisub/workloads"
)

// A Sanitized is a call of sanitize.
type Sanitized struct {
	Run     *event.Run     // describes the submission, the set and the workloads
	Records []tools.Record // in the order of the tools
	Where   string         // flags that choose the device or the hosts, such as " --device emu"
	Remote  bool           // Where chooses hosts
	Contest bool           // the definition has the contest's workload set
}

// Sanitize records the results of the sanitizers. Wrong outputs count as a fault.
func (o *Outcome) Sanitize(s Sanitized) {
	o.Status, o.Submission = "clean", ranName(s.Run)
	known := func(text string) string { return plain.Places(text, s.Run.Folder, s.Run.Sources) }
	set := s.Run.Set
	if s.Contest {
		set = workloads.ContestSet
	}
	run := "fisub local"
	if s.Remote {
		run = "fisub remote"
	}
	o.Next = run + s.Where + " --set " + set
	for _, r := range s.Records {
		if r.Verdict == tools.Clean {
			continue
		}
		o.Status = "faults"
		if o.Faults++; o.Fault != nil && o.Fault.Code != string(trace.IncorrectNumerical) {
			continue // a finding comes before wrong outputs
		}
		o.Fault = &Fault{Code: r.Tool, Workload: r.Workload}
		for _, w := range s.Run.Workloads {
			if w.UUID == r.Workload {
				o.Fault.Axes = w.Axes
			}
		}
		o.Fault.tell(known(r.Verdict), known(r.Log))
		one := s.Where + " --set " + s.Run.Set + " --workload " + plain.Short(r.Workload)
		switch {
		case r.Tool == tools.Build:
			o.Fault.Code, o.Next = string(trace.CompileError), "fisub check"
		case strings.HasPrefix(r.Verdict, tools.Wrong) && s.Remote:
			o.Fault.Code, o.Next = string(trace.IncorrectNumerical), run+one
		case strings.HasPrefix(r.Verdict, tools.Wrong):
			o.Fault.Code, o.Next = string(trace.IncorrectNumerical), run+one+" --dump dump"
		default:
			o.Next = "fisub sanitize" + one + " --tool " + r.Tool
		}
	}
}

// Profile records the kernels of a profile and its report. root is the project's folder.
func (o *Outcome) Profile(root string, r tools.Record) {
	o.Status, o.Kernels, o.File, o.Next = "profiled", r.Kernels, inProject(root, r.Report), "fisub compare HEAD ."
}

// Pack records that s was packed into file, which is relative to the project, with the findings in its sources.
func (o *Outcome) Pack(root, file string, s *trace.Solution, findings []preflight.Finding) {
	o.Status, o.Submission, o.File, o.Next = "packed", nameOf(s), inProject(root, file), "fisub submit --dry-run"
	for _, f := range findings {
		if f.Severity == preflight.Note {
			continue
		}
		o.Warnings = append(o.Warnings, warning(root, f))
		if f.Severity == preflight.Error {
			o.Next = "fisub check"
		}
	}
}

// Submit records the steps of submit. The first step that prevents the tag, a fault if there is one, becomes the first
// fault. root is the project's folder, flags are further flags of the call, such as " --untested".
func (o *Outcome) Submit(root string, p *submit.TagPlan, dryRun bool, flags string) {
	o.Submission = &SubmissionName{Definition: p.Definition, Solution: p.Name, ContentHash: p.Hash}
	o.Tag = p.Tag
	refused, faulty := p.Refused()
	bare := false // no remote to push to
	for _, step := range p.Steps {
		switch step.State {
		case submit.Warning:
			o.Warnings = append(o.Warnings, step.Name+": "+plain.Line(step.Text))
			bare = bare || step.Name == "remote"
		case submit.Fault, submit.Todo:
			o.Faults++
			if o.Fault == nil && (step.State == submit.Fault) == faulty {
				o.Fault = &Fault{Code: step.Name, Hint: step.Hint}
				text, excerpt, _ := strings.Cut(step.Text, "\n")
				o.Fault.tell(text, excerpt)
				if file := inProject(root, o.Fault.File); file != o.Fault.File {
					o.Fault.Text = strings.Replace(o.Fault.Text, o.Fault.File, file, 1)
					o.Fault.File = file
				}
				o.Next = step.Command
			}
		}
	}
	switch {
	case refused:
		o.Status = "not submitted"
		if o.Next == "" {
			o.Next = "fisub submit --dry-run" + flags
		}
	case p.Pushed:
		o.Status = "pushed"
	case dryRun:
		o.Status, o.Next = "would submit", "fisub submit"+flags
	default:
		o.Status = "tagged"
		if !bare {
			o.Next = "fisub submit --push" + flags
		}
	}
}

// Planned records the plan of a remote run that was not started. next is the command that starts it.
func (o *Outcome) Planned(p *dispatch.Plan, bundle int64, next string) {
	o.Status, o.Submission, o.Next = "planned", ranName(&p.Run), next
	o.Plan = &Plan{Set: p.Run.Set, Workloads: len(p.Run.Workloads), GPU: cmp.Or(p.GPU, "none"), LimitS: p.Limit.Seconds(),
		BundleBytes: bundle, Places: p.Used()}
}

// Unbuilt records that s, whose sources are in folder, was not sent because it does not compile.
func (o *Outcome) Unbuilt(s *trace.Solution, folder string, build *device.BuildError) {
	var files []string
	for _, f := range s.Sources {
		files = append(files, f.Path)
	}
	known := func(text string) string { return plain.Places(text, folder, files) }
	o.Status, o.Submission, o.Faults, o.Next = "not passed", nameOf(s), 1, "fisub check"
	o.Fault = &Fault{Code: string(trace.CompileError)}
	o.Fault.tell(known(build.Text), known(build.Log))
}

// Detached records a remote run that continues without this program.
func (o *Outcome) Detached(r *event.Run) {
	o.Status, o.Submission, o.Next = "running", ranName(r), "fisub remote attach "+r.ID
	o.Run = &RunTotals{ID: r.ID, Set: r.Set, Workloads: len(r.Workloads), Whole: r.Whole, Missing: len(r.Workloads)}
}

func ranName(r *event.Run) *SubmissionName {
	return &SubmissionName{r.Definition, r.Solution, r.ContentHash}
}
