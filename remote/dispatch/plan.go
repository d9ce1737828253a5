// Package dispatch splits a run into jobs, takes them to their places, and makes one stream of events of theirs again.
// It writes down what it has begun before it waits, so that another process can go on where one was killed. It is not
// for knowing the providers: it is given them.
package dispatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/remote"
)

// PlanName is the file of a run folder that holds its Plan.
const PlanName = "remote.json"

// streams is the folder of the jobs' own streams, in a run folder.
const streams = "remote"

// A Plan is what a remote run needs beside its events, and all that it has begun. It holds no secret.
type Plan struct {
	Version int           `json:"version"` // 1
	Run     event.Run     `json:"run"`     // the run as the client describes it: Device and Host come from the first host
	Places  []Place       `json:"places"`
	GPU     string        `json:"gpu,omitempty"`
	Limit   time.Duration `json:"limit"` // of each job
	Busy    bool          `json:"busy,omitempty"`
	Race    bool          `json:"race,omitempty"` // each place gets a job for all workloads; the first that begins stays
	Winner  string        `json:"winner,omitempty"`
	Strict  bool          `json:"strict,omitempty"`
	MaxCost float64       `json:"max_cost_usd,omitempty"` // 0: no cap

	Bundle json.RawMessage `json:"bundle,omitempty"` // what the caller needs to make the jobs' files again
	Jobs   []*Job          `json:"jobs"`
	Done   bool            `json:"done,omitempty"` // nothing is left to do, and nothing is left on any host
}

// A Place is one of a provider.
type Place struct {
	Table string  `json:"table"`           // name of the provider's table
	Price float64 `json:"price,omitempty"` // USD for one GPU and hour; 0 where it is not known
	remote.Place
}

func (p Place) String() string { return p.Table + ": " + p.Place.String() }

// A Job is one that was begun, or is about to be.
type Job struct {
	ID        string         `json:"id"`
	Place     Place          `json:"place"`
	Workloads []string       `json:"workloads"`
	Handle    *remote.Handle `json:"handle,omitempty"` // nil before it was accepted
	Began     *time.Time     `json:"began,omitempty"`  // first word from the host
	Ended     *time.Time     `json:"ended,omitempty"`  // nil while it may still run
	Exit      *remote.Exit   `json:"exit,omitempty"`
	Error     string         `json:"error,omitempty"` // why it could not be taken to its place
}

// Cost is what the job costs so far, in USD; 0 where there is no price.
func (j *Job) Cost() float64 {
	if j.Began == nil {
		return 0
	}
	end := time.Now()
	if j.Ended != nil {
		end = *j.Ended
	}
	return j.Place.Price * end.Sub(*j.Began).Hours()
}

// Load reads the plan in a run folder; the error wraps fs.ErrNotExist where the run is no remote one.
func Load(folder string) (*Plan, error) {
	name := filepath.Join(folder, PlanName)
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if p.Version != 1 {
		return nil, fmt.Errorf("%s: version %d is not known to this fisub", name, p.Version)
	}
	return p, nil
}

// IsRemote tells whether a run folder is that of a remote run.
func IsRemote(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, PlanName))
	return !errors.Is(err, fs.ErrNotExist)
}

// Save writes the plan.
func (p *Plan) Save(folder string) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(folder, streams), 0o755); err != nil {
		return err
	}
	return cache.WriteFile(filepath.Join(folder, PlanName), append(data, '\n'), 0o600)
}

// Active are the jobs that may still run somewhere.
func (p *Plan) Active() (jobs []*Job) {
	for _, j := range p.Jobs {
		if j.Ended == nil {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// Cost is what the run costs so far, in USD; known tells whether each place has a price.
func (p *Plan) Cost() (usd float64, known bool) {
	known = true
	for _, j := range p.Jobs {
		usd += j.Cost()
		known = known && j.Place.Price > 0
	}
	return usd, known
}

// Used is how many of the places get a job at first.
func (p *Plan) Used() int {
	if p.Race {
		return len(p.Places)
	}
	return min(len(p.Places), len(p.Run.Workloads))
}

// MostCost is what the jobs that are begun at first cost at most, in USD, when each runs to its limit; known tells
// whether each place has a price.
func (p *Plan) MostCost() (usd float64, known bool) {
	known = true
	for _, place := range p.Places[:p.Used()] {
		usd += place.Price * p.Limit.Hours()
		known = known && place.Price > 0
	}
	return usd, known
}

// affords tells whether another job at place keeps the run below MaxCost, also when all jobs run to their limits.
func (p *Plan) affords(place Place) bool {
	if p.MaxCost == 0 {
		return true
	}
	usd := place.Price * p.Limit.Hours()
	for _, j := range p.Jobs {
		if j.Ended == nil {
			usd += j.Place.Price * p.Limit.Hours()
		} else {
			usd += j.Cost()
		}
	}
	return usd <= p.MaxCost
}
