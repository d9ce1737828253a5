package sass

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fisub/device/vgpu/ptx"
)

// A Verdict says what the counts of PTX instructions at a line are worth for the machine code.
type Verdict uint8

const (
	// Equal: there is one machine instruction of the same width for each PTX instruction.
	Equal Verdict = iota
	// Copied: there are several of the same width for each, as in an unrolled loop. They execute as often as the PTX
	// instruction.
	Copied
	// Merged: ptxas merged accesses to adjacent memory into wider ones. Together they touch the same sectors, with
	// fewer requests and wavefronts; sectors that several of the accesses touch count once.
	Merged
	// Other: the counts may differ in another way.
	Other
)

var verdictNames = [...]string{"equal", "copied", "merged", "other"}

func (v Verdict) String() string { return verdictNames[v] }

// A Line is the comparison of the instructions of one class at a source line.
type Line struct {
	File      string // as in the PTX
	Line      int    // innermost if inlined
	Class     Class  // of the PTX; of the machine code if the PTX has no such instruction there
	PTX, SASS int    // number of instructions
	Verdict   Verdict
	Detail    string // what differs; may say more of equal lines too, such as another class
}

// Compare compares the machine code of the kernel name with its PTX, for each source line with instructions of a class
// other than Branch and Arithmetic. Functions that ptxas inlined count as part of the kernel. all is the result of Read
// for the cubin. The result is nil if the cubin lacks the kernel or its PTX lines, which ptxas -lineinfo writes.
//
// The line table names the PTX instruction that a machine instruction was made from. Equal and Copied also require that
// both are in as many loops as their surroundings, so that a load which ptxas moved out of a loop is Other, and that a
// load which only some iterations or calls execute remains one. Not checked is a load behind two conditions of which
// ptxas drops one. A machine instruction with a predicate counts as executed, for instructions but not for memory, even
// if the predicate is false in all threads.
func Compare(all []Kernel, m *ptx.Module, name string) []Line {
	at := slices.IndexFunc(all, func(k Kernel) bool { return k.Name == name })
	if at < 0 || !slices.ContainsFunc(all[at].Insts, func(in Inst) bool { return in.PTX > 0 }) {
		return nil
	}
	c := &comparison{m: m, units: map[key]*unit{}, lines: map[lineKey]*Line{}}
	functions := inlined(all, m, name)
	for _, f := range functions {
		c.add(f)
	}
	var strays []Inst
	for _, in := range all[at].Insts {
		if !c.attach(in) {
			strays = append(strays, in)
		}
	}
	c.distribute(strays, functions)
	c.merge()
	c.judge()
	result := make([]Line, 0, len(c.lines))
	for _, l := range c.lines {
		result = append(result, *l)
	}
	slices.SortFunc(result, func(a, b Line) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Class, b.Class))
	})
	return result
}

// inlined returns the function name and those that it calls, as far as the machine code has them in no function of
// their own.
func inlined(all []Kernel, m *ptx.Module, name string) (list []*ptx.Func) {
	index := m.Index()
	own := map[string]bool{}
	for _, k := range all {
		own[k.Name] = true
	}
	seen := map[string]bool{name: true}
	for queue := []string{name}; len(queue) > 0; queue = queue[1:] {
		i, ok := index[queue[0]]
		if !ok || !m.Funcs[i].HasBody {
			continue
		}
		list = append(list, m.Funcs[i])
		for _, in := range m.Funcs[i].Body {
			if op, _, _ := strings.Cut(in.Op, "."); op != "call" {
				continue
			}
			for _, a := range in.Args {
				if a.Kind == ptx.Symbol && !seen[a.Name] && !own[a.Name] {
					seen[a.Name] = true
					queue = append(queue, a.Name)
				}
			}
		}
	}
	return list
}

// A kind is what an instruction does, whatever memory it accesses.
type kind uint8

const (
	load kind = iota
	store
	atomic
	others // plus the class
)

func (c Class) kind() kind {
	switch c {
	case GlobalLoad, SharedLoad, GenericLoad, LocalLoad:
		return load
	case GlobalStore, SharedStore, GenericStore, LocalStore:
		return store
	case GlobalAtomic, GlobalReduction, SharedAtomic, GenericAtomic:
		return atomic
	}
	return others + kind(c)
}

