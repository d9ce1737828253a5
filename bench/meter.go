package bench

import (
	"context"
	"slices"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/sandbox"
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
	workers []member
}

// A member is a worker of the run.
type member struct {
	*worker.Client
	submitted bool // not one of fisub's own solutions
	busy      bool // the GPU did not become idle before a measurement of it
}

// join makes client one of the run's workers. While a worker is alive, the meter does not report it as another
// process on the GPU. s may be nil.
func (s *stamper) join(client *worker.Client, submitted bool) {
	if s != nil {
		s.workers = append(slices.DeleteFunc(s.workers, func(m member) bool { return !m.Alive() }),
			member{Client: client, submitted: submitted})
	}
}

// own returns the process IDs of the live workers.
func (s *stamper) own() (pids []int) {
	for _, m := range s.workers {
		if m.Alive() {
			pids = append(pids, m.PID())
		}
	}
	return pids
}

// settle limits the wait for an idle GPU before a measurement. settled is the limit if an earlier wait of the same
// solution was in vain.
const settle, settled = 500 * time.Millisecond, 20 * time.Millisecond

// pause stops all processes of the other submitted solutions, which could slow this one, until resume is called.
// paused reports whether there are any.
func (s *stamper) pause(client *worker.Client) (paused bool, resume func()) {
	var all []func()
	for _, m := range s.workers {
		if m.submitted && m.Client != client && m.Alive() {
			all = append(all, sandbox.Pause(m.PID()))
		}
	}
	return len(all) > 0, func() {
		for _, f := range all {
			f()
		}
	}
}

// gpuFiles are the files that a process opens to compute on a GPU, on Linux and in WSL.
var gpuFiles = []string{"/dev/nvidia-uvm", "/dev/dxg"}

// measure measures plan with client and sets the stamp and disturbances of the samples, and the other processes of the
// solution that use a GPU. uuid is the GPU's. s may be nil.
func (s *stamper) measure(ctx context.Context, client *worker.Client, uuid string,
	plan worker.JudgedPlan) (*device.Samples, []worker.Judged, error) {
	if s == nil {
		return client.Measure(ctx, plan)
	}
	paused, resume := s.pause(client)
	defer resume()
	self := slices.IndexFunc(s.workers, func(m member) bool { return m.Client == client })
	if paused {
		if plan.Idle = settle; self >= 0 && s.workers[self].busy {
			plan.Idle = settled
		}
	}
	if s.open != nil && s.meter == nil && s.err == nil {
		s.meter, s.err = s.open(uuid)
	}
	var users []string
	var end func() (*device.Stamp, []string)
	var stamp *device.Stamp
	var disturbed []string
	if s.err != nil {
		stamp = &device.Stamp{Note: s.err.Error()}
	}
	plan.Timing = func(on bool) {
		if end != nil {
			stamp, disturbed = end()
			end = nil
		}
		switch {
		case !on:
			users = sandbox.Openers(client.PID(), gpuFiles...)
		case s.meter != nil && s.err == nil:
			end = s.meter.Begin(s.own())
		}
	}
	samples, judged, err := client.Measure(ctx, plan)
	if end != nil {
		end()
	}
	if err == nil {
		samples.Processes = users
		if s.open != nil {
			if paused && slices.Contains(samples.Disturbed, device.Busy) {
				if self >= 0 {
					s.workers[self].busy = true
				}
				if o := samples.Outside; o == nil || !o.Uncalled { // else it disturbs itself
					disturbed = append(disturbed, device.Busy)
				}
			}
			samples.Stamp, samples.Disturbed = stamp, disturbed
		}
	}
	return samples, judged, err
}

func (s *stamper) close() {
	if s.meter != nil && s.err == nil {
		s.meter.Close()
	}
}
