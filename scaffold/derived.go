package scaffold

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// derivedPython adds a kernel that calls the definition's own reference, with a Triton kernel that copies the results for that
// language.
func (p *Project) derivedPython(opts Options) {
	def := opts.Definition
	names := newNames(pythonReserved)
	var params []string
	for name := range def.Inputs.All() {
		params = append(params, names.take(name))
	}
	var b strings.Builder
	comment(&b, "# ", opening(def, "in "+map[trace.Language]string{trace.Triton: "Triton", trace.Python: "PyTorch"}[opts.Language])...)
	comment(&b, "# ", signature(def, func(name string) string { return name })...)
	if opts.Language == trace.Python {
		comment(&b, "# ", "", "It returns what the definition's reference, in reference.py, returns: right, and as slow. Replace the call by your own "+
			"code step by step; fisub local says after each step whether it is still right.")
		fmt.Fprintf(&b, "\nfrom .reference import run\n\n\n%s\n    return %s\n", wrap("def kernel(", params, "):"), indent(wrap("run(", params, ")")))
	} else {
		comment(&b, "# ", "", "The definition's reference, in reference.py, computes; copy_kernel below only copies what it gives into tensors of our own. "+
			"Replace the reference by Triton kernels step by step; fisub local says after each step whether it is still right.")
		b.WriteString(tritonCopy)
		fmt.Fprintf(&b, "\n\n%s\n    results = %s\n%s", wrap("def kernel(", params, "):"), indent(wrap("run(", params, ")")), tritonReturn)
	}
	p.add("kernel.py", []byte(b.String()))
	p.add("reference.py", []byte(ended(def.Reference)))
}

const tritonCopy = `
import torch
import triton
import triton.language as tl

from .reference import run

BLOCK = 1024


@triton.jit
def copy_kernel(source, target, count, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < count), mask=i < count)


def copied(x):
    """A copy of a tensor; numbers as they are."""
    if not isinstance(x, torch.Tensor) or x.numel() == 0:
        return x
    x = x.contiguous()
    y = torch.empty_like(x)
    source, target = x.view(-1).view(torch.uint8), y.view(-1).view(torch.uint8)  # bytes, so that every dtype will do
    copy_kernel[(triton.cdiv(source.numel(), BLOCK),)](source, target, source.numel(), BLOCK=BLOCK)
    return y
`

const tritonReturn = `    if isinstance(results, (tuple, list)):
        return tuple(copied(x) for x in results)
    return copied(results)
`

