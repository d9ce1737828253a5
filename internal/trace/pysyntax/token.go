package pysyntax

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits. Python's own are 200 brackets and 100 indents; it has none on the number of tokens.
const (
	maxBrackets = 200
	maxIndents  = 100
	maxTokens   = 1 << 20
)

type kind uint8

const (
	end kind = iota
	newline
	indent
	dedent
	name // also keywords
	number
	str    // a string literal without replacement fields
	bytes_ // a bytes literal
	fstart // an f-string: fstart, fields, fend
	fend
	fcolon // before a replacement field's format specification
	op
)

type token struct {
	kind kind
	text string
	line int
}

func (t token) is(text string) bool { return (t.kind == op || t.kind == name) && t.text == text }

// keyword tells whether t is a reserved word, the constants included.
func (t token) keyword() bool {
	if t.kind != name {
		return false
	}
	switch t.text {
	case "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
		"elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
		"not", "or", "pass", "raise", "return", "try", "while", "with", "yield":
		return true
	}
	return false
}

// constant tells whether t is a reserved word that is a value.
func (t token) constant() bool { return t.is("None") || t.is("True") || t.is("False") }

// A syntaxError is thrown, as a panic, from wherever it is found and caught by Module and Expression.
type syntaxError struct {
	text string
	line int
}

func (e syntaxError) Error() string { return fmt.Sprintf("%s (line %d)", e.text, e.line) }

func catch(err *error) {
	switch e := recover().(type) {
	case nil:
	case syntaxError:
		*err = e
	default:
		panic(e)
	}
}

type bracket struct {
	open byte
	line int
}

// A tokenizer splits Python source as CPython 3.12 does.
type tokenizer struct {
	src      string
	pos      int
	line     int
	tokens   []token
	brackets []bracket
}

// tokenize returns the tokens of src; the last is an end. It throws a syntaxError.
func tokenize(src string) []token {
	if strings.IndexByte(src, 0) >= 0 {
		panic(syntaxError{"source code string cannot contain null bytes", 1 + strings.Count(src[:strings.IndexByte(src, 0)],
			"\n")})
	}
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	if !strings.HasSuffix(src, "\n") {
		src += "\n"
	}
	t := &tokenizer{src: src, line: 1}
	indents := [][2]int{{0, 0}}
	for t.pos < len(t.src) {
		if column, ok := t.indentation(); ok {
			indents = t.dent(indents, column)
			t.logicalLine()
		}
	}
	for range indents[1:] {
		t.emit(dedent, "")
	}
	t.emit(end, "")
	return t.tokens
}

func (t *tokenizer) fail(format string, args ...any) {
	panic(syntaxError{fmt.Sprintf(format, args...), t.line})
}

func (t *tokenizer) emit(k kind, text string) {
	if len(t.tokens) == maxTokens {
		t.fail("more than %d tokens", maxTokens)
	}
	t.tokens = append(t.tokens, token{k, text, t.line})
}

// peek returns the byte at so many places ahead, or 0 past the end.
func (t *tokenizer) peek(ahead int) byte {
	if t.pos+ahead >= len(t.src) {
		return 0
	}
	return t.src[t.pos+ahead]
}

// indentation skips the white space that starts a line and returns its column with tabs to multiples of 8 and with tabs
// as single characters. ok is false when the line is blank, and then it is skipped.
func (t *tokenizer) indentation() (column [2]int, ok bool) {
	continued := 0 // column of a first backslash, if it is not at the margin
	for {
		switch t.peek(0) {
		case ' ':
			column[0]++
			column[1]++
		case '\t':
			column[0] += 8 - column[0]%8
			column[1]++
		case '\f':
			column = [2]int{}
		case '\\':
			if continued == 0 {
				continued = column[0]
			}
			t.continuation()
			t.pos--
		case '\n', '#':
			t.comment()
			if t.pos < len(t.src) {
				t.pos++
				t.line++
			}
			return column, false
		case 0:
			return column, false
		default:
			if continued != 0 {
				column = [2]int{continued, continued}
			}
			return column, true
		}
		t.pos++
	}
}

// continuation skips a backslash and the newline after it.
func (t *tokenizer) continuation() {
	if t.peek(1) != '\n' {
		t.fail("unexpected character after line continuation character")
	}
	t.pos += 2
	t.line++
	if t.pos >= len(t.src) {
		t.fail("unexpected EOF while parsing")
	}
}

// comment skips to the end of the line if there is a comment.
func (t *tokenizer) comment() {
	if t.peek(0) != '#' {
		return
	}
	if i := strings.IndexByte(t.src[t.pos:], '\n'); i >= 0 {
		t.pos += i
	} else {
		t.pos = len(t.src)
	}
}

