//go:build linux

package main

import (
	"bytes"
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
	"syscall"
	"time"

	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/remote/agent"
	"fisub/remote/dispatch"
	"fisub/runs"
)

// streams watches the event streams on the hosts. It keeps each file open, so that it can read deleted ones.
type streams struct {
	world *world
	stop  context.CancelFunc
	gone  chan struct{}

	mu   sync.Mutex
	byID map[uint64]*stream
}

type stream struct {
	host     int
	job      string
	file     *os.File
	half     []byte
	verdicts map[string]string
}

func (w *world) watch(ctx context.Context) *streams {
	ctx, stop := context.WithCancel(ctx)
	s := &streams{world: w, stop: stop, gone: make(chan struct{}), byID: map[uint64]*stream{}}
	go func() {
		defer close(s.gone)
		for ctx.Err() == nil {
			s.poll()
			select {
			case <-ctx.Done():
			case <-time.After(15 * time.Millisecond):
			}
		}
		s.poll()
	}()
	return s
}

func (s *streams) poll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range s.world.hosts {
		paths, _ := filepath.Glob(workFolder(m, "jobs", "*", agent.EventsName))
		for _, path := range paths {
			var st syscall.Stat_t
			if syscall.Stat(path, &st) != nil || s.byID[st.Ino<<2|uint64(i)] != nil {
				continue
			}
			if f, err := os.Open(path); err == nil {
				s.byID[st.Ino<<2|uint64(i)] = &stream{host: i, job: filepath.Base(filepath.Dir(path)), file: f,
					verdicts: map[string]string{}}
			}
		}
	}
	for _, f := range s.byID {
		f.read()
	}
}

func (f *stream) read() {
	buf := make([]byte, 64<<10)
	for {
		n, _ := f.file.Read(buf)
		if n == 0 {
			return
		}
		f.half = append(f.half, buf[:n]...)
		for {
			line, rest, whole := bytes.Cut(f.half, []byte("\n"))
			if !whole {
				break
			}
			f.half = rest
			var e event.Event
			if at := bytes.IndexByte(line, '{'); at < 0 || // signatures may precede or follow the event
				json.NewDecoder(bytes.NewReader(line[at:])).Decode(&e) != nil {
				continue
			}
			if e.Evaluated != nil {
				f.verdicts[e.Workload] = string(e.Evaluated.Status())
			}
		}
	}
}

// count returns the number of workloads with a verdict on some host.
func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for _, f := range s.byID {
		for w := range f.verdicts {
			all[w] = true
		}
	}
	return len(all)
}

// begun reports whether there is a stream on one of the given hosts, or on any host if none is given.
func (s *streams) begun(on []int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.byID {
		if len(on) == 0 || slices.Contains(on, f.host) {
			return true
		}
	}
	return false
}

// close stops watching and returns all streams.
func (s *streams) close() (all []*stream) {
	s.stop()
	<-s.gone
	for _, f := range s.byID {
		f.file.Close()
		all = append(all, f)
	}
	return all
}

// runBound is the time after which a command counts as hanging, far above the needs of a slow machine.
const runBound = 8 * time.Minute

// mostAttached is the maximum number of attach commands. Results missing after that are lost.
const mostAttached = 3

// A result is the result of a run with a fault.
type result struct {
	Scenario scenario
	Hit      bool   // the fault happened during the run, and affected something
	First    int    // exit status of `fisub remote`; -1 if it was killed
	Attached int    // number of attach commands
	Resumed  bool   // workloads that no host could judge were run again after the fault
	Outcome  string // "whole", "cancelled", "none" (no run was started), "part"
	Swept    int    // number of jobs that `fisub remote gc` ended
	Streams  int    // number of jobs' streams on the hosts
	Verdicts int    // number of verdicts in them
	Problems []string
	Notes    []string
	Seconds  float64
	Log      string
}

