// Command fisub takes a GPU kernel submission for the FlashInfer kernel contest from source to result: it checks it,
// runs its workloads on a GPU or the virtual GPU, and packs it.
package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"fisub/app"
)

func main() {
	collectLate()
	os.Exit(app.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// firstHeap is the heap size, in bytes, at which Go first collects garbage. Most commands end earlier, which takes a
// third off their time.
const firstHeap = 32 << 20

// collectLate delays the first garbage collection until firstHeap. Later ones follow the environment's settings.
func collectLate() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(firstHeap)
	runtime.AddCleanup(new([64]byte), func(int) { // after the first collection
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}, 0)
}
