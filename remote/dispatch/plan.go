// Package dispatch splits a run into jobs, submits them to their places, and merges their event streams. It records
// each step before it waits, so that another process can continue after a crash. Its caller passes the providers in.
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

	"fisub/bench/bound"
	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/remote"
)

// PlanName is the file in a run folder that contains its Plan.
const PlanName = "remote.json"

// streams is the folder in a run folder for the jobs' own streams.
const streams = "remote"

// A Plan records a remote run except its events, including all jobs that were started. Its only secrets are the keys of
// the jobs.
type Plan struct {
	Version int             `json:"version"` // 1
	Run     event.Run       `json:"run"`     // as known to the client; Device and Host come from the first host
	Places  []ProviderPlace `json:"places"`
	Terms

	// Least is the traffic of the workloads as far as their shapes determine it, by uuid.
	Least map[string]bound.Traffic `json:"least,omitempty"`

	Kind
	Bundle json.RawMessage `json:"bundle,omitempty"` // caller's data for making the jobs' files again; see Packed
	Jobs   []*JobRecord    `json:"jobs"`
	Before int             `json:"before,omitempty"` // number of Jobs from before a resumption; not counted as attempts
	Done   bool            `json:"done,omitempty"`   // nothing is left to do, and no host has a job of the run
	Client string          `json:"client,omitempty"` // process that follows the run, or was the last to do so
}

// A Kind is the command of a plan's jobs: local, whose events become the run's, or a tool.
type Kind struct {
	Tool  string      `json:"tool,omitempty"`  // command of the only job, whose lines are the result; "" is local
	Sides []event.Run `json:"sides,omitempty"` // runs of a comparison's job, in the order of their letters
}

// Terms apply to each job of a plan.
type Terms struct {
	GPU    string        `json:"gpu,omitempty"`
	Limit  time.Duration `json:"limit"`
	Busy   bool          `json:"busy,omitempty"`
	Strict bool          `json:"strict,omitempty"`
}

// A ProviderPlace is a place of a provider.
type ProviderPlace struct {
	Table string `json:"table"` // name of the provider's table
	remote.Place
}

func (p ProviderPlace) String() string { return p.Table + ": " + p.Place.String() }

// host returns a name that places on the same known machine share.
func (p ProviderPlace) host() string { return p.Table + ": " + p.Host }

// A JobRecord is a job that was started or is about to be.
type JobRecord struct {
	ID        string         `json:"id"`
	Place     ProviderPlace  `json:"place"`
	Workloads []string       `json:"workloads"`
	Key       string         `json:"key,omitempty"`    // of its remote.Seal; "" in older plans
	Handle    *remote.Handle `json:"handle,omitempty"` // nil until the job is accepted
	Began     *time.Time     `json:"began,omitempty"`  // when its host first reported it
	Ended     *time.Time     `json:"ended,omitempty"`  // nil while the job may run, or its host may have its results
	Exit      *remote.Exit   `json:"exit,omitempty"`
	Error     string         `json:"error,omitempty"` // why its place did not accept it
}

// close records the end of the job; exit is nil if unknown. If over is set, its host has nothing left of it.
func (j *JobRecord) close(exit *remote.Exit, over bool) {
	if j.Exit = exit; over {
		j.Ended = new(time.Now())
	}
}

// maxPlan limits the size of a plan, in bytes.
const maxPlan = 64 << 20

// Load reads the plan in a run folder. The error wraps fs.ErrNotExist if the run is not remote.
func Load(folder string) (*Plan, error) {
	name := filepath.Join(folder, PlanName)
	data, err := plain.ReadFile(name, maxPlan)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, hint.Wrap(fmt.Errorf("%s: %w", name, err), "the file is damaged: start a new run")
	}
	if p.Version != 1 {
		return nil, fmt.Errorf("%s: unknown version %d", name, p.Version)
	}
	return p, nil
}

// IsRemote reports whether a run folder belongs to a remote run.
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

// Claim records this process as the run's client and saves the plan.
func (p *Plan) Claim(folder string) error {
	host, _ := os.Hostname()
	p.Client = fmt.Sprintf("process %d on %s", os.Getpid(), host)
	return p.Save(folder)
}

// Packed reports whether the run was ready to start. If not, it has no jobs and cannot be resumed: the user may not
// have confirmed it.
func (p *Plan) Packed() bool { return p.Bundle != nil || len(p.Jobs) > 0 }

// Active returns the jobs that may be running.
func (p *Plan) Active() []*JobRecord {
	return slices.DeleteFunc(slices.Clone(p.Jobs), func(j *JobRecord) bool { return j.Ended != nil })
}

// Close records that the host has nothing left of the job with that id, and reports whether that is new.
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

// Used returns the names of the places that get a job at first.
func (p *Plan) Used() (names []string) {
	for _, place := range p.Places[:min(len(p.Places), len(p.Run.Workloads))] {
		names = append(names, place.String())
	}
	return names
}

// Tables returns the tables of the places.
func (p *Plan) Tables() (names []string) {
	for _, place := range p.Places {
		if !slices.Contains(names, place.Table) {
			names = append(names, place.Table)
		}
	}
	return names
}
