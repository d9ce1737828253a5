package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/remote"
	"fisub/remote/dispatch"
	"fisub/remote/providers"
	"fisub/runs"
)

// remoteCommands returns the subcommands about started runs and about hosts.
func (a *app) remoteCommands() []*cli.Command {
	var follow, yes, all bool
	var on, of string
	return []*cli.Command{
		{Name: "ls", Usage: "list the remote runs of this folder, newest first",
			Action: func(*cli.Context) error { return a.remoteLs() }},
		{Name: "attach", Usage: "follow a run again and fetch its results", ArgsUsage: "RUN",
			Action: func(c *cli.Context) error { return a.remoteAttach(c.Context, c.Args().First()) }},
		{Name: "logs", Usage: "print the logs of a run's jobs", ArgsUsage: "RUN",
			Flags:  []cli.Flag{boolFlag(&follow, "f", "follow the logs until the jobs end")},
			Action: func(c *cli.Context) error { return a.remoteLogs(c.Context, c.Args().First(), follow) }},
		{Name: "cancel", Usage: "end the jobs of a run", ArgsUsage: "RUN",
			Action: func(c *cli.Context) error { return a.remoteCancel(c.Context, c.Args().First()) }},
		{Name: "gc", Usage: "end jobs that no run of this folder needs",
			Flags: []cli.Flag{onFlag(&of, "ask", "all tables"), yesFlag(&yes),
				boolFlag(&all, "all", "also end jobs with unfetched results, and jobs started elsewhere")},
			Action: func(c *cli.Context) error { return a.remoteGC(c.Context, of, yes, all) }},
		{Name: "hosts", Usage: "check whether the hosts can run a job now",
			Flags:  []cli.Flag{onFlag(&on, "ask", "all tables")},
			Action: func(c *cli.Context) error { return a.remoteHosts(c.Context, on) }},
	}
}

// attached opens the folder of the remote run named by arg, and loads its plan.
func (a *app) attached(arg string) (*runs.Folder, *runs.Run, *dispatch.Plan, error) {
	id, plan, err := dispatch.Find(a.Root(), arg)
	if err != nil {
		return nil, nil, nil, err
	}
	folder, old, err := runs.Attach(a.Root(), id)
	if errors.Is(err, runs.ErrRunning) && plan.Client != "" {
		err = fmt.Errorf("%w, %s", err, plan.Client)
	}
	if err != nil {
		return nil, nil, plan, usage.Invalid(err)
	}
	plan, err = dispatch.Load(folder.Path()) // another process may have changed it before releasing the lock
	if err != nil {
		folder.Close()
		return nil, nil, nil, err
	}
	return folder, old, plan, nil
}

// openPlan opens the providers of the plan's places.
func (a *app) openPlan(plan *dispatch.Plan) (providers.Set, error) {
	h, err := a.openTables(plan.Tables(), plan.GPU)
	return h.open, err
}

func (a *app) remoteAttach(ctx context.Context, arg string) error {
	folder, old, plan, err := a.attached(arg)
	if err != nil {
		return err
	}
	defer folder.Close()
	if plan.Done && len(dispatch.MissingVerdicts(plan, old)) == 0 {
		return a.showEnded(plan, old)
	}
	files, err := filesOf(ctx, folder.Path(), plan)
	if err != nil {
		return err
	}
	open, err := a.openPlan(plan)
	if err != nil {
		if plan.Done {
			err = a.showEnded(plan, old)
		}
		return err
	}
	defer open.Close()
	d := dispatch.New(plan, folder, old, open, files)
	if dispatch.Marked(folder.Path()) {
		if err := a.cancel(ctx, d); err != nil {
			return err
		}
		return a.showEnded(plan, old)
	}
	if plan.Done {
		a.term.Note("run the remaining workloads with: fisub remote --resume %s", plan.Run.ID)
		return a.showEnded(plan, old)
	}
	return a.dispatch(ctx, d, false, a.jobOutput(plan))
}

