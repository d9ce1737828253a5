package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/dispatch"
	"fisub/remote/loopback"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
	"fisub/runs"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

// program replaces `fisub local --json`; its arguments are workloads.
const program = `
cat run.json
for u in "$@"; do
  echo '{"type":"started","workload":"'$u'","started":{"index":1,"total":1,"axes":{"b":1}}}'
  # a test may wait here
  cat "$u.json"
  echo '{"type":"warning","workload":"'$u'","finding":{"check":"late-write","text":"it does"}}'
done
echo '{"type":"done","done":{"passed":1}}'
exit 3`

type fixture struct {
	t         testing.TB
	dir       string // the run folder
	script    string
	plan      *dispatch.Plan
	providers map[string]remote.Provider
	extra     map[string]string
	events    []event.Event
	on        func(event.Event)
	full      bool // simulates a full local disk after the first verdict
	follow    dispatch.Follow
	end       dispatch.End // of the last run
}

func newFixture(t testing.TB, workloads int, tables map[string]map[string]any) *fixture {
	f := &fixture{t: t, script: program, providers: map[string]remote.Provider{},
		extra: map[string]string{}}
	id := fmt.Sprintf("20260102-030405-%03dabc", time.Now().UnixMilli()%1000)
	f.dir = filepath.Join(t.TempDir(), runs.Dir, id)
	f.plan = &dispatch.Plan{Version: 1, Terms: dispatch.Terms{Limit: time.Minute}, Run: event.Run{Schema: event.Schema, ID: id,
		Definition: "d", Solution: "s", ContentHash: "abc", Set: "default"}}
	for i := range workloads {
		f.plan.Run.Workloads = append(f.plan.Run.Workloads, event.WorkloadRef{UUID: fmt.Sprintf("w%02d", i),
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
			f.plan.Places = append(f.plan.Places, dispatch.ProviderPlace{Table: name, Place: place})
		}
	}
	slices.SortFunc(f.plan.Places, func(a, b dispatch.ProviderPlace) int { return strings.Compare(a.String(), b.String()) })
	return f
}

// hostRun returns the run event of an honest host, with the event number seq unless that is "".
func hostRun(seq string, workloads []string) string {
	run := event.Run{Schema: event.Schema, Definition: "d", Solution: "s", ContentHash: "abc",
		Device: event.Device{Kind: "emu", Name: "cpu", Emulated: true}, Host: event.Host{Name: "h"}}
	for _, uuid := range workloads {
		run.Workloads = append(run.Workloads, event.WorkloadRef{UUID: uuid})
	}
	data, _ := json.Marshal(run)
	if seq != "" {
		seq = `"seq":` + seq + ","
	}
	return fmt.Sprintf(`{%s"type":"run","run":%s}`+"\n", seq, data)
}

func (f *fixture) files(_ context.Context, workloads []string) ([]remote.File, []string, error) {
	extra := map[string]string{"run.json": hostRun("", workloads)}
	for name, content := range f.extra {
		extra[name] = content
	}
	for _, u := range workloads {
		trace := fmt.Sprintf(
			`{"definition":"d","workload":{"axes":{"b":1},"inputs":{},"uuid":%q},"solution":"s","evaluation":{"status":"PASSED","environment":{"hardware":"emulator on cpu","libs":{}},"timestamp":"t","log":"","correctness":{"max_relative_error":0.0,"max_absolute_error":0.0,"extra":null},"performance":{"latency_ms":0.0,"reference_latency_ms":0.0,"speedup_factor":0.0}}}`, u)
		extra[u+".json"] = fmt.Sprintf(
			`{"type":"evaluated","workload":%q,"evaluated":{"index":7,"trace":%s}}`, u, trace) + "\n"
	}
	job := remotetest.Script(f.t, f.script, extra)
	return job.Files, append([]string{"run.sh"}, workloads...), nil
}

// dispatcher opens the run folder of the previous process.
func (f *fixture) dispatcher() (*dispatch.Dispatcher, *runs.Folder) {
	f.t.Helper()
	folder, old, err := runs.Attach(strings.TrimSuffix(f.dir, filepath.Join(runs.Dir, f.plan.Run.ID)), f.plan.Run.ID)
	if err != nil {
		f.t.Fatal(err)
	}
	return dispatch.New(f.plan, folder, old, f.providers, f.files), folder
}

// run dispatches in the run folder of the previous process.
func (f *fixture) run(ctx context.Context) (totals event.Done, err error) {
	f.t.Helper()
	d, folder := f.dispatcher()
	defer folder.Close()
	f.follow.Events = func(e event.Event) error {
		f.events = append(f.events, e)
		if f.on != nil {
			f.on(e)
		}
		if f.full && e.Evaluated != nil {
			return errFull
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	f.end, totals, err = d.Run(ctx, f.follow)
	return totals, err
}

func (f *fixture) warnings() (all []string) {
	for _, e := range f.events {
		if e.Message != nil {
			all = append(all, e.Message.Text)
		}
	}
	return all
}

// check checks that each workload has one complete verdict and that no host has a job left.
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
	t.Parallel()
	f := newFixture(t, 9, map[string]map[string]any{"a": {"slots": int64(2)}, "b": {"slots": int64(1)}})
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 9 || got.Findings != 9 || got.Failed+got.Missing != 0 {
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

func TestDetachAndAttach(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 8, map[string]map[string]any{"a": {"slots": int64(2)}})
	// The third workload of a job waits for the second round, the fourth (last) for the third.
	gate := t.TempDir()
	f.script = strings.Replace(program, "# a test may wait here", "n=$((n + 1)); until [ -e '"+gate+"'/$n ]; do sleep 0.02; done", 1)
	for n := 1; ; n++ {
		for k := range n + 1 {
			servertest.Write(t, filepath.Join(gate, fmt.Sprint(k+1)), "")
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
		if f.end != dispatch.Left {
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

// A client that cannot save the stream leaves the jobs to another client.
func TestClientFull(t *testing.T) {
	t.Parallel()
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

// A scripted provider first calls its functions, if set; their errors are returned.
type scripted struct {
	remote.Provider
	submit, list func(ctx context.Context) error
	submitted    func()
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

func (s *scripted) List(ctx context.Context) ([]remote.Handle, error) {
	all, err := s.Provider.List(ctx)
	if s.list != nil {
		err = errors.Join(err, s.list(ctx))
	}
	return all, err
}

func (f *fixture) scripted(name string) *scripted {
	s := &scripted{Provider: f.providers[name]}
	f.providers[name] = s
	return s
}

// submitted adds a job to the plan as if another process had submitted it.
func (f *fixture) submitted(place dispatch.ProviderPlace, script string, workloads ...string) {
	f.t.Helper()
	f.script = script
	files, args, err := f.files(f.t.Context(), workloads)
	if err != nil {
		f.t.Fatal(err)
	}
	j := &dispatch.JobRecord{ID: fmt.Sprintf("fisub-%s-%d", f.plan.Run.ID, len(f.plan.Jobs)+1), Place: place,
		Workloads: workloads}
	h, err := f.providers[place.Table].Submit(f.t.Context(), &remote.Job{ID: j.ID, Files: files, Args: args,
		Limit: time.Minute, Place: place.Place}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	j.Handle = &h
	f.plan.Jobs = append(f.plan.Jobs, j)
}

// A client interrupted during Submit does not end as Detached: the user may want the jobs to stop.
func TestDetachInterrupted(t *testing.T) {
	t.Parallel()
	for stop, want := range map[bool]dispatch.End{false: dispatch.Left, true: dispatch.Stopped} {
		f := newFixture(t, 2, map[string]map[string]any{"a": {}, "b": {}})
		f.script = "sleep 300"
		accepted, submitting := make(chan struct{}), make(chan struct{})
		f.follow = dispatch.Follow{Detach: true, Decide: func(<-chan struct{}) bool { <-submitting; return stop }}
		f.scripted("a").submitted = func() { close(accepted) }
		f.scripted("b").submit = func(ctx context.Context) error {
			<-accepted
			close(submitting)
			<-ctx.Done()
			return ctx.Err()
		}
		if _, err := f.run(t.Context()); f.end != want {
			t.Errorf("got %v, %v, want %v", f.end, err, want)
		}
		d, folder := f.dispatcher()
		if err := errors.Join(d.Cancel(t.Context()), folder.Close()); err != nil || len(f.plan.Active()) != 0 {
			t.Errorf("Cancel: %v, %d jobs left", err, len(f.plan.Active()))
		}
	}
}

// A job whose handle cannot be saved is released, since nobody could find it again.
func TestHandleNotWritten(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1, map[string]map[string]any{"a": {}})
	f.script = "sleep 300"
	plan := filepath.Join(f.dir, dispatch.PlanName)
	f.scripted("a").submitted = func() {
		if err := errors.Join(os.Remove(plan), os.MkdirAll(filepath.Join(plan, "taken"), 0o755)); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.run(t.Context()); err == nil || !strings.Contains(err.Error(), dispatch.PlanName) {
		t.Errorf("got %v, want that the plan cannot be written", err)
	}
	if left, err := f.providers["a"].List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestProgramFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 3, map[string]map[string]any{"a": {}})
	f.script = `echo "fisub: no disk" >&2; echo "hint: buy one" >&2; exit 1`
	_, err := f.run(t.Context())
	var ended *dispatch.Ended
	if !errors.As(err, &ended) || ended.Exit.Code != 1 || ended.Exit.Text != "no disk" || ended.Exit.Hint != "buy one" {
		t.Errorf("got %v", err)
	}
}

// An endless stream from a host does not fill the disk, and finished workloads count.
func TestFloodFromHost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2, map[string]map[string]any{"a": {}})
	f.follow.MaxStream = 200_000
	f.script = "(" + program +
		"\n)\nwhile echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; do :; done"
	got, err := f.run(t.Context())
	if err != nil || got.Passed != 2 {
		t.Errorf("got %+v, %v, want what it had finished", got, err)
	}
	if exit := f.plan.Jobs[0].Exit; exit == nil || exit.End != remote.Lost ||
		!strings.Contains(exit.Text, "larger than 200000 bytes") {
		t.Errorf("got %+v, want that it said too much", exit)
	}
	if st, err := os.Stat(filepath.Join(f.dir, "remote", f.plan.Jobs[0].ID+".jsonl")); err != nil || st.Size() > f.follow.MaxStream {
		t.Errorf("got %v, %v, want at most %d bytes", st, err, f.follow.MaxStream)
	}
	f.check(2)
}

// The client was killed during Submit, so the host may have the job or not. The job is found and released even if other
// hosts of its table are unreachable.
func TestHalfSubmitted(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"run", "not accepted", "cancel", "release"} {
		f := newFixture(t, 2, map[string]map[string]any{"a": {}})
		s := f.scripted("a")
		f.submitted(f.plan.Places[0], "sleep 300", "w00", "w01")
		if how == "not accepted" {
			if err := s.Release(t.Context(), *f.plan.Jobs[0].Handle); err != nil {
				t.Fatal(err)
			}
		} else {
			s.list = func(context.Context) error { return errors.New("h2 is down") }
		}
		f.plan.Jobs[0].Handle = nil
		f.script = program
		var err error
		switch how {
		case "cancel":
			d, folder := f.dispatcher()
			err = errors.Join(d.Cancel(t.Context()), folder.Close())
		case "release": // the run belongs to another process, and continues
			err = dispatch.Release(t.Context(), f.plan, f.providers)
		default:
			var got event.Done
			if got, err = f.run(t.Context()); got.Passed != 2 {
				t.Errorf("%s: got %+v", how, got)
			}
		}
		if left, lost := s.Provider.List(t.Context()); err != nil || lost != nil || len(left) != 0 {
			t.Errorf("%s: got %v, left %v, %v", how, err, left, lost)
			for _, h := range left {
				_ = s.Release(t.Context(), h)
			}
		}
	}
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

// Compares 54 workloads of fixed duration on 4 places and on 1. The metric is the ratio; the target is below 0.35.
func BenchmarkFourPlaces(b *testing.B) {
	var took [2]time.Duration
	for b.Loop() {
		for i, slots := range []int64{1, 4} {
			f := newFixture(b, 54, map[string]map[string]any{"a": {"slots": slots}})
			f.script = strings.Replace(program, "# a test may wait here", "sleep 0.1", 1)
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

// Lines that the agent did not write retract the job's verdicts, and a forged exit.json does not end the job.
func TestForgedOnHost(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		passed       int
		want         string // of the finding; "" if none is expected
		warn         string // of a warning; "" if none is expected
	}{ // late: the job is followed only after it has ended
		{"the stream anew, late", `verdict 2; there w00; head -n 2 ../events.jsonl >cut; rm ../events.jsonl
{ cat cut; verdict 3; } >../events.jsonl; end 3; exit 0`, 0, "line 3 of its stream is not signed by its agent",
			"untrusted"},
		{"exit.json, and no agent", `verdict 2; there w00; echo '{"end":"exited","code":0}' >../exit.json; kill -9 $PPID`, 1,
			"", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 1, map[string]map[string]any{"a": {}})
			f.extra["run.json"] = hostRun("1", []string{"w00"})
			f.script = `
verdict() { sed 's/^{/{"seq":'$1',/' w00.json; }
end() { echo '{"seq":'$1',"type":"done","done":{"passed":1,"failed":0}}'; }
there() { until grep -q $1 ../events.jsonl; do sleep 0.01; done; }
cat run.json
` + tc.script
			if strings.HasSuffix(tc.name, "late") {
				f.follow.Detach = true
				if _, err := f.run(t.Context()); err != nil || f.end != dispatch.Detached {
					t.Fatal(err)
				}
				f.follow.Detach = false
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

// A job whose verdicts precede the run event gives findings, also to a process that attaches later, and no trace.
func TestRunEventMissing(t *testing.T) {
	for _, tc := range []struct{ name, script string }{
		{"none", strings.Replace(program, "cat run.json", "", 1)},
		{"at the end", strings.Replace(strings.Replace(program, "cat run.json", "", 1), "exit 3", "cat run.json; exit 3", 1)},
	} {
		for _, detach := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, ", detached ", detach), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, 2, map[string]map[string]any{"a": {}})
				f.script, f.follow.Detach = tc.script, detach
				if detach {
					if _, err := f.run(t.Context()); err != nil || f.end != dispatch.Detached {
						t.Fatal(err)
					}
				}
				f.follow.Detach = false
				if got, err := f.run(t.Context()); err != nil || got.Missing != 2 || got.Findings != 2 {
					t.Errorf("got %+v, %v", got, err)
				}
				if text := fmt.Sprint(f.warnings()); !strings.Contains(text, "untrusted verdicts: event started before") {
					t.Errorf("got warnings %s", text)
				}
				for _, row := range f.check(0).Rows {
					if len(row.Findings) != 1 || row.Findings[0].Check != event.Contradiction || row.Unjudged == nil {
						t.Errorf("got %+v", row)
					}
				}
			})
		}
	}
}
