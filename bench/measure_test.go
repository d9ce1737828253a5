package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A shaky device is disturbed in its first measurements, whose number is in the environment, and cannot use CUPTI.
type shaky struct{ left int }

func openShaky(context.Context, device.Options) (device.Device, error) {
	n, err := strconv.Atoi(os.Getenv("FISUB_TEST_SHAKY"))
	return &shaky{left: n}, err
}

func (*shaky) Info() device.Info                { return device.Info{Name: "shaky"} }
func (*shaky) Close() error                     { return nil }
func (*shaky) Alloc(int) (device.Buffer, error) { return nil, errors.New("no memory") }
func (*shaky) Build(context.Context, *trace.Definition, *trace.Solution) (device.Kernel, error) {
	return still{}, nil
}

func (d *shaky) Measure(_ context.Context, _ func() error, plan device.Plan) (*device.Samples, error) {
	plan.Tell(true)
	if plan.Timer == device.TimerCUPTI {
		return nil, device.ErrTimer
	}
	if plan.Iterations == 1 { // as if CUPTI turned out to be unusable
		plan.Tell(true)
	}
	defer plan.Tell(false)
	s := &device.Samples{Timer: "test", TimerNote: "no CUPTI", Trials: [][]time.Duration{{time.Duration(100 + d.left)}},
		Stamp:   &device.Stamp{MIG: true},
		Kernels: []device.Activity{{Kind: "kernel", Name: "k", Registers: 40}}}
	if d.left > 0 {
		s.Disturbed = []string{"shaken"}
	}
	d.left--
	return s, plan.After(0)
}

type still struct{}

func (still) Call(context.Context, []device.Arg) error { return nil }
func (still) Sync(context.Context) error               { return nil }
func (still) Close() error                             { return nil }
func (still) Probe(context.Context, []device.Arg, byte, [][]byte, ...device.Kept) error {
	return errors.New("not probed")
}