// compatible reports whether a PTX instruction of class a may become a machine instruction of class b of the same kind,
// with the same counters: those of a generic access depend on its address.
func compatible(a, b Class) bool {
	generic := func(c Class) bool { return c == GenericLoad || c == GenericStore || c == GenericAtomic }
	return a == b || generic(a) || generic(b) || a.kind() == atomic && a != SharedAtomic && b != SharedAtomic
}

type key struct {
	ptx  int // line
	kind kind
}

// A unit is the instructions of one kind at one line of the PTX: usually one, but several in inline assembly.
type unit struct {
	line    *Line
	insts   []*ptx.Inst
	widths  []int
	place   place
	f       *ptx.Func
	sass    []Inst
	merged  int // number of accesses merged, if this unit has the wide one; -1: merged into another one
	verdict Verdict
	detail  string
}

type lineKey struct {
	file, line int
	class      Class
}

type comparison struct {
	m     *ptx.Module
	units map[key]*unit
	lines map[lineKey]*Line
	order []*unit // in the order of the PTX
}

func (c *comparison) line(loc ptx.Loc, class Class) *Line {
	k := lineKey{loc.File, loc.Line, class}
	if c.lines[k] == nil {
		c.lines[k] = &Line{File: c.m.Files[loc.File], Line: loc.Line, Class: class}
	}
	return c.lines[k]
}

// add adds the instructions of a function.
func (c *comparison) add(f *ptx.Func) {
	at := places(f)
	for i := range f.Body {
		in := &f.Body[i]
		class, width := classify(in)
		if class == 0 {
			continue
		}
		k := key{in.Line, class.kind()}
		u := c.units[k]
		if u == nil {
			u = &unit{f: f, place: at[i], line: &Line{Class: class}}
			if class != Arithmetic {
				u.line = c.line(in.Loc, class)
			}
			c.units[k] = u
			c.order = append(c.order, u)
		}
		u.insts, u.widths = append(u.insts, in), append(u.widths, width)
		u.line.PTX++
	}
}

// attach adds a machine instruction to the PTX instructions that it was made from, and reports whether there are any.
// Parts of divisions and similar operations do not matter.
func (c *comparison) attach(in Inst) bool {
	k := key{in.PTX, in.Class.kind()}
	if c.units[k] == nil && in.Class == MatrixLoad { // of wmma
		k.kind = load
	} else if c.units[k] == nil && in.Class == MatrixStore {
		k.kind = store
	}
	if u := c.units[k]; u != nil {
		u.sass = append(u.sass, in)
		u.line.SASS++
		return true
	}
	return in.Class == Branch || in.Class == Arithmetic || in.Class == Special || in.Class == Shuffle
}

// distribute adds the machine instructions that the line table attributes to PTX instructions of other kinds. For
// wgmma it often names a neighbour: these go to those without machine instructions. Others, such as loads of spilled
// registers, make their line Other.
func (c *comparison) distribute(strays []Inst, functions []*ptx.Func) {
	var missing []*unit
	for _, u := range c.order {
		if u.line.Class == Tensor && len(u.sass) == 0 {
			missing = append(missing, u)
		}
	}
	tensor := 0
	for _, in := range strays {
		if in.Class == Tensor {
			tensor++
		}
	}
	if len(missing) == 0 || tensor%len(missing) != 0 {
		missing = nil
	}
	seen := 0
	for _, in := range strays {
		if in.Class == Tensor && missing != nil {
			u := missing[seen*len(missing)/tensor]
			u.sass = append(u.sass, in)
			u.line.SASS++
			seen++
			continue
		}
		l := c.line(location(functions, in.PTX), in.Class)
		l.SASS++
		l.Verdict = Other
	}
}

// location returns the source location of a line of the PTX.
func location(functions []*ptx.Func, line int) (loc ptx.Loc) {
	for _, f := range functions {
		i, ok := slices.BinarySearchFunc(f.Body, line, func(a ptx.Inst, line int) int { return cmp.Compare(a.Line, line) })
		if ok {
			return f.Body[i].Loc
		}
	}
	return loc
}

