package bench

import (
	"context"
	"slices"

	"fisub/bench/worker"
	"fisub/device"
)

// A Meter reads the state of a GPU during a measurement.
type Meter interface {
	// Begin starts reading. own lists the run's processes that hold memory on the GPU. end stops reading and returns
	// the stamp and sentences about disturbances of the measurement. It must be called once, before the next Begin.
	Begin(own []int) (end func() (*device.Stamp, []string))
	Close()
}

// A stamper reads the run's GPU while one of the run's workers times on it, and stamps the timings.
type stamper struct {
	open    func(uuid string) (Meter, error) // nil for timings without a stamp
	meter   Meter                            // nil before the first timing, and if err is set
	err     error
	workers []*worker.Client // of the run
}

// join makes client one of the run's workers. While a worker is alive, the meter does not report it as another
// process on the GPU. s may be nil.
func (s *stamper) join(client *worker.Client) {
	if s != nil {
		s.workers = append(slices.DeleteFunc(s.workers, func(c *worker.Client) bool { return !c.Alive() }), client)
	}
}

// own returns the process IDs of the live workers.
func (s *stamper) own() (pids []int) {
	for _, c := range s.workers {
		if c.Alive() {
			pids = append(pids, c.PID())
		}
	}
	return pids
}

// measure measures plan with client and sets the stamp and disturbances of the samples. uuid is the GPU's. s may be
// nil.
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
