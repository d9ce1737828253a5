package pyworker

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/memfile"
)

// fakeGPU starts the worker of testdata/fake_gpu.py with the driver and CUPTI of device/cuda's tests. measure times a
// body of `def run` in which launch(name, delay, ns) is a kernel.
func fakeGPU(t *testing.T, version string) (measure func(body string, plan device.Plan) (*device.Samples, error)) {
	t.Helper()
	client := fakeClient(t, version)
	return func(body string, plan device.Plan) (*device.Samples, error) {
		t.Helper()
		return timed(t, client, fakeHead+body, plan)
	}
}

// fakeHead begins a solution for the fake GPU up to the body of `def run`.
const fakeHead = "import ctypes, os, torch\nlib, calls = ctypes.CDLL(os.environ['FISUB_FAKE_LIB']), []\n" +
	"launch = lambda name, delay, ns: lib.fake_launch(name, ctypes.c_long(delay), ctypes.c_long(ns))\n" +
	"def run(x, c, y, total):\n    calls.append(0)\n"

// give builds and loads source.
func give(t *testing.T, client *worker.Client, source string) {
	t.Helper()
	if err := build(t, client, source, true); err != nil {
		t.Fatal(err)
	}
	load(t, client)
}

// timed builds, loads and measures source.
func timed(t *testing.T, client *worker.Client, source string, plan device.Plan) (*device.Samples, error) {
	t.Helper()
	give(t, client, source)
	samples, _, err := client.Measure(t.Context(), worker.JudgedPlan{Plan: plan})
	return samples, err
}

// Timed calls find poisoned outputs, and the outputs of judged calls are stored.
func TestFakeJudged(t *testing.T) {
	client := fakeClient(t, "140000")
	give(t, client, fakeHead+first+"    assert torch.isnan(y).all()\n    y.copy_(x + len(calls))\n")
	out, err := memfile.New("outputs", 1024)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, timer := range device.Timers {
		plan := worker.JudgedPlan{Plan: device.Plan{Iterations: 4, Trials: 2, Timer: timer}, Judged: []int{1, 6}, Stride: 512, Out: out}
		_, judged, err := client.Measure(t.Context(), plan)
		if want := []worker.Judged{{Call: 1}, {Call: 6}}; err != nil || !reflect.DeepEqual(judged, want) {
			t.Fatalf("%s: got %+v, %v, want %+v", timer, judged, err, want)
		}
		// A trial is six calls and the timed ones.
		earlier, later := floats(t, out, 0, 3)[0], floats(t, out, 512, 3)[0]
		if later-earlier != 11 {
			t.Errorf("%s: got %g and %g, want those of calls 8 and 19", timer, earlier, later)
		}
	}
}

// A patch changes an input in one timed call, whose time and kernels do not count.
func TestFakePatch(t *testing.T) {
	client := fakeClient(t, "130001")
	give(t, client, fakeHead+"    launch(b'first' if x[0] == 1 else b'other', 1000, 3000)\n    y.copy_(x * c)\n")
	out, err := memfile.New("outputs", 2048)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	number := func(x float32) []byte { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(x)) }
	apart := 1
	for _, timer := range device.Timers {
		plan := worker.JudgedPlan{Plan: device.Plan{Iterations: 4, Trials: 1, Timer: timer, Apart: &apart}, Judged: []int{0, 1, 2},
			Stride: 512, Out: out, Patch: &worker.Patch{Old: number(1), New: number(7)}}
		s, _, err := client.Measure(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Trials) != 1 || len(s.Trials[0]) != 3 || s.Truncated || s.Outside != nil {
			t.Errorf("%s: got %+v, want the times of three calls", timer, s)
		}
		for k, first := range []float32{5, 35, 5} {
			if got, want := floats(t, out, 512*k, 3), []float32{first, -10, 150}; !slices.Equal(got, want) {
				t.Errorf("%s: call %d: got %v, want %v", timer, k, got, want)
			}
		}
	}
}

