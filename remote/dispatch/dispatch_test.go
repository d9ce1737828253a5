package dispatch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/dispatch"
	"fisub/remote/loopback"
	"fisub/remote/remotetest"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

// program stands in for `fisub local --json`: a workload an argument, $STEP seconds each. It knows its place by the
// file that $TROUBLE names, where the test makes one.
const program = `
cat run.json
for u in "$@"; do
  echo '{"type":"started","workload":"'$u'","started":{"index":1,"total":1,"axes":{"b":1}}}'
  sleep $(cat step)
  cat "$u.json"
  echo '{"type":"warning","workload":"'$u'","finding":{"check":"late-write","text":"it does"}}'
done
echo '{"type":"done","done":{"passed":1}}'
[ -e slow ] && sleep 300
exit 3`

type fixture struct {
	t         testing.TB
	root, dir string
	script    string
	step      string
	plan      *dispatch.Plan
	providers map[string]remote.Provider
	extra     map[string]string

	mu     sync.Mutex
	events []event.Event
	on     func(event.Event)
	full   bool // this machine's disk, once there is a verdict
	detach bool
	most   int64 // of a job's stream; 0 is the usual bound
	over   time.Duration
}

func newFixture(t testing.TB, workloads int, tables map[string]map[string]any) *fixture {
	f := &fixture{t: t, root: t.TempDir(), script: program, step: "0.05", providers: map[string]remote.Provider{},
		extra: map[string]string{}}
	id := fmt.Sprintf("20260102-030405-%03dabc", time.Now().UnixMilli()%1000)
	f.dir = filepath.Join(f.root, runs.Dir, id)
	f.plan = &dispatch.Plan{Version: 1, Terms: dispatch.Terms{Limit: time.Minute}, Run: event.Run{Schema: event.Schema, ID: id, Definition: "d",
		ContentHash: "abc", Set: "default"}}
	for i := range workloads {
		f.plan.Run.Workloads = append(f.plan.Run.Workloads, event.Workload{UUID: fmt.Sprintf("w%02d", i),
			Axes: map[string]int{"b": 1}})
	}
	for name, table := range tables {
		if table["workdir"] == nil {
			table["workdir"] = t.TempDir()
		}
		c, err := remotetest.Table[loopback.Config](name, table)
		if err != nil {
			t.Fatal(err)
		}
		p, err := loopback.New(name, c)
		if err != nil {
			t.Fatal(err)
		}
		f.providers[name] = p
		for _, place := range p.Places(100) {
			f.plan.Places = append(f.plan.Places, dispatch.Place{Table: name, Place: place})
		}
	}
	slices.SortFunc(f.plan.Places, func(a, b dispatch.Place) int { return strings.Compare(a.String(), b.String()) })
	return f
}

func (f *fixture) files(_ context.Context, workloads []string) ([]remote.File, []string, error) {
	extra := map[string]string{"step": f.step,
		"run.json": `{"type":"run","run":{"schema":"fisub.event/1","content_hash":"abc","device":{"kind":"emu","name":"cpu","emulated":true},"host":{"name":"h"}}}` + "\n"}
	for name, content := range f.extra {
		extra[name] = content
	}
	for _, u := range workloads {
		trace := fmt.Sprintf(
			`{"definition":"d","workload":{"axes":{"b":1},"inputs":{},"uuid":%q},"solution":"s","evaluation":{"status":"PASSED","environment":{"hardware":"h","libs":{}},"timestamp":"t","log":"","correctness":{"max_relative_error":0.0,"max_absolute_error":0.0,"extra":null},"performance":{"latency_ms":1.0,"reference_latency_ms":0.0,"speedup_factor":0.0}}}`, u)
		extra[u+".json"] = fmt.Sprintf(
			`{"type":"evaluated","workload":%q,"evaluated":{"index":7,"status":"PASSED","trace":%s}}`, u, trace) + "\n"
	}
	job := remotetest.Script(f.t, f.script, extra)
	return job.Files, append([]string{"run.sh"}, workloads...), nil
}

// run dispatches, in the run folder as another process left it.
func (f *fixture) run(ctx context.Context) (dispatch.Result, error) {
	f.t.Helper()
	folder, old, err := runs.Attach(f.root, f.plan.Run.ID)
	if err != nil {
		f.t.Fatal(err)
	}
	defer folder.Close()
	keep := func(e event.Event) error {
		f.mu.Lock()
		f.events = append(f.events, e)
		on := f.on
		f.mu.Unlock()
		if on != nil {
			on(e)
		}
		if f.full && e.Evaluated != nil {
			return errFull
		}
		return nil
	}
	d := &dispatch.Dispatcher{Plan: f.plan, Folder: f.dir, Old: old, Providers: f.providers, Files: f.files,
		Events: event.NewStream(folder.Record, keep),
		Follow: dispatch.Follow{Detach: f.detach, MaxStream: f.most, Overtime: f.over}}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return d.Run(ctx)
}

func (f *fixture) warnings() (all []string) {
	for _, e := range f.events {
		if e.Message != nil {
			all = append(all, e.Message.Text)
		}
	}
	return all
}

