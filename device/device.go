// Package device is the contract between bench and the devices that run kernels: device/cuda (NVIDIA GPUs) and
// device/vgpu (the virtual GPU, on the CPU). It does not choose among them; app lists them.
package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"fisub/internal/hint"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A Device builds solutions and runs their kernels. It is used from one goroutine at a time.
type Device interface {
	Info() Info

	// Build compiles sol for this device, or takes it from the cache. A *BuildError is about the source (it does not
	// compile, or the entry symbol is missing), any other error about the machine (no compiler, disk full).
	Build(ctx context.Context, def *trace.Definition, sol *trace.Solution) (Kernel, error)

	// Alloc returns n >= 0 bytes of uninitialised device memory, aligned to 256 bytes.
	Alloc(n int) (Buffer, error)

	// Measure times call, which starts one kernel call on the device's stream and does not wait for it. The error
	// wraps ErrNoTiming if the device has no meaningful clock (the virtual GPU), and ErrTimer if plan requires a timer
	// that cannot be used. A call whose kernels cannot be timed is the solution's fault: a *CallError.
	Measure(ctx context.Context, call func() error, plan Plan) (*Samples, error)

	// Close frees the device. Its kernels and buffers must not be used afterwards.
	Close() error
}

// A Buffer is device memory. Its methods are synchronous.
type Buffer interface {
	Len() int
	Write(p []byte) error // copies p, at most Len bytes, to the start of the buffer
	Read(p []byte) error  // fills p, at most Len bytes, from the start of the buffer
	Fill(b byte) error

	// Copy copies a buffer of the same device and length into this one, in stream order.
	Copy(from Buffer) error

	// Slice returns n bytes from offset, a multiple of 256, as a buffer in the same memory, valid as long as this one.
	// Its Close does nothing. Slice panics if the range is outside the buffer.
	Slice(offset, n int) Buffer

	Close() error
}

// A FileBuffer may use a file's pages instead of copying them. The file must not change until the buffer is closed or
// overwritten as a whole.
type FileBuffer interface {
	Buffer
	WriteFile(f *os.File, offset int64, n int) error // like Write, with n bytes of f from offset, which must exist
}

// A Kernel is a built solution. An optional method Cached() bool reports whether it came from the build cache.
type Kernel interface {
	// Call calls the entry point with args in the definition's order: inputs, then (in destination-passing style)
	// outputs. It may return before the device is done. An error of the callee is a *CallError.
	Call(ctx context.Context, args []Arg) error

	// Probe calls the entry point and shows which of its writes are ordered with the device's stream. The stream is
	// kept busy for a moment and fills the outputs (the last len(into) args) with fill. After the call, without other
	// synchronization, their bytes are copied to into, each at most as long as its tensor's buffer. The arguments
	// named by kept are copied too, but not filled. Results written on an unordered stream are overwritten by fill or
	// missing.
	Probe(ctx context.Context, args []Arg, fill byte, into [][]byte, kept ...Kept) error

	// Sync waits for all calls and returns the first device fault. After a fault the device is unusable, and the
	// worker process that holds it must exit.
	Sync(ctx context.Context) error

	Close() error
}

// An Arg is a tensor in device memory, a scalar, or None if both are nil.
type Arg struct {
	Tensor *TensorArg
	Scalar *trace.Scalar
}

// A Kept is an argument that Probe reads but does not fill, because it is changed in place.
type Kept struct {
	Arg  int
	Into []byte
}

// A TensorArg is a contiguous row-major tensor in device memory.
type TensorArg struct {
	Buffer Buffer
	DType  tensor.DType
	Shape  []int
}

// A Plan says how to time a call (spec section 6).
type Plan struct {
	Warmup     int           `json:"warmup"`     // untimed calls per trial, besides the six fixed ones
	Iterations int           `json:"iterations"` // timed calls per trial
	Trials     int           `json:"trials"`
	ColdL2     bool          `json:"cold_l2"`  // zero-fill twice the L2 before each call
	MaxTime    time.Duration `json:"max_time"` // 0: no limit; if reached, the trial in progress ends early
	Timer      string        `json:"timer,omitempty"`

	// Apart, if not nil, is the number of a timed call that the samples leave out, and whose kernels may differ from the
	// others'. Iterations include it.
	Apart *int `json:"apart,omitempty"`

	// Idle, if not 0, lets the calls begin once the GPU has no work of other processes, at the latest after this time.
	Idle time.Duration `json:"idle,omitempty"`

	// Before, if not nil, is called before each call and its zero-fill, with the number of the timed call or, for a
	// warm-up call, -1. Its work on the stream is not timed.
	Before func(call int) error `json:"-"`
	// After, if not nil, is called after each timed call, when the call's work on the device's stream is done. Calls
	// count from 0 over all trials.
	After func(call int) error `json:"-"`
	// Timing, if not nil, is called on a goroutine of Measure: with true when the first trial is warm, with false
	// after the last timed call. Timing again with another timer repeats the true; a failure may omit the false.
	Timing func(bool) `json:"-"`
}