func (r *result) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// try executes a run with its fault, and judges the result.
func try(ctx context.Context, dir, base string, s scenario, want map[string]string) (r *result) {
	begun := time.Now()
	r = &result{Scenario: s, First: -2}
	var w *world
	defer func() {
		r.Seconds = time.Since(begun).Seconds()
		if w != nil {
			w.mu.Lock()
			r.Log = w.log.String()
			w.mu.Unlock()
			w.end()
		}
	}()
	w, err := newWorld(dir, base, s.Cold)
	if err != nil {
		r.problem("no world: %v", err)
		return r
	}
	if err := w.project(filepath.Join(base, projectName(s.Mixed)), table(s.Away)); err != nil {
		r.problem("no world: %v", err)
		return r
	}
	w.begun = time.Now()
	seen := w.watch(ctx)
	w.perform(ctx, s, r, seen)
	for _, f := range seen.close() {
		w.say("stream of %s on h%d: %d verdicts", f.job, f.host+1, len(f.verdicts))
		r.Streams++
		r.Verdicts += len(f.verdicts)
		r.compare(w, f, want)
	}
	if r.Outcome == "whole" && r.Verdicts < s.Workloads {
		r.problem("the judge has seen %d verdicts on the hosts, and there are %d", r.Verdicts, s.Workloads)
	}
	if id, _ := w.lastRun(); id != "" {
		r.twice(w.runFolder(id))
	}
	return r
}

func table(away time.Duration) string {
	return fmt.Sprintf(`
[remote.lab]
provider = "ssh"
hosts = ["h1", "h2", "h3"]
gpu = "none"
away = "%v"
`, away)
}

// perform executes the run, its fault, and the user's reaction.
func (w *world) perform(ctx context.Context, s scenario, r *result, seen *streams) {
	first, err := w.fisub(ctx, "remote", "remote", "--on", "lab", "--limit", fmt.Sprint(s.Workloads))
	if err != nil {
		r.problem("%v", err)
		return
	}
	if w.moment(ctx, s, first, seen) {
		if r.Hit, err = w.do(ctx, s, first); err != nil {
			r.problem("no fault: %v", err)
		}
	} else if s.Fault == "client killed" {
		r.Notes = append(r.Notes, "the client was faster")
	}
	if !w.wait(ctx, first, r) {
		return
	}
	r.First = first.status
	killed := s.Fault == "client killed" && r.Hit
	if !killed {
		r.status(w, "remote", first.status)
	}
	id, plan := w.lastRun()
	switch {
	case id == "":
		r.Outcome = "none"
	case s.Cancel && killed && !plan.Done:
		r.Outcome = "cancelled"
		if status, ok := w.command(ctx, r, "cancel", "remote", "cancel", "last"); ok && status != 0 {
			r.problem("cancel: exit status %d, want 0: %s", status, w.words("cancel"))
		}
		if _, plan = w.lastRun(); plan != nil && len(plan.Active()) > 0 {
			r.problem("cancelled, and %d jobs are not ended in the plan", len(plan.Active()))
		}
	default:
		for i := 0; killed && i < s.Times && !w.whole(id); i++ {
			c, err := w.fisub(ctx, fmt.Sprint("killed", i+1), "remote", "attach", "last")
			if err != nil {
				r.problem("%v", err)
				return
			}
			sleep(ctx, s.Again[i], func() bool { return ended(c) })
			c.kill()
			<-c.ended
		}
		for r.Attached < mostAttached && !w.whole(id) && (r.Attached == 0 || plan == nil || !plan.Done) {
			r.Attached++
			name := fmt.Sprint("attach", r.Attached)
			status, ok := w.command(ctx, r, name, "remote", "attach", "last")
			if !ok {
				return
			}
			r.status(w, name, status)
			_, plan = w.lastRun()
		}
		if _, plan = w.lastRun(); plan != nil && plan.Done && !w.whole(id) { // no host could judge the rest
			r.Resumed = true
			status, ok := w.command(ctx, r, "resume", "remote", "--resume", "last", "--yes")
			if !ok {
				return
			}
			r.status(w, "resume", status)
		}
		r.Outcome = "part"
		if w.whole(id) {
			r.Outcome = "whole"
		} else {
			r.problem("workloads without a verdict: %s", w.missing(id))
		}
	}
	if status, ok := w.command(ctx, r, "gc", "remote", "gc", "--on", "lab", "--yes"); ok && status != 0 {
		r.problem("gc: exit status %d, want 0: %s", status, w.words("gc"))
	}
	text, _ := os.ReadFile(filepath.Join(w.dir, "gc.err"))
	r.Swept = strings.Count(string(text), "lab: fisub-")
	if r.Swept > 0 {
		for _, name := range []string{"remote", "attach1", "attach2", "resume"} {
			text, _ := os.ReadFile(filepath.Join(w.dir, name+".err"))
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "may still run") {
					r.Notes = append(r.Notes, name+": "+strings.TrimSpace(line))
				}
			}
		}
	}
	w.leftovers(ctx, r)
}

