package runs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"fisub/internal/event"
)

// memory returns a file with that content that is on no disk.
func memory(t testing.TB, data []byte) *os.File {
	fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
	if err != nil {
		t.Skip(err)
	}
	f := os.NewFile(uintptr(fd), "events.jsonl")
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

// Any events are read without a panic, and read the same after being emitted again.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"type":"run","run":{"schema":"fisub.event/1","id":"a","workloads":[{"uuid":"u"}]}}
{"type":"started","workload":"u","started":{"index":1,"total":1}}
{"type":"samples","workload":"u","samples":{"timer":"cupti","trials":[[1,2]]}}
{"type":"evaluated","workload":"u","evaluated":{"speedup":2,"trace":{"definition":"d","workload":{"axes":{"n":1},"inputs":{},"uuid":"u"},"solution":"s","evaluation":{"status":"PASSED","environment":{"hardware":"h","libs":{}},"timestamp":"t","log":"","correctness":{"max_relative_error":1,"max_absolute_error":"NaN"},"performance":{"latency_ms":1,"reference_latency_ms":0,"speedup_factor":0}}}}}
{"type":"warning","workload":"u","finding":{"check":"too-fast"}}
{"type":"failed","workload":"v","message":{"text":"x"}}
{"type":"job","place":"p","job":"j","origin":3,"job_state":{"phase":"running","device":{},"host":{}}}
{"type":"done","done":{"passed":1}}
{"type":"ha`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, whole, err := replay(memory(t, data), "id")
		if whole < 0 || whole > int64(len(data)) {
			t.Fatalf("got %d whole bytes of %d", whole, len(data))
		}
		if err != nil {
			return
		}
		var text []byte
		r.Emit(event.NewStream(func(e event.Event) error {
			line, err := event.Marshal(e)
			text = append(text, line...)
			return err
		}))
		again, _, err := replay(memory(t, text), "id")
		if err != nil || len(again.Rows) != len(r.Rows) {
			t.Fatalf("told again: got %v and %d rows, want %d", err, len(again.Rows), len(r.Rows))
		}
		passed, total := r.Passed()
		if passed < 0 || passed > total {
			t.Errorf("got %d of %d passed", passed, total)
		}
	})
}
