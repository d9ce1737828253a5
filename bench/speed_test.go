package bench

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/workloads"
)

// BenchmarkTranslated compares the CPU times of calls on the virtual GPU, by its interpreter alone and with translated
// code, in turn. The first call of a workload, which compiles and is checked, is not measured.
func BenchmarkTranslated(b *testing.B) {
	root, err := cache.Root()
	if err != nil {
		b.Fatal(err)
	}
	data, err := workloads.Open("", root)
	if err != nil {
		b.Fatal(err)
	}
	for _, bm := range []struct {
		name, folder, set, axis string
		size                    int // of the axis in the only workload to run; 0: all workloads
	}{
		{"decode, 20 workloads", "..", workloads.DefaultSet, "", 0},
		{"decode, batch 64", "..", workloads.ContestSet, "batch_size", 64},
		{"prefill of 2107 tokens", "../solution-prefill", workloads.ContestSet, "total_seq_len", 2107},
		{"Triton, batch 64", "../solution/baselines/triton", workloads.ContestSet, "batch_size", 64},
	} {
		b.Run(bm.name, func(b *testing.B) {
			cfg, err := config.Load(filepath.Join(bm.folder, config.Name))
			if err != nil {
				b.Fatal(err)
			}
			def, err := data.Definition(cfg.Solution.Definition)
			if err != nil {
				b.Fatal(err)
			}
			sol, _, err := pack.Solution(cfg, cfg.SourceDir())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := pyworker.Command(b.Context(), root); err != nil && pyworker.Runs(&sol.Spec) {
				b.Skip(err)
			}
			ws, err := data.Workloads(def.Name, bm.set)
			if err != nil {
				b.Fatal(err)
			}
			if bm.size > 0 {
				i := slices.IndexFunc(ws, func(w *trace.Workload) bool { n, _ := w.Axes.Get(bm.axis); return n == bm.size })
				ws = ws[i : i+1]
			}
			var interpreted, translated []time.Duration
			for b.Loop() {
				for jit, times := range map[string]*[]time.Duration{"0": &interpreted, "1": &translated} {
					*times = append(*times, callTime(b, Shared{Definition: def, Load: data.Load, DeviceKind: "emu",
						Worker: worker.Command{Args: []string{"/proc/self/exe"}, Env: []string{"FISUB_EMU_JIT=" + jit}},
						Device: device.Options{CacheDir: root}}, sol, ws))
				}
			}
			slices.Sort(interpreted)
			slices.Sort(translated)
			slow, fast := interpreted[len(interpreted)/2].Seconds(), translated[len(translated)/2].Seconds()
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(1e3*slow, "interpreted-cpu-ms")
			b.ReportMetric(1e3*fast, "translated-cpu-ms")
			b.ReportMetric(slow/fast, "interpreted/translated")
		})
	}
}

// callTime returns the CPU time of the worker in the second call of each workload.
func callTime(b *testing.B, shared Shared, sol *trace.Solution, ws []*trace.Workload) (total time.Duration) {
	ctx := b.Context()
	p, err := newProcess(ctx, &shared, shared.Definition, sol)
	if err != nil {
		b.Fatal(err)
	}
	defer p.stop()
	if err := p.ready(ctx, ctx); err != nil {
		b.Fatalf("%v\n%s", err, p.log())
	}
	e, err := evaluatorOf(shared.Definition)
	if err != nil {
		b.Fatal(err)
	}
	for _, w := range ws {
		in, err := openInputs(ctx, &shared, nil, e, w, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err = p.out.room(in.size); err == nil {
			err = p.load(ctx, in.load)
		}
		var before time.Duration
		for range 2 {
			if before = cpuTime(b, p.client.PID()); err == nil {
				_, err = p.client.Run(ctx, p.out.f)
			}
		}
		in.Close()
		if err != nil {
			b.Fatalf("%v\n%s", err, p.log())
		}
		total += cpuTime(b, p.client.PID()) - before
	}
	return total
}

// cpuTime returns the CPU time that a process has taken.
func cpuTime(b *testing.B, pid int) time.Duration {
	const scheduled = 2 // CPUCLOCK_SCHED of clock_getcpuclockid
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