func (t *tokenizer) dent(indents [][2]int, column [2]int) [][2]int {
	const inconsistent = "inconsistent use of tabs and spaces in indentation"
	top := indents[len(indents)-1]
	if column[0] > top[0] {
		if column[1] <= top[1] {
			t.fail(inconsistent)
		}
		if len(indents) == maxIndents {
			t.fail("too many levels of indentation")
		}
		t.emit(indent, "")
		return append(indents, column)
	}
	for column[0] < top[0] {
		t.emit(dedent, "")
		indents = indents[:len(indents)-1]
		top = indents[len(indents)-1]
	}
	if column[0] != top[0] {
		t.fail("unindent does not match any outer indentation level")
	}
	if column[1] != top[1] {
		t.fail(inconsistent)
	}
	return indents
}

// logicalLine reads tokens up to the newline that ends the statement.
func (t *tokenizer) logicalLine() {
	for {
		t.blank()
		switch {
		case t.pos == len(t.src):
			if n := len(t.brackets); n > 0 {
				t.line = t.brackets[n-1].line
				t.fail("'%c' was never closed", t.brackets[n-1].open)
			}
			t.emit(newline, "")
			return
		case t.peek(0) == '\n':
			t.emit(newline, "")
			t.pos++
			t.line++
			return
		}
		t.token()
	}
}

// blank skips spaces, comments and continued lines; within brackets newlines as well.
func (t *tokenizer) blank() {
	for {
		switch t.peek(0) {
		case ' ', '\t', '\f':
			t.pos++
		case '#':
			t.comment()
		case '\\':
			t.continuation()
		case '\n':
			if len(t.brackets) == 0 {
				return
			}
			t.pos++
			t.line++
		default:
			return
		}
	}
}

// token reads one token, or a whole f-string.
func (t *tokenizer) token() {
	c := t.peek(0)
	switch {
	case isDigit(c), c == '.' && isDigit(t.peek(1)):
		t.number()
	case c == '"' || c == '\'':
		t.string("")
	case c == '_' || c >= utf8.RuneSelf || 'a' <= c|0x20 && c|0x20 <= 'z':
		word := t.identifier()
		if q := t.peek(0); (q == '"' || q == '\'') && stringPrefix(word) {
			t.string(strings.ToLower(word))
			return
		}
		t.emit(name, word)
	default:
		t.operator()
	}
}

func stringPrefix(s string) bool {
	switch strings.ToLower(s) {
	case "r", "u", "b", "f", "br", "rb", "fr", "rf":
		return true
	}
	return false
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func identStart(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.Nl, r) || unicode.Is(unicode.Other_ID_Start, r)
}

func identPart(r rune) bool {
	return identStart(r) || unicode.In(r, unicode.Mn, unicode.Mc, unicode.Nd, unicode.Pc, unicode.Other_ID_Continue)
}

func (t *tokenizer) identifier() string {
	start := t.pos
	for t.pos < len(t.src) {
		c := t.src[t.pos]
		if c == '_' || isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'z' {
			t.pos++
			continue
		}
		if c < utf8.RuneSelf {
			break
		}
		r, size := utf8.DecodeRuneInString(t.src[t.pos:])
		if t.pos > start && identPart(r) || identStart(r) {
			t.pos += size
			continue
		}
		if !unicode.IsPrint(r) {
			t.fail("invalid non-printable character U+%04X", r)
		}
		t.fail("invalid character '%c' (U+%04X)", r, r)
	}
	return t.src[start:t.pos]
}

// digits skips one or more digits of the base, with single underscores between them.
func (t *tokenizer) digits(base int, kind string) {
	for {
		n := 0
		for {
			c := t.peek(0)
			value := 99
			switch {
			case isDigit(c):
				value = int(c - '0')
			case base == 16 && 'a' <= c|0x20 && c|0x20 <= 'f':
				value = 10
			}
			if value >= base {
				if isDigit(c) {
					t.fail("invalid digit '%c' in %s literal", c, kind)
				}
				break
			}
			t.pos++
			n++
		}
		if n == 0 {
			t.fail("invalid %s literal", kind)
		}
		if t.peek(0) != '_' {
			return
		}
		t.pos++
	}
}