// check reads the run folder: each workload once, whole, and nothing left on any host.
func (f *fixture) check(want int) *runs.Run {
	f.t.Helper()
	r, err := runs.Read(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	passed, total := r.Passed()
	if passed != want || total != len(f.plan.Run.Workloads) {
		f.t.Errorf("passed: got %d of %d, want %d of %d", passed, total, want, len(f.plan.Run.Workloads))
	}
	for _, row := range r.Rows {
		if row.Place == "" || len(row.Findings) > 1 {
			f.t.Errorf("row: got %+v", row)
		}
	}
	for _, file := range []string{"traces.jsonl", "events.jsonl"} {
		data, err := os.ReadFile(filepath.Join(f.dir, file))
		if n := strings.Count(string(data), `"PASSED"`); err != nil || file == "traces.jsonl" && n != want {
			f.t.Errorf("%s: got %d verdicts, %v, want %d", file, n, err, want)
		}
	}
	for name, p := range f.providers {
		if left, err := p.List(context.Background()); err != nil || len(left) != 0 {
			f.t.Errorf("%s: left %v, %v", name, left, err)
		}
	}
	plan, err := dispatch.Load(f.dir)
	if err != nil || !plan.Done {
		f.t.Errorf("plan: got %+v, %v, want it done", plan, err)
	}
	return r
}

func TestSeveralPlaces(t *testing.T) {
	f := newFixture(t, 9, map[string]map[string]any{"a": {"slots": int64(2)}, "b": {"slots": int64(1)}})
	got, err := f.run(t.Context())
	if err != nil || got != (dispatch.Result{Passed: 9, Findings: 9}) {
		t.Fatalf("got %+v, %v", got, err)
	}
	r := f.check(9)
	places := map[string]int{}
	for i, row := range r.Rows {
		places[row.Place]++
		if len(row.Findings) != 1 || row.UUID != f.plan.Run.Workloads[i].UUID {
			t.Errorf("row %d: got %+v", i, row)
		}
	}
	if len(places) != 3 || places["a: slot1"] != 3 || places["b: localhost"] != 3 || len(r.Places) != 3 {
		t.Errorf("places: got %v, %+v", places, r.Places)
	}
	for i, e := range f.events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has number %d", i+1, e.Seq)
		}
		if e.Evaluated != nil && e.Workload != f.plan.Run.Workloads[e.Evaluated.Index].UUID {
			t.Errorf("workload %s has index %d", e.Workload, e.Evaluated.Index)
		}
	}
	if log, err := os.ReadFile(filepath.Join(f.dir, "log", f.plan.Jobs[0].ID, agent.LogName)); err != nil ||
		!strings.Contains(string(log), "exited with 3") {
		t.Errorf("log: got %q, %v", log, err)
	}
	if st, err := os.Stat(filepath.Join(f.dir, dispatch.PlanName)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("plan: got %v, %v", st, err)
	}
}

// The floors that each place has measured are kept with their place; the score is over the workloads of all places,
// also of those that another process has had.
func TestFloorsAndScore(t *testing.T) {
	f := newFixture(t, 8, map[string]map[string]any{"a": {"slots": int64(2)}})
	f.plan.Run.Baseline, f.plan.Run.Floors = &event.Baseline{Name: "b"}, true
	f.step = "0.3"
	f.script = `
echo '{"type":"floor","floor":{"kind":"empty","median_ns":900}}'
echo '{"type":"floor","floor":{"kind":"empty"},"done":{}}'` + strings.Replace(program, `cat "$u.json"`, `
  for speedup in -1 0 1e300 $((1${u#w} - 98)); do sed 's/"index":7/"index":7,"speedup":'$speedup'/' "$u.json"; done`, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	count := 0
	f.on = func(e event.Event) {
		if e.Evaluated != nil {
			if count++; count == 3 {
				cancel()
			}
		}
	}
	if _, err := f.run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	f.on = nil
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 8 {
		t.Fatalf("got %+v, %v", got, err)
	}
	places := map[string]int{}
	for _, e := range f.events {
		if e.Floor != nil {
			places[fmt.Sprint(e.Place, " ", e.Floor.Kind, " ", e.Floor.MedianNS)]++
		}
	}
	if fmt.Sprint(places) != "map[a: slot1 empty 900:1 a: slot2 empty 900:1]" {
		t.Errorf("floors: got %v", places)
	}
	if done := f.events[len(f.events)-1].Done; done == nil || done.Score == nil || *done.Score != 5.5 || done.Scored != 8 {
		t.Errorf("got %+v, want a score of (2 + ... + 9) / 8", done)
	}
	r := f.check(8)
	if r.Done.Score == nil || *r.Done.Score != 5.5 {
		t.Errorf("the run folder's end: got %+v", r.Done)
	}
}

// strike ends the agent of a job without a word.
func strike(t testing.TB, j *dispatch.Job) { signalAgent(t, j, syscall.SIGKILL) }

func signalAgent(t testing.TB, j *dispatch.Job, signal syscall.Signal) {
	var spot struct{ Work string }
	var s agent.State
	if err := json.Unmarshal(j.Handle.Data, &spot); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(agent.JobDir(spot.Work, j.ID), agent.StateName))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil {
		err = syscall.Kill(s.PID, signal)
	}
	if err != nil {
		t.Error(err)
	}
}

// strikes ends the agent of each of the first n jobs at a place when it has given a verdict.
func (f *fixture) strikes(place string, n int) {
	struck := map[string]bool{}
	f.on = func(e event.Event) {
		if e.Evaluated == nil || e.Place != place || struck[e.Job] || len(struck) == n {
			return
		}
		struck[e.Job] = true
		for _, j := range f.plan.Jobs {
			if j.ID == e.Job {
				strike(f.t, j)
			}
		}
	}
}

// stays makes a job at place a, below the folder, wait after its first verdict, until its agent is struck. Other jobs
// wait until two were.
func (f *fixture) stays(folder string) {
	gate := filepath.Join(f.t.TempDir(), "gate")
	f.script = strings.Replace(program, "sleep $(cat step)", `case $PWD in '`+folder+`'*) [ -z "$said" ] || sleep 300;;
*) until [ -e '`+gate+`' ]; do sleep 0.02; done;; esac; said=1`, 1)
	f.strikes("a: localhost", 2)
	strike, n := f.on, 0
	f.on = func(e event.Event) {
		if strike(e); e.Evaluated != nil && e.Place == "a: localhost" {
			if n++; n == 2 {
				if err := os.WriteFile(gate, nil, 0o600); err != nil {
					f.t.Error(err)
				}
			}
		}
	}
}

// A host that loses two jobs gets no other: what it had not finished goes elsewhere.
func TestHostLost(t *testing.T) {
	a := t.TempDir()
	f := newFixture(t, 12, map[string]map[string]any{"a": {"slots": int64(1), "workdir": a}, "b": {"slots": int64(1)}})
	f.stays(a)
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 12 {
		t.Fatalf("got %+v, %v", got, err)
	}
	r := f.check(12)
	places := map[string]int{}
	for _, row := range r.Rows {
		places[row.Place]++
	}
	if places["a: localhost"] != 2 || places["b: localhost"] != 10 {
		t.Errorf("places: got %v", places)
	}
	if len(r.Warnings) != 2 {
		t.Errorf("warnings: got %+v", r.Warnings)
	}
	for _, w := range r.Warnings {
		if !strings.Contains(w.Text, "a: localhost: lost: ") || w.Hint == "" {
			t.Errorf("warning: got %+v", w)
		}
	}
}

