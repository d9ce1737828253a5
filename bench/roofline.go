package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/memfile"
	"fisub/internal/trace"
	"fisub/runs/stats"
	"fisub/workloads/random"
)

//go:embed roofline/floor.cu
var floorSource string

// floorDefinition is the contest definition of floor.cu.
const floorDefinition = `{"name":"floor","op_type":"copy","axes":{"n":{"type":"var"}},
"inputs":{"source":{"shape":["n"],"dtype":"float32"},"shape":{"shape":null,"dtype":"int32"}},
"outputs":{"target":{"shape":["n"],"dtype":"float32"}},
"reference":"def run(source, shape):\n    return source.clone()\n"}`

// copyShapes lists the copies in floor.cu by number.
var copyShapes = []string{"128 threads of 16 bytes", "256 threads of 16 bytes", "512 threads of 16 bytes",
	"128 threads of 64 bytes",
	"256 threads of 64 bytes", "256 threads of 128 bytes"}

// emptyShape is the number of the empty kernel.
const emptyShape = -1

// mostCopied is the largest copy in bytes. Beyond it, time grows in proportion to the size.
const mostCopied = 512 << 20

// A roofline measures lower limits of the latency: an empty kernel, once per run, and for each workload size a copy
// that moves that many bytes, half of them read and half written. It is a solution of our own, built and timed like
// any other.
type roofline struct {
	process *process
	limit   limit // of the workload in flight
	profile Profile
	source  *os.File // the data to copy
	filled  int64    // size of source in bytes
	floors  map[floorKey]*event.Floor
}

type floorKey struct {
	bytes int64 // moved by a copy; 0: the empty kernel
	timer string
}

// RooflineSolution returns the solution that measures the roofline, for compiling it in advance for a machine without
// a compiler.
func RooflineSolution() *trace.Solution {
	return &trace.Solution{Name: "floor", Definition: "floor", Author: "fisub",
		Spec: trace.BuildSpec{Language: trace.CUDA, TargetHardware: []string{"cuda"}, EntryPoint: "floor.cu::run",
			DestinationPassingStyle: true},
		Sources: []trace.SourceFile{{Path: "floor.cu", Content: floorSource}}}
}

func newRoofline(ctx context.Context, s *Shared, stamper *stamper) (*roofline, error) {
	def, _, err := trace.DecodeDefinition([]byte(floorDefinition))
	if err != nil {
		return nil, err
	}
	p, err := newProcess(ctx, s, def, RooflineSolution())
	p.stamper = stamper
	return &roofline{process: p, profile: s.Profile, floors: map[floorKey]*event.Floor{}}, err
}

func (r *roofline) stop() {
	r.process.stop()
	if r.source != nil {
		r.source.Close()
		r.source = nil
	}
}

// figures returns the measured times in nanoseconds, 0 if not measured.
func (r *roofline) figures(bytes int64, timer string) (copyNS, emptyNS float64) {
	if e := r.floors[floorKey{0, timer}]; e != nil {
		emptyNS = e.MedianNS
	}
	moved, scale := copied(bytes)
	if c := r.floors[floorKey{moved, timer}]; c != nil {
		copyNS = c.MedianNS * scale
	}
	return copyNS, emptyNS
}

// copied returns the size of the copy for a workload, a multiple of 32, and the factor by which the workload is
// larger.
func copied(bytes int64) (moved int64, scale float64) {
	moved = min(max(bytes+31, 32)&^31, mostCopied)
	return moved, max(1, float64(bytes)/float64(moved))
}

// measure measures and reports the roofline of a workload of that size, unless the run has it already.
func (r *roofline) measure(ctx context.Context, of *runner, bytes int64, timer string) error {
	r.limit = limit{left: r.profile.Timeout}
	moved, _ := copied(bytes)
	for _, key := range []floorKey{{0, timer}, {moved, timer}} {
		if r.floors[key] != nil {
			continue
		}
		floor, err := r.time(ctx, key)
		if err != nil {
			return err
		}
		r.floors[key] = floor
		of.say(event.Event{Type: event.TypeFloor, Floor: floor})
	}
	return nil
}