func (t *tokenizer) number() {
	start := t.pos
	kind := "decimal"
	base := 10
	if t.peek(0) == '0' {
		switch t.peek(1) | 0x20 {
		case 'x':
			base, kind = 16, "hexadecimal"
		case 'o':
			base, kind = 8, "octal"
		case 'b':
			base, kind = 2, "binary"
		}
	}
	if base != 10 {
		t.pos += 2
		if t.peek(0) == '_' {
			t.pos++
		}
		t.digits(base, kind)
	} else {
		integer := true
		if t.peek(0) != '.' {
			t.digits(10, kind)
		}
		whole := t.src[start:t.pos]
		if t.peek(0) == '.' {
			integer = false
			t.pos++
			if isDigit(t.peek(0)) {
				t.digits(10, kind)
			} else if t.peek(0) == '_' {
				t.fail("invalid decimal literal")
			}
		}
		if t.peek(0)|0x20 == 'e' && (isDigit(t.peek(1)) || (t.peek(1) == '+' || t.peek(1) == '-') && isDigit(t.peek(2))) {
			integer, kind = false, "decimal"
			t.pos += 2
			if isDigit(t.peek(0)) {
				t.digits(10, kind)
			} else if t.peek(0) == '_' {
				t.pos--
				t.digits(10, kind)
			}
		}
		if t.peek(0)|0x20 == 'j' {
			integer, kind = false, "imaginary"
			t.pos++
		}
		if integer && whole[0] == '0' && strings.Trim(whole, "0_") != "" {
			t.fail("leading zeros in decimal integer literals are not permitted; use an 0o prefix for octal integers")
		}
	}
	text := t.src[start:t.pos]
	// A keyword may follow a number directly; any other name may not.
	if c := t.peek(0); c == '_' || c >= utf8.RuneSelf || 'a' <= c|0x20 && c|0x20 <= 'z' {
		rest := t.src[t.pos:]
		follows := false
		for _, word := range []string{"and", "else", "for", "if", "in", "is", "not", "or"} {
			follows = follows || strings.HasPrefix(rest, word)
		}
		if !follows {
			t.fail("invalid %s literal", kind)
		}
	}
	t.emit(number, text)
}

// operators, those of two and three characters before what they start with.
var operators = []string{
	"**=", "//=", ">>=", "<<=", "...",
	"!=", "%=", "&=", "**", "*=", "+=", "-=", "->", "//", "/=", ":=", "<<", "<=", "==", ">=", ">>", "@=", "^=", "|=",
	"%", "&", "(", ")", "*", "+", ",", "-", ".", "/", ":", ";", "<", "=", ">", "@", "[", "]", "^", "{", "|", "}", "~",
}

func (t *tokenizer) operator() {
	text := ""
	for _, o := range operators {
		if strings.HasPrefix(t.src[t.pos:], o) {
			text = o
			break
		}
	}
	switch text {
	case "":
		if c := t.peek(0); c < ' ' || c == 0x7f {
			t.fail("invalid non-printable character U+%04X", c)
		}
		t.fail("invalid syntax")
	case "(", "[", "{":
		t.open()
		return
	case ")", "]", "}":
		t.close()
		return
	}
	t.emit(op, text)
	t.pos += len(text)
}

func (t *tokenizer) open() {
	if len(t.brackets) == maxBrackets {
		t.fail("too many nested parentheses")
	}
	t.brackets = append(t.brackets, bracket{t.src[t.pos], t.line})
	t.emit(op, t.src[t.pos:t.pos+1])
	t.pos++
}

func (t *tokenizer) close() {
	c := t.src[t.pos]
	if len(t.brackets) == 0 {
		t.fail("unmatched '%c'", c)
	}
	b := t.brackets[len(t.brackets)-1]
	if strings.IndexByte("([{", b.open) != strings.IndexByte(")]}", c) {
		if b.line != t.line {
			t.fail("closing parenthesis '%c' does not match opening parenthesis '%c' on line %d", c, b.open, b.line)
		}
		t.fail("closing parenthesis '%c' does not match opening parenthesis '%c'", c, b.open)
	}
	t.brackets = t.brackets[:len(t.brackets)-1]
	t.emit(op, t.src[t.pos:t.pos+1])
	t.pos++
}

// string reads a literal from its opening quote on.
func (t *tokenizer) string(prefix string) {
	raw, binary := strings.Contains(prefix, "r"), strings.Contains(prefix, "b")
	quote := t.src[t.pos : t.pos+1]
	if strings.HasPrefix(t.src[t.pos:], strings.Repeat(quote, 3)) {
		quote = strings.Repeat(quote, 3)
	}
	first := t.line
	t.pos += len(quote)
	if strings.Contains(prefix, "f") {
		t.fstring(quote, raw, first)
		return
	}
	start := t.pos
	for !strings.HasPrefix(t.src[t.pos:], quote) {
		t.stringByte(quote, first)
	}
	body := t.src[start:t.pos]
	if binary && strings.IndexFunc(body, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		t.fail("bytes can only contain ASCII literal characters")
	}
	if !raw {
		t.escapes(body, binary)
	}
	t.pos += len(quote)
	if binary {
		t.emit(bytes_, "")
	} else {
		t.emit(str, "")
	}
}