// A host that was only started anew is asked again, also where there is no other.
func TestHostRestarted(t *testing.T) {
	f := newFixture(t, 4, map[string]map[string]any{"a": {}})
	f.step = "0.3"
	f.strikes("a: localhost", 1)
	if got, err := f.run(t.Context()); err != nil || got.Passed != 4 || len(f.plan.Jobs) != 2 {
		t.Fatalf("got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	f.check(4)
}

// A judge that is killed on an only host is as good as an agent that is: the host is asked again, once.
func TestJudgeKilled(t *testing.T) {
	for _, signal := range []string{"KILL", "TERM"} {
		a := t.TempDir()
		f := newFixture(t, 4, map[string]map[string]any{"a": {"workdir": a}})
		f.script = strings.Replace(program, "sleep $(cat step)",
			`[ "$u" != w02 ] || mkdir '`+filepath.Join(a, "struck")+`' 2>/dev/null && [ "$u" = w02 ] && kill -`+signal+` $$`, 1)
		got, err := f.run(t.Context())
		if err != nil || got.Passed != 4 || len(f.plan.Jobs) != 2 {
			t.Errorf("%s: got %+v, %v, %d jobs: %q", signal, got, err, len(f.plan.Jobs), f.warnings())
		}
	}
}

// A host that answers, but says nothing when the job must be over by its limit, does not hold the run for ever.
func TestSilentHost(t *testing.T) {
	f := newFixture(t, 3, map[string]map[string]any{"a": {}})
	f.plan.Limit, f.over = 2*time.Second, time.Second
	f.script = strings.Replace(program, "sleep $(cat step)", `[ "$u" = w00 ] || sleep 300`, 1)
	f.on = func(e event.Event) {
		if e.Evaluated != nil {
			signalAgent(t, f.plan.Jobs[0], syscall.SIGSTOP)
		}
	}
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 1 || got.Missing != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	if exit := f.plan.Jobs[0].Exit; exit == nil || exit.End != remote.Lost || !strings.Contains(exit.Text, "after its limit of 2s") {
		t.Errorf("got %+v", exit)
	}
	f.check(1)
}

func TestOnlyHostLost(t *testing.T) {
	a := t.TempDir()
	f := newFixture(t, 6, map[string]map[string]any{"a": {"workdir": a}})
	f.stays(a)
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 2 || got.Missing != 4 || len(f.plan.Jobs) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	f.check(2)
}

func TestDetachAndAttach(t *testing.T) {
	f := newFixture(t, 8, map[string]map[string]any{"a": {"slots": int64(2)}})
	// The third workload of a job waits for the second round, the fourth and last for the third.
	gate := t.TempDir()
	f.script = strings.Replace(program, "sleep $(cat step)", "n=$((n + 1)); until [ -e '"+gate+"'/$n ]; do sleep 0.02; done", 1)
	for n := 1; ; n++ {
		for k := range n + 1 {
			if err := os.WriteFile(filepath.Join(gate, fmt.Sprint(k+1)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		count := 0
		f.on = func(event.Event) {
			if count++; count == 4 && n < 4 {
				cancel()
			}
		}
		got, err := f.run(ctx)
		cancel()
		if err == nil {
			if got.Passed != 8 || n < 3 {
				t.Errorf("round %d: got %+v", n, got)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if f.plan, err = dispatch.Load(f.dir); err != nil {
			t.Fatal(err)
		}
	}
	r := f.check(8)
	for _, row := range r.Rows {
		if len(row.Findings) != 1 {
			t.Errorf("row: got %+v", row)
		}
	}
	seen := map[string]bool{}
	for _, e := range f.events {
		line := fmt.Sprint(e.Job, " line ", e.Origin)
		if e.Origin > 0 && seen[line] {
			t.Errorf("%s is told twice", line)
		}
		seen[line] = true
	}
}

var errFull = errors.New("no space left on device")

// A client that cannot keep what the hosts say leaves the jobs alone, for one that can.
func TestClientFull(t *testing.T) {
	f := newFixture(t, 4, map[string]map[string]any{"a": {"slots": int64(2)}})
	f.full = true
	if got, err := f.run(t.Context()); !errors.Is(err, errFull) {
		t.Fatalf("got %+v, %v, want the disk's error", got, err)
	}
	var err error
	if f.plan, err = dispatch.Load(f.dir); err != nil || f.plan.Done || len(f.plan.Active()) != 2 {
		t.Errorf("plan: got %+v, %v, want two jobs that go on", f.plan, err)
	}
	f.full = false
	if got, err := f.run(t.Context()); err != nil || got.Passed != 4 || len(f.plan.Jobs) != 2 {
		t.Errorf("then: got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	f.check(4)
}

// A scripted provider does first what its functions say, where it has them; they may end the call with an error.
type scripted struct {
	remote.Provider
	submit, wait, list func(ctx context.Context) error
	release            func() error
	submitted          func()
	inside             atomic.Int32 // Waits that have not returned
}

func (s *scripted) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (h remote.Handle,
	err error) {
	if s.submit != nil {
		if err := s.submit(ctx); err != nil {
			return h, err
		}
	}
	if h, err = s.Provider.Submit(ctx, job, progress); s.submitted != nil {
		s.submitted()
	}
	return h, err
}

func (s *scripted) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	s.inside.Add(1)
	defer s.inside.Add(-1)
	if s.wait != nil {
		if err := s.wait(ctx); err != nil {
			return remote.Exit{}, err
		}
	}
	return s.Provider.Wait(ctx, h, from, w)
}

func (s *scripted) Release(ctx context.Context, h remote.Handle) error {
	if s.release != nil {
		if err := s.release(); err != nil {
			return err
		}
	}
	return s.Provider.Release(ctx, h)
}

func (s *scripted) List(ctx context.Context) ([]remote.Handle, error) {
	all, err := s.Provider.List(ctx)
	if s.list != nil {
		err = errors.Join(err, s.list(ctx))
	}
	return all, err
}

// work is the work folder of a table's host.
func (f *fixture) work(name string) string {
	hosts, err := f.providers[name].Check(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return hosts[0].Detail
}

func (f *fixture) scripted(name string) *scripted {
	s := &scripted{Provider: f.providers[name]}
	f.providers[name] = s
	return s
}

// submitted adds a job to the plan that another process has submitted to its place.
func (f *fixture) submitted(place dispatch.Place, script string, workloads ...string) {
	f.t.Helper()
	f.script = script
	files, args, err := f.files(f.t.Context(), workloads)
	if err != nil {
		f.t.Fatal(err)
	}
	j := &dispatch.Job{ID: fmt.Sprintf("fisub-%s-%d", f.plan.Run.ID, len(f.plan.Jobs)+1), Place: place,
		Workloads: workloads}
	h, err := f.providers[place.Table].Submit(f.t.Context(), &remote.Job{ID: j.ID, Files: files, Args: args,
		Limit: time.Minute, Place: place.Place}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	j.Handle = &h
	f.plan.Jobs = append(f.plan.Jobs, j)
}

// A client whose credentials do not let it follow a job leaves it running, for one whose do.
func TestFollowDenied(t *testing.T) {
	f := newFixture(t, 4, map[string]map[string]any{"a": {}, "b": {}})
	f.step = "0.2"
	s := f.scripted("a")
	s.wait = func(context.Context) error {
		return fmt.Errorf("asking: %w", &remote.Denied{Code: "credentials", Provider: "a", Text: "they have expired",
			Hint: "renew them"})
	}
	var denied *remote.Denied
	if got, err := f.run(t.Context()); !errors.As(err, &denied) || denied.Hint != "renew them" {
		t.Fatalf("got %+v, %v, want what the host says", got, err)
	}
	for _, e := range f.events {
		if line, err := event.Marshal(e); err != nil || bytes.Contains(line, []byte(denied.Text)) {
			t.Errorf("said before the end, which says it: %s, %v", line, err)
		}
	}
	var err error
	if f.plan, err = dispatch.Load(f.dir); err != nil || f.plan.Done || len(f.plan.Active()) != 1 ||
		f.plan.Active()[0].Place.Table != "a" {
		t.Fatalf("plan: got %+v, %v, want one job that goes on", f.plan, err)
	}
	s.wait = nil
	if got, err := f.run(t.Context()); err != nil || got.Passed != 4 || len(f.plan.Jobs) != 2 {
		t.Errorf("then: got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	f.check(4)
}

// A client that is ended while it still submits does not say that it has detached: its user may want the jobs to stop.
func TestDetachInterrupted(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}, "b": {}})
	f.detach, f.script = true, "sleep 300"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	accepted := make(chan struct{})
	f.scripted("a").submitted = func() { close(accepted) }
	f.scripted("b").submit = func(ctx context.Context) error {
		<-accepted
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	if _, err := f.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	d := &dispatch.Dispatcher{Plan: f.plan, Folder: f.dir, Providers: f.providers, Events: event.NewStream()}
	if err := d.Cancel(t.Context()); err != nil || len(f.plan.Active()) != 0 {
		t.Errorf("Cancel: %v, %d jobs left", err, len(f.plan.Active()))
	}
}

// A Run that ends with an error has nobody left who follows a job.
func TestFollowersEnd(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}, "b": {}})
	f.full = true
	f.submitted(f.plan.Places[0], "sleep 300", "w00")
	f.script = program
	a := f.scripted("a")
	defer a.Release(context.Background(), *f.plan.Jobs[0].Handle)
	a.wait = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	if _, err := f.run(t.Context()); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
	if n := a.inside.Load(); n != 0 {
		t.Errorf("%d jobs are still followed", n)
	}
	_ = f.providers["b"].Release(t.Context(), *f.plan.Jobs[1].Handle)
}

// unreachable is what a Wait gives whose host was out of reach for too long.
func unreachable(place string) error {
	return fmt.Errorf("asking: %w", &remote.Denied{Code: "unreachable", Provider: place, Text: "Network is unreachable",
		Hint: "is it up?"})
}

// A host that is out of reach is waited for while there is no other place, and what its job has finished is taken then.
func TestAwayAlone(t *testing.T) {
	f := newFixture(t, 3, map[string]map[string]any{"a": {}})
	s := f.scripted("a")
	n := 0
	s.wait = func(context.Context) error {
		if n++; n < 3 {
			return unreachable("a")
		}
		return nil
	}
	if got, err := f.run(t.Context()); err != nil || got.Passed != 3 || len(f.plan.Jobs) != 1 {
		t.Errorf("got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	if r := f.check(3); len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Text, "Network is unreachable") {
		t.Errorf("warnings: got %+v", r.Warnings)
	}
}

// A host that stays out of reach until its job must be over leaves a run that can be taken up again.
func TestAwayForGood(t *testing.T) {
	f := newFixture(t, 3, map[string]map[string]any{"a": {}})
	f.plan.Limit = 2 * time.Second
	s := f.scripted("a")
	s.wait = func(context.Context) error { return unreachable("a") }
	if got, err := f.run(t.Context()); remote.CodeOf(err) != "unreachable" {
		t.Errorf("got %+v, %v, want what the host says", got, err)
	}
	var err error
	if f.plan, err = dispatch.Load(f.dir); err != nil || f.plan.Done || len(f.plan.Active()) != 1 {
		t.Fatalf("plan: got %+v, %v, want one job that may go on", f.plan, err)
	}
	s.wait = nil
	if got, err := f.run(t.Context()); err != nil || got.Passed != 3 || len(f.plan.Jobs) != 1 {
		t.Errorf("then: got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	f.check(3)
}

// The workloads of a host that is out of reach go to a place that is free. The run is over when all have a verdict; the
// job that may still run stays in the plan, and whoever takes the run up again ends it.
func TestAwayElsewhere(t *testing.T) {
	f := newFixture(t, 4, map[string]map[string]any{"a": {}, "b": {}})
	s := f.scripted("a")
	s.wait = func(context.Context) error { return unreachable("a") }
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 4 || len(f.plan.Jobs) != 3 {
		t.Fatalf("got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	if f.plan, err = dispatch.Load(f.dir); err != nil || f.plan.Done || len(f.plan.Active()) != 1 {
		t.Fatalf("plan: got %+v, %v, want one job that may go on", f.plan, err)
	}
	s.wait = nil
	if got, err := f.run(t.Context()); err != nil || got.Passed != 4 || len(f.plan.Jobs) != 3 {
		t.Errorf("then: got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	f.check(4)
}

// A job that comes back after its workloads were given to another place ends when the other one has done them.
func TestAwayAndBack(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}, "b": {}})
	f.submitted(f.plan.Places[0], "sleep 300", "w00", "w01")
	f.script = program
	s := f.scripted("a")
	n := 0
	s.wait = func(context.Context) error {
		if n++; n == 1 {
			return unreachable("a")
		}
		return nil
	}
	if got, err := f.run(t.Context()); err != nil || got.Passed != 2 || len(f.plan.Jobs) != 2 {
		t.Errorf("got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	// Whether the job was reached again before the other one was done is not known.
	if len(f.plan.Active()) == 1 {
		if _, err := f.run(t.Context()); err != nil {
			t.Error(err)
		}
	}
	f.check(2)
}

// A host that does not let its job be released keeps a job that may still run.
func TestHeld(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}})
	s := f.scripted("a")
	s.release = func() error { return unreachable("a") }
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 2 || f.plan.Done || len(f.plan.Active()) != 1 || f.plan.Jobs[0].Exit == nil {
		t.Fatalf("got %+v, %v, plan %+v, want one job that is held", got, err, f.plan)
	}
	s.release = nil
	if got, err := f.run(t.Context()); err != nil || got.Passed != 2 {
		t.Errorf("then: got %+v, %v", got, err)
	}
	f.check(2)
}

// A connection that is lost just when a job has ended is no reason to leave the job on its host.
func TestReleaseCut(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}})
	n := 0
	f.scripted("a").release = func() error {
		if n++; n < 3 {
			return unreachable("a")
		}
		return nil
	}
	if got, err := f.run(t.Context()); err != nil || got.Passed != 2 || !f.plan.Done {
		t.Errorf("got %+v, %v, done %v", got, err, f.plan.Done)
	}
	if r := f.check(2); len(r.Warnings) > 0 {
		t.Errorf("warnings: got %+v", r.Warnings)
	}
}

// A workload that a host cannot judge goes to another host, and not to another place of the same one.
func TestFailedElsewhere(t *testing.T) {
	const fails = `
cat run.json
for u in "$@"; do
  echo '{"type":"started","workload":"'$u'","started":{"index":1,"total":1}}'
  if [ $u = w00 ] || [ $u = w01 ]; then
    echo '{"type":"failed","workload":"'$u'","message":{"text":"no space left on device"}}'
  else
    cat "$u.json"
  fi
done
exit 2`
	f := newFixture(t, 4, map[string]map[string]any{"a": {"gpus": []any{int64(0), int64(1)}}, "b": {}})
	f.script = "case $PWD in " + f.work("b") + "*) ;; *)" + fails + ";; esac\n" + program
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 4 || got.Missing != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	r := f.check(4)
	for _, row := range r.Rows {
		if row.UUID <= "w01" && row.Place != "b: localhost" {
			t.Errorf("row: got %+v", row)
		}
	}
	for _, j := range f.plan.Jobs[3:] {
		if j.Place.Table != "b" {
			t.Errorf("workloads %v were sent to %s", j.Workloads, j.Place)
		}
	}

	// Where no other host can, what the host says stays, also for a client that takes the run up again.
	f = newFixture(t, 4, map[string]map[string]any{"a": {"gpus": []any{int64(0), int64(1)}}})
	f.script = fails
	for range 2 {
		got, err := f.run(t.Context())
		if err != nil || got.Passed != 2 || got.Missing != 2 || len(f.plan.Jobs) != 2 {
			t.Errorf("alone: got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
		}
	}
	r, err = runs.Read(f.dir)
	if err != nil || len(r.Rows) != 4 || r.Rows[0].Failed == nil && r.Rows[1].Failed == nil {
		t.Errorf("alone: got %+v, %v", r, err)
	}
}

func TestLimit(t *testing.T) {
	f := newFixture(t, 3, map[string]map[string]any{"a": {}, "b": {}})
	f.plan.Limit = 1500 * time.Millisecond
	f.step = "1"
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 2 || got.Missing != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	r := f.check(2)
	if len(f.plan.Jobs) != 2 || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Text, "over the time limit") {
		t.Errorf("got %d jobs, warnings %+v", len(f.plan.Jobs), r.Warnings)
	}
}

// The only job ends at its limit before its host has said a word: that, not that nothing ran, is the error.
func TestLimitBeforeAWord(t *testing.T) {
	f := newFixture(t, 3, map[string]map[string]any{"a": {}})
	f.script, f.plan.Limit = `sleep 60`, 300*time.Millisecond
	got, err := f.run(t.Context())
	var ended *dispatch.Ended
	if !errors.As(err, &ended) || ended.Exit.End != remote.Limited || ended.Exit.Hint == "" || got.Missing != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestProgramFails(t *testing.T) {
	f := newFixture(t, 3, map[string]map[string]any{"a": {}})
	f.script = `echo "fisub: no disk" >&2; echo "hint: buy one" >&2; exit 1`
	_, err := f.run(t.Context())
	var ended *dispatch.Ended
	if !errors.As(err, &ended) || ended.Exit.Code != 1 || ended.Exit.Text != "no disk" || ended.Exit.Hint != "buy one" {
		t.Errorf("got %v", err)
	}
}

func TestGarbageFromHost(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}})
	trace := `{"definition":"d","workload":{"axes":{"b":1},"inputs":{},"uuid":"other"},"solution":"s","evaluation":null}`
	f.script = `
printf 'not json\n{"type":"evaluated"}\n\000\001\n{"type":"evaluated","workload":"w00","evaluated":{"status":"PASSED","trace":` + trace + `}}\n'
printf '{"type":"run","run":{},"done":{}}\n{"type":"started","workload":"stranger","started":{}}\n{"type":"new-in-2030"}\n'
head -c 20000000 /dev/zero | tr '\000' x; echo
echo '{"type":"job","place":"elsewhere","job_state":{"phase":"x"}}'` + program
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	r := f.check(2)
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Text, "6 lines of its stream are no events") {
		t.Errorf("warnings: got %+v", r.Warnings)
	}
}

// What a job may say is bounded by what its workloads may take.
func TestUsualFlood(t *testing.T) {
	f := newFixture(t, 1, map[string]map[string]any{"a": {}})
	f.script = "(" + program + "\n)\nhead -c 30000000 /dev/zero | tr '\\0' x; echo"
	got, err := f.run(t.Context())
	if exit := f.plan.Jobs[0].Exit; err != nil || got.Passed != 1 || exit == nil || exit.End != remote.Lost ||
		!strings.Contains(exit.Text, fmt.Sprintf("more than %d bytes, which no job for 1 workload takes", 24<<20)) {
		t.Errorf("got %+v, %v, %+v", got, err, exit)
	}
}

// A host that does not stop talking does not fill the disk, and what it had finished counts.
func TestFloodFromHost(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}})
	f.most = 200_000
	f.script = "(" + program +
		"\n)\nwhile echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; do :; done"
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 2 {
		t.Errorf("got %+v, %v, want what it had finished", got, err)
	}
	if exit := f.plan.Jobs[0].Exit; exit == nil || exit.End != remote.Lost ||
		!strings.Contains(exit.Text, "said more than 200000 bytes") {
		t.Errorf("got %+v, want that it said too much", exit)
	}
	if st, err := os.Stat(filepath.Join(f.dir, "remote", f.plan.Jobs[0].ID+".jsonl")); err != nil || st.Size() > f.most {
		t.Errorf("got %v, %v, want at most %d bytes", st, err, f.most)
	}
	f.check(2)
}

