package activity

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/device"
)

func kernel(symbol string, correlation uint32, start, end uint64) Activity {
	return Activity{Activity: device.Activity{Kind: "kernel", Name: symbol}, Symbol: symbol, Start: start, End: end,
		Correlation: correlation}
}

func memset(value int, bytes int64, correlation uint32, start, end uint64) Activity {
	return Activity{Activity: device.Activity{Kind: "memset", Bytes: bytes}, Value: value, Start: start, End: end,
		Correlation: correlation}
}

func memcpy(kind int, bytes int64, correlation uint32, start, end uint64) Activity {
	return Activity{Activity: device.Activity{Kind: "memcpy", Bytes: bytes}, CopyKind: kind, Start: start, End: end,
		Correlation: correlation}
}

// launches returns calls of thread 1 at the first of each two numbers, with the second as its correlation.
func launches(numbers ...uint64) (all []Launch) {
	for i := 0; i < len(numbers); i += 2 {
		all = append(all, Launch{Start: numbers[i], Thread: 1, Correlation: uint32(numbers[i+1])})
	}
	return all
}

func TestMatch(t *testing.T) {
	windows := []Window{{100, 200, 600}, {1100, 1200, 1600}}
	// flush is the harness's own memset before the window.
	flush := []Launch{{Start: 50, Correlation: 1}, {Start: 1050, Correlation: 2}}
	flushes := []Activity{memset(0, 1<<20, 1, 60, 95), memset(0, 1<<20, 2, 1060, 1095)}
	two := launches(110, 10, 1110, 20)
	for _, tt := range []struct {
		name       string
		launches   []Launch
		activities []Activity
		times      []time.Duration
		kernels    string
		err        string
	}{
		{"one kernel, records in any order", []Launch{two[1], two[0]},
			[]Activity{kernel("k", 20, 1210, 1219), kernel("k", 10, 130, 135)},
			[]time.Duration{5, 9}, "k", ""},
		{"a gap between kernels counts, the time before the first does not",
			launches(110, 10, 120, 11, 1110, 20, 1120, 21),
			[]Activity{kernel("b", 11, 300, 310), kernel("a", 10, 150, 160), kernel("a", 20, 1150, 1160),
				kernel("b", 21, 1161, 1171)},
			[]time.Duration{160, 21}, "a b", ""},
		{"side streams overlap", launches(110, 10, 120, 11, 1110, 20, 1120, 21),
			[]Activity{kernel("a", 10, 150, 400), kernel("b", 11, 140, 300), kernel("a", 20, 1150, 1160),
				kernel("b", 21, 1100, 1200)},
			[]time.Duration{260, 100}, "b a", ""},
		{"copies and memsets count", launches(110, 10, 120, 11, 130, 12, 1110, 20, 1120, 21, 1130, 22),
			[]Activity{memset(7, 64, 10, 150, 151), kernel("a", 11, 152, 160), memcpy(8, 32, 12, 170, 180),
				memset(7, 64, 20, 1150, 1151), kernel("a", 21, 1152, 1160), memcpy(8, 32, 22, 1170, 1171)},
			[]time.Duration{30, 21}, "memset a memcpy", ""},
		{"a launch after the window is another thread's", launches(110, 10, 201, 11, 1110, 20, 1201, 21),
			[]Activity{kernel("a", 10, 150, 160), kernel("late", 11, 155, 500), kernel("a", 20, 1150, 1160),
				kernel("late", 21, 1155, 1500)},
			[]time.Duration{10, 10}, "a", ""},
		{"launches on the edges of the window", launches(100, 10, 200, 11, 1100, 20, 1200, 21),
			[]Activity{kernel("a", 10, 150, 160), kernel("b", 11, 160, 165), kernel("a", 20, 1150, 1160),
				kernel("b", 21, 1160, 1164)},
			[]time.Duration{15, 14}, "a b", ""},
		{"a graph: one launch, many kernels", two,
			[]Activity{kernel("a", 10, 150, 160), kernel("b", 10, 160, 170), kernel("b", 20, 1160, 1170),
				kernel("a", 20, 1150, 1160)},
			[]time.Duration{20, 20}, "a b", ""},
		{"the runtime's call and the driver's share a number", launches(110, 10, 111, 10, 1110, 20, 1111, 20),
			[]Activity{kernel("a", 10, 150, 160), kernel("a", 20, 1150, 1160)}, []time.Duration{10, 10}, "a", ""},
		{"the same kernel twice is the same set as once", launches(110, 10, 120, 11, 1110, 20),
			[]Activity{kernel("a", 10, 150, 160), kernel("a", 11, 160, 170), kernel("a", 20, 1150, 1160)},
			[]time.Duration{20, 10}, "a a", ""},
		{"nothing launched", nil, nil, nil, "", "ValueError: No kernel activities recorded for iteration 0"},
		{"nothing in the second call", two[:1], []Activity{kernel("a", 10, 150, 160)}, nil, "",
			"ValueError: No kernel activities recorded for iteration 1"},
		{"a launch that the window does not hold", launches(99, 10, 1110, 20),
			[]Activity{kernel("a", 10, 150, 160), kernel("a", 20, 1150, 1160)},
			nil, "", "ValueError: No kernel activities recorded for iteration 0"},
		{"another kernel", two, []Activity{kernel("a", 10, 150, 160), kernel("b", 20, 1150, 1160)},
			nil, "", "ValueError: Inconsistent kernel names: {'a_0_0_0_10'} != {'b_0_0_0_10'}"},
		{"a kernel more", launches(110, 10, 1110, 20, 1111, 21),
			[]Activity{kernel("a", 10, 150, 160), kernel("a", 20, 1150, 1160), kernel("b", 21, 1160, 1161)},
			nil, "", "ValueError: Inconsistent kernel names: {'a_0_0_0_10'} != {'a_0_0_0_10', 'b_0_0_0_10'}"},
		{"another value to set", two, []Activity{memset(0, 64, 10, 150, 160), memset(1, 64, 20, 1150, 1160)},
			nil, "", "ValueError: Inconsistent kernel names: {'MEMSET_0_64_0_2'} != {'MEMSET_0_64_1_2'}"},
		{"another size to set", two, []Activity{memset(0, 64, 10, 150, 160), memset(0, 65, 20, 1150, 1160)},
			nil, "", "ValueError: Inconsistent kernel names: {'MEMSET_0_64_0_2'} != {'MEMSET_0_65_0_2'}"},
		{"another kind of copy", two, []Activity{memcpy(1, 64, 10, 150, 160), memcpy(8, 64, 20, 1150, 1160)},
			nil, "", "ValueError: Inconsistent kernel names: {'MEMCPY_1_64_0_1'} != {'MEMCPY_8_64_0_1'}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := New(slices.Concat(tt.launches, flush), slices.Concat(flushes, tt.activities), newest, 0)
			if err != nil {
				t.Fatal(err)
			}
			times, kernels, err := r.Match(windows, -1)
			var names []string
			for _, k := range kernels {
				name := k.Name
				if k.Kind != "kernel" {
					name = k.Kind
				}
				names = append(names, name)
			}
			var ce *device.CallError
			if tt.err != "" {
				if !errors.As(err, &ce) || err.Error() != tt.err || times != nil {
					t.Errorf("got %v, %v, want the CallError %s", times, err, tt.err)
				}
				return
			}
			if err != nil || !slices.Equal(times, tt.times) || strings.Join(names, " ") != tt.kernels {
				t.Errorf("got %v of %v, %v, want %v of %s", times, names, err, tt.times, tt.kernels)
			}
		})
	}
}

