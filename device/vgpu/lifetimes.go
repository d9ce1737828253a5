//go:build linux && cgo

package vgpu

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"fisub/device/vgpu/ptx"
)

// PTX has a register for almost every value. Registers whose values are not needed at the same time share a place in
// the frame, so that a warp's frame stays in the processor's cache.

// A lifetime has the indexes of the first and the last instruction between which a register's value is needed. shared
// is false if the register needs a place of its own.
type lifetime struct {
	first, last int
	shared      bool
}

// overwrites reports whether an instruction replaces the old values of the registers that it writes.
func overwrites(in *ptx.Inst) bool {
	name, _, _ := strings.Cut(in.Op, ".")
	return in.Guard < 0 && (instructions[name].class == laneByLane ||
		slices.Contains([]string{"ld", "mma", "ldmatrix", "shfl"}, name))
}

// lifetimes returns the lifetimes of a kernel's registers. The values that an instruction reads and those that it
// writes are needed at the same time. A register that may be read before it is written is not shared.
func lifetimes(f *ptx.Func) []lifetime {
	w := flowOf(f)
	blocks := len(w.preds)
	all := make([]lifetime, len(f.Regs))
	in := make([]int, len(f.Regs))     // 1 + the block of a register
	global := make([]int, len(f.Regs)) // 1 + the number of a register that is not of one block
	var globals []int
	var reads, writes []int
	// each calls visit for the registers of the instructions, those that are read first.
	each := func(visit func(i, r int, needed bool)) {
		for i := range f.Body {
			reads, writes = registersIn(&f.Body[i], reads, writes)
			for _, r := range reads {
				visit(i, r, true)
			}
			if f.Body[i].Guard >= 0 {
				visit(i, f.Body[i].Guard, true)
			}
			needed := !overwrites(&f.Body[i])
			for _, r := range writes {
				visit(i, r, needed)
			}
		}
	}
	each(func(i, r int, needed bool) {
		b, first := w.block[i], in[r] == 0
		if first {
			in[r], all[r] = b+1, lifetime{i, i, true}
		}
		if global[r] == 0 && (needed && first || in[r] != b+1) {
			globals = append(globals, r)
			global[r] = len(globals)
		}
		all[r].first, all[r].last = min(all[r].first, i), max(all[r].last, i)
		if b > 0 && len(w.preds[b]) == 0 { // never executed, as far as is known
			all[r].shared = false
		}
	})
	words := (len(globals) + 63) / 64
	sets := make([]uint64, 3*blocks*words)
	set := func(kind, b int) []uint64 { return sets[(kind*blocks+b)*words:][:words] }
	const before, after, written = 0, 1, 2 // the registers needed before and after a block, and those that it replaces
	each(func(i, r int, needed bool) {
		g, b := global[r]-1, w.block[i]
		if g < 0 {
			return
		}
		if bit := uint64(1) << (g % 64); set(written, b)[g/64]&bit == 0 {
			if needed {
				set(before, b)[g/64] |= bit
			} else {
				set(written, b)[g/64] |= bit
			}
		}
	})
	queue, queued := make([]int, blocks), make([]bool, blocks)
	for b := range blocks {
		queue[b], queued[b] = b, true
	}
	for len(queue) > 0 { // from the last block
		b := queue[len(queue)-1]
		queue, queued[b] = queue[:len(queue)-1], false
		for i, v := range set(after, b) {
			set(before, b)[i] |= v &^ set(written, b)[i]
		}
		for _, p := range w.preds[b] {
			changed := uint64(0)
			for i, v := range set(before, b) {
				changed |= v &^ set(after, p)[i]
				set(after, p)[i] |= v
			}
			if changed != 0 && !queued[p] {
				queue, queued[p] = append(queue, p), true
			}
		}
	}
	for b := range blocks {
		for kind, at := range []int{before: w.first[b], after: w.first[b+1] - 1} {
			for i, v := range set(kind, b) {
				for ; v != 0; v &= v - 1 {
					r := globals[64*i+bits.TrailingZeros64(v)]
					all[r].first, all[r].last = min(all[r].first, at), max(all[r].last, at)
					if b == 0 && kind == before {
						all[r].shared = false
					}
				}
			}
		}
	}
	return all
}

// place gives each register of a kernel that is not a predicate a place in the frame.
func (d *decoder) place() {
	all := make([]lifetime, len(d.f.Regs))
	if d.f.Entry {
		all = lifetimes(d.f)
	}
	var order []int
	for r, reg := range d.f.Regs {
		switch size := ptx.Size(reg.Type); {
		case reg.Type == "pred":
		case all[r].shared && size < 16:
			order = append(order, r)
		default:
			d.regs[r] = d.newReg(size == 8)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(all[a].first, all[b].first) })
	ending := make([][]int, len(d.f.Body)) // by instruction: the registers that are needed up to it
	var free [2][]int32                    // places of 32 and of 64 bits
	done := 0
	for _, r := range order {
		for ; done < all[r].first; done++ {
			for _, e := range ending[done] {
				wide := ptx.Size(d.f.Regs[e].Type) / 8
				free[wide] = append(free[wide], d.regs[e])
			}
		}
		wide := ptx.Size(d.f.Regs[r].Type) / 8
		if n := len(free[wide]); n > 0 {
			d.regs[r], free[wide] = free[wide][n-1], free[wide][:n-1]
		} else {
			d.regs[r] = d.newReg(wide == 1)
		}
		ending[all[r].last] = append(ending[all[r].last], r)
	}
}
