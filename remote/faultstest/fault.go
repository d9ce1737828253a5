//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// faults are the possible faults, in the order of the summary.
var faults = []string{"client killed", "link cut", "agent killed", "host rebooted", "disk filled", "key changed",
	"sessions killed"}

// A scenario contains the random choices for a run.
type scenario struct {
	Seed  uint64
	Fault string
	Hosts []int // affected hosts; none if the client is affected

	// Time of the fault: Later after the program's start, after the first stream on one of the hosts, or after a number
	// of verdicts on all hosts.
	Stage    string // "sending", "begun", "judged"
	Verdicts int
	Later    time.Duration

	For    time.Duration // duration of the fault
	Times  int           // number of killed sessions, or of clients killed later, each after its Again
	Again  [4]time.Duration
	Side   string // end at which a link is cut: "client", whose kernel notices it, or "host"
	Deep   bool   // kill all processes of the client; change the user's key instead of the host's; keep the disk full
	Cancel bool   // the run is cancelled instead of attached

	Away      time.Duration // setting of the table
	Cold      bool          // the hosts have an empty store and a slow link
	Mixed     bool          // some workloads fail
	Workloads int
}

func draw(seed uint64, only string) scenario {
	r := rand.New(rand.NewPCG(seed, 0x66697375625f6e65))
	s := scenario{Seed: seed, Fault: faults[r.IntN(len(faults))]}
	if only != "" {
		s.Fault = only
	}
	s.Workloads = 6 + r.IntN(7)
	s.Mixed = r.IntN(3) == 0
	s.Cold = r.IntN(4) == 0
	s.Away = []time.Duration{15 * time.Second, time.Minute, 5 * time.Minute}[r.IntN(3)]
	s.Stage = []string{"sending", "begun", "judged", "judged", "judged"}[r.IntN(5)]
	s.Verdicts = 1 + r.IntN(s.Workloads)
	s.Later = time.Duration(r.IntN(400)) * time.Millisecond
	if s.Stage == "sending" {
		s.Later *= 8
	}
	s.Hosts = []int{r.IntN(hosts)}
	all, lasts, deep := r.IntN(3) == 0, r.Float64(), r.IntN(2) == 0
	every := []int{0, 1, 2}
	few, times := r.IntN(4) == 0, 1+r.IntN(5)
	for i := range s.Again {
		s.Again[i] = time.Duration(r.IntN(3000)) * time.Millisecond
	}
	seconds := func(least, most float64) time.Duration {
		return time.Duration((least + lasts*(most-least)) * float64(time.Second)).Round(100 * time.Millisecond)
	}
	switch s.Fault {
	case "client killed":
		s.Hosts, s.Deep, s.Cancel, s.Times = nil, deep, all, times/2
	case "link cut":
		s.For, s.Side = seconds(1, 120), []string{"client", "host"}[r.IntN(2)]
		if all {
			s.Hosts = every
		}
	case "agent killed":
		if s.Stage == "sending" {
			s.Stage = "begun"
		}
		if few {
			s.Hosts = every
		}
	case "host rebooted":
		s.For = seconds(0, 20)
		if few {
			s.Hosts = every
		}
	case "disk filled":
		s.For, s.Deep = seconds(2, 60), deep
		if few {
			s.Hosts = every
		}
	case "key changed":
		s.For, s.Deep = seconds(2, 60), deep
	case "sessions killed":
		if s.Times = times; all {
			s.Hosts = every
		}
	}
	return s
}

