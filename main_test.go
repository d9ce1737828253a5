package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestCollectLate(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	before, limit := percent(), debug.SetMemoryLimit(-1)
	collectLate()
	if got := debug.SetMemoryLimit(-1); got != firstHeap || percent() == before {
		t.Errorf("at first: got a limit of %d bytes and %d %%, want %d bytes and none", got, percent(), firstHeap)
	}
	for deadline := time.Now().Add(time.Minute); percent() != before || debug.SetMemoryLimit(-1) != limit; {
		if time.Now().After(deadline) {
			t.Fatalf("after a collection: got %d %% and %d bytes, want %d %% and %d bytes", percent(), debug.SetMemoryLimit(-1),
				before, limit)
		}
		runtime.GC()
	}
}
