// Package ptx parses PTX, the assembly text that CUDA compilers generate for kernels: variables, functions,
// instructions and their source lines. It knows the syntax but not the instructions; package vgpu executes them.
package ptx

import (
	"fmt"
	"runtime"
	"strings"
)

// A Module is a parsed PTX text.
type Module struct {
	Version, Target string // "9.0", "sm_100"
	Files           map[int]string
	Strings         map[string]string // contents of .debug_str by label
	Vars            []*Var            // at module scope
	Funcs           []*Func
	index           map[string]int
}

// Index returns the index in Funcs of each function by name. A definition takes precedence over declarations.
func (m *Module) Index() map[string]int {
	if m.index == nil {
		m.index = map[string]int{}
		for i, f := range m.Funcs {
			if _, ok := m.index[f.Name]; !ok || f.HasBody {
				m.index[f.Name] = i
			}
		}
	}
	return m.index
}

// A Var is a variable in memory, or a parameter. Size is in bytes; it is 0 for an extern array without a length.
type Var struct {
	Name   string
	Space  string // "global", "const", "shared", "local", "param"
	Type   string // of an element, such as "b8" or "f32"
	Align  int
	Size   int
	Lanes  int // number of elements if Space is "reg" (parameter in registers), else 0
	Extern bool
	Linkage
	Init []byte // nil: zeros; may be shorter than Size
	Refs []Ref  // addresses to insert in Init
	Line int    // of the PTX
}

// A Ref is the address of a variable or function in an initializer.
type Ref struct {
	Offset, Size int
	Name         string
	Add          int64
	Generic      bool
}

// A Func is a kernel or a function. A declaration has no Body.
type Func struct {
	Name  string
	Entry bool
	Linkage
	Params, Returns []*Var
	Vars            []*Var // shared, local and param variables of the body; names are unique in the function
	Regs            []Reg
	Body            []Inst
	Labels          map[string]int      // name -> index in Body
	Tables          map[string][]string // .branchtargets
	Protos          map[string]*Func    // .callprototype
	HasBody         bool
	MaxThreads      int // from .maxntid or .reqntid; 0: not given
	RequiredThreads [3]int
	ClusterDim      [3]int
	Line            int
}

// A Linkage says which units of a program see a name.
type Linkage uint8

const (
	Internal Linkage = iota // only its own
	Visible
	Weak // all; each unit may define it
)

// A Reg is a register. Type is the declared type, such as "pred", "b32", "b128" or "f32".
type Reg struct {
	Name string
	Type string
}

// An Inst is an instruction. Op is its full name with modifiers.
type Inst struct {
	Op      string
	Guard   int // index in Regs of the predicate, -1: none
	Negated bool
	Args    []Operand
	Line    int // of the PTX
	Loc     Loc
}

// Loc is a source location. For inlined code Via is the location of the call, and Func the label of the function's name
// in Module.Strings.
type Loc struct {
	File, Line, Col int
	Via             *Loc
	Func            string
}

// A Kind is the kind of an operand.
type Kind uint8

const (
	None Kind = iota // _
	Register
	Integer // Int
	Float   // Int holds the bits of a float64, or of a float32 if Single
	Symbol  // Name: a variable, function, label or special register; Int: an offset
	Memory  // Elems[0]: base (Register, Symbol or Integer); Int: offset; Elems[1:]: tensor coordinates
	Vector  // Elems
	List    // Elems, of a call
)

// An Operand is an operand of an instruction.
type Operand struct {
	Kind    Kind
	Reg     int // index in Regs
	Int     int64
	Single  bool
	Negated bool // !p
	Name    string
	Elems   []Operand
	Pair    *Operand // d|p
	Select  string   // part of a register in video instructions: b0 to b3, h0, h1
}

// Parse parses PTX. Errors contain the line number.
func Parse(text string) (m *Module, err error) {
	p := &parser{text: text, line: 1, m: &Module{Files: map[int]string{}, Strings: map[string]string{}}}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case syntaxError:
			m, err = nil, fmt.Errorf("PTX line %d: %s", p.line, string(e))
		case runtime.Error: // unexpected end or operand
			m, err = nil, fmt.Errorf("PTX line %d: syntax error near %q", p.line, p.tok)
		default:
			panic(e)
		}
	}()
	p.next()
	p.module()
	return p.m, nil
}

type syntaxError string

type parser struct {
	text string
	at   int
	line int
	tok  string // "" at the end of the text
	m    *Module

	f      *Func
	scopes []scope
	taken  map[string]bool // names of the function's parameters and of its shared, local and param variables
	unique int
	loc    Loc
}

// A scope holds the declarations of one pair of braces.
type scope struct {
	regs   map[string]int    // by full name
	groups map[string][2]int // by prefix: first register and count
	vector map[string][]int  // by name of the vector register
	names  map[string]string // unique names of variables and labels
}

