// Package doctor looks at what a machine can do for fisub, and at what is missing for which command. It installs,
// builds and measures nothing, asks the network nothing but the remotes that it is told of, and tells no secret.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"fisub/device"
	"fisub/explain"
	"fisub/internal/config"
	"fisub/workloads"
)

// A State is what a Line found.
type State string

const (
	OK      State = "ok"
	Warn    State = "warn"    // it is there, and something about it should be known
	Missing State = "missing" // it is not there, or cannot be used
)

// A Line is one thing that was looked at.
type Line struct {
	Name   string   `json:"name"` // "nvcc", "remote.lab"
	State  State    `json:"state"`
	Fact   string   `json:"fact"`              // version and place, or why it is missing
	Hint   string   `json:"hint,omitempty"`    // the command that helps, where something is missing or should be otherwise
	Mend   string   `json:"mend,omitempty"`    // Hint again, for programs that know it by this name
	Needed []string `json:"needed,omitempty"`  // of a missing one: the commands that need it
	Took   float64  `json:"seconds,omitempty"` // to find out
}

func ok(name, format string, args ...any) Line {
	return Line{Name: name, State: OK, Fact: fmt.Sprintf(format, args...)}
}

func warn(name, fact, hint string) Line { return Line{Name: name, State: Warn, Fact: fact, Hint: hint} }

func missing(name, fact, hint string) Line {
	return Line{Name: name, State: Missing, Fact: fact, Hint: hint}
}

// failed is a missing one for the reason err, whose own hint goes before that.
func failed(name string, err error, hint string) Line {
	text, own := explain.Error(err)
	return missing(name, text, cmp.Or(own, hint))
}

// A Use is what fisub can be used for.
type Use struct {
	Command string   `json:"command"`
	OK      bool     `json:"ok"`
	Lacks   []string `json:"lacks,omitempty"` // Names of lines
}

// A Report is all that was found.
type Report struct {
	Lines []Line `json:"checks"`
	Uses  []Use  `json:"uses"`
}

// uses are the commands with what they need, by the Names of lines.
var uses = []struct {
	command string
	needs   []string
}{
	{"fisub check, pack", nil},
	{"fisub check --arch", []string{"nvcc", "tvm-ffi", "cache"}},
	{"fisub local --device emu", []string{"nvcc", "tvm-ffi", "dataset", "cache", "runs"}},
	{"fisub local --device cuda", []string{"gpu-support", "driver", "gpu", "nvcc", "tvm-ffi", "dataset", "cache", "runs"}},
	{"fisub local, for Triton and Python", []string{"python", "torch", "triton", "dataset", "cache", "runs"}},
	{"fisub sanitize, on a GPU", []string{"gpu-support", "driver", "gpu", "nvcc", "tvm-ffi", "compute-sanitizer"}},
	{"fisub profile", []string{"gpu-support", "driver", "gpu", "nvcc", "tvm-ffi", "ncu"}},
	{"fisub remote", []string{"remote", "bundle", "cache", "runs"}},
	{"fisub submit", []string{"git"}},
}

// Options are what the caller knows. What is nil is not looked at.
type Options struct {
	Version  string // of fisub
	Built    bool   // with GPU support
	Cache    string // the cache's root; "" where CacheErr says why there is none
	CacheErr error
	Config   string // the submission's, which need not exist; "" is none

	OpenGPU func(context.Context) (device.Info, error) // in a process of its own
	Tool    func(name string) (path string, err error) // a program of the CUDA toolkit
	Dataset func() (*workloads.Dataset, error)
	Tables  map[string]*config.Table // [remote.NAME]
}

// limit is how long each look may take, on a machine that is busy too.
const limit = 30 * time.Second

// A look finds out about something, within the time of its context.
type look func(context.Context) []Line

