package counters

import (
	"regexp"
	"strconv"
	"strings"
)

// A Class is a kind of instruction.
type Class string

// Loads and stores without a space have the class of global ones; what they access is counted for each space.
const (
	GlobalLoad   Class = "global load"
	GlobalStore  Class = "global store"
	GlobalAtomic Class = "global atomic" // with a result
	GlobalReduce Class = "global reduction"
	SharedLoad   Class = "shared load"
	SharedStore  Class = "shared store"
	SharedAtomic Class = "shared atomic"
	LocalLoad    Class = "local load"
	LocalStore   Class = "local store"
	LoadMatrix   Class = "ldmatrix"
	StoreMatrix  Class = "stmatrix"
	AsyncCopy    Class = "cp.async"
	BulkCopy     Class = "bulk copy"
	TensorCopy   Class = "tensor copy"
	Constant     Class = "constant load" // and loads of parameters
	Tensor       Class = "tensor"
	Single       Class = "fp32"
	Double       Class = "fp64"
	Half         Class = "fp16"
	Special      Class = "special function"
	Integer      Class = "integer"
	Conversion   Class = "conversion"
	Move         Class = "move"
	Shuffle      Class = "shuffle" // and other exchanges between lanes
	Barrier      Class = "barrier"
	Mbarrier     Class = "mbarrier"
	Branch       Class = "branch"
	Other        Class = "other"
)

// ClassOf returns the class of a PTX opcode with its modifiers.
func ClassOf(op string) Class {
	parts := strings.Split(op, ".")
	name, last := parts[0], parts[len(parts)-1]
	has := func(part string) bool {
		for _, p := range parts[1:] {
			if before, _, _ := strings.Cut(p, "::"); before == part {
				return true
			}
		}
		return false
	}
	pick := func(global, shared, local Class) Class {
		switch {
		case has("shared"):
			return shared
		case has("local"):
			return local
		}
		return global
	}
	switch name {
	case "ld", "ldu":
		if has("const") || has("param") {
			return Constant
		}
		return pick(GlobalLoad, SharedLoad, LocalLoad)
	case "st":
		if has("async") {
			return SharedStore
		}
		return pick(GlobalStore, SharedStore, LocalStore)
	case "atom":
		return pick(GlobalAtomic, SharedAtomic, LocalStore)
	case "red":
		return pick(GlobalReduce, SharedAtomic, LocalStore)
	case "ldmatrix":
		return LoadMatrix
	case "stmatrix":
		return StoreMatrix
	case "cp":
		switch {
		case has("tensor"):
			return TensorCopy
		case has("bulk") && !has("commit_group") && !has("wait_group"):
			return BulkCopy
		case has("ca") || has("cg"):
			return AsyncCopy
		}
		return Mbarrier // waits and commits
	case "mma", "wmma", "wgmma", "tcgen05":
		switch {
		case name == "wmma" && has("load"):
			return pick(GlobalLoad, SharedLoad, LocalLoad)
		case name == "wmma" && has("store"):
			return pick(GlobalStore, SharedStore, LocalStore)
		case name == "mma" || has("mma") || has("mma_async"):
			return Tensor
		}
		return Other
	case "ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt", "div":
		if !strings.HasPrefix(last, "f") && last != "bf16" && last != "bf16x2" {
			return Integer
		}
		return Special
	case "cvt", "cvta":
		return Conversion
	case "mov", "selp", "prmt", "movmatrix":
		return Move
	case "shfl", "vote", "match", "redux", "activemask", "elect":
		return Shuffle
	case "bar", "barrier":
		return Barrier
	case "mbarrier", "fence", "membar", "griddepcontrol":
		return Mbarrier
	case "bra", "brx", "call", "ret", "exit", "trap":
		return Branch
	}
	switch last {
	case "f32", "f32x2":
		return Single
	case "f64":
		return Double
	case "f16", "f16x2", "bf16", "bf16x2":
		return Half
	}
	if len(last) > 1 && strings.ContainsRune("usb", rune(last[0])) && last[1] >= '0' && last[1] <= '9' || name == "setp" {
		return Integer
	}
	return Other
}

// Flops returns the number of floating-point operations of a PTX arithmetic instruction in one lane, without those of
// special functions: two for a fused multiply-add.
func Flops(op string) uint64 {
	parts := strings.Split(op, ".")
	var n uint64
	switch parts[0] {
	case "fma", "mad":
		n = 2
	case "add", "sub", "mul":
		n = 1
	default:
		return 0
	}
	switch parts[len(parts)-1] {
	case "f32", "f64", "f16", "bf16":
		return n
	case "f16x2", "bf16x2", "f32x2":
		return 2 * n
	}
	return 0
}

// sparse matches opcodes of products with a sparse factor.
var sparse = regexp.MustCompile(`\.sp\b`)

var matrixShape = regexp.MustCompile(`\bm(\d+)n(\d+)k(\d+)\b`)

// TensorOperations returns the number of operations of a matrix product, two for a multiply-add, for each warp that
// executes it, or 0 if the opcode does not have its shape.
func TensorOperations(op string) uint64 {
	m := matrixShape.FindStringSubmatch(op)
	if m == nil || ClassOf(op) != Tensor {
		return 0
	}
	n := uint64(2)
	for _, d := range m[1:] {
		v, err := strconv.ParseUint(d, 10, 16)
		if err != nil {
			return 0
		}
		n *= v
	}
	if strings.HasPrefix(op, "wgmma.") {
		n /= 4 // of four warps
	}
	if sparse.MatchString(op) {
		n /= 2 // k counts the zeros, too
	}
	return n
}

// TensorType returns the type of the factors of a matrix product: "f64", "tf32", "f16", "f8", "i8", "f4" or "b1".
func TensorType(op string) string {
	best, rank := "f16", 0
	for i, types := range []struct{ name, parts string }{
		{"f64", " f64 "}, {"tf32", " tf32 kind::tf32 "}, {"f16", " f16 bf16 kind::f16 "},
		{"f8", " e4m3 e5m2 e3m2 e2m3 kind::f8f6f4 kind::mxf8f6f4 "}, {"i8", " s8 u8 s4 u4 kind::i8 "},
		{"f4", " e2m1 kind::mxf4 kind::mxf4nvf4 "}, {"b1", " b1 "}} {
		for _, p := range strings.Split(op, ".")[1:] {
			if strings.Contains(types.parts, " "+p+" ") && i >= rank {
				best, rank = types.name, i
			}
		}
	}
	return best
}
