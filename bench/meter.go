package bench

import (
	"context"
	"slices"

	"fisub/bench/worker"
	"fisub/device"
)

// A Meter reads the state of a GPU while something is timed on it.
type Meter interface {
	// Begin starts to read. own are the processes that hold memory on the GPU for the run. end ends it and gives the
	// stamp, and sentences that say why what was timed is in doubt; it is called once, and before the next Begin.
	Begin(own []int) (end func() (*device.Stamp, []string))
	Close()
}

// A stamper reads the GPU of a run while one of the run's workers times on it, and stamps the timings.
type stamper struct {
	open    func(uuid string) (Meter, error) // nil for timings without a stamp
	meter   Meter                            // nil before the first timing, and where err says why there is none
	err     error
	workers []*worker.Client // of the run
}

// join makes client one of the run's workers, which are not told as other processes on the GPU while they live. s may
// be nil.
func (s *stamper) join(client *worker.Client) {
	if s != nil {
		s.workers = append(slices.DeleteFunc(s.workers, func(c *worker.Client) bool { return !c.Alive() }), client)
	}
}

// own gives the processes of the workers that live.
func (s *stamper) own() (pids []int) {
	for _, c := range s.workers {
		if c.Alive() {
			pids = append(pids, c.PID())
		}
	}
	return pids
}

// measure has client measure plan, and sets stamp and disturbances of the samples. uuid is the GPU's. s may be nil.
func (s *stamper) measure(ctx context.Context, client *worker.Client, uuid string,
	plan worker.JudgedPlan) (*device.Samples, []worker.Judged, error) {
	if s == nil || s.open == nil {
		return client.Measure(ctx, plan)
	}
	if s.meter == nil && s.err == nil {
		s.meter, s.err = s.open(uuid)
	}
	var end func() (*device.Stamp, []string)
	var stamp *device.Stamp
	var disturbed []string
	if s.err != nil {
		stamp = &device.Stamp{Note: s.err.Error()}
	} else {
		plan.Timing = func(on bool) {
			if end != nil {
				stamp, disturbed = end()
				end = nil
			}
			if on {
				end = s.meter.Begin(s.own())
			}
		}
	}
	samples, judged, err := client.Measure(ctx, plan)
	if end != nil {
		end()
	}
	if err == nil {
		samples.Stamp, samples.Disturbed = stamp, disturbed
	}
	return samples, judged, err
}

func (s *stamper) close() {
	if s.meter != nil && s.err == nil {
		s.meter.Close()
	}
}
