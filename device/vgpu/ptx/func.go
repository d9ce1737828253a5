package ptx

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

func (p *parser) function(entry bool) {
	f := &Func{Entry: entry, Labels: map[string]int{}, Tables: map[string][]string{}, Protos: map[string]*Func{},
		Line: p.line}
	p.f, p.scopes, p.taken, p.loc = f, nil, map[string]bool{}, Loc{}
	p.push()
	if p.is("(") {
		f.Returns = p.params()
	}
	f.Name = p.take()
	if p.is("(") {
		f.Params = p.params()
	}
	for {
		switch t := p.tok; t {
		case ".maxntid", ".reqntid":
			p.next()
			n, dims, i := 1, [3]int{1, 1, 1}, 0
			for {
				d := int(p.number())
				n *= d
				if i < 3 {
					dims[i] = d
				}
				i++
				if !p.accept(",") {
					break
				}
			}
			f.MaxThreads = n
			if t == ".reqntid" {
				f.RequiredThreads = dims
			}
		case ".reqnctapercluster":
			p.next()
			f.ClusterDim = [3]int{1, 1, 1}
			for i := 0; ; i++ {
				d := int(p.number())
				if i < 3 {
					f.ClusterDim[i] = d
				}
				if !p.accept(",") {
					break
				}
			}
		case ".minnctapersm", ".maxnreg", ".maxclusterrank", ".abi_preserve", ".abi_preserve_control":
			p.next()
			p.number()
		case ".explicitcluster", ".noreturn", ".unique", ".blocksareclusters":
			p.next()
		case ".pragma":
			p.next()
			p.skipSection(".pragma")
		case "{":
			p.next()
			f.HasBody = true
			for _, v := range append(slices.Clone(f.Params), f.Returns...) {
				p.taken[v.Name] = true
			}
			p.body()
			p.scopes = nil
			p.m.Funcs = append(p.m.Funcs, f)
			return
		case ";":
			p.next()
			p.scopes = nil
			p.m.Funcs = append(p.m.Funcs, f)
			return
		default:
			p.fail("unknown directive %q of a function", t)
		}
	}
}

func (p *parser) params() []*Var {
	p.expect("(")
	var all []*Var
	for !p.accept(")") {
		space := p.take()
		switch space {
		case ".param":
			all = append(all, p.variable("param", false)...)
		case ".reg":
			v := p.variable("param", false)
			v[0].Space, v[0].Lanes = "reg", 1
			if size := typeSizes[v[0].Type]; size > 0 {
				v[0].Lanes = v[0].Size / size
			}
			if v[0].Lanes == 2 || v[0].Lanes == 4 {
				p.declareVector(v[0].Name, v[0].Type, v[0].Lanes)
			} else {
				p.declareReg(v[0].Name, v[0].Type)
			}
			all = append(all, v...)
		default:
			p.fail("got %q, want a parameter", space)
		}
		p.accept(",")
	}
	return all
}

func (p *parser) push() {
	p.scopes = append(p.scopes, scope{map[string]int{}, map[string][2]int{}, map[string][]int{}, map[string]string{}})
}

func (p *parser) scope() *scope { return &p.scopes[len(p.scopes)-1] }

func (p *parser) declareReg(name, typ string) {
	p.scope().regs[name] = len(p.f.Regs)
	p.f.Regs = append(p.f.Regs, Reg{name, typ})
}

// body reads the function's body and its closing brace.
func (p *parser) body() {
	depth := 1
	for depth > 0 {
		switch t := p.tok; t {
		case "":
			p.fail("unterminated function")
		case "{":
			p.next()
			p.push()
			p.labels()
			depth++
		case "}":
			p.next()
			depth--
			if depth > 0 {
				p.scopes = p.scopes[:len(p.scopes)-1]
			}
		case ";":
			p.next()
		case ".reg":
			p.next()
			p.registers()
		case ".loc":
			p.next()
			p.location()
		case ".file":
			p.next()
			p.file()
		case ".shared", ".local", ".param", ".global", ".const":
			p.next()
			for _, v := range p.variable(t[1:], false) {
				name := v.Name
				if v.Space == "global" || v.Space == "const" { // one instance for all calls
					p.unique++
					v.Name = fmt.Sprintf("%s$%s$%d", p.f.Name, name, p.unique)
					p.scope().names[name] = v.Name
					p.m.Vars = append(p.m.Vars, v)
					continue
				}
				if p.taken[name] {
					p.unique++
					v.Name = fmt.Sprintf("%s$%d", name, p.unique)
				}
				p.taken[name] = true
				p.scope().names[name] = v.Name
				p.f.Vars = append(p.f.Vars, v)
			}
			p.accept(";")
		case ".pragma":
			p.next()
			p.skipSection(t)
		default:
			p.statement()
		}
	}
}

