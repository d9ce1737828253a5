// Package trace is the contest's data format: definitions (what an operation is), workloads (concrete inputs for it),
// solutions (sources that implement it) and traces (a workload, and what came of running a solution on it).
//
// A document is one JSON object: a file for a definition or a solution, a line of a .jsonl file for a workload, which is
// a trace without solution, and for a trace. Decoding follows the format's own library, pydantic in lax mode, in what it
// accepts, what it converts and how it words its faults: numbers may come as strings, keys that it does not know are
// dropped (here with a Warning), a union's branch is chosen by its fields where the key "type" is missing. Two limits are
// this package's own: integers have 64 bits, and a document has at most 64 MiB and a million values. Encoding writes
// what the format's library writes, byte for byte; the order of keys in maps is the order in the document, because the
// order of a definition's inputs and outputs is its calling convention.
//
// The package checks a document by itself. It does not relate documents to each other, open the files that a workload
// names, or run anything; a definition's reference is checked as text (see pysyntax).
package trace

import (
	"fmt"

	"fisub/internal/tensor"
)

// A Definition describes one operation: its axes, its tensors in calling order, and a Python reference (spec 1.1).
type Definition struct {
	Name        string
	OpType      string
	Axes        Map[Axis]
	Inputs      Map[TensorSpec] // order is the calling convention
	Outputs     Map[TensorSpec]
	Reference   string // Python source with a top-level function run
	Tags        []string
	Description *string
	Constraints []string // Python expressions over the axes
	set         fieldSet
}

// An Axis is a named dimension: of a fixed size (const), or bound by the inputs' shapes (var).
type Axis struct {
	Const       bool
	Value       int // size of a const axis, in elements
	Description *string
	set         fieldSet
}

// A TensorSpec is the declared shape and dtype of one input or output.
type TensorSpec struct {
	Scalar      bool     // shape null: a Python number
	Shape       []string // axis names; empty and not Scalar is a 0-d tensor
	DType       tensor.DType
	Description *string
	// Optional is the historic key "optional": read, never written, since the format dropped it.
	Optional bool
	set      fieldSet
}

// A Workload is one concrete set of inputs for a definition (spec 1.2).
type Workload struct {
	Axes   Map[int]
	Inputs Map[InputSpec]
	UUID   string
	set    fieldSet
}

// InputKind says where an input's values come from.
type InputKind uint8

const (
	Random InputKind = iota
	Safetensors
	ScalarInput
)

// String is the value of an input's key "type".
func (k InputKind) String() string {
	switch k {
	case Random:
		return "random"
	case Safetensors:
		return "safetensors"
	case ScalarInput:
		return "scalar"
	}
	return fmt.Sprintf("input(%d)", uint8(k))
}

// An InputSpec is the source of one input.
type InputSpec struct {
	Kind      InputKind
	Path      string // Safetensors: file, relative to the dataset root or absolute
	TensorKey string // Safetensors: name of the tensor in the file
	Value     Scalar // ScalarInput
	set       fieldSet
}

// ScalarKind is the type that a JSON scalar had.
type ScalarKind uint8

const (
	IntScalar ScalarKind = iota
	FloatScalar
	BoolScalar
)

// A Scalar is a number or boolean that keeps the type it had in JSON: 1 stays an int, 1.0 a float.
type Scalar struct {
	Kind  ScalarKind
	Int   int64
	Float float64
	Bool  bool
}

// A Solution is a submission: its sources and how to build them (spec 1.3).
type Solution struct {
	Name        string
	Definition  string
	Author      string
	Spec        BuildSpec
	Sources     []SourceFile
	Description *string
	set         fieldSet
}

// A Language is the implementation language of a solution.
type Language string

const (
	Python   Language = "python"
	Triton   Language = "triton"
	CPP      Language = "cpp"
	CUDA     Language = "cuda"
	TileLang Language = "tilelang"
)

// A BuildSpec says how a solution is built and called.
type BuildSpec struct {
	Language                Language
	TargetHardware          []string
	EntryPoint              string // "file::symbol"
	Dependencies            []string
	DestinationPassingStyle bool
	Binding                 string // "tvm-ffi", "torch", or "" for null
	set                     fieldSet
}

// Compiled tells whether solutions of that spec are compiled and called through TVM-FFI: CUDA and C++ but for the torch
// binding. All others run in Python.
func (b *BuildSpec) Compiled() bool {
	return (b.Language == CUDA || b.Language == CPP) && b.Binding != "torch"
}

// A SourceFile is one file of a solution.
type SourceFile struct {
	Path    string // relative, no ".." component
	Content string
	set     fieldSet
}

// A Trace is one line of a workloads or traces file: a workload, and, where a solution ran on it, the evaluation.
type Trace struct {
	Definition string
	Workload   Workload
	Solution   *string
	Evaluation *Evaluation
	set        fieldSet
}

// A Status is the verdict on one workload, in the contest's words.
type Status string

const (
	Passed             Status = "PASSED"
	IncorrectShape     Status = "INCORRECT_SHAPE"
	IncorrectNumerical Status = "INCORRECT_NUMERICAL"
	IncorrectDType     Status = "INCORRECT_DTYPE"
	RuntimeError       Status = "RUNTIME_ERROR"
	CompileError       Status = "COMPILE_ERROR"
	Timeout            Status = "TIMEOUT"
)

// An Evaluation is what came of running a solution on a workload (spec 1.4).
type Evaluation struct {
	Status      Status
	Environment Environment
	Timestamp   string // local ISO time with microseconds, no zone
	Log         string
	Correctness *Correctness
	Performance *Performance
	set         fieldSet
}

// An Environment names the hardware and the library versions of an evaluation.
type Environment struct {
	Hardware string
	Libs     Map[string]
	set      fieldSet
}

// Correctness holds the largest errors over all outputs and trials; NaN and infinity are legal.
type Correctness struct {
	MaxRelativeError float64
	MaxAbsoluteError float64
	Extra            *Map[any] // nil is null; values are what decoding JSON gives
	set              fieldSet
}

// Performance holds latencies in milliseconds.
type Performance struct {
	LatencyMS          float64
	ReferenceLatencyMS float64
	SpeedupFactor      float64
	set                fieldSet
}

// A BigInt is an integer of Correctness.Extra that int64 cannot hold, in decimal.
type BigInt string

// A fieldSet records which keys a JSON object had, as one bit for each field in declaration order, and that
// there was one.
type fieldSet uint16