// Examine looks at everything at once. The lines come in an order of their own.
func Examine(ctx context.Context, o Options) *Report {
	one := func(f func(context.Context) Line) look {
		return func(ctx context.Context) []Line { return []Line{f(ctx)} }
	}
	x := &examination{Options: o}
	free := make(chan struct{}) // closed when this program holds no GPU any more, which a host could be told is busy
	gpu := func(ctx context.Context) []Line {
		defer close(free)
		return x.gpu(ctx)
	}
	checks := []look{x.program, program("git", "apt-get install git", "--version"), confinement, gpu,
		x.toolchain, x.tools, x.python, x.storage,
		program("ssh", "apt-get install openssh-client; only hosts over SSH need it", "-V"),
		program("sbatch", `name a login host in [remote.NAME]; only provider = "slurm" without one needs it here`,
			"--version"),
		program("kubectl", `kubernetes.io/docs/tasks/tools; only provider = "kubernetes" needs it`, "version", "--client")}
	if o.Dataset != nil {
		checks = append(checks, one(x.dataset))
	}
	if o.Config != "" {
		checks = append(checks, one(x.config))
	}
	if o.Tables != nil && len(o.Tables) == 0 {
		checks = append(checks, one(func(context.Context) Line {
			return missing("remote", "no table [remote.NAME] in the config", "docs/remote.md shows one")
		}))
	}
	for _, name := range slices.Sorted(maps.Keys(o.Tables)) {
		checks = append(checks, func(ctx context.Context) []Line {
			<-free
			return x.remote(ctx, name)
		})
	}
	found := make([][]Line, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() {
			limited, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			begun := time.Now()
			found[i] = c(limited)
			for j := range found[i] {
				found[i][j].Took = time.Since(begun).Seconds()
				found[i][j].Mend = found[i][j].Hint
			}
		})
	}
	all.Wait()
	r := &Report{Lines: slices.Concat(found...)}
	r.sumUp()
	return r
}

// sumUp fills in Uses, and what each missing thing is needed for.
func (r *Report) sumUp() {
	for _, u := range uses {
		use := Use{Command: u.command, OK: true}
		for _, need := range u.needs {
			if found, usable := r.state(need); found && !usable {
				use.OK = false
				use.Lacks = append(use.Lacks, need)
			}
		}
		for i := range r.Lines {
			l := &r.Lines[i]
			if name, _, _ := strings.Cut(l.Name, "."); l.State == Missing && slices.Contains(u.needs, name) {
				l.Needed = append(l.Needed, u.command)
			}
		}
		r.Uses = append(r.Uses, use)
	}
}

// state tells whether there are lines of a name, or of a part of it, as remote, remote.lab, remote.lab.gpu01, and
// whether one of them is not missing: of several remotes one will do.
func (r *Report) state(name string) (found, usable bool) {
	for _, l := range r.Lines {
		if l.Name == name || strings.HasPrefix(l.Name, name+".") {
			found, usable = true, usable || l.State != Missing
		}
	}
	return found, usable
}

// groups stand for several names where something is required.
var groups = map[string][]string{"cuda": {"gpu-support", "driver", "gpu", "nvcc", "tvm-ffi"}}

// Names are those that Require knows here, with the groups behind them.
func (r *Report) Names() (names []string) {
	for _, l := range r.Lines {
		if !slices.Contains(names, l.Name) {
			names = append(names, l.Name)
		}
	}
	return append(names, slices.Sorted(maps.Keys(groups))...)
}

// known are the names of lines that a machine without a GPU does not have.
var known = []string{"clocks", "counters", "nvml", "cupti", "remote"}

// Require gives the names among those asked for that are missing. The error names one that nobody knows.
func (r *Report) Require(names []string) (missing []string, err error) {
	for _, name := range names {
		all, group := groups[name]
		if !group {
			all = []string{name}
		}
		for _, n := range all {
			found, usable := r.state(n)
			if !found && !group && !slices.Contains(known, n) {
				return nil, fmt.Errorf("nothing is named %q", n)
			}
			if !usable {
				missing = append(missing, n)
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing), nil
}
