package app

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/collector"
	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/preflight"
	"fisub/submit"
)

func (a *app) submitCommand() *cli.Command {
	return &cli.Command{
		Name:  "submit",
		Usage: "tag the commit that the contest is to take",
		Description: "The contest takes the newest git tag for each definition. This makes an annotated tag of HEAD, with the content hash\n" +
			"and the run that it passed in its message, after looking at all of:\n" +
			"   check      fisub check finds nothing\n" +
			"   tested     a run in .fisub/runs passed all workloads of its set with this very content\n" +
			"   collector  the contest's collector finds the submission, and no other of its definition\n" +
			"   commit     what the collector reads is committed as it is here\n" +
			"   checkout   a clean checkout of the commit packs to the same hash\n" +
			"It shows what a push would send, and sends the tag alone with --push. It never commits, moves a tag or forces a push.\n" +
			"The name is submission-DEFINITION-N with the next N, or tag in [submit] of config.toml, where {n} is the next number.\n" +
			"An emulated run counts, with a warning: it shows right results, no speed. Exit status: 2 where it is refused.\n\n" +
			"   fisub submit --dry-run\n" +
			"   fisub submit --push\n" +
			"   fisub submit --all --untested\n" +
			"   fisub submit status",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Usage: "tag and push nothing; exit with 0 also where something is left to do, if nothing is wrong"},
			&cli.BoolFlag{Name: "untested", Usage: "tag it without a run that passed; the tag says so"},
			&cli.BoolFlag{Name: "packed", Usage: "write packed_solution.json, which the collector takes as it is, at the repository's root, for you to commit"},
			&cli.BoolFlag{Name: "all", Usage: "every submission that the collector finds in the repository, each with a tag of its own"},
			&cli.BoolFlag{Name: "push", Usage: "push the tag"},
			&cli.StringFlag{Name: "remote", Usage: "the git remote `NAME`", DefaultText: "remote in [submit], else that of the branch, else origin"},
		},
		Action: a.submit,
		Subcommands: []*cli.Command{
			{Name: "status", Usage: "say which tag the contest takes, and whether each still packs to its hash", Action: a.submitStatus,
				Flags: []cli.Flag{
					&cli.IntFlag{Name: "limit", Value: 20, Usage: "look at the newest `N` tags"},
					&cli.StringFlag{Name: "remote", Usage: "the git remote `NAME`", DefaultText: "remote in [submit], else that of the branch, else origin"},
				},
				Description: "Checks each tag out and packs it. STATE is ok, or differs where the tag does not pack to the hash in its message; a tag\n" +
					"that fisub did not make has no hash there. TAKEN marks the newest tag of the definition that the remote has.\n" +
					"Exit status 3 where a tag differs.\n\n   fisub submit status"},
		},
	}
}

// A submitted is one submission on its way to a tag.
type submitted struct {
	Config     string        `json:"config"`
	Definition string        `json:"definition"`
	Name       string        `json:"name"`
	Author     string        `json:"author"`
	Hash       string        `json:"content_hash"`
	Steps      []submit.Step `json:"steps"`
	Commit     string        `json:"commit,omitempty"`
	Tag        string        `json:"tag,omitempty"`
	Object     string        `json:"object,omitempty"` // of the tag, where it is made
	Note       submit.Note   `json:"note"`
	Pushed     bool          `json:"pushed"`

	*submission `json:"-"`
	plan        *submit.Plan
}

