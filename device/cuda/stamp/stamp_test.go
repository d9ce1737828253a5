package stamp

import (
	"fmt"
	"slices"
	"testing"

	"fisub/device"
)

func TestThrottles(t *testing.T) {
	for bits, want := range map[uint64]string{
		0: "[]", 1: "[]", 2: "[]", 256: "[]", 4: "[power cap]", 8 | 64: "[hardware slowdown hardware thermal slowdown]",
		511: "[power cap hardware slowdown sync boost software thermal slowdown hardware thermal slowdown hardware power " +
			"brake]",
	} {
		if got := fmt.Sprint(throttles(bits)); got != want {
			t.Errorf("%#x: got %s, want %s", bits, got, want)
		}
	}
}

func TestSumUp(t *testing.T) {
	if got, want := sumUp(nil), (device.During{}); got != want {
		t.Errorf("no readings: got %+v, want %+v", got, want)
	}
	one := device.Reading{SMClockMHz: 1980, MemoryClockMHz: 3201, TemperatureC: 40, PowerW: 120.5}
	if got, want := sumUp([]device.Reading{one}), (device.During{N: 1, Min: one, Median: one, Max: one}); got != want {
		t.Errorf("one: got %+v, want %+v", got, want)
	}
	got := sumUp([]device.Reading{{SMClockMHz: 3, TemperatureC: 7, PowerW: 2}, {SMClockMHz: 1, TemperatureC: 9, PowerW: 1},
		{SMClockMHz: 2, TemperatureC: 8, PowerW: 3}})
	want := device.During{N: 3, Min: device.Reading{SMClockMHz: 1, TemperatureC: 7, PowerW: 1},
		Median: device.Reading{SMClockMHz: 2, TemperatureC: 8, PowerW: 2},
		Max:    device.Reading{SMClockMHz: 3, TemperatureC: 9, PowerW: 3}}
	if got != want {
		t.Errorf("three: got %+v, want %+v", got, want)
	}
}

func TestDisturbed(t *testing.T) {
	clocks := func(low, high int) device.During {
		return device.During{N: 2, Min: device.Reading{SMClockMHz: low}, Max: device.Reading{SMClockMHz: high}}
	}
	for _, tt := range []struct {
		name  string
		stamp device.Stamp
		ecc   int64
		want  []string
	}{
		{"nothing", device.Stamp{During: clocks(1980, 1980), ClocksLocked: true, ECCErrors: 7}, 0, nil},
		{"no readings", device.Stamp{}, 0, nil},
		{"just steady", device.Stamp{During: clocks(980, 1000)}, 0, nil},
		{"unsteady", device.Stamp{During: clocks(979, 1000)}, 0, []string{"the SM clock varied from 979 to 1000 MHz"}},
		{"throttled", device.Stamp{ThrottleReasons: []string{"power cap", "sync boost"}}, 0,
			[]string{"the GPU was throttled: power cap, sync boost"}},
		{"idle neighbour", device.Stamp{OtherProcesses: []device.GPUProcess{{PID: 5}}}, 0, nil},
		{"busy neighbour", device.Stamp{OtherProcesses: []device.GPUProcess{{PID: 5, Name: "python", SMPercent: 3}}}, 0,
			[]string{"another process computed on the GPU: process 5 (python)"}},
		{"unknown neighbour", device.Stamp{OtherProcesses: []device.GPUProcess{{PID: 5, SMPercent: -1}}}, 0,
			[]string{"another process may have computed on the GPU: process 5"}},
		{"ECC", device.Stamp{}, 2, []string{"2 uncorrected ECC errors while timing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := disturbed(&tt.stamp, tt.ecc); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWithout(t *testing.T) {
	mine, busy, idle := device.GPUProcess{PID: 10, Name: "fisub", SMPercent: 50},
		device.GPUProcess{PID: 20, Name: "x", SMPercent: 60}, device.GPUProcess{PID: 30, Name: "y"}
	anonymous := func(p device.GPUProcess) device.GPUProcess { p.Name = ""; return p }
	second := device.GPUProcess{PID: 40, Name: "fisub", SMPercent: 70}
	for _, tt := range []struct {
		name      string
		own       []int
		processes []device.GPUProcess
		want      []device.GPUProcess
	}{
		{"none", []int{10}, nil, nil},
		{"alone", []int{10}, []device.GPUProcess{mine}, nil},
		{"with others", []int{10}, []device.GPUProcess{idle, mine, busy}, []device.GPUProcess{busy, idle}},
		{"two and others", []int{10, 40}, []device.GPUProcess{idle, second, mine, busy}, []device.GPUProcess{busy, idle}},
		{"one of two is not there", []int{10, 40}, []device.GPUProcess{idle, mine, busy}, []device.GPUProcess{busy, idle}},
		{"in a container the busiest is this one", []int{11}, []device.GPUProcess{busy, idle},
			[]device.GPUProcess{anonymous(idle)}},
		{"in a container the busiest two are", []int{11, 12}, []device.GPUProcess{busy, idle, second, mine},
			[]device.GPUProcess{anonymous(mine), anonymous(idle)}},
		{"in a container the last ones of none busy are", []int{11}, []device.GPUProcess{idle, {PID: 31}},
			[]device.GPUProcess{anonymous(idle)}},
		{"in a container more than there are", []int{11, 12, 13}, []device.GPUProcess{busy, idle}, nil},
		{"nobody's", nil, []device.GPUProcess{busy, idle}, []device.GPUProcess{busy, idle}},
		{"listed twice", []int{10}, []device.GPUProcess{mine, idle, idle}, []device.GPUProcess{idle}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := without(tt.processes, tt.own); !slices.Equal(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestNote(t *testing.T) {
	if got := noteOf(nil); got != "" {
		t.Errorf("got %q, want none", got)
	}
	if got, want := noteOf(map[string]string{"power": "Not Supported", "SM clock": "No"}),
		"nvml: no SM clock (No), no power (Not Supported)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
