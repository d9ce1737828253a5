package follow

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/remote"
)

// A play is a job's life as text, with a clock of its own: "0s status=queued; 3s status=running read=all" sets what the
// requests return from those times on. The requests and their words are
//
//	status  none (at first), queued, starting, running, never, over, or over-END: the scheduler knows the END
//	read    absent (at first), some, all, one (a byte, then all), whole, follow: the stream is followed until the next
//	        time; up: the host answers, then is away; cut: the connection is lost, then absent
//	exit    none (at first), exited-CODE, or another END; signed-... has a signature
//	lost    lost (at first), refused, sure: no need to wait for more files
//	stop    done (at first)
//
// All can be unreachable, credentials, final, broken: an error of the agent.
type play struct {
	t     *testing.T
	world []string
	now   time.Duration
	is    map[string]string
	asked map[ask]int
}

var zero = time.Unix(1e9, 0)

// until plays what happens up to d, or with d < 0 up to the next event.
func (p *play) until(d time.Duration) {
	for len(p.world) > 0 {
		at, words, _ := strings.Cut(strings.TrimSpace(p.world[0]), " ")
		when, err := time.ParseDuration(at)
		if err != nil {
			p.t.Fatal(err)
		}
		if d >= 0 && when > d {
			break
		}
		p.world, p.now = p.world[1:], max(p.now, when)
		for word := range strings.FieldsSeq(words) {
			name, value, _ := strings.Cut(word, "=")
			p.is[name] = value
		}
		if d < 0 {
			return
		}
	}
	p.now = max(p.now, d)
}

func exitOf(word string) remote.Exit {
	e := remote.Exit{}
	if rest, ok := strings.CutPrefix(word, "signed-"); ok {
		word, e.MAC = rest, "x"
	}
	end, code, _ := strings.Cut(word, "-")
	e.End = remote.End(end)
	_, _ = fmt.Sscan(code, &e.Code)
	return e
}

// fact returns the fact of a request.
func (p *play) fact(s *state, a ask) fact {
	p.asked[a]++
	word := p.is[string(a)]
	switch word {
	case "cut":
		p.is["read"] = "absent"
		return failed{a, errors.New(word)}
	case "up":
		p.is["read"] = "unreachable"
		s.apply(remote.Stage{Phase: remote.Running}, zero.Add(p.now))
		return failed{a, errors.New("cut")}
	case "unreachable", "credentials":
		return failed{a, fmt.Errorf("asking: %w", &remote.Denied{Code: word, Provider: "t", Host: "h", Text: word})}
	case "final":
		return failed{a, fmt.Errorf("asking: %w", &FinalError{errors.New(word)})}
	case "broken":
		return failed{a, &AgentError{errors.New(word)}}
	}
	switch a {
	case status:
		end, known := strings.CutPrefix(word, "over")
		switch {
		case known:
			return Status{Over: true, End: remote.Exit{End: remote.End(strings.TrimPrefix(end, "-"))}}
		case word == "never":
			return Status{Stage: remote.Stage{Phase: remote.Queued}, Never: &remote.Exit{End: remote.Refused, Text: word}}
		case word == "none":
			return Status{}
		}
		return Status{Stage: remote.Stage{Phase: remote.Phase(word)}}
	case read:
		switch word {
		case "one":
			p.is["read"] = "all"
			s.apply(wrote{}, zero.Add(p.now))
			return All
		case "follow":
			s.apply(remote.Stage{Phase: remote.Running}, zero.Add(p.now))
			p.until(-1)
			return p.fact(s, a)
		case "some":
			p.is["read"] = "all"
		}
		return Part(slices.Index([]string{"absent", "some", "all", "whole"}, word))
	case exit:
		if word == "none" {
			return (*remote.Exit)(nil)
		}
		e := exitOf(word)
		return &e
	case lost:
		if word == "sure" {
			return lostFact{remote.Exit{End: remote.Lost}, true}
		}
		return lostFact{exit: exitOf(word)}
	}
	panic(a)
}