// The client was killed while a job was being submitted: whether the host has it is not known.
func TestHalfSubmitted(t *testing.T) {
	for _, accepted := range []bool{true, false} {
		f := newFixture(t, 2, map[string]map[string]any{"a": {}})
		place := f.plan.Places[0]
		j := &dispatch.Job{ID: "fisub-" + f.plan.Run.ID + "-1", Place: place, Workloads: []string{"w00", "w01"}}
		f.plan.Jobs = append(f.plan.Jobs, j)
		if accepted {
			job := remotetest.Script(t, "sleep 300", nil)
			job.ID, job.Place = j.ID, place.Place
			if _, err := f.providers["a"].Submit(t.Context(), job, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := f.run(t.Context()); err != nil || got.Passed != 2 {
			t.Errorf("accepted %v: got %+v, %v", accepted, got, err)
		}
		f.check(2)
	}
}

// A job that is found is dealt with, also where other hosts of its table cannot be asked.
func TestHalfSubmittedOtherHostDown(t *testing.T) {
	for _, how := range []string{"run", "cancel", "release"} {
		f := newFixture(t, 2, map[string]map[string]any{"a": {}})
		f.submitted(f.plan.Places[0], "sleep 300", "w00", "w01")
		f.plan.Jobs[0].Handle = nil
		f.script = program
		s := f.scripted("a")
		s.list = func(context.Context) error { return errors.New("h2 is down") }
		d := &dispatch.Dispatcher{Plan: f.plan, Folder: f.dir, Providers: f.providers, Events: event.NewStream()}
		switch how {
		case "run":
			if got, err := f.run(t.Context()); err != nil || got.Passed != 2 {
				t.Errorf("got %+v, %v", got, err)
			}
		case "cancel":
			if err := d.Cancel(t.Context()); err != nil {
				t.Errorf("Cancel: %v", err)
			}
		case "release": // of a run that another process has, and does not end
			if err := dispatch.Release(t.Context(), f.plan, f.providers); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
		if left, err := s.Provider.List(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("%s: left %v, %v", how, left, err)
			for _, h := range left {
				_ = s.Release(t.Context(), h)
			}
		}
	}
}

// Whether a host that is out of reach has taken a job is not known: its share goes to another place, and the job stays one
// that may run.
func TestHalfSubmittedAway(t *testing.T) {
	f := newFixture(t, 4, map[string]map[string]any{"a": {}, "b": {}})
	f.submitted(f.plan.Places[0], program, "w00", "w01")
	f.plan.Jobs = append(f.plan.Jobs, &dispatch.Job{ID: "fisub-" + f.plan.Run.ID + "-2", Place: f.plan.Places[1],
		Workloads: []string{"w02", "w03"}})
	b := f.scripted("b")
	b.list = func(context.Context) error { return unreachable("b") }
	if got, err := f.run(t.Context()); err != nil || got.Passed != 4 || f.plan.Done || len(f.plan.Active()) != 1 {
		t.Errorf("got %+v, %v, %d jobs that may run", got, err, len(f.plan.Active()))
	}
	b.list = nil
	if got, err := f.run(t.Context()); err != nil || got.Passed != 4 {
		t.Errorf("then: got %+v, %v", got, err)
	}
	f.check(4)
	// Without another place the error is the host's, and the run can be taken up again.
	f = newFixture(t, 2, map[string]map[string]any{"b": {}})
	f.plan.Jobs = append(f.plan.Jobs, &dispatch.Job{ID: "fisub-" + f.plan.Run.ID + "-1", Place: f.plan.Places[0],
		Workloads: []string{"w00", "w01"}})
	b = f.scripted("b")
	b.list = func(context.Context) error { return unreachable("b") }
	if got, err := f.run(t.Context()); remote.CodeOf(err) != "unreachable" || f.plan.Done {
		t.Errorf("alone: got %+v, %v", got, err)
	}
	b.list = nil
	if got, err := f.run(t.Context()); err != nil || got.Passed != 2 {
		t.Errorf("alone, then: got %+v, %v", got, err)
	}
	f.check(2)
}

// A job that was given up, as by an older fisub, and whose host still has it, is asked for what it has finished.
func TestReopen(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}})
	f.submitted(f.plan.Places[0], program, "w00", "w01")
	now := time.Now()
	f.plan.Jobs[0].Ended, f.plan.Jobs[0].Exit, f.plan.Done = &now, &remote.Exit{End: remote.Lost}, true
	reopen := func() (int, error) {
		d := &dispatch.Dispatcher{Plan: f.plan, Folder: f.dir, Providers: f.providers, Events: event.NewStream()}
		return d.Reopen(t.Context())
	}
	s := f.scripted("a")
	s.list = func(context.Context) error { return errors.New("h2 is down") }
	if n, err := reopen(); n != 1 || err == nil || f.plan.Done {
		t.Fatalf("got %d, %v", n, err)
	}
	if got, err := f.run(t.Context()); err != nil || got.Passed != 2 || len(f.plan.Jobs) != 1 {
		t.Errorf("got %+v, %v, %d jobs", got, err, len(f.plan.Jobs))
	}
	s.list = nil
	f.check(2)
	if n, err := reopen(); n != 0 || err != nil {
		t.Errorf("a job that is released: got %d, %v", n, err)
	}
}

