package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"fisub/bench/pyworker"
	"fisub/device/devicetest"
	"fisub/device/nvcc"
	"fisub/device/vgpu/cublas"
	"fisub/device/vgpu/vgputest"
	"fisub/internal/event"
	"fisub/internal/longtest"
	"fisub/internal/sandbox"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/runs"
	"fisub/runs/stats"
)

func TestMain(m *testing.M) {
	// On a remote host the program has another name.
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	testscript.Main(m, map[string]func(){
		"fisub": func() { os.Exit(Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) },
		"bare":  func() {}, // implemented on Linux only
	})
}

// A file that cannot be written is not a fault of the input.
func TestExitOfWriting(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{&fs.PathError{Op: "mkdir", Path: "out", Err: syscall.EACCES}, exitError},
		{&fs.PathError{Op: "mkdirat", Path: "out", Err: syscall.EROFS}, exitError},
		{errors.Join(&fs.PathError{Op: "write", Path: "out/config.toml", Err: syscall.ENOSPC}), exitError},
		{&fs.PathError{Op: "open", Path: "solution.json", Err: syscall.EACCES}, exitUsage},
		{&fs.PathError{Op: "mkdir", Path: "file/out", Err: syscall.ENOTDIR}, exitUsage},
	} {
		a := &app{term: &ui.Terminal{Out: io.Discard, Err: io.Discard}}
		if got := a.exit(usage.Invalid(tc.err)); got != tc.want {
			t.Errorf("%v: got %d, want %d", tc.err, got, tc.want)
		}
	}
}

// The scripts share one cache, so that each kernel is built once. Each runs in a folder with a copy of this
// repository's submission.
func TestScripts(t *testing.T) {
	t.Parallel()
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	cacheDir := newCache(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", filepath.Join(env.WorkDir, ".tmp")) // it exists
			env.Setenv("FISUB_CACHE", cacheDir)
			env.Setenv("REPO", repo)
			env.Setenv("FISUB_BIN", filepath.SplitList(env.Getenv("PATH"))[0])
			env.Setenv("KERNELS", filepath.Join(repo, "app", "testdata", "kernels"))
			env.Setenv("FIB_DATASET_PATH", "")
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Setenv("FISUB_PYTHON", os.Getenv("FISUB_PYTHON"))
			return copySubmission(repo, env.WorkDir)
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "landlock":
				return sandbox.State().Files(), nil
			case "all":
				return longtest.All(), nil
			case "cublas": // its headers are 400 MB to fetch
				tools, err := nvcc.Find(cacheDir)
				if err != nil {
					return false, err
				}
				_, ok := cublas.Include(cacheDir, tools)
				return ok, nil
			case "python":
				_, err := pyworker.Command(t.Context(), cacheDir)
				if err != nil && longtest.Required("python") {
					return false, err
				}
				return err == nil, nil
			case "cutlass":
				c, err := pyworker.Command(t.Context(), cacheDir)
				return err == nil && exec.CommandContext(t.Context(), c.Args[0], "-c", "import cutlass.cute").Run() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"replace": replace,
			"lines":   lines,
			"bytes":   writeBytes,
			"newest":  newest,
			"isjson":  isJSON,
			"sub":     sub,
			"entry":   entry,
			"timed":   timed,
			"scored":  scored,
			"forged":  forged,
			"typed":   typed,
			"library": library,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// newCache returns a cache that contains only what tests have compiled before.
func newCache(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	devicetest.Share(t, dir)
	return dir
}

// forged runs the submission forge.cu with the entry point WAY here and through loopback. No run may pass, now or when
// it is read again, and none may reach the judge. With Landlock each gets its proper verdict. Without Landlock (the
// argument "bare") it may get no verdict, and may reach files.
func forged(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: forged WAY [bare]")
	}
	sound := sandbox.State().Files()
	without := len(args) > 1
	if !sound && !without {
		return
	}
	entry(ts, false, args[:1])
	for _, command := range [][]string{
		{"local", "--device", "emu"}, {"remote", "--on", "loopback", "--gpu", "none"},
	} {
		command = append([]string{"bare", "fisub"}, append(command, "--workload", "96825aea", "--strict")...)
		if !without {
			command = command[1:]
		}
		var exit *exec.ExitError
		if err := ts.Exec(command[0], command[1:]...); !errors.As(err, &exit) || exit.ExitCode() != exitNotPassed && !without {
			ts.Fatalf("%s: got %v, want exit status 3", command, err)
		}
		printed := ts.ReadFile("stdout")
		if err := ts.Exec("fisub", "runs", "show", "last"); err != nil && !without {
			ts.Fatalf("%v", err)
		}
		for _, text := range []string{printed, ts.ReadFile("stdout")} {
			if strings.Contains(text, "PASSED  ") || !strings.Contains(text, "INCORRECT_NUMERICAL") && !without {
				ts.Fatalf("%s: forged:\n%s", command, text)
			}
		}
	}
	reached := regexp.MustCompile(`forge: reached .*`)
	if without { // memory of the judge and of the agent, whose file is named by its hash
		reached = regexp.MustCompile(`forge: reached (memory|ptrace|descriptor) .* of (fisub|[0-9a-f]{15})\n`)
	}
	logs, _ := filepath.Glob(ts.MkAbs(".fisub/runs/*/log/*.log"))
	for _, log := range logs {
		if text := reached.FindString(ts.ReadFile(log)); text != "" {
			ts.Fatalf("%s: %s", log, text)
		}
	}
	ts.Check(os.RemoveAll(ts.MkAbs(".fisub/runs")))
}

// library provides the virtual GPU's library to the commands that follow. It may take minutes to build, so only scripts
// that run Python or fisub emu have it.
func library(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: library")
	}
	ts.Check(vgputest.Library())
	ts.Setenv("FISUB_VGPU_LIBRARY", os.Getenv("FISUB_VGPU_LIBRARY"))
}

