// Package trace is the contest's data format: definitions (what an operation is), workloads (concrete inputs for it),
// solutions (sources that implement it) and traces (a workload, and what came of running a solution on it).
//
// A document is one JSON object: a file for a definition or a solution, a line of a .jsonl file for a workload, which
// is a trace without solution, and for a trace. The types of this package say what it holds: the tag json names a
// key, the tag rule what must hold of its value. Decoding words its faults as the format's own library does. It is
// stricter in types: a number, a boolean and a string are written as JSON has them, and a key stands once. Keys that
// the format does not know are dropped, with a Warning; where a union's key "type" is missing, its other keys decide.
// NaN, Infinity and -Infinity are read as Python writes them, bare or as strings. Integers have at most 64 bits, a
// document at most 64 MiB and a million values. Encoding writes what the format's library writes, byte for byte; the
// order of keys in maps is the order in the document, because the order of a definition's inputs and outputs is its
// calling convention.
//
// Two dialects of definitions and workloads are read by ReadDialect and ReadDialectWorkloads: that of FlashInfer's
// fi_trace and that of SOL-ExecBench. What they have beside the format and the format's library ignores (an output's
// param, optional, init, check), each decoder reads, where its type is right, and encoding writes it.
//
// The package checks a document by itself. It does not relate documents to each other, open the files that a workload
// names, or run anything. Of a definition's reference it asks for a line that defines run; whether that and the
// constraints are Python, only Python tells.
package trace

import "fisub/internal/tensor"

// A Definition describes one operation: its axes, its tensors in calling order, and a Python reference (spec 1.1).
type Definition struct {
	Name        string          `json:"name" rule:"required,nonempty"`
	OpType      string          `json:"op_type" rule:"contest,nonempty"`
	Axes        Map[Axis]       `json:"axes" rule:"required,nonempty"`
	Inputs      Map[TensorSpec] `json:"inputs" rule:"required,nonempty"` // order is the calling convention
	Outputs     Map[TensorSpec] `json:"outputs" rule:"required,nonempty"`
	Reference   string          `json:"reference" rule:"contest,nonempty"` // Python source with a top-level function run
	Tags        []string        `json:"tags" rule:"nonempty"`
	Description *string         `json:"description"`
	Constraints []string        `json:"constraints" rule:"nonempty"` // Python expressions over the axes

	// Of the dialects, beside the format; Python source that is never run.
	Init         string `json:"init,omitzero" rule:"beside"`                     // makes inputs (fi_trace)
	Check        string `json:"check,omitzero" rule:"beside"`                    // compares outputs (fi_trace)
	CustomInputs string `json:"custom_inputs_entrypoint,omitzero" rule:"beside"` // reference's function that makes inputs

	kept *kept
}

// An Axis is a named dimension: of a fixed size (const), or bound by the inputs' shapes (var); in a dialect also one
// that follows from others.
type Axis struct {
	Const       bool
	Value       int    // size of a const axis, in elements
	Expr        string // an expression over the other axes, in Python
	Description *string
	kept        *kept
}

// A TensorSpec is the declared shape and dtype of one input or output.
type TensorSpec struct {
	Scalar      bool     // shape null: a Python number
	Shape       []string // axis names; empty and not Scalar is a 0-d tensor
	DType       tensor.DType
	Description *string

	// Of the dialects, beside the format.
	Optional bool   // the argument may be None, an output may be absent
	Param    string // of an output: the argument that is changed in place, an input's name where one has it
	Foreign  string // a dtype that the format lacks, such as "uint8"; DType then says nothing
	kept     *kept
}

// A Workload is one concrete set of inputs for a definition (spec 1.2).
type Workload struct {
	Axes   Map[int]       `json:"axes" rule:"required"`
	Inputs Map[InputSpec] `json:"inputs" rule:"required"`
	UUID   string         `json:"uuid" rule:"required,nonempty"`
}

// A DialectWorkload is a workload of SOL-ExecBench.
type DialectWorkload struct {
	Workload
	Tolerance *Tolerance // how its outputs are compared; nil where the workload does not say
}

