package sass

import (
	"slices"
	"strconv"
	"strings"

	"fisub/device/vgpu/ptx"
)

// expands is the width of PTX instructions of which the arch decides how many machine instructions they become.
const expands = -1

// classify returns the class and the access width of a PTX instruction. Branches have no class here, because ptxas
// replaces many of them with predicates.
func classify(in *ptx.Inst) (Class, int) {
	parts := strings.Split(in.Op, ".")
	has := func(name string) bool { return slices.Contains(parts[1:], name) }
	in3 := func(global, shared, generic Class) Class {
		switch {
		case has("global"):
			return global
		case has("shared") || has("shared::cta") || has("shared::cluster"):
			return shared
		}
		return generic
	}
	switch parts[0] {
	case "ld", "ldu", "st":
		load := parts[0] != "st"
		switch {
		case has("param"), has("param::entry"), has("param::func"), has("const"), has("bulk"):
			return 0, 0
		case has("async"):
			return ClusterStore, accessWidth(parts)
		case has("local") && load:
			return LocalLoad, accessWidth(parts)
		case has("local"):
			return LocalStore, accessWidth(parts)
		case load:
			return in3(GlobalLoad, SharedLoad, GenericLoad), accessWidth(parts)
		}
		return in3(GlobalStore, SharedStore, GenericStore), accessWidth(parts)
	case "atom":
		return in3(GlobalAtomic, SharedAtomic, GenericAtomic), accessWidth(parts)
	case "red":
		if has("async") {
			return ClusterStore, 0
		}
		return in3(GlobalReduction, SharedAtomic, GenericAtomic), accessWidth(parts)
	case "multimem":
		switch parts[1] {
		case "ld_reduce":
			return GlobalLoad, 0
		case "st":
			return GlobalStore, accessWidth(parts)
		}
		return GlobalReduction, accessWidth(parts)
	case "ldmatrix", "stmatrix":
		n := 1
		if has("x2") {
			n = 2
		} else if has("x4") {
			n = 4
		}
		if parts[0] == "stmatrix" {
			return MatrixStore, n
		}
		return MatrixLoad, n
	case "cp":
		switch {
		case has("prefetch"), has("commit_group"), has("wait_group"), has("wait_all"), has("mbarrier"):
		case has("tensor"):
			return TensorCopy, 0
		case has("bulk"):
			return BulkCopy, 0
		case has("async") && len(in.Args) > 2:
			return AsyncCopy, 8 * int(in.Args[2].Int)
		}
		return 0, 0
	case "bar", "barrier":
		if has("warp") || has("cluster") {
			return 0, 0
		}
		return Barrier, 0
	case "wmma":
		switch parts[1] {
		case "load":
			return in3(GlobalLoad, SharedLoad, GenericLoad), expands
		case "store":
			return in3(GlobalStore, SharedStore, GenericStore), expands
		}
		return Tensor, expands
	case "mma":
		return Tensor, 0
	case "wgmma", "tcgen05":
		if parts[1] == "mma_async" || parts[1] == "mma" {
			return Tensor, 0
		}
		return 0, 0
	case "shfl":
		return Shuffle, 0
	case "rcp", "rsqrt", "sqrt", "sin", "cos", "ex2", "lg2", "tanh":
		if has("approx") && parts[len(parts)-1] == "f32" {
			return Special, 0
		}
	case "add", "sub", "mul", "fma":
		if parts[len(parts)-1] == "f32" {
			return Arithmetic, 0
		}
	}
	return 0, 0
}

// accessWidth returns the number of bits that a load, store or atomic accesses.
func accessWidth(parts []string) int {
	n, last := 1, parts[len(parts)-1]
	for _, p := range parts[1:] {
		if len(p) == 2 && p[0] == 'v' {
			n, _ = strconv.Atoi(p[1:])
		}
	}
	if i := strings.IndexByte(last, 'x'); i > 0 && strings.HasSuffix(last, "x2") { // f16x2
		n, last = 2*n, last[:i]
	}
	bits, _ := strconv.Atoi(strings.TrimLeft(last, "abefsu"))
	return n * bits
}

// A place is the basic block of a PTX instruction and its place in the control flow.
type place struct {
	block int
	flow
}

// places returns the place of each instruction of a function.
func places(f *ptx.Func) []place {
	next := make([][]int32, len(f.Body)+1) // the last node is the end
	leader := make([]bool, len(f.Body)+1)
	for _, at := range f.Labels {
		if at < len(leader) {
			leader[at] = true
		}
	}
	for i := range f.Body {
		in := &f.Body[i]
		op, _, _ := strings.Cut(in.Op, ".")
		through := true
		jump := func(label string) {
			if to, ok := f.Labels[label]; ok && to <= len(f.Body) {
				next[i] = append(next[i], int32(to))
			}
		}
		switch op {
		case "bra":
			if len(in.Args) > 0 {
				jump(in.Args[0].Name)
			}
			through, leader[i+1] = in.Guard >= 0, true
		case "brx":
			for _, a := range in.Args {
				for _, label := range f.Tables[a.Name] {
					jump(label)
				}
			}
			through, leader[i+1] = in.Guard >= 0, true
		case "ret", "exit", "trap":
			next[i] = append(next[i], int32(len(f.Body)))
			through, leader[i+1] = in.Guard >= 0, true
		}
		if through {
			next[i] = append(next[i], int32(i+1))
		}
	}
	all := make([]place, len(next))
	block := 0
	for i, flow := range flows(next) {
		if leader[i] {
			block++
		}
		all[i] = place{block, flow}
	}
	return all
}