// derivedCUDA adds an entry point with the definition's signature, its checks, and a kernel that is yet to be written.
func (p *Project) derivedCUDA(opts Options) error {
	def := opts.Definition
	for name, out := range def.Outputs.All() {
		if out.Scalar {
			return fmt.Errorf("definition %q: output %q is a number, which a CUDA kernel cannot return: take triton or python", def.Name, name)
		}
	}
	p.Written = false

	names := newNames(cppReserved)
	axis := map[string]string{} // the expression for the extent of an axis
	var constants, extents, checks, launch, params, kernel strings.Builder
	var entry, arguments []string
	for name := range def.Axes.All() {
		if a, _ := def.Axes.Get(name); a.Const {
			axis[name] = names.take(name)
			fmt.Fprintf(&constants, "constexpr int64_t %s = %d;\n", axis[name], a.Value)
		}
	}
	type param struct {
		name, id, ctype string
		spec            trace.TensorSpec
		out             bool
	}
	var all []param
	add := func(specs *trace.Map[trace.TensorSpec], out bool) {
		for name, spec := range specs.All() {
			all = append(all, param{name, names.take(name), ctypes[spec.DType], spec, out})
		}
	}
	add(&def.Inputs, false)
	add(&def.Outputs, true)
	var variables []string
	for _, q := range all {
		for i, a := range q.spec.Shape {
			if _, bound := axis[a]; !bound {
				axis[a] = names.take(a)
				variables = append(variables, axis[a])
				fmt.Fprintf(&extents, "  const int64_t %s = extent(%s, %d);\n", axis[a], q.id, i)
			}
		}
	}
	ids := map[string]string{}
	var body strings.Builder
	for _, q := range all {
		ids[q.name] = q.id
		if q.spec.Scalar {
			ctype := scalarType(q.spec.DType)
			entry = append(entry, ctype+" "+q.id)
			arguments = append(arguments, q.id)
			fmt.Fprintf(&params, "    %s %s,\n", ctype, q.id)
			continue
		}
		entry = append(entry, "TensorView "+q.id)
		pointer := "const " + q.ctype
		if q.out {
			pointer = q.ctype
		}
		shape := make([]string, len(q.spec.Shape))
		for i, a := range q.spec.Shape {
			shape[i] = axis[a]
		}
		data := names.take(q.id + "_data")
		fmt.Fprintf(&checks, "  auto* %s = checked<%s>(%s, %s, {%s});\n", data, pointer, strconv.Quote(printable(q.name)), q.id, strings.Join(shape, ", "))
		arguments = append(arguments, data)
		fmt.Fprintf(&params, "    %s* __restrict__ %s,  // (%s)\n", pointer, q.id, strings.Join(shape, ", "))
		if q.out {
			count := names.take(q.id + "_count")
			fmt.Fprintf(&body, "  for (int64_t i = first; i < %s; i += stride) {\n    %s[i] = %s{};\n  }\n", count, q.id, q.ctype)
			fmt.Fprintf(&params, "    int64_t %s,\n", count)
			arguments = append(arguments, q.id+".numel()")
		}
	}
	for _, v := range variables {
		fmt.Fprintf(&params, "    int64_t %s,\n", v)
		arguments = append(arguments, v)
	}
	device := "DLDevice{kDLCUDA, 0}"
	for _, q := range all {
		if !q.spec.Scalar {
			device = q.id
			break
		}
	}
	list := parameters(params.String())

	var b strings.Builder
	comment(&b, "// ", opening(def, "")...)
	comment(&b, "// ", "THE KERNEL IS YET TO BE WRITTEN. compute_kernel fills the outputs with zeros: fisub check passes, fisub local says "+
		"INCORRECT_NUMERICAL. What to compute is what run in reference.py, beside config.toml, does; it is the definition's own reference.", "")
	comment(&b, "// ", signature(def, func(name string) string { return ids[name] })...)
	b.WriteString("\n#include \"tensor.cuh\"\n\n")
	if constants.Len() > 0 {
		b.WriteString(constants.String() + "\n")
	}
	b.WriteString("constexpr int kThreads = 256;\nconstexpr int kBlocks = 256;\n\n")
	fmt.Fprintf(&kernel, "__global__ void __launch_bounds__(kThreads) compute_kernel(\n%s {\n", list)
	fmt.Fprintf(&kernel, "  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x;\n  const int64_t stride = gridDim.x * int64_t{kThreads};\n%s}\n\n", body.String())
	b.WriteString(kernel.String())
	fmt.Fprintf(&b, "%s\n%s%s", wrap("void launch(", entry, ") {"), extents.String(), checks.String())
	fmt.Fprintf(&launch, "%s\n  CUDA_CHECK(cudaGetLastError());\n}\n\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, launch);\n",
		"  "+indent(wrap("compute_kernel<<<kBlocks, kThreads, 0, stream_of("+device+")>>>(", arguments, ");")))
	b.WriteString(launch.String())
	p.add("kernel.cu", []byte(b.String()))
	p.add("tensor.cuh", embeddedFile("kernels/tensor.cuh"))
	p.Files = append(p.Files, File{"reference.py", []byte(ended(def.Reference))})
	return nil
}

// parameters ends a list of lines, each a parameter, a comma and perhaps a comment, as a function's.
func parameters(lines string) string {
	lines = strings.TrimSuffix(lines, "\n")
	last := strings.LastIndex(lines, "\n") + 1
	return lines[:last] + strings.Replace(lines[last:], ",", ")", 1)
}

// ctypes are the C++ types of tensor.cuh.
var ctypes = map[tensor.DType]string{
	tensor.Float32: "float", tensor.Float16: "__half", tensor.BFloat16: "__nv_bfloat16", tensor.Float8E4M3FN: "__nv_fp8_e4m3",
	tensor.Float8E5M2: "__nv_fp8_e5m2", tensor.Float4E2M1: "fp4x2", tensor.Int64: "int64_t", tensor.Int32: "int32_t",
	tensor.Int16: "int16_t", tensor.Int8: "int8_t", tensor.Bool: "bool",
}

