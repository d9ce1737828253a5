package bench

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/trace"
)

// A shaky device is disturbed in its first measurements, as many as the environment says, and cannot use CUPTI.
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
	if plan.Timer == device.TimerCUPTI {
		return nil, device.ErrTimer
	}
	s := &device.Samples{Timer: "test", TimerNote: "no CUPTI", Trials: [][]time.Duration{{time.Duration(100 + d.left)}}, Stamp: &device.Stamp{MIG: true},
		Kernels: []device.Activity{{Kind: "kernel", Name: "k", Registers: 40}}}
	if d.left > 0 {
		s.Disturbed = []string{"shaken"}
	}
	d.left--
	return s, nil
}

type still struct{}

func (still) Call(context.Context, []device.Arg) error { return nil }
func (still) Sync(context.Context) error               { return nil }
func (still) Close() error                             { return nil }
func (still) Probe(context.Context, []device.Arg, byte, [][]byte) error {
	return errors.New("not probed")
}

func shakyRunner(t *testing.T, disturbed int) (r *runner, events *[]event.Event) {
	t.Helper()
	client, err := worker.Start(t.Context(), worker.Command{Args: []string{os.Args[0]},
		Env: []string{"FISUB_TEST_SHAKY=" + strconv.Itoa(disturbed)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	def, _, err := trace.DecodeDefinition([]byte(`{"name":"d","op_type":"t","axes":{},"inputs":{},"outputs":{},"reference":"def run(): pass"}`))
	if err != nil {
		t.Fatal(err)
	}
	sol := &trace.Solution{Name: "s", Definition: "d", Author: "a", Sources: []trace.SourceFile{{Path: "k.cu", Content: "x"}},
		Spec: trace.BuildSpec{Language: trace.CUDA, TargetHardware: []string{"cuda"}, EntryPoint: "k.cu::k", DestinationPassingStyle: true}}
	if _, err = client.Open(t.Context(), "shaky", device.Options{}); err == nil {
		if err = client.Build(t.Context(), def, sol); err == nil {
			err = client.Load(t.Context(), &worker.Workload{})
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, client.TakeLog())
	}
	events = new([]event.Event)
	return &runner{client: client, Config: Config{Events: event.NewStream(func(e event.Event) error { *events = append(*events, e); return nil })}}, events
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
			r, events := shakyRunner(t, tt.disturbed)
			s, err := r.measure(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			r.tell("u", s)
			r.tell("u2", s)
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

// A timer that is insisted on and cannot be had is no fault of the solution.
func TestTimerUnavailable(t *testing.T) {
	r, _ := shakyRunner(t, 0)
	r.Timer = device.TimerCUPTI
	_, err := r.measure(t.Context())
	var we *worker.Error
	if !errors.As(err, &we) || we.Kind != worker.Machine || we.Code != "code" {
		t.Fatalf("got %v, want an error of the machine", err)
	}
	var de *DeviceError
	if _, err := r.blame(err); !errors.As(err, &de) {
		t.Errorf("got %v, want the end of the run", err)
	}
}
