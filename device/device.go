// Package device is the contract between bench and what runs a kernel: device/cuda, an NVIDIA GPU, and device/vgpu,
// which executes the same kernels on the CPU. It is not for choosing among them; app lists them.
package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"fisub/internal/hint"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A Device builds solutions and runs their kernels. A Device is used from one goroutine at a time.
type Device interface {
	Info() Info

	// Build compiles sol for this device, or finds the result in the cache. A source that does not compile, or lacks
	// the entry symbol, is a *BuildError; any other error is about the machine (no compiler, disk full).
	Build(ctx context.Context, def *trace.Definition, sol *trace.Solution) (Kernel, error)

	// Alloc returns uninitialised device memory of n bytes, aligned to 256 bytes. n may be 0.
	Alloc(n int) (Buffer, error)

	// Measure times call, which launches one kernel call on the device's stream and does not wait for it. It returns an
	// error that wraps ErrNoTiming where the device has no meaningful clock (the emulator), and ErrTimer where the timer
	// that plan insists on cannot be used. A call whose kernels cannot be timed is the solution's fault: a *CallError.
	Measure(ctx context.Context, call func() error, plan Plan) (*Samples, error)

	// Close frees the device; kernels and buffers of it must not be used afterwards.
	Close() error
}

// A Buffer is device memory. Its methods are synchronous.
type Buffer interface {
	Len() int
	Write(p []byte) error // copies p, at most Len bytes, to the start of the buffer
	Read(p []byte) error  // fills p, at most Len bytes, from the start of the buffer
	Fill(b byte) error

	// Copy puts the contents of a buffer of the same device and length into this one, in the order of the device's stream.
	Copy(from Buffer) error

	// Slice returns the n bytes from offset, a multiple of 256, as a buffer of their own. It shares the memory and ends
	// with the buffer that it is part of; its Close does nothing. It panics where the range is outside of the buffer.
	Slice(offset, n int) Buffer

	Close() error
}

// A FileBuffer is a Buffer that may use a file's pages instead of a copy of them. The file must not change before the
// buffer is closed or written to as a whole.
type FileBuffer interface {
	Buffer
	WriteFile(f *os.File, offset int64, n int) error // Write of n bytes of f, which has them, from offset on
}

// A Kernel is a built solution. One whose Cached method says so was not compiled anew.
type Kernel interface {
	// Call calls the entry point with args, in the order of the definition: inputs, then, in destination-passing style,
	// outputs. It may return before the device is done. An error of the callee is a *CallError.
	Call(ctx context.Context, args []Arg) error

	// Probe calls the entry point as Call does and tells what the call has put into the order of the device's stream: the
	// stream is busy for a moment, then fills the last len(into) args, the outputs, with fill; behind the call, and with
	// nothing else waited for, their bytes are copied into into, each at most as long as its tensor's buffer, and those of
	// further args, which are not filled, where kept says. What the solution did on a stream that does not wait for the
	// device's, or is not waited for by it, is filled over or missing.
	Probe(ctx context.Context, args []Arg, fill byte, into [][]byte, kept ...Kept) error

	// Sync waits for all calls to end and returns the first device fault. After a fault the device is unusable and the
	// worker process that holds it must end.
	Sync(ctx context.Context) error

	Close() error
}

// An Arg is one argument: a tensor in device memory, a scalar, or, where both are nil, None.
type Arg struct {
	Tensor *TensorArg
	Scalar *trace.Scalar
}

// A Kept is an argument that a Probe reads and does not fill: one that is changed in place.
type Kept struct {
	Arg  int // its index
	Into []byte
}

// A TensorArg is a contiguous row-major tensor in device memory.
type TensorArg struct {
	Buffer Buffer
	DType  tensor.DType
	Shape  []int
}

// A Plan says how to time (spec section 6).
type Plan struct {
	Warmup     int           `json:"warmup"`     // untimed calls in each trial, besides the six fixed ones
	Iterations int           `json:"iterations"` // timed calls in each trial
	Trials     int           `json:"trials"`
	ColdL2     bool          `json:"cold_l2"`  // zero-fill twice the L2 before each call
	MaxTime    time.Duration `json:"max_time"` // 0: no limit; reached, the trial in progress ends early and says so
	Timer      string        `json:"timer,omitempty"`

	// Before, where it is not nil, is called before each call, warm-up calls too, and before the zero-fill. What it puts
	// into the stream is not timed.
	Before func() error `json:"-"`
	// After, unless it is nil, is called behind each timed call, counted from 0 over all trials, when the call's work in
	// the device's stream is done.
	After func(call int) error `json:"-"`
	// Timing, where it is not nil, is called with true when the first trial is warm and with false after the last timed
	// call, on a goroutine of Measure's. What is timed again with another timer, or fails, gets another true, or no false.
	Timing func(bool) `json:"-"`
}

// Tell calls Timing.
func (p *Plan) Tell(on bool) {
	if p.Timing != nil {
		p.Timing(on)
	}
}

