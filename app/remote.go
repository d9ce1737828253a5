package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/setup"
	"fisub/remote/bundle"
	"fisub/remote/dispatch"
	"fisub/remote/providers"
	"fisub/runs"
	"fisub/runs/compare"
)

type remoteOptions struct {
	sendRequest
	solution, resume string
}

func onFlag(to *string, what, absent string) cli.Flag {
	return stringFlag(to, "on", what+" the hosts of `TABLE[,TABLE...]` of the config", absent)
}

// hostFlag adds the tables of SSH hosts to the list of tables on.
func hostFlag(on *string) cli.Flag {
	return &cli.StringSliceFlag{Name: "host",
		Usage: "run on `HOST`, such as me@gpu01, over SSH; needs no table; may be repeated",
		Action: func(_ *cli.Context, hosts []string) error {
			for _, h := range hosts {
				*on = strings.TrimPrefix(*on+","+providers.HostPrefix+h, ",")
			}
			return nil
		}}
}

func yesFlag(to *bool) cli.Flag { return boolFlag(to, "yes", "do not ask") }

func (a *app) remoteCommand() *cli.Command {
	var o remoteOptions
	return &cli.Command{
		Name:  "remote",
		Usage: "run the submission's workloads on hosts with GPUs",
		Flags: append([]cli.Flag{
			stringFlag(&o.jobs.GPU, "gpu", "`GPU` of the hosts, such as b200; none is the virtual GPU", "the table's"),
			onFlag(&o.on, "run on", "the only one"), hostFlag(&o.on),
			countFlag(&o.jobs.Shards, "shards", "split the workloads over at most `N` places", "all places of the tables"),
			yesFlag(&o.yes),
			boolFlag(&o.dryRun, "dry-run", "print the plan and exit"),
			boolFlag(&o.detach, "detach", "exit when the hosts have accepted the jobs"),
			timeFlag(&o.jobs.Limit, "limit-time", "end a job on its host after `TIME`", "limit of the table, else 30m"),
			boolFlag(&o.jobs.Busy, "busy", "also use a GPU that is in use by another process"),
			stringFlag(&o.resume, "resume", "run the workloads of the remote `RUN` that have no verdict", ""),
			solutionFlag(&o.solution), baselineFlag(&o.Baseline), strictFlag(&o.jobs.Strict),
		}, workloadFlags(&o.Options)...),
		Action: func(c *cli.Context) error {
			if o.resume != "" {
				return a.remoteResume(c.Context, o, c.LocalFlagNames())
			}
			return a.remote(c.Context, o)
		},
		Subcommands: a.remoteCommands(),
	}
}

func (a *app) remote(ctx context.Context, o remoteOptions) error {
	var err error
	if o.s, err = a.load(o.solution); err != nil {
		return err
	}
	order, err := a.prepare(ctx, o.sendRequest)
	if err != nil {
		return err
	}
	defer order.open.Close()
	return a.start(ctx, order, nil)
}

// A sendRequest is a run, or the job of another command, for remote hosts.
type sendRequest struct {
	setup.Options
	s                   *project.Submission
	jobs                hostOptions
	on                  string
	yes, dryRun, detach bool
}

// start packs an order, asks for confirmation, and runs it to its end; output is nil for an ordinary run. It removes
// the run folder if no host has taken a job.
func (a *app) start(ctx context.Context, o *order, output jobOutput) (err error) {
	plan, folder, kept := o.plan, runs.NewFolder(a.Root(), o.plan.Run.ID), false
	defer folder.Close()
	defer func() {
		if kept {
			return
		}
		err = errors.Join(err, os.RemoveAll(folder.Path()))
		dir, root := filepath.Dir(folder.Path()), filepath.Clean(a.Root())
		for dir != root && os.Remove(dir) == nil { // remove empty parents too
			dir = filepath.Dir(dir)
		}
	}()
	check := o.open
	if o.dryRun {
		check = nil // nothing will run
	}
	var b *bundle.Bundle
	err = whileCheckingHosts(ctx, check, func(ctx context.Context) (err error) {
		b, err = o.pack(ctx, folder)
		return err
	})
	if errors.Is(err, dispatch.ErrCancelled) {
		return a.unsent()
	}
	if build, ok := errors.AsType[*device.BuildError](err); ok {
		if a.final != nil {
			a.final.Unbuilt(o.s.Solution, o.s.SourceFolder(), build)
		}
		a.term.Error(plain.Line("the solution does not compile for "+o.spec.Arch+": "+build.Text), "")
		fmt.Fprint(a.stderr, plain.Lines(build.Log))
		return shown(exitNotPassed)
	}
	if err != nil {
		return err
	}
	if plan.Bundle, err = json.Marshal(o.spec); err != nil {
		return err
	}
	o.show(a.term, b.Size())
	switch {
	case o.dryRun && a.final != nil:
		a.final.Planned(plan, b.Size(), commandLine(a.Command, "--dry-run", "--json=final"))
		return nil
	case o.dryRun && a.json:
		return a.writeJSON(plan)
	case o.dryRun, !a.term.Agreed(ctx, o.yes, "start?"):
		return nil
	}
	if dispatch.Marked(folder.Path()) {
		return a.unsent()
	}
	kept = true
	err = a.dispatch(ctx, dispatch.New(plan, folder, nil, o.open, b.Files), o.detach, output)
	begun := slices.ContainsFunc(plan.Jobs, func(j *dispatch.JobRecord) bool { return j.Handle != nil })
	if len(plan.Active()) == 0 && !begun {
		kept = false // no job started: the folder adds nothing to the messages
	}
	return err
}