func TestMatchTimesEach(t *testing.T) {
	windows := []Window{{100, 200, 300}, {1100, 1200, 1300}, {2100, 2200, 2300}, {3100, 3200, 3300}}
	var all []Launch
	var activities []Activity
	for i, each := range [][2]uint64{{10, 40}, {14, 20}, {12, 30}, {90, 90}} {
		at, c := uint64(1000*i+110), uint32(10*i)
		all = append(all, launches(at, uint64(c), at+1, uint64(c)+1)...)
		a, b := kernel("a", c, at, at+each[0]), memset(0, 8, c+1, at+50, at+50+each[1])
		if i == 3 { // another order: not counted in the medians
			a.Start, b.Start = b.Start, a.Start
		}
		activities = append(activities, b, a)
	}
	r, err := New(all, activities, newest, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, kernels, err := r.Match(windows, -1)
	if err != nil || len(kernels) != 2 || kernels[0].Name != "a" || kernels[0].MedianNS != 12 ||
		kernels[1].MedianNS != 30 {
		t.Errorf("got %+v, %v, want a with 12 ns and a memset with 30", kernels, err)
	}
	if _, kernels, err = r.Match(windows[:2], -1); err != nil || kernels[0].MedianNS != 12 || kernels[1].MedianNS != 30 {
		t.Errorf("got %+v, %v, want the middle of two", kernels, err)
	}
}

func TestNew(t *testing.T) {
	known := launches(10, 1)
	for _, tt := range []struct {
		name     string
		activity Activity
		version  int
		lost     int
		err      string
	}{
		{"sound", kernel("a", 1, 5, 6), 140000, 0, ""},
		{"no duration", kernel("a", 1, 5, 5), 140000, 0, ""},
		{"no time", kernel("a", 1, 0, 0), newest, 0, "cupti: a kernel was recorded without a time"},
		{"no start", memset(0, 1, 1, 0, 9), newest, 0, "cupti: a memset was recorded from 0 to 9 ns"},
		{"backwards", memcpy(0, 1, 1, 9, 8), newest, 0, "cupti: a memcpy was recorded from 9 to 8 ns"},
		{"nobody's, layout of CUDA 13", kernel("a", 2, 5, 6), 130000, 0, ""},
		{"nobody's, layout of CUDA 12", kernel("a", 2, 5, 6), 28, 0, ""},
		{"nobody's, layout unknown", kernel("a", 2, 5, 6), newest + 1, 0, "cupti: unknown version of CUPTI's records"},
		{"nobody's, no such layout", kernel("a", 2, 5, 6), 29, 0, "cupti: unknown version of CUPTI's records"},
		{"lost", kernel("a", 1, 5, 6), newest, 3, "cupti: 3 records were lost"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := New(known, []Activity{tt.activity}, tt.version, tt.lost)
			if tt.err == "" {
				if err != nil || r == nil {
					t.Errorf("got %v, want none", err)
				}
			} else if !errors.Is(err, device.ErrTimer) || err.Error() != tt.err || r != nil {
				t.Errorf("got %v, want %s", err, tt.err)
			}
		})
	}
}

func TestWindows(t *testing.T) {
	r, err := New(launches(110, 10, 210, 20), []Activity{kernel("a", 10, 120, 130), kernel("a", 20, 220, 240)}, newest,
		0)
	if err != nil {
		t.Fatal(err)
	}
	if times, _, err := r.Match([]Window{{100, 190, 200}, {200, 300, 300}}, -1); err != nil ||
		!slices.Equal(times, []time.Duration{10, 20}) {
		t.Errorf("got %v, %v, want 10ns and 20ns", times, err)
	}
	for _, windows := range [][]Window{{{0, 200, 200}}, {{100, 0, 200}}, {{100, 200, 199}}, {{100, 220, 220}, {200, 300, 300}},
		{{100, 150, 220}, {200, 300, 300}}, {{200, 300, 300}, {100, 150, 150}}} {
		if _, _, err := r.Match(windows, -1); !errors.Is(err, device.ErrTimer) {
			t.Errorf("%v: got %v, want %v", windows, err, device.ErrTimer)
		}
	}
}
