package dispatch

import (
	"slices"

	"fisub/internal/event"
	"fisub/remote"
)

// The plan of a tool has one job. It writes lines for a person instead of events, and its exit status is the result.

func (s *state) isTool() bool { return s.plan.Tool != "" }

// read processes the next bytes of a job's stream.
func (s *state) read(j *job, text []byte) {
	if !s.isTool() {
		s.runs.read(&j.stream, text)
		return
	}
	j.stream.lines(text, func(line []byte) { s.do(hand{j, slices.Clone(line)}) })
}

// rejects reports whether the stream so far is a reason to end the job. Verdicts of a run are retracted instead.
func (s *state) rejects(j *job) bool { return s.isTool() && j.stream.against != "" }

// compared compares the job's end with its stream, and returns the end to record.
func (s *state) compared(j *job, exit remote.Exit) remote.Exit {
	if !s.isTool() {
		s.runs.exited(&j.stream, exit)
		return exit
	}
	if text := j.stream.cut.Missing(exit); j.stream.against == "" && text != "" {
		j.stream.against = text
		return forged(text)
	}
	return exit
}

// settle records the result of a tool's job.
func (s *state) settle(j *job, exit remote.Exit) {
	if exit.End != remote.Exited || exit.Code != 0 && exit.Code != 3 {
		return
	}
	s.runs.first, s.found = j.ID, s.found || exit.Code == 3
	for _, uuid := range j.Workloads {
		s.runs.settle(s.runs.workload(uuid), j.ID)
	}
}

// totals counts a failure if the tool has found something.
func (s *state) totals() event.Done {
	done := s.runs.summary.Totals()
	if s.found {
		done.Failed++
	}
	return done
}