func (a *app) submit(c *cli.Context) error {
	if c.NArg() > 0 {
		return unknown("submit command", c.Args().First(), []string{"status"})
	}
	if c.Bool("dry-run") && c.Bool("push") {
		return usage("leave one out", "--dry-run and --push exclude each other")
	}
	if c.Bool("all") && (global(c, "config") != nil || c.Bool("packed")) {
		return usage("leave --all out", "--all takes every config.toml of the repository; --config and --packed are about one")
	}
	data, err := openDataset(c)
	if err != nil {
		return err
	}
	files := []string{configPath(c)}
	if c.Bool("all") {
		if files, err = a.allConfigs(c); err != nil {
			return err
		}
	}
	var all []*submitted
	var faults []error
	for _, file := range files {
		s, err := loadSources(file, data)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all = append(all, &submitted{Config: relative(file), Definition: s.def.Name, Name: s.sol.Name, Author: s.sol.Author, Hash: s.sol.Hash(), submission: s})
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	remote := cmp.Or(c.String("remote"), all[0].cfg.Submit.Remote)
	survey, err := submit.NewSurvey(c.Context, all[0].root, remote)
	if err != nil {
		return err
	}
	if c.Bool("packed") {
		if done, err := a.submitPacked(c, survey, all[0]); done || err != nil {
			return err
		}
	}
	refused, faulty := false, false
	for _, s := range all {
		if err := a.submitPlan(c, survey, s, remote); err != nil {
			return err
		}
		r, f := s.plan.Refused()
		refused, faulty = refused || r, faulty || f
	}
	json := globalBool(c, "json")
	if refused {
		if !json {
			for _, s := range all {
				a.showPlanned(s)
			}
			if c.Bool("dry-run") && !faulty {
				a.term.Note("nothing is wrong; what is left to do stands above")
			} else {
				a.term.Note("nothing was tagged")
			}
		} else if err := a.submitJSON(c, all, !faulty && c.Bool("dry-run")); err != nil {
			return err
		}
		if c.Bool("dry-run") && !faulty {
			return nil
		}
		return errShown
	}
	for _, s := range all {
		if !json {
			a.showPlanned(s)
		}
		if c.Bool("dry-run") {
			continue
		}
		made, err := survey.Make(c.Context, s.plan)
		if err != nil {
			return err
		}
		s.Object = s.plan.Object
		if made && !json {
			a.submitLine("tagged", "%s, object %s", s.plan.Tag, s.Object)
		}
	}
	if c.Bool("push") {
		for _, s := range all {
			sent, err := survey.Send(c.Context, s.plan)
			if err != nil {
				return &pushError{err: err, remote: survey.Remote.Name, tag: s.plan.Tag}
			}
			if s.Pushed = true; sent && !json {
				a.submitLine("pushed", "%s to %s", s.plan.Tag, survey.Remote.Name)
			}
		}
	}
	if json {
		return a.submitJSON(c, all, true)
	}
	switch {
	case c.Bool("dry-run"):
		a.term.Note("a dry run: nothing was tagged")
	case !c.Bool("push") && !all[0].plan.Sent:
		a.term.Note("not pushed: fisub submit --push sends it")
	}
	return nil
}

// allConfigs are the configs of the repository that the flags name the folder of.
func (a *app) allConfigs(c *cli.Context) ([]string, error) {
	top := path(c, ".")
	repo, err := git.Open(c.Context, top)
	if err == nil {
		top = repo.Top
	} else if !git.IsMissing(err) {
		return nil, err
	}
	files, err := config.Discover(top)
	if err == nil && len(files) == 0 {
		return nil, usage("", "--all: no %s in %s, and in none of the folders in it", config.Name, top)
	}
	return files, err
}

// submitPlan fills in s.
func (a *app) submitPlan(c *cli.Context, survey *submit.Survey, s *submitted, remote string) (err error) {
	o := submit.Options{Config: s.cfg.Path, Solution: s.sol, Pattern: s.cfg.Submit.Tag, Version: Version, WillPush: c.Bool("push"), AskedName: remote}
	if !c.Bool("untested") {
		o.Proof, err = submit.Prove(s.root, s.sol, func(set string) ([]*trace.Workload, error) { return s.data.Workloads(s.def.Name, set) })
		if err != nil {
			return err
		}
	}
	if o.Checked, err = a.submitChecks(c, s.submission); err != nil {
		return err
	}
	if s.plan, err = survey.Plan(c.Context, o); err != nil {
		return err
	}
	s.Steps, s.Tag, s.Object, s.Note, s.Commit = s.plan.Steps, s.plan.Tag, s.plan.Object, s.plan.Note, survey.Head.Commit
	s.Pushed = s.plan.Sent
	return nil
}

// submitChecks is the pre-flight of a submission: what fisub check says, without its notes.
func (a *app) submitChecks(c *cli.Context, s *submission) ([]submit.Step, error) {
	r, err := a.preflight(c, s, []string{contestArch})
	if err != nil {
		return nil, err
	}
	var steps []submit.Step
	sound := true
	for _, f := range r.Findings {
		step := submit.Step{Name: "check", State: submit.Fault, Text: findingText(f), Hint: f.Hint}
		switch {
		case f.Severity == preflight.Warning:
			step.State = submit.Warning
		case f.Severity == preflight.Error:
			sound = false
		case f.Code == "not-compiled":
			step.State = submit.Warning
		default:
			continue
		}
		steps = append(steps, step)
	}
	if sound {
		steps = append([]submit.Step{{Name: "check", State: submit.OK, Text: fmt.Sprintf("sound: %d files, %s, %s", len(s.sol.Sources), s.sol.Spec.EntryPoint, callText(s.sol, s.def))}}, steps...)
	}
	return steps, nil
}

// submitPacked writes the packed solution unless it is there as it should be.
func (a *app) submitPacked(c *cli.Context, survey *submit.Survey, s *submitted) (done bool, err error) {
	file := filepath.Join(survey.Top, collector.Packed)
	if old, _, err := trace.ReadSolution(file); err == nil && len(collector.Differences(old, s.sol)) == 0 {
		return false, nil
	}
	if c.Bool("dry-run") {
		a.term.Note("would write %s, to be committed", relative(file))
		return false, nil
	}
	if err := pack.Write(a.stdout, file, s.sol); err != nil {
		return false, err
	}
	if globalBool(c, "json") {
		err = writeJSON(a.stdout, map[string]any{"path": file, "content_hash": s.Hash})
	} else {
		a.submitLine("written", "%s, hash %s", relative(file), s.Hash)
	}
	if err == nil {
		err = usage(fmt.Sprintf("git -C %s add %s && git -C %[1]s commit, then fisub submit again", survey.Top, collector.Packed), "%s: is to be committed first", relative(file))
	}
	return true, err
}

func (a *app) submitJSON(c *cli.Context, all []*submitted, ok bool) error {
	return writeJSON(a.stdout, map[string]any{"ok": ok, "dry_run": c.Bool("dry-run"), "submissions": all})
}

func (a *app) submitLine(what, format string, args ...any) {
	fmt.Fprintf(a.stdout, "%-10s  %s\n", what, plain.Line(fmt.Sprintf(format, args...)))
}

// showPlanned prints what was looked at: what holds and what is left to do on stdout, what is wrong on stderr.
func (a *app) showPlanned(s *submitted) {
	a.submitLine("submission", "%s by %s, %s, %s, hash %s", s.Name, s.Author, s.Definition, s.Config, s.Hash)
	for _, step := range s.Steps {
		switch step.State {
		case submit.Fault:
			a.term.Error(plain.Lines(step.Text), step.Hint)
		case submit.Warning:
			a.term.Warn(plain.Lines(step.Text), step.Hint)
		case submit.Todo:
			a.submitLine("to do", "%s: %s", step.Name, step.Text)
			if step.Hint != "" {
				a.submitLine("", "%s", step.Hint)
			}
		default:
			a.submitLine(step.Name, "%s", step.Text)
		}
	}
}

// A pushError is a push that failed after the tag was made.
type pushError struct {
	err         error
	remote, tag string
}

func (e *pushError) Error() string { return plain.Lines(e.err.Error()) }
func (e *pushError) Unwrap() error { return e.err }

// pushHint is the remedy for what git says of a push.
func pushHint(e *pushError) string {
	text := strings.ToLower(e.Error())
	again := fmt.Sprintf("git push %s refs/tags/%s", e.remote, e.tag)
	for _, known := range []struct{ words, hint string }{
		{"already exists", "it is never overwritten: git fetch --tags, then give the tag another name: tag in [submit] of config.toml"},
		{"could not read username|authentication failed|terminal prompts disabled|permission denied|publickey|403|401", "the tag is made here; log in to the remote, then: " + again},
		{"hook declined|pre-receive|pre-push", "the tag is made here, and a hook refused it; when that is mended: " + again},
		{"could not resolve|could not connect|timed out|unable to access|connection", "the tag is made here; when the network is back: " + again},
	} {
		for word := range strings.SplitSeq(known.words, "|") {
			if strings.Contains(text, word) {
				return known.hint
			}
		}
	}
	return "the tag is made here; to try again: " + again
}

// submitHint is the remedy for an error of git.
func submitHint(err error) string {
	var pushed *pushError
	var failed *git.Error
	switch {
	case errors.As(err, &pushed):
		return pushHint(pushed)
	case errors.Is(err, git.ErrMissing):
		return "install git"
	case errors.Is(err, git.ErrNoRepository):
		return "git init makes it one"
	case !errors.As(err, &failed):
		return ""
	case strings.Contains(failed.Text, "tell me who you are") || strings.Contains(failed.Text, "empty ident"):
		return "git config --global user.name NAME && git config --global user.email ADDRESS"
	case strings.Contains(failed.Text, "dubious ownership"):
		return "another user owns the folder: git config --global --add safe.directory FOLDER"
	case strings.Contains(failed.Text, "gpg"):
		return "git signs tags here, as tag.gpgSign says; git config tag.gpgSign false makes plain ones"
	}
	return ""
}

// statusText is a row of `fisub submit status` in words.
func statusText(l submit.Line) string {
	if l.Why != "" {
		return l.State + ": " + l.Why
	}
	return l.State
}

func (a *app) submitStatus(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	if c.Int("limit") < 1 {
		return usage("", "--limit: must be at least 1")
	}
	dir, remote := path(c, "."), c.String("remote")
	if file := globalString(c, "config"); file != "" {
		dir = filepath.Dir(path(c, file))
	}
	if cfg, err := config.Load(configPath(c)); err == nil {
		remote = cmp.Or(remote, cfg.Submit.Remote)
	}
	st, err := submit.NewStatus(c.Context, dir, remote, c.Int("limit"))
	if git.IsMissing(err) {
		return invalid(err)
	}
	if err != nil {
		return err
	}
	differs := false
	for _, l := range st.Lines {
		differs = differs || l.State == submit.Differs
	}
	if globalBool(c, "json") {
		err = writeJSON(a.stdout, st)
	} else {
		err = a.showTags(st)
	}
	if err == nil && differs {
		return errNotPassed
	}
	return err
}

func (a *app) showTags(st *submit.Status) error {
	if len(st.Lines) > 0 {
		rows := [][]string{{"DEFINITION", "TAG", "AGE", "COMMIT", "HASH", "PACKS TO", "REMOTE", "TAKEN", "STATE"}}
		for _, l := range st.Lines {
			taken := ""
			switch {
			case l.Taken:
				taken = "taken"
			case l.Newest && l.Remote == "offline":
				taken = "if pushed"
			case l.Newest:
				taken = "once pushed"
			}
			rows = append(rows, []string{l.Definition, l.Tag.Name, age(time.Since(l.Tag.Created)), plain.Short(l.Tag.Commit), cmp.Or(plain.Short(l.Tag.Note.ContentHash), "-"),
				cmp.Or(plain.Short(l.Packs), "-"), l.Remote, cmp.Or(taken, "-"), statusText(l)})
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
		if err := a.term.Table("llrllllll", rows, news); err != nil {
			return err
		}
	} else {
		a.term.Note("no tag holds a submission")
	}
	for _, h := range st.Here {
		a.submitLine("here", "%s", h.Text())
	}
	if st.Offline != "" {
		a.term.Warn(plain.Line("offline: "+st.Offline), "")
	}
	if st.More > 0 {
		a.term.Note("%d older tags were not looked at: --limit", st.More)
	}
	return nil
}