// time takes one trial of each copy, then all trials of the profile for the fastest one, each with its tensors at
// other addresses, so that its figure is not the luckiest of several.
func (r *roofline) time(ctx context.Context, key floorKey) (*event.Floor, error) {
	plan := device.Plan{Warmup: r.profile.Warmup, Iterations: r.profile.Iterations, Trials: 1, ColdL2: true,
		Timer: key.timer, MaxTime: r.profile.MaxTime}
	floor, best, moved := &event.Floor{Kind: "empty"}, emptyShape, int64(32)
	if key.bytes > 0 {
		floor, moved = &event.Floor{Kind: "copy", Bytes: key.bytes}, key.bytes
		least := math.Inf(1)
		for shape, text := range copyShapes {
			samples, err := r.run(ctx, plan, shape, moved)
			if err != nil {
				return nil, err
			}
			if ns := stats.Latency(samples.Trials); ns < least {
				best, least, floor.Shape = shape, ns, text
			}
		}
	}
	samples, err := r.run(ctx, plan, best, moved)
	for i := 1; i < r.profile.Trials && err == nil; i++ {
		var more *device.Samples
		if err = r.limit.within(ctx, func(limit context.Context) (err error) {
			if _, err = r.process.client.Check(limit, worker.Check{Move: true}); err == nil { // mostCopied bounds the memory
				more, _, err = r.process.measure(limit, worker.JudgedPlan{Plan: plan})
			}
			return err
		}); err == nil {
			add(samples, more)
		}
	}
	if err != nil {
		return nil, err
	}
	floor.Timings = *timings(samples)
	return floor, nil
}

// run calls one shape, checks its result and times it.
func (r *roofline) run(ctx context.Context, plan device.Plan, shape int, moved int64) (samples *device.Samples,
	err error) {
	half := moved / 2
	if err := r.fill(half); err != nil {
		return nil, err
	}
	if err := r.process.out.room(half); err != nil {
		return nil, err
	}
	number := trace.Scalar{Kind: trace.IntScalar, Int: int64(shape)}
	array := worker.FileTensor{DType: "float32", Shape: []int{int(half / 4)}, File: r.source, Bytes: int(half)}
	in := &inputs{load: &worker.Tensors{Inputs: []worker.Value{{Tensor: &array}, {Scalar: &number}},
		Outputs: []worker.Value{{Tensor: &array}}}}
	err = r.limit.within(ctx, func(limit context.Context) error {
		if err := r.process.ready(ctx, limit); err != nil {
			return err
		}
		if err := r.process.load(limit, in.load); err != nil {
			return err
		}
		if _, err := r.process.client.Run(limit, r.process.out.f); err != nil {
			return err
		}
		if shape != emptyShape {
			if err := r.check(half); err != nil {
				return err
			}
		}
		samples, _, err = r.process.measure(limit, worker.JudgedPlan{Plan: plan})
		return err
	})
	if err == nil && timerOf(samples.Timer) != plan.Timer {
		err = fmt.Errorf("timed with %s", samples.Timer)
	}
	if log := r.process.log(); err != nil {
		err = withLog(err, strings.TrimSpace(log))
	}
	return samples, err
}

func (r *roofline) check(n int64) error {
	want, got := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); at < n; at += int64(len(want)) {
		size := min(n-at, int64(len(want)))
		if _, err := r.source.ReadAt(want[:size], at); err != nil {
			return err
		}
		if _, err := r.process.out.f.ReadAt(got[:size], at); err != nil {
			return err
		}
		if !bytes.Equal(want[:size], got[:size]) {
			return errors.New("wrong result of the roofline copy")
		}
	}
	return nil
}

// fill extends the source to at least n bytes of random data, which no memory can compress.
func (r *roofline) fill(n int64) (err error) {
	if r.source == nil {
		if r.source, err = memfile.New("fisub-floor", 0); err != nil {
			return err
		}
	}
	stream := random.New("fisub.floor/1")
	for r.filled < n {
		block := make([]byte, min(1<<20, n-r.filled))
		for i := 0; i < len(block); i += 16 {
			at := int(r.filled)/8 + i/8
			binary.LittleEndian.PutUint64(block[i:], stream.Uint64(at))
			binary.LittleEndian.PutUint64(block[i+8:], stream.Uint64(at+1))
		}
		if _, err := r.source.WriteAt(block, r.filled); err != nil {
			return err
		}
		r.filled += int64(len(block))
	}
	return nil
}
