// Package worker runs a solution in its own process: a device fault poisons the process, and a hung kernel can only
// be killed. The parent (Client) and the worker (Serve) exchange one JSON object per line: requests on the worker's
// file descriptor 3, a socket that also carries descriptors, and replies on 4. Tensors travel through files that both
// sides map. The worker never sees expected outputs: the parent judges.
package worker

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"

	"fisub/device"
	"fisub/internal/hint"
	"fisub/internal/trace"
)

// A request is one line to the worker. Exactly one field is set. Each request gets one reply.
type request struct {
	Open    *openRequest  `json:"open,omitempty"`
	Build   *buildRequest `json:"build,omitempty"`
	Load    *Tensors      `json:"load,omitempty"`
	Run     *runRequest   `json:"run,omitempty"`
	Measure *JudgedPlan   `json:"measure,omitempty"`
	Check   *Check        `json:"check,omitempty"`
	Look    *lookRequest  `json:"look,omitempty"`
}

// calls reports whether the request makes the worker call the solution.
func (r *request) calls() bool {
	return r.Run != nil || r.Measure != nil || r.Check != nil && r.Check.Out != nil
}

// files calls f for each file that the request may carry, with its number among the descriptors sent along, from 1.
func (r *request) files(f func(file **os.File, number *int)) {
	var contents []*FileTensor
	switch {
	case r.Open != nil:
		f(&r.Open.Ledger, &r.Open.Number)
	case r.Load != nil:
		for _, v := range r.Load.Inputs {
			contents = append(contents, v.Tensor)
		}
	case r.Run != nil:
		f(&r.Run.Out, &r.Run.Number)
	case r.Measure != nil:
		contents = r.Measure.Other
		f(&r.Measure.Out, &r.Measure.Number)
	case r.Check != nil:
		contents = r.Check.Inputs
		f(&r.Check.Out, &r.Check.Number)
	case r.Look != nil:
		f(&r.Look.Out, &r.Look.Number)
	}
	for _, t := range contents {
		if t != nil {
			f(&t.File, &t.Number)
		}
	}
}

// attach numbers the files of the request and returns them.
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

// detach sets the files of the request from the received ones.
func (r *request) detach(all []*os.File) (err error) {
	r.files(func(file **os.File, number *int) {
		switch {
		case *number < 0 || *number > len(all):
			err = errors.New("worker: a request arrived without its files: too many open files")
		case *number > 0:
			*file = all[*number-1]
		}
	})
	return err
}

type openRequest struct {
	Kind string `json:"kind"`
	device.Options
	Ledger *os.File `json:"-"` // takes the device's hazards as lines of JSON
	Number int      `json:"ledger"`
}

type buildRequest struct {
	Definition json.RawMessage `json:"definition"`
	Solution   json.RawMessage `json:"solution"`
	Key        string          `json:"key"`            // BuildKey of the solution
	Only       *onlyBuild      `json:"only,omitempty"` // see Client.Prepare; nil to load the solution
}

type onlyBuild struct {
	Name   string `json:"name"`
	Folder string `json:"folder"`
}

type runRequest struct {
	Out    *os.File `json:"-"` // takes the outputs, each at its Offset
	Number int      `json:"out"`
}

// A JudgedPlan is a device.Plan with some timed calls that are judged.
type JudgedPlan struct {
	device.Plan
	// Judged lists the timed calls whose outputs go to Out, counted from 0 over all trials, in ascending order. Each
	// output of call Judged[k] goes to k*Stride plus its Offset or, if the reply lists outputs, to the file offset
	// given there.
	Judged []int  `json:"judged,omitempty"`
	Patch  *Patch `json:"patch,omitempty"` // for the call Apart
	// Other holds other contents of inputs for the call Apart, as in Check. Only Python's worker has them.
	Other  []*FileTensor `json:"other,omitempty"`
	Stride int64         `json:"stride,omitempty"` // in bytes
	// Clear is the number of bytes to write before each timed call instead of twice the L2\'s size; 0: the usual ones.
	Clear  int64    `json:"clear,omitempty"`
	Out    *os.File `json:"-"`
	Number int      `json:"out,omitempty"`
}

// A Patch replaces bytes of an input during one timed call.
type Patch struct {
	Arg    int    `json:"arg"`
	Offset int    `json:"offset"` // of the bytes in the tensor, a multiple of 256
	Old    []byte `json:"old"`
	New    []byte `json:"new"`
}

