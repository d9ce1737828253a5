package dispatch

import (
	"encoding/json"
	"time"

	"fisub/internal/event"
	"fisub/runs"
)

// A Side is one of the runs that the job of a comparison produces.
type Side struct {
	merged *merger
	events *event.Stream
	seen   map[string]int64   // last line of each job that is in the run folder
	read   map[string]*reader // by job
}

// NewSide returns the Side that continues run number i of the plan's job; old is the content of its folder, or nil.
func NewSide(p *Plan, i int, old *runs.Run, events *event.Stream) *Side {
	s := &Side{events: events, read: map[string]*reader{}}
	s.merged = newMerger(p, p.Sides[i], events.Emit)
	s.merged.begun = time.Now()
	if old != nil {
		s.merged.restore(old)
		s.seen = old.Origins
	}
	return s
}

// Done ends the run if it has started. regular is set if its job has exited with status 0 or 3.
func (s *Side) Done(regular bool) error {
	for _, r := range s.read {
		if regular && r.summary.Done == nil {
			s.merged.contradict(r, "the job has exited, but no done event", true)
		}
	}
	if s.merged.release(); s.merged.first != "" {
		s.merged.done(time.Now())
	}
	return s.events.Err()
}

// A SideLine is a line of a comparison's job: an event of one of its runs.
type SideLine struct {
	Side  int             `json:"side"`
	Event json.RawMessage `json:"event"`
}

// Sides are the runs of a comparison, in the order of their letters.
type Sides []*Side

// Line processes a line of a comparison's job. It drops lines that are not a SideLine.
func (sides Sides) Line(j *JobRecord, text []byte) error {
	var l SideLine
	if err := json.Unmarshal(text, &l); err != nil || l.Side < 0 || l.Side >= len(sides) {
		return nil
	}
	s := sides[l.Side]
	r := s.read[j.ID]
	if r == nil {
		r = new(newReader(j, s.seen[j.ID]))
		s.read[j.ID] = r
	}
	s.merged.now = time.Now()
	if r.line++; !s.merged.event(r, l.Event) {
		r.junk++
	}
	return s.events.Err()
}
