package dispatch

import (
	"fmt"
	"testing"

	"fisub/internal/event"
)

// Any stream gives verdicts only for the job's own workloads, and at most one each.
func FuzzFeed(f *testing.F) {
	f.Add([]byte(`{"type":"run","run":{"schema":"fisub.event/1"}}
{"type":"started","workload":"u","started":{"index":1,"total":1}}
{"type":"failed","workload":"u","message":{"text":"x"}}
{"type":"failed","workload":"other","message":{"text":"x"}}
{"type":"evaluated","workload":"u","evaluated":{"trace":`+fmt.Sprintf(passedTrace, "u")+`}}
{"type":"warning","workload":"u","finding":{"check":"too-fast"}}
{"type":"done","done":{"passed":1}}
`), 7)
	f.Add([]byte(`{"type":"failed","workload":"u","message":{"text":"x"}}
{"type":"failed","workload":"u","message":{"text":"x"}}
`), 193)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		verdicts := map[[2]string]int{} // by event type and workload
		job := &JobRecord{ID: "job", Workloads: []string{"u", "v"}}
		run := event.Run{Workloads: []event.WorkloadRef{{UUID: "u"}, {UUID: "v"}, {UUID: "other"}}}
		m := newMerger(&Plan{}, run, func(e event.Event) {
			if e.Evaluated != nil || e.Type == event.TypeFailed {
				verdicts[[2]string{string(e.Type), e.Workload}]++
			}
			if e.Place == "" && e.Job == "" && e.Run == nil {
				t.Errorf("got an event without its job: %+v", e)
			}
		})
		r := newReader(job, 0)
		cut = min(max(cut, 0), len(data))
		for _, part := range [][]byte{data[:cut], data[cut:]} {
			m.read(&r, part)
		}
		for of, n := range verdicts {
			if n > 1 || of[1] != "u" && of[1] != "v" {
				t.Errorf("got %d events of %q", n, of)
			}
		}
	})
}