// isJSON checks that the last command printed one or more JSON values and nothing else.
func isJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: isjson")
	}
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	for n := 0; ; n++ {
		var v any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) && n > 0 {
			return
		} else if err != nil {
			ts.Fatalf("stdout: value %d: %v", n+1, err)
		}
	}
}

// sub KERNEL DEFINITION turns the work folder into a submission of KERNEL.cu for the definition.
func sub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sub KERNEL DEFINITION")
	}
	config := fmt.Sprintf(
		"[solution]\nname = %q\ndefinition = %q\nauthor = \"test\"\n\n[build]\nlanguage = \"cuda\"\nentry_point = "+
			"\"kernel.cu::kernel\"\n", args[0], args[1])
	ts.Check(os.WriteFile(ts.MkAbs("config.toml"), []byte(config), 0o644))
	ts.Check(os.RemoveAll(ts.MkAbs("solution")))
	ts.Check(os.MkdirAll(ts.MkAbs("solution/cuda"), 0o755))
	kernel, err := os.ReadFile(filepath.Join(ts.Getenv("KERNELS"), args[0]+".cu"))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("solution/cuda/kernel.cu"), kernel, 0o644))
}

// entry NAME sets the entry point of the submission to the function NAME of kernel.cu.
func entry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: entry NAME")
	}
	config := regexp.MustCompile(`kernel\.cu::\w+`).ReplaceAllString(ts.ReadFile("config.toml"), "kernel.cu::"+args[0])
	ts.Check(os.WriteFile(ts.MkAbs("config.toml"), []byte(config), 0o644))
}

func copySubmission(repo, dir string) error {
	for _, name := range []string{"config.toml", "solution/cuda/kernel.cu", "solution/cuda/decode.cuh",
		"solution/cuda/table.cuh"} {
		data, err := os.ReadFile(filepath.Join(repo, name))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// exits STATUS COMMAND... checks the exit status, and that the program did not crash: a panic has the status of a
// wrong flag.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits status command...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if args[0] != strconv.Itoa(got) {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
	if crashed.MatchString(ts.ReadFile("stderr")) {
		ts.Fatalf("the program crashed")
	}
}

var crashed = regexp.MustCompile(`(?m)^(panic|fatal error): |^goroutine \d+ `)

// replace FILE OLD NEW replaces the first OLD in FILE, and fails if it is missing.
func replace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replace file old new")
	}
	name := ts.MkAbs(args[0])
	data := ts.ReadFile(name)
	if !strings.Contains(data, args[1]) {
		ts.Fatalf("%s does not contain %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(name, []byte(strings.Replace(data, args[1], args[2], 1)), 0o644))
}

// lines FILE N checks that FILE, or stdout, has N lines.
func lines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines file n")
	}
	if got := strings.Count(ts.ReadFile(args[0]), "\n"); args[1] != strconv.Itoa(got) {
		ts.Fatalf("%s has %d lines, want %s", args[0], got, args[1])
	}
}

// newest NAME sets the variable NAME to the id of the newest run.
func newest(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: newest name")
	}
	id, err := runs.Find(ts.MkAbs("."), "last")
	ts.Check(err)
	ts.Setenv(args[0], id)
}

