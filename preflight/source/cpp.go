package source

import (
	"slices"
	"strings"
)

const bom = "\ufeff"

// exportMacro exports a function under the C symbol __tvm_ffi_<first argument> (tvm/ffi/function.h).
const (
	exportMacro  = "TVM_FFI_DLL_EXPORT_TYPED_FUNC"
	exportPrefix = "__tvm_ffi_"
	pybindMacro  = "PYBIND11_MODULE"
)

// Bounds keep hostile sources from taking quadratic time or memory; what is beyond them is not looked at.
const (
	maxNear   = 1024 // tokens to a closing >
	maxScopes = 64   // nested namespaces, conditions
	maxPath   = 16   // parts of a qualified name
	maxMacros = 256
	maxSame   = 16 // functions of one name, exports of one symbol
)

type tokenKind uint8

const (
	punct tokenKind = iota // one character, or "::" or "->"
	ident
	number
	str    // text with quotes and prefix
	ppIf   // #if, #ifdef, #ifndef whose condition is not a literal
	ppElse // #else, #elif of such a one
	ppEnd
	newline // Python only: end of a logical line
)

// A token is a piece of source; pos is its byte offset.
type token struct {
	kind tokenKind
	text string
	pos  int
}

func (t token) is(text string) bool { return t.kind <= ident && t.text == text }

// classes tells letters (1) from digits (2). Bytes of non-ASCII characters count as letters.
var classes = func() (table [256]uint8) {
	for c := range table {
		switch {
		case c == '_' || c == '$' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= 0x80:
			table[c] = 1
		case '0' <= c && c <= '9':
			table[c] = 2
		}
	}
	return table
}()

func isLetter(c byte) bool { return classes[c] == 1 }

func isDigit(c byte) bool { return classes[c] == 2 }

// word returns the end of the letters and digits at i.
func word(src string, i int) int {
	for i < len(src) && classes[src[i]] != 0 {
		i++
	}
	return i
}

// A macro is a function-like macro that takes part in an export.
type macro struct {
	params []string // the last one may be "..."
	body   []token
}

// A condition is an open #if.
type condition struct {
	known   bool // the condition is 0 or 1
	dead    bool // the current branch
	outside bool // the #if is itself in a dead branch
}

// A cppLexer splits C++ into tokens: without comments, without the branches of #if 0, with preprocessor lines reduced
// to the conditions. It accepts any bytes.
type cppLexer struct {
	src    string
	tokens []token
	conds  []condition
	macros map[string]macro // where not nil, macros are collected and tokens are not
}

// lexCPP appends the tokens of src to buf.
func lexCPP(src string, buf []token) []token {
	l := &cppLexer{src: src, tokens: slices.Grow(buf, len(src)/5)}
	l.run(true)
	return l.tokens
}

// exportMacros adds the export macros of src to macros.
func exportMacros(src string, macros map[string]macro) {
	if !strings.Contains(src, "define") {
		return
	}
	l := &cppLexer{src: src, macros: macros}
	l.run(true)
}

func (l *cppLexer) dead() bool {
	return len(l.conds) > 0 && (l.conds[len(l.conds)-1].dead || l.conds[len(l.conds)-1].outside)
}

func (l *cppLexer) add(kind tokenKind, from, to int) {
	if l.macros == nil && !l.dead() {
		l.tokens = append(l.tokens, token{kind, l.src[from:to], from})
	}
}

