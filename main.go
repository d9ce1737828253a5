// Command fisub takes a GPU kernel submission of the FlashInfer kernel contest from source to result: it checks it,
// runs its workloads on the local GPU or an emulation of it, and packs it.
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

// firstHeap is how much memory, in bytes, Go takes before it collects garbage for the first time: most commands end
// before, in two thirds of the time.
const firstHeap = 32 << 20

// collectLate has the garbage collector begin at firstHeap, and then go on as the environment says.
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
