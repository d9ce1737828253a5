// Package trace implements the contest's data format: definitions of operations, workloads (concrete inputs), solutions
// (sources that implement a definition) and traces (a workload with the result of running a solution on it).
//
// A document is one JSON object: a file for a definition or a solution, a line of a .jsonl file for a workload or a
// trace. A workload line is a trace without a solution. In the types of this package the tag json names a key, and the
// tag rule restricts its value. Faults are worded as in the format's own library. Decoding is stricter: it does not
// convert between strings, numbers and booleans, and rejects duplicate keys. Unknown keys are dropped with a Warning.
// If the key "type" of a union is missing, its other keys determine the type. NaN, Infinity and -Infinity are accepted
// bare, as Python writes them, and as strings. Integers have at most 64 bits, a document at most 64 MiB and a million
// values. Encoding writes exactly the bytes that the format's library writes. Maps keep the order of their keys,
// because the order of a definition's inputs and outputs is its calling convention.
//
// ReadDialect and DecodeDialectWorkload read two dialects: FlashInfer's fi_trace and SOL-ExecBench. The format's
// library ignores their additional fields (an output's param, optional, init, check). Every decoder here reads such a
// field if its type is right, and encoding writes it.
//
// Each document is checked alone. The package does not relate documents to each other, open the files named in a
// workload, or run anything. In a definition's reference it looks only for a line that defines run. It does not check
// that the reference and the constraints are valid Python.
package trace

import (
	"iter"

	"fisub/internal/tensor"
)

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

	// Only in dialects; Python source that is never run.
	Init  string `json:"init,omitzero" rule:"beside"`  // makes inputs (fi_trace)
	Check string `json:"check,omitzero" rule:"beside"` // compares outputs (fi_trace)

	// A function of Reference that makes the workloads' inputs of kind CustomInput (SOL-ExecBench). It takes a dictionary
	// of sizes and scalars, and the device, and returns a dictionary of inputs by name.
	CustomInputs string `json:"custom_inputs_entrypoint,omitzero" rule:"beside"`

	// Not nil if functions in Python make the inputs and judge the outputs. Inputs and Outputs then name the one object
	// of each, of dtype "object", and there is no Reference.
	Python *Functions `json:"python,omitzero" rule:"object"`

	kept *kept
}

// Functions are the functions of a definition in Python. Each is named as "file::function". They are trusted: they run
// in the process of the reference, which never imports a submission.
type Functions struct {
	Files Map[string] `json:"files" rule:"required,nonempty"` // by path; importable by the submission too

	// Inputs makes the object of inputs from a workload's axes and arguments or, if Call is "model", without any.
	Inputs string `json:"inputs" rule:"required,nonempty"`
	// Cases, with GPU MODE's boards, parses a file of cases: "size: 1024; seed: 42". Inputs gets the arguments that it
	// finds there.
	Cases string `json:"cases,omitzero"`
	// Check takes the inputs and the output, and returns whether the output is right, and a text.
	Check string `json:"check,omitzero"`
	// Expected, without Check, returns the right output for the inputs. An element of the output is right if it differs
	// from it by at most Atol + Rtol times its magnitude. With Call "model" it is the class of the model.
	Expected string  `json:"expected,omitzero"`
	Atol     float64 `json:"atol,omitzero"`
	Rtol     float64 `json:"rtol,omitzero"`
	// Init, with Call "model", makes the list of the constructor's arguments.
	Init string `json:"init,omitzero"`
	// Call is how a submission gets the inputs: "one", the object as the only argument; "positional", its items; or
	// "model": its entry point is a class, which is made once and called with the items.
	Call string `json:"call" rule:"required,call"`

	// Ranking is how a board makes one score of the mean times of its cases: "last", "mean" or "geom"; "" is no board.
	Ranking string `json:"ranking,omitzero"`
}

// An Axis is a named dimension. Its size is fixed (const), bound by the inputs' shapes (var), or in a dialect computed
// from other axes.
type Axis struct {
	Const       bool
	Value       int    // size of a const axis, in elements
	Expr        string // Python expression over the other axes
	Description *string
	kept        *kept
}

// Object is the dtype, in TensorSpec.Foreign, of the inputs and the output of a definition with functions in Python.
const Object = "object"

// A TensorSpec is the declared shape and dtype of one input or output.
type TensorSpec struct {
	Scalar      bool     // shape null: a Python number
	Shape       []string // axis names; empty for a 0-d tensor
	DType       tensor.DType
	Description *string

	// Only in dialects.
	Optional bool   // the argument may be None, or the output absent
	Param    string // of an output: the argument modified in place, usually the name of an input
	Foreign  string // unsupported dtype, such as "uint8"; DType is then meaningless
	kept     *kept
}

// A Workload is one concrete set of inputs for a definition (spec 1.2).
type Workload struct {
	Axes   Map[int]       `json:"axes" rule:"required"`
	Inputs Map[InputSpec] `json:"inputs" rule:"required"`
	UUID   string         `json:"uuid" rule:"required,nonempty"`

	// Arguments are those of the definition's function in Python that are no sizes: strings, booleans, numbers or lists.
	Arguments *Map[any] `json:"arguments,omitzero" rule:"object"`
}