// address returns the base and the offset of an instruction's access.
func address(in *ptx.Inst) (base ptx.Operand, offset int64, ok bool) {
	for _, a := range in.Args {
		if a.Kind == ptx.Memory && len(a.Elems) == 1 {
			return a.Elems[0], a.Int, true
		}
	}
	return base, 0, false
}

// merge finds the accesses that ptxas merged into wider ones: those that are missing in the same basic block, with the
// same base register and adjacent offsets, or else those at the same line, or those to variables.
func (c *comparison) merge() {
	blocks := map[*ptx.Func]map[int][]*unit{} // missing units
	for _, u := range c.order {
		if len(u.sass) == 0 && len(u.insts) == 1 && u.widths[0] > 0 {
			if blocks[u.f] == nil {
				blocks[u.f] = map[int][]*unit{}
			}
			blocks[u.f][u.place.block] = append(blocks[u.f][u.place.block], u)
		}
	}
	for _, u := range c.order {
		if len(u.insts) != 1 || u.widths[0] <= 0 {
			continue
		}
		wide := 0
		for _, in := range u.sass {
			wide = max(wide, in.Width)
		}
		if wide <= u.widths[0] {
			continue
		}
		base, offset, ok := address(u.insts[0])
		var near, here, variables []*unit
		sum, sumVariables := u.widths[0], u.widths[0]
		for _, v := range blocks[u.f][u.place.block] {
			if v.merged != 0 || v.line.Class != u.line.Class {
				continue
			}
			b, o, has := address(v.insts[0])
			if ok && has && b.Kind == base.Kind && b.Reg == base.Reg && b.Name == base.Name &&
				8*max(o-offset, offset-o) < int64(wide) {
				near = append(near, v)
			}
			if v.line == u.line {
				here = append(here, v)
				sum += v.widths[0]
			}
			if base.Kind == ptx.Symbol && b.Kind == ptx.Symbol {
				variables = append(variables, v)
				sumVariables += v.widths[0]
			}
		}
		group := window(u, near, offset, wide)
		if group == nil && sum == wide {
			group = here
		} else if group == nil && sumVariables == wide {
			group = variables
		}
		for _, v := range group {
			v.merged, u.merged = -1, len(group)+1
		}
	}
}

// window returns the units of near that together with u cover wide bits without a gap.
func window(u *unit, near []*unit, offset int64, wide int) []*unit {
	for _, first := range append([]*unit{u}, near...) {
		_, begin, _ := address(first.insts[0])
		var group []*unit
		sum := u.widths[0]
		for _, v := range near {
			if _, o, _ := address(v.insts[0]); o >= begin && 8*(o-begin) < int64(wide) {
				group = append(group, v)
				sum += v.widths[0]
			}
		}
		if offset >= begin && 8*(offset-begin) < int64(wide) && sum == wide {
			return group
		}
	}
	return nil
}

// copies returns the number of machine instructions for each PTX instruction of the unit, rounded down, and the most
// loops around one of them.
func (u *unit) copies() (n, loop int) {
	for _, in := range u.sass {
		loop = max(loop, in.Loop)
	}
	return len(u.sass) / len(u.insts), loop
}

