package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"fisub/bench/reference"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/vgpu"
	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A testRun is a run of one solution.
type testRun struct {
	Shared
	Entry
}

func (c testRun) run(ctx context.Context) (Result, error) {
	c.Run = described(&c.Shared, c.Run)
	return Run(ctx, c.Shared, c.Entry)
}

// described returns run with the workloads and the baseline of shared.
func described(shared *Shared, run *event.Run) *event.Run {
	is := *run
	is.Workloads = nil
	for _, w := range shared.Workloads {
		is.Workloads = append(is.Workloads, event.WorkloadRef{UUID: w.UUID})
	}
	if b := shared.Baseline; b != nil {
		is.Baseline = &event.Baseline{Name: b.Name}
	}
	return &is
}

// The test binary is also the worker of its own runs, with the devices of run_test.go and measure_test.go and the one
// in this file. The latter uses the process's own memory, and its kernel runs the reference and cheats as the
// solution's name says.
func TestMain(m *testing.M) {
	if in, out, err := worker.Pipes(); err == nil {
		openers := []device.Opener{{Kind: "host", Open: openHost}, {Kind: "model", Open: openModel},
			{Kind: "dying", Open: func(context.Context, device.Options) (device.Device, error) { os.Exit(9); return nil, nil }},
			{Kind: "shaky", Open: openShaky}, {Kind: "emulated", Open: openEmulated}, vgpu.Opener()}
		if err := worker.Serve(context.Background(), in, out, openers); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

type host struct{ mode string }

func openHost(context.Context, device.Options) (device.Device, error) { return &host{}, nil }

// Info reports memory so slow that no call that does its work is too fast.
func (*host) Info() device.Info { return device.Info{Name: "host", Bandwidth: 1e9, L2Bytes: 1 << 20} }
func (*host) Close() error      { return nil }
func (*host) Alloc(n int) (device.Buffer, error) {
	b := make(hostBuffer, n)
	return &b, nil
}

func (d *host) Build(_ context.Context, def *trace.Definition, sol *trace.Solution) (device.Kernel, error) {
	d.mode = sol.Name
	return &hostKernel{def: def, mode: sol.Name, cache: map[string][][]byte{}}, nil
}

func (d *host) Measure(_ context.Context, call func() error, plan device.Plan) (*device.Samples, error) {
	s := &device.Samples{Timer: "test", ColdL2: true}
	plan.Tell(true)
	defer plan.Tell(false)
	for range plan.Trials {
		if d.mode == "wants the pool of the first call" { // a second call, like a warm-up
			if err := errors.Join(plan.Before(-1), call()); err != nil {
				return nil, err
			}
		}
		var trial []time.Duration
		for i := range plan.Iterations {
			number := len(s.Trials)*plan.Iterations + i
			if err := errors.Join(plan.Before(number), call()); err != nil {
				return nil, err
			}
			took := time.Second
			if d.mode == "too fast" {
				took = 30 * time.Microsecond
			}
			if err := plan.After(number); err != nil {
				return nil, err
			}
			if plan.Apart == nil || number != *plan.Apart {
				trial = append(trial, took)
			}
		}
		s.Trials = append(s.Trials, trial)
		if d.mode == "works outside" {
			s.HostFunction = "cudaLaunchHostFunc"
			s.Outside = &device.Outside{Calls: plan.Iterations, Missed: []time.Duration{1500, 900, 1200},
				Work: device.Activity{Kind: "kernel", Name: "late"}}
		}
		if d.mode == "works while not called" {
			s.Outside = &device.Outside{Calls: plan.Iterations, Work: device.Activity{Kind: "memcpy", Bytes: 64}, Uncalled: true}
		}
		if d.mode == "queues a function" {
			s.HostFunction = "cudaLaunchHostFunc"
		}
		if d.mode == "reserves the L2" {
			s.PersistingL2 = 30 << 20
		}
		if s.Kernels = []device.Activity{{Kind: "memcpy"}, {Kind: "kernel"}}; d.mode == "computes on the host" {
			s.Kernels = s.Kernels[:1]
		}
	}
	return s, nil
}

// An emulated host reports a race in the first call of a workload.
type emulated struct {
	host
	noticed []device.Hazard
	record  func(device.Hazard)
	called  bool // since Look
}

func openEmulated(context.Context, device.Options) (device.Device, error) { return &emulated{}, nil }

func (d *emulated) Info() device.Info { return device.Info{Name: "host", Emulated: true} }

// Worked returns false in the modes "idle" and "idle later".
func (d *emulated) Worked() bool {
	later := d.called
	d.called = true
	return d.mode != "idle" && !(later && d.mode == "idle later")
}

func (d *emulated) Launched() bool { return d.mode != "computes on the host" }

func (d *emulated) Look(bool) {
	d.called = false
	d.noticed = []device.Hazard{{Kind: "race", Place: "kernel.cu:1:2", Text: "kernel.cu:1:2: a race"}}
}

func (d *emulated) Count(int) {}

var _ device.Observer = (*emulated)(nil)

func (d *emulated) Record(f func(device.Hazard)) { d.record, recordFault = f, f }

var recordFault func(device.Hazard)

// Forget reports the hazards, at the end of the request.
func (d *emulated) Forget() {
	if strings.HasPrefix(d.mode, "races") {
		for _, h := range d.noticed {
			d.record(h)
		}
	}
	d.noticed = nil
}

// leave ends this process as soon as its next reply has been passed on.
func leave() {
	proxy(func(line []byte, pass func([]byte)) {
		pass(line)
		os.Exit(0)
	})
}

// proxy hands each further reply of this process to edit, which passes it on.
func proxy(edit func(line []byte, pass func([]byte))) {
	real, err := unix.Dup(4)
	var ends [2]int
	if err == nil {
		err = unix.Pipe(ends[:])
	}
	if err == nil {
		err = unix.Dup2(ends[1], 4)
	}
	if err != nil {
		panic(err)
	}
	go func() {
		replies := bufio.NewReader(os.NewFile(uintptr(ends[0]), "replies"))
		for {
			line, _ := replies.ReadBytes('\n')
			edit(line, func(line []byte) { _, _ = unix.Write(real, line) })
		}
	}()
}

type hostBuffer []byte

func (b *hostBuffer) Address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(*b))) }