// A DialectWorkload is a workload of SOL-ExecBench.
type DialectWorkload struct {
	Workload
	Tolerance *Tolerance // nil if the workload sets none
}

// A Tolerance is SOL-ExecBench's. An element is correct if |got - want| <= MaxAtol + MaxRtol * |want|.
type Tolerance struct {
	MaxAtol              float64  `json:"max_atol"`
	MaxRtol              float64  `json:"max_rtol"`
	RequiredMatchedRatio float64  `json:"required_matched_ratio"`
	MaxErrorCap          *float64 `json:"max_error_cap"` // upper limit for the error of every element; nil: none
	AllowNegativeInf     bool     `json:"allow_negative_inf"`
}

// InputKind is the source of an input's values.
type InputKind uint8

const (
	Random InputKind = iota
	Safetensors
	ScalarInput
	CustomInput // made by the definition's CustomInputs
)

// String returns the value of the input's key "type".
func (k InputKind) String() string {
	return [...]string{"random", "safetensors", "scalar", "custom"}[k]
}

// An InputSpec describes the source of one input.
type InputSpec struct {
	Kind      InputKind
	Path      string // Safetensors: file, relative to the dataset root or absolute
	TensorKey string // Safetensors: name of the tensor in the file
	Value     Scalar // ScalarInput
}

// ScalarKind is the JSON type of a scalar.
type ScalarKind uint8

const (
	IntScalar ScalarKind = iota
	FloatScalar
	BoolScalar
)

// A Scalar is a number or boolean that keeps its JSON type: 1 stays an int, 1.0 a float.
type Scalar struct {
	Kind  ScalarKind
	Int   int64
	Float float64
	Bool  bool
}

// Any returns the value as an int64, float64 or bool.
func (s Scalar) Any() any {
	return [...]any{IntScalar: s.Int, FloatScalar: s.Float, BoolScalar: s.Bool}[s.Kind]
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

// A BuildSpec describes how to build and call a solution.
type BuildSpec struct {
	Language                Language `json:"language" rule:"required,language"`
	TargetHardware          []string `json:"target_hardware" rule:"required,some"`
	EntryPoint              string   `json:"entry_point" rule:"required,nonempty"` // "file::symbol"
	Dependencies            []string `json:"dependencies" rule:"nonempty"`
	DestinationPassingStyle bool     `json:"destination_passing_style"`
	Binding                 string   `json:"binding" rule:"null,binding"` // "tvm-ffi", "torch", or "" for null
}

// Compiled reports whether the solution is compiled and called through TVM-FFI, as CUDA and C++ are without the torch
// binding. All others run in Python.
func (b *BuildSpec) Compiled() bool {
	return (b.Language == CUDA || b.Language == CPP) && b.Binding != "torch"
}

// A SourceFile is one file of a solution.
type SourceFile struct {
	Path    string `json:"path" rule:"required,nonempty"` // relative, no ".." component
	Content string `json:"content" rule:"required,nonempty"`
}

// A Trace is one line of a workloads or traces file: a workload and, if a solution ran on it, the evaluation.
type Trace struct {
	Definition string      `json:"definition" rule:"required,nonempty"`
	Workload   Workload    `json:"workload" rule:"required"`
	Solution   *string     `json:"solution"`
	Evaluation *Evaluation `json:"evaluation"`
}

// A Status is the verdict on one workload, as the contest spells it.
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

// An Evaluation is the result of running a solution on a workload (spec 1.4).
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
	Extra            *Map[any] `json:"extra"` // nil for null; values as decoded from JSON
}

// Performance holds latencies in milliseconds.
type Performance struct {
	LatencyMS          float64 `json:"latency_ms"`
	ReferenceLatencyMS float64 `json:"reference_latency_ms"`
	SpeedupFactor      float64 `json:"speedup_factor"`
}

// A BigInt is an integer in Correctness.Extra that does not fit int64, in decimal.
type BigInt string

// A Map is a string-keyed map that keeps insertion order. The zero Map is empty and ready for use. Copies are
// independent as long as only one is modified.
type Map[V any] struct {
	keys   []string
	values map[string]V
}

// Len returns the number of keys.
func (m *Map[V]) Len() int { return len(m.keys) }

// Keys returns the keys in order. The caller must not change the slice.
func (m *Map[V]) Keys() []string { return m.keys }

// Get returns the value of key. ok is false if the key is missing.
func (m *Map[V]) Get(key string) (value V, ok bool) {
	value, ok = m.values[key]
	return value, ok
}

// Set appends key, or replaces its value in place.
func (m *Map[V]) Set(key string, value V) {
	if m.values == nil {
		m.values = map[string]V{}
	}
	if _, ok := m.values[key]; !ok {
		m.keys = append(m.keys, key)
	}
	m.values[key] = value
}

// All yields keys and values in order.
func (m *Map[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range m.keys {
			if !yield(k, m.values[k]) {
				return
			}
		}
	}
}
