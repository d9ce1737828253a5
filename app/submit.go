package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/collector"
	"fisub/explain"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/pack"
	"fisub/preflight"
	"fisub/session"
	"fisub/submit"
	"fisub/workloads"
)

type submitOptions struct {
	dryRun, untested, findings, packed, all, push bool
	remote                                        string
}

func remoteFlag(to *string) cli.Flag {
	return stringFlag(to, "remote", "the git remote `REMOTE`", "remote in [submit], else that of the branch, else origin")
}

func (a *app) submitCommand() *cli.Command {
	var o submitOptions
	var remote string
	limit := 20
	return &cli.Command{
		Name:  "submit",
		Usage: "tag the commit that the contest is to take",
		Flags: []cli.Flag{
			boolFlag(&o.dryRun, "dry-run", "tag and push nothing; exit with 0 also where something is left to do, if "+
				"nothing is wrong"),
			boolFlag(&o.untested, "untested", "tag it without a run that passed; the tag says so"),
			boolFlag(&o.findings, "accept-findings", "tag it although a run of the same content has findings"),
			boolFlag(&o.packed, "packed", "write packed_solution.json, which the collector takes as it is, at the "+
				"repository's root, for you to commit"),
			boolFlag(&o.all, "all", "every submission that the collector finds in the repository, each with a tag of its own"),
			boolFlag(&o.push, "push", "push the tag"),
			remoteFlag(&o.remote),
		},
		Action: func(c *cli.Context) error { return a.submit(c.Context, o) },
		Subcommands: []*cli.Command{
			{Name: "status", Usage: "say which tag the contest takes, and whether each still packs to its hash",
				Flags:  []cli.Flag{countFlag(&limit, "limit", "look at the newest `N` tags", ""), remoteFlag(&remote)},
				Action: func(c *cli.Context) error { return a.submitStatus(c.Context, remote, limit) }},
		},
	}
}

// A submittedAll is what submit says of several.
type submittedAll struct {
	OK          bool           `json:"ok"`
	DryRun      bool           `json:"dry_run"`
	Submissions []*submit.Plan `json:"submissions"`
}

// A packedFile is the packed solution that submit --packed wrote.
type packedFile struct {
	Path        string `json:"path"`
	ContentHash string `json:"content_hash"`
}