// unsent reports that a run was cancelled during its preparation.
func (a *app) unsent() error {
	a.term.Error(dispatch.ErrCancelled.Error()+": nothing was sent", "")
	return shown(exitInterrupted)
}

// remoteResume runs the workloads without a verdict of a run whose jobs have ended, with the solution packed at that
// time. given lists the flags that are set.
func (a *app) remoteResume(ctx context.Context, o remoteOptions, given []string) error {
	for _, name := range given {
		if !slices.Contains([]string{"resume", "on", "host", "yes", "detach", "limit-time", "busy", "strict"}, name) {
			return usage.Errorf("omit it, or start a new run", "--%s cannot be combined with --resume, which keeps the "+
				"settings of the run", name)
		}
	}
	folder, old, plan, err := a.attached(o.resume)
	if err != nil {
		return err
	}
	defer folder.Close()
	lacking := dispatch.MissingVerdicts(plan, old)
	if len(lacking) == 0 {
		a.term.Note("run %s: every workload has a verdict", plan.Run.ID)
		return a.showEnded(plan, old)
	}
	var h hosts
	if o.on != "" {
		if h, err = a.openOn(o.on, false, ""); err != nil {
			return err
		}
		defer h.open.Close()
	}
	before, err := a.openPlan(plan)
	if err != nil {
		return err
	}
	defer before.Close()
	open := providers.Set{}
	maps.Copy(open, h.open)
	maps.Copy(open, before) // earlier jobs keep their providers
	h.open = open
	files, err := filesOf(ctx, folder.Path(), plan)
	if err != nil {
		return err
	}
	d := dispatch.New(plan, folder, old, open, files)
	if err := prepareResume(plan, o.jobs, len(lacking), h); err != nil {
		return err
	}
	a.term.Note("resumed    %s: %d of %s have no verdict", plan.Run.ID, len(lacking),
		plain.Count(len(plan.Run.Workloads), "workload"))
	if !a.term.Agreed(ctx, o.yes, "start?") {
		return nil
	}
	if err := dispatch.Unmark(folder.Path()); err != nil {
		return err
	}
	return a.dispatch(ctx, d, o.detach, a.jobOutput(plan))
}

// dispatch runs d to the end, handling signals itself, and returns the error for the exit status. output is nil for an
// ordinary run.
func (a *app) dispatch(ctx context.Context, d *dispatch.Dispatcher, detach bool, output jobOutput) error {
	if output != nil {
		if err := output.open(d.Plan, d.Folder.Path()); err != nil {
			return err
		}
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, endSignals()...)
	defer signal.Stop(signals)
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.listener != nil { // the calling program cancels ctx instead of sending a signal
		defer context.AfterFunc(ctx, func() { signals <- os.Interrupt })()
	}
	a.signals = true
	stopping, abort := context.WithCancel(context.Background())
	defer abort()
	bar := a.term.Sums("sending")
	follow := dispatch.Follow{Detach: detach, Decide: func(over <-chan struct{}) bool {
		defer func() { go a.abortOnSignal(stopping, signals, abort, d.Plan.Run.ID) }()
		return a.term.Decide(signals, over, &a.pause)
	}}
	follow.Progress = func(place string, sent, total int64) {
		_ = a.pause.Do(func() error { bar.Set(place, sent, total); return nil })
	}
	if output != nil {
		follow.Line, follow.Events = output.line, a.paused(a.notes)
	} else {
		follow.Events = a.paused(a.events())
		if d.Old != nil && d.Old.Run != nil {
			before := *d.Old
			before.Done = nil
			before.Emit(event.NewStream(follow.Events))
		}
	}
	end, result, err := d.Run(context.WithoutCancel(ctx), follow)
	bar.Finish()
	switch end {
	case dispatch.Detached:
		return a.detached(d.Plan)
	case dispatch.Stopped:
		return a.stop(stopping, d, "interrupted")
	case dispatch.Cancelled:
		return a.stop(stopping, d, dispatch.ErrCancelled.Error())
	case dispatch.Left:
		a.sayAttach(d.Plan)
		return shown(exitInterrupted)
	case dispatch.Failed:
		if len(d.Plan.Active()) > 0 {
			a.sayAttach(d.Plan)
		}
		if output != nil {
			return output.end(false, err)
		}
		return err
	}
	return a.finished(d, result, output)
}

