// Command bench prints the speed and memory of fisub itself: median wall time of five runs after one warm-up, and the
// largest resident set of the process. It needs dist/fisub.
//
//	make bench
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type row struct {
	name  string
	aim   string
	runs  int
	fresh bool // an empty cache for each run
	args  []string
}

func run() error {
	fisub, err := filepath.Abs("dist/fisub")
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "fisub-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	big := filepath.Join(tmp, "big")
	if err := bigSubmission(big, 1<<20); err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	rows := []row{
		{"pack 1 MB of sources", "50 ms, 50 MB", 5, false, []string{"-C", big, "-q", "pack"}},
		{"check without compile", "50 ms", 5, false, []string{"-q", "check", "--arch", "none"}},
		{"local --device emu, 20 workloads, cold cache", "10 s", 3, true, []string{"-q", "local", "--device", "emu"}},
		{"local --device emu, 20 workloads, warm cache", "3 s", 3, false, []string{"-q", "local", "--device", "emu"}},
		{"local --device emu, one workload of batch 64", "5 s, parent 300 MB", 3, false,
			[]string{"-q", "local", "--device", "emu", "--set", "contest54", "--workload", batch64(fisub)}},
	}
	if exec.Command(fisub, "-q", "local", "--device", "cuda", "--limit", "1").Run() == nil {
		rows = append(rows, row{"local --device cuda, 20 workloads, built", "5 s", 3, false,
			[]string{"-q", "local", "--device", "cuda"}},
			row{"local --device cuda, 54 workloads, built", "", 3, false, []string{"-q", "local", "--device", "cuda", "--set",
				"contest54"}})
	}
	fmt.Printf("%s/%s, %d cores\n%-48s %10s %10s %12s  %s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), "", "median",
		"max", "memory", "aim")
	for _, r := range rows {
		var times []time.Duration
		var memory int64
		for i := range r.runs + 1 {
			cmd := exec.Command(fisub, r.args...)
			cmd.Dir = root
			if r.fresh {
				cache := filepath.Join(tmp, fmt.Sprintf("cache%d", i))
				cmd.Env = append(os.Environ(), "FISUB_CACHE="+cache)
			}
			begun := time.Now()
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", r.name, err, out)
			}
			if i > 0 { // the first warms up
				times = append(times, time.Since(begun))
				memory = max(memory, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss<<10)
			}
		}
		slices.Sort(times)
		fmt.Printf("%-48s %10s %10s %9.0f MB  %s\n", r.name, times[len(times)/2].Round(100*time.Microsecond),
			times[len(times)-1].Round(100*time.Microsecond),
			float64(memory)/1e6, r.aim)
	}
	return nil
}

// bigSubmission writes a submission whose sources are bytes long.
func bigSubmission(dir string, size int) error {
	if err := os.MkdirAll(filepath.Join(dir, "solution", "cuda"), 0o755); err != nil {
		return err
	}
	config, err := os.ReadFile("config.toml")
	if err != nil {
		return err
	}
	kernel, err := os.ReadFile("solution/cuda/kernel.cu")
	if err != nil {
		return err
	}
	var header bytes.Buffer
	for i := 0; header.Len() < size-len(kernel); i++ {
		fmt.Fprintf(&header, "__device__ inline float f%d(float x) { return x * %d.5f; } // \"a\\n\" 漢\n", i, i)
	}
	for name, data := range map[string][]byte{"config.toml": config, "solution/cuda/kernel.cu": kernel,
		"solution/cuda/table.cuh": header.Bytes()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// batch64 is the uuid of a workload of batch 64.
func batch64(fisub string) string {
	out, err := exec.Command(fisub, "-q", "-v", "dataset", "ls", "--set", "contest54").Output()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == "batch_size=64" {
			return f[0]
		}
	}
	return ""
}