// A Tensors holds the arguments of a solution: the inputs in the definition's order, then the outputs that have their
// own memory.
type Tensors struct {
	Inputs  []Value `json:"inputs"`
	Outputs []Value `json:"outputs"`
	// AnyCount allows a value-returning solution to return a different number of values than len(Outputs). Otherwise
	// that is an error of kind Call.
	AnyCount bool `json:"any_count,omitempty"`
	// Tree, in a definition with functions in Python, is the object that the inputs are the tensors of, and Names their
	// names in it. Outputs has one entry for the object that a call returns, and one for each input that it may change.
	Tree  json.RawMessage `json:"tree,omitempty"`
	Names []string        `json:"names,omitempty"`
	// Guard is the number of bytes that a Check watches before and after each tensor: a multiple of 256, or 0.
	Guard int `json:"guard,omitempty"`
	// Fully makes an emulated device check the next call for everything that it can find.
	Fully bool `json:"fully,omitempty"`
	// Count, if not 0, makes an emulated device count what the next calls do; see device.Observer.
	Count int `json:"count,omitempty"`
}

// A lookRequest asks for copies of the memory of arguments, which the Client compares with the expected contents.
type lookRequest struct {
	Parts  []part   `json:"parts"`
	Out    *os.File `json:"-"`
	Number int      `json:"out"`
}

// A part is a part of an argument's memory, including its guards, and its place in a file.
type part struct {
	Arg    int   `json:"arg"`    // index among the arguments, as in Change
	Offset int   `json:"offset"` // in bytes from the tensor's start, a multiple of 256; negative before it
	Bytes  int   `json:"bytes"`
	At     int64 `json:"at"`
}

// A Check looks for forbidden side effects of calls: before the tensors move and after the call it asks for or,
// without either, immediately. The steps run in the order of the fields. The Client compares the memory itself. On an
// emulated device it reads the memory of the worker's process; from a GPU the worker copies it.
type Check struct {
	// Move puts all tensors at new addresses. The old memory keeps its contents and stays allocated until the next
	// Load.
	Move bool `json:"move,omitempty"`
	// Gap is the number of bytes allocated before the move to shift the new addresses. They are also freed by the
	// next Load.
	Gap int64 `json:"gap,omitempty"`
	// Back returns to the addresses of the last Load, with their present contents.
	Back bool `json:"back,omitempty"`
	// Inputs holds new contents for input i, with the same dtype and shape. If the entry is nil or missing, the input
	// keeps its last contents.
	Inputs []*FileTensor `json:"inputs,omitempty"`
	// Out, if not nil, asks for one call, queued after other work on the stream, with outputs poisoned in stream
	// order. The file receives the outputs as they are once the whole device is idle, each at its Offset or, if the
	// reply lists outputs, at the offset given there.
	Out    *os.File `json:"-"`
	Number int      `json:"out,omitempty"`
}

// Checked is the result of a Check. All lists are empty if the solution keeps the rules. The worker reports only Late
// and Outputs.
type Checked struct {
	Changed []Change `json:"-"`              // inputs whose contents changed and should not have
	Outside []Change `json:"-"`              // writes outside of arguments: the nearest before a tensor, and after it
	Late    []Change `json:"late,omitempty"` // outputs that changed after the call's end in stream order

	// Outputs describes the outputs in Out if the solution returned them. Like Run's, it is unverified.
	Outputs []FileTensor `json:"outputs,omitempty"`
}

// A Change is the first modified byte.
type Change struct {
	Arg    int `json:"arg"`    // index among the arguments: inputs, then outputs with their own memory
	Offset int `json:"offset"` // in bytes from the tensor's start: negative before it
}

// A Value is a tensor in a file, a scalar or, with no field set, None.
type Value struct {
	Tensor *FileTensor   `json:"tensor,omitempty"`
	Scalar *trace.Scalar `json:"scalar,omitempty"`

	// InPlace is the index of the input that this output aliases. The call changes that input in place, so its
	// contents are restored before each call. Such an output is not passed separately. It is nil for ordinary
	// outputs.
	InPlace *int `json:"in_place,omitempty"`
}

// A FileTensor is a row-major little-endian tensor in File or, if that is nil, in the file at Path. For an output
// both are unused.
type FileTensor struct {
	DType  string   `json:"dtype"`
	Shape  []int    `json:"shape"`
	Path   string   `json:"path,omitempty"`
	File   *os.File `json:"-"`
	Number int      `json:"file,omitempty"`
	Offset int64    `json:"offset"` // of the first byte
	Bytes  int      `json:"bytes"`
	Stride []int    `json:"stride,omitempty"` // in elements, of a tensor that is not contiguous

	// Bound is set for a passed output that the call rebound to different memory: the index of the argument with that
	// memory, or -1. In a definition with functions in Python it is set for a returned tensor in the memory of an
	// argument. Otherwise it is nil.
	Bound *int `json:"bound,omitempty"`
}

