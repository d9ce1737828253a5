package remote_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"fisub/internal/config"
	"fisub/remote"
	"fisub/remote/aws"
	"fisub/remote/modal"
	"fisub/remote/slurm"
)

// A job's bill holds what it takes beside its limit, whole machines, and all that is billed beside the GPU.
func TestBill(t *testing.T) {
	const limit = 30 * time.Minute
	for _, tc := range []struct {
		name    string
		table   map[string]any
		c       remote.Config
		most    float64
		missing []string
		parts   string
	}{
		{"slurm", map[string]any{"price": 6.0}, new(slurm.Config), 6 * 34.0 / 60, nil, "GPU for 34m0s $3.40"},
		// The instance's own price for the limit, Batch's margin and what comes before and after the job.
		{"aws", map[string]any{"price": 14.25, "bucket": "abc", "queue": "q", "job_definition": "d"}, new(aws.Config),
			8 * 14.25 * 75.0 / 60, nil, "8 x GPU of a machine for 1h15m0s $142.50"},
		{"one GPU", map[string]any{"price": 14.25, "bucket": "abc", "queue": "q", "job_definition": "d",
			"machine_gpus": int64(1)}, new(aws.Config), 14.25 * 75.0 / 60, nil, "1 x GPU of a machine for 1h15m0s $17.81"},
		{"modal", map[string]any{"price": 6.25, "cpu_price": 0.2, "memory_price": 0.03}, new(modal.Config),
			(6.25+4*0.2+8*0.03)*33.0/60 + 0.5*0.2 + 0.5*0.03, nil, "GPU for 33m0s $3.44, 4 cores for 33m0s $0.44, " +
				"8 GiB for 33m0s $0.13, 0.5 cores of the door for 1h0m0s $0.10, 0.5 GiB of the door for 1h0m0s $0.01"},
		{"prices missing", map[string]any{"price": 6.25}, new(modal.Config), 6.25 * 33.0 / 60,
			[]string{"cpu_price", "memory_price"}, "GPU for 33m0s $3.44, 4 cores for 33m0s price not known, " +
				"8 GiB for 33m0s price not known, 0.5 cores of the door for 1h0m0s price not known, " +
				"0.5 GiB of the door for 1h0m0s price not known"},
	} {
		if err := remote.Decode(config.NewTable("remote.x", tc.table), tc.c); err != nil {
			t.Fatal(err)
		}
		bill := tc.c.Bill()
		most, missing := bill.Most(limit)
		if math.Abs(most-tc.most) > 1e-9 || !slices.Equal(missing, tc.missing) || bill.Parts(limit) != tc.parts {
			t.Errorf("%s: got %v, %v, %s\nwant %v, %v, %s", tc.name, most, missing, bill.Parts(limit), tc.most, tc.missing,
				tc.parts)
		}
	}
}