func (a *app) submit(ctx context.Context, o submitOptions) error {
	if o.dryRun && o.push {
		return usage.Errorf("leave one out", "--dry-run and --push exclude each other")
	}
	if o.all && (a.Config != "" || o.packed) {
		return usage.Errorf("leave --all out", "--all takes every config.toml of the repository; --config and --packed "+
			"are about one")
	}
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	files := []string{a.ConfigPath()}
	if o.all {
		if files, err = a.AllConfigs(ctx); err != nil {
			return err
		}
	}
	var all []*session.Submission
	var faults []error
	for _, file := range files {
		s, err := session.LoadSources(file, data)
		all, faults = append(all, s), append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	o.remote = cmp.Or(o.remote, all[0].Config.Submit.Remote)
	survey, err := submit.NewSurvey(ctx, all[0].Root, o.remote)
	if err != nil {
		return err
	}
	if o.packed {
		if done, err := a.submitPacked(o, survey, all[0]); done || err != nil {
			return err
		}
	}
	said := submittedAll{DryRun: o.dryRun}
	refused, faulty := false, false
	for _, s := range all {
		p, err := a.submitPlan(ctx, o, survey, s)
		if err == nil && p.NeedsEdge() && !o.dryRun {
			a.runEdge(ctx, s)
			p, err = a.submitPlan(ctx, o, survey, s)
		}
		if err != nil {
			return err
		}
		said.Submissions = append(said.Submissions, p)
		r, f := p.Refused()
		refused, faulty = refused || r, faulty || f
		if !a.json {
			a.showPlanned(p)
		}
	}
	if !refused && !o.dryRun {
		if err := a.submitTags(ctx, o, survey, said.Submissions); err != nil {
			return err
		}
	}
	note := ""
	switch said.OK = !refused || o.dryRun && !faulty; {
	case !said.OK:
		note = "nothing was tagged"
	case refused:
		note = "nothing is wrong; what is left to do stands above"
	case o.dryRun:
		note = "a dry run: nothing was tagged"
	case !said.Submissions[0].Pushed:
		note = "not pushed: fisub submit --push sends it"
	}
	if a.json {
		err = a.writeJSON(said)
	} else if note != "" {
		a.term.Note("%s", note)
	}
	if err == nil && !said.OK {
		return shown(exitUsage)
	}
	return err
}

// submitTags makes the tags of plans, and pushes them where that is asked for.
func (a *app) submitTags(ctx context.Context, o submitOptions, survey *submit.Survey, plans []*submit.Plan) error {
	for _, p := range plans {
		made, err := survey.Make(ctx, p)
		if err != nil {
			return err
		}
		if made && !a.json {
			a.line("tagged", "%s, object %s", p.Tag, p.Object)
		}
	}
	for _, p := range plans {
		if !o.push {
			break
		}
		sent, err := survey.Send(ctx, p)
		if err != nil {
			return &explain.PushError{Err: err, Remote: survey.Remote.Name, Tag: p.Tag}
		}
		if sent && !a.json {
			a.line("pushed", "%s to %s", p.Tag, survey.Remote.Name)
		}
	}
	return nil
}

// submitPlan says what stands between s and its tag.
func (a *app) submitPlan(ctx context.Context, how submitOptions, survey *submit.Survey, s *session.Submission) (
	*submit.Plan, error) {
	o := submit.Options{Config: s.Config.Path, Solution: s.Solution, Pattern: s.Config.Submit.Tag, Version: Version,
		WillPush: how.push, AskedName: how.remote}
	var err error
	o.Untested, o.Findings = how.untested, how.findings
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
	o.Checked = session.Checks(s, checked[0], how.untested)
	p, err := survey.Plan(ctx, o)
	if err == nil {
		p.Config = session.Relative(p.Config)
	}
	return p, err
}

// runEdge runs set edge on the virtual GPU. If it cannot, a note says why; the plan then says what is left to do.
func (a *app) runEdge(ctx context.Context, s *session.Submission) {
	show := a.events()
	if a.json { // stdout is the plan's
		show = func(event.Event) error { return nil }
	}
	o := session.Local{Options: session.Options{Set: workloads.EdgeSet, Device: "emu"}}
	if _, err := a.RunLocal(ctx, s, o, show, a.term); err != nil {
		a.term.Note("set edge did not run: %v", err)
	}
}

// submitPacked writes the packed solution unless it is there as it should be.
func (a *app) submitPacked(o submitOptions, survey *submit.Survey, s *session.Submission) (done bool, err error) {
	file := filepath.Join(survey.Top, collector.Packed)
	if old, _, err := trace.ReadSolution(file); err == nil && len(collector.Differences(old, s.Solution)) == 0 {
		return false, nil
	}
	if o.dryRun {
		a.term.Note("would write %s, to be committed", session.Relative(file))
		return false, nil
	}
	if err := pack.Write(a.stdout, file, s.Solution); err != nil {
		return false, err
	}
	if a.json {
		err = a.writeJSON(packedFile{file, s.Solution.Hash()})
	} else {
		a.line("written", "%s, hash %s", session.Relative(file), s.Solution.Hash())
	}
	if err == nil {
		err = usage.Errorf(fmt.Sprintf("git -C %s add %s && git -C %[1]s commit, then fisub submit again", survey.Top,
			collector.Packed), "%s: is to be committed first", session.Relative(file))
	}
	return true, err
}

// showPlanned prints what was looked at: what holds and what is left to do on stdout, what is wrong on stderr.
func (a *app) showPlanned(p *submit.Plan) {
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

func (a *app) submitStatus(ctx context.Context, remote string, limit int) error {
	if cfg, err := config.Load(a.ConfigPath()); err == nil {
		remote = cmp.Or(remote, cfg.Submit.Remote)
	}
	st, err := submit.NewStatus(ctx, a.Root(), remote, limit)
	if git.IsMissing(err) {
		return usage.Invalid(err)
	}
	if err != nil {
		return err
	}
	differs := false
	for _, l := range st.Lines {
		differs = differs || l.State == submit.Differs
	}
	if a.json {
		err = a.writeJSON(st)
	} else {
		a.showTags(st)
	}
	if err == nil && differs {
		return shown(exitNotPassed)
	}
	return err
}

func (a *app) showTags(st *submit.Status) {
	if len(st.Lines) > 0 {
		rows := [][]string{{"DEFINITION", "TAG", "AGE", "COMMIT", "HASH", "PACKS TO", "REMOTE", "TAKEN", "STATE"}}
		for _, l := range st.Lines {
			taken, state := "", l.State
			if l.Why != "" {
				state += ": " + l.Why
			}
			switch {
			case l.Taken:
				taken = "taken"
			case l.Newest && l.Remote == "offline":
				taken = "if pushed"
			case l.Newest:
				taken = "once pushed"
			}
			rows = append(rows, []string{l.Definition, l.Tag.Name, ui.Age(time.Since(l.Tag.Created)), plain.Short(l.Tag.Commit),
				cmp.Or(plain.Short(l.Tag.Note.ContentHash), "-"),
				cmp.Or(plain.Short(l.Packs), "-"), l.Remote, cmp.Or(taken, "-"), state})
		}
		news := func(row int) int {
			switch st.Lines[row-1].State {
			case submit.Same:
				return 1
			case submit.Differs, submit.Broken:
				return -1
			}
			return 0
		}
		a.term.Table("lLrllllll", rows, news)
	} else {
		a.term.Note("no tag holds a submission")
	}
	for _, h := range st.Here {
		a.line("here", "%s", h.Text())
	}
	if st.Offline != "" {
		a.term.Warn(plain.Line("offline: "+st.Offline), "")
	}
	if st.More > 0 {
		a.term.Note("%d older tags were not looked at: --limit", st.More)
	}
}
