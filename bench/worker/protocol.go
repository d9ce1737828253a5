// Package worker runs a solution in a process of its own, since a device fault poisons the process that meets it and a
// hung kernel can only be killed. The parent (Client) and the worker (Serve) exchange one JSON object a line: requests
// on the worker's file descriptor 3, a socket that also carries descriptors, replies on 4. Tensors travel through files
// that both sides map. The worker never sees expected outputs: the parent judges.
package worker

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"

	"fisub/device"
	"fisub/internal/hint"
)

// A request is one line to the worker; exactly one field is set. Each is answered by one reply.
type request struct {
	Open    *openRequest  `json:"open,omitempty"`
	Build   *buildRequest `json:"build,omitempty"`
	Load    *Workload     `json:"load,omitempty"`
	Run     *runRequest   `json:"run,omitempty"`
	Measure *Plan         `json:"measure,omitempty"`
	Check   *Check        `json:"check,omitempty"`
}

// calls reports whether the request asks for calls of the solution.
func (r *request) calls() bool {
	return r.Run != nil || r.Measure != nil || r.Check != nil && r.Check.Out != nil
}

// files calls f for each file that the request may have, with its number among the descriptors that are sent along,
// from 1.
func (r *request) files(f func(file **os.File, number *int)) {
	var contents []*FileTensor
	switch {
	case r.Load != nil:
		for _, v := range r.Load.Inputs {
			contents = append(contents, v.Tensor)
		}
	case r.Run != nil:
		f(&r.Run.Out, &r.Run.Number)
	case r.Measure != nil:
		f(&r.Measure.Out, &r.Measure.Number)
	case r.Check != nil:
		contents = r.Check.Inputs
		f(&r.Check.Out, &r.Check.Number)
	}
	for _, t := range contents {
		if t != nil {
			f(&t.File, &t.Number)
		}
	}
}

// attach numbers the files of the request, and returns them.
func (r *request) attach() (all []*os.File) {
	r.files(func(file **os.File, number *int) {
		if *number = 0; *file == nil {
			return
		}
		i := slices.Index(all, *file)
		if i < 0 {
			i, all = len(all), append(all, *file)
		}
		*number = i + 1
	})
	return all
}

// detach gives the request the files that came with it.
func (r *request) detach(all []*os.File) (err error) {
	r.files(func(file **os.File, number *int) {
		switch {
		case *number < 0 || *number > len(all):
			err = errors.New("worker: request without its files")
		case *number > 0:
			*file = all[*number-1]
		}
	})
	return err
}

type openRequest struct {
	Kind string `json:"kind"`
	device.Options
}

type buildRequest struct {
	Definition json.RawMessage `json:"definition"`
	Solution   json.RawMessage `json:"solution"`
	Only       bool            `json:"only,omitempty"` // see Client.Prepare
}

type runRequest struct {
	Out    *os.File `json:"-"` // takes the outputs, each at its Offset
	Number int      `json:"out"`
}

// A Plan is a device.Plan some of whose timed calls are judged.
type Plan struct {
	device.Plan
	// Judged are the timed calls, counted from 0 over all trials and ascending, whose outputs Out takes: those of the one
	// with index k at k times Stride, behind which each is at its Offset, or where the answer says.
	Judged []int    `json:"judged,omitempty"`
	Stride int64    `json:"stride,omitempty"` // in bytes
	Out    *os.File `json:"-"`
	Number int      `json:"out,omitempty"`
}

// A Workload is what a solution is called with: inputs in the definition's order, then outputs with memory of their
// own.
type Workload struct {
	Inputs  []Value `json:"inputs"`
	Outputs []Value `json:"outputs"`
	// AnyCount lets a value-returning solution return another number of values than there are Outputs; else that is an
	// error of kind Call.
	AnyCount bool `json:"any_count,omitempty"`
	// Guard is how many bytes before and behind each tensor a Check watches: a multiple of 256, 0 for none.
	Guard int `json:"guard,omitempty"`
}