// Tell calls Timing, if not nil.
func (p *Plan) Tell(on bool) {
	if p.Timing != nil {
		p.Timing(on)
	}
}

// Values of Plan.Timer; "" means TimerAuto.
const (
	TimerAuto   = "auto"   // CUPTI if it can be used, else events; Samples say which and why
	TimerCUPTI  = "cupti"  // CUPTI, or an error that wraps ErrTimer
	TimerEvents = "events" // CUDA events
)

// Timers are all values of Plan.Timer.
var Timers = []string{TimerAuto, TimerCUPTI, TimerEvents}

// Samples are the timings of one workload.
type Samples struct {
	Timer     string            `json:"timer"`                // "cupti", "cuda events"
	TimerNote string            `json:"timer_note,omitempty"` // why a Plan with TimerAuto did not get CUPTI
	ColdL2    bool              `json:"cold_l2"`
	Trials    [][]time.Duration `json:"trials_ns"`           // one row per trial, in order of measurement
	Truncated bool              `json:"truncated,omitempty"` // MaxTime ended the measurement
	// kernels of one call in order of their start; nil if the timer does not report them
	Kernels []Activity `json:"kernels,omitempty"`
	// work of the calls that CUPTI's rule does not count; nil without such work or without CUPTI
	Outside *Outside `json:"outside,omitempty"`
	// processes of the solution other than its worker that use a GPU, as "PID (NAME)"; Measure's caller looks for them
	Processes []string `json:"-"`
	// the part of the L2 in bytes that the solution reserves for persisting lines; 0 for the driver's default
	PersistingL2 int64 `json:"persisting_l2,omitempty"`
	// the CUDA function with which a call queues a function of the host, such as "cudaLaunchHostFunc"; "" if none does or
	// without CUPTI
	HostFunction string `json:"host_function,omitempty"`
	// nil from a device: Measure's caller reads the GPU itself
	Stamp     *Stamp   `json:"stamp,omitempty"`
	Disturbed []string `json:"disturbed,omitempty"` // reasons to doubt the timings, as sentences
}

// Outside is work of timed calls on the GPU that their times do not include, because it was not launched between the
// begin and the end of a call.
type Outside struct {
	Calls  int             `json:"calls"`     // number of timed calls
	Missed []time.Duration `json:"missed_ns"` // what such work adds to a call's time, for each call with such work
	Work   Activity        `json:"work"`      // the first
	// Uncalled is set if Work was launched before the first call, although no call was in progress.
	Uncalled bool `json:"uncalled,omitempty"`
}

// Add returns the work of both, either of which may be nil.
func (o *Outside) Add(more *Outside) *Outside {
	if o == nil || more == nil {
		return cmp.Or(o, more)
	}
	sum := &Outside{o.Calls + more.Calls, slices.Concat(o.Missed, more.Missed), o.Work, o.Uncalled}
	if more.Uncalled && !o.Uncalled {
		sum.Work, sum.Uncalled = more.Work, true
	}
	return sum
}

// Busy is the disturbance of a measurement that a Plan's Idle could not prevent.
const Busy = "the GPU was busy with other work before the calls"

// A BuildError means that a solution does not compile or load. It is data about the solution, not the machine.
type BuildError struct {
	Text string // one line
	Log  string // the compiler's own output
	// Exports are the linked object's exported symbols if the entry symbol is missing.
	Exports []string
}

func (e *BuildError) Error() string { return e.Text }