// showEnded prints the contents of a run's folder and returns the error for the exit status.
func (a *app) showEnded(plan *dispatch.Plan, old *runs.Run) error {
	folder := filepath.Join(a.Root(), runs.Dir, plan.Run.ID)
	output := a.jobOutput(plan)
	if output != nil {
		if err := output.open(plan, folder); err != nil {
			return err
		}
	}
	if n := len(plan.Jobs); output != nil && n > 0 && plan.Jobs[n-1].Exit != nil {
		last := plan.Jobs[n-1]
		if err := dispatch.ReplayOutput(folder, last, output.line); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if last.Exit.End != remote.Exited || last.Exit.Code != exitOK && last.Exit.Code != exitNotPassed {
			return output.end(false, fmt.Errorf("%s: %w", last.Place, &dispatch.Ended{Exit: *last.Exit}))
		}
		return output.end(last.Exit.Code == exitNotPassed, nil)
	}
	if old.Run == nil {
		return fmt.Errorf("run %s: no workload has run", plan.Run.ID)
	}
	r := old.Totals()
	if a.final != nil {
		a.runID = plan.Run.ID
		return verdict(r, plan.Strict)
	}
	if a.json {
		return a.writeJSON(old)
	}
	stream := event.NewStream(a.term.Run())
	old.Emit(stream)
	return errors.Join(stream.Err(), verdict(r, plan.Strict))
}

func (a *app) remoteLs() error {
	lines, err := dispatch.List(a.Root(), func(err error) { a.term.Warn(plain.Line(err.Error()), "") })
	if err != nil {
		return err
	}
	rows := [][]string{{"RUN", "AGE", "STATE", "JOBS", "PASSED", "PLACES"}}
	for _, l := range lines {
		state := l.State
		if l.Active > 0 && (state == "done" || state == "cancelled") {
			state += fmt.Sprintf(", %d may still run", l.Active)
		}
		passed := fmt.Sprintf("%d/%d", l.Passed, l.Total)
		if l.Tool != "" {
			passed = l.Tool
		}
		rows = append(rows, []string{l.ID, ui.Age(time.Since(l.Run.Started)), state, fmt.Sprintf("%d/%d", l.Jobs-l.Active,
			l.Jobs), passed, strings.Join(l.Places, ", ")})
	}
	switch {
	case a.json:
		return a.writeJSON(lines)
	case len(lines) == 0:
		a.term.Note("no remote runs below %s", filepath.Join(a.Root(), runs.Dir))
		return nil
	}
	a.term.Table("LRLRRl", rows, nil)
	return nil
}

// followerTimeout is how long the process that follows a run may take to react to a cancellation.
const followerTimeout = 15 * time.Second

func (a *app) remoteCancel(ctx context.Context, arg string) error {
	folder, old, plan, err := a.attached(arg)
	if errors.Is(err, runs.ErrRunning) {
		return a.cancelFollowed(ctx, plan)
	}
	if err != nil {
		return err
	}
	defer folder.Close()
	if plan.Done || len(plan.Active()) == 0 {
		a.term.Note("run %s: no running jobs", plan.Run.ID)
		return nil
	}
	open, err := a.openPlan(plan)
	if err != nil {
		return err
	}
	defer open.Close()
	return a.cancel(ctx, dispatch.New(plan, folder, old, open, nil))
}

// unlessRemoved returns err, or nil if the reason is that the folder of a remote run is gone, as after a run that ended
// before any host had taken a job. The client's removal of the folder may be unfinished.
func (a *app) unlessRemoved(id string, err error) error {
	if err == nil || dispatch.IsRemote(filepath.Join(a.Root(), runs.Dir, id)) {
		return err
	}
	a.term.Note("run %s: ended before a host accepted a job", id)
	return nil
}

// cancelFollowed asks the process that follows a run to end its jobs, and ends them itself if that process does not
// react.
func (a *app) cancelFollowed(ctx context.Context, plan *dispatch.Plan) error {
	id, client := plan.Run.ID, cmp.Or(plan.Client, "another process")
	dir := filepath.Join(a.Root(), runs.Dir, id)
	if err := dispatch.Mark(dir); err != nil {
		return a.unlessRemoved(id, err)
	}
	a.term.Note("run %s is followed by %s: asking it to end the jobs", id, client)
	for end := time.Now().Add(followerTimeout); ; {
		if r, _ := runs.Read(dir); r == nil || !r.Running {
			return a.unlessRemoved(id, a.remoteCancel(ctx, id))
		}
		plan, err := dispatch.Load(dir)
		if err != nil {
			return a.unlessRemoved(id, err)
		}
		if time.Now().After(end) && !plan.Packed() {
			a.term.Note("run %s is still being prepared by %s, which will send nothing", id, client)
			return nil
		}
		if time.Now().After(end) {
			open, err := a.openPlan(plan)
			if err != nil {
				return err
			}
			defer open.Close()
			if err := dispatch.Release(ctx, plan, open); err != nil {
				return err
			}
			a.term.Error(fmt.Sprintf("run %s: the jobs are ended, but %s does not respond", id, client),
				"kill that process; then fisub remote attach "+id+" shows the results")
			return shown(exitError)
		}
		if err := remote.Sleep(ctx, time.Second/4); err != nil {
			return err
		}
	}
}

