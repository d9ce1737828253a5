package app

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"fisub/internal/cache"
)

// built returns this repository's folder and a function for commands of dist/fisub in it, or skips the benchmark.
func built(b *testing.B) (root string, command func(args ...string) *exec.Cmd) {
	b.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		b.Fatal(err)
	}
	fisub := filepath.Join(root, "dist", "fisub")
	if _, err := os.Stat(fisub); err != nil {
		b.Skip("make builds what is measured: ", err)
	}
	return root, func(args ...string) *exec.Cmd {
		cmd := exec.Command(fisub, append([]string{"-q"}, args...)...)
		cmd.Dir = root
		return cmd
	}
}

// BenchmarkProgram measures the wall time of dist/fisub, which make builds, and its maximum resident set.
func BenchmarkProgram(b *testing.B) {
	root, command := built(b)
	for _, bm := range []struct {
		name  string
		aim   string
		gpu   bool
		fresh bool // an empty cache for each run
		args  func(b *testing.B) []string
	}{
		{"pack/1 MB of sources", "50 ms, 50 MB", false, false, func(b *testing.B) []string {
			return []string{"-C", bigSubmission(b, root, 1<<20), "pack"}
		}},
		{"check/without compile", "50 ms", false, false, args("check", "--arch", "none")},
		{"check/without compile, Python", "300 ms", false, false,
			args("-C", "solution/baselines/triton", "check", "--arch", "none")},
		{"completion of a workload", "100 ms: whoever types waits for it", false, false,
			args("local", "--workload", "", completeFlag)},
		{"local/emu, 20 workloads, cold cache", "12 s, of which nvcc takes 7", false, true, args("local", "--device", "emu")},
		{"local/emu, 20 workloads, warm cache", "1.5 s", false, false, args("local", "--device", "emu")},
		{"local/emu, one workload of batch 64", "3 s, parent 300 MB", false, false, args("local", "--device", "emu", "--set",
			"contest54", "--where", "batch_size=64", "--limit", "1")},
		{"local/emu, prefill of 134 tokens", "5 s", false, false, args("-C", "solution-prefill", "local", "--device", "emu",
			"--set", "contest", "--where", "total_seq_len=134", "--limit", "1")},
		{"local/emu, prefill of 2107 tokens", "60 s", false, false, args("-C", "solution-prefill", "local", "--device", "emu",
			"--set", "contest", "--where", "total_seq_len=2107", "--limit", "1")},
		{"local/emu, init, gdn_decode", "60 s", false, true, projectOf("gdn_decode_qk4_v8_d128_k_last")},
		{"local/emu, init, gdn_prefill", "60 s", false, true, projectOf("gdn_prefill_qk4_v8_d128_k_last")},
		{"local/emu, init, DSA attention", "60 s", false, true,
			projectOf("dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64")},
		{"local/emu, init, DSA indexer", "60 s", false, true, projectOf("dsa_topk_indexer_fp8_h64_d128_topk2048_ps64")},
		{"local/emu, init, MoE", "60 s", false, true,
			projectOf("moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048")},
		{"sanitize/emu, all tools", "", false, false, args("sanitize", "--device", "emu")},
		{"sanitize/emu, no race check", "", false, false, args("sanitize", "--device", "emu", "--tool",
			"memcheck,initcheck,synccheck")},
		{"local/cuda, 20 workloads, built", "5 s", true, false, args("local", "--device", "cuda")},
		{"local/cuda, 54 workloads, built", "", true, false, args("local", "--device", "cuda", "--set", "contest54")},
	} {
		b.Run(bm.name, func(b *testing.B) {
			if bm.gpu && command("local", "--device", "cuda", "--limit", "1").Run() != nil {
				b.Skip("no GPU")
			}
			b.Log("aim: ", bm.aim)
			args := bm.args(b)
			var times []time.Duration
			var memory int64
			once := func() {
				cmd := command(args...)
				if bm.fresh {
					cmd.Env = append(os.Environ(), "FISUB_CACHE="+compilersOnly(b))
				}
				begun := time.Now()
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
				times = append(times, time.Since(begun))
				memory = max(memory, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss<<10)
			}
			once() // warm-up
			times, memory = nil, 0
			for b.Loop() {
				once()
			}
			slices.Sort(times)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(times[len(times)/2].Seconds()*1e3, "median-ms")
			b.ReportMetric(times[len(times)-1].Seconds()*1e3, "max-ms")
			b.ReportMetric(float64(memory)/1e6, "MB")
		})
	}
}

// BenchmarkTranslated compares the CPU times of a program's launches on the virtual GPU, by its interpreter alone and
// with translated code, in turn.
func BenchmarkTranslated(b *testing.B) {
	_, command := built(b)
	program := filepath.Join(b.TempDir(), "speed")
	if out, err := command("nvcc", "-O3", "-o", program, "app/testdata/kernels/speed.cu").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for _, class := range []string{"product", "stencil", "elementwise"} {
		b.Run(class, func(b *testing.B) {
			once := func(jit string) float64 {
				cmd := command("emu", program, class)
				cmd.Env = append(os.Environ(), "FISUB_EMU_JIT="+jit)
				out, err := cmd.Output()
				if err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
				seconds, err := strconv.ParseFloat(string(bytes.TrimSpace(out)), 64)
				if err != nil {
					b.Fatal(err)
				}
				return 1e3 * seconds
			}
			var interpreted, translated []float64
			for b.Loop() {
				interpreted, translated = append(interpreted, once("0")), append(translated, once("1"))
			}
			slices.Sort(interpreted)
			slices.Sort(translated)
			slow, fast := interpreted[len(interpreted)/2], translated[len(translated)/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(slow, "interpreted-cpu-ms")
			b.ReportMetric(fast, "translated-cpu-ms")
			b.ReportMetric(slow/fast, "interpreted/translated")
		})
	}
}

func args(list ...string) func(*testing.B) []string { return func(*testing.B) []string { return list } }

// projectOf creates a CUDA project with init for a definition. The benchmark runs one of its workloads.
func projectOf(definition string) func(*testing.B) []string {
	return func(b *testing.B) []string {
		dir := filepath.Join(b.TempDir(), "project")
		out, err := exec.Command(filepath.Join("..", "dist", "fisub"), "init", "--definition", definition,
			"--author", "Ada", "--name", "first", dir).CombinedOutput()
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		return []string{"-C", dir, "local", "--device", "emu", "--limit", "1"}
	}
}

// compilersOnly returns a cache that contains only this machine's compilers.
func compilersOnly(b *testing.B) string {
	of, err := cache.Root()
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "fisub-bench-") // b.TempDir contains the benchmark's name, with commas
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Symlink(filepath.Join(of, "toolchain"), filepath.Join(dir, "toolchain")); err != nil {
		b.Fatal(err)
	}
	return dir
}

// bigSubmission writes a submission with size bytes of sources.
func bigSubmission(b *testing.B, root string, size int) (dir string) {
	dir = b.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "solution", "cuda"), 0o755); err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"config.toml", "solution/cuda/kernel.cu"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
			size -= len(data)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	var header bytes.Buffer
	for i := 0; header.Len() < size; i++ {
		fmt.Fprintf(&header, "__device__ inline float f%d(float x) { return x * %d.5f; } // \"a\\n\" 漢\n", i, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "solution", "cuda", "table.cuh"), header.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	return dir
}