func (b *hostBuffer) Len() int                      { return len(*b) }
func (b *hostBuffer) Write(p []byte) error          { copy(*b, p); return nil }
func (b *hostBuffer) Read(p []byte) error           { copy(p, *b); return nil }
func (b *hostBuffer) Close() error                  { return nil }
func (b *hostBuffer) Copy(from device.Buffer) error { return from.Read(*b) }
func (b *hostBuffer) Fill(v byte) error {
	for i := range *b {
		(*b)[i] = v
	}
	return nil
}
func (b *hostBuffer) Slice(offset, n int) device.Buffer {
	s := (*b)[offset : offset+n : offset+n]
	return &s
}

type hostKernel struct {
	def   *trace.Definition
	mode  string
	calls int
	first []device.Arg
	cache map[string][][]byte
	side  []func() // work that the stream does not wait for
	fault error
}

func (k *hostKernel) Close() error { return nil }

func (k *hostKernel) Sync(context.Context) error {
	for _, f := range k.side {
		f()
	}
	k.side = nil
	return k.fault
}

func (k *hostKernel) Probe(ctx context.Context, args []device.Arg, fill byte, into [][]byte, kept ...device.Kept) error {
	outputs := args[len(args)-len(into):]
	poison := func() (err error) {
		for _, out := range outputs {
			err = errors.Join(err, out.Tensor.Buffer.Fill(fill))
		}
		return err
	}
	err := poison()
	if k.mode == "early stream" { // it runs while the stream is still busy with earlier work
		err = errors.Join(k.Call(ctx, args), poison())
	} else if err == nil {
		err = k.Call(ctx, args)
	}
	for i, out := range outputs {
		err = errors.Join(err, out.Tensor.Buffer.Read(into[i]))
	}
	for _, k := range kept {
		err = errors.Join(err, args[k.Arg].Tensor.Buffer.Read(k.Into))
	}
	return err
}

