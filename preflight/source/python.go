package source

import (
	"slices"
	"strings"
)

// A pyLine is one logical line of Python: its tokens, and its indentation in characters.
type pyLine struct {
	indent int
	tokens []token
}

// lexPython splits Python into logical lines, without comments. It accepts any bytes; an open string or bracket runs to
// the end of its line or file.
func lexPython(src string) []pyLine {
	var lines []pyLine
	var line pyLine
	depth := 0
	fresh := true // at the start of a logical line
	end := func() {
		if len(line.tokens) > 0 {
			lines = append(lines, line)
		}
		line = pyLine{}
		fresh = true
	}
	add := func(kind tokenKind, from, to int) {
		fresh = false
		line.tokens = append(line.tokens, token{kind, src[from:to], from})
	}
	for i := 0; i < len(src); {
		c := src[i]
		start := i
		switch {
		case i == 0 && strings.HasPrefix(src, bom):
			i += len(bom)
		case c == '\n':
			i++
			if depth == 0 {
				end()
			}
		case c == ' ' || c == '\t':
			if fresh {
				line.indent++
			}
			i++
		case c == '\r' || c == '\f' || c == '\v':
			i++
		case c == '\\' && i+1 < len(src) && src[i+1] == '\n':
			i += 2
		case c == '#':
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case c == ';' && depth == 0:
			i++
			indent := line.indent
			end()
			line.indent, fresh = indent, false
		case c == '"' || c == '\'':
			i = pyString(src, i)
			add(str, start, i)
		case isLetter(c):
			i = word(src, i)
			if i < len(src) && i-start <= 2 && (src[i] == '"' || src[i] == '\'') &&
				strings.Trim(src[start:i], "rbuftRBUFT") == "" {
				i = pyString(src, i)
				add(str, start, i)
			} else {
				add(ident, start, i)
			}
		case isDigit(c):
			i = word(src, i)
			add(number, start, i)
		default:
			i++
			switch {
			case strings.IndexByte("([{", c) >= 0:
				depth++
			case strings.IndexByte(")]}", c) >= 0:
				depth = max(0, depth-1)
			case i < len(src) && (c == '-' && src[i] == '>' || src[i] == '=' && strings.IndexByte("=!<>:+-*/%&|^@", c) >= 0 ||
				c == '*' && src[i] == '*'):
				i++
			}
			add(punct, start, i)
		}
	}
	end()
	return lines
}

