package dispatch

import (
	"slices"
	"time"

	"fisub/internal/event"
	"fisub/remote"
)

// A content is the meaning of the streams of a plan's jobs.
type content interface {
	tries() int               // maximum number of jobs per workload
	room(workloads int) int64 // usual limit of a job's stream, in bytes
	partial() bool            // whether an incomplete stream has results

	read(j *job, text []byte)                 // processes the next bytes of the job's stream
	rejects(j *job) bool                      // reports whether the stream so far is a reason to end the job
	end(j *job, exit remote.Exit) remote.Exit // compares the job's end with its stream; returns the end to record
	settle(j *job, exit remote.Exit)          // records the result of an ended job

	totals() event.Done
	done(now time.Time) // ends the run's stream
}

func newContent(s *state) content {
	if s.plan.Tool != "" {
		return &toolOutput{state: s}
	}
	return verdicts{s.runs}
}

// verdicts is the content of an ordinary run: events, which become the run's.
type verdicts struct{ merged *merger }

func (verdicts) tries() int                 { return 3 } // a workload may be the reason for lost hosts
func (verdicts) room(workloads int) int64   { return room(workloads) }
func (verdicts) partial() bool              { return true }
func (v verdicts) read(j *job, text []byte) { v.merged.read(&j.stream, text) }
func (verdicts) rejects(*job) bool          { return false } // its verdicts are retracted instead
func (verdicts) settle(*job, remote.Exit)   {}               // read has recorded the verdicts
func (v verdicts) totals() event.Done       { return v.merged.summary.Totals() }
func (v verdicts) done(now time.Time)       { v.merged.done(now) }

func (v verdicts) end(j *job, exit remote.Exit) remote.Exit {
	v.merged.exited(&j.stream, exit)
	return exit
}

// toolOutput is the content of a tool's only job: lines for a person. Its exit status is the result.
type toolOutput struct {
	*state
	found bool // the tool has found something
}

func (*toolOutput) tries() int          { return 1 }
func (*toolOutput) room(int) int64      { return UsualStream }
func (*toolOutput) partial() bool       { return false }
func (*toolOutput) rejects(j *job) bool { return j.stream.against != "" }
func (*toolOutput) done(time.Time)      {}

func (o *toolOutput) read(j *job, text []byte) {
	j.stream.lines(text, func(line []byte) { o.do(hand{j, slices.Clone(line)}) })
}

func (*toolOutput) end(j *job, exit remote.Exit) remote.Exit {
	if j.stream.against == "" && j.stream.cut.Missing(exit) != "" {
		j.stream.against = j.stream.cut.Missing(exit)
		return forged(j.stream.against)
	}
	return exit
}

func (o *toolOutput) settle(j *job, exit remote.Exit) {
	if exit.End != remote.Exited || exit.Code != 0 && exit.Code != 3 {
		return
	}
	o.runs.first, o.found = j.ID, o.found || exit.Code == 3
	for _, uuid := range j.Workloads {
		o.runs.settle(o.runs.workload(uuid), j.ID)
	}
}

// totals counts a failure if the tool has found something.
func (o *toolOutput) totals() event.Done {
	done := o.runs.summary.Totals()
	if o.found {
		done.Failed++
	}
	return done
}
