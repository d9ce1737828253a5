package bench

import (
	"strings"

	"fisub/internal/event"
)

// checked returns the mistakes that a run on p's device looks for.
func checked(p *process) *event.Checked {
	honesty := "outputs that depend on earlier calls, modified inputs, "
	switch {
	case !p.info.Emulated:
		return &event.Checked{
			For: []string{"in calls after the timing: " + honesty + "writes within 4096 bytes of a tensor, work that " +
				"outlives the call's stream"},
			Not: []string{"other invalid accesses", "races", "reads of unwritten memory (see fisub sanitize)"}}
	case p.kind != "emu":
		return nil
	}
	l := &event.Checked{Not: []string{"missing synchronisation with the host"}}
	first := "races (in its first instructions), unwritten local and global memory"
	if p.python {
		first = "races in CUDA (in its first instructions), unwritten local memory"
		l.Not = append(l.Not, "races and registers without a value in Triton kernels", "unwritten tensors",
			"the host's use of device memory")
	}
	if p.opts.Sanitize != "" && !p.python {
		l.For = []string{"in all calls: invalid and misaligned accesses, barriers that never open; findings of " +
			strings.ReplaceAll(p.opts.Sanitize, ",", ", ")}
	} else {
		l.For = []string{"in all calls: invalid and misaligned accesses, barriers that never open, " +
			"unwritten shared memory, registers without a value, divisions by zero, refused launches",
			"in the first call of the first workload, " +
				"and in later ones in launches of up to 128 blocks with a new kernel or size: " + first}
	}
	l.For = append(l.For, "in a second call of workloads up to 32 MB and 3 s: "+strings.TrimSuffix(honesty, ", "))
	return l
}