// scalarType is the parameter type of a Python number.
func scalarType(d tensor.DType) string {
	switch {
	case d == tensor.Bool:
		return "bool"
	case d.IsFloat():
		return "double"
	}
	return "int64_t"
}

// opening names the operation.
func opening(def *trace.Definition, how string) []string {
	text := "Definition " + def.Name
	if how != "" {
		text += ", " + how
	}
	lines := []string{text + "."}
	if def.Description != nil {
		lines = append(lines, "", *def.Description)
	}
	return append(lines, "")
}

// signature lists the tensors and numbers of a definition, by the names that they have in the code.
func signature(def *trace.Definition, id func(string) string) []string {
	var lines []string
	list := func(what string, specs *trace.Map[trace.TensorSpec]) {
		for name, spec := range specs.All() {
			shape := "a number"
			if !spec.Scalar {
				shape = "(" + strings.Join(spec.Shape, ", ") + ")"
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s, %s", what, id(name), shape, spec.DType))
		}
	}
	list("input", &def.Inputs)
	list("output", &def.Outputs)
	return lines
}

const lineWidth = 120

// comment writes paragraphs as lines of a comment, broken at spaces. The texts may come from anywhere: what cannot be printed
// is left out, and nothing ends or continues the comment.
func comment(b *strings.Builder, mark string, paragraphs ...string) {
	for _, text := range paragraphs {
		line := ""
		flush := func() {
			b.WriteString(strings.TrimRight(mark+strings.TrimRight(line, `\ `), " ") + "\n")
			line = ""
		}
		for _, word := range strings.Fields(printable(text)) {
			if line != "" && len(mark)+len(line)+1+len(word) > lineWidth {
				flush()
			}
			if line != "" {
				line += " "
			}
			line += word
		}
		flush()
	}
}

// printable replaces what cannot be printed, line breaks among it, by spaces, and cuts what is longer than a page.
func printable(text string) string {
	if len(text) > 4<<10 {
		text = text[:4<<10]
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// wrap writes a list between head and tail on lines of its own width, continued behind the head.
func wrap(head string, items []string, tail string) string {
	margin := strings.Repeat(" ", len(head))
	if len(head) > 40 {
		margin = "    "
	}
	text := head
	at := len(head)
	for i, item := range items {
		if i < len(items)-1 {
			item += ","
		}
		if i > 0 && at+1+len(item)+len(tail) > lineWidth-8 {
			text += "\n" + margin
			at = len(margin)
		} else if i > 0 {
			text += " "
			at++
		}
		text += item
		at += len(item)
	}
	return text + tail
}

// indent moves the lines behind the first to the right by as much as the first will be.
func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n    ") }

// ended ends text with one line break.
func ended(text string) string { return strings.TrimRight(text, "\n") + "\n" }

// names gives each thing an identifier of its own.
type names struct{ taken map[string]bool }

func newNames(reserved string) *names {
	n := &names{taken: map[string]bool{}}
	for _, w := range strings.Fields(reserved) {
		n.taken[w] = true
	}
	return n
}

var identifier = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*$`) // no leading or double underscore

// take returns name, or where that is no identifier or is taken, one that resembles it.
func (n *names) take(name string) string {
	if !identifier.MatchString(name) || len(name) > 60 {
		name = "x"
	}
	id := name
	for i := 1; n.taken[id]; i++ {
		id = name + "_" + strconv.Itoa(i)
	}
	n.taken[id] = true
	return id
}

const pythonReserved = `False None True and as assert async await break class continue def del elif else except finally for from global
if import in is lambda nonlocal not or pass raise return try while with yield run kernel torch triton tl copied copy_kernel BLOCK results
isinstance tuple list`

const cppReserved = `alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await
co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast
else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator
or or_eq private protected public register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct
switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
first stride i kernel launch compute_kernel kThreads kBlocks kDType checked extent stream_of fp4x2 TensorView Optional tvm std NULL INFINITY
NAN EOF stdin stdout stderr errno assert min max abs exp log sin cos tan sqrt pow floor ceil round gamma y0 y1 yn j0 j1 jn index time
signal threadIdx blockIdx blockDim gridDim warpSize linux unix int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t dim3
float1 float2 float3 float4 int1 int2 int3 int4 half half2 main printf malloc free memcpy memset`