func fakeClient(t *testing.T, version string) *worker.Client {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler for the fake driver: %v", err)
	}
	c := command(t)
	lib := filepath.Join(t.TempDir(), "libfake.so")
	const sources = "../../device/cuda/testdata/"
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", lib, sources+"fakecuda.c",
		sources+"fakecupti.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := filepath.Abs("testdata/fake_gpu.py")
	if err != nil {
		t.Fatal(err)
	}
	c.Args = []string{c.Args[0], "-u", "-B", program}
	c.Env = []string{"FISUB_FAKE_LIB=" + lib, "FAKE_CUPTI_VERSION=" + version}
	client, err := worker.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := client.Open(t.Context(), "cuda", device.Options{CacheDir: t.TempDir()}); err != nil {
		t.Fatal(err, client.TakeLog())
	}
	return client
}

const first = "    launch(b'_Z5firstPfi', 1000, 3000)\n"

func TestFakeCUPTI(t *testing.T) {
	// CUPTI of CUDA 12.0, and one newer than any known.
	for _, version := range []string{"19", "140000"} {
		measure := fakeGPU(t, version)
		plan := device.Plan{Warmup: 2, Iterations: 4, Trials: 3, ColdL2: true}
		for _, timer := range []string{"", device.TimerCUPTI} {
			var told []bool
			plan.Timer, plan.Timing = timer, func(on bool) { told = append(told, on) }
			s, err := measure(first+"    launch(b'second', 6000, 500)\n", plan)
			if err != nil {
				t.Fatal(err)
			}
			sizes := device.Activity{Kind: "kernel", Name: "first(float*, int)", Grid: [3]int{1, 2, 3}, Block: [3]int{32, 4, 1},
				Registers:         40,
				StaticSharedBytes: 1024, DynamicSharedBytes: 2048, LocalBytes: 16, MedianNS: 3000}
			two := []device.Activity{sizes, sizes}
			two[1].Name, two[1].MedianNS = "second", 500
			if s.Timer != "cupti" || s.TimerNote != "" || !slices.Equal(s.Kernels, two) || len(s.Trials) != 3 || s.Truncated ||
				!s.ColdL2 {
				t.Errorf("got %+v, want 3 trials by CUPTI of %+v", s, two)
			}
			for _, row := range s.Trials {
				// The machine may be busy between the two launches.
				if len(row) != 4 || slices.Min(row) < 5500 || slices.Max(row) > time.Minute {
					t.Errorf("got %v, want 4 times the kernels and the gap between them", row)
				}
			}
			if !slices.Equal(told, []bool{true, false}) {
				t.Errorf("told %v, want the start and the end", told)
			}
		}
	}
}

// Work that another thread launches after the call is not in its time, but in Outside.
func TestFakeOutside(t *testing.T) {
	measure := fakeGPU(t, "130001")
	plan := device.Plan{Warmup: 2, Iterations: 4, Trials: 3, ColdL2: true}
	for _, tt := range []struct {
		body, host string
		missed     int
	}{
		{first, "", 0},
		{first + "    lib.fake_thread(2000)\n", "", 0}, // in the window
		{first + "    lib.fake_late(2000)\n", "", 12},
		{first + "    lib.fake_host_function(); lib.fake_late(2000)\n", "cuLaunchHostFunc", 12},
	} {
		s, err := measure(tt.body, plan)
		if err != nil {
			t.Fatal(err)
		}
		missed := 0
		if s.Outside != nil {
			if missed = len(s.Outside.Missed); s.Outside.Calls != 12 || s.Outside.Work.Name != "late" || slices.Min(s.Outside.Missed) < 2000 {
				t.Errorf("%s: got %+v, want 2 us or more of the kernel late", tt.body, s.Outside)
			}
		}
		if s.PersistingL2 != 0 {
			t.Errorf("%s: got %d bytes of the L2, want the default", tt.body, s.PersistingL2)
		}
		if missed != tt.missed || s.HostFunction != tt.host {
			t.Errorf("%s: got %d calls and %q, want %d and %q", tt.body, missed, s.HostFunction, tt.missed, tt.host)
		}
	}
	if s, err := measure(first+"    lib.fake_reserve(20 << 20)\n", plan); err != nil || s.PersistingL2 != 20<<20 {
		t.Errorf("got %+v, %v, want 20 MiB of the L2", s, err)
	}
}

