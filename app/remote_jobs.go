package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/bundle"
	"fisub/remote/dispatch"
)

// remoteRun finds the remote run that the only argument names.
func remoteRun(c *cli.Context) (root, id string, plan *dispatch.Plan, err error) {
	if c.NArg() != 1 {
		return "", "", nil, usage("fisub remote "+c.Command.Name+" last", "%s: got %d runs, want 1", c.Command.Name, c.NArg())
	}
	root = runsRoot(c)
	ids, err := remoteIDs(root)
	if err != nil {
		return "", "", nil, err
	}
	arg := c.Args().First()
	if arg == "last" && len(ids) > 0 {
		id = ids[len(ids)-1]
	} else if id, err = runs.Find(root, arg); err != nil {
		return "", "", nil, invalid(err)
	}
	plan, err = dispatch.Load(filepath.Join(root, runs.Dir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil, usage("fisub remote ls lists them", "run %s is no remote run", id)
	}
	return root, id, plan, err
}

// remoteIDs are the remote runs below root, the oldest first.
func remoteIDs(root string) ([]string, error) {
	ids, err := runs.IDs(root)
	return slices.DeleteFunc(ids, func(id string) bool { return !dispatch.IsRemote(filepath.Join(root, runs.Dir, id)) }), err
}

// openPlan opens the providers that the plan's jobs need. A table that is gone is told by what needs it.
func openPlan(c *cli.Context, plan *dispatch.Plan) (opened, error) {
	ts, err := tables(c)
	if err != nil {
		return nil, err
	}
	open := opened{}
	for _, place := range plan.Places {
		if open[place.Table] != nil {
			continue
		}
		p, _, err := openProvider(ts, place.Table)
		if err != nil {
			open.close()
			return nil, err
		}
		open[place.Table] = p
	}
	return open, nil
}

func (a *app) remoteAttach(c *cli.Context) error {
	root, id, _, err := remoteRun(c)
	if err != nil {
		return err
	}
	folder, old, err := runs.Attach(root, id)
	if err != nil {
		return invalid(err)
	}
	defer folder.Close()
	plan, err := dispatch.Load(folder.Path()) // again: another process may have written it before the lock was free
	if err != nil {
		return err
	}
	if plan.Done {
		if old.Run == nil {
			return usage("", "run %s: nothing of it has run", id)
		}
		view := a.term.Run()
		if globalBool(c, "json") {
			return writeJSON(a.stdout, old)
		}
		stream := event.NewStream(view)
		old.Emit(stream)
		passed, total := old.Passed()
		r := dispatch.Result{Passed: passed, Missing: total, Open: total - len(old.Rows)}
		for _, row := range old.Rows {
			r.Findings += len(row.Findings)
			if row.Evaluated != nil {
				r.Missing--
			}
		}
		r.Failed = total - passed - r.Missing
		return errors.Join(stream.Err(), verdictOf(r, plan.Strict))
	}
	var spec bundle.Spec
	if err := json.Unmarshal(plan.Bundle, &spec); err != nil {
		return fmt.Errorf("run %s: %w", id, err)
	}
	spec.Solution = filepath.Join(folder.Path(), solutionName) // wherever that is seen from here
	if spec.Baseline != "" {
		spec.Baseline = filepath.Join(folder.Path(), baselineDir, filepath.Base(spec.Baseline))
	}
	open, err := openPlan(c, plan)
	if err != nil {
		return err
	}
	defer open.close()
	cacheRoot, err := cache.Root()
	if err != nil {
		return err
	}
	// The bundle is made only where a job has to be submitted, which is seldom.
	files := sync.OnceValues(func() (*bundle.Bundle, error) {
		return newBundle(context.WithoutCancel(c.Context), cacheRoot, folder.Path(), spec)
	})
	d := &dispatch.Dispatcher{Plan: plan, Folder: folder.Path(), Providers: open,
		Files: func(ctx context.Context, ws []string) ([]remote.File, []string, error) {
			b, err := files()
			if err != nil {
				return nil, nil, err
			}
			return b.Files(ctx, ws)
		}}
	return a.dispatch(c, d, folder, old)
}

// A remoteLine is a run in the list.
type remoteLine struct {
	ID     string   `json:"id"`
	State  string   `json:"state"` // "running" (followed), "detached", "done"
	Jobs   int      `json:"jobs"`
	Active int      `json:"active"`
	Passed int      `json:"passed"`
	Total  int      `json:"total"`
	Places []string `json:"places"`
	Cost   float64  `json:"cost_usd,omitempty"`
	Age    string   `json:"-"`
}

func (a *app) remoteLs(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	root := runsRoot(c)
	ids, err := remoteIDs(root)
	if err != nil {
		return err
	}
	slices.Reverse(ids)
	lines := []remoteLine{}
	for _, id := range ids {
		dir := filepath.Join(root, runs.Dir, id)
		plan, err := dispatch.Load(dir)
		if err != nil {
			a.term.Warn(plain.Line(err.Error()), "")
			continue
		}
		l := remoteLine{ID: id, State: "detached", Jobs: len(plan.Jobs), Active: len(plan.Active()), Total: len(plan.Run.Workloads), Age: age(time.Since(plan.Run.Started))}
		if r, err := runs.Read(dir); err == nil {
			l.Passed, _ = r.Passed()
			if r.Running {
				l.State = "running"
			}
		}
		if plan.Done {
			l.State = "done"
		}
		l.Cost, _ = plan.Cost()
		for _, j := range plan.Jobs {
			if name := j.Place.String(); !slices.Contains(l.Places, name) {
				l.Places = append(l.Places, name)
			}
		}
		lines = append(lines, l)
	}
	if globalBool(c, "json") {
		return writeJSON(a.stdout, lines)
	}
	if len(lines) == 0 {
		a.term.Note("no remote runs below %s", filepath.Join(root, runs.Dir))
		return nil
	}
	rows := [][]string{{"RUN", "AGE", "STATE", "JOBS", "PASSED", "COST", "PLACES"}}
	for _, l := range lines {
		cost := "-"
		if l.Cost > 0 {
			cost = dollars(l.Cost)
		}
		rows = append(rows, []string{l.ID, l.Age, l.State, fmt.Sprintf("%d/%d", l.Jobs-l.Active, l.Jobs), fmt.Sprintf("%d/%d", l.Passed, l.Total), cost, strings.Join(l.Places, ", ")})
	}
	return a.term.Table("lrlrrrl", rows, nil)
}

func (a *app) remoteCancel(c *cli.Context) error {
	root, id, _, err := remoteRun(c)
	if err != nil {
		return err
	}
	folder, old, err := runs.Attach(root, id)
	if err != nil {
		return invalid(err)
	}
	defer folder.Close()
	plan, err := dispatch.Load(folder.Path())
	if err != nil {
		return err
	}
	if plan.Done || len(plan.Active()) == 0 {
		a.term.Note("run %s: no job of it runs", id)
		return nil
	}
	open, err := openPlan(c, plan)
	if err != nil {
		return err
	}
	defer open.close()
	n := len(plan.Active())
	d := &dispatch.Dispatcher{Plan: plan, Folder: folder.Path(), Providers: open, Old: old, Events: event.NewStream(folder.Record)}
	if err := d.Cancel(c.Context); err != nil {
		return err
	}
	a.term.Note("run %s: %s ended", id, plain.Count(n, "job"))
	return d.Events.Err()
}

func (a *app) remoteLogs(c *cli.Context) error {
	root, id, plan, err := remoteRun(c)
	if err != nil {
		return err
	}
	open, err := openPlan(c, plan)
	if err != nil {
		return err
	}
	defer open.close()
	dir := filepath.Join(root, runs.Dir, id)
	tmp, err := os.MkdirTemp("", "fisub-logs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	printed := map[string]int{}
	show := func(j *dispatch.Job) error {
		file := filepath.Join(dir, "log", j.ID, "log")
		if j.Ended == nil && j.Handle != nil {
			at := filepath.Join(tmp, j.ID)
			if err := os.MkdirAll(at, 0o700); err != nil {
				return err
			}
			if err := open[j.Place.Table].Collect(c.Context, *j.Handle, at); err == nil {
				file = filepath.Join(at, "log")
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		text := string(data[min(printed[j.ID], len(data)):])
		if end := strings.LastIndexByte(text, '\n'); end < 0 && j.Ended == nil {
			return nil
		} else if j.Ended == nil {
			text = text[:end+1]
		}
		printed[j.ID] += len(text)
		for line := range strings.Lines(text) {
			if _, err := fmt.Fprintf(a.stdout, "%s | %s\n", j.Place, plain.Line(strings.TrimRight(line, "\n"))); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		for _, j := range plan.Jobs {
			if err := show(j); err != nil {
				return err
			}
		}
		if !c.Bool("f") || len(plan.Active()) == 0 {
			return nil
		}
		select {
		case <-c.Context.Done():
			return c.Context.Err()
		case <-time.After(time.Second):
		}
		if plan, err = dispatch.Load(dir); err != nil {
			return err
		}
	}
}

func (a *app) remoteHosts(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	ts, names, err := chosen(c, true)
	if err != nil {
		return err
	}
	type line struct {
		Table string `json:"table"`
		remote.Host
		Error string `json:"error,omitempty"`
		Hint  string `json:"hint,omitempty"`
	}
	lines := []line{}
	down := false
	for _, name := range names {
		p, _, err := openProvider(ts, name)
		if err != nil {
			return err
		}
		hosts, err := p.Check(c.Context)
		_ = p.Close()
		if err != nil {
			return err
		}
		for _, h := range hosts {
			l := line{Table: name, Host: h}
			if h.Err != nil {
				down = true
				l.Error, l.Hint = explain(h.Err)
			}
			lines = append(lines, l)
		}
	}
	if globalBool(c, "json") {
		err = writeJSON(a.stdout, lines)
	} else {
		rows := [][]string{{"TABLE", "HOST", "STATE", "DETAIL"}}
		for _, l := range lines {
			rows = append(rows, []string{l.Table, l.Name, l.State, cmp.Or(l.Error, l.Detail)})
		}
		if err = a.term.Table("llll", rows, nil); err == nil {
			for _, l := range lines {
				if l.Hint != "" {
					a.term.Note("hint: %s: %s", l.Name, l.Hint)
				}
			}
		}
	}
	if err == nil && down {
		return errUnreachable
	}
	return err
}

func (a *app) remoteGC(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	ts, names, err := chosen(c, true)
	if err != nil {
		return err
	}
	open := opened{}
	defer open.close()
	held := map[string][]remote.Handle{}
	var faults []error // one host that does not answer keeps no job of another one alive
	for _, name := range names {
		p, _, err := openProvider(ts, name)
		if err != nil {
			return err
		}
		open[name] = p
		if held[name], err = p.List(c.Context); c.Context.Err() != nil {
			return err
		}
		faults = append(faults, err)
	}
	// What this folder's runs wait for, and what they have done with. That is read after the hosts were asked: a run writes a
	// job down before it submits it.
	waited, mine := map[string]bool{}, map[string]bool{}
	root := runsRoot(c)
	ids, err := remoteIDs(root)
	if err != nil {
		return err
	}
	for _, id := range ids {
		plan, err := dispatch.Load(filepath.Join(root, runs.Dir, id))
		if err != nil {
			return err
		}
		for _, j := range plan.Jobs {
			mine[j.ID] = true
			waited[j.ID] = j.Ended == nil && !plan.Done
		}
	}
	type orphan struct {
		Table string `json:"table"`
		Job   string `json:"job"`
		Place string `json:"place"`
		h     remote.Handle
	}
	orphans, strangers := []orphan{}, 0
	for _, name := range names {
		for _, h := range held[name] {
			switch {
			case waited[h.Job]:
			case mine[h.Job], c.Bool("all"), slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(h.Job, "fisub-"+id+"-") }):
				orphans = append(orphans, orphan{name, h.Job, h.Place.String(), h})
			default:
				strangers++
			}
		}
	}
	if globalBool(c, "json") {
		if err := writeJSON(a.stdout, orphans); err != nil {
			return err
		}
	}
	for _, o := range orphans {
		a.term.Note("%s: %s on %s", o.Table, plain.Line(o.Job), o.Place)
	}
	if strangers > 0 {
		a.term.Note("%s begun elsewhere; --all ends them too", plain.Count(strangers, "job"))
	}
	if len(orphans) == 0 || !a.agreed(c, "end "+plain.Count(len(orphans), "job")+"?") {
		return errors.Join(faults...)
	}
	ended := 0
	for _, o := range orphans {
		if err := open[o.Table].Release(c.Context, o.h); err != nil {
			faults = append(faults, err)
		} else {
			ended++
		}
	}
	a.term.Note("%s ended", plain.Count(ended, "job"))
	return errors.Join(faults...)
}
