package bench

import (
	"context"
	"slices"

	"fisub/bench/worker"
	"fisub/device"
)

// A Meter reads the state of a GPU while something is timed on it.
type Meter interface {
	// Begin starts to read. own are the processes that hold memory on the GPU for the run. end ends it and gives the stamp, and
	// sentences that say why what was timed is in doubt; it is called once, and before the next Begin.
	Begin(own []int) (end func() (*device.Stamp, []string))
	Close()
}

// A gauge reads the GPU of a run while one of the run's workers times on it.
type gauge struct {
	open    func(uuid string) (Meter, error) // nil for timings without a stamp
	meter   Meter                            // nil before the first timing, and where err says why there is none
	err     error
	workers []*worker.Client // of the run
}

// join makes client one of the run's workers, which are not told as other processes on the GPU while they live. g may be nil.
func (g *gauge) join(client *worker.Client) {
	if g != nil {
		g.workers = append(slices.DeleteFunc(g.workers, func(c *worker.Client) bool { return !c.Alive() }), client)
	}
}

// own gives the processes of the workers that live.
func (g *gauge) own() (pids []int) {
	for _, c := range g.workers {
		if c.Alive() {
			pids = append(pids, c.PID())
		}
	}
	return pids
}

// measure has client measure plan, and sets stamp and disturbances of the samples. uuid is the GPU's. g may be nil.
func (g *gauge) measure(ctx context.Context, client *worker.Client, uuid string, plan device.Plan) (*device.Samples, error) {
	if g == nil || g.open == nil {
		return client.Measure(ctx, plan)
	}
	if g.meter == nil && g.err == nil {
		g.meter, g.err = g.open(uuid)
	}
	var end func() (*device.Stamp, []string)
	var stamp *device.Stamp
	var disturbed []string
	if g.err != nil {
		stamp = &device.Stamp{Note: g.err.Error()}
	} else {
		plan.Timing = func(on bool) {
			if end != nil {
				stamp, disturbed = end()
				end = nil
			}
			if on {
				end = g.meter.Begin(g.own())
			}
		}
	}
	samples, err := client.Measure(ctx, plan)
	if end != nil {
		end()
	}
	if err == nil {
		samples.Stamp, samples.Disturbed = stamp, disturbed
	}
	return samples, err
}

func (g *gauge) close() {
	if g.meter != nil && g.err == nil {
		g.meter.Close()
	}
}