// A Check looks for what a call must not do: before anything moves, after the call that it asks for, or, where it
// asks for neither, now. The steps are taken in the order of the fields.
type Check struct {
	// Move puts all tensors at other addresses. The memory of before stays allocated, with its contents, until the next
	// Load.
	Move bool `json:"move,omitempty"`
	// Gap is how many bytes are allocated before they move, so that they lie further on; it stays as long.
	Gap int64 `json:"gap,omitempty"`
	// Back puts them where the last Load did, with what lies there now.
	Back bool `json:"back,omitempty"`
	// Inputs are new contents for input i, of the same dtype and shape; where it is nil, or the list is shorter, the input
	// keeps what it was given last.
	Inputs []*FileTensor `json:"inputs,omitempty"`
	// Out, unless it is nil, asks for one call, behind other work on the stream and on outputs poisoned in the stream's
	// order, and is the file that takes the outputs as they are when the whole device is idle, each at its Offset or where
	// the answer says.
	Out    *os.File `json:"-"`
	Number int      `json:"out,omitempty"`
}

// Checked is what a Check found; all is empty after a solution that keeps the rules.
type Checked struct {
	Changed []Change `json:"changed,omitempty"` // inputs that do not hold what they were given, and should
	Outside []Change `json:"outside,omitempty"` // arguments beside whose tensor something was written
	Late    []Change `json:"late,omitempty"`    // outputs that changed after the call's end in the stream's order

	// Outputs are those of Out where the solution returned them: the worker's word, as that of Run.
	Outputs []FileTensor `json:"outputs,omitempty"`
}

// A Change is the first byte that is not as it was, or not as it became.
type Change struct {
	Arg    int `json:"arg"`    // index among the arguments: inputs, then outputs with memory of their own
	Offset int `json:"offset"` // in bytes from the tensor's start: negative before it
}

// A Value is a tensor in a file, a scalar, or None where both are absent.
type Value struct {
	Tensor *FileTensor `json:"tensor,omitempty"`
	Int    *int64      `json:"int,omitempty"`
	Float  *float64    `json:"float,omitempty"`
	Bool   *bool       `json:"bool,omitempty"`

	// InPlace is, of an output, the index of the input that it is: a call changes it in place, so that before each call it
	// gets its contents again. It is no argument of its own, and nil of an output that is.
	InPlace *int `json:"in_place,omitempty"`
}

// A FileTensor is a row-major little-endian tensor that lies in a file: in File, or, where that is nil, in the one that
// Path names. Of an output both are unused.
type FileTensor struct {
	DType  string   `json:"dtype"`
	Shape  []int    `json:"shape"`
	Path   string   `json:"path,omitempty"`
	File   *os.File `json:"-"`
	Number int      `json:"file,omitempty"`
	Offset int64    `json:"offset"` // of the first byte
	Bytes  int      `json:"bytes"`

	// Bound is, of an output that was passed and that the call has bound to other memory than was passed, the index of the
	// argument that has this memory, or -1; else nil. Only Python can do that.
	Bound *int `json:"bound,omitempty"`
}

type reply struct {
	Error   *Error          `json:"error,omitempty"`
	Info    *device.Info    `json:"info,omitempty"`
	Samples *device.Samples `json:"samples,omitempty"`
	Outputs []FileTensor    `json:"outputs,omitempty"` // of run, where the solution returned them; else they are as loaded
	Judged  []Judged        `json:"judged,omitempty"`  // of measure
	Checked *Checked        `json:"checked,omitempty"`
	Hazards []device.Hazard `json:"hazards,omitempty"` // of calls of the request, whatever else the reply is

	// Idle says of run and check that their call launched, copied and set nothing, if the device knows it.
	Idle bool `json:"idle,omitempty"`

	Cached bool `json:"cached,omitempty"` // of build: nothing was compiled

	// Timing is told beforehand, in a line of its own, where a measure request's Timing would be called.
	Timing *bool `json:"timing,omitempty"`
	// Building is told beforehand in the same way, at the beginning and the end of a build during a call.
	Building *bool `json:"building,omitempty"`
	// Recorded goes with Samples that have no Trials yet.
	Recorded *recorded `json:"recorded,omitempty"`
}