func (l *cppLexer) run(directives bool) {
	src := l.src
	fresh := true // nothing but space so far in this line
	for i := 0; i < len(src); {
		c := src[i]
		start := i
		switch {
		case c == '\n':
			fresh = true
			i++
			continue
		case c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f':
			i++
			continue
		case c == '\\' && i+1 < len(src) && src[i+1] == '\n':
			i += 2
			continue
		case i == 0 && strings.HasPrefix(src, bom):
			i += len(bom)
			continue
		case c == '/' && i+1 < len(src) && (src[i+1] == '/' || src[i+1] == '*'):
			i = skipComment(src, i)
			continue
		case c == '#' && fresh && directives:
			i = directiveEnd(src, i)
			l.directive(src[start:i], start)
			continue
		case c == '"':
			i = quotedEnd(src, i)
			l.add(str, start, i)
		case c == '\'':
			i = quotedEnd(src, i)
			l.add(number, start, i)
		case isLetter(c):
			i = word(src, i)
			switch prefix := src[start:i]; {
			case i < len(src) && src[i] == '"' && (prefix == "R" || prefix == "LR" || prefix == "uR" || prefix == "UR" ||
				prefix == "u8R"):
				i = rawEnd(src, i)
				l.add(str, start, i)
			case i < len(src) && src[i] == '"' && (prefix == "L" || prefix == "u" || prefix == "U" || prefix == "u8"):
				i = quotedEnd(src, i)
				l.add(str, start, i)
			default:
				l.add(ident, start, i)
			}
		case isDigit(c):
			for i < len(src) && (isLetter(src[i]) || isDigit(src[i]) || src[i] == '.' ||
				src[i] == '\'' && i+1 < len(src) && (isLetter(src[i+1]) || isDigit(src[i+1]))) {
				i++
			}
			l.add(number, start, i)
		default:
			i++
			if i < len(src) && (c == ':' && src[i] == ':' || c == '-' && src[i] == '>') {
				i++
			}
			l.add(punct, start, i)
		}
		fresh = false
	}
}

// skipComment returns the end of the comment at i.
func skipComment(src string, i int) int {
	if src[i+1] == '*' {
		if n := strings.Index(src[i+2:], "*/"); n >= 0 {
			return i + 2 + n + 2
		}
		return len(src)
	}
	return lineEnd(src, i)
}

// lineEnd returns the offset of the newline that ends the line of i, counting continued lines as one.
func lineEnd(src string, i int) int {
	for {
		n := strings.IndexByte(src[i:], '\n')
		if n < 0 {
			return len(src)
		}
		i += n
		if n == 0 || src[i-1] != '\\' {
			return i
		}
		i++
	}
}

// directiveEnd is lineEnd for a preprocessor line, in which a comment may hide the newline.
func directiveEnd(src string, i int) int {
	for i < len(src) {
		switch c := src[i]; {
		case c == '\n':
			return i
		case c == '\\' && i+1 < len(src):
			i += 2
		case c == '"' || c == '\'':
			i = quotedEnd(src, i)
		case c == '/' && i+1 < len(src) && (src[i+1] == '*' || src[i+1] == '/'):
			i = skipComment(src, i)
		default:
			i++
		}
	}
	return len(src)
}

// quotedEnd returns the end of the literal whose quote is at i; a newline ends an open one.
func quotedEnd(src string, i int) int {
	quote := src[i]
	for i++; i < len(src); i++ {
		switch src[i] {
		case quote:
			return i + 1
		case '\n':
			return i
		case '\\':
			i++
		}
	}
	return len(src)
}

// rawEnd returns the end of the raw string whose quote is at i.
func rawEnd(src string, i int) int {
	open := strings.IndexByte(src[i:], '(')
	if open < 0 || open > 17 {
		return quotedEnd(src, i)
	}
	end := ")" + src[i+1:i+open] + `"`
	if n := strings.Index(src[i+open:], end); n >= 0 {
		return i + open + n + len(end)
	}
	return len(src)
}

// directive takes one preprocessor line, from its # on.
func (l *cppLexer) directive(line string, pos int) {
	text := strings.TrimLeft(line[1:], " \t")
	n := word(text, 0)
	name, rest := text[:n], strings.TrimSpace(text[n:])
	switch name {
	case "if", "ifdef", "ifndef":
		c := condition{outside: l.dead(), known: name == "if" && (rest == "0" || rest == "1" || rest == "false" ||
			rest == "true")}
		if !c.known {
			l.add(ppIf, pos, pos)
		}
		c.dead = c.known && (rest == "0" || rest == "false")
		l.conds = append(l.conds, c)
	case "else", "elif", "elifdef", "elifndef":
		if len(l.conds) == 0 {
			return
		}
		c := &l.conds[len(l.conds)-1]
		if c.known {
			c.dead = !c.dead
			c.known = name == "else" || c.dead
			if !c.known {
				l.add(ppIf, pos, pos)
			}
			return
		}
		l.add(ppElse, pos, pos)
	case "endif":
		if len(l.conds) == 0 {
			return
		}
		c := l.conds[len(l.conds)-1]
		l.conds = l.conds[:len(l.conds)-1]
		if !c.known {
			l.add(ppEnd, pos, pos)
		}
	case "define":
		if l.macros != nil && !l.dead() {
			l.define(rest)
		}
	}
}