func (p *parser) fail(format string, args ...any) { panic(syntaxError(fmt.Sprintf(format, args...))) }

func letter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c == '%'
}

// next reads a token: a name including its dots, a directive or type with its leading dot, a number, a quoted string,
// or a single character.
func (p *parser) next() {
	t := p.text
	for p.at < len(t) {
		switch c := t[p.at]; {
		case c == '\n':
			p.line++
			p.at++
		case c == ' ' || c == '\t' || c == '\r' || c == 0:
			p.at++
		case c == '/' && p.at+1 < len(t) && t[p.at+1] == '/':
			end := strings.IndexByte(t[p.at:], '\n')
			if end < 0 {
				end = len(t) - p.at
			}
			p.at += end
		case c == '/' && p.at+1 < len(t) && t[p.at+1] == '*':
			end := strings.Index(t[p.at+2:], "*/")
			if end < 0 {
				p.fail("unterminated comment")
			}
			p.line += strings.Count(t[p.at:p.at+2+end], "\n")
			p.at += end + 4
		default:
			goto token
		}
	}
	p.tok = ""
	return
token:
	start := p.at
	switch c := t[start]; {
	case c == '"':
		end := strings.IndexByte(t[start+1:], '"')
		if end < 0 {
			p.fail("unterminated string")
		}
		p.at = start + end + 2
	case letter(c) || c == '.':
		i := start + 1
		for i < len(t) {
			if letter(t[i]) || t[i] == '.' && c != '.' {
				i++
			} else if t[i] == ':' && i+2 < len(t) && t[i+1] == ':' && letter(t[i+2]) {
				i += 2
			} else {
				break
			}
		}
		p.at = i
	default:
		p.at++
	}
	p.tok = t[start:p.at]
}

func (p *parser) is(tok string) bool { return p.tok == tok }

