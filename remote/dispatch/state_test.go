package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/trace"
	"fisub/remote"
	"fisub/runs"
)

// A play applies facts, written as words, to a state and returns the actions as words.
//
//	begin                      resume the jobs of the plan
//	accept 1, refuse 1 CODE    the result of a Submit
//	say 1 LINE                 the stream: run, started W, passed W, failed W, unable W, finding W, done; the first
//	                           line follows a run event
//	running 1                  the host's view of the job; also starting, queued
//	exit 1 CODE                the result of a Wait; after a done event if the code is 0 or 3
//	limit 1, lost 1, cancelled 1    other results of a Wait
//	wait 1 CODE                the error of a Wait: unreachable, credentials, ..., or any other
//	clear 1, clear 1 CODE      the result of clearing a half-submitted job
//	log 1, log 1 WORDS         the log is there; WORDS is the last error in it
//	free 1, free 1 CODE        the result of a Release
//	pause, break, cancel       this process is to end, must give up, ends all jobs
//	10m                        time passes
type play struct {
	t   *testing.T
	s   *state
	now time.Time
}

// newPlay returns a play with n workloads on places such as "a b c/0 c/1": a table, or a GPU of the table's host.
func newPlay(t *testing.T, n int, places string, jobs ...*JobRecord) *play {
	p := &Plan{Version: 1, Run: event.Run{ID: "r", Definition: "d", Solution: "s"}, Terms: Terms{Limit: time.Hour, GPU: "h"}, Jobs: jobs}
	for i := range n {
		p.Run.Workloads = append(p.Run.Workloads, event.WorkloadRef{UUID: fmt.Sprint("w", i)})
	}
	for name := range strings.FieldsSeq(places) {
		p.Places = append(p.Places, placeOf(name))
	}
	c := &play{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	c.restart(p, nil, rules{})
	return c
}

func placeOf(name string) ProviderPlace {
	table, gpu, _ := strings.Cut(name, "/")
	n, err := strconv.Atoi(gpu)
	if err != nil {
		n = -1
	}
	return ProviderPlace{Table: table, Place: remote.Place{Host: "h", GPU: n}}
}

// had returns a job of the plan that another process has submitted.
func had(id int, place string, workloads ...string) *JobRecord {
	return &JobRecord{ID: fmt.Sprint("fisub-r-", id), Place: placeOf(place), Workloads: workloads, Handle: &remote.Handle{}}
}

// restart replaces the state, as if another process had taken over the run.
func (c *play) restart(p *Plan, old *runs.Run, r rules) {
	r.overtime, r.key = 3*time.Minute, func() string { return "" }
	c.s = newState(p, old, r)
}

// job returns the job with that number in the plan.
func (c *play) job(number string) *job {
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > len(c.s.jobs) {
		c.t.Fatalf("no job %q", number)
	}
	return c.s.jobs[n-1]
}

func (c *play) number(j *job) int { return slices.Index(c.s.jobs, j) + 1 }

// fault returns the error for a word.
func fault(word string) error {
	if slices.Contains([]string{"unreachable", "credentials", "host-key", "busy"}, word) {
		return fmt.Errorf("asking: %w", &remote.Denied{Code: word, Provider: "t", Text: word, Hint: "mend it"})
	}
	if word == "" {
		return nil
	}
	return errors.New(word)
}

// line returns a line of a job's stream.
func line(j *job, kind, workload string) []byte {
	e := event.Event{Type: event.Type(kind), Workload: workload}
	switch kind {
	case "run":
		e.Run = &event.Run{Definition: "d", Solution: "s", Device: event.Device{Name: "h"}}
		for _, uuid := range j.Workloads {
			e.Run.Workloads = append(e.Run.Workloads, event.WorkloadRef{UUID: uuid})
		}
	case "started":
		e.Started = &event.Started{}
	case "passed", "failed":
		status := map[string]trace.Status{"passed": trace.Passed, "failed": trace.RuntimeError}[kind]
		e.Type, e.Evaluated = event.TypeEvaluated, eventtest.Verdict{UUID: workload, Status: string(status)}.Evaluated()
	case "unable":
		e.Type, e.Message = event.TypeFailed, &event.Message{Text: "no room"}
	case "finding":
		e.Type, e.Finding = event.TypeWarning, &event.Finding{Check: "late-write", Text: "it does"}
	case "done":
		e.Done = &event.Done{}
	}
	text, err := event.Marshal(e)
	if err != nil {
		panic(err)
	}
	return text
}

const passedTrace = `{"definition":"d","workload":{"axes":{"b":1},"inputs":{},"uuid":%q},"solution":"s",` +
	`"evaluation":{"status":"PASSED","environment":{"hardware":"h","libs":{}},"timestamp":"t","log":"",` +
	`"correctness":{"max_relative_error":0.0,"max_absolute_error":0.0,"extra":null},` +
	`"performance":{"latency_ms":1.0,"reference_latency_ms":0.0,"speedup_factor":0.0}}}`

func (c *play) fact(text string) {
	word, rest, _ := strings.Cut(text, " ")
	if d, err := time.ParseDuration(word); err == nil {
		c.now = c.now.Add(d)
		return
	}
	number, rest, _ := strings.Cut(rest, " ")
	s := c.s
	switch word {
	case "begin":
		s.resume(c.now)
	case "accept":
		s.apply(accepted{c.job(number), remote.Handle{}, c.now})
	case "refuse":
		s.apply(refused{c.job(number), fault(rest)})
	case "say":
		kind, workload, _ := strings.Cut(rest, " ")
		if j := c.job(number); kind != "run" && j.stream.summary.Run == nil {
			s.apply(received{j, line(j, "run", ""), c.now})
		}
		s.apply(received{c.job(number), line(c.job(number), kind, workload), c.now})
	case "running", "starting", "queued":
		s.apply(changed{c.job(number), remote.Stage{Phase: remote.Phase(word)}, c.now})
	case "exit":
		code, _ := strconv.Atoi(rest)
		if j := c.job(number); j.stream.summary.Run != nil && (code == 0 || code == 3) {
			s.apply(received{j, line(j, "done", ""), c.now})
		}
		s.apply(waited{job: c.job(number), exit: remote.Exit{End: remote.Exited, Code: code}, at: c.now})
	case "limit", "lost", "cancelled":
		s.apply(waited{job: c.job(number), exit: remote.Exit{End: remote.End(word), Hint: "look"}, at: c.now})
	case "wait":
		s.apply(waited{job: c.job(number), err: fault(rest), at: c.now})
	case "clear":
		s.apply(cleared{c.job(number), c.job(number).ID + "x", fault(rest)})
	case "log":
		s.apply(collected{job: c.job(number), text: rest})
	case "free":
		s.apply(released{c.job(number), fault(rest), c.now})
	case "pause":
		s.apply(paused{errors.New("interrupted")})
	case "break":
		s.apply(broken{errors.New("disk full")})
	case "cancel":
		s.end()
	default:
		c.t.Fatalf("no fact %q", text)
	}
}

func (c *play) words(a action) string {
	switch a := a.(type) {
	case save:
		return "save"
	case tell:
		e := a.event
		switch {
		case e.JobState != nil && e.JobState.Device != nil:
			return ""
		case e.JobState != nil && e.JobState.Phase == "ended":
			return "ended: " + e.JobState.Text
		case e.JobState != nil:
			return ""
		case e.Evaluated != nil:
			return fmt.Sprintf("%s %s", e.Workload, e.Evaluated.Status())
		case e.Finding != nil:
			return fmt.Sprintf("%s finding %s", e.Workload, e.Finding.Check)
		case e.Type == event.TypeFailed:
			return e.Workload + " unable"
		case e.Message != nil:
			return "warn " + e.Message.Text
		}
		return string(e.Type)
	case hand:
		return "hand " + string(a.text)
	case clear:
		return fmt.Sprint("clear ", c.number(a.job))
	case submit:
		return fmt.Sprintf("submit %d %s %s", c.number(a.job), a.job.Place.Table, strings.Join(a.job.Workloads, " "))
	case follow:
		if a.after > 0 {
			return fmt.Sprint("follow ", c.number(a.job), " in ", a.after)
		}
		return fmt.Sprint("follow ", c.number(a.job))
	case stop:
		return fmt.Sprint("stop ", c.number(a.job))
	case collect:
		return fmt.Sprint("collect ", c.number(a.job))
	case release:
		if a.after > 0 {
			return fmt.Sprint("release ", c.number(a.job), " in ", a.after)
		}
		return fmt.Sprint("release ", c.number(a.job))
	}
	return fmt.Sprintf("%T", a)
}

// run plays lines "FACT -> ACTION; ACTION". It fails on any other action.
func (c *play) run(script string) {
	c.t.Helper()
	for text := range strings.Lines(script) {
		text, _, _ = strings.Cut(text, "#")
		given, want, _ := strings.Cut(text, "->")
		if given = strings.TrimSpace(given); given == "" {
			continue
		}
		c.fact(given)
		var got []string
		for _, a := range c.s.next(c.now) {
			if word := c.words(a); word != "" {
				got = append(got, word)
			}
		}
		if got, want := strings.Join(got, "; "), strings.TrimSpace(want); got != want {
			c.t.Fatalf("%s:\n got %s\nwant %s", given, got, want)
		}
	}
}

// judged returns the script of a job that delivers verdicts.
func judged(job int, workloads ...string) string {
	var b strings.Builder
	for _, w := range workloads {
		fmt.Fprintf(&b, "say %d started %s -> started\nsay %d passed %s -> %s PASSED\n", job, w, job, w, w)
	}
	return b.String()
}

// closing returns the script of a job's end after all its verdicts.
func closing(job int) string {
	return fmt.Sprintf("exit %d 0 -> collect %d\nlog %d -> release %d\nfree %d -> save; ended: exited with 0\n", job, job, job, job, job)
}

func TestState(t *testing.T) {
	const two = `
begin    -> save; submit 1 a w0 w2; save; submit 2 b w1 w3
accept 1 -> save; follow 1
accept 2 -> save; follow 2
say 1 run -> run
say 2 run ->
`
	const one = `
begin     -> save; submit 1 a w0 w1
accept 1  -> save; follow 1
running 1 -> save
say 1 run -> run
`
	for _, tc := range []struct {
		name      string
		workloads int
		places    string
		jobs      []*JobRecord
		script    string
		passed    int
		err       string // from unfollowed or nothingRan
		active    int    // jobs that may be running
	}{
		{"a run", 4, "a b", nil, two + judged(1, "w0", "w2") + judged(2, "w1", "w3") + closing(1) + closing(2), 4, "", 0},
		{"more places than workloads", 1, "a b", nil, `begin -> save; submit 1 a w0`, 0, "nothing ran", 1},

		// Hosts lose jobs.
		{"lost, and started again", 2, "a", nil, one + judged(1, "w0") + `
lost 1 -> collect 1
log 1  -> release 1
free 1 -> save; ended: lost; warn a: h: lost; 1 of its 2 workloads have no verdict; save; submit 2 a w1
accept 2 -> save; follow 2
` + judged(2, "w1") + closing(2), 2, "", 0},
		{"lost twice", 2, "a", nil, one + judged(1, "w0") + `
lost 1 -> collect 1
log 1  -> release 1
free 1 -> save; ended: lost; warn a: h: lost; 1 of its 2 workloads have no verdict; save; submit 2 a w1
accept 2 -> save; follow 2
lost 2 -> collect 2
log 2  -> release 2
free 2 -> save; ended: lost; warn a: h: lost; 1 of its 1 workloads have no verdict
`, 1, "", 0},
		{"lost twice, and another place is free", 4, "a b", nil, two + judged(2, "w1", "w3") + closing(2) + `
lost 1 -> collect 1
log 1  -> release 1
free 1 -> save; ended: lost; warn a: h: lost; 2 of its 2 workloads have no verdict; save; submit 3 a w0; save; submit 4 b w2
accept 3 -> save; follow 3
accept 4 -> save; follow 4
lost 3 -> collect 3
log 3  -> release 3
free 3 -> save; ended: lost; warn a: h: lost; 1 of its 1 workloads have no verdict
` + judged(4, "w2") + `
exit 4 0 -> collect 4
log 4  -> release 4
free 4 -> save; ended: exited with 0; save; submit 5 b w0
`, 3, "", 1},
		{"the judge is killed", 2, "a", nil, one + `
exit 1 137 -> collect 1
log 1  -> release 1
free 1 -> save; ended: exited with 137; warn a: h: exited with 137; 2 of its 2 workloads have no verdict; save; submit 2 a w0 w1
`, 0, "", 1},
		{"no workload has more than three tries", 1, "a b c d", []*JobRecord{had(1, "a", "w0"), had(2, "b", "w0"), had(3, "c", "w0")}, `
begin -> follow 1; follow 2; follow 3
say 1 run -> run
lost 1 -> collect 1
log 1 -> release 1
free 1 -> save; ended: lost; warn a: h: lost; 1 of its 1 workloads have no verdict
lost 2 -> collect 2
log 2 -> release 2
free 2 -> save; ended: lost; warn b: h: lost; 1 of its 1 workloads have no verdict
lost 3 -> collect 3
log 3 -> release 3
free 3 -> save; ended: lost; warn c: h: lost; 1 of its 1 workloads have no verdict
`, 0, "", 0},
		{"a host that answers and says nothing after the limit", 2, "a", nil, one + judged(1, "w0") + "\n1h  ->\n3m1s -> " +
			"stop 1\nwait 1 context canceled -> collect 1\nlog 1 -> release 1\nfree 1 unreachable -> warn a: h: may still " +
			"run: unreachable; save; ended: lost: its host can be reached, but has not reported the job's end 3m0s after " +
			"its limit of 1h0m0s; warn a: h: lost: its host can be reached, but has not reported the job's end 3m0s after " +
			"its limit of 1h0m0s; 1 of its 2 workloads have no verdict\n", 1, "", 1},
		{"a host that speaks after the limit", 2, "a", nil, one + judged(1, "w0") + `
1h ->
2m ->
say 1 started w1 -> started
2m ->
`, 1, "", 1},

		// Places refuse jobs.
		{"refused, and another place", 4, "a b", nil, `
begin  -> save; submit 1 a w0 w2; save; submit 2 b w1 w3
accept 2 -> save; follow 2
refuse 1 busy -> save; warn a: h: busy
say 2 run -> run
` + judged(2, "w1", "w3") + `
exit 2 0 -> collect 2
log 2 -> release 2
free 2 -> save; ended: exited with 0; save; submit 3 b w0 w2
`, 2, "", 1},
		{"refused by the only place", 1, "a", nil, `
begin  -> save; submit 1 a w0
refuse 1 busy -> save
`, 0, "asking: t: busy", 0},
		{"refused by all", 2, "a b", nil, `
begin  -> save; submit 1 a w0; save; submit 2 b w1
refuse 1 busy -> save; warn a: h: busy
refuse 2 busy -> save; warn b: h: busy
`, 0, "nothing ran", 0},

		// Limits, and programs that fail.
		{"over the limit", 4, "a b", nil, two + judged(1, "w0") + judged(2, "w1", "w3") + closing(2) + `
limit 1 -> collect 1
log 1   -> release 1
free 1  -> save; ended: limit; warn a: h: limit; 1 of its 2 workloads have no verdict
`, 3, "", 0},
		{"over the limit before a word", 1, "a", nil, `
begin   -> save; submit 1 a w0
accept 1 -> save; follow 1
limit 1 -> collect 1
log 1   -> release 1
free 1  -> save; ended: limit
`, 0, "a: h: limit", 0},
		{"the program fails", 1, "a", nil, `
begin   -> save; submit 1 a w0
accept 1 -> save; follow 1
exit 1 1 -> collect 1
log 1 no disk -> release 1
free 1  -> save; ended: exited with 1: no disk
`, 0, "a: h: exited with 1: no disk", 0},

		// Hosts that cannot judge a workload.
		{"unable, and another host", 3, "a/0 a/1 b", nil, `
begin -> save; submit 1 a w0; save; submit 2 a w1; save; submit 3 b w2
accept 1 -> save; follow 1
accept 2 -> save; follow 2
accept 3 -> save; follow 3
say 1 run -> run
say 1 started w0 -> started
say 1 unable w0 -> w0 unable
exit 1 2 -> collect 1
log 1 -> release 1
free 1 -> save; ended: exited with 2
say 3 run ->
` + judged(3, "w2") + `
exit 3 0 -> collect 3
log 3 -> release 3
free 3 -> save; ended: exited with 0; save; submit 4 b w0
`, 1, "", 2},
		{"unable, and no other host", 1, "a/0 a/1", nil, `
begin -> save; submit 1 a w0
accept 1 -> save; follow 1
say 1 run -> run
say 1 started w0 -> started
say 1 unable w0 -> w0 unable
exit 1 2 -> collect 1
log 1 -> release 1
free 1 -> save; ended: exited with 2
`, 0, "", 0},

		// Unreachable hosts.
		{"away, and nobody else", 2, "a", nil, one + `
wait 1 unreachable -> warn a: h: unreachable; follow 1 in 1s
wait 1 unreachable -> follow 1 in 1s
running 1 ->
` + judged(1, "w0", "w1") + closing(1), 2, "", 0},
		{"away for good", 2, "a", nil, one + judged(1, "w0") + `
wait 1 unreachable -> warn a: h: unreachable; follow 1 in 1s
1h1s ->
wait 1 unreachable ->
`, 1, "asking: t: unreachable", 1},
		{"away, and another place is free", 4, "a b", nil, two + judged(1, "w0") + judged(2, "w1", "w3") + `
wait 1 unreachable -> warn a: h: unreachable; follow 1 in 1s
exit 2 0 -> collect 2
log 2    -> release 2
free 2   -> save; ended: exited with 0; save; submit 3 b w2
accept 3 -> save; follow 3
` + judged(3, "w2") + `
exit 3 0 -> collect 3
log 3    -> release 3
free 3   -> save; ended: exited with 0; stop 1
wait 1 context canceled ->
`, 4, "", 1},
		{"away and back: what another place has done is needed no more", 2, "a b", []*JobRecord{had(1, "a", "w0", "w1")}, `
begin -> follow 1
say 1 run -> run
wait 1 unreachable -> warn a: h: unreachable; follow 1 in 1s; save; submit 2 b w0 w1
accept 2 -> save; follow 2
` + judged(2, "w0") + `
running 1 -> save
say 2 started w1 -> started
say 2 passed w1 -> w1 PASSED; stop 1
wait 1 context canceled -> collect 1
log 1 -> release 1
free 1 -> save; ended: cancelled: another place has finished its workloads
` + closing(2), 2, "", 0},
		{"what is out of reach beside a job that is back is asked again", 2, "a b", nil, `
begin -> save; submit 1 a w0; save; submit 2 b w1
accept 1 -> save; follow 1
refuse 2 unreachable -> save; warn b: h: unreachable
wait 1 unreachable -> warn a: h: unreachable; follow 1 in 1s
starting 1 -> save; save; submit 3 b w1
`, 0, "nothing ran", 2},
		{"credentials that do not let follow a job", 4, "a b", nil, two + judged(2, "w1", "w3") + `
wait 1 credentials ->
` + closing(2), 2, "asking: t: credentials", 1},
		{"credentials, of a job that is needed no more", 1, "a b", []*JobRecord{had(1, "a", "w0"), had(2, "b", "w0")}, `
begin -> follow 1; follow 2
wait 1 credentials ->
say 2 run -> run
` + judged(2, "w0") + closing(2), 1, "", 1},

		// Jobs end.
		{"a host that does not free a job", 2, "a", nil, one + judged(1, "w0", "w1") + `
exit 1 0 -> collect 1
log 1 -> release 1
free 1 unreachable -> release 1 in 500ms
free 1 unreachable -> release 1 in 1s
free 1 unreachable -> release 1 in 2s
free 1 unreachable -> warn a: h: may still run: unreachable; save; ended: exited with 0
`, 2, "", 1},
		{"a connection that is lost just then", 2, "a", nil, one + judged(1, "w0", "w1") + `
exit 1 0 -> collect 1
log 1 -> release 1
free 1 unreachable -> release 1 in 500ms
free 1 -> save; ended: exited with 0
`, 2, "", 0},
		{"others have given its verdicts before", 1, "a b", []*JobRecord{had(1, "a", "w0"), had(2, "b", "w0")}, `
begin -> follow 1; follow 2
say 1 run -> run
say 1 started w0 -> started
say 1 passed w0 -> w0 PASSED; stop 2
wait 2 context canceled -> collect 2
say 1 finding w0 -> w0 finding late-write
log 2 -> release 2
free 2 -> save; ended: cancelled: another place has finished its workloads
` + closing(1), 1, "", 0},
		{"a job that is needed no more while it is sent", 1, "a b", []*JobRecord{had(1, "a", "w0"), {ID: "fisub-r-2",
			Place: placeOf("b"), Workloads: []string{"w0"}}}, `
begin -> follow 1; clear 2
clear 2 -> save; submit 2 b w0
say 1 run -> run
say 1 passed w0 -> w0 PASSED; stop 2
accept 2 -> save; collect 2
log 2 -> release 2
free 2 -> save; ended: cancelled: another place has finished its workloads
` + closing(1), 1, "", 0},

		// Another process ended while it was submitting the job.
		{"half submitted", 1, "a", []*JobRecord{{ID: "fisub-r-1", Place: placeOf("a"), Workloads: []string{"w0"}}}, `
begin -> clear 1
clear 1 -> save; submit 1 a w0
accept 1 -> save; follow 1
`, 0, "nothing ran", 1},
		{"half submitted, out of reach, and another place", 2, "a b", []*JobRecord{had(1, "a", "w0"), {ID: "fisub-r-2",
			Place: placeOf("b"), Workloads: []string{"w1"}}}, `
begin -> follow 1; clear 2
say 1 run -> run
clear 2 unreachable ->
` + judged(1, "w0") + `
exit 1 0 -> collect 1
log 1 -> release 1
free 1 -> save; ended: exited with 0; save; submit 3 a w1
accept 3 -> save; follow 3
` + judged(3, "w1") + closing(3), 2, "", 1},
		{"half submitted, out of reach, and no other place", 1, "a", []*JobRecord{{ID: "fisub-r-1", Place: placeOf("a"),
			Workloads: []string{"w0"}}}, `
begin -> clear 1
clear 1 unreachable ->
`, 0, "asking: t: unreachable", 1},

		// This process ends.
		{"interrupted", 4, "a b", nil, `
begin -> save; submit 1 a w0 w2; save; submit 2 b w1 w3
accept 1 -> save; follow 1
pause -> stop 1; stop 2
refuse 2 context canceled ->
say 1 run -> run
wait 1 context canceled ->
`, 0, "interrupted", 2},
		{"interrupted while it submits", 1, "a", nil, `
begin -> save; submit 1 a w0
pause -> stop 1
accept 1 -> save
`, 0, "interrupted", 1},
		{"interrupted while a job ends", 2, "a", nil, one + judged(1, "w0", "w1") + `
exit 1 0 -> collect 1
pause ->
log 1 -> release 1
free 1 -> save; ended: exited with 0
`, 2, "", 0},
		{"the disk is full", 4, "a b", nil, two + `
break -> stop 1; stop 2
wait 1 disk full ->
wait 2 context canceled ->
`, 0, "disk full", 2},
		{"cancelled", 4, "a b", nil, two + `
pause -> stop 1; stop 2
wait 1 context canceled ->
wait 2 context canceled ->
cancel -> collect 1; collect 2
log 1 -> release 1
free 1 -> save; ended: stopped
log 2 -> release 2
free 2 unreachable ->
`, 0, "interrupted", 1},
		{"cancelled while another process submits", 1, "a", []*JobRecord{{ID: "fisub-r-1", Place: placeOf("a"),
			Workloads: []string{"w0"}}}, `
cancel -> release 1
free 1 -> save; ended: stopped
`, 0, "nothing ran", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newPlay(t, tc.workloads, tc.places, tc.jobs...)
			c.run(tc.script)
			got := c.s.runs.summary.Totals()
			if got.Passed != tc.passed || got.Missing != tc.workloads-tc.passed {
				t.Errorf("got %+v, want %d passed", got, tc.passed)
			}
			_, err := c.s.unfollowed()
			if err == nil {
				err = c.s.nothingRan()
			}
			if text := fmt.Sprint(err); text != tc.err && (err != nil || tc.err != "") && !strings.HasPrefix(text, tc.err+":") {
				t.Errorf("got error %q, want %q", text, tc.err)
			}
			if n := len(c.s.active()); n != tc.active {
				t.Errorf("%d jobs may still run, want %d", n, tc.active)
			}
			for _, j := range c.s.jobs {
				if j.Ended == nil && j.busy() && c.s.over() {
					t.Errorf("over, and job %s is %s", j.ID, j.phase)
				}
			}
		})
	}
}