// judge sets the verdicts of the units, and then of the lines.
func (c *comparison) judge() {
	// How often ptxas copied a basic block, and in how many loops it is: the most of any memory access there, and the
	// median of arithmetic, which ptxas may repeat.
	type block struct {
		f *ptx.Func
		n int
	}
	type extent struct{ copies, loop int }
	most := map[block]extent{}
	sums := map[block][2][]int{}
	for _, u := range c.order {
		b := block{u.f, u.place.block}
		n, loop := u.copies()
		if u.line.Class == Arithmetic {
			s := sums[b]
			s[0], s[1] = append(s[0], n), append(s[1], loop)
			sums[b] = s
		} else if u.line.Class < BulkCopy && !slices.Contains(u.widths, expands) {
			most[b] = extent{max(most[b].copies, n), max(most[b].loop, loop)}
		}
	}
	for b, s := range sums {
		slices.Sort(s[0])
		slices.Sort(s[1])
		half := len(s[0]) / 2
		most[b] = extent{max(most[b].copies, s[0][half]), max(most[b].loop, s[1][half])}
	}
	type note struct {
		line *Line
		text string
	}
	notes := map[note]int{} // number of instructions
	for _, u := range c.order {
		if u.line.Class == Arithmetic {
			continue
		}
		u.compare()
		around := most[block{u.f, u.place.block}]
		n, loop := u.copies()
		switch {
		case u.verdict > Copied:
		case u.line.Class == BulkCopy || u.line.Class == TensorCopy: // may have a loop over the threads of its own
		case n < around.copies || loop < around.loop:
			u.verdict, u.detail = Other, "ptxas shares or moves out of a loop what the code around it repeats"
		case n == 1 && loop < u.place.loop:
			u.verdict, u.detail = Other, "ptxas moved it out of a loop, or the loop runs once"
		case u.early():
			u.verdict, u.detail = Other, "ptxas executes it without the condition around it"
		case loop > u.place.loop && u.line.Class < BulkCopy:
			u.verdict, u.detail = Other, "ptxas moved it into a loop"
		}
		u.line.Verdict = max(u.line.Verdict, u.verdict)
		if u.detail != "" {
			notes[note{u.line, u.detail}] += len(u.insts)
		}
	}
	details := map[*Line][]string{}
	for n, count := range notes {
		if count < n.line.PTX {
			n.text = fmt.Sprintf("%d of %d: %s", count, n.line.PTX, n.text)
		}
		details[n.line] = append(details[n.line], n.text)
	}
	for _, l := range c.lines {
		slices.Sort(details[l])
		l.Detail = strings.Join(details[l], "; ")
		if l.Detail == "" && l.Verdict == Other {
			l.Detail = fmt.Sprintf("%d in the PTX, %d in the machine code", l.PTX, l.SASS)
		}
	}
}

// early reports whether loads that only some iterations or calls of the PTX execute are in all of the machine code's.
func (u *unit) early() bool {
	if u.place.always || u.line.Class.kind() != load || u.insts[0].Guard >= 0 {
		return false
	}
	return slices.ContainsFunc(u.sass, func(in Inst) bool { return in.always && !in.Guarded && in.Loop >= u.place.loop })
}

// compare sets the verdict of the unit by the number and the widths of its instructions.
func (u *unit) compare() {
	ptxWidths, widths := map[int]int{}, map[int]int{}
	for _, w := range u.widths {
		ptxWidths[w]++
	}
	for _, in := range u.sass {
		widths[in.Width]++
		if !compatible(u.line.Class, in.Class) {
			u.verdict, u.detail = Other, fmt.Sprintf("a %v became a %v", u.line.Class, in.Class)
			return
		}
		if in.Class != u.line.Class {
			u.detail = fmt.Sprintf("a %v became a %v", u.line.Class, in.Class)
		} else if in.Guarded && u.insts[0].Guard < 0 && u.detail == "" {
			u.detail = "executed under a predicate instead of behind a branch"
		}
	}
	n, _ := u.copies()
	same := len(u.sass) > 0 && len(ptxWidths) == len(widths)
	for w := range ptxWidths {
		same = same && widths[w] == n*ptxWidths[w]
	}
	switch {
	case u.merged < 0:
		u.verdict, u.detail = Merged, "ptxas merged it into a wider one"
	case u.merged > 0:
		u.verdict = Merged
		u.detail = fmt.Sprintf("ptxas merged %d of %d bits into one of %d", u.merged, u.widths[0],
			slices.Max(slices.Collect(maps.Keys(widths))))
	case len(u.sass) == 0:
		u.verdict, u.detail = Other, "ptxas dropped it"
	case same && n == 1:
		u.verdict = Equal
	case same:
		u.verdict = Copied
		u.detail = fmt.Sprintf("ptxas made %d copies", n)
	default:
		u.verdict = Other
		u.detail = fmt.Sprintf("%s became %s", list(ptxWidths), list(widths))
	}
}

// list returns text such as "2 of 32 bits and 1 of 64 bits".
func list(widths map[int]int) string {
	var all []string
	for _, w := range slices.Sorted(maps.Keys(widths)) {
		text := fmt.Sprintf("%d of %d bits", widths[w], w)
		if w <= 0 {
			text = fmt.Sprint(widths[w])
		}
		all = append(all, text)
	}
	return strings.Join(all, " and ")
}
