package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"fisub/app/submit"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/preflight"
	"fisub/project/setup"
	"fisub/workloads"
)

type submitOptions struct {
	submit.Options
	dryRun bool
	named  string // by the flag --remote
}

func (a *app) submitCommand() *cli.Command {
	var o submitOptions
	return &cli.Command{
		Name:  "submit",
		Usage: "tag a tested commit for the contest",
		Flags: []cli.Flag{
			boolFlag(&o.dryRun, "dry-run", "neither tag nor push; exit with 0 unless something is wrong"),
			boolFlag(&o.Untested, "untested", "tag without a passed run; the tag records that"),
			boolFlag(&o.Findings, "accept-findings", "tag although a run of the same content has findings"),
			boolFlag(&o.WillPush, "push", "push the tag"),
			stringFlag(&o.named, "remote", "the git remote `REMOTE`",
				"remote in [submit], else the remote of the branch, else origin"),
		},
		Action: func(c *cli.Context) error { return a.submit(c.Context, o) },
	}
}

// A submitted is the JSON output of submit.
type submitted struct {
	OK     bool `json:"ok"`
	DryRun bool `json:"dry_run"`
	*submit.TagPlan
}

func (a *app) submit(ctx context.Context, o submitOptions) error {
	if o.dryRun && o.WillPush {
		return usage.Errorf("omit one of them", "--dry-run and --push exclude each other")
	}
	data, err := a.openContest()
	if err != nil {
		return err
	}
	s, err := project.LoadSources(a.ConfigPath(), data)
	if err != nil {
		return err
	}
	o.AskedName = cmp.Or(o.named, s.Config.Submit.Remote)
	survey, err := submit.NewSurvey(ctx, s.Root, o.AskedName)
	if err != nil {
		return err
	}
	p, err := a.submitPlan(ctx, o.Options, survey, s)
	if err == nil && p.NeedsEdge() && !o.dryRun {
		a.runEdge(ctx, s)
		p, err = a.submitPlan(ctx, o.Options, survey, s)
	}
	if err != nil {
		return err
	}
	if !a.json {
		a.showPlanned(p)
	}
	refused, faulty := p.Refused()
	if !refused && !o.dryRun {
		if err := a.submitTag(ctx, o, survey, p); err != nil {
			return err
		}
	}
	ok, note := !refused || o.dryRun && !faulty, ""
	switch {
	case !ok:
		note = "nothing was tagged"
	case refused:
		note = "nothing is wrong; the remaining steps are listed above"
	case o.dryRun:
		note = "a dry run: nothing was tagged"
	case !p.Pushed:
		note = "not pushed: fisub submit --push sends it"
	}
	if a.final != nil {
		a.final.Submit(s.Root, p, o.dryRun, o.flags())
	}
	if a.json {
		err = a.writeJSON(submitted{ok, o.dryRun, p})
	} else if note != "" {
		a.term.Note("%s", note)
	}
	if err == nil && !ok {
		return shown(exitUsage)
	}
	return err
}

// flags returns the flags of another call with the same conditions.
func (o *submitOptions) flags() (text string) {
	if o.Untested {
		text += " --untested"
	}
	if o.Findings {
		text += " --accept-findings"
	}
	if o.named != "" {
		text += " --remote " + plain.Word(o.named)
	}
	return text
}

// submitTag creates the tag of p and, with --push, pushes it.
func (a *app) submitTag(ctx context.Context, o submitOptions, survey *submit.Survey, p *submit.TagPlan) error {
	made, err := survey.Make(ctx, p)
	if err != nil {
		return err
	}
	if made && !a.json {
		a.line("tagged", "%s, object %s", p.Tag, p.Object)
	}
	if !o.WillPush {
		return nil
	}
	sent, err := survey.Send(ctx, p)
	if err != nil {
		return err
	}
	if sent && !a.json {
		a.line("pushed", "%s to %s", p.Tag, survey.Remote.Name)
	}
	return nil
}

// submitPlan plans the tag of s and lists the open steps.
func (a *app) submitPlan(ctx context.Context, o submit.Options, survey *submit.Survey, s *project.Submission) (
	p *submit.TagPlan, err error) {
	o.Config, o.Solution, o.Pattern, o.Version = s.Config.Path, s.Solution, s.Config.Submit.Tag, Version
	o.Proof, err = submit.Prove(s.Root, s.Solution, func(set string) ([]*trace.Workload, error) {
		return s.Data.Workloads(s.Definition.Name, set)
	})
	if err != nil {
		return nil, err
	}
	checked, err := a.preflight(ctx, preflight.Options{Dataset: s.Data, Archs: []string{contestArch},
		Remote: checkTable}, o.Config)
	if err != nil {
		return nil, err
	}
	o.Checked = checkSteps(s, checked[0], o.Untested)
	if p, err = survey.Plan(ctx, o); err == nil {
		p.Config = plain.Relative(p.Config)
	}
	return p, err
}

// checkSteps turns the findings of check, except notes, into steps of the plan. Sources that were not compiled are not
// ready, unless they may be tagged untested.
func checkSteps(s *project.Submission, r *preflight.Report, untested bool) []submit.Step {
	var steps []submit.Step
	sound := true
	for _, f := range r.Findings {
		step := submit.Step{Name: "check", State: submit.Fault, Text: f.Text(), Hint: f.Hint}
		switch {
		case f.Severity == preflight.Warning:
			step.State = submit.Warning
		case f.Severity == preflight.Error:
			sound, step.Command = false, "fisub check"
		case f.Code == "not-compiled" && s.Solution.Spec.Compiled() && !untested:
			step.State, step.Command = submit.Todo, "fisub toolchain install"
		case f.Code == "not-compiled":
			step.State = submit.Warning
		default:
			continue
		}
		steps = append(steps, step)
	}
	if sound {
		text := fmt.Sprintf("sound: %s, %s, %s", plain.Count(len(s.Solution.Sources), "file"), s.Solution.Spec.EntryPoint,
			callText(s.Solution, s.Definition))
		steps = slices.Insert(steps, 0, submit.Step{Name: "check", State: submit.OK, Text: text})
	}
	return steps
}

// runEdge runs set edge on the virtual GPU. If that fails, it prints a note, and the plan lists the open step.
func (a *app) runEdge(ctx context.Context, s *project.Submission) {
	show := a.events()
	if a.json { // stdout holds the plan
		show = func(event.Event) error { return nil }
	}
	o := localOptions{Options: setup.Options{Set: workloads.EdgeSet, Device: "emu"}}
	if _, err := a.runLocal(ctx, s, o, show); err != nil {
		a.term.Note("set edge was not run: %v", err)
	}
}

// showPlanned prints completed and open steps to stdout, and faults and warnings to stderr.
func (a *app) showPlanned(p *submit.TagPlan) {
	a.line("submission", "%s by %s, %s, %s, hash %s", p.Name, p.Author, p.Definition, p.Config, p.Hash)
	for _, step := range p.Steps {
		switch step.State {
		case submit.Fault:
			a.term.Error(plain.Lines(step.Text), step.Hint)
		case submit.Warning:
			a.term.Warn(plain.Lines(step.Text), step.Hint)
		case submit.Todo:
			a.line("to do", "%s: %s", step.Name, step.Text)
			if step.Hint != "" {
				a.line("", "%s", step.Hint)
			}
		default:
			a.line(step.Name, "%s", step.Text)
		}
	}
}