// What a Plan's Timer may be, besides "", which is TimerAuto.
const (
	TimerAuto   = "auto"   // CUPTI where it can be used, else events; Samples say which and why
	TimerCUPTI  = "cupti"  // CUPTI, or an error that wraps ErrTimer
	TimerEvents = "events" // CUDA events
)

// Timers are the values of a Plan's Timer.
var Timers = []string{TimerAuto, TimerCUPTI, TimerEvents}

// Samples are the timings of one workload.
type Samples struct {
	Timer     string            `json:"timer"`                // "cupti", "cuda events"
	TimerNote string            `json:"timer_note,omitempty"` // why a Plan with TimerAuto did not get CUPTI
	ColdL2    bool              `json:"cold_l2"`
	Trials    [][]time.Duration `json:"trials_ns"`           // one row for each trial, in order of measurement
	Truncated bool              `json:"truncated,omitempty"` // MaxTime ended the measurement
	// of one call, in order of their start; nil where the timer does not tell
	Kernels []Activity `json:"kernels,omitempty"`
	// nil from a device: who asked for the timing reads the GPU meanwhile
	Stamp     *Stamp   `json:"stamp,omitempty"`
	Disturbed []string `json:"disturbed,omitempty"` // sentences that say why the timings are in doubt
}

// A BuildError says that a solution does not compile or load: data about the solution, not about the machine.
type BuildError struct {
	Text string // one line
	Log  string // the compiler's own output
	// Exports are the symbols that the linked object has for callers, where the entry is not among them.
	Exports []string
}

func (e *BuildError) Error() string { return e.Text }

// A CallError is an error that the called function returned or raised.
type CallError struct {
	Kind string // the callee's error type, such as "TypeError"
	Text string
	Log  string
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: %s", e.Kind, e.Text) }

var (
	// ErrNoTiming is returned by Measure of a device whose timings mean nothing.
	ErrNoTiming = errors.New("this device keeps no time")

	// ErrTimer is wrapped by the error of Measure for a timer that cannot be used here.
	ErrTimer = hint.Wrap(errors.New("timer unavailable"), "fisub toolchain install brings libcupti, for a Python "+
		"submission pip install nvidia-cuda-cupti; --timer auto takes CUDA events if CUPTI cannot be used")
	// ErrNotBuilt is wrapped by the error of Open for a device that this program was built without.
	ErrNotBuilt = hint.Wrap(errors.New("built without -tags cuda"),
		"make build builds one with GPU support; --device emu runs on the CPU")

	// ErrFault is wrapped by errors after which the device is of no further use to this process.
	ErrFault = errors.New("device fault")

	// ErrLacking is wrapped by the error of Build and Call where the emulation lacks what the solution uses: that says
	// nothing about the solution.
	ErrLacking = errors.New("no verdict")
)

// A Looker is a Device that notices hazards.
type Looker interface {
	// Look begins a workload: the next call is examined more closely than the calls after it.
	Look()

	// Hazards returns the hazards that were noticed since it was called last, at most one of each kind at each place.
	Hazards() []Hazard

	// Worked reports whether the last call launched a kernel, or copied or set memory.
	Worked() bool
}

// A Hazard is a mistake in a call that need not make its result wrong.
type Hazard struct {
	Kind  string `json:"kind"`  // "race", "unwritten-memory", "division-by-zero", "refused-launch"
	Place string `json:"place"` // file:line:column in the source, or the name of the kernel
	Text  string `json:"text"`  // with the place
}

// Same reports whether other is a hazard of the same kind at the same place.
func (h Hazard) Same(other Hazard) bool { return h.Kind == other.Kind && h.Place == other.Place }

// Sanitizers are compute-sanitizer's tools, in the order in which they run. The emulator looks for the same.
var Sanitizers = []string{"memcheck", "racecheck", "initcheck", "synccheck"}

// Options are what an Opener may need; the zero value is valid.
type Options struct {
	Ordinal  int    `json:"ordinal"`
	CacheDir string `json:"cache_dir"` // build cache; "" is the user's cache folder
	// Arch is to be built for instead of the device's own, such as "sm_90a".
	Arch string `json:"arch,omitempty"`
	// Prebuilt is, of a GPU, a folder of nvcc.Pack's files: solutions are taken from there and never built.
	Prebuilt string `json:"prebuilt,omitempty"`
	// Sanitize are those of Sanitizers, with commas, whose findings are faults on the emulator.
	Sanitize string `json:"sanitize,omitempty"`

	Stdout io.Writer `json:"-"` // what kernels print; nil is os.Stdout
	Stderr io.Writer `json:"-"`
}

// An Opener opens a device of one kind.
type Opener struct {
	Kind string // "cuda", "emu"
	Open func(ctx context.Context, opts Options) (Device, error)
}

// ArchHint is the hint for a kernel that was compiled for another GPU.
const ArchHint = "--gpu, or --arch, names the GPU of the host: the kernel is compiled for it before it is sent"