// command runs fisub and waits for it; ok is false if it hangs.
func (w *world) command(ctx context.Context, r *result, name string, args ...string) (status int, ok bool) {
	c, err := w.fisub(ctx, name, args...)
	if err != nil {
		r.problem("%v", err)
		return 0, false
	}
	ok = w.wait(ctx, c, r)
	return c.status, ok
}

func (w *world) wait(ctx context.Context, c *client, r *result) bool {
	select {
	case <-c.ended:
		return true
	case <-ctx.Done():
		r.problem("interrupted")
	case <-time.After(runBound):
		r.problem("%s: not ended after %v", filepath.Base(c.out), runBound)
	}
	c.end()
	return false
}

// words returns the end of a command's stderr.
func (w *world) words(name string) string {
	text, _ := os.ReadFile(filepath.Join(w.dir, name+".err"))
	text = bytes.TrimSpace(text)
	return string(text[max(0, len(text)-400):])
}

// lastRun returns the id and plan of the last run, or "" without a run.
func (w *world) lastRun() (id string, plan *dispatch.Plan) {
	ids, _ := runs.IDs(home(w.client, "p"))
	if len(ids) == 0 {
		return "", nil
	}
	plan, err := dispatch.Load(w.runFolder(ids[len(ids)-1]))
	if err != nil || !plan.Packed() {
		return "", nil
	}
	return ids[len(ids)-1], plan
}

func (w *world) runFolder(id string) string { return home(w.client, "p", runs.Dir, id) }

// state returns the numbers of workloads that passed, that have a verdict, and in total.
func (w *world) state(id string) (passed, judged, total int) {
	r, err := runs.Read(w.runFolder(id))
	if err != nil {
		return 0, 0, 0
	}
	d := r.Totals()
	return d.Passed, d.Passed + d.Failed, d.Passed + d.Failed + d.Missing
}

func (w *world) whole(id string) bool {
	_, plan := w.lastRun()
	_, judged, total := w.state(id)
	return plan != nil && plan.Done && total > 0 && judged == total
}

func (w *world) missing(id string) string {
	r, err := runs.Read(w.runFolder(id))
	if err != nil {
		return err.Error()
	}
	_, judged, total := w.state(id)
	text := fmt.Sprintf("%d of %d", total-judged, total)
	for _, row := range r.Rows {
		if row.Unjudged != nil {
			text += fmt.Sprintf("; %.8s: %s", row.UUID, row.Unjudged.Text)
		}
	}
	return text
}

// status checks an exit status against `fisub help exit-status` and the run folder.
func (r *result) status(w *world, name string, got int) {
	want := 1
	if id, _ := w.lastRun(); id != "" {
		switch passed, judged, total := w.state(id); {
		case judged < total || total == 0:
		case passed < total:
			want = 3
		default:
			want = 0
		}
	}
	if got != want {
		r.problem("%s: exit status %d, want %d: %s", name, got, want, w.words(name))
	}
}

