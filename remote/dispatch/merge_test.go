package dispatch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/bench/bound"
	"fisub/internal/event"
	"fisub/remote"
	"fisub/runs"
)

// A merging collects the events emitted by a merger.
type merging struct {
	*merger
	events []event.Event
}

func newMerging(workloads ...string) *merging {
	g := &merging{}
	run := event.Run{ID: "r", Started: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Definition: "d", Solution: "s",
		Baseline: &event.Baseline{Name: "b", Solution: "base"}}
	for _, uuid := range workloads {
		run.Workloads = append(run.Workloads, event.WorkloadRef{UUID: uuid, Axes: map[string]int{"b": 1}})
	}
	g.merger = newMerger(&Plan{Terms: Terms{GPU: "h"}}, run, func(e event.Event) { g.events = append(g.events, e) })
	g.now = run.Started.Add(time.Hour)
	return g
}

// hostRun returns the type and the payload of the run event of an honest host with GPU "h".
func hostRun(workloads ...string) string {
	var list []string
	for _, uuid := range workloads {
		list = append(list, fmt.Sprintf(`{"uuid":%q}`, uuid))
	}
	return `"type":"run","run":{"definition":"d","solution":"s","baseline":{"name":"base.json","solution":"base"},` +
		`"workloads":[` + strings.Join(list, ",") + `],"device":{"kind":"cuda","name":"h"}}`
}

func (g *merging) texts() (findings, warnings []string) {
	for _, e := range g.events {
		if e.Finding != nil {
			findings = append(findings, e.Finding.Text)
		}
		if e.Message != nil {
			warnings = append(warnings, e.Message.Text)
		}
	}
	return findings, warnings
}