// A host whose clock is wrong does no harm: the times are those of this machine.
func TestClockSkew(t *testing.T) {
	f := newFixture(t, 2, map[string]map[string]any{"a": {}})
	f.extra["run.json"] = `{"seq":77,"time":"2099-01-01T00:00:00Z","type":"run","run":{"schema":"fisub.event/1","started":"1970-01-01T00:00:00Z","content_hash":"abc","device":{"kind":"emu","emulated":true}}}` + "\n"
	begun := time.Now()
	f.plan.Run.Started = begun
	if got, err := f.run(t.Context()); err != nil || got.Passed != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, e := range f.events {
		if e.Time.Before(begun) || e.Time.After(time.Now()) || e.Run != nil && !e.Run.Started.Equal(begun) {
			t.Errorf("event %d: got time %v", e.Seq, e.Time)
		}
	}
	f.check(2)
}

func TestDeal(t *testing.T) {
	all := func(string, int) bool { return true }
	for _, tc := range []struct {
		workloads string
		n         int
		fits      func(w string, hand int) bool
		want      string
	}{
		{"a b c d e", 2, all, "[[a c e] [b d]]"},
		{"a", 3, all, "[[a] [] []]"},
		{"a", 0, all, "[]"},
		{"", 2, all, "[[] []]"},
		{"a b c d", 2, func(w string, hand int) bool { return w != "a" || hand == 1 }, "[[c] [a b d]]"},
		{"a b", 2, func(w string, _ int) bool { return w == "b" }, "[[] [b]]"},
	} {
		if got := dispatch.Deal(strings.Fields(tc.workloads), tc.n, tc.fits); fmt.Sprint(got) != tc.want {
			t.Errorf("%q over %d: got %v, want %s", tc.workloads, tc.n, got, tc.want)
		}
	}
}