// define keeps a function-like macro whose body exports something.
func (l *cppLexer) define(text string) {
	n := word(text, 0)
	if n == 0 || n >= len(text) || text[n] != '(' {
		return
	}
	name := text[:n]
	if len(l.macros) >= maxMacros {
		return
	}
	relevant := strings.Contains(text, exportMacro) || strings.Contains(text, exportPrefix) ||
		strings.Contains(text, pybindMacro)
	for m := range l.macros {
		relevant = relevant || strings.Contains(text, m)
	}
	if !relevant {
		return
	}
	text = strings.ReplaceAll(text, "\\\n", " ")
	end := strings.IndexByte(text, ')')
	if end < 0 {
		return
	}
	m := macro{}
	for p := range strings.SplitSeq(text[n+1:end], ",") {
		m.params = append(m.params, strings.TrimSpace(p))
	}
	body := &cppLexer{src: text[end+1:]}
	body.run(false)
	m.body = body.tokens
	l.macros[name] = m
}

// expand returns the body of m with args in place of its parameters, cut off behind limit tokens; every token gets
// position pos.
func (m macro) expand(args [][]token, pos, limit int) []token {
	var out []token
	paste := false
	emit := func(ts ...token) {
		for i, t := range ts {
			t.pos = pos
			if paste && i == 0 && len(out) > 0 {
				out[len(out)-1].text += t.text
				continue
			}
			out = append(out, t)
		}
		paste = false
	}
	for i := 0; i < len(m.body) && len(out) < limit; i++ {
		t := m.body[i]
		if t.is("#") {
			if i+1 < len(m.body) && m.body[i+1].is("#") {
				paste = true
				i++
			}
			continue
		}
		at := slices.Index(m.params, t.text)
		if t.text == "__VA_ARGS__" {
			at = slices.Index(m.params, "...")
		}
		switch {
		case t.kind != ident || at < 0:
			emit(t)
		case at < len(args):
			emit(args[at]...)
			if m.params[at] == "..." {
				for _, a := range args[at+1:] {
					emit(token{punct, ",", pos})
					emit(a...)
				}
			}
		}
		paste = false
	}
	return out
}

// A function is a definition or declaration at namespace scope.
type function struct {
	path   []string // scopes, qualifiers, name
	params int
	any    bool // takes any number of arguments
	def    bool // has a body
	global bool // __global__
	c      bool // extern "C"
	file   *file
	pos    int
	// Offsets of the parameter list in the file; 0 where it is not written there.
	from, to int
}

func (f *function) name() string { return f.path[len(f.path)-1] }

// An export is one use of the export macro, or one m.def of a Python module.
type export struct {
	symbol string
	target []token // expression that names the function
	rest   []token // of a m.def: the further arguments
	file   *file
	pos    int
}

// A file is one source.
type file struct {
	path, text string
}

// A unit is what the C++ sources of a solution export and define.
type unit struct {
	macros    map[string]macro
	functions []*function
	exports   []export
	methods   []export // m.def of PYBIND11_MODULE
	pybind    bool
	budget    int // tokens that macros may still expand to
}

type scope struct {
	names []string
	c     bool // extern "C"
}

// A scanner reads the declarations of one file.
type scanner struct {
	*unit
	file   *file
	scopes []scope
	saved  [][]scope // at each open #if
	deeper int       // open #if beyond those
	depth  int       // of macro expansion
	body   bool      // a body follows the tokens being scanned
}