// run plays the world and returns the stages that are told, and the end with its time.
func (p *play) run(rules Rules, world string) string {
	p.world, p.asked = strings.Split(world, ";"), map[ask]int{}
	p.is = map[string]string{"status": "none", "read": "absent", "exit": "none", "lost": "lost", "stop": "done"}
	s := newState(rules)
	var told []string
	for range 10000 {
		p.until(p.now)
		a := s.next(zero.Add(p.now))
		tell := func() {
			if stage := s.stage(); stage.Phase != "" {
				text := strings.TrimSpace(string(stage.Phase) + " " + stage.Text)
				if len(told) == 0 || told[len(told)-1] != text {
					told = append(told, text)
				}
			}
		}
		tell()
		switch a := a.(type) {
		case pause:
			if a <= 0 {
				p.t.Fatalf("pause %v", a)
			}
			p.until(p.now + time.Duration(a))
		case end:
			what := fmt.Sprint(a.err)
			if a.err == nil {
				what = fmt.Sprintf("%s %d %s", a.exit.End, a.exit.Code, a.exit.Text)
			}
			return strings.Join(append(told, strings.TrimSpace(what)), ", ") + " at " + p.now.Round(time.Second).String()
		case refuse:
			if p.is["stop"] == "done" {
				told = append(told, "stopped", string(a.exit.End)+" "+a.exit.Text)
				return strings.Join(told, ", ") + " at " + p.now.Round(time.Second).String()
			}
			s.apply(p.fact(s, "stop"), zero.Add(p.now))
			tell()
		case ask:
			s.apply(p.fact(s, a), zero.Add(p.now))
			tell()
		}
	}
	p.t.Fatalf("no end: %q", told)
	return ""
}

// The rules of a queue whose files are read (Slurm), of a host (ssh), of pods, and of storage (AWS).
var (
	queue = Rules{Read: time.Second / 2, Query: time.Second, Slow: 15 * time.Second, Grace: 40 * time.Second,
		Away: Forever, Doubt: func(e remote.Exit) bool {
			return e.End == remote.Cancelled || e.End == remote.Exited && e.Code != 0
		}}
	signed  = with(queue, func(r *Rules) { r.Signed = true })
	ssh     = Rules{Tail: true, Read: time.Second / 4, Slow: 5 * time.Second, Away: time.Minute}
	pods    = with(ssh, func(r *Rules) { r.Doubt = func(e remote.Exit) bool { return e.End != remote.Exited } })
	storage = Rules{Read: time.Second, Query: 5 * time.Second, Slow: 5 * time.Second, Away: Forever}
)

func with(r Rules, change func(*Rules)) Rules {
	change(&r)
	return r
}