// 54 workloads of a fixed time on 4 places, beside one; the metric is the ratio, whose aim is below 0.35.
func BenchmarkFourPlaces(b *testing.B) {
	var took [2]time.Duration
	for b.Loop() {
		for i, slots := range []int64{1, 4} {
			f := newFixture(b, 54, map[string]map[string]any{"a": {"slots": slots}})
			f.step = "0.1"
			begun := time.Now()
			if got, err := f.run(b.Context()); err != nil || got.Passed != 54 {
				b.Fatalf("got %+v, %v: %+v", got, err, f.warnings())
			}
			took[i] += time.Since(begun)
		}
	}
	b.ReportMetric(took[0].Seconds()/float64(b.N), "s-on-1")
	b.ReportMetric(took[1].Seconds()/float64(b.N), "s-on-4")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "x-of-1")
}

// A stream that cannot be what one run has told gives no verdict, whatever it says; figures that nothing can measure are
// no verdict either.
func TestContradictions(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		passed       int
		want         string // of the finding; "" for none
	}{
		{"sound", `verdict 2; end 3 1 0; exit 0`, 1, ""},
		{"verdict twice", `verdict 2; verdict 3; end 4 1 0; exit 0`, 0, "two verdicts for workload w00"},
		{"number twice", `verdict 2; started 2; end 3 1 0; exit 0`, 0, "event 2 follows event 2"},
		{"number left out", `verdict 3; end 4 1 0; exit 0`, 0, "event 3 follows event 1"},
		{"no number", `verdict 0; end 2 1 0; exit 0`, 0, "event 0 follows event 1"},
		{"totals", `verdict 2; end 3 0 1; exit 3`, 0, "1 passed and 0 failed, and at its end it says 0 and 1"},
		{"exit status", `verdict 2; end 3 1 0; exit 3`, 0, "0 of 1 workloads failed, and its exit status is 3"},
		{"killed", `verdict 2; kill -9 $$`, 1, ""},
		{"latency below zero", `verdict 2 '"latency_ms":-5,'; end 3 1 0; exit 0`, 0, ""},
		{"latency without end", `verdict 2 '"latency_ms":1e308,'; end 3 1 0; exit 0`, 0, ""},
		{"latency that the trace does not have", `verdict 2 '"latency_ms":0.5,'; end 3 1 0; exit 0`, 0, ""},
		{"seconds", `verdict 2 '"seconds":-1,'; end 3 1 0; exit 0`, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 1, map[string]map[string]any{"a": {}})
			f.extra["run.json"] = `{"seq":1,"type":"run","run":{"schema":"fisub.event/1","content_hash":"abc",` +
				`"device":{"kind":"cuda","name":"gpu"},"host":{"name":"h"}}}` + "\n"
			f.script = `
verdict() { sed 's/^{/{"seq":'$1',/; s/"index":7,/"index":7,'$2'/' w00.json; }
started() { echo '{"seq":'$1',"type":"started","workload":"w00","started":{"index":1,"total":1}}'; }
end() { echo '{"seq":'$1',"type":"done","done":{"passed":'$2',"failed":'$3'}}'; }
cat run.json
` + tc.script
			got, err := f.run(t.Context())
			if err != nil || got.Passed != tc.passed || got.Missing != 1-tc.passed {
				t.Errorf("got %+v, %v, want %d passed", got, err, tc.passed)
			}
			r, err := runs.Read(f.dir)
			if err != nil {
				t.Fatal(err)
			}
			if passed, _ := r.Passed(); passed != tc.passed {
				t.Errorf("read again: got %d passed, want %d", passed, tc.passed)
			}
			found := ""
			for _, row := range r.Rows {
				for _, finding := range row.Findings {
					found += finding.Text
				}
			}
			if found != tc.want || got.Findings != len(strings.Fields(tc.want))/max(len(strings.Fields(tc.want)), 1) {
				t.Errorf("got %d findings, %q, want %q", got.Findings, found, tc.want)
			}
		})
	}
}

