package bench

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"fisub/internal/config"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A Profile determines how often a solution is called and timed on each workload, and how its outputs are compared.
type Profile struct {
	Name       string
	Warmup     int // untimed calls of a trial
	Iterations int // timed calls of a trial
	Trials     int
	Judged     int           // calls whose outputs are judged; 0: equal to Trials
	Timeout    time.Duration // wall clock for one workload, including the build
	Target     float64       // relative width of the median's interval at which to stop adding trials; 0: exactly Trials
	MaxTime    time.Duration // of timing one workload; 0: no limit
	Tolerance  tensor.Tolerance
}

// InTurn returns the profile for comparing solutions of def in one run. It judges the same number of calls and times
// about the same number, in four times the trials. Each trial has its tensors at other addresses, and addresses
// change a short call's time by about 1 % either way, which more calls at the same addresses do not average out. A
// mixture of experts keeps its profile: its weights, 1.4 GB, are spread over many addresses anyway.
func (p Profile) InTurn(def *trace.Definition) Profile {
	if def.OpType != "moe" {
		p.Judged = p.judged()
		p.Trials, p.Iterations = 4*p.Trials, (p.Iterations+3)/4
	}
	return p
}

func (p Profile) judged() int { return cmp.Or(p.Judged, p.Trials) }

// NewProfile returns the profile of that name, one of config.Profiles, for a definition. "official" is the contest's
// evaluation: the counts and tolerances of its flags for that definition (spec section 5). The others change only the
// counts. "thorough" adds trials until the median is known to 1 %, for at most 10 s per workload.
func NewProfile(name string, def *trace.Definition) (Profile, error) {
	p := Profile{Name: name, Warmup: 10, Iterations: 50, Trials: 3, Timeout: 300 * time.Second,
		Tolerance: tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1}}
	switch {
	case strings.HasPrefix(def.Name, "moe_fp8_block_scale"):
		p.Tolerance = tensor.Tolerance{Atol: 1, Rtol: 0.3, MatchedRatio: 0.9}
	case def.OpType == "moe", strings.Contains(def.Name, "moe_fp8_block_scale"):
		p.Tolerance.MatchedRatio = 0.95
	case strings.HasPrefix(def.Name, "gdn_prefill"):
		p.Warmup, p.Iterations = 1, 5
	}
	switch name {
	case config.Official:
	case config.Quick:
		p.Warmup, p.Iterations, p.Trials = 3, 20, 1
	case config.Thorough:
		p.Warmup, p.Iterations, p.Trials = 20, 200, 5
		p.Target, p.MaxTime = 0.01, 10*time.Second
	default:
		return Profile{}, fmt.Errorf("unknown profile %q: one of %s", name, strings.Join(config.Profiles, ", "))
	}
	return p, nil
}