func TestPlays(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules Rules
		world string
		want  string
	}{
		// A job from the queue to its end.
		{"ends", queue, "0s status=queued; 10s status=running; 12s read=one; 20s exit=exited-0",
			"queued, running, exited 0 at 20s"},
		{"was over", queue, "0s read=all exit=exited-0", "running, exited 0 at 0s"},
		{"all of a long stream", queue, "0s read=some exit=exited-0", "running, exited 0 at 0s"},
		{"followed", ssh, "0s read=follow; 9s read=whole exit=exited-3", "running, exited 3 at 9s"},
		{"pod", pods, "0s status=starting; 3s status=none read=follow; 9s read=whole exit=exited-3",
			"starting, running, exited 3 at 9s"},
		{"pod is over", pods, "0s status=over-lost exit=exited-0", "exited 0 at 0s"},
		{"stored", storage, "0s status=queued; 10s status=starting; 12s read=all; 20s exit=exited-0",
			"queued, starting, running, exited 0 at 20s"},

		// Scheduler and agent disagree.
		{"signalled by the scheduler", queue, "0s status=running read=all; 5s exit=exited-143; 7s status=over-cancelled",
			"running, cancelled 0 at 7s"},
		{"its own status", queue, "0s status=running read=all; 5s exit=exited-3; 7s status=over", "running, exited 3 at 7s"},
		{"ended before it was cancelled", queue, "0s exit=exited-0 status=over-cancelled", "exited 0 at 0s"},
		{"over the agent's limit", queue, "0s exit=limit status=over-limit", "limit 0 at 0s"},
		{"stopped by the agent's owner", queue, "0s exit=cancelled status=over", "cancelled 0 at 0s"},
		{"no word of the scheduler", queue, "0s status=running read=all; 5s exit=cancelled", "running, cancelled 0 at 45s"},
		{"no answer of the scheduler", queue, "0s status=unreachable read=all exit=cancelled",
			"running, cancelled 0 at 45s"},
		{"the scheduler knows best", queue, "0s read=all status=running; 3s status=over-lost; 5s exit=exited-137",
			"running, lost 0 at 5s"},
		{"a pod that was restarted", pods, "0s read=follow; 3s read=whole exit=cancelled status=over-lost",
			"running, lost 0 at 3s"},
		{"a folder that is gone", pods, "0s read=follow; 3s read=whole lost=cancelled", "running, cancelled 0 at 3s"},
		{"stopped in storage", storage, "0s status=running read=all; 3s exit=cancelled status=over-lost",
			"running, cancelled 0 at 3s"},

		// Files appear late, or never.
		{"late files", queue, "0s status=over; 7s read=all; 8s exit=exited-3", "running, exited 3 at 8s"},
		{"no files", queue, "0s status=over lost=refused", "refused 0 at 40s"},
		{"no folder", queue, "0s status=over lost=sure", "lost 0 at 0s"},
		{"no folder, cancelled", queue, "0s status=over-cancelled lost=sure", "cancelled 0 at 0s"},
		{"no exit", queue, "0s status=running read=all; 3s status=over-lost", "running, lost 0 at 45s"},
		{"no exit in storage", storage, "0s status=queued; 7s status=over-refused", "queued, refused 0 at 10s"},
		{"all written just before", storage, "0s status=running read=all; 4s exit=exited-0 read=one status=over-lost",
			"running, exited 0 at 4s"},

		// Others can write exit.json.
		{"forged", signed, "0s read=all status=running exit=refused; 20s exit=signed-exited-1 status=over",
			"running, exited 1 at 20s"},
		{"forged, and killed", signed, "0s read=all status=running exit=exited-0; 5s status=over-lost",
			"running, lost 0 at 45s"},
		{"forged beside the agent", ssh, "0s read=follow exit=refused; 5s read=whole exit=signed-exited-0",
			"running, exited 0 at 5s"},

		// Hosts that are away.
		{"cut", ssh, "0s read=follow; 5s read=up; 10s read=follow; 20s read=whole exit=exited-0",
			"running, away cut, away unreachable, running, exited 0 at 20s"},
		{"given up", ssh, "0s read=unreachable", "away unreachable, unreachable for 1m0s: asking: t: h: unreachable at 1m0s"},
		{"away twice", pods, "0s status=unreachable; 50s status=starting; 70s status=unreachable; 100s status=none read=follow;" +
			"110s read=whole exit=exited-0", "away unreachable, starting, away unreachable, running, exited 0 at 1m50s"},
		{"given up at once", with(ssh, func(r *Rules) { r.Away = 0 }), "0s read=unreachable",
			"unreachable for 0s: asking: t: h: unreachable at 0s"},
		{"never given up", queue, "0s exit=credentials; 1000s exit=exited-0 read=all",
			"away credentials, running, exited 0 at 16m46s"},
		{"cannot last", queue, "0s exit=final", "asking: final at 0s"},
		{"a scheduler that cannot last", storage, "0s read=all; 7s status=final", "running, asking: final at 10s"},
		{"the scheduler alone", queue, "0s status=unreachable; 5s status=queued; 9s exit=refused",
			"away unreachable, queued, refused 0 at 10s"},
		{"back in the queue", queue, "0s status=queued; 2s exit=unreachable; 60s exit=none; 100s exit=refused",
			"queued, away unreachable, queued, refused 0 at 1m48s"},
		{"a pod that was evicted", pods, "0s read=follow; 3s read=cut status=over-lost", "running, lost 0 at 3s"},
		{"a pod behind a lost login", pods, "0s read=follow; 3s read=unreachable status=final",
			"running, asking: final at 3s"},
		{"a broken agent", ssh, "0s read=broken", "away broken, lost 0 following the job: broken at 8s"},
		{"a broken agent that recovers", ssh, "0s read=broken; 3s read=follow; 5s read=whole exit=exited-0",
			"away broken, running, exited 0 at 5s"},
		{"was released", ssh, "0s read=whole lost=cancelled", "cancelled 0 at 0s"},
		{"exit is away", ssh, "0s read=whole exit=unreachable; 400ms exit=exited-0",
			"away unreachable, exited 0 at 1s"},

		// Jobs that cannot start.
		{"never starts", queue, "0s status=never", "queued, stopped, refused never at 1s"},
		{"never starts, but cannot be stopped", queue, "0s status=never stop=unreachable; 9s stop=done",
			"queued, away unreachable, stopped, refused never at 17s"},
		{"starts after all", queue, "0s status=never; 1s status=running read=all exit=exited-0",
			"queued, running, exited 0 at 1s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &play{t: t}
			if got := p.run(c.rules, c.world); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// The scheduler is asked rarely while nothing changes, and files are read often only if the job runs.
func TestAskedRarely(t *testing.T) {
	p := &play{t: t}
	p.run(queue, "0s status=queued; 1000s exit=refused")
	if n := p.asked[status]; n < 1000/15 || n > 90 || p.asked[read] > 2*n {
		t.Errorf("in the queue: got %v", p.asked)
	}
	p = &play{t: t}
	p.run(queue, "0s status=running read=all; 1000s exit=exited-0")
	if n := p.asked[status]; n > 90 || p.asked[read] < 1900 {
		t.Errorf("running: got %v", p.asked)
	}
}
