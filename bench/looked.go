package bench

import (
	"strings"

	"fisub/internal/event"
)

// looked says which mistakes a run on the device of p looks for.
func looked(p *process) *event.Looked {
	honesty := "outputs that depend on earlier calls, inputs that are written to, "
	switch {
	case !p.info.Emulated:
		return &event.Looked{
			For: []string{"in calls after the timing: " + honesty + "writes up to 4096 bytes beside a tensor, work that outlives " +
				"the call's stream"},
			Not: []string{"other invalid accesses", "races", "reads of unwritten memory (fisub sanitize looks for these)"}}
	case p.kind != "emu":
		return nil
	}
	l := &event.Looked{Not: []string{"time", "reads of global memory that nothing wrote",
		"missing synchronisation between streams or with the host"}}
	always := "in all calls: accesses outside of a tensor, misaligned and null ones, barriers that never open"
	hazards := []string{"reads of shared memory that nothing wrote", "integer divisions by zero", "refused launches"}
	closer := []string{"races in the first 2 million instructions of a launch", "reads of local memory that nothing wrote"}
	if p.python {
		closer[0] += " of CUDA"
		l.Not = append(l.Not, "races in Triton kernels", "the host's use of device memory")
	}
	if p.opts.Sanitize != "" && !p.python {
		l.For = []string{always, "as faults, with the tools " + p.opts.Sanitize + ": races, reads of shared and local memory that " +
			"nothing wrote, integer divisions by zero, refused launches, barriers that wait for threads that have ended"}
	} else {
		l.For = []string{always + ", " + strings.Join(hazards, ", "),
			"in the first call of each workload: " + strings.Join(closer, ", ")}
	}
	l.For = append(l.For, "in a second call of each workload of at most 256 MB whose first call took less than 5 s: "+
		strings.TrimSuffix(honesty, ", "))
	return l
}
