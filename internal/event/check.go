package event

import (
	"bytes"
	"fmt"

	"fisub/internal/trace"
)

// A Checker follows a stream and tells what of it cannot be what the judge has told: numbers out of order, a second
// verdict for a workload, totals or an exit status that are not those of the verdicts. Numbers, totals and status
// count where the first event has the number 1: then it is fisub's own stream, which numbers all.
//
// The zero one is for a run folder. Several processes may have told it, each from 1 on, and one that was killed may
// have left a verdict that is told again. In the folder of a remote run, which is made of jobs, no totals are those of
// one.
type Checker struct {
	Job bool // one process has told it

	begun, numbered bool
	remote          bool
	seq             int64
	verdicts        map[string][]byte // the trace of each workload
	passed, failed  int               // since the last process began
}

// Next takes the next event, and tells what about it cannot be; "" where nothing.
func (c *Checker) Next(e *Event) string {
	if !c.begun {
		c.begun, c.numbered, c.verdicts = true, e.Seq == 1, map[string][]byte{}
	}
	want := c.seq + 1
	c.seq = e.Seq
	c.remote = c.remote || !c.Job && e.Job != ""
	if e.Run != nil && !c.Job {
		c.passed, c.failed = 0, 0
	}
	if e.Evaluated != nil {
		before, twice := c.verdicts[e.Workload]
		if twice && (c.Job && c.numbered || !c.Job && !bytes.Equal(before, e.Evaluated.Trace)) {
			return "two verdicts for workload " + e.Workload
		}
		c.verdicts[e.Workload] = e.Evaluated.Trace
		if e.Evaluated.Status == string(trace.Passed) {
			c.passed++
		} else {
			c.failed++
		}
	}
	switch {
	case !c.numbered:
	case e.Seq != want && (c.Job || e.Seq != 1):
		return fmt.Sprintf("event %d follows event %d", e.Seq, want-1)
	case e.Done != nil && !c.remote && (e.Done.Passed != c.passed || e.Done.Failed != c.failed):
		return fmt.Sprintf("%d passed and %d failed, and at its end it says %d and %d", c.passed, c.failed, e.Done.Passed,
			e.Done.Failed)
	}
	return ""
}

// Skip takes an event that cannot be read.
func (c *Checker) Skip() { c.seq++ }

// Exit takes the exit status with which a job's program ended by itself, and does as Next. Statuses other than 0 and 3
// say nothing of verdicts.
func (c *Checker) Exit(status int) string {
	if !c.numbered || status != 0 && status != 3 || (c.failed > 0) == (status == 3) {
		return ""
	}
	return fmt.Sprintf("%d of %d workloads failed, and its exit status is %d", c.failed, c.passed+c.failed, status)
}