func (p *parser) registers() {
	typ := strings.TrimPrefix(p.take(), ".")
	lanes := 1
	if typ == "v2" || typ == "v4" {
		lanes = int(typ[1] - '0')
		typ = strings.TrimPrefix(p.take(), ".")
	}
	if typ != "pred" && typeSizes[typ] == 0 {
		p.fail("unknown type %q of a register", typ)
	}
	for {
		name := p.take()
		if lanes > 1 && p.accept("<") {
			n := int(p.number())
			p.expect(">")
			if n < 0 || n > 1<<18 {
				p.fail("%d registers", n)
			}
			for i := range n {
				p.declareVector(name+strconv.Itoa(i), typ, lanes)
			}
		} else if lanes > 1 {
			p.declareVector(name, typ, lanes)
		} else if p.accept("<") {
			n := int(p.number())
			p.expect(">")
			if n < 0 || n > 1<<20 {
				p.fail("%d registers", n)
			}
			p.scope().groups[name] = [2]int{len(p.f.Regs), n}
			for i := range n {
				p.f.Regs = append(p.f.Regs, Reg{name + strconv.Itoa(i), typ})
			}
		} else {
			p.declareReg(name, typ)
		}
		if !p.accept(",") {
			break
		}
	}
	p.expect(";")
}

// declareVector declares a vector register. Its elements are registers with suffix .x to .w, or .r to .a.
func (p *parser) declareVector(name, typ string, lanes int) {
	var all []int
	for i := range lanes {
		all = append(all, len(p.f.Regs))
		p.scope().regs[name+"."+"rgba"[i:i+1]] = len(p.f.Regs)
		p.declareReg(name+"."+"xyzw"[i:i+1], typ)
	}
	p.scope().vector[name] = all
}

// vector looks up a vector register by name.
func (p *parser) vector(name string) (Operand, bool) {
	for i := len(p.scopes) - 1; i >= 0; i-- {
		if all, ok := p.scopes[i].vector[name]; ok {
			o := Operand{Kind: Vector}
			for _, r := range all {
				o.Elems = append(o.Elems, Operand{Kind: Register, Reg: r})
			}
			return o, true
		}
	}
	return Operand{}, false
}

// register looks up a register by name.
func (p *parser) register(name string) (int, bool) {
	prefix := strings.TrimRight(name, "0123456789")
	for i := len(p.scopes) - 1; i >= 0; i-- {
		s := &p.scopes[i]
		if r, ok := s.regs[name]; ok {
			return r, true
		}
		if len(prefix) < len(name) {
			for cut := len(prefix); cut < len(name); cut++ {
				if g, ok := s.groups[name[:cut]]; ok {
					if n, err := strconv.Atoi(name[cut:]); err == nil && n < g[1] {
						return g[0] + n, true
					}
				}
			}
		}
	}
	return 0, false
}

// labels assigns unique names to the labels of the block that begins here. It scans ahead, since a branch may precede
// its label.
func (p *parser) labels() {
	if len(p.scopes) < 2 {
		return
	}
	depth := 1
	t := p.text
	for i := p.at - len(p.tok); i < len(t) && depth > 0; i++ {
		switch t[i] {
		case '{':
			depth++
		case '}':
			depth--
		case ':':
			if i+1 < len(t) && t[i+1] == ':' || t[i-1] == ':' || depth != 1 {
				continue
			}
			j := i
			for j > 0 && letter(t[j-1]) {
				j--
			}
			if name := t[j:i]; name != "" {
				p.unique++
				p.scope().names[name] = fmt.Sprintf("%s$%d", name, p.unique)
			}
		}
	}
}

func (p *parser) name(n string) string {
	for i := len(p.scopes) - 1; i >= 0; i-- {
		if u, ok := p.scopes[i].names[n]; ok {
			return u
		}
	}
	return n
}

