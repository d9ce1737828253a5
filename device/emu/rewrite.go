package emu

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// A rewriter turns the CUDA in one source file into C++: launches, shared memory and inline assembly. Every line stays
// where it is, so that the compiler's messages name the user's lines.
type rewriter struct {
	src   string
	toks  []token
	edits []edit
	err   *rewriteError
}

type tokenKind uint8

const (
	identToken tokenKind = iota
	punctToken
	otherToken // numbers, strings, characters
)

// A token's directive is the number of the preprocessor line that it stands in, 0 outside of one.
type token struct {
	kind       tokenKind
	start, end int
	directive  int
}

type edit struct {
	start, end int
	text       string
}

type rewriteError struct {
	Line int
	Text string
}

// sharedElements is the extent that an `extern __shared__ T name[]` gets; kMaxDynamicShared in fisub_emu.h.
const sharedElements = 227 * 1024

// rewrite returns src as C++. atomics tells whether it names an atomic function.
func rewrite(src string) (out string, atomics bool, err *rewriteError) {
	r := &rewriter{src: src, toks: lex(src)}
	var scopes []bool // for each open brace: does it belong to a namespace?
	for i, t := range r.toks {
		text := r.text(i)
		switch {
		case t.kind == punctToken && t.directive == 0 && text == "{":
			scopes = append(scopes, r.opensNamespace(i))
		case t.kind == punctToken && t.directive == 0 && text == "}" && len(scopes) > 0:
			scopes = scopes[:len(scopes)-1]
		case t.kind == punctToken && text == "<<<":
			r.launch(i)
		case t.kind != identToken:
		case text == "__shared__":
			global := t.directive == 0
			for _, namespace := range scopes {
				global = global && namespace
			}
			r.shared(i, global)
		case text == "asm" || text == "__asm__" || text == "__asm":
			r.assembly(i)
		case text == "__noinline__":
			if p := r.text(i - 1); p != "(" && p != "," { // else inside of __attribute__((...))
				r.replace(i, i, "__attribute__((noinline))")
			}
		case strings.HasPrefix(text, "atomic") && len(text) > 6 && (text[6] == '_' || text[6] >= 'A' && text[6] <= 'Z'):
			atomics = true
		}
	}
	if r.err != nil {
		return "", false, r.err
	}
	return r.apply(), atomics, nil
}

func (r *rewriter) text(i int) string {
	if i < 0 || i >= len(r.toks) {
		return ""
	}
	return r.src[r.toks[i].start:r.toks[i].end]
}

func (r *rewriter) is(i int, texts ...string) bool {
	s := r.text(i)
	for _, t := range texts {
		if s == t {
			return s != ""
		}
	}
	return false
}

func (r *rewriter) ident(i int) bool {
	return i >= 0 && i < len(r.toks) && r.toks[i].kind == identToken
}

// same tells whether tokens i and j both exist and lie in the same directive, or both in none.
func (r *rewriter) same(i, j int) bool {
	return i >= 0 && j >= 0 && i < len(r.toks) && j < len(r.toks) && r.toks[i].directive == r.toks[j].directive
}

func (r *rewriter) fail(i int, format string, args ...any) {
	if r.err == nil {
		r.err = &rewriteError{1 + strings.Count(r.src[:r.toks[i].start], "\n"), fmt.Sprintf(format, args...)}
	}
}

// replace puts text for the tokens first to last and keeps the line breaks between them.
func (r *rewriter) replace(first, last int, text string) {
	start, end := r.toks[first].start, r.toks[last].end
	if n := strings.Count(r.src[start:end], "\n"); n > 0 {
		newline := "\n"
		if r.toks[first].directive != 0 {
			newline = "\\\n"
		}
		text += strings.Repeat(newline, n)
	}
	r.edits = append(r.edits, edit{start, end, text})
}

func (r *rewriter) insert(pos int, text string) { r.edits = append(r.edits, edit{pos, pos, text}) }