// What is written to a job's stream by others than its agent gives no verdict and takes the job's back; an exit.json
// of theirs ends nothing.
func TestForgedStream(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		passed       int
		want         string // of the finding; "" for none
		warn         string // of a warning; "" for none
	}{ // late: nobody follows the job before it has ended
		{"sound", `verdict 2; end 3; exit 0`, 1, "", ""},
		{"sound, late", `verdict 2; end 3; exit 0`, 1, "", ""},
		{"a verdict", `verdict 2; there w00; verdict 2 >>../events.jsonl; end 3; exit 0`, 0,
			"line 3 of its stream is not signed by its agent", "its verdicts are not to be believed: line 3 of its stream"},
		{"half a line", `there schema; printf x >>../events.jsonl; verdict 2; end 3; exit 0`, 0, "",
			"line 2 of its stream is not signed by its agent"},
		{"the stream anew, late", `verdict 2; there w00; head -n 2 ../events.jsonl >cut; rm ../events.jsonl
{ cat cut; verdict 3; } >../events.jsonl; end 3; exit 0`, 0, "line 3 of its stream is not signed by its agent",
			"not to be believed"},
		{"its end cut off, late", `verdict 2; there w00; head -n 2 ../events.jsonl >cut; started 3; there started
cat cut >../events.jsonl; exit 1`, 0, "its agent has written 3 lines, and 2 have come", "not to be believed"},
		{"exit.json", `echo '{"end":"exited","code":0}' >../exit.json; verdict 2; sleep 0.3; end 3; exit 0`, 1, "", ""},
		{"exit.json, and no agent", `verdict 2; there w00; echo '{"end":"exited","code":0}' >../exit.json; kill -9 $PPID`, 1,
			"", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 1, map[string]map[string]any{"a": {}})
			f.extra["run.json"] = `{"seq":1,"type":"run","run":{"schema":"fisub.event/1","content_hash":"abc",` +
				`"device":{"kind":"cuda","name":"gpu"},"host":{"name":"h"}}}` + "\n"
			f.script = `
verdict() { sed 's/^{/{"seq":'$1',/' w00.json; }
started() { echo '{"seq":'$1',"type":"started","workload":"w00","started":{"index":1,"total":1}}'; }
end() { echo '{"seq":'$1',"type":"done","done":{"passed":1,"failed":0}}'; }
there() { until grep -q $1 ../events.jsonl; do sleep 0.01; done; }
cat run.json
` + tc.script
			if strings.HasSuffix(tc.name, "late") {
				f.detach = true
				if _, err := f.run(t.Context()); !errors.Is(err, dispatch.ErrDetached) {
					t.Fatal(err)
				}
				f.detach = false
				dir := agent.JobDir(f.providers["a"].(*loopback.Provider).Workdir, f.plan.Jobs[0].ID)
				for exit := (remote.Exit{}); exit.MAC == ""; time.Sleep(10 * time.Millisecond) {
					exit, _ = agent.ReadExit(dir)
				}
			}
			got, err := f.run(t.Context())
			if err != nil || got.Passed != tc.passed || got.Missing != 1-tc.passed {
				t.Errorf("got %+v, %v, want %d passed; warnings %q", got, err, tc.passed, f.warnings())
			}
			r, err := runs.Read(f.dir)
			if err != nil {
				t.Fatal(err)
			}
			if passed, _ := r.Passed(); passed != tc.passed {
				t.Errorf("read again: got %d passed, want %d", passed, tc.passed)
			}
			found := ""
			for _, row := range r.Rows {
				for _, finding := range row.Findings {
					found += finding.Text
				}
			}
			if found != tc.want {
				t.Errorf("got finding %q, want %q", found, tc.want)
			}
			if !strings.Contains(fmt.Sprint(f.warnings()), tc.warn) {
				t.Errorf("got warnings %q, want %q", f.warnings(), tc.warn)
			}
		})
	}
}