func (p *parser) statement() {
	in := Inst{Guard: -1, Line: p.line}
	if p.accept("@") {
		in.Negated = p.accept("!")
		name := p.take()
		r, ok := p.register(name)
		if !ok {
			p.fail("unknown predicate %q", name)
		}
		in.Guard = r
	}
	in.Op = p.take()
	if in.Guard < 0 && p.accept(":") {
		name := p.name(in.Op)
		switch {
		case p.accept(".branchtargets"):
			for !p.accept(";") {
				p.f.Tables[name] = append(p.f.Tables[name], p.name(p.take()))
				p.accept(",")
			}
		case p.accept(".calltargets"):
			p.skipSection("")
		case p.accept(".callprototype"):
			proto := &Func{Name: name}
			saved := p.f
			p.f = proto
			p.push()
			if p.is("(") {
				proto.Returns = p.params()
			}
			p.take() // _
			if p.is("(") {
				proto.Params = p.params()
			}
			for !p.accept(";") {
				p.take()
			}
			p.scopes = p.scopes[:len(p.scopes)-1]
			p.f = saved
			p.f.Protos[name] = proto
		default:
			p.f.Labels[name] = len(p.f.Body)
		}
		return
	}
	if !letter(in.Op[0]) {
		p.fail("got %q, want an instruction", in.Op)
	}
	in.Loc = p.loc
	for !p.accept(";") {
		o := p.operand()
		if o.Kind == Register && p.accept("+") {
			o.Int = p.number()
		}
		in.Args = append(in.Args, o)
		if !p.accept(",") && !p.is(";") {
			p.fail("unexpected %q after an operand", p.tok)
		}
	}
	p.f.Body = append(p.f.Body, in)
}

// operands reads operands up to the closing bracket.
func (p *parser) operands(kind Kind, closing string) Operand {
	o := Operand{Kind: kind}
	for !p.accept(closing) {
		o.Elems = append(o.Elems, p.operand())
		p.accept(",")
	}
	return o
}

func (p *parser) operand() Operand {
	switch {
	case p.accept("{"):
		return p.operands(Vector, "}")
	case p.accept("("):
		return p.operands(List, ")")
	case p.accept("["):
		o := Operand{Kind: Memory}
		for !p.accept("]") {
			e := p.operand()
			if len(o.Elems) == 0 {
				if e.Kind == Symbol {
					o.Int, e.Int = e.Int, 0
				}
				for p.is("+") || p.is("-") {
					if p.accept("+") {
						o.Int += p.number()
					} else {
						p.next()
						o.Int -= p.number()
					}
				}
			}
			o.Elems = append(o.Elems, e)
			p.accept(",")
		}
		return o
	case p.accept("!"):
		o := p.operand()
		o.Negated = true
		return o
	case p.accept("-"):
		o, ok := number(p.take())
		if !ok {
			p.fail("missing number after -")
		}
		switch {
		case o.Kind == Integer:
			o.Int = -o.Int
		case o.Single:
			o.Int ^= 1 << 31
		default:
			o.Int ^= math.MinInt64
		}
		return o
	}
	t := p.take()
	var o Operand
	if t == "_" {
		o = Operand{Kind: None}
	} else if n, ok := number(t); ok {
		o = n
	} else if r, ok := p.register(t); ok {
		o = Operand{Kind: Register, Reg: r}
	} else if v, ok := p.vector(t); ok {
		o = v
	} else if name, sel, found := strings.Cut(t, "."); found && len(sel) == 2 && strings.Contains("bh", sel[:1]) {
		r, ok := p.register(name)
		if !ok {
			p.fail("unknown register %q", name)
		}
		o = Operand{Kind: Register, Reg: r, Select: sel}
	} else if letter(t[0]) {
		o = Operand{Kind: Symbol, Name: p.name(t)}
		if t == "WARP_SZ" {
			return Operand{Kind: Integer, Int: 32}
		}
		for p.is("+") {
			p.next()
			o.Int += p.number()
		}
	} else {
		p.fail("got %q, want an operand", t)
	}
	if p.accept("|") {
		second := p.operand()
		o.Pair = &second
	}
	return o
}

// number parses a literal.
func number(t string) (Operand, bool) {
	if t == "" || t[0] < '0' || t[0] > '9' {
		return Operand{}, false
	}
	if len(t) > 2 && t[0] == '0' {
		switch t[1] {
		case 'f', 'F':
			v, err := strconv.ParseUint(t[2:], 16, 32)
			return Operand{Kind: Float, Int: int64(v), Single: true}, err == nil
		case 'd', 'D':
			v, err := strconv.ParseUint(t[2:], 16, 64)
			return Operand{Kind: Float, Int: int64(v)}, err == nil
		}
	}
	if v, err := strconv.ParseUint(strings.TrimSuffix(t, "U"), 0, 64); err == nil {
		return Operand{Kind: Integer, Int: int64(v)}, true
	}
	if v, err := strconv.ParseFloat(t, 64); err == nil {
		return Operand{Kind: Float, Int: int64(math.Float64bits(v))}, true
	}
	return Operand{}, false
}