func (r *rewriter) apply() string {
	if len(r.edits) == 0 {
		return r.src
	}
	sort.SliceStable(r.edits, func(a, b int) bool { return r.edits[a].start < r.edits[b].start })
	var b strings.Builder
	at := 0
	for _, e := range r.edits {
		if e.start < at { // inside of what an earlier edit replaced
			continue
		}
		b.WriteString(r.src[at:e.start])
		b.WriteString(e.text)
		at = e.end
	}
	b.WriteString(r.src[at:])
	return b.String()
}

var closers = map[string]string{"(": ")", "[": "]", "{": "}"}
var openers = map[string]string{")": "(", "]": "[", "}": "{"}

// forward returns the token that closes the bracket i, -1 where there is none.
func (r *rewriter) forward(i int) int {
	depth := 0
	for j := i; r.same(i, j); j++ {
		switch {
		case r.toks[j].kind != punctToken:
		case closers[r.text(j)] != "":
			depth++
		case openers[r.text(j)] != "":
			if depth--; depth == 0 {
				return j
			}
		}
	}
	return -1
}

// backward returns the token that opens the bracket i, -1 where there is none.
func (r *rewriter) backward(i int) int {
	depth := 0
	for j := i; r.same(i, j); j-- {
		switch {
		case r.toks[j].kind != punctToken:
		case openers[r.text(j)] != "":
			depth++
		case closers[r.text(j)] != "":
			if depth--; depth == 0 {
				return j
			}
		}
	}
	return -1
}

// primary returns the first token of the name, call, index or parenthesis that ends with token i, -1 for anything else.
func (r *rewriter) primary(i int) int {
	switch {
	case !r.same(i, i):
		return -1
	case r.ident(i):
		if r.is(i, "return", "else", "do", "case", "operator") {
			return -1
		}
		return i
	case r.is(i, ">"): // template arguments
		depth := 0
		for j := i; r.same(i, j); j-- {
			switch {
			case r.toks[j].kind != punctToken:
			case r.is(j, ">"):
				depth++
			case r.is(j, "<"):
				if depth--; depth == 0 {
					return r.primary(j - 1)
				}
			case r.is(j, ")", "]", "}"):
				if j = r.backward(j); j < 0 {
					return -1
				}
			case r.is(j, ";", "{", "(", "["):
				return -1
			}
		}
		return -1
	case r.is(i, ")", "]"):
		open := r.backward(i)
		if open < 0 {
			return -1
		}
		if r.same(i, open-1) && (r.ident(open-1) || r.is(open-1, ">", ")", "]")) &&
			!r.is(open-1, "if", "while", "for", "switch", "return") {
			if first := r.primary(open - 1); first >= 0 {
				return first
			}
		}
		if r.is(i, "]") {
			return -1
		}
		return open
	}
	return -1
}

// launch rewrites K<<<config>>>(args) to a call of fisub_emu::launch with K in a lambda, so that K may be a template
// whose arguments are deduced.
func (r *rewriter) launch(i int) {
	first := r.primary(i - 1)
	for first > 0 && r.same(first, first-1) {
		p := first - 1
		if r.is(p, "template") {
			first = p
			continue
		}
		if !r.is(p, "::", ".", "->", "##") {
			break
		}
		q := -1
		if r.same(p, p-1) && (!r.is(p, "::") || r.ident(p-1) || r.is(p-1, ">")) {
			q = r.primary(p - 1)
		}
		if q < 0 && !r.is(p, "::") {
			break
		}
		if first = q; q < 0 {
			first = p
		}
	}
	if first < 0 || !r.same(first, i) {
		r.fail(i, "<<< does not follow the name of a kernel")
		return
	}
	last, depth := -1, 0
	for j := i + 1; r.same(i, j) && last < 0; j++ {
		switch {
		case r.toks[j].kind != punctToken:
		case closers[r.text(j)] != "":
			depth++
		case openers[r.text(j)] != "":
			depth--
		case depth == 0 && r.is(j, ">") && r.is(j+1, ">") && r.is(j+2, ">") && r.toks[j+2].end == r.toks[j].start+3:
			last = j
		}
		if depth < 0 || depth == 0 && r.is(j, ";") {
			break
		}
	}
	if last < 0 {
		r.fail(i, "<<< has no matching >>>")
		return
	}
	var name strings.Builder
	for j := first; j < i; j++ {
		if j > first && r.ident(j) && r.ident(j-1) {
			name.WriteByte(' ')
		}
		name.WriteString(r.text(j))
	}
	r.insert(r.toks[first].start, "::fisub_emu::launch("+strconv.Quote(name.String())+", [&](auto... fisub_a) { ")
	r.replace(i, i, "(fisub_a...); }, ")
	r.replace(last, last+2, ")")
}

