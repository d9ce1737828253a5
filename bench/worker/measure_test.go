package worker

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"fisub/device"
)

// answer is a worker that answers the n-th request with the n-th paragraph of file.
func answer(file string) {
	text, _ := os.ReadFile(file)
	in, out, _ := Pipes()
	requests := bufio.NewScanner(in)
	for _, paragraph := range strings.Split(string(text), "\n\n") {
		if !requests.Scan() {
			break
		}
		fmt.Fprintln(out, paragraph)
	}
	requests.Scan()
	os.Exit(0)
}

// answering starts a worker that gives those answers, in order.
func answering(t *testing.T, answers ...string) *Client {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "answers")
	if err := os.WriteFile(file, []byte(strings.Join(answers, "\n\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), Command{Args: []string{self}, Env: []string{"FISUB_TEST_ANSWERS=" + file}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A piece is one CUPTI record: an API call at start, or a kernel of that name from start to end.
type piece struct {
	correlation uint32
	start, end  uint64
	name        uint32
}

// recording returns a reply with those records and the windows in JSON.
func recording(windows string, pieces ...piece) string {
	var records []byte
	for _, p := range pieces {
		r := make([]byte, 108)
		if p.end == 0 {
			r = r[:36]
			binary.LittleEndian.PutUint32(r, 5)
			binary.LittleEndian.PutUint64(r[8:], p.start)
			binary.LittleEndian.PutUint32(r[32:], p.correlation)
		} else {
			binary.LittleEndian.PutUint32(r, 10)
			binary.LittleEndian.PutUint64(r[16:], p.start)
			binary.LittleEndian.PutUint64(r[24:], p.end)
			binary.LittleEndian.PutUint32(r[92:], p.correlation)
			binary.LittleEndian.PutUint32(r[104:], p.name)
		}
		records = append(records, r...)
	}
	encoded, _ := json.Marshal(records)
	return `{"samples":{"timer":"cupti","cold_l2":true},"recorded":{"version":130001,"lost":0,"windows":` + windows +
		`,"names":[["_Z1a","a"],["b","b"]],"records":` + string(encoded) + `}}`
}

// Two trials of two calls, each with one kernel.
const windows = `[[[100,200,250],[300,400,450]],[[500,600,650],[700,800,850]]]`

func TestMeasureRecorded(t *testing.T) {
	const events = `{"samples":{"timer":"cuda events","cold_l2":true,"trials_ns":[[7,8],[9,10]]}}`
	api := func(at uint64) piece { return piece{uint32(at), at, 0, 0} }
	k := func(correlation uint32, start, end uint64, name uint32) piece {
		return piece{correlation, start, end, name}
	}
	four := []piece{api(110), k(110, 150, 155, 0), api(310), k(310, 350, 356, 0), api(510), k(510, 520, 527, 0), api(710),
		k(710, 711, 719, 0)}
	odd := append(four[:7:7], k(710, 711, 719, 1))
	const busy = `{"recorded":{"failed":"cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"}}`
	for _, tt := range []struct {
		name    string
		answers []string
		want    *device.Samples // with timer auto; nil for an error of the solution
		text    string          // of the error, or of the error with timer cupti
	}{
		{"good", []string{`{"timing":true}` + "\n" + `{"timing":false}` + "\n" + recording(windows, four...)},
			&device.Samples{Timer: "cupti", ColdL2: true, Trials: [][]time.Duration{{5, 6}, {7, 8}},
				Kernels: []device.Activity{{Kind: "kernel", Name: "a", MedianNS: 5.5}}}, ""},
		{"no kernel", []string{recording(windows, four[:6]...)}, nil,
			"ValueError: No kernel activities recorded for iteration 1"},
		{"another kernel", []string{recording(windows, odd...)}, nil,
			"ValueError: Inconsistent kernel names: {'_Z1a_0_0_0_10'} != {'b_0_0_0_10'}"},
		{"refused", []string{busy, events}, nil, "cupti: cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"},
		{"lost", []string{strings.Replace(recording(windows, four...), `"lost":0`, `"lost":7`, 1), events}, nil,
			"cupti: 7 records were lost"},
		{"more trials than asked for", []string{recording(`[[[1,2,2]],[[3,4,4]],[[5,6,6]]]`, four...), events}, nil,
			"cupti: the worker recorded 3 trials, want 2"},
		{"no trial", []string{recording(`[]`), events}, nil, "cupti: the worker recorded 0 trials, want 2"},
		{"more calls than asked for", []string{recording(`[[[100,110,110],[111,115,115],[116,120,120]]]`, four...), events}, nil,
			"cupti: the worker recorded 3 calls, want 2"},
		{"no call", []string{recording(`[[]]`, four...), events}, nil, "cupti: the worker recorded 0 calls, want 2"},
		{"overlapping windows", []string{recording(`[[[100,400,400],[300,400,400]]]`, four...), events}, nil,
			"cupti: call 1 is recorded from 300 to 400 ns, with the device idle at 400 ns, after one that ends at 400 ns"},
		{"nonsense", []string{strings.Replace(recording(windows, four...), `"records":"`, `"records":"AAAA`, 1), events}, nil,
			"cupti: invalid record at byte 0 of 579"},
	} {
		plan := JudgedPlan{Plan: device.Plan{Iterations: 2, Trials: 2, Timer: device.TimerCUPTI}}
		if tt.name == "good" {
			var told []bool
			plan.Timing = func(on bool) { told = append(told, on) }
			s, _, err := answering(t, tt.answers...).Measure(t.Context(), plan)
			if err != nil || !reflect.DeepEqual(s, tt.want) {
				t.Errorf("%s: got %+v, %v, want %+v", tt.name, s, err, tt.want)
			}
			if !reflect.DeepEqual(told, []bool{true, false}) {
				t.Errorf("%s: told %v, want the start and the end of the timing", tt.name, told)
			}
			continue
		}
		var we *Error
		kind, code := Machine, "no-timer"
		if len(tt.answers) == 1 {
			kind, code = Call, ""
		}
		if _, _, err := answering(t, tt.answers[0]).Measure(t.Context(), plan); !errors.As(err, &we) || we.Kind != kind ||
			we.Code != code || we.Text != tt.text {
			t.Errorf("%s: got %v, want %s error %q", tt.name, err, kind, tt.text)
		}
		plan.Timer = ""
		s, _, err := answering(t, tt.answers...).Measure(t.Context(), plan)
		if kind == Call {
			if !errors.As(err, &we) || we.Kind != Call {
				t.Errorf("%s: got %v, want an error of the call with any timer", tt.name, err)
			}
			continue
		}
		want := &device.Samples{Timer: "cuda events", TimerNote: tt.text, ColdL2: true,
			Trials: [][]time.Duration{{7, 8}, {9, 10}}}
		if err != nil || !reflect.DeepEqual(s, want) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.name, s, err, want)
		}
	}
}

// An invalid or endless reply ends the worker. Impossible timings are an error of the call, because the solution's
// process reported them.
func TestMeasureNonsense(t *testing.T) {
	for trials, want := range map[string]string{
		`[]`:                              "the worker returned timings of 0 trials, want 2",
		`[[1],[2],[3]]`:                   "the worker returned timings of 3 trials, want 2",
		`[[1,2],[]]`:                      "the worker returned 0 timings for 2 calls",
		`[[1,2,3],[4]]`:                   "the worker returned 3 timings for 2 calls",
		`[[1,2],[3,-400]]`:                "the worker returned a timing of -400ns",
		`[[1,2],[3,9000000000000000000]]`: "the worker returned a timing of 2500000h0m0s",
	} {
		c := answering(t, `{"samples":{"timer":"cuda events","cold_l2":true,"trials_ns":`+trials+`}}`)
		_, _, err := c.Measure(t.Context(), JudgedPlan{Plan: device.Plan{Iterations: 2, Trials: 2, Timer: device.TimerEvents}})
		var we *Error
		if !errors.As(err, &we) || we.Kind != Call || we.Text != want {
			t.Errorf("%s: got %v, want %q", trials, err, want)
		}
	}
	// A kernel of 300 years exceeds a Duration.
	long := recording(`[[[100,200,250]]]`, piece{110, 110, 0, 0}, piece{110, 150, 1<<63 + 200, 0})
	if _, _, err := answering(t, long).Measure(t.Context(), JudgedPlan{Plan: device.Plan{Iterations: 2, Trials: 2}}); !isKind(err, Call) {
		t.Errorf("a kernel of 300 years: got %v, want an error of kind %s", err, Call)
	}
}

func TestNotAReply(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "hello", "told too often": strings.Repeat(`{"timing":true}`+"\n", maxTold+1) + `{"samples":{"timer":"x"}}`,
		"too many parts": `{"samples":{"timer":"x"},"judged":[{"outputs":[],"call":0` + strings.Repeat(`},{`, maxParts) + `}]}`,
		"no samples":     `{}`,
		"too long":       `{"samples":{"timer":"` + strings.Repeat("x", maxReply) + `"}}`,
	} {
		c := answering(t, text)
		var died *Died
		if _, _, err := c.Measure(t.Context(), JudgedPlan{Plan: device.Plan{Iterations: 1, Trials: 1}}); !errors.As(err, &died) ||
			died.Reason != "it wrote an invalid reply" || c.Alive() {
			t.Errorf("%s: got %v, want the worker's end", name, err)
		}
	}
	var died *Died
	if _, err := answering(t, "{\"building\":true}\n{}").Run(t.Context(), nil); !errors.As(err, &died) {
		t.Errorf("told of a build on a GPU: got %v, want the worker's end", err)
	}
	if _, err := answering(t, `{"timing":true}`).Run(t.Context(), nil); !errors.As(err, &died) {
		t.Errorf("told about a call: got %v, want the worker's end", err)
	}
}