// pyString returns the end of the string whose first quote is at i.
func pyString(src string, i int) int {
	quote := src[i : i+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(src[i:], triple) {
		for i += 3; i < len(src); i++ {
			if src[i] == '\\' {
				i++
			} else if strings.HasPrefix(src[i:], triple) {
				return i + 3
			}
		}
		return len(src)
	}
	for i++; i < len(src); i++ {
		switch src[i] {
		case quote[0]:
			return i + 1
		case '\n':
			return i
		case '\\':
			i++
		}
	}
	return len(src)
}

// A pyFunction is a top-level def.
type pyFunction struct {
	pos        int
	decorators [][]string // dotted names
	params     []token
	returns    []token // annotation, or nil
	async      bool
}

// A pyImport is the import of one module: "a.b" of import a.b, or of from a.b import ...
type pyImport struct {
	module   string
	relative bool
	pos      int
}

// A pyModule is what a Python source binds at its top level, and what it imports anywhere.
type pyModule struct {
	functions map[string][]pyFunction
	bound     map[string]bool // by anything but a def; "*" for a star import
	classes   map[string]int  // offset of the name
	imports   []pyImport
	future    bool // from __future__ import annotations
}

func parsePython(lines []pyLine) *pyModule {
	m := &pyModule{functions: map[string][]pyFunction{}, bound: map[string]bool{}, classes: map[string]int{}}
	var decorators [][]string
	open := false // in the body of a top-level if, try, with or loop
	for _, line := range lines {
		ts := line.tokens
		first := ts[0].text
		if ts[0].is("import") || ts[0].is("from") {
			m.imported(ts, line.indent == 0 || open)
		}
		if line.indent > 0 && !open {
			continue
		}
		if line.indent == 0 {
			switch first {
			case "if", "elif", "else", "try", "except", "finally", "with", "for", "while", "match":
				open = true
			default:
				open = false
			}
		}
		async := first == "async"
		if async && len(ts) > 1 && ts[1].is("def") {
			ts = ts[1:]
			first = "def"
		}
		switch {
		case ts[0].is("@"):
			var name []string
			for _, t := range ts[1:] {
				if t.kind == ident {
					name = append(name, t.text)
				} else if !t.is(".") {
					break
				}
			}
			decorators = append(decorators, name)
			continue
		case first == "def" && len(ts) > 2:
			m.define(ts, decorators, async)
		case first == "class" && len(ts) > 1:
			m.bound[ts[1].text], m.classes[ts[1].text] = true, ts[1].pos
		case ts[0].kind == ident:
			for i := 0; i+1 < len(ts); i++ {
				if t := ts[i]; t.is("(") || t.is("[") || t.is("{") {
					i = match(ts, i) - 1
				} else if t.kind == ident && (ts[i+1].is("=") || ts[i+1].is(":") || ts[i+1].is(",") || ts[i+1].is(":=")) {
					m.bound[t.text] = true
				}
			}
		}
		decorators = nil
	}
	return m
}

func (m *pyModule) define(ts []token, decorators [][]string, async bool) {
	f := pyFunction{pos: ts[1].pos, decorators: decorators, async: async}
	i := 2
	if ts[i].is("[") {
		i = match(ts, i)
	}
	if i >= len(ts) || !ts[i].is("(") {
		return
	}
	end := match(ts, i)
	f.params = inner(ts, i, end)
	if end < len(ts) && ts[end].is("->") {
		for _, t := range ts[end+1:] {
			if t.is(":") {
				break
			}
			f.returns = append(f.returns, t)
		}
	}
	m.functions[ts[1].text] = append(m.functions[ts[1].text], f)
}

// imported takes an import statement; top tells that it binds names of the module.
func (m *pyModule) imported(ts []token, top bool) {
	from := ts[0].is("from")
	imp := pyImport{pos: ts[0].pos}
	last := ""
	names := !from // in the part that binds names
	flush := func() {
		if imp.module != "" || imp.relative {
			m.imports = append(m.imports, imp)
		}
	}
	alias := false
	for _, t := range ts[1:] {
		switch {
		case from && !names && t.is("import"):
			names = true
			flush()
		case from && !names && t.is("."):
			if imp.module == "" {
				imp.relative = true
			} else {
				imp.module += "."
			}
		case from && !names && t.kind == ident:
			imp.module += t.text
		case from && imp.module == "__future__" && t.is("annotations"):
			m.future = true
		case t.is("*") && top:
			m.bound["*"] = true
		case t.is("as"):
			alias = true
			last = ""
		case t.is(","):
			if !from {
				flush()
				imp.module = ""
			}
			if top && last != "" {
				m.bound[last] = true
			}
			last, alias = "", false
		case !from && t.is("."):
			imp.module += "."
		case t.kind == ident:
			if !from && !alias {
				imp.module += t.text
			}
			if from && imp.relative && imp.module == "" {
				m.imports = append(m.imports, pyImport{module: t.text, relative: true, pos: t.pos})
			}
			if last == "" {
				last = t.text
			}
		}
	}
	if !from {
		flush()
	}
	if top && last != "" {
		m.bound[last] = true
	}
}

// positional is the range of positional arguments that a parameter list takes; most is -1 for *args. keyword names a
// keyword-only parameter without default, which no positional call can give.
func positional(params []token) (least, most int, keyword string) {
	star := false
	for _, p := range pySplit(params) {
		if len(p) == 0 {
			continue
		}
		hasDefault := slices.ContainsFunc(outer(p), func(t token) bool { return t.is("=") })
		switch {
		case p[0].is("**") || p[0].is("/"):
		case p[0].is("*"):
			star = true
			if len(p) > 1 {
				most = -1
			}
		case star:
			if !hasDefault && keyword == "" {
				keyword = p[0].text
			}
		default:
			if most++; !hasDefault {
				least++
			}
		}
	}
	return least, most, keyword
}

// outer returns the tokens of ts outside brackets.
func outer(ts []token) []token {
	var out []token
	for i := 0; i < len(ts); i++ {
		if ts[i].is("(") || ts[i].is("[") || ts[i].is("{") {
			i = match(ts, i) - 1
			continue
		}
		out = append(out, ts[i])
	}
	return out
}

// pySplit cuts ts at the commas outside brackets and lambdas.
func pySplit(ts []token) [][]token {
	var parts [][]token
	start, lambdas := 0, 0
	for i := 0; i < len(ts); i++ {
		switch t := ts[i]; {
		case t.is("(") || t.is("[") || t.is("{"):
			i = match(ts, i) - 1
		case t.is("lambda"):
			lambdas++
		case t.is(":") && lambdas > 0:
			lambdas--
		case t.is(",") && lambdas == 0:
			parts = append(parts, ts[start:i])
			start = i + 1
		}
	}
	if start < len(ts) {
		parts = append(parts, ts[start:])
	}
	return parts
}