// shared rewrites the declaration around the __shared__ at i. A static variable becomes a thread-local one, since a
// worker runs one block at a time; a dynamic one becomes a reference to the worker's block of dynamic shared memory.
func (r *rewriter) shared(i int, global bool) {
	first, external, static := i, -1, false
	for j := i - 1; r.same(i, j); j-- {
		switch {
		case r.is(j, "extern"):
			external = j
		case r.is(j, "static"):
			static = true
		case r.is(j, "volatile", "const", "inline"):
		case r.is(j, ")"): // alignas(..), __align__(..)
			open := r.backward(j)
			if !r.is(open-1, "alignas", "__align__") {
				open = -1
			}
			if open < 0 {
				j = -1
				continue
			}
			j = open - 1
		default:
			j = -1
			continue
		}
		if j >= 0 {
			first = j
		}
	}
	if r.is(i+1, "extern") {
		external = i + 1
	}
	if r.is(i+1, "static") {
		r.replace(i+1, i+1, "")
	}
	if external < 0 {
		words := "static __thread"
		if static {
			words = "__thread"
		}
		for j := i + 1; r.same(i, j) && r.is(j, "alignas") && r.is(j+1, "("); { // must stand before the specifiers
			end := r.forward(j + 1)
			if end < 0 {
				break
			}
			r.insert(r.toks[first].start, strings.Join(strings.Fields(r.src[r.toks[j].start:r.toks[end].end]), " ")+" ")
			r.replace(j, end, "")
			j = end + 1
		}
		r.replace(i, i, words)
		return
	}
	r.replace(external, external, "")
	if global {
		r.replace(i, i, "static thread_local")
	} else {
		r.replace(i, i, "")
	}
	for j := first; r.same(i, j); j++ {
		switch {
		case r.is(j, "alignas", "__align__") && r.is(j+1, "("):
			end := r.forward(j + 1)
			if end < 0 {
				r.fail(i, "extern __shared__ has an open parenthesis")
				return
			}
			r.replace(j, end, "")
			j = end
		case r.is(j, "("):
			if j = r.forward(j); j < 0 {
				r.fail(i, "extern __shared__ has an open parenthesis")
				return
			}
		case r.is(j, "[") && r.is(j+1, "]") && r.ident(j-1):
			r.insert(r.toks[j-1].start, "(&")
			r.replace(j, j+1, fmt.Sprintf(")[%d]", sharedElements))
			end := j + 1
			for r.same(i, end+1) && r.is(end+1, "[") {
				if end = r.forward(end + 1); end < 0 {
					r.fail(i, "extern __shared__ has an open bracket")
					return
				}
			}
			r.insert(r.toks[end].end, " = ::fisub_emu::dynamic_shared")
			if r.is(end+1, ",") {
				r.fail(i, "extern __shared__ declares several names; give each its own declaration")
			}
			return
		case r.is(j, ";", "["):
			r.fail(i, "extern __shared__ must have the form extern __shared__ T name[]")
			return
		}
	}
	r.fail(i, "extern __shared__ must have the form extern __shared__ T name[]")
}

// assembly replaces an asm statement by a call that does not compile where it would be run.
func (r *rewriter) assembly(i int) {
	open := i + 1
	for r.same(i, open) && r.is(open, "volatile", "__volatile__", "goto", "inline") {
		open++
	}
	if !r.same(i, open) || !r.is(open, "(") {
		return
	}
	if end := r.forward(open); end >= 0 {
		r.replace(i, end, "::fisub_emu::inline_ptx()")
	}
}

// opensNamespace tells whether the brace i opens a namespace or a linkage specification.
func (r *rewriter) opensNamespace(i int) bool {
	j := i - 1
	if j >= 1 && r.toks[j].kind == otherToken && r.is(j-1, "extern") {
		return true
	}
	for ; j >= 0 && (r.ident(j) || r.is(j, "::")); j-- {
		if r.is(j, "namespace") {
			return true
		}
	}
	return false
}