func (p *parser) accept(tok string) bool {
	if p.tok == tok {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(tok string) {
	if !p.accept(tok) {
		p.fail("got %q, want %q", p.tok, tok)
	}
}

func (p *parser) take() string {
	t := p.tok
	if t == "" {
		p.fail("unexpected end of file")
	}
	p.next()
	return t
}

func (p *parser) number() int64 {
	negative := p.accept("-")
	o, ok := number(p.take())
	if !ok || o.Kind != Integer {
		p.fail("missing number")
	}
	if negative {
		return -o.Int
	}
	return o.Int
}

func (p *parser) module() {
	for p.tok != "" {
		switch t := p.take(); t {
		case ".version":
			p.m.Version = p.take()
		case ".target":
			p.m.Target = p.take()
			for p.accept(",") {
				p.take()
			}
		case ".address_size":
			if p.number() != 64 {
				p.fail("addresses must have 64 bits")
			}
		case ".file":
			p.file()
		case ".loc":
			p.location()
		case ".section", ".pragma", ".alias":
			p.skipSection(t)
		case ".visible", ".extern", ".weak", ".common":
			p.declaration(t)
		case ".entry", ".func", ".global", ".const", ".shared", ".local":
			p.declared(t, Internal, false)
		case ";", "@@DWARF":
		default:
			p.fail("unknown directive %q", t)
		}
	}
}

func (p *parser) declaration(t string) {
	linkage, extern := Visible, t == ".extern"
	for t == ".visible" || t == ".extern" || t == ".weak" || t == ".common" {
		if t == ".weak" || t == ".common" {
			linkage = Weak
		}
		t = p.take()
	}
	p.declared(t, linkage, extern)
}

func (p *parser) declared(t string, linkage Linkage, extern bool) {
	switch t {
	case ".entry", ".func":
		before := len(p.m.Funcs)
		p.function(t == ".entry")
		for _, f := range p.m.Funcs[before:] {
			f.Linkage = linkage
		}
	case ".global", ".const", ".shared", ".local":
		all := p.variable(t[1:], extern)
		for _, v := range all {
			v.Linkage = linkage
		}
		p.m.Vars = append(p.m.Vars, all...)
		p.accept(";")
	default:
		p.fail("unknown declaration %q", t)
	}
}

func (p *parser) skipSection(t string) {
	if t == ".section" {
		name := p.tok
		for !p.is("{") {
			p.take()
		}
		p.next()
		if name == ".debug_str" {
			p.strings()
			return
		}
		for depth := 1; depth > 0; {
			switch p.take() {
			case "{":
				depth++
			case "}":
				depth--
			}
		}
		return
	}
	for !p.accept(";") {
		p.take()
	}
}

// strings reads .debug_str after its opening brace: labels and zero-terminated bytes.
func (p *parser) strings() {
	label, text := "", []byte(nil)
	for !p.accept("}") {
		switch t := p.take(); t {
		case ".b8":
			for more := true; more; more = p.accept(",") {
				text = append(text, byte(p.number()))
			}
			if label != "" && text[len(text)-1] == 0 {
				p.m.Strings[label] = string(text[:len(text)-1])
				label = ""
			}
		case ":":
		default:
			label, text = t, nil
		}
	}
}

func (p *parser) file() {
	n := int(p.number())
	name := p.take()
	p.m.Files[n] = strings.Trim(name, `"`)
	for p.accept(",") {
		p.take()
	}
}

// location reads .loc: file, line, column and, for inlined code, function name and call.
func (p *parser) location() {
	l := Loc{File: int(p.number()), Line: int(p.number()), Col: int(p.number())}
	for p.accept(",") {
		switch t := p.take(); t {
		case "function_name":
			l.Func = p.take()
			if p.accept("+") && p.number() != 0 {
				l.Func = "" // not the start of a string
			}
		case "inlined_at":
			via := Loc{File: int(p.number()), Line: int(p.number()), Col: int(p.number())}
			l.Via = &via
		default:
			p.fail("unknown part %q of .loc", t)
		}
	}
	if l.Via != nil { // the call may be inlined, too
		for at := &p.loc; at != nil; at = at.Via {
			if at.File == l.Via.File && at.Line == l.Via.Line && at.Col == l.Via.Col {
				l.Via = &Loc{at.File, at.Line, at.Col, at.Via, at.Func}
				break
			}
		}
	}
	if l.Line > 0 || p.loc.Line == 0 { // LLVM writes line 0 for moved code: the line before is near
		p.loc = l
	}
}

var typeSizes = map[string]int{
	"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4,
	"f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "texref": 8,
	"samplerref": 8, "surfref": 8,
}

// Size returns the size of a type in bytes, or 0 if the type is unknown.
func Size(typ string) int { return typeSizes[typ] }

// bounded returns a*b. It fails if b is negative or the product exceeds a GPU's memory.
func (p *parser) bounded(a, b int64) int {
	if b < 0 || b > 1<<40/max(a, 1) {
		p.fail("a size of %d times %d", a, b)
	}
	return int(a * b)
}

// variable reads a declaration after its space. It may declare several variables.
func (p *parser) variable(space string, extern bool) []*Var {
	v := Var{Space: space, Extern: extern, Line: p.line}
	lanes := 1
	for strings.HasPrefix(p.tok, ".") {
		switch t := p.take(); t {
		case ".align":
			v.Align = p.bounded(1, p.number())
		case ".v2":
			lanes = 2
		case ".v4":
			lanes = 4
		case ".attribute":
			p.expect("(")
			for !p.accept(")") {
				p.take()
			}
		case ".ptr", ".global", ".const", ".shared", ".local", ".managed", ".unified":
		default:
			if typeSizes[t[1:]] == 0 && (t != ".pred" || space != "param") {
				p.fail("unknown type %q", t)
			}
			v.Type = t[1:]
		}
	}
	if v.Type == "" {
		p.fail("missing type in a declaration")
	}
	elem := typeSizes[v.Type]
	if v.Type == "pred" { // a parameter in a register
		elem = 4
	}
	var all []*Var
	for {
		w := v
		w.Name = p.take()
		w.Size = elem * lanes
		if w.Align == 0 {
			w.Align = w.Size
		}
		if p.accept("<") { // no compiler writes %r<5> for .param
			p.fail("a numbered variable")
		}
		for p.accept("[") {
			if p.accept("]") {
				w.Size = 0
				continue
			}
			w.Size = p.bounded(int64(w.Size), p.number())
			p.expect("]")
		}
		if p.accept("=") {
			p.initialiser(&w, elem)
			if w.Size == 0 {
				w.Size = len(w.Init)
			}
		}
		all = append(all, &w)
		if space == "param" || !p.accept(",") {
			return all
		}
	}
}

func (p *parser) initialiser(v *Var, elem int) {
	if p.accept("{") {
		for !p.accept("}") {
			p.initialiser(v, elem)
			p.accept(",")
		}
		return
	}
	negative := p.accept("-")
	t := p.take()
	if o, ok := number(t); ok {
		bits := uint64(o.Int)
		if negative {
			bits = -bits
		}
		for i := range elem {
			v.Init = append(v.Init, byte(bits>>(8*i)))
		}
		return
	}
	r := Ref{Offset: len(v.Init), Size: elem, Name: t}
	if t == "generic" && p.accept("(") {
		r.Name, r.Generic = p.take(), true
		p.expect(")")
	}
	if p.accept("+") {
		r.Add = p.number()
	}
	v.Refs = append(v.Refs, r)
	v.Init = append(v.Init, make([]byte, elem)...)
}