func (k *hostKernel) Call(_ context.Context, args []device.Arg) error {
	k.calls++
	if k.calls == 1 {
		k.first = args
	}
	inputs := make([]workloads.Input, k.def.Inputs.Len())
	address, start, whole := "", "", ""
	for i, a := range args[:len(inputs)] {
		inputs[i].Name = k.def.Inputs.Keys()[i]
		inputs[i].Scalar = a.Scalar
		if a.Tensor != nil {
			data := *a.Tensor.Buffer.(*hostBuffer)
			inputs[i].Tensor = &tensor.Tensor{DType: a.Tensor.DType, Shape: a.Tensor.Shape, Data: data}
			address += fmt.Sprintf("%p ", &data[0])
			start += string(data[:min(16, len(data))])
			whole += string(data)
		}
	}
	var outputs []device.Arg
	own := args[len(inputs):]
	for _, name := range k.def.Outputs.Keys() {
		if input, ok := k.def.InPlace(name); ok {
			outputs = append(outputs, args[input])
			continue
		}
		outputs, own = append(outputs, own[0]), own[1:]
	}
	key := ""
	switch k.mode {
	case "pointer":
		key = address
	case "content", "content of the first call":
		key = start
	case "content later":
		if k.calls > 7 { // the first workload is over
			key = start
		}
	case "graph":
		outputs = k.first[len(inputs):]
	case "skips what it was given":
		seen := k.cache[address] != nil
		if k.cache[address] = [][]byte{}; seen {
			return nil
		}
	case "skips after the first call":
		if k.calls > 1 {
			return nil
		}
	case "skips after the timing", "skips half after the timing":
		if k.calls > 6 {
			outputs = outputs[:strings.Count(k.mode, "half")]
		}
	case "skips timed calls":
		if k.calls > 3 && k.calls < 8 {
			return nil
		}
	case "replays while timed":
		if k.calls >= 3 && k.calls < 4+3*4 { // from the last judged call, through three trials of four
			key = "replay"
		}
	case "works once":
		if (*outputs[0].Tensor.Buffer.(*hostBuffer))[0] != worker.Poison {
			return &device.CallError{Kind: "ValueError", Text: "nothing to do"}
		}
	case "takes all descriptors", "takes all descriptors after the timing":
		if k.calls > 7 || k.mode == "takes all descriptors" {
			none := unix.Rlimit{Max: 3, Cur: 3}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
				return err
			}
		}
	case "runs out of threads":
		fmt.Println("runtime/cgo: pthread_create failed: Resource temporarily unavailable")
		os.Exit(2)
	case "raises":
		if k.cache[start] == nil && k.calls > 1 {
			return &device.CallError{Kind: "ValueError", Text: "never seen"}
		}
		k.cache[start] = [][]byte{}
	case "conceals a fault":
		recordFault(device.Hazard{Kind: device.Faulted, Text: "kernel.cu:1: a fault"})
		concealed := false
		proxy(func(line []byte, pass func([]byte)) {
			if !concealed && bytes.Contains(line, []byte("a fault")) {
				line, concealed = []byte("{}\n"), true
			}
			pass(line)
		})
		k.mode = "faulty"
	case "leaves after its reply":
		leave()
	case "leaves after the timing":
		if k.calls == 7 {
			leave()
		}
	case "crashes at call 2":
		if k.calls == 2 {
			os.Exit(9)
		}
	case "raises at call 2":
		if k.calls == 2 {
			return &device.CallError{Kind: "ValueError", Text: "once is enough"}
		}
	case "crashes":
		if k.cache[whole] == nil && k.calls > 1 {
			os.Exit(9)
		}
		k.cache[whole] = [][]byte{}
	case "faults":
		if k.cache[start] == nil && k.calls > 1 {
			k.fault = fmt.Errorf("%w: illegal address", device.ErrFault)
		}
		k.cache[start] = [][]byte{}
	case "has a child with a GPU":
		if k.calls == 1 {
			child := exec.Command("sh", "-c", "exec 3</dev/full; exec sleep 600")
			if err := child.Start(); err != nil {
				return err
			}
			for name := ""; name != "/dev/full"; { // until it has opened the file
				name, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/3", child.Process.Pid))
			}
		}
	case "raises while timed", "crashes while timed", "hangs while timed":
		if k.cache[whole] == nil && len(k.cache) > 0 && k.calls < 20 {
			if k.mode == "hangs while timed" {
				time.Sleep(time.Hour)
			}
			if k.mode == "crashes while timed" {
				os.Exit(9)
			}
			return &device.CallError{Kind: "ValueError", Text: "never seen"}
		}
		k.cache[whole] = [][]byte{}
	case "prints":
		fmt.Println("called")
	case "wants the pool of the first call":
		if k.cache["pool"] == nil {
			k.cache["pool"] = [][]byte{bytes.Clone(inputs[3].Tensor.Data)}
		}
		if k.calls <= 9 && !bytes.Equal(inputs[3].Tensor.Data, k.cache["pool"][0]) {
			return &device.CallError{Kind: "ValueError", Text: "another pool"}
		}
	case "constant A_log":
		if k.calls == 1 {
			k.cache["A_log"] = [][]byte{append([]byte(nil), inputs[4].Tensor.Data...)}
		}
		inputs[4].Tensor.Data = k.cache["A_log"][0]
	}
	results, known := k.cache[key]
	if key == "" || !known {
		want, err := reference.Run(context.Background(), k.def, inputs)
		if err != nil {
			return err
		}
		results = nil
		for _, w := range want {
			results = append(results, w.Data)
		}
		if k.mode != "content of the first call" || k.calls == 1 {
			k.cache[key] = results
		}
	}
	write := func() {
		for i, out := range outputs {
			copy(*out.Tensor.Buffer.(*hostBuffer), results[i])
		}
	}
	if k.mode == "in other order" {
		for row := range slices.Chunk(results[0], 4*2048) {
			slices.Reverse(unsafe.Slice((*int32)(unsafe.Pointer(&row[0])), 2048))
		}
	}
	state := *args[3].Tensor.Buffer.(*hostBuffer)
	switch k.mode {
	case "faulty":
		write()
		return &device.CallError{Kind: "DeviceFault", Text: "kernel.cu:1: a fault"}
	case "late stream":
		k.side = append(k.side, write)
		return nil
	case "leaves the pool":
		outputs = outputs[:1]
	case "races and is wrong":
		copy(results[0], "\xff\xff")
	case "writes to slot 1", "writes NaN to slot 1": // of a pool
		slot := results[1][len(results[1])/inputs[3].Tensor.Shape[0]:]
		slot[6] ^= 1
		if k.mode == "writes NaN to slot 1" {
			copy(slot, "\xff\xff\xff\xff")
		}
	case "in place":
		copy(state, results[1])
	case "in place, and edits its replies":
		copy(state, results[1])
		if k.calls == 1 {
			proxy(func(line []byte, pass func([]byte)) {
				for _, key := range []string{"changed", "outside", "late", "hazards"} {
					line = regexp.MustCompile(`,?"`+key+`":\[[^]]*\]`).ReplaceAll(line, nil)
				}
				pass(line)
			})
		}
	case "names no addresses":
		if k.calls == 1 {
			proxy(func(line []byte, pass func([]byte)) {
				pass(regexp.MustCompile(`"addresses":\[[^]]*\]`).ReplaceAll(line, []byte(`"addresses":null`)))
			})
		}
	case "in place at first", "in place at the end":
		if k.calls == 1 && k.mode == "in place at first" || k.calls == 5 && k.mode == "in place at the end" {
			state[4*(2*32+3)]++ // element [0 0 2 3]
		}
	case "behind":
		*(*byte)(unsafe.Add(unsafe.Pointer(&state[0]), len(state)))++
	case "before":
		*(*byte)(unsafe.Add(unsafe.Pointer(&(*outputs[0].Tensor.Buffer.(*hostBuffer))[0]), -100))++
	}
	write()
	if k.mode == "misses a row" || k.mode == "misses a row in timed calls" && k.calls > 3 {
		clear((*outputs[1].Tensor.Buffer.(*hostBuffer))[4*5*32 : 4*6*32])
	}
	return nil
}