// stringByte skips a byte of a string, or a backslash and the byte after it.
func (t *tokenizer) stringByte(quote string, first int) {
	n := 1
	if t.peek(0) == '\\' {
		n = 2
	}
	// The source ends in a newline, so that the end of a one-line string is met as one.
	for range n {
		if t.pos >= len(t.src) || t.src[t.pos] == '\n' && n == 1 && len(quote) == 1 {
			line := t.line
			t.line = first
			if len(quote) == 3 {
				t.fail("unterminated triple-quoted string literal (detected at line %d)", line)
			}
			t.fail("unterminated string literal")
		}
		if t.src[t.pos] == '\n' {
			t.line++
		}
		t.pos++
	}
}

// escapes checks the escapes of a literal's body. Unknown escapes are allowed, and names of characters are not looked
// up.
func (t *tokenizer) escapes(body string, binary bool) {
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		if i++; i == len(body) {
			return
		}
		digits := 0
		switch c := body[i]; {
		case c == 'x':
			digits = 2
		case c == 'u' && !binary:
			digits = 4
		case c == 'U' && !binary:
			digits = 8
		case c == 'N' && !binary:
			name, ok := strings.CutPrefix(body[i+1:], "{")
			if j := strings.IndexByte(name, '}'); !ok || j <= 0 {
				t.fail(`malformed \N character escape`)
			}
			continue
		default:
			continue
		}
		n, err := strconv.ParseUint(body[i+1:min(i+1+digits, len(body))], 16, 32)
		if err != nil || len(body) < i+1+digits {
			t.fail(`truncated \%c escape`, body[i])
		}
		if n > unicode.MaxRune {
			t.fail("illegal Unicode character")
		}
	}
}

// fstring reads the body of an f-string and its closing quote.
func (t *tokenizer) fstring(quote string, raw bool, first int) {
	t.emit(fstart, "")
	start := t.pos
	literal := func() {
		if !raw {
			t.escapes(t.src[start:t.pos], false)
		}
	}
	for !strings.HasPrefix(t.src[t.pos:], quote) {
		switch {
		case t.peek(0) == '{' && t.peek(1) == '{', t.peek(0) == '}' && t.peek(1) == '}':
			t.pos += 2
		case t.peek(0) == '{':
			literal()
			t.field(quote, raw, first)
			start = t.pos
		case t.peek(0) == '}':
			t.fail("f-string: single '}' is not allowed")
		case t.peek(0) == '\\' && (t.peek(1) == '{' || t.peek(1) == '}'):
			t.pos++
		case !raw && strings.HasPrefix(t.src[t.pos:], `\N{`) && strings.IndexByte(t.src[t.pos:], '}') > 0:
			t.pos += strings.IndexByte(t.src[t.pos:], '}') + 1
		default:
			t.stringByte(quote, first)
		}
	}
	literal()
	t.pos += len(quote)
	t.emit(fend, "")
}

// field reads a replacement field, from its opening brace to its closing one.
func (t *tokenizer) field(quote string, raw bool, first int) {
	depth := len(t.brackets)
	t.open()
	for {
		t.blank()
		c := t.peek(0)
		switch {
		case t.pos >= len(t.src):
			t.line = first
			t.fail("f-string: expecting '}'")
		case len(t.brackets) > depth+1:
			t.token()
		case c == '}':
			t.close()
			return
		case c == '!' && t.peek(1) != '=':
			t.emit(op, "!")
			t.pos++
			if c := t.peek(0); c == ' ' || c == '\t' || c == '\n' {
				t.fail("f-string: conversion type must come right after the exclamation mark")
			}
		case c == ':':
			t.emit(fcolon, "")
			t.pos++
			t.specification(quote, raw, first)
			t.close()
			return
		default:
			t.token()
		}
	}
}

// specification reads a format specification up to its closing brace.
func (t *tokenizer) specification(quote string, raw bool, first int) {
	start := t.pos
	for t.peek(0) != '}' {
		switch {
		case strings.HasPrefix(t.src[t.pos:], quote):
			t.fail("f-string: expecting '}'")
		case t.peek(0) == '{':
			t.field(quote, raw, first)
			start = t.pos
		default:
			t.stringByte(quote, first)
		}
	}
	if !raw {
		t.escapes(t.src[start:t.pos], false)
	}
}