// paused returns show, which waits while a.pause is on.
func (a *app) paused(show event.Sink) event.Sink {
	return func(e event.Event) error { return a.pause.Do(func() error { return show(e) }) }
}

// abortOnSignal calls abort at the second signal, unless ctx has ended. The third signal ends the program at once.
func (a *app) abortOnSignal(ctx context.Context, signals chan os.Signal, abort func(), id string) {
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if n > 0 {
			signal.Stop(signals)
			abort()
			return
		}
		a.term.Note("still stopping; another Ctrl-C exits at once, and jobs may continue: fisub remote cancel %s ends "+
			"them", id)
	}
}

// detached prints the id of a run whose jobs continue without this process.
func (a *app) detached(plan *dispatch.Plan) error {
	if a.final != nil {
		a.runID = "" // the run has only begun
		a.final.Detached(&plan.Run)
	}
	if a.json {
		return nil
	}
	a.sayAttach(plan)
	_, err := fmt.Fprintln(a.stdout, plan.Run.ID)
	return err
}

// finished ends the output of a run that needs no further job, and returns the error for the exit status.
func (a *app) finished(d *dispatch.Dispatcher, result event.Done, output jobOutput) error {
	if err := d.Folder.Order(); err != nil {
		return err
	}
	a.sayHeld(d.Plan)
	if output == nil && result.Missing > 0 {
		a.term.Note("run the remaining workloads with: fisub remote --resume %s", d.Plan.Run.ID)
	}
	a.term.Note("run folder %s", plain.Relative(d.Folder.Path()))
	if output != nil {
		return output.end(result.Failed > 0, nil)
	}
	return verdict(result, d.Plan.Strict)
}

// A jobOutput shows the output lines of a job that is not an ordinary run.
type jobOutput interface {
	open(plan *dispatch.Plan, folder string) error
	line(j *dispatch.JobRecord, text []byte) error
	end(failed bool, err error) error // err: why there is no result; returns the error for the exit status
}

// jobOutput returns the output of the plan's job, or nil for an ordinary run.
func (a *app) jobOutput(plan *dispatch.Plan) jobOutput {
	switch {
	case len(plan.Sides) > 0:
		return &comparison{a: a, threshold: compare.Threshold}
	case plan.Tool != "":
		return &toolOutput{a: a}
	}
	return nil
}

// notes prints the states and messages of a tool's job.
func (a *app) notes(e event.Event) error {
	if j := e.JobState; j != nil {
		a.term.Note("%s", plain.Line(strings.TrimSpace(fmt.Sprintf("%s: %s %s", e.Place, j.Phase, j.Text))))
	}
	if m := e.Message; m != nil {
		a.term.Warn(plain.Line(m.Text), plain.Line(m.Hint))
	}
	return nil
}

// stop ends the jobs of a run, prints the reason, and lists jobs that may still run. ctx ends the attempt.
func (a *app) stop(ctx context.Context, d *dispatch.Dispatcher, why string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	a.term.Note("stopping %s", plain.Count(len(d.Plan.Active()), "job"))
	err := d.Cancel(ctx)
	left := d.Plan.Active()
	if err == nil && len(left) == 0 {
		a.term.Error(why+": all jobs are stopped", "")
		return shown(exitInterrupted)
	}
	if err != nil {
		a.term.Warn(usage.Explain(err))
	}
	a.term.Error(fmt.Sprintf("%s: %s may still run: %s", why, plain.Count(len(left), "job"), places(left)),
		"when the hosts can be reached: fisub remote cancel "+d.Plan.Run.ID+"; otherwise the time limit ends them")
	return shown(exitError)
}

func places(jobs []*dispatch.JobRecord) string {
	var where []string
	for _, j := range jobs {
		where = append(where, j.Place.String())
	}
	return strings.Join(where, ", ")
}

// sayHeld lists the jobs that may still run after the end of the run.
func (a *app) sayHeld(p *dispatch.Plan) {
	if held := p.Active(); len(held) > 0 {
		a.term.Note("%s may still run: %s; end it with fisub remote gc when the host can be reached, or wait for its "+
			"time limit", plain.Count(len(held), "job"), places(held))
	}
}

// sayAttach prints how to follow and how to end the remaining jobs.
func (a *app) sayAttach(p *dispatch.Plan) {
	active := p.Active()
	begun := slices.DeleteFunc(slices.Clone(active), func(j *dispatch.JobRecord) bool { return j.Handle == nil })
	a.term.Note("%s still running; follow with: fisub remote attach %s", plain.Count(len(begun), "job"), p.Run.ID)
	if n := len(active) - len(begun); n > 0 {
		a.term.Note("%s not started yet; attach starts them", plain.Count(n, "job"))
	}
	a.term.Note("end them with: fisub remote cancel %s", p.Run.ID)
}