// match returns the index after the bracket that closes the one at i, or len(ts). Of conditional branches inside, each
// starts at the nesting of the first; of one that began outside, the first is taken.
func match(ts []token, i int) int {
	depth := 0
	var saved []int
	for ; i < len(ts); i++ {
		switch ts[i].kind {
		case punct:
			switch ts[i].text {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				if depth--; depth == 0 {
					return i + 1
				}
			}
		case ppIf:
			saved = append(saved, depth)
		case ppElse:
			if len(saved) > 0 {
				depth = saved[len(saved)-1]
				break
			}
			for open := 1; i+1 < len(ts) && open > 0; i++ {
				switch ts[i+1].kind {
				case ppIf:
					open++
				case ppEnd:
					open--
				}
			}
		case ppEnd:
			if len(saved) > 0 {
				saved = saved[:len(saved)-1]
			}
		}
	}
	return len(ts)
}

// matchAngle returns the index after the > that closes the < at i; i+1 where there is none in the same declaration, or
// none near.
func matchAngle(ts []token, i int) int {
	depth := 0
	for j := i; j < len(ts) && j < i+maxNear; j++ {
		if ts[j].kind != punct {
			continue
		}
		switch ts[j].text {
		case "<":
			depth++
		case ">":
			if depth--; depth == 0 {
				return j + 1
			}
		case "(", "[", "{":
			j = match(ts, j) - 1
		case ";", ")", "]", "}":
			return i + 1
		}
	}
	return i + 1
}

// split cuts ts at the commas outside brackets and template arguments.
func split(ts []token) [][]token {
	if len(ts) == 0 {
		return nil
	}
	var parts [][]token
	start := 0
	for i := 0; i < len(ts); i++ {
		if ts[i].kind != punct {
			continue
		}
		switch ts[i].text {
		case "(", "[", "{":
			i = match(ts, i) - 1
		case "<":
			if i > 0 && ts[i-1].kind == ident {
				i = matchAngle(ts, i) - 1
			}
		case ",":
			parts = append(parts, ts[start:i])
			start = i + 1
		}
	}
	return append(parts, ts[start:])
}

// attribute names what may stand before brackets in a declaration without being the function's name.
func attribute(name string) bool {
	switch name {
	case "__launch_bounds__", "__attribute__", "__declspec", "__cluster_dims__", "__maxnreg__", "__block_size__",
		"__align__",
		"alignas", "decltype", "noexcept", "requires", "explicit", "throw", "operator", "static_assert":
		return true
	}
	return false
}

func (s *scanner) scan(ts []token) {
	start := 0      // of the declaration
	paren := -1     // its parameter list
	frozen := false // behind -> or the colon of a constructor
	inits := false  // in a constructor's initialisers
	reset := func(i int) { start, paren, frozen, inits = i, -1, false, false }
	for i := 0; i < len(ts); {
		t := ts[i]
		next := i + 1
		switch {
		case t.kind == ppIf && len(s.saved) == maxScopes:
			s.deeper++
		case s.deeper > 0 && t.kind == ppEnd:
			s.deeper--
		case s.deeper > 0 && t.kind == ppElse:
		case t.kind == ppIf:
			s.saved = append(s.saved, slices.Clone(s.scopes))
		case t.kind == ppElse && len(s.saved) > 0:
			s.scopes = slices.Clone(s.saved[len(s.saved)-1])
		case t.kind == ppEnd && len(s.saved) > 0:
			s.saved = s.saved[:len(s.saved)-1]
		case t.kind == ident:
			call := next < len(ts) && ts[next].is("(")
			m, isMacro := s.macros[t.text]
			switch {
			case t.text == "template" && next < len(ts) && ts[next].is("<"):
				next = matchAngle(ts, next)
			case call && t.text == exportMacro:
				end := match(ts, next)
				if args := split(inner(ts, next, end)); len(args) >= 2 && len(args[0]) == 1 {
					target := ts[next+1+len(args[0])+1 : max(next+1+len(args[0])+1, end-1)]
					s.exports = append(s.exports, export{symbol: args[0][0].text, target: slices.Clone(target), file: s.file,
						pos: t.pos})
				}
				next = end
				reset(next)
			case call && t.text == pybindMacro:
				next = s.module(ts, next)
				reset(next)
			case call && isMacro && s.depth < 8:
				end := match(ts, next)
				body := m.expand(split(inner(ts, next, end)), t.pos, s.budget)
				if s.budget -= len(body); s.budget > 0 {
					sub := scanner{unit: s.unit, file: s.file, scopes: s.scopes, depth: s.depth + 1, body: end < len(ts) &&
						ts[end].is("{")}
					sub.scan(body)
				}
				next = end
				reset(next)
			}
		case t.kind != punct:
		case t.text == "(":
			next = match(ts, i)
			if !frozen && named(ts[start:i]) {
				paren = i
			}
		case t.text == "[":
			next = match(ts, i)
		case t.text == "->" || t.text == ":":
			frozen = frozen || paren >= 0
			inits = inits || paren >= 0 && t.text == ":"
		case t.text == "=" && (i == start || !ts[i-1].is("operator")):
			for next < len(ts) && !ts[next].is(";") && !ts[next].is("}") {
				if ts[next].is("{") || ts[next].is("(") || ts[next].is("[") {
					next = match(ts, next)
				} else {
					next++
				}
			}
			reset(next)
		case t.text == "{":
			next = s.brace(ts, start, i, paren, inits)
			if !inits || next == len(ts) || i == 0 || ts[i-1].is(")") || ts[i-1].is("}") {
				reset(next)
			}
		case t.text == "}":
			if len(s.scopes) > 0 {
				s.scopes = s.scopes[:len(s.scopes)-1]
			}
			reset(next)
		case t.text == ";":
			s.function(ts[start:i], paren-start, false)
			reset(next)
		}
		i = next
	}
	s.function(ts[min(start, len(ts)):], paren-start, s.body)
}