// what describes the fault and its time.
func (s scenario) what() string {
	var b strings.Builder
	b.WriteString(s.Fault)
	switch {
	case s.Fault == "client killed":
		if s.Deep {
			b.WriteString(" with its ssh")
		}
		if s.Times > 0 && !s.Cancel {
			fmt.Fprintf(&b, " and %d times in attach", s.Times)
		}
	case s.Fault == "link cut":
		fmt.Fprintf(&b, " at the %s's end", s.Side)
	case s.Fault == "disk filled" && s.Deep:
		b.WriteString(" again and again")
	case s.Fault == "key changed" && s.Deep:
		b.WriteString(" (the user's, which is refused)")
	case s.Fault == "key changed":
		b.WriteString(" (the host's)")
	case s.Fault == "sessions killed":
		fmt.Fprintf(&b, " %d times", s.Times)
	}
	for _, i := range s.Hosts {
		fmt.Fprintf(&b, " h%d", i+1)
	}
	if s.For > 0 {
		fmt.Fprintf(&b, " for %v", s.For)
	}
	switch s.Stage {
	case "sending":
		fmt.Fprintf(&b, ", %v after the start", s.Later)
	case "begun":
		fmt.Fprintf(&b, ", %v after the first stream", s.Later)
	case "judged":
		fmt.Fprintf(&b, ", %v after verdict %d", s.Later, s.Verdicts)
	}
	fmt.Fprintf(&b, " of %d; away %v", s.Workloads, s.Away)
	if s.Cold {
		b.WriteString(", empty store")
	}
	if s.Mixed {
		b.WriteString(", some fail")
	}
	if s.Cancel {
		b.WriteString(", then cancelled")
	}
	return b.String()
}

// moment waits for the time of the fault. It returns false if the client ends before.
func (w *world) moment(ctx context.Context, s scenario, c *client, seen *streams) bool {
	var come func() bool
	switch s.Stage {
	case "sending":
		come = func() bool { return true }
	case "begun":
		come = func() bool { return seen.begun(s.Hosts) }
	case "judged":
		come = func() bool { return seen.count() >= s.Verdicts }
	}
	await(ctx, runBound, func() bool { return ended(c) || come() })
	sleep(ctx, s.Later, func() bool { return ended(c) })
	return !ended(c)
}

// do causes the fault and returns when it is over, and repaired if that takes a person. hit reports whether anything
// was affected.
func (w *world) do(ctx context.Context, s scenario, c *client) (hit bool, err error) {
	w.say("%s", s.what())
	var faults []error
	each := func(do func(i int) error) {
		for _, i := range s.Hosts {
			faults = append(faults, do(i))
		}
	}
	hit = true
	switch s.Fault {
	case "client killed":
		c.kill()
		if s.Deep {
			w.client.kill(func(process) bool { return true })
		}
	case "link cut":
		each(func(i int) error { return w.link(i, s.Side == "client", "down") })
		sleep(ctx, s.For, nil)
		each(func(i int) error { return w.link(i, s.Side == "client", "up") })
		each(w.reach)
	case "agent killed":
		// Agents that have not started yet or have just ended do not count; wait for others.
		n := 0
		await(ctx, runBound, func() bool {
			each(func(i int) error { n += w.hosts[i].kill(isAgent); return nil })
			return n > 0 || ended(c)
		})
		hit = n > 0
	case "host rebooted":
		each(func(i int) error { w.hosts[i].stop(); return nil })
		sleep(ctx, s.For, nil)
		each(func(i int) error { return w.boot(i, s.Cold) })
	case "disk filled":
		each(func(i int) error { return w.fill(i, true) })
		sleep(ctx, s.For, func() bool {
			if s.Deep {
				each(func(i int) error { return w.fill(i, true) })
			}
			return ended(c)
		})
		each(func(i int) error { return w.fill(i, false) })
	case "key changed":
		each(func(i int) error {
			if s.Deep {
				err := w.authorize(i, false)
				w.hosts[i].kill(isSession)
				return err
			}
			err := w.newKey(i)
			// While the old sshd has the port, the new one would exit.
			if !await(ctx, time.Minute, func() bool { return w.hosts[i].kill(isSSHD) == 0 }) {
				err = errors.Join(err, fmt.Errorf("the sshd of %s does not end", w.hosts[i].Name))
			}
			return errors.Join(err, w.listen(i))
		})
		sleep(ctx, s.For, func() bool { return ended(c) })
		each(func(i int) error { return w.authorize(i, true) })
		faults = append(faults, w.trust())
	case "sessions killed":
		n := 0
		for range s.Times {
			await(ctx, runBound, func() bool {
				killed := 0
				each(func(i int) error { killed += w.hosts[i].kill(isSession); return nil })
				n += killed
				return killed > 0 || ended(c)
			})
		}
		hit = n > 0
	}
	w.say("it is over")
	return hit, errors.Join(faults...)
}

func ended(c *client) bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// sleep waits for d, or until done, which may be nil, returns true.
func sleep(ctx context.Context, d time.Duration, done func() bool) {
	await(ctx, d, func() bool { return ctx.Err() != nil || done != nil && done() })
}
