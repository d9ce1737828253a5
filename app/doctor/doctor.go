// Package doctor determines which commands work on this machine, and why others do not. It installs, builds and
// measures nothing, uses the network only for remotes, and prints no secrets.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fisub/device"
	"fisub/internal/config"
	"fisub/internal/usage"
	"fisub/workloads"
)

// A Level is the result of a check.
type Level string

const (
	OK      Level = "ok"
	Warn    Level = "warn"    // usable, with a limit
	Missing Level = "missing" // absent, or not usable
)

// A Probe is the result of one check.
type Probe struct {
	Name  string `json:"name"` // "nvcc", "remote.lab"
	State Level  `json:"state"`
	Fact  string `json:"fact"`           // version and place, or why it is missing
	Hint  string `json:"hint,omitempty"` // how to change that

	fetchable bool // missing, but a command that needs it can download it
}

func ok(name, format string, args ...any) Probe {
	return Probe{Name: name, State: OK, Fact: fmt.Sprintf(format, args...)}
}

func warn(name, fact, hint string) Probe {
	return Probe{Name: name, State: Warn, Fact: fact, Hint: hint}
}

func missing(name, fact, hint string) Probe {
	return Probe{Name: name, State: Missing, Fact: fact, Hint: hint}
}

// failed returns a missing line for err; err's own hint is preferred.
func failed(name string, err error, hint string) Probe {
	text, own := usage.Explain(err)
	return missing(name, text, cmp.Or(own, hint))
}

// A Use is a command, and whether it works here.
type Use struct {
	Command string   `json:"command"`
	OK      bool     `json:"ok"`
	Lacks   []string `json:"lacks,omitempty"`   // Names of lines
	Fetches []string `json:"fetches,omitempty"` // Names of lines: missing, but the first run downloads them
}

// A Diagnosis has the results of all checks.
type Diagnosis struct {
	Lines []Probe `json:"checks"`
	Uses  []Use   `json:"uses"`
}

// uses are the commands with their needs, by the Names of lines. A command that fetches is one that downloads the
// missing items that can be downloaded.
var uses = []struct {
	command string
	fetches bool
	needs   []string
}{
	{"fisub check, pack", false, nil},
	{"fisub check --arch", false, []string{"nvcc", "cache"}},
	{"fisub local --device emu", true, []string{"nvcc", "dataset", "cache", "runs"}},
	{"fisub local --device cuda", false, []string{"gpu-support", "driver", "gpu", "nvcc", "dataset", "cache", "runs"}},
	{"fisub local, for Triton and Python", true, []string{"python", "triton", "dataset", "cache", "runs"}},
	{"fisub sanitize, on a GPU", false, []string{"gpu-support", "driver", "gpu", "nvcc", "compute-sanitizer"}},
	{"fisub profile", false, []string{"gpu-support", "driver", "gpu", "nvcc", "ncu"}},
	{"fisub remote", false, []string{"remote", "bundle", "cache", "runs"}},
	{"fisub submit", false, []string{"git"}},
}

// Options configure the checks. A check is left out if its field is nil.
type Options struct {
	Version  string // of fisub
	Built    bool   // with GPU support
	Cache    string // the cache's root; "" if CacheErr is set
	CacheErr error
	Config   string // the submission's, which need not exist

	OpenGPU func(context.Context) (device.Info, error) // in its own process
	Tool    func(name string) (path string, err error) // a program of the CUDA toolkit
	Dataset func() (*workloads.Dataset, error)
	Tables  map[string]*config.Table // [remote.NAME]
}

// limit is the timeout of the checks, enough for a busy machine.
const limit = 30 * time.Second

// Examine runs all checks concurrently. Their lines are in a fixed order.
func Examine(ctx context.Context, o Options) *Diagnosis {
	x := &examination{Options: o}
	type check struct {
		name string // of the line after a timeout
		run  func(context.Context) []Probe
	}
	checks := []check{{"gpu-support", x.program}, {"git", program("git", "apt-get install git")},
		{"confinement", confinement}, {"gpu", x.gpu}, {"nvcc", x.toolchain}, {"ncu", x.tools}, {"python", x.python},
		{"cache", x.storage}, {"dataset", x.dataset}, {"config", x.config}}
	if o.Tables != nil && len(o.Tables) == 0 {
		checks = append(checks, check{"remote", func(context.Context) []Probe {
			return []Probe{missing("remote", "no table [remote.NAME] in the config", "see fisub help remote")}
		}})
	}
	free := make(chan struct{}) // closed when this program no longer holds a GPU, which hosts would report as busy
	gpu := checks[3].run
	checks[3].run = func(ctx context.Context) []Probe {
		defer close(free)
		return gpu(ctx)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Tables)) {
		checks = append(checks, check{"remote." + name, func(ctx context.Context) []Probe {
			<-free
			return x.remote(ctx, name)
		}})
	}
	found := make([]chan []Probe, len(checks))
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for i, c := range checks {
		found[i] = make(chan []Probe, 1)
		go func() { found[i] <- c.run(limited) }()
	}
	r := &Diagnosis{}
	for i, c := range checks {
		select {
		case lines := <-found[i]:
			r.Lines = append(r.Lines, lines...)
		case <-limited.Done():
			r.Lines = append(r.Lines, missing(c.name, "timeout", ""))
		}
	}
	r.sumUp()
	return r
}

// sumUp fills in Uses.
func (r *Diagnosis) sumUp() {
	for _, u := range uses {
		use := Use{Command: u.command, OK: true}
		for _, need := range u.needs {
			switch found, usable := r.state(need); {
			case !found || usable:
			case u.fetches && r.fetchable(need):
				use.Fetches = append(use.Fetches, need)
			default:
				use.OK = false
				use.Lacks = append(use.Lacks, need)
			}
		}
		r.Uses = append(r.Uses, use)
	}
}

func (r *Diagnosis) fetchable(name string) bool {
	return slices.ContainsFunc(r.Lines, func(l Probe) bool { return l.Name == name && l.fetchable })
}

// state reports whether there are lines with or below that name, as remote.lab is below remote, and whether at least
// one is not missing: one of several remotes is enough.
func (r *Diagnosis) state(name string) (found, usable bool) {
	for _, l := range r.Lines {
		if l.Name == name || strings.HasPrefix(l.Name, name+".") {
			found, usable = true, usable || l.State != Missing
		}
	}
	return found, usable
}

// Require returns the missing names. The name cuda stands for the needs of a run on a GPU. An unknown name is an
// error.
func (r *Diagnosis) Require(names []string) (missing []string, err error) {
	for _, name := range names {
		all := []string{name}
		if name == "cuda" {
			all = []string{"gpu-support", "driver", "gpu", "nvcc"}
		}
		for _, n := range all {
			found, usable := r.state(n)
			if !found && name != "cuda" && name != "remote" {
				return nil, fmt.Errorf("unknown name %q", n)
			}
			if !usable {
				missing = append(missing, n)
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing), nil
}