// inner returns the tokens between the bracket at open and the one before end.
func inner(ts []token, open, end int) []token {
	return ts[open+1 : max(open+1, end-1)]
}

// named tells whether a declaration that goes on with a bracket has a function's name before it.
func named(decl []token) bool {
	if len(decl) == 0 {
		return false
	}
	last := decl[len(decl)-1]
	return last.kind == ident && !attribute(last.text) || last.is(">")
}

// brace takes the { at i of the declaration that begins at start and returns where to go on.
func (s *scanner) brace(ts []token, start, i, paren int, inits bool) int {
	decl := ts[start:i]
	if len(s.scopes) == maxScopes {
		return match(ts, i)
	}
	for k, t := range decl {
		if t.is("namespace") && paren < 0 {
			var names []string
			for _, n := range decl[k+1:] {
				if n.kind == ident && n.text != "inline" && len(names) < maxPath {
					names = append(names, n.text)
				}
			}
			s.scopes = append(s.scopes, scope{names: names})
			return i + 1
		}
	}
	if n := len(decl); paren < 0 && n >= 2 && decl[n-2].is("extern") && decl[n-1].text == `"C"` {
		s.scopes = append(s.scopes, scope{c: true})
		return i + 1
	}
	if inits && len(decl) > 0 && !decl[len(decl)-1].is(")") && !decl[len(decl)-1].is("}") {
		return match(ts, i)
	}
	s.function(decl, paren-start, true)
	return match(ts, i)
}

// function notes the function that decl declares, if it does; paren is the index of its parameter list in decl.
func (s *scanner) function(decl []token, paren int, def bool) {
	if paren <= 0 {
		return
	}
	at := paren - 1
	if decl[at].is(">") {
		for depth := 0; at >= 0; at-- {
			if decl[at].is(">") {
				depth++
			} else if decl[at].is("<") {
				if depth--; depth == 0 {
					break
				}
			}
		}
		at--
	}
	if at < 0 || decl[at].kind != ident {
		return
	}
	f := &function{path: []string{decl[at].text}, def: def, file: s.file, pos: decl[at].pos}
	for k := at; len(f.path) < maxPath && k >= 2 && decl[k-1].is("::") && decl[k-2].kind == ident; k -= 2 {
		f.path = append([]string{decl[k-2].text}, f.path...)
	}
	for k, t := range decl {
		switch {
		case t.is("__global__"):
			f.global = true
		case t.is("typedef") || t.is("using") || t.is("friend"):
			return
		case t.is("extern") && k+1 < len(decl) && decl[k+1].text == `"C"`:
			f.c = true
		}
	}
	var names []string
	for _, sc := range s.scopes {
		names = append(names, sc.names...)
		f.c = f.c || sc.c
	}
	f.path = append(names, f.path...)
	f.path = slices.Clone(f.path[max(0, len(f.path)-maxPath):])
	end := match(decl, paren)
	f.params, f.any = arity(inner(decl, paren, end))
	if s.depth == 0 && decl[end-1].is(")") {
		f.from, f.to = decl[paren].pos+1, decl[end-1].pos
	}
	s.functions = append(s.functions, f)
}