// A Tolerance is that dialect's: an element is right where |got - want| is at most MaxAtol + MaxRtol * |want|.
type Tolerance struct {
	MaxAtol              float64  `json:"max_atol"`
	MaxRtol              float64  `json:"max_rtol"`
	RequiredMatchedRatio float64  `json:"required_matched_ratio"`
	MaxErrorCap          *float64 `json:"max_error_cap"` // no element may be further off, nil for any
	AllowNegativeInf     bool     `json:"allow_negative_inf"`
}

// InputKind says where an input's values come from.
type InputKind uint8

const (
	Random InputKind = iota
	Safetensors
	ScalarInput
	CustomInput // of a dialect: the definition's CustomInputs makes it
)

// String is the value of an input's key "type".
func (k InputKind) String() string {
	return [...]string{"random", "safetensors", "scalar", "custom"}[k]
}

// An InputSpec is the source of one input.
type InputSpec struct {
	Kind      InputKind
	Path      string // Safetensors: file, relative to the dataset root or absolute
	TensorKey string // Safetensors: name of the tensor in the file
	Value     Scalar // ScalarInput
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
	Name        string       `json:"name" rule:"required,nonempty"`
	Definition  string       `json:"definition" rule:"required,nonempty"`
	Author      string       `json:"author" rule:"required,nonempty"`
	Spec        BuildSpec    `json:"spec" rule:"required"`
	Sources     []SourceFile `json:"sources" rule:"required,some"`
	Description *string      `json:"description"`
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
	Language                Language `json:"language" rule:"required,language"`
	TargetHardware          []string `json:"target_hardware" rule:"required,some"`
	EntryPoint              string   `json:"entry_point" rule:"required,nonempty"` // "file::symbol"
	Dependencies            []string `json:"dependencies" rule:"nonempty"`
	DestinationPassingStyle bool     `json:"destination_passing_style"`
	Binding                 string   `json:"binding" rule:"null,binding"` // "tvm-ffi", "torch", or "" for null
}

// Compiled tells whether solutions of that spec are compiled and called through TVM-FFI: CUDA and C++ but for the torch
// binding. All others run in Python.
func (b *BuildSpec) Compiled() bool {
	return (b.Language == CUDA || b.Language == CPP) && b.Binding != "torch"
}

// A SourceFile is one file of a solution.
type SourceFile struct {
	Path    string `json:"path" rule:"required,nonempty"` // relative, no ".." component
	Content string `json:"content" rule:"required,nonempty"`
}

// A Trace is one line of a workloads or traces file: a workload, and, where a solution ran on it, the evaluation.
type Trace struct {
	Definition string      `json:"definition" rule:"required,nonempty"`
	Workload   Workload    `json:"workload" rule:"required"`
	Solution   *string     `json:"solution"`
	Evaluation *Evaluation `json:"evaluation"`
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
	Status      Status       `json:"status" rule:"required,status"`
	Environment Environment  `json:"environment" rule:"required"`
	Timestamp   string       `json:"timestamp" rule:"required,nonempty"` // local ISO time with microseconds, no zone
	Log         string       `json:"log"`
	Correctness *Correctness `json:"correctness"`
	Performance *Performance `json:"performance"`
}

// An Environment names the hardware and the library versions of an evaluation.
type Environment struct {
	Hardware string      `json:"hardware" rule:"required,nonempty"`
	Libs     Map[string] `json:"libs"`
}

// Correctness holds the largest errors over all outputs and trials; NaN and infinity are legal.
type Correctness struct {
	MaxRelativeError float64   `json:"max_relative_error" rule:"nan"`
	MaxAbsoluteError float64   `json:"max_absolute_error" rule:"nan"`
	Extra            *Map[any] `json:"extra"` // nil is null; values are what decoding JSON gives
}

// Performance holds latencies in milliseconds.
type Performance struct {
	LatencyMS          float64 `json:"latency_ms"`
	ReferenceLatencyMS float64 `json:"reference_latency_ms"`
	SpeedupFactor      float64 `json:"speedup_factor"`
}

// A BigInt is an integer of Correctness.Extra that int64 cannot hold, in decimal.
type BigInt string