type reply struct {
	Error   *Error          `json:"error,omitempty"`
	Info    *device.Info    `json:"info,omitempty"`
	Samples *device.Samples `json:"samples,omitempty"`
	Outputs []FileTensor    `json:"outputs,omitempty"` // of run, if the solution returned them; otherwise as loaded
	Judged  []Judged        `json:"judged,omitempty"`  // of measure
	Checked *Checked        `json:"checked,omitempty"`

	// Idle reports that the call of a run or check launched, copied and set nothing, if the device can tell.
	Idle bool `json:"idle,omitempty"`
	// Hosted reports in the same way that it copied or set memory, but launched no kernel.
	Hosted bool `json:"hosted,omitempty"`

	Cached bool `json:"cached,omitempty"` // of build: nothing was compiled

	// Addresses holds, after a load or check on an emulated device, the place of each argument's tensor in the
	// worker's memory; 0 for other arguments. It is unverified.
	Addresses []uint64 `json:"addresses,omitempty"`

	// Timing is sent before the reply, on a separate line, when Timing of a measure request is to be called.
	Timing *bool `json:"timing,omitempty"`
	// Building is sent in the same way when a build during a call begins or ends.
	Building *bool `json:"building,omitempty"`
	// Recorded is sent with Samples that have no Trials yet.
	Recorded *recorded `json:"recorded,omitempty"`
}

// A Judged is a timed call whose outputs were stored. It is unverified.
type Judged struct {
	Call int `json:"call"` // an element of Plan's Judged
	// Outputs describes the outputs if the solution returned them, as for Run. Their offsets are in the file.
	Outputs []FileTensor `json:"outputs,omitempty"`
}

// recorded holds CUPTI's records of the calls, from a worker that leaves their evaluation to the Client.
type recorded struct {
	Failed  string        `json:"failed,omitempty"` // the reason why all else is empty
	Version int           `json:"version"`          // of CUPTI
	Lost    int           `json:"lost"`             // records dropped because the buffers were full
	Windows [][][3]uint64 `json:"windows"`          // by trial and call: an activity.Window
	Thread  uint32        `json:"thread"`           // that made the calls, as in activity.Launch
	First   uint64        `json:"first"`            // CUPTI's clock before the first call
	Names   [][2]string   `json:"names"`            // of kernels: mangled, demangled
	Records []byte        `json:"records"`          // for activity.Decode
}

// A Kind says who caused an Error.
type Kind string

const (
	Machine Kind = "machine" // the device, the compiler or the disk: no verdict on the solution
	Build   Kind = "build"   // the solution does not compile or load
	Call    Kind = "call"    // the entry point returned or raised an error
	Fault   Kind = "fault"   // the device faulted; the worker is unusable
	Timing  Kind = "timing"  // the device cannot measure time
	Lacking Kind = "lacking" // something the solution needs is missing here: no verdict; other workloads may run
)

// An Error is a failure in the worker.
type Error struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
	Log  string `json:"log,omitempty"`
	Hint string `json:"hint,omitempty"`
	Code string `json:"code,omitempty"` // of some errors of Kind Machine: NoTimer, NotBuilt, Unbuilt, one of Python's
	// Missing is the name of the build that an error with code Unbuilt asks for. It is unverified.
	Missing string `json:"missing,omitempty"`

	// Unsent means that the kernel refused to send the request, of which the worker saw nothing. The worker is ended. A
	// worker cannot set it.
	Unsent bool `json:"-"`
}

// Codes of errors.
const (
	NoTimer  = "no-timer"  // device.ErrTimer
	NotBuilt = "not-built" // device.ErrNotBuilt
)

func (e *Error) Error() string { return e.Text }

// Advice returns the hint of the error.
func (e *Error) Advice() string { return e.Hint }

// A Died error means that the worker process ended or was killed before it answered.
type Died struct {
	Reason string // "signal: segmentation fault", "over the memory limit of 4 GiB"
	Own    bool   // only fisub's code ran: opening the device, or loading inputs before the first call
}

func (e *Died) Error() string { return "worker process ended: " + e.Reason }

// AsError returns the wire form of err. Its kind is def unless err's type determines another. An *Error stays as it
// is.
func AsError(err error, def Kind) *Error {
	if formed, ok := errors.AsType[*Error](err); ok {
		return formed
	}
	e := &Error{Kind: def, Text: err.Error(), Hint: hint.Of(err)}
	var build *device.BuildError
	var call *device.CallError
	switch {
	case errors.Is(err, device.ErrUnsupported):
		e.Kind, e.Text = Lacking, strings.TrimPrefix(e.Text, device.ErrUnsupported.Error()+": ")
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

// KindOf returns the kind of the *Error that err wraps, or "".
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

var errOrder = errors.New("worker: request out of order")