func shakyAttempt(t *testing.T, disturbed int) (a *attempt, events *[]event.Event) {
	t.Helper()
	client, err := worker.Start(t.Context(), worker.Command{Args: []string{os.Args[0]},
		Env: []string{"FISUB_TEST_SHAKY=" + strconv.Itoa(disturbed)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	def, _, err := trace.DecodeDefinition(
		[]byte(`{"name":"d","op_type":"t","axes":{},"inputs":{},"outputs":{},"reference":"def run(): pass"}`))
	if err != nil {
		t.Fatal(err)
	}
	sol := &trace.Solution{Name: "s", Definition: "d", Author: "a",
		Sources: []trace.SourceFile{{Path: "k.cu", Content: "x"}},
		Spec: trace.BuildSpec{Language: trace.CUDA, TargetHardware: []string{"cuda"}, EntryPoint: "k.cu::k",
			DestinationPassingStyle: true}}
	if _, err = client.Open(t.Context(), "shaky", device.Options{}); err == nil {
		if err = client.Build(t.Context(), def, sol); err == nil {
			err = client.Load(t.Context(), &worker.Tensors{})
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, client.TakeLog())
	}
	events = new([]event.Event)
	shared := &Shared{Definition: def, Profile: Profile{Trials: 1, Iterations: 2}}
	entry := Entry{Events: event.NewStream(func(e event.Event) error { *events = append(*events, e); return nil })}
	a = &attempt{runner: &runner{shared: shared, entry: entry, process: &process{client: client, stamper: &stamper{}}},
		limit: limit{left: time.Minute}, workload: &trace.Workload{UUID: "u"}, loaded: &inputs{Inputs: &workloads.Inputs{}}}
	return a, events
}

func TestDisturbedIsMeasuredAgain(t *testing.T) {
	for _, tt := range []struct {
		disturbed, measured int
		ns                  float64
		marked              []string
	}{
		{0, 1, 100, nil},
		{1, 2, 100, nil},
		{2, 3, 100, nil},
		{3, 3, 101, []string{"shaken"}},
		{9, 3, 107, []string{"shaken"}},
	} {
		t.Run(strconv.Itoa(tt.disturbed), func(t *testing.T) {
			r, events := shakyAttempt(t, tt.disturbed)
			if measure(t.Context(), []*attempt{r}); r.err != nil {
				t.Fatal(r.err)
			}
			r.tell(nil, nil)
			r.tell(nil, nil)
			if len(*events) != 3 || (*events)[0].Type != event.TypeWarning {
				t.Fatalf("got %+v, want one warning about the timer, and samples twice", *events)
			}
			got := (*events)[1].Samples
			if got.Measured != tt.measured || got.MedianNS != tt.ns || !slices.Equal(got.Disturbed, tt.marked) || got.N != 1 ||
				got.TimerNote != "no CUPTI" || !got.Stamp.MIG || len(got.Kernels) != 1 || got.Kernels[0].Registers != 40 {
				t.Errorf("got %+v, want measured %d times, %g ns, %q", got, tt.measured, tt.ns, tt.marked)
			}
		})
	}
}

// If a required timer is unavailable, the solution is not at fault.
func TestTimerUnavailable(t *testing.T) {
	r, _ := shakyAttempt(t, 0)
	r.shared.Timer = device.TimerCUPTI
	measure(t.Context(), []*attempt{r})
	var we *worker.Error
	if !errors.As(r.err, &we) || we.Kind != worker.Machine || we.Code != "no-timer" {
		t.Fatalf("got %v, want an error of the machine", r.err)
	}
	var de *DeviceError
	if _, err := r.attribute(r.err); !errors.As(err, &de) {
		t.Errorf("got %v, want the end of the run", err)
	}
}

// A fakeMeter counts calls.
type fakeMeter struct {
	begun, ended int
	own          []int
	closed       bool
	look         func()
}

func (m *fakeMeter) Begin(own []int) func() (*device.Stamp, []string) {
	m.begun++
	m.own = own
	if m.look != nil {
		m.look()
	}
	return func() (*device.Stamp, []string) {
		m.ended++
		return &device.Stamp{ECCErrors: int64(m.ended)}, []string{"shaken by the meter"}
	}
}

func (m *fakeMeter) Close() { m.closed = true }

// During each measurement the meter reads the GPU, and its disturbances are used.
func TestMeter(t *testing.T) {
	for _, tt := range []struct {
		iterations, begun int
	}{{2, 1}, {1, 2}} {
		r, _ := shakyAttempt(t, 9)
		m := &fakeMeter{}
		opened := ""
		g := &stamper{open: func(uuid string) (Meter, error) {
			opened += uuid
			return m, nil
		}}
		other, _ := shakyAttempt(t, 9)
		g.join(r.process.client, true)
		g.join(other.process.client, false)
		own := []int{r.process.client.PID(), other.process.client.PID()}
		for i := 1; i <= 2; i++ {
			s, _, err := g.measure(t.Context(), r.process.client, "GPU-1",
				worker.JudgedPlan{Plan: device.Plan{Iterations: tt.iterations, Trials: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if m.begun != i*tt.begun || m.ended != m.begun || s.Stamp == nil || s.Stamp.ECCErrors != int64(m.ended) ||
				!slices.Equal(s.Disturbed, []string{"shaken by the meter"}) ||
				!slices.Equal(m.own, own) {
				t.Errorf("got %+v, stamp %+v, %q, want the last reading's", m, s.Stamp, s.Disturbed)
			}
		}
		// If the timing fails, the reading still ends.
		_, _, err := g.measure(t.Context(), r.process.client, "GPU-1",
			worker.JudgedPlan{Plan: device.Plan{Timer: device.TimerCUPTI}})
		if err == nil || m.begun != 2*tt.begun+1 || m.begun != m.ended {
			t.Errorf("got %v, %+v, want one reading more, ended", err, m)
		}
		other.process.client.Close()
		if got := g.own(); !slices.Equal(got, own[:1]) {
			t.Errorf("one worker has ended: own processes are %v, want %v", got, own[:1])
		}
		if g.close(); opened != "GPU-1" || !m.closed {
			t.Errorf("opened %q, closed %v, want one meter, closed", opened, m.closed)
		}
	}
}

// While a solution is timed, the processes of the other submitted ones are stopped. fisub's own are not.
func TestPaused(t *testing.T) {
	stopped := func(a *attempt) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.process.client.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " T")
	}
	timed, _ := shakyAttempt(t, 0)
	rival, _ := shakyAttempt(t, 0)
	own, _ := shakyAttempt(t, 0)
	var during []bool
	m := &fakeMeter{look: func() { during = append(during, stopped(timed), stopped(rival), stopped(own)) }}
	g := &stamper{open: func(string) (Meter, error) { return m, nil }}
	g.join(timed.process.client, true)
	g.join(rival.process.client, true)
	g.join(own.process.client, false)
	for range 2 {
		if _, _, err := g.measure(t.Context(), timed.process.client, "GPU-1",
			worker.JudgedPlan{Plan: device.Plan{Iterations: 2, Trials: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(during, []bool{false, true, false, false, true, false}) {
		t.Errorf("stopped: got %v, want only the second", during)
	}
	for deadline := time.Now().Add(time.Minute); stopped(rival); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the rival is still stopped")
		}
	}
	if _, err := rival.process.client.Check(t.Context(), worker.Check{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// The samples of a run have the meter's stamp, or a note with the reason why not.
func TestStamp(t *testing.T) {
	for _, tt := range []struct {
		err  error
		note string
	}{{nil, ""}, {errors.New("nvml: no libnvidia-ml.so.1"), "nvml: no libnvidia-ml.so.1"}} {
		r, _ := shakyAttempt(t, 0)
		m := &fakeMeter{}
		g := &stamper{open: func(string) (Meter, error) { return m, tt.err }}
		g.join(r.process.client, true)
		r.process.stamper = g
		measure(t.Context(), []*attempt{r})
		s, err := r.samples, r.err
		if err != nil || s.Stamp == nil || s.Stamp.Note != tt.note ||
			(tt.err == nil) != slices.Equal(m.own, []int{r.process.client.PID()}) {
			t.Errorf("got %+v, %v, own %v, want the stamp with the note %q", s, err, m.own, tt.note)
		}
		if g.close(); m.closed != (tt.err == nil) {
			t.Errorf("closed: %v", m.closed)
		}
	}
}

// The joined stamp covers the GPU's state in all trials.
func TestJoin(t *testing.T) {
	reading := func(n int) event.Reading {
		return event.Reading{SMClockMHz: n, MemoryClockMHz: 10 * n, TemperatureC: n / 10, PowerW: float64(n) / 2}
	}
	a := &device.Stamp{Before: reading(100), After: reading(200), During: event.During{N: 3, Min: reading(110),
		Median: reading(150), Max: reading(300)},
		ThrottleReasons: []string{"power", "heat"}, OtherProcesses: []event.GPUProcess{{PID: 7}, {PID: 8}}}
	b := &device.Stamp{Before: reading(500), After: reading(600), During: event.During{N: 2, Min: reading(90),
		Median: reading(160), Max: reading(290)},
		ThrottleReasons: []string{"heat"}, OtherProcesses: []event.GPUProcess{{PID: 8}, {PID: 9}}, Note: "n"}
	want := &device.Stamp{Before: reading(100), After: reading(600), During: event.During{N: 5, Min: reading(90),
		Median: reading(150), Max: reading(300)},
		ThrottleReasons: []string{"heat", "power"}, OtherProcesses: []event.GPUProcess{{PID: 8}, {PID: 9}, {PID: 7}},
		Note: "n"}
	if got := join(a, b); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if join(a, nil) != a || join(nil, b) != b || len(b.ThrottleReasons) != 1 {
		t.Error("one alone is itself, and both stay as they are")
	}
	b.During = event.During{}
	if got := join(a, b).During; got != a.During {
		t.Errorf("without readings: got %+v", got)
	}
}