// A CallError is an error returned or raised by the called function.
type CallError struct {
	Kind string // the callee's error type, such as "TypeError"
	Text string
	Log  string
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: %s", e.Kind, e.Text) }

var (
	// ErrNoTiming is returned by Measure of a device whose timings mean nothing.
	ErrNoTiming = errors.New("this device measures no time")

	// ErrTimer is wrapped by Measure's error if the requested timer cannot be used.
	ErrTimer = hint.Wrap(errors.New("timer unavailable"), "fisub toolchain install fetches libcupti (for Python: pip "+
		"install nvidia-cuda-cupti); --timer auto falls back to CUDA events")
	// ErrNotBuilt is wrapped by Open's error if the program was built without this device.
	ErrNotBuilt = hint.Wrap(errors.New("built without -tags cuda"),
		"make build includes GPU support; --device emu runs on the CPU")

	// ErrFault is wrapped by errors after which this process can no longer use the device.
	ErrFault = errors.New("device fault")

	// ErrUnsupported is wrapped by errors of Build and Call if the device does not support something the solution uses.
	// It says nothing about the solution.
	ErrUnsupported = errors.New("no verdict")
)

// A HostBuffer is a Buffer in the memory of this process.
type HostBuffer interface {
	Buffer
	Address() uintptr // of the first byte; 0 if the buffer is empty
}

// An Observer is a Device that observes calls: it detects hazards, and knows what the last call did.
type Observer interface {
	// Look begins a workload: its first call is checked more closely than others and, if fully is set, for everything
	// that the device can find, whatever that takes.
	Look(fully bool)

	// Count makes the device record the counters of each launch as a Hazard of kind Counted, or stops that if sample is
	// 0. Of a launch with more than sample clusters of blocks, about that many run.
	Count(sample int)

	// Record sets the function to call at once with each hazard, and with each fault as one of kind Faulted.
	Record(f func(Hazard))

	// Forget makes the device record known hazards again. Otherwise it records one per kind and place.
	Forget()

	// Worked reports whether the last call launched a kernel, or copied or set memory.
	Worked() bool

	// Launched reports whether the last call launched a kernel.
	Launched() bool
}

// Faulted is the kind of a Hazard that ends the call with an error.
const Faulted = "fault"

// Counted is the kind of a Hazard that is none: its Text is a counters.Launch in JSON.
const Counted = "counted"

// Progress is the kind of a Hazard that is none: its Text is the progress of a launch that takes long, or "" at its
// end.
const Progress = "progress"

// ChangedVariable is the kind of a Hazard about variables that earlier calls have changed.
const ChangedVariable = "changed-variable"

// A Hazard is a mistake in a call that may leave its result correct.
type Hazard struct {
	Kind  string `json:"kind"`           // "race", "unwritten-memory", "division-by-zero", "refused-launch"
	Place string `json:"place"`          // file:line:column in the source, or the kernel's name
	Text  string `json:"text"`           // includes the place
	Clue  bool   `json:"clue,omitempty"` // right calls do that, too: it says something only if the outputs are wrong
}

// Same reports whether both hazards have the same kind and place.
func (h Hazard) Same(other Hazard) bool { return h.Kind == other.Kind && h.Place == other.Place }

// Sanitizers are compute-sanitizer's tools, in the order of their runs. The virtual GPU makes the same checks.
var Sanitizers = []string{"memcheck", "racecheck", "initcheck", "synccheck"}

// Options are the settings of an Opener; the zero value is valid.
type Options struct {
	Ordinal  int    `json:"ordinal"`
	CacheDir string `json:"cache_dir"` // build cache; "" is the user's cache folder
	// Arch replaces the device's own arch, for example "sm_90a".
	Arch string `json:"arch,omitempty"`
	// LineInfo adds line information to the kernels that a GPU builds, for profilers. The machine code is the same.
	LineInfo bool `json:"line_info,omitempty"`
	// Prebuilt is a folder of nvcc.Pack's files. If set, a GPU takes solutions from it and builds none.
	Prebuilt string `json:"prebuilt,omitempty"`
	// Sanitize lists, with commas, the Sanitizers whose findings are faults on the virtual GPU.
	Sanitize string `json:"sanitize,omitempty"`

	Stdout io.Writer `json:"-"` // of kernels; nil is os.Stdout
	Stderr io.Writer `json:"-"`
}

// An Opener opens a device of one kind.
type Opener struct {
	Kind string // "cuda", "emu"
	Open func(ctx context.Context, opts Options) (Device, error)
}

// ArchHint is the hint for a kernel that was compiled for another GPU.
const ArchHint = "use --gpu or --arch for the host's GPU: the kernel is compiled before it is sent"
