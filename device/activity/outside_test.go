package activity

import (
	"slices"
	"testing"
	"time"

	"fisub/device"
)

func TestOutside(t *testing.T) {
	windows := []Window{{1000, 1200, 2000}, {3000, 3200, 4000}}
	// prepared is fisub's own work before the calls, and between them.
	prepared := launches(900, 1, 2100, 2, 2900, 3)
	own := []Activity{memset(0, 64, 1, 950, 990), memcpy(2, 64, 2, 2110, 2200), kernel("fill", 3, 2950, 2990)}
	calls := launches(1100, 10, 3100, 11)
	kernels := []Activity{kernel("k", 10, 1300, 1500), kernel("k", 11, 3300, 3600)}
	other := func(start, correlation uint64) []Launch {
		return []Launch{{Start: start, Thread: 2, Correlation: uint32(correlation)}}
	}
	for _, tt := range []struct {
		name       string
		launches   []Launch
		activities []Activity
		missed     []time.Duration
		work       string // after "early " if it was launched before the first call
	}{
		{"nothing", nil, nil, nil, ""},
		{"another thread after the window", other(1250, 20), []Activity{kernel("late", 20, 1600, 1900)},
			[]time.Duration{400}, "late"},
		{"another thread in each call", slices.Concat(other(1250, 20), other(3250, 21)),
			[]Activity{kernel("late", 20, 1600, 1900), kernel("late", 21, 3700, 3710)}, []time.Duration{110, 400}, "late"},
		{"at the same time as the counted kernel", other(1250, 20), []Activity{kernel("late", 20, 1310, 1320)},
			[]time.Duration{0}, "late"},
		{"a copy after the device was idle, before the outputs are read", other(2010, 20),
			[]Activity{memcpy(8, 64, 20, 2050, 2080)}, []time.Duration{580}, ""},
		{"launched before the window, running in it", other(950, 20), []Activity{kernel("early", 20, 995, 1250)},
			[]time.Duration{300}, "early"},
		{"running through all calls", other(600, 20), []Activity{kernel("resident", 20, 650, 3900)},
			[]time.Duration{2700}, "resident"},
		{"from before the first call", other(100, 20), []Activity{kernel("resident", 20, 150, 3900)},
			[]time.Duration{2700}, "early resident"},
		{"a handler on the thread itself, before the device is idle", launches(1300, 20),
			[]Activity{kernel("handler", 20, 1600, 1650)}, []time.Duration{150}, "handler"},
		{"without a known launch", nil, []Activity{kernel("unknown", 20, 1600, 1650)}, []time.Duration{150}, "unknown"},
		{"a warm-up call on another thread", other(600, 20), []Activity{kernel("warm", 20, 650, 990)}, nil, ""},
		{"before any call", other(100, 20), []Activity{kernel("busy", 20, 150, 490)}, nil, "early busy"},
		{"prepared before any call", launches(100, 20), []Activity{kernel("fill", 20, 150, 490)}, nil, ""},
		{"after the last call", other(4100, 20), []Activity{kernel("later", 20, 4150, 4160)}, nil, ""},
		{"another thread in the window is counted by the rule", other(3110, 20), []Activity{kernel("k", 20, 3400, 3500)}, nil,
			""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := New(slices.Concat(prepared, calls, tt.launches), slices.Concat(own, kernels, tt.activities), newest, 0)
			if err != nil {
				t.Fatal(err)
			}
			s := &device.Samples{}
			if err := r.Sample(s, Calls{[][]Window{windows}, nil, 1, 500}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.Trials[0], []time.Duration{200, 300}) {
				t.Errorf("got times %v, want 200 and 300 ns", s.Trials)
			}
			if s.Outside == nil {
				if tt.missed != nil || tt.work != "" {
					t.Errorf("got nothing, want %v of %s", tt.missed, tt.work)
				}
				return
			}
			slices.Sort(s.Outside.Missed)
			work := s.Outside.Work.Name
			if s.Outside.Uncalled {
				work = "early " + work
			}
			if !slices.Equal(s.Outside.Missed, tt.missed) || s.Outside.Calls != 2 || work != tt.work {
				t.Errorf("got %+v, want %v of 2 calls, first %q", s.Outside, tt.missed, tt.work)
			}
		})
	}
}

// The call apart may have other kernels, and its work is its own.
func TestApart(t *testing.T) {
	var trials [][]Window
	var calls []Launch
	var kernels []Activity
	for i := range uint64(6) {
		at := 1000 * (i + 1)
		if i%3 == 0 {
			trials = append(trials, nil)
		}
		trials[i/3] = append(trials[i/3], Window{at, at + 100, at + 900})
		name := "k"
		if i == 4 {
			name = "other"
		}
		calls = append(calls, Launch{Start: at + 50, Thread: uint32(1 + i%2), Correlation: uint32(i)})
		kernels = append(kernels, kernel(name, uint32(i), at+200, at+300+i))
	}
	r, err := New(calls, kernels, newest, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, apart := &device.Samples{}, 4
	if err := r.Sample(s, Calls{Trials: trials, Thread: 1}); err == nil {
		t.Error("got no error, want inconsistent names")
	}
	if err := r.Sample(s, Calls{Trials: trials, Thread: 1, Apart: &apart}); err != nil || s.Outside != nil ||
		!slices.Equal(s.Trials[0], []time.Duration{100, 101, 102}) || !slices.Equal(s.Trials[1], []time.Duration{103, 105}) {
		t.Errorf("got %+v, %v, want the times of all calls but number 4", s, err)
	}
}

// All work of the call apart may be outside of its window.
func TestApartOutside(t *testing.T) {
	calls := append(launches(1100, 10), Launch{Start: 3300, Thread: 2, Correlation: 20})
	r, err := New(calls, []Activity{kernel("k", 10, 1300, 1500), kernel("late", 20, 3400, 3450)}, newest, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, apart := &device.Samples{}, 1
	windows := []Window{{1000, 1200, 2000}, {3000, 3200, 4000}}
	if err := r.Sample(s, Calls{[][]Window{windows}, &apart, 1, 500}); err != nil {
		t.Fatal(err)
	}
	if o := s.Outside; o == nil || !slices.Equal(o.Missed, []time.Duration{50}) || o.Work.Name != "late" {
		t.Errorf("got %+v, want 50 ns of late", o)
	}
}

func TestHostFunction(t *testing.T) {
	kernels := []Activity{kernel("k", 10, 1300, 1500)}
	for _, tt := range []struct {
		at   uint64
		want string
	}{{900, ""}, {1150, "cudaLaunchHostFunc"}, {1500, "cudaLaunchHostFunc"}, {2500, ""}} {
		r, err := New(append(launches(1100, 10), Launch{Start: tt.at, Thread: 2, Host: "cudaLaunchHostFunc"}), kernels, newest, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &device.Samples{}
		if err := r.Sample(s, Calls{[][]Window{{{1000, 1200, 2000}}}, nil, 1, 500}); err != nil || s.HostFunction != tt.want {
			t.Errorf("queued at %d: got %q, %v, want %q", tt.at, s.HostFunction, err, tt.want)
		}
	}
}