// timed ID FACTOR SEED copies the emulated run $RUN to a run ID that looks as if it had been timed on a GPU: 3 trials
// of 50 timings of 2.6 us times FACTOR, with 1.5 % noise, on a timer with ticks of 32 ns.
func timed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: timed id factor seed")
	}
	factor, err := strconv.ParseFloat(args[1], 64)
	ts.Check(err)
	seed, err := strconv.ParseUint(args[2], 10, 64)
	ts.Check(err)
	remake(ts, args[0], factor, seed, func(*runs.Run, *runs.Row) {})
}

// scored ID BASELINE SPEEDUP is like timed, with a baseline that takes SPEEDUP times as long, and with all other kinds
// of figures.
func scored(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: scored id baseline speedup")
	}
	speedup, err := strconv.ParseFloat(args[2], 64)
	ts.Check(err)
	remake(ts, args[0], 1, 1, func(r *runs.Run, row *runs.Row) {
		r.Run.Baseline, r.Run.Floors = &event.Baseline{Name: args[1], Solution: args[1],
			ContentHash: fmt.Sprintf("%040x", args[1])}, true
		s := row.Samples
		s.Baseline, s.Warm = &event.Timings{MedianNS: speedup * s.MedianNS, N: 150}, &event.Timings{MedianNS: 2000, N: 50}
		s.CopyNS, s.CopyShare, s.EmptyNS = s.MedianNS/2, 0.5, 1000
		row.Evaluated.Ratio = &speedup
	})
}

// remake copies the emulated run $RUN to a run of that id, with timings as in timed. change may edit the rows.
func remake(ts *testscript.TestScript, id string, factor float64, seed uint64, change func(*runs.Run, *runs.Row)) {
	root := ts.MkAbs(".")
	r, err := runs.Read(filepath.Join(root, runs.Dir, ts.Getenv("RUN")))
	ts.Check(err)
	random := rand.New(rand.NewPCG(seed, 1))
	r.Run.ID = id
	r.Run.Device = event.Device{Kind: "cuda", Name: "NVIDIA H200", Arch: "sm_90", Driver: "580.159", CUDA: "13.0",
		Toolchain: "nvcc 13.0", UUID: "GPU-1"}
	for i := range r.Rows {
		s := &event.Samples{Timer: "cupti", ColdL2: true, N: 150, Bandwidth: 400, Interval: event.Interval{Width: 0.012}}
		for range 3 {
			var trial []int64
			for range 50 {
				trial = append(trial, int64(32*math.Round(2600*factor*math.Exp(0.015*random.NormFloat64())/32)))
			}
			s.TrialsNS = append(s.TrialsNS, trial)
		}
		s.MedianNS, s.MinNS = stats.Latency(s.TrialsNS), slices.Min(s.TrialsNS[0])
		r.Rows[i].Samples, r.Rows[i].Evaluated.Trace.Evaluation.Performance.LatencyMS = s, s.MedianNS/1e6
		change(r, &r.Rows[i])
	}
	folder := runs.NewFolder(root, id)
	stream := event.NewStream(folder.Record)
	r.Emit(stream)
	ts.Check(stream.Err())
	ts.Check(folder.Close())
}

// typed FILE STATUS COMMAND... runs COMMAND with a terminal as stdin and stderr, types the content of FILE and Ctrl-D,
// and writes the terminal's output to the file screen. testscript's ttyin and ttyout lose the last output on a busy
// machine, because they close the terminal before they have read everything.
func typed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: typed file status command...")
	}
	keyboard, tty, err := openTerminal()
	ts.Check(err)
	defer keyboard.Close()
	screen := make(chan []byte)
	go func() {
		var text bytes.Buffer
		_, _ = text.ReadFrom(keyboard) // ends with EIO when nobody has the terminal open
		screen <- text.Bytes()
	}()
	_, err = keyboard.WriteString(ts.ReadFile(args[0]) + "\x04")
	if err == nil {
		exits(ts, false, append([]string{args[1], "sh", "-c", `exec "$@" <"$0" 2>"$0"`, tty.Name()}, args[2:]...))
	}
	tty.Close()
	text := <-screen
	ts.Check(errors.Join(err, os.WriteFile(ts.MkAbs("screen"), text, 0o666)))
	ts.Logf("[terminal]\n%s", text)
}

// bytes FILE TEXT writes TEXT, which may contain Go escapes such as \xff, to FILE.
func writeBytes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: bytes file text")
	}
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}