// module takes PYBIND11_MODULE(name, m) { ... } with its bracket at i and returns where to go on.
func (s *scanner) module(ts []token, i int) int {
	s.pybind = true
	i = match(ts, i)
	if i >= len(ts) || !ts[i].is("{") {
		return i
	}
	end := match(ts, i)
	body := inner(ts, i, end)
	for k := 0; k+3 < len(body); k++ {
		if !body[k].is(".") || !body[k+1].is("def") || !body[k+2].is("(") || body[k+3].kind != str {
			continue
		}
		end := match(body, k+2)
		args := split(inner(body, k+2, end))
		e := export{symbol: strings.Trim(body[k+3].text, `"`), file: s.file, pos: body[k].pos}
		if len(args) > 1 {
			e.target = slices.Clone(args[1])
		}
		for _, a := range args[min(2, len(args)):] {
			e.rest = append(e.rest, a...)
		}
		s.methods = append(s.methods, e)
		k = end - 1
	}
	return end
}

// arity counts the parameters of a list; open tells that it takes any number.
func arity(params []token) (n int, open bool) {
	list := split(params)
	if len(list) == 1 && len(list[0]) == 1 && list[0][0].is("void") {
		return 0, false
	}
	for _, p := range list {
		for _, t := range p {
			if t.is(".") || t.is("PackedArgs") || t.is("AnyView") {
				return len(list), true
			}
			if t.is("=") {
				break
			}
		}
	}
	return len(list), false
}

// resolve returns the functions that the expression of an export may mean: a lambda itself, else all definitions of the
// name, else its declarations; nil where it is not a plain name.
func (u *unit) resolve(e export) (fs []*function, name string) {
	ts := e.target
	for len(ts) > 0 && ts[0].is("&") {
		ts = ts[1:]
	}
	if len(ts) == 0 {
		return nil, ""
	}
	if ts[0].is("[") {
		i := match(ts, 0)
		if i < len(ts) && ts[i].is("<") {
			i = matchAngle(ts, i)
		}
		f := &function{path: []string{e.symbol}, def: true, file: e.file, pos: ts[0].pos}
		if i < len(ts) && ts[i].is("(") {
			end := match(ts, i)
			f.params, f.any = arity(inner(ts, i, end))
			if ts[end-1].is(")") {
				f.from, f.to = ts[i].pos+1, ts[end-1].pos
			}
		}
		return []*function{f}, e.symbol
	}
	var path []string
	for i := 0; i < len(ts); i++ {
		switch {
		case ts[i].kind == ident:
			path = append(path, ts[i].text)
		case ts[i].is("<"):
			i = matchAngle(ts, i) - 1
		case !ts[i].is("::"):
			return nil, ""
		}
	}
	if len(path) == 0 {
		return nil, ""
	}
	name = path[len(path)-1]
	for _, exact := range []bool{true, false} {
		for _, def := range []bool{true, false} {
			for _, f := range u.functions {
				if len(fs) < maxSame && f.name() == name && f.def == def && (!exact || hasSuffix(f.path, path)) {
					fs = append(fs, f)
				}
			}
			if len(fs) > 0 {
				return fs, name
			}
		}
	}
	return nil, name
}

func hasSuffix(path, suffix []string) bool {
	return len(path) >= len(suffix) && slices.Equal(path[len(path)-len(suffix):], suffix)
}
