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
	"fisub/internal/hint"
	"fisub/remote"
)

// PlanName is the file of a run folder that holds its Plan.
const PlanName = "remote.json"

// streams is the folder of the jobs' own streams, in a run folder.
const streams = "remote"

// A Plan is what a remote run needs beside its events, and all that it has begun. It holds no secret but the keys of
// its jobs.
type Plan struct {
	Version int             `json:"version"` // 1
	Run     event.Run       `json:"run"`     // as the client describes it: Device and Host come from the first host
	Places  []ProviderPlace `json:"places"`
	Terms

	Kind
	Bundle json.RawMessage `json:"bundle,omitempty"` // what the caller needs to make the jobs' files again; see Packed
	Jobs   []*JobRecord    `json:"jobs"`
	Before int             `json:"before,omitempty"` // of Jobs: begun before the run was resumed, and no attempts any more
	Done   bool            `json:"done,omitempty"`   // nothing is left to do, and nothing is left on any host
	Client string          `json:"client,omitempty"` // the process that follows the run, or did last
}

// A Kind is the command that the jobs of a plan run: local, whose events become the run's, or another one.
type Kind struct {
	Tool  string      `json:"tool,omitempty"`  // the command of the only job, whose lines are its result; "" is local
	Sides []event.Run `json:"sides,omitempty"` // of a comparison: the runs of its job, in the order of their letters
}

// Terms hold for each job of a plan.
type Terms struct {
	GPU    string        `json:"gpu,omitempty"`
	Limit  time.Duration `json:"limit"`
	Busy   bool          `json:"busy,omitempty"`
	Strict bool          `json:"strict,omitempty"`
}

// A ProviderPlace is one of a provider.
type ProviderPlace struct {
	Table string `json:"table"` // name of the provider's table
	remote.Place
}

func (p ProviderPlace) String() string { return p.Table + ": " + p.Place.String() }

// host names what places on the same machine share, as far as that is known.
func (p ProviderPlace) host() string { return p.Table + ": " + p.Host }

// A JobRecord is one that was begun, or is about to be.
type JobRecord struct {
	ID        string         `json:"id"`
	Place     ProviderPlace  `json:"place"`
	Workloads []string       `json:"workloads"`
	Key       string         `json:"key,omitempty"`    // of its remote.Seal; "" in plans of older ones
	Handle    *remote.Handle `json:"handle,omitempty"` // nil before it was accepted
	Began     *time.Time     `json:"began,omitempty"`  // first word from the host
	Ended     *time.Time     `json:"ended,omitempty"`  // nil while it may still run, or its host may hold its results
	Exit      *remote.Exit   `json:"exit,omitempty"`
	Error     string         `json:"error,omitempty"` // why it could not be taken to its place
}

// close writes down how the job has ended, where that is known; over tells that nothing of it is left on its host.
func (j *JobRecord) close(exit *remote.Exit, over bool) {
	now := time.Now()
	if j.Exit = exit; over {
		j.Ended = &now
	}
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
		return nil, hint.Wrap(fmt.Errorf("%s: %w", name, err),
			"that file is damaged, by another program or its disk: start a new run")
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
func (p *Plan) Active() (jobs []*JobRecord) {
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

// Used is how many of the places get a job at first.
func (p *Plan) Used() int {
	return min(len(p.Places), len(p.Run.Workloads))
}