// compare checks that the verdicts in a host's stream are correct and in the final result.
func (r *result) compare(w *world, f *stream, want map[string]string) {
	for uuid, status := range f.verdicts {
		if status != want[uuid] {
			r.problem("wrong: workload %.8s is %s on h%d, and %s by fisub local", uuid, status, f.host+1, want[uuid])
		}
	}
	id, _ := w.lastRun()
	if id == "" {
		if len(f.verdicts) > 0 {
			r.problem("h%d: %d verdicts, and there is no run", f.host+1, len(f.verdicts))
		}
		return
	}
	if r.Outcome == "cancelled" {
		return
	}
	run, err := runs.Read(w.runFolder(id))
	if err != nil {
		r.problem("%v", err)
		return
	}
	have := verdicts(run)
	for uuid, status := range f.verdicts {
		if have[uuid] != status {
			r.problem("lost: workload %.8s is %s in the stream of %s on h%d, and %q in the end result", uuid, status, f.job,
				f.host+1, have[uuid])
		}
	}
}

// verdicts returns the statuses of a run's workloads that have one.
func verdicts(r *runs.Run) map[string]string {
	all := map[string]string{}
	for _, row := range r.Rows {
		if row.Evaluated != nil {
			all[row.UUID] = string(row.Evaluated.Status())
		}
	}
	return all
}

// twice checks that no workload is in a run folder more than once.
func (r *result) twice(dir string) {
	traces, _, err := trace.ReadTraces(filepath.Join(dir, "traces.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.problem("%v", err)
	}
	n := map[string]int{}
	for _, t := range traces {
		n["traces.jsonl: "+t.Workload.UUID]++
	}
	events, _ := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	for line := range bytes.Lines(events) {
		var e event.Event
		if json.Unmarshal(line, &e) == nil && e.Evaluated != nil {
			n["events.jsonl: "+e.Workload]++
		}
	}
	for name, n := range n {
		if n > 1 {
			r.problem("twice: %s is there %d times", name, n)
		}
	}
}

// leftBound is how long ending processes may take.
const leftBound = 3 * time.Minute

// leftovers checks that a run leaves nothing on the hosts and the client.
func (w *world) leftovers(ctx context.Context, r *result) {
	var left []string
	await(ctx, leftBound, func() bool {
		left = w.left()
		return len(left) == 0
	})
	for _, what := range left {
		r.problem("left: %s", what)
	}
	for _, m := range w.machines() {
		for _, dir := range []string{"tmp", "dev/shm"} {
			names, _ := os.ReadDir(filepath.Join("/proc", m.pid(), "root", dir))
			for _, name := range names {
				r.Notes = append(r.Notes, fmt.Sprintf("%s has /%s/%s", m.Name, dir, name.Name()))
			}
		}
	}
}

func (w *world) machines() []*machine { return append([]*machine{w.client}, w.hosts[:]...) }

func (w *world) left() (left []string) {
	for _, m := range w.machines() {
		for _, p := range m.processes() {
			if m == w.client || !isSSHD(p) {
				left = append(left, fmt.Sprintf("process on %s: %.200s", m.Name, p))
			}
		}
	}
	for _, m := range w.hosts {
		jobs, _ := os.ReadDir(workFolder(m, "jobs"))
		for _, d := range jobs {
			left = append(left, fmt.Sprintf("job folder on %s: %s", m.Name, d.Name()))
		}
		stored, _ := os.ReadDir(workFolder(m, "store"))
		for _, f := range stored {
			// A partial upload named only by a hash resumes with the next upload, or is deleted after a day.
			if strings.HasPrefix(f.Name(), ".") && strings.Count(f.Name(), ".") > 1 {
				left = append(left, fmt.Sprintf("partial upload on %s: %s", m.Name, f.Name()))
			}
		}
	}
	return left
}
