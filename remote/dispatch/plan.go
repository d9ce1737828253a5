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
	"slices"
	"time"

	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/remote"
)

// PlanName is the file of a run folder that holds its Plan.
const PlanName = "remote.json"

// streams is the folder of the jobs' own streams, in a run folder.
const streams = "remote"

// A Plan is what a remote run needs beside its events, and all that it has begun. It holds no secret but the keys of
// its jobs.
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

	Bundle json.RawMessage `json:"bundle,omitempty"` // what the caller needs to make the jobs' files again; see Packed
	Jobs   []*Job          `json:"jobs"`
	Before int             `json:"before,omitempty"` // of Jobs: begun before the run was resumed, and no attempts any more
	Done   bool            `json:"done,omitempty"`   // nothing is left to do, and nothing is left on any host
	Client string          `json:"client,omitempty"` // the process that follows the run, or did last
}

// A Place is one of a provider.
type Place struct {
	Table string      `json:"table"`           // name of the provider's table
	Price float64     `json:"price,omitempty"` // USD for one GPU and hour; 0 where it is not known
	Bill  remote.Bill `json:"bill,omitempty"`  // of one job
	remote.Place
}

func (p Place) String() string { return p.Table + ": " + p.Place.String() }

// bill is that of one job, also in a plan that has the price alone.
func (p Place) bill() remote.Bill {
	if p.Bill == nil {
		return remote.Bill{{For: "GPU", Hourly: p.Price, Key: "price"}}
	}
	return p.Bill
}

// missing are the keys of the config whose prices are not known.
func (p Place) missing() (keys []string) {
	_, keys = p.bill().Most(0)
	for i, key := range keys {
		keys[i] = "remote." + p.Table + "." + key
	}
	return keys
}

// host names what places on the same machine share, as far as that is known.
func (p Place) host() string { return p.Table + ": " + p.Host }

// A Job is one that was begun, or is about to be.
type Job struct {
	ID        string         `json:"id"`
	Place     Place          `json:"place"`
	Workloads []string       `json:"workloads"`
	Key       string         `json:"key,omitempty"`    // of its remote.Seal; "" in plans of older ones
	Handle    *remote.Handle `json:"handle,omitempty"` // nil before it was accepted
	Began     *time.Time     `json:"began,omitempty"`  // first word from the host
	Ended     *time.Time     `json:"ended,omitempty"`  // nil while it may still run, or its host may hold its results
	Exit      *remote.Exit   `json:"exit,omitempty"`
	Error     string         `json:"error,omitempty"` // why it could not be taken to its place
}

// close writes down how the job has ended, where that is known; over tells that nothing of it is left on its host.
func (j *Job) close(exit *remote.Exit, over bool) {
	now := time.Now()
	if j.Exit = exit; over {
		j.Ended = &now
	}
}

// ran is for how long the job has run so far.
func (j *Job) ran() time.Duration {
	if j.Began == nil {
		return 0
	}
	end := time.Now()
	if j.Ended != nil {
		end = *j.Ended
	}
	return end.Sub(*j.Began)
}

// Cost is about what the job costs so far, in USD, as far as prices are known.
func (j *Job) Cost() float64 { return j.Place.bill().Rate() * j.ran().Hours() }

// most is what the job may have cost at most when it is over, in USD. One that is lost may run to its limit.
func (j *Job) most(limit time.Duration) float64 {
	switch {
	case j.Ended != nil && j.Handle == nil:
		return 0 // no place has taken it
	case j.Ended != nil && j.Exit != nil && j.Exit.End != remote.Lost:
		limit = min(limit, j.ran())
	}
	usd, _ := j.Place.bill().Most(limit)
	return usd
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

// Claim writes down that this process has the run, and saves the plan.
func (p *Plan) Claim(folder string) error {
	host, _ := os.Hostname()
	p.Client = fmt.Sprintf("process %d on %s", os.Getpid(), host)
	return p.Save(folder)
}

// Packed reports whether the run was ready to begin. One that is not has begun no job, and its user may not have agreed
// to it: it cannot be resumed.
func (p *Plan) Packed() bool { return p.Bundle != nil || len(p.Jobs) > 0 }

// Active are the jobs that may still run somewhere.
func (p *Plan) Active() (jobs []*Job) {
	for _, j := range p.Jobs {
		if j.Ended == nil {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// Close writes down that nothing of the job with that id is left on its host, and tells whether that is new.
func (p *Plan) Close(id string) bool {
	for _, j := range p.Active() {
		if j.ID == id {
			j.close(j.Exit, true)
			p.Done = len(p.Active()) == 0
			return true
		}
	}
	return false
}

// Cost is about what the run costs so far, in USD; known tells whether each place has its prices.
func (p *Plan) Cost() (usd float64, known bool) {
	known = true
	for _, j := range p.Jobs {
		cost := j.Cost()
		if j.Ended == nil { // its host ends it at its limit, also where nobody looks
			cost = min(cost, j.most(p.Limit))
		}
		usd += cost
		known = known && len(j.Place.missing()) == 0
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

// MostCost is what the jobs that are begun at first cost at most, in USD, when each runs to its limit; missing are the
// tables' keys whose prices are not known. With further tries a run may cost maxAttempts times that, and no more.
func (p *Plan) MostCost() (usd float64, missing []string) {
	for _, place := range p.Places[:p.Used()] {
		most, _ := place.bill().Most(p.Limit)
		usd += most
		for _, key := range place.missing() {
			if !slices.Contains(missing, key) {
				missing = append(missing, key)
			}
		}
	}
	return usd, missing
}

// Cap is what no further job may take the cost of the run over, in USD; 0 where prices are not known.
func (p *Plan) Cap() float64 {
	if p.MaxCost > 0 {
		return p.MaxCost
	}
	if most, missing := p.MostCost(); len(missing) == 0 {
		return maxAttempts * most
	}
	return 0
}

// Extend raises the cap, so that a run which goes on may cost as much again as when it began.
func (p *Plan) Extend() {
	if most := p.Cap(); most > 0 {
		p.MaxCost = most + p.spent()
	}
}

// spent is what the jobs may have cost at most when they are over, in USD.
func (p *Plan) spent() (usd float64) {
	for _, j := range p.Jobs {
		usd += j.most(p.Limit)
	}
	return usd
}

// Parts says what a job costs at most, a line for each table.
func (p *Plan) Parts() (lines []string) {
	for i, place := range p.Places[:p.Used()] {
		if !slices.ContainsFunc(p.Places[:i], func(q Place) bool { return q.Table == place.Table }) {
			lines = append(lines, "a job on "+place.Table+": "+place.bill().Parts(p.Limit))
		}
	}
	return lines
}

// affords tells whether another job at place keeps the run below its cap, also when all jobs run to their limits.
func (p *Plan) affords(place Place) bool {
	most := p.Cap()
	if most == 0 {
		return true
	}
	usd, _ := place.bill().Most(p.Limit)
	jobs := p.Jobs
	if p.MaxCost == 0 {
		jobs = jobs[p.Before:]
	}
	for _, j := range jobs {
		usd += j.most(p.Limit)
	}
	return usd <= most*(1+1e-9) // sums of the same numbers in another order
}
