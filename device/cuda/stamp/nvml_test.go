//go:build cuda && linux && cgo

package stamp

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/device"
)

const uuid = "GPU-10101010-1010-1010-1010-101010101010"

// TestWithFakeNVML runs each case in a child process whose libnvidia-ml.so.1 is testdata/fakenvml.c.
func TestWithFakeNVML(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler for the fake NVML")
	}
	dir := t.TempDir()
	for _, flag := range []string{"-DNEW", "-DOLD"} {
		if err := os.MkdirAll(filepath.Join(dir, flag), 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(cc, "-shared", "-fPIC", "-Wall", "-Werror", flag, "-o",
			filepath.Join(dir, flag, "libnvidia-ml.so.1"), "testdata/fakenvml.c").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for name := range cases {
		t.Run(name, func(t *testing.T) {
			flag := "-DNEW"
			if name == "old" {
				flag = "-DOLD"
			}
			cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout=1m", "-test.run=^TestFake$")
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(dir, flag), "FAKE_NVML="+name)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestFake") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

type result struct {
	stamp     device.Stamp // without readings, which are the same in all cases
	sm        [2]int       // minimum and maximum SM clock
	disturbed []string
	power     float64
}

var cases = map[string]result{
	"quiet": {stamp: device.Stamp{ECCErrors: 7}},
	"throttled": {stamp: device.Stamp{ECCErrors: 7, ThrottleReasons: []string{"power cap"}},
		disturbed: []string{"the GPU was throttled: power cap"}},
	"clocks": {stamp: device.Stamp{ECCErrors: 7}, sm: [2]int{1755, 1980},
		disturbed: []string{"the SM clock varied from 1755 to 1980 MHz"}},
	"ecc":  {stamp: device.Stamp{ECCErrors: 9}, disturbed: []string{"2 uncorrected ECC errors while timing"}},
	"mig":  {stamp: device.Stamp{ECCErrors: 7, MIG: true}},
	"poor": {stamp: device.Stamp{ECCErrors: 7, Note: "nvml: no power (Not Supported)"}, power: -1},
	"old":  {stamp: device.Stamp{ECCErrors: 7}},
	"shared": {stamp: device.Stamp{ECCErrors: 7, OtherProcesses: []device.GPUProcess{{PID: 4000002, MemoryBytes: 700 << 20,
		SMPercent: 30}}},
		disturbed: []string{"another process computed on the GPU: process 4000002"}},
	"container": {stamp: device.Stamp{ECCErrors: 7,
		OtherProcesses: []device.GPUProcess{{PID: 4000002, MemoryBytes: 700 << 20, SMPercent: 30}}},
		disturbed: []string{"another process computed on the GPU: process 4000002"}},
	"many": {},
	"down": {},
}

func TestFake(t *testing.T) {
	name := os.Getenv("FAKE_NVML")
	if name == "" {
		t.Skip("run by TestWithFakeNVML")
	}
	m, err := Open(uuid)
	if name == "down" {
		if err == nil || err.Error() != "nvml: starting: Driver Not Loaded" {
			t.Errorf("got %v, want NVML's error", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if name == "many" {
		gpus, err := GPUs()
		if err != nil || len(gpus) != 1 || gpus[0].UUID != "GPU-1" || gpus[0].Name != "NVIDIA Fake" ||
			len(gpus[0].Processes) != 20 {
			t.Fatalf("got %+v, %v, want one GPU with 20 processes", gpus, err)
		}
		first, last := gpus[0].Processes[0], gpus[0].Processes[19]
		if first.PID != os.Getpid() || first.Name == "" || first.MemoryBytes != 500<<20 {
			t.Errorf("got %+v, want this process with 500 MiB", first)
		}
		if last != (device.GPUProcess{PID: 4000020}) {
			t.Errorf("got %+v, want process 4000020, of which nothing more is known", last)
		}
		return
	}
	want := cases[name]
	want.stamp.ECC, want.stamp.ClocksLocked = true, true
	if want.sm == [2]int{} {
		want.sm = [2]int{1980, 1980}
	}
	clock := make(chan time.Time)
	ticks = func() (<-chan time.Time, func()) { return clock, func() {} }
	end := m.Begin([]int{os.Getpid()})
	for range 3 {
		clock <- time.Time{}
	}
	stamp, disturbed := end()
	before, during, after := stamp.Before, stamp.During, stamp.After
	stamp.Before, stamp.During, stamp.After = device.Reading{}, device.During{}, device.Reading{}
	if stamp.Note != want.stamp.Note || stamp.MIG != want.stamp.MIG || stamp.ECCErrors != want.stamp.ECCErrors ||
		!stamp.ECC || !stamp.ClocksLocked ||
		!slices.Equal(stamp.ThrottleReasons, want.stamp.ThrottleReasons) ||
		!slices.Equal(stamp.OtherProcesses, want.stamp.OtherProcesses) {
		t.Errorf("got %+v, want %+v", stamp, want.stamp)
	}
	if !slices.Equal(disturbed, want.disturbed) {
		t.Errorf("got %q, want %q", disturbed, want.disturbed)
	}
	if during.N != 4 || during.Min.SMClockMHz != want.sm[0] || during.Max.SMClockMHz != want.sm[1] {
		t.Errorf("got %+v, want four readings with clocks of %v", during, want.sm)
	}
	power := 123.456
	if want.power < 0 {
		power = 0
	}
	for _, r := range []device.Reading{before, during.Median, after} {
		if r.MemoryClockMHz != 3201 || r.TemperatureC != 41 || r.PowerW != power {
			t.Errorf("got %+v, want 3201 MHz, 41 °C, %g W", r, power)
		}
	}
}

func TestNoNVML(t *testing.T) {
	m, err := Open(uuid)
	if err == nil {
		m.Close()
		t.Skip("there is an NVML here that knows " + uuid)
	}
	if !strings.HasPrefix(err.Error(), "nvml: ") {
		t.Errorf("got %v, want an error of nvml", err)
	}
	t.Logf("here: %v", err)
}