// cancel ends the jobs of a run, and prints how many have ended and how many may still run.
func (a *app) cancel(ctx context.Context, d *dispatch.Dispatcher) error {
	n := len(d.Plan.Active())
	err := d.Cancel(ctx)
	left := d.Plan.Active()
	if n -= len(left); n > 0 {
		a.term.Note("run %s: %s ended", d.Plan.Run.ID, plain.Count(n, "job"))
	}
	if r, _ := runs.Read(d.Folder.Path()); r != nil && d.Plan.Tool == "" {
		all := len(d.Plan.Run.Workloads)
		a.term.Note("run %s: %d of %s have a verdict", d.Plan.Run.ID, all-len(dispatch.MissingVerdicts(d.Plan, r)),
			plain.Count(all, "workload"))
	}
	if len(left) > 0 {
		a.term.Note("%s may still run; end them when their hosts can be reached: fisub remote cancel %s",
			plain.Count(len(left), "job"), d.Plan.Run.ID)
	}
	return err
}

func (a *app) remoteLogs(ctx context.Context, arg string, follow bool) error {
	id, plan, err := dispatch.Find(a.Root(), arg)
	if err != nil {
		return err
	}
	open, err := a.openPlan(plan)
	if err != nil {
		return err
	}
	defer open.Close()
	return dispatch.Logs(ctx, filepath.Join(a.Root(), runs.Dir, id), open, follow, func(place dispatch.ProviderPlace,
		text string) error {
		_, err := fmt.Fprintf(a.stdout, "%s | %s\n", place, plain.Line(text))
		return err
	})
}

// A hostLine is a row in the list of hosts.
type hostLine struct {
	Table string `json:"table"`
	remote.Host
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

func (a *app) remoteHosts(ctx context.Context, on string) error {
	h, err := a.openOn(on, true, "")
	if err != nil {
		return err
	}
	defer h.open.Close()
	lines := []hostLine{}
	rows := [][]string{{"TABLE", "HOST", "STATE", "DETAIL"}}
	var down error
	for _, name := range h.names {
		hosts, err := h.open[name].Check(ctx)
		if err != nil {
			return err
		}
		for _, host := range hosts {
			l := hostLine{Table: name, Host: host}
			if host.Err != nil {
				down = shown(exitError)
				l.Error, l.Hint = usage.Explain(host.Err)
				l.Error = strings.TrimPrefix(l.Error, name+": "+host.Name+": ") // the columns already show them
			}
			lines = append(lines, l)
			rows = append(rows, []string{l.Table, l.Name, l.State, cmp.Or(l.Error, l.Detail)})
		}
	}
	if a.json {
		err = a.writeJSON(lines)
	} else {
		a.term.Table("LLLl", rows, nil)
		for _, l := range lines {
			if l.Hint != "" {
				a.term.Note("hint: %s: %s", l.Name, l.Hint)
			}
		}
	}
	return cmp.Or(err, down)
}

func (a *app) remoteGC(ctx context.Context, on string, yes, all bool) error {
	h, err := a.openOn(on, true, "")
	if err != nil {
		return err
	}
	defer h.open.Close()
	found, err := dispatch.Orphans(ctx, a.Root(), h.open, h.names)
	if found == nil {
		return err
	}
	faults := []error{err}
	orphans, kept := []dispatch.Orphan{}, 0
	for _, o := range found {
		words := ""
		if o.Elsewhere {
			words = ", started elsewhere and perhaps needed there"
		} else if o.Damaged {
			words = ", of run " + o.Run + ", whose " + dispatch.PlanName + " cannot be read"
		} else if o.Run != "" {
			words = ", may have unfetched results: fisub remote attach " + o.Run
		}
		if a.term.Note("%s: %s on %s%s", o.Table, plain.Line(o.Job), o.Place, words); all || o.Free() {
			orphans = append(orphans, o)
		} else {
			kept++
		}
	}
	if kept > 0 {
		a.term.Note("%s kept; --all ends them too", plain.Count(kept, "job"))
	}
	if a.json {
		if err := a.writeJSON(orphans); err != nil {
			return err
		}
	}
	if len(orphans) == 0 || !a.term.Agreed(ctx, yes, "end "+plain.Count(len(orphans), "job")+"?") {
		return err
	}
	ended := 0
	for _, o := range orphans {
		if err := o.End(ctx, a.Root(), h.open); err != nil {
			faults = append(faults, err)
		} else {
			ended++
		}
	}
	a.term.Note("%s ended", plain.Count(ended, "job"))
	return errors.Join(faults...)
}