func TestFakeCUPTIErrors(t *testing.T) {
	measure := fakeGPU(t, "140000")
	plan := device.Plan{Iterations: 20, Trials: 2, Timer: device.TimerCUPTI}
	for _, tc := range []struct{ name, body, text string }{
		{"no kernel", "    pass\n", "ValueError: No kernel activities recorded for iteration 0"},
		{"not always the same", first + "    if len(calls) % 8 == 0:\n        launch(b'now_and_then', 1, 1)\n",
			"ValueError: Inconsistent kernel names: {'_Z5firstPfi_0_0_0_10'} != {'_Z5firstPfi_0_0_0_10', " +
				"'now_and_then_0_0_0_10'}"},
		{"raises while it is timed", first + "    if len(calls) == 20:\n        raise ValueError('late')\n",
			"ValueError: late"},
	} {
		var we *worker.Error
		if _, err := measure(tc.body, plan); !errors.As(err, &we) || we.Kind != worker.Call || we.Text != tc.text {
			t.Errorf("%s: got %v, want %s", tc.name, err, tc.text)
		}
	}
	if s, err := measure(first, plan); err != nil || s.Timer != "cupti" || slices.Min(s.Trials[1]) != 3000 {
		t.Errorf("after errors: got %+v, %v, want 3us by CUPTI", s, err)
	}
	plan.MaxTime = 20 * time.Millisecond
	plan.Iterations = 1 << 20
	if s, err := measure(first+"    import time; time.sleep(0.002)\n", plan); err != nil || len(s.Trials) != 1 ||
		len(s.Trials[0]) == 0 || !s.Truncated || s.Timer != "cupti" {
		t.Errorf("out of time: got %+v, %v, want a part of one trial", s, err)
	}
	plan = device.Plan{Iterations: 3, Trials: 2}
	for _, tc := range []struct{ wrong, text string }{
		{"subscribed", "cupti: cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"},
		{"privileges", "cupti: cuptiActivityEnable: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"},
		{"drops", "cupti: 3 records were lost"},
		{"zero", "cupti: a kernel was recorded without a time"},
		{"backwards", "cupti: a kernel was recorded from "},
		{"strangers", "cupti: unknown version of CUPTI's records"},
	} {
		body := first + "    os.environ['FAKE_CUPTI'] = '" + tc.wrong + "'\n"
		if tc.wrong == "subscribed" || tc.wrong == "privileges" { // must be in force before the first call
			plan.Timer = device.TimerEvents
			if _, err := measure(body, plan); err != nil {
				t.Fatal(err)
			}
			body = first
		}
		plan.Timer = device.TimerCUPTI
		var we *worker.Error
		if _, err := measure(body, plan); !errors.As(err, &we) || we.Kind != worker.Machine || we.Code != "no-timer" ||
			!strings.HasPrefix(we.Text, tc.text) {
			t.Errorf("%s: got %v, want %s", tc.wrong, err, tc.text)
		}
		plan.Timer = device.TimerAuto
		s, err := measure(body, plan)
		if err != nil || s.Timer != "cuda events" || !strings.HasPrefix(s.TimerNote, tc.text) || len(s.Trials) != 2 ||
			len(s.Trials[0]) != 3 || s.Kernels != nil {
			t.Errorf("%s: got %+v, %v, want events with the note %s", tc.wrong, s, err, tc.text)
		}
		plan.Timer = device.TimerEvents
		if _, err := measure("    os.environ.pop('FAKE_CUPTI', None)\n", plan); err != nil {
			t.Fatal(err)
		}
	}
}

// torch's libcupti, if there is one, has all functions that are called.
func TestCUPTILibrary(t *testing.T) {
	c := command(t)
	out, err := exec.Command(c.Args[0], "-B", "-c", `
import ctypes, torch
from fisub_worker import cupti
paths = [p for p in cupti.cupti_paths(str(torch.version.cuda).partition(".")[0]) if "/" in p]
for path in paths:
    try:
        lib = ctypes.CDLL(path)
    except OSError:
        continue
    print(path, [name for name in cupti.FUNCTIONS if not hasattr(lib, name)])
    break
`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(out) == 0 {
		t.Skip("this torch has no libcupti")
	}
	if !strings.HasSuffix(strings.TrimSpace(string(out)), " []") {
		t.Errorf("got %s, want no missing function", out)
	}
	if _, err := os.Stat(strings.Fields(string(out))[0]); err != nil {
		t.Error(err)
	}
}