// A job that an older fisub has begun has no key, and is taken as it is.
func TestNoKey(t *testing.T) {
	f := newFixture(t, 1, map[string]map[string]any{"a": {}})
	f.plan.Jobs = []*dispatch.Job{{ID: "fisub-old-1", Place: f.plan.Places[0], Workloads: []string{"w00"}}}
	if got, err := f.run(t.Context()); err != nil || got.Passed != 1 || f.plan.Jobs[0].Key != "" {
		t.Errorf("got %+v, %v, %q", got, err, f.warnings())
	}
	f.check(1)
}

// What a host says is one line of a bounded length, in letters that stay where they are.
func TestMessages(t *testing.T) {
	f := newFixture(t, 1, map[string]map[string]any{"a": {}})
	f.script = `printf '{"type":"warning","message":{"text":"one\\nerror: two\\u202e\\u001b[2J","hint":"'
head -c 3000000 /dev/zero | tr '\0' x
printf '"}}\n{"type":"warning","workload":"w00","finding":{"check":"too\\nfast","text":"a\\rb"}}\n'` + program
	if got, err := f.run(t.Context()); err != nil || got.Passed != 1 {
		t.Errorf("got %+v, %v; warnings %.2000q", got, err, f.warnings())
	}
	found := false
	for _, e := range f.events {
		if e.Message != nil && strings.HasPrefix(e.Message.Text, "one") {
			found = true
			if e.Message.Text != "one error: two [2J" || len(e.Message.Hint) != 2000 {
				t.Errorf("got %q, a hint of %d bytes", e.Message.Text, len(e.Message.Hint))
			}
		}
	}
	if !found {
		t.Errorf("no message in %q", f.warnings())
	}
}