// A Judged is a timed call whose outputs were taken: the worker's word.
type Judged struct {
	Call int `json:"call"` // its number, of Plan's Judged
	// Outputs are, if the solution returned them, as those of Run; their offsets are in the file.
	Outputs []FileTensor `json:"outputs,omitempty"`
}

// recorded is what CUPTI recorded of the calls, for a worker that leaves it to the Client what to make of it.
type recorded struct {
	Failed  string        `json:"failed,omitempty"` // why there is nothing else in it
	Version int           `json:"version"`          // of CUPTI
	Lost    int           `json:"lost"`             // records that there was no room for
	Windows [][][2]uint64 `json:"windows"`          // by trial and call, CUPTI's clock before and after it
	Names   [][2]string   `json:"names"`            // of kernels: mangled, and not
	Records []byte        `json:"records"`          // for activity.Decode
}

// A Kind says whose fault an Error is.
type Kind string

const (
	Machine Kind = "machine" // the device, the compiler or the disk: no verdict on the solution
	Build   Kind = "build"   // the solution does not compile or load
	Call    Kind = "call"    // the entry point returned or raised an error
	Fault   Kind = "fault"   // the device faulted; the worker is of no further use
	Timing  Kind = "timing"  // the device keeps no time
	Lacking Kind = "lacking" // there is not here what the solution takes: no verdict on it; another workload may have one
)

// An Error is what went wrong in the worker.
type Error struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
	Log  string `json:"log,omitempty"`
	Hint string `json:"hint,omitempty"`
	Code string `json:"code,omitempty"` // names some errors of Kind Machine: NoTimer, NotBuilt, Unbuilt, one of Python's
}

// Codes of errors.
const (
	NoTimer  = "no-timer"  // device.ErrTimer
	NotBuilt = "not-built" // device.ErrNotBuilt
)

func (e *Error) Error() string { return e.Text }

// Advice returns the hint of the error.
func (e *Error) Advice() string { return e.Hint }

// A Died error says that the worker process ended, or was ended, before it answered.
type Died struct {
	Reason string // "signal: segmentation fault", "over the memory limit of 4 GiB"
	Own    bool   // it ran fisub's code only: what it was to do is open the device, or load inputs before the first call
}

func (e *Died) Error() string { return "worker process ended: " + e.Reason }

// AsError returns the wire form of err. The error happened in a step whose errors are of kind def, unless their type
// says otherwise. An *Error stays as it is.
func AsError(err error, def Kind) *Error {
	var formed *Error
	if errors.As(err, &formed) {
		return formed
	}
	e := &Error{Kind: def, Text: err.Error(), Hint: hint.Of(err)}
	var build *device.BuildError
	var call *device.CallError
	switch {
	case errors.Is(err, device.ErrLacking):
		e.Kind, e.Text = Lacking, strings.TrimPrefix(e.Text, device.ErrLacking.Error()+": ")
	case errors.As(err, &build):
		e.Kind, e.Log = Build, build.Log
	case errors.As(err, &call):
		e.Kind, e.Log = Call, call.Log
	case errors.Is(err, device.ErrNoTiming):
		e.Kind = Timing
	case errors.Is(err, device.ErrTimer):
		e.Kind, e.Code = Machine, NoTimer
	case errors.Is(err, device.ErrNotBuilt):
		e.Code = NotBuilt
	}
	if errors.Is(err, device.ErrFault) {
		e.Kind = Fault
	}
	return e
}

var errOrder = errors.New("worker: request out of order")