// lex splits src into tokens; comments and white space are left out.
func lex(src string) []token {
	var toks []token
	directive, inDirective, lineStart := 0, false, true
	add := func(k tokenKind, start, end int) {
		t := token{kind: k, start: start, end: end}
		if inDirective {
			t.directive = directive
		}
		toks = append(toks, t)
		lineStart = false
	}
	for i := 0; i < len(src); {
		c := src[i]
		rest := src[i:]
		switch {
		case c == '\n':
			inDirective, lineStart = false, true
			i++
		case c == '\\' && continues(rest) > 0:
			i += continues(rest)
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			i++
		case strings.HasPrefix(rest, "//"):
			i += lineEnd(rest)
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return toks
			}
			i += n + 4
		case c == '#' && lineStart:
			directive++
			inDirective = true
			add(punctToken, i, i+1)
			i++
		case isIdent(c) && (c < '0' || c > '9'):
			j := i
			for j < len(src) && isIdent(src[j]) {
				j++
			}
			if j < len(src) && src[j] == '"' && rawPrefix(src[i:j]) {
				end := rawEnd(src, j)
				add(otherToken, i, end)
				i = end
				break
			}
			add(identToken, i, j)
			i = j
		case c >= '0' && c <= '9':
			j := i
			for j < len(src) && (isIdent(src[j]) || src[j] == '.' || src[j] == '\'' && j+1 < len(src) && isIdent(src[j+1]) ||
				(src[j] == '+' || src[j] == '-') && strings.ContainsRune("eEpP", rune(src[j-1])) && !hex(src[i:j])) {
				j++
			}
			add(otherToken, i, j)
			i = j
		case c == '"' || c == '\'':
			j := i + 1
			for j < len(src) && src[j] != c && src[j] != '\n' {
				if src[j] == '\\' && j+1 < len(src) {
					j++
				}
				j++
			}
			if j < len(src) && src[j] == c {
				j++
			}
			j = min(j, len(src))
			add(otherToken, i, j)
			i = j
		case strings.HasPrefix(rest, "<<<") && !(len(toks) > 0 &&
			src[toks[len(toks)-1].start:toks[len(toks)-1].end] == "operator"):
			add(punctToken, i, i+3)
			i += 3
		case strings.HasPrefix(rest, "<<"):
			add(otherToken, i, i+2)
			i += 2
		case strings.HasPrefix(rest, "::") || strings.HasPrefix(rest, "->") || strings.HasPrefix(rest, "##"):
			add(punctToken, i, i+2)
			i += 2
		default:
			add(punctToken, i, i+1)
			i++
		}
	}
	return toks
}

// hex tells whether + and - after an e would end the number: 0x1e+2 is a sum.
func hex(number string) bool {
	return len(number) > 1 && (number[1] == 'x' || number[1] == 'X') && !strings.ContainsAny(number, "pP")
}

func isIdent(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
}

// continues is the length of a backslash and line break at the start of s, 0 where there is none.
func continues(s string) int {
	switch {
	case strings.HasPrefix(s, "\\\n"):
		return 2
	case strings.HasPrefix(s, "\\\r\n"):
		return 3
	}
	return 0
}

// lineEnd is the offset of the line break that ends a // comment at the start of s.
func lineEnd(s string) int {
	for i := 0; i < len(s); i++ {
		if n := continues(s[i:]); n > 0 {
			i += n - 1
		} else if s[i] == '\n' {
			return i
		}
	}
	return len(s)
}

func rawPrefix(s string) bool { return s == "R" || s == "LR" || s == "uR" || s == "UR" || s == "u8R" }

// rawEnd is the offset behind the raw string whose quote is at i.
func rawEnd(src string, i int) int {
	open := strings.IndexByte(src[i:], '(')
	if open < 0 || open > 17 {
		return i + 1
	}
	closing := ")" + src[i+1:i+open] + "\""
	n := strings.Index(src[i+open:], closing)
	if n < 0 {
		return len(src)
	}
	return i + open + n + len(closing)
}
