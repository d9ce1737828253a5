// Package pysyntax checks Python source without Python: the references of definitions, and the expressions of their
// constraints. It follows CPython 3.12.
//
// Expression is a full parser of one expression. Module is not a parser of statements: it checks that the source
// consists of valid tokens, that brackets, quotes and indentation match, and that lines begin, end and join their
// operands as statements can; it does not check which statement may follow which, assignment targets, the clauses of a
// statement, or anything that Python's compiler finds later, such as a return outside of a function. What it rejects,
// Python rejects; the reverse is not promised. Names of characters in \N{...} are not looked up.
package pysyntax

import "strings"

// Module checks a source file. Its error ends in the line of the fault: "'(' was never closed (line 3)".
func Module(src string) (err error) {
	defer catch(&err)
	tokens := tokenize(src)
	for line, rest := nextLine(tokens); len(line) > 0; line, rest = nextLine(rest) {
		checkLine(line, rest)
	}
	return nil
}

// Defines tells whether the source, which Module accepts, has a function of that name at top level: a def that is not
// async, not nested in another statement, and not one of several statements on a line.
func Defines(src, function string) (found bool) {
	var err error
	defer catch(&err)
	depth := 0
	start := true // of a logical line
	tokens := tokenize(src)
	for i, t := range tokens {
		switch {
		case t.kind == indent:
			depth++
		case t.kind == dedent:
			depth--
		case start && depth == 0 && t.is("def") && tokens[i+1].is(function):
			return true
		}
		start = t.kind == newline || t.kind == indent || t.kind == dedent
	}
	return false
}

// nextLine splits off a logical line with its newline; indents and dedents are lines of their own.
func nextLine(tokens []token) (line, rest []token) {
	for i, t := range tokens {
		switch t.kind {
		case end:
			return nil, nil
		case newline, indent, dedent:
			return tokens[:i+1], tokens[i+1:]
		}
	}
	return nil, nil
}

func fail(t token, text string) { panic(syntaxError{text, t.line}) }

// checkLine checks a logical line; rest are the tokens after it.
func checkLine(line, rest []token) {
	first := line[0]
	switch first.kind {
	case indent: // an expected one was skipped with the line before
		fail(first, "unexpected indent")
	case dedent:
		return
	case op:
		if strings.Contains(")]},.=:;%^&|/<>!", first.text[:1]) && first.text != "..." || strings.HasSuffix(first.text, "=") {
			fail(first, "invalid syntax")
		}
	}
	line = line[:len(line)-1]
	last := line[len(line)-1]
	depth, colon := 0, false
	for i, t := range line {
		switch {
		case t.kind == op && strings.Contains("([{", t.text):
			depth++
		case t.kind == op && strings.Contains(")]}", t.text):
			depth--
		case depth == 0 && t.is(":"):
			colon = true
		}
		if i > 0 {
			checkPair(line, i)
		}
	}
	header := first
	if first.is("async") && len(line) > 1 {
		header = line[1]
	}
	switch header.text {
	case "def", "class", "if", "elif", "else", "while", "for", "try", "except", "finally", "with":
		if header.kind == name && !colon {
			fail(last, "expected ':'")
		}
	}
	if first.is("def") {
		if len(line) < 3 || line[1].kind != name || line[1].keyword() || !line[2].is("(") && !line[2].is("[") {
			fail(first, "invalid syntax")
		}
	}
	if last.is(":") {
		if rest[0].kind != indent {
			fail(rest[0], "expected an indented block")
		}
		rest[0].kind = dedent // counts no further
		return
	}
	if last.kind == op && !strings.Contains(")]},;*", last.text) && last.text != "..." {
		fail(last, "invalid syntax")
	}
	for _, w := range []string{"and", "or", "not", "in", "is", "lambda", "if", "def", "class", "del", "import", "from",
		"while", "for", "with", "as", "assert", "global", "nonlocal", "await", "async"} {
		if last.is(w) {
			fail(last, "invalid syntax")
		}
	}
}

// checkPair rejects two operands without an operator between them.
func checkPair(line []token, i int) {
	a, b := line[i-1], line[i]
	ends := a.kind == number || a.kind == name && (!a.keyword() || a.constant()) || a.kind == op &&
		strings.Contains(")]}", a.text) ||
		a.kind == str || a.kind == bytes_ || a.kind == fend
	starts := b.kind == number || b.kind == name && (!b.keyword() || b.constant()) || b.kind == str || b.kind == bytes_ ||
		b.kind == fstart
	if !ends || !starts {
		return
	}
	literal := func(t token) bool { return t.kind == str || t.kind == bytes_ || t.kind == fstart || t.kind == fend }
	if literal(a) && literal(b) {
		return
	}
	// match, case and type are names except where they start a statement.
	if i == 1 && (a.is("match") || a.is("case") || a.is("type")) || i >= 2 && (line[i-2].is(";") || line[i-2].is(":")) &&
		a.is("type") {
		return
	}
	fail(b, "invalid syntax")
}
