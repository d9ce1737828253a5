package worker

import (
	"encoding/json"
	"testing"
	"time"

	"fisub/device"
)

// Any reply is either rejected or yields timings that the plan allows.
func FuzzReply(f *testing.F) {
	for _, line := range []string{`{"error":{"kind":"call","text":"x"}}`, `{"info":{"name":"x"}}`, `{"timing":true}`,
		`{"samples":{"timer":"cupti","trials":[[1000,2000],[3000]]}}`, `{"checked":{"changed":[{"arg":1,"offset":-1}]}}`,
		`{"outputs":[{"dtype":"float32","shape":[2],"offset":0,"bytes":8}]}`,
		`{"samples":{},"recorded":{"version":130000,"windows":[[[1,9,9]]],"names":[["_Zk","k"]],"records":"AAAA"}}`} {
		f.Add([]byte(line))
	}
	plan := device.Plan{Trials: 2, Iterations: 3}
	f.Fuzz(func(t *testing.T, line []byte) {
		var r reply
		if json.Unmarshal(line, &r) != nil || r.Samples == nil {
			return
		}
		if r.Recorded != nil && r.Recorded.match(r.Samples, plan) != nil {
			return
		}
		if credible(r.Samples.Trials, plan) != nil {
			return
		}
		for _, trial := range r.Samples.Trials {
			for _, timing := range trial {
				if timing < 0 || timing > 1<<62*time.Nanosecond || len(trial) > 3 {
					t.Errorf("got timings %v", r.Samples.Trials)
				}
			}
		}
	})
}