// numbered returns lines of a stream of workload w0. Example: "run 1; verdict 2 MORE; started 3; end 4 PASSED FAILED".
func numbered(script string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(script, "; ") {
		kind, rest, _ := strings.Cut(word, " ")
		seq, rest, _ := strings.Cut(rest, " ")
		fmt.Fprintf(&b, `{"seq":%s,`, seq)
		switch kind {
		case "run":
			b.WriteString(hostRun("w0") + "}")
		case "verdict":
			text := fmt.Sprintf(passedTrace, "w0")
			if strings.HasPrefix(rest, `"latency_ms"`) {
				text, rest = strings.Replace(text, `"latency_ms":1.0,`, rest, 1), ""
			}
			fmt.Fprintf(&b, `"type":"evaluated","workload":"w0","evaluated":{"index":7,%s"trace":%s}}`, rest, text)
		case "started":
			b.WriteString(`"type":"started","workload":"w0","started":{"index":1,"total":1}}`)
		case "end":
			passed, failed, _ := strings.Cut(rest, " ")
			fmt.Fprintf(&b, `"type":"done","done":{"passed":%s,"failed":%s}}`, passed, failed)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// A stream that contradicts itself or has impossible numbers gives no verdict.
func TestContradictions(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		code, passed int
		want         string // of the finding; "" if none is expected
	}{
		{"sound", "run 1; verdict 2; end 3 1 0", 0, 1, ""},
		{"verdict twice", "run 1; verdict 2; verdict 3; end 4 1 0", 0, 0, "two verdicts for workload w0"},
		{"number twice", "run 1; verdict 2; started 2; end 3 1 0", 0, 0, "event 2 follows event 2"},
		{"number left out", "run 1; verdict 3; end 4 1 0", 0, 0, "event 3 follows event 1"},
		{"a second process", "run 1; verdict 2; run 1; end 2 1 0", 0, 0, "event 1 follows event 2"},
		{"no number", "run 1; verdict 0; end 2 1 0", 0, 0, "event 0 follows event 1"},
		{"totals", "run 1; verdict 2; end 3 0 1", 3, 0, "1 passed and 0 failed, but its totals are 0 and 1"},
		{"exit status", "run 1; verdict 2; end 3 1 0", 3, 0, "0 of 1 workloads failed, but the exit status is 3"},
		{"killed", "run 1; verdict 2", 137, 1, ""},
		{"latency below zero", `run 1; verdict 2 "latency_ms":-5,; end 3 1 0`, 0, 0, ""},
		{"latency without end", `run 1; verdict 2 "latency_ms":1e308,; end 3 1 0`, 0, 0, ""},
		{"seconds", `run 1; verdict 2 "seconds":-1,; end 3 1 0`, 0, 0, ""},
	} {
		g := newMerging("w0")
		r := newReader(had(1, "a", "w0"), 0)
		g.read(&r, []byte(numbered(tc.script)))
		g.exited(&r, remote.Exit{End: remote.Exited, Code: tc.code})
		findings, _ := g.texts()
		if got := strings.Join(findings, "; "); got != tc.want {
			t.Errorf("%s: got finding %q, want %q", tc.name, got, tc.want)
		}
		if got := g.summary.Totals(); got.Passed != tc.passed || got.Missing != 1-tc.passed || got.Findings != len(findings) {
			t.Errorf("%s: got %+v, want %d passed", tc.name, got, tc.passed)
		}
	}
}

// signed returns the lines and the end signed with that key.
func signed(t *testing.T, key, job, lines string) (string, remote.Exit) {
	t.Helper()
	var out bytes.Buffer
	seal := &remote.Seal{Key: key, Job: job}
	if _, err := (&remote.Sealer{W: &out, Seal: seal}).Write([]byte(lines)); err != nil {
		t.Fatal(err)
	}
	return out.String(), seal.Sign(remote.Exit{End: remote.Exited})
}

// Unsigned, missing or reordered lines retract the job's verdicts, before or after the verdict, however the stream is
// cut.
func TestForgedStream(t *testing.T) {
	const job = "fisub-r-1"
	text, exit := signed(t, "k", job, numbered("run 1; verdict 2; end 3 1 0"))
	lines := strings.SplitAfter(text, "\n")
	foreign, _ := signed(t, "k", "fisub-r-2", numbered("run 1; verdict 2; end 3 1 0"))
	for _, tc := range []struct {
		name, stream string
		passed       int
		want         string // of the warning; "" if none is expected
	}{
		{"sound", text, 1, ""},
		{"a line added after the verdict", lines[0] + lines[1] + numbered("verdict 3") + lines[2], 0,
			"line 3 of its stream is not signed"},
		{"a line added before", numbered("started 1") + text, 0, "line 1 of its stream is not signed"},
		{"half a line", lines[0] + "x" + lines[1] + lines[2], 0, "line 2 of its stream is not signed"},
		{"a line twice", lines[0] + lines[1] + lines[1] + lines[2], 0, "line 3 of its stream is not signed"},
		{"a line left out", lines[0] + lines[2], 0, "line 2 of its stream is not signed"},
		{"the end cut off", lines[0] + lines[1], 0, "its agent wrote 3 lines, but 2 arrived"},
		{"the stream of another job", foreign, 0, "line 1 of its stream is not signed"},
	} {
		for _, piece := range []int{1, 100, len(tc.stream)} {
			g := newMerging("w0")
			j := had(1, "a", "w0")
			j.Key = "k"
			r := newReader(j, 0)
			for rest := []byte(tc.stream); len(rest) > 0; rest = rest[min(piece, len(rest)):] {
				g.read(&r, rest[:min(piece, len(rest))])
			}
			g.exited(&r, exit)
			if got := g.summary.Totals(); got.Passed != tc.passed || got.Missing != 1-tc.passed {
				t.Errorf("%s: got %+v, want %d passed", tc.name, got, tc.passed)
			}
			_, warnings := g.texts()
			if got := strings.Join(warnings, "; "); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("%s: got warning %q, want %q", tc.name, got, tc.want)
			}
		}
	}
}

// Texts from a host become one line of limited length without control characters. Other lines than events of the job
// are counted and dropped.
func TestHostileLines(t *testing.T) {
	g := newMerging("w0", "w1")
	r := newReader(had(1, "a", "w0"), 0)
	g.read(&r, []byte(`{"type":"warning","message":{"text":"one\nerror: two\u202e\u001b[2J","hint":"`+
		strings.Repeat("x", 3_000_000)+`"}}
{`+hostRun("w0")+`}
{"type":"new-in-2030"}
not json
{"type":"evaluated"}
`+"\x00\x01"+`
{"type":"started","workload":"w1","started":{}}
{"type":"evaluated","workload":"w0","evaluated":{"trace":`+fmt.Sprintf(passedTrace, "other")+`}}
{"type":"job","place":"elsewhere","job_state":{"phase":"x"}}
{"type":"run","run":{},"done":{}}
`))
	if r.junk != 5 || g.summary.Totals().Missing != 2 {
		t.Errorf("got %d lines that are no events, %+v, want 5 and no verdict", r.junk, g.summary.Totals())
	}
	e := g.events[0]
	if e.Message == nil || e.Message.Text != "one error: two [2J" || len(e.Message.Hint) != maxText {
		t.Errorf("got %.100q, a hint of %d bytes", e.Message.Text, len(e.Message.Hint))
	}
	for _, e := range g.events {
		if e.Run == nil && (e.Place != "a: h" || e.Job != "fisub-r-1") {
			t.Errorf("got an event of %q, job %q", e.Place, e.Job)
		}
	}
}

// Times and numbers from a host are dropped, so a clock that is wrong by a day does no harm.
func TestClockSkew(t *testing.T) {
	g := newMerging("w0")
	r := newReader(had(1, "a", "w0"), 0)
	g.read(&r, []byte(`{"seq":77,"time":"2026-01-02T01:00:00Z",`+strings.TrimSuffix(hostRun("w0"), "}")+
		`,"started":"2025-12-31T00:00:00Z"}}
{"seq":78,"time":"2026-01-02T01:00:00Z","type":"warning","message":{"text":"x"}}
`))
	if r.against != "" || len(g.events) != 3 {
		t.Errorf("got %d events, contradiction %q", len(g.events), r.against)
	}
	for _, e := range g.events {
		if !e.Time.IsZero() || e.Seq != 0 || e.Run != nil && !e.Run.Started.Equal(g.run.Started) {
			t.Errorf("got %+v", e)
		}
	}
}

// Floors stay with their place. The score covers the jobs of all processes. A process that takes over a run reads the
// streams again but emits only the missing events.
func TestFloorsAndScore(t *testing.T) {
	g := newMerging("w0", "w1", "w2")
	speedup := func(n int, w string) string {
		return fmt.Sprintf(`{"type":"started","workload":%q,"started":{}}
{"type":"evaluated","workload":%q,"evaluated":{"speedup":%d,"trace":%s}}
`, w, w, n, fmt.Sprintf(passedTrace, w))
	}
	const floor = `{"type":"floor","floor":{"kind":"empty","median_ns":900}}` + "\n"
	finding := `{"type":"warning","workload":"w1","finding":{"check":"late-write","text":"it does"}}` + "\n"
	a, b := had(1, "a", "w0", "w1"), had(2, "b", "w2")
	ra, rb := newReader(a, 0), newReader(b, 0)
	run := "{" + hostRun("w0", "w1") + "}\n"
	other := strings.Replace("{"+hostRun("w2")+"}\n", `"name":"h"`, `"name":"other h"`, 1)
	first := run + floor + speedup(2, "w0") + speedup(-1, "w1") + speedup(3, "w1")
	g.read(&ra, []byte(first))
	g.read(&rb, []byte(other+floor))
	places, origins := "", map[string]int64{}
	var row runs.Row
	for _, e := range g.events {
		if e.Floor != nil {
			places += e.Place + " "
		}
		if e.Evaluated != nil && e.Workload == "w1" {
			row = runs.Row{UUID: "w1", Evaluated: e.Evaluated, Place: e.Place}
		}
		origins[e.Job] = max(origins[e.Job], e.Origin)
	}
	if _, warnings := g.texts(); places != "a: h b: h " || len(warnings) != 1 ||
		warnings[0] != "places differ: b: h is other h, the first is h" {
		t.Errorf("got floors of %q, warnings %q", places, warnings)
	}
	old := &runs.Run{Summary: runs.Summary{Run: &g.run, Origins: origins,
		Rows: []runs.Row{row, {UUID: "w0", Evaluated: row.Evaluated, Place: "a: h"}}}}
	again := newMerging("w0", "w1", "w2")
	again.restore(old)
	ra, rb = newReader(a, origins[a.ID]), newReader(b, origins[b.ID])
	again.read(&ra, []byte(first+finding))
	again.read(&rb, []byte(other+floor+strings.Replace(speedup(9, "w2"), `"hardware":"h"`, `"hardware":"other h"`, 1)))
	again.done(again.begun)
	want := []string{"warning", "started", "evaluated", "done"}
	var got []string
	for _, e := range again.events {
		got = append(got, string(e.Type))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	done := again.events[len(again.events)-1].Done
	if done.Passed != 3 || done.Findings != 1 || done.Score == nil || *done.Score != 5 || done.Scored != 3 {
		t.Errorf("got %+v, want a score of (3 + 3 + 9) / 3", done)
	}
}

// A process that takes over a run remembers which host could not judge a workload; a resumption forgets it.
func TestUnableBefore(t *testing.T) {
	c := newPlay(t, 2, "a b")
	old := &runs.Run{Summary: runs.Summary{Run: &event.Run{},
		Rows: []runs.Row{{UUID: "w0", Unjudged: &event.Message{Text: "no room"}, Place: "a: h"}}}}
	c.restart(c.s.plan, old, rules{})
	c.run("begin -> save; submit 1 b w0 w1")
	c = newPlay(t, 2, "a b", had(1, "a", "w0"))
	c.s.plan.Before, c.s.plan.Jobs[0].Ended = 1, &time.Time{}
	c.restart(c.s.plan, old, rules{})
	c.run("begin -> save; submit 2 a w0; save; submit 3 b w1")
}

// The limit of a job's stream depends on the number of its workloads.
func TestRoom(t *testing.T) {
	for _, tc := range []struct {
		workloads int
		tool      string
		stream    int64
		want      int64
	}{{1, "", 0, 24 << 20}, {2, "", 0, 32 << 20}, {1000, "", 0, UsualStream}, {1, "check", 0, UsualStream}, {1, "", 5, 5}} {
		s := newState(&Plan{Kind: Kind{Tool: tc.tool}}, nil, rules{stream: tc.stream})
		if got := s.room(&job{JobRecord: &JobRecord{Workloads: make([]string, tc.workloads)}}); got != tc.want {
			t.Errorf("%+v: got %d", tc, got)
		}
	}
}

// A run with Detach follows no job.
func TestDetached(t *testing.T) {
	c := newPlay(t, 2, "a b", had(1, "a", "w0"))
	c.restart(c.s.plan, nil, rules{detach: true})
	c.run(`
begin    -> save; submit 2 b w1
accept 2 -> save`)
	if end, _ := c.s.unfollowed(); end != Detached || !c.s.over() {
		t.Errorf("got %v, over %v", end, c.s.over())
	}
}

// The lines of a tool are passed on. Its exit status is the result, and its job is not retried.
func TestTool(t *testing.T) {
	const begin = `
begin    -> save; submit 1 a w0
accept 1 -> save; follow 1
`
	for _, tc := range []struct {
		name, script string
		unclean      bool
		err          string
	}{
		{"clean", `exit 1 0 -> collect 1
log 1 -> release 1
free 1 -> save; ended: exited with 0`, false, ""},
		{"findings", `exit 1 3 -> collect 1
log 1 -> release 1
free 1 -> save; ended: exited with 3`, true, ""},
		{"it fails", `exit 1 1 -> collect 1
log 1 no counters -> release 1
free 1 -> save; ended: exited with 1: no counters`, false, "a: h: exited with 1: no counters"},
		{"lost", `lost 1 -> collect 1
log 1 -> release 1
free 1 -> save; ended: lost`, false, "a: h: lost"},
		{"forged", `say 1 run -> stop 1
wait 1 context canceled -> collect 1
log 1 -> release 1
free 1 -> save; ended: lost: untrusted output: line 1 of its stream is not signed by its agent`, false,
			"a: h: lost: untrusted output: line 1 of its stream is not signed by its agent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newPlay(t, 1, "a")
			c.s.plan.Tool = "sanitize"
			c.restart(c.s.plan, nil, rules{})
			c.s.rules.key = func() string { return "k" }
			c.run(begin)
			text, _ := signed(t, "k", "fisub-r-1", "one\ntwo\n")
			if tc.name != "forged" {
				c.s.apply(received{c.job("1"), []byte(text), c.now})
				if got := c.s.next(c.now); len(got) != 2 || c.words(got[0]) != "hand one" || c.words(got[1]) != "hand two" {
					t.Errorf("got %v", got)
				}
			}
			c.run(tc.script)
			err := c.s.nothingRan()
			if fmt.Sprint(err) != tc.err && (err != nil || tc.err != "") {
				t.Errorf("got %v, want %q", err, tc.err)
			}
			if got := c.s.totals().Failed > 0; got != tc.unclean {
				t.Errorf("got findings %v", got)
			}
		})
	}
}

// A host's claims that differ from what the client knows retract the job's verdicts. The text names both values.
func TestClaims(t *testing.T) {
	line := func(text string) string { return "{" + text + "}\n" }
	verdict := func(w string, from, to string) string {
		text := fmt.Sprintf(`"type":"evaluated","workload":%q,"evaluated":{"trace":%s}`, w, fmt.Sprintf(passedTrace, w))
		return line(strings.Replace(text, from, to, 1))
	}
	samples := func(bytes int) string {
		return line(fmt.Sprintf(`"type":"samples","workload":"w0","samples":{"timer":"cupti","bytes":%d}`, bytes))
	}
	run, done := hostRun("w0", "w1"), line(`"type":"done","done":{"passed":2}`)
	sound := verdict("w0", "", "") + verdict("w1", "", "")
	edit := func(from, to string) string { return line(strings.Replace(run, from, to, 1)) + sound + done }
	for _, tc := range []struct {
		name, gpu, stream string
		want              string // of the findings; "" if none are expected
	}{
		{"sound", "h", line(run) + samples(500) + sound + done, ""},
		{"another GPU", "b200", line(run) + sound + done, "the host's device is h, but the run is for GPU b200"},
		{"a part of the name", "h", edit(`"name":"h"`, `"name":"h100"`), "the host's device is h100, but the run is for GPU h"},
		{"a GPU for the virtual one", "", edit(`"name":"h"`, `"name":"NVIDIA B200"`),
			"the host's device is NVIDIA B200, but the run is for the virtual GPU"},
		{"the virtual GPU for a GPU", "h", edit(`"kind":"cuda"`, `"emulated":true`),
			"the host's device is the virtual GPU, but the run is for GPU h"},
		{"another definition", "h", edit(`"definition":"d"`, `"definition":"e"`), "the host's definition is e, but the run's is d"},
		{"another solution", "h", edit(`"solution":"s"`, `"solution":"x"`), "the host's solution is x, but the run's is s"},
		{"another hash", "h", edit(`"solution":"s"`, `"solution":"s","content_hash":"00"`),
			"the host's content hash is 00, but the run's is "},
		{"another baseline", "h", edit(`"solution":"base"`, `"solution":"slow"`),
			"the host's baseline is slow, but the run's is base"},
		{"no baseline", "h", edit(`"baseline"`, `"basis"`), "the host's baseline is none, but the run's is base"},
		{"another tolerance", "h", edit(`"definition"`, `"tolerance":{"atol":1e9},"definition"`),
			"the host's tolerance is within 1e+09 absolute or 0 relative, but the run's is within 0 absolute"},
		{"another profile", "h", edit(`"definition"`, `"profile":{"num_trials":7},"definition"`), "the host's profile is (7 trials"},
		{"fewer workloads", "h", edit(`,{"uuid":"w1"}`, ``), "the host lists 1 workload, but the job has 2"},
		{"another workload", "h", edit(`"uuid":"w1"`, `"uuid":"w9"`), "the host lists workload w9, which is not one of the job's"},
		{"a workload twice", "h", edit(`"uuid":"w1"`, `"uuid":"w0"`), "the host lists workload w0, which"},
		{"a run far ahead", "h", edit(`"definition"`, `"started":"9999-12-31T23:59:59Z","definition"`),
			"dated 9999-12-31T23:59:59Z, but the run began at 2026-01-01T00:00:00Z and it is 2026-01-01T01:00:00Z"},
		{"an event long ago", "h", line(`"time":"2025-12-29T23:00:00Z",`+run) + sound + done, "dated 2025-12-29T23:00:00Z"},
		{"a trace far ahead", "h", line(run) + verdict("w0", `"timestamp":"t"`, `"timestamp":"2026-02-01T00:00:00.000001"`) +
			verdict("w1", "", "") + done, "dated 2026-02-01T00:00:00Z"},
		{"a trace of another definition", "h", line(run) + verdict("w0", `"definition":"d"`, `"definition":"e"`) +
			verdict("w1", "", "") + done, "a trace with definition e, but the run's is d"},
		{"a trace of another solution", "h", line(run) + verdict("w0", "", "") +
			verdict("w1", `"solution":"s"`, `"solution":"x"`) + done, "a trace with solution x, but the run's is s"},
		{"a trace of another GPU", "h", line(run) + verdict("w0", "", "") +
			verdict("w1", `"hardware":"h"`, `"hardware":"B200"`) + done, "a trace with hardware B200, but the run's is h"},
		{"a trace with other axes", "h", line(run) + verdict("w0", "", "") + verdict("w1", `"axes":{"b":1}`, `"axes":{"b":99}`) + done,
			"a trace of workload w1 with axes map[b:99], but the run's are map[b:1]"},
		{"fewer bytes", "h", line(run) + samples(499) + sound + done, "499 bytes for workload w0, which has at least 500"},
		{"a second run", "h", line(run) + line(run) + sound + done, "a second run event"},
		{"no done", "h", line(run) + sound, "exit status 0, but no done event"},
		{"no run", "h", sound + done, "event evaluated before the run event"},
		{"the run at the end", "h", sound + done + line(run), "event evaluated before the run event"},
		{"started first", "h", line(`"type":"started","workload":"w0","started":{}`) + line(run) + sound + done,
			"event started before the run event"},
		{"built first", "h", line(`"type":"building"`) + line(run) + sound + done, "event building before the run event"},
	} {
		g := newMerging("w0", "w1")
		g.gpu, g.least = tc.gpu, map[string]bound.Traffic{"w0": {Read: 400, Written: 100}}
		folder := runs.NewFolder(t.TempDir(), "r")
		stream := event.NewStream(folder.Record)
		r := newReader(had(1, "a", "w0", "w1"), 0)
		g.read(&r, []byte(tc.stream))
		g.exited(&r, remote.Exit{End: remote.Exited})
		g.release()
		g.done(g.now)
		for _, e := range g.events {
			stream.Emit(e)
		}
		if err := errors.Join(stream.Err(), folder.Close()); err != nil {
			t.Fatal(err)
		}
		stored, err := runs.Read(folder.Path())
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		traces, err := os.ReadFile(filepath.Join(folder.Path(), "traces.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		findings, warnings := g.texts()
		n := 0
		if tc.want == "" {
			n = 2
		}
		if got := stored.Totals(); got.Passed != n || got.Missing != 2-n || got.Findings != 2-n ||
			strings.Count(string(traces), "PASSED") != n {
			t.Errorf("%s: got %+v, traces %s", tc.name, got, traces)
		}
		if got := strings.Join(findings, "; "); strings.Count(got, tc.want) != 2 && tc.want != "" || got != "" && tc.want == "" {
			t.Errorf("%s: got findings %q, want %q", tc.name, got, tc.want)
		}
		if got := strings.Join(warnings, "; "); tc.want != "" && !strings.Contains(got, "a: h: untrusted verdicts: "+tc.want) {
			t.Errorf("%s: got warnings %q", tc.name, got)
		}
	}
}

// An untrusted job does not open the run's stream while another one may.
func TestTrustedOpens(t *testing.T) {
	g := newMerging("w0", "w1")
	bad, good := newReader(had(1, "a", "w0"), 0), newReader(had(2, "b", "w1"), 0)
	verdict := `{"type":"evaluated","workload":%q,"evaluated":{"trace":` + passedTrace + "}}\n"
	g.read(&bad, []byte("{"+strings.Replace(hostRun("w0"), `"name":"h"`, `"name":"B200"`, 1)+"}\n"+
		fmt.Sprintf(verdict, "w0", "w0")))
	g.read(&good, []byte("{"+hostRun("w1")+"}\n"+fmt.Sprintf(verdict, "w1", "w1")))
	g.release()
	opened := 0
	for i, e := range g.events {
		if e.Run != nil {
			opened++
			if e.Run.Device.Name != "h" {
				t.Errorf("got a run on %s", e.Run.Device.Name)
			}
		}
		if e.Workload != "" && opened == 0 {
			t.Errorf("event %d about a workload precedes the run event", i)
		}
	}
	if got := g.summary.Totals(); opened != 1 || got.Passed != 1 || got.Findings != 1 {
		t.Errorf("got %d run events, %+v", opened, got)
	}
}

// A latency that the memory of the run's GPU does not allow gives the finding too-fast, whatever bandwidth and bytes
// the host claims.
func TestTooFast(t *testing.T) {
	for _, tc := range []struct {
		name, device string // further keys of the device
		median       int    // ns, of the samples
		own          bool   // the host has the finding too
		want         int
	}{
		{"fast enough", "", 1e6, false, 0},
		{"a small bandwidth", `,"bandwidth":1000`, 1e6, false, 0},
		{"too fast", "", 1, false, 1},
		{"a huge bandwidth", `,"bandwidth":1000000000000000000`, 1, false, 1},
		{"a huge L2", `,"l2_bytes":1000000000000000000`, 1, false, 1},
		{"found there too", "", 1, true, 1},
	} {
		g := newMerging("w0")
		g.gpu, g.least = "b200", map[string]bound.Traffic{"w0": {Read: 1 << 30}}
		r := newReader(had(1, "a", "w0"), 0)
		name := func(text string) string { return strings.Replace(text, `"h"`, `"NVIDIA B200"`, 1) }
		text := "{" + strings.Replace(name(hostRun("w0")), `"NVIDIA B200"`, `"NVIDIA B200"`+tc.device, 1) + "}\n" +
			fmt.Sprintf(`{"type":"samples","workload":"w0","samples":{"bytes":1073741824,"median_ns":%d}}`, tc.median) + "\n" +
			`{"type":"evaluated","workload":"w0","evaluated":{"trace":` + name(fmt.Sprintf(passedTrace, "w0")) + "}}\n"
		if tc.own {
			text += `{"type":"warning","workload":"w0","finding":{"check":"too-fast","text":"it is"}}` + "\n"
		}
		g.read(&r, []byte(text))
		g.read(&r, []byte(`{"type":"done","done":{"passed":1}}`+"\n"))
		if got := g.summary.Totals(); got.Passed != 1 || got.Findings != tc.want {
			t.Errorf("%s: got %+v, want %d findings; %s", tc.name, got, tc.want, r.against)
		}
	}
}

// A run of a comparison whose job has exited regularly needs a done event.
func TestSideDone(t *testing.T) {
	for _, tc := range []struct {
		name    string
		regular bool
		done    bool
		passed  int
	}{{"whole", true, true, 1}, {"no done", true, false, 0}, {"cut off", false, false, 1}} {
		p := &Plan{Terms: Terms{GPU: "h"}, Kind: Kind{Sides: []event.Run{{ID: "r", Definition: "d", Solution: "s",
			Baseline: &event.Baseline{Solution: "base"}, Workloads: []event.WorkloadRef{{UUID: "w0"}}}}}}
		folder := runs.NewFolder(t.TempDir(), "r")
		side := NewSide(p, 0, nil, event.NewStream(folder.Record))
		lines := numbered("run 1; verdict 2; end 3 1 0")
		if !tc.done {
			lines = numbered("run 1; verdict 2")
		}
		for text := range strings.Lines(lines) {
			if err := (Sides{side}).Line(had(1, "a", "w0"), fmt.Appendf(nil, `{"side":0,"event":%s}`, text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(side.Done(tc.regular), folder.Close()); err != nil {
			t.Fatal(err)
		}
		r, err := runs.Read(folder.Path())
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Totals(); got.Passed != tc.passed || got.Findings != 1-tc.passed {
			t.Errorf("%s: got %+v", tc.name, got)
		}
	}
}
