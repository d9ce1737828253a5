package pysyntax

import "strings"

// maxNesting bounds the parser's recursion where brackets do not.
const maxNesting = 1000

// Expression checks that src is one expression, as Python's eval mode reads it. Its error ends in the line of the
// fault.
func Expression(src string) (err error) {
	defer catch(&err)
	p := &parser{tokens: tokenize(src)}
	if p.peek().kind == indent {
		p.fail("unexpected indent")
	}
	p.expressionList(false)
	if p.peek().kind == newline {
		p.next()
	}
	if p.peek().kind != end {
		p.fail("invalid syntax")
	}
	return nil
}

// A shape is what an expression is, as far as grammar cares: whether it can be a target.
type shape uint8

const (
	other  shape = iota
	target       // a name, attribute, subscript, or a tuple or list of targets, starred or not
)

// A parser walks over the tokens by recursive descent. It throws a syntaxError.
type parser struct {
	tokens []token
	pos    int
	depth  int
}

func (p *parser) peek() token { return p.tokens[p.pos] }

// after returns the token after the next one.
func (p *parser) after() token { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	p.pos = min(p.pos+1, len(p.tokens)-1)
	return t
}

func (p *parser) fail(text string) { fail(p.peek(), text) }

// accept takes the next token if it is text.
func (p *parser) accept(text string) bool {
	if !p.peek().is(text) {
		return false
	}
	p.next()
	return true
}

func (p *parser) expect(text string) {
	if !p.accept(text) {
		p.fail("invalid syntax")
	}
}

// nest counts a level of recursion; the result ends it.
func (p *parser) nest() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("too deeply nested")
	}
	return func() { p.depth-- }
}

// startsExpression tells whether an expression can start at the next token.
func (p *parser) startsExpression() bool {
	t := p.peek()
	switch t.kind {
	case number, str, bytes_, fstart:
		return true
	case name:
		return !t.keyword() || t.constant() || t.is("not") || t.is("lambda") || t.is("await")
	case op:
		return strings.Contains("([{+-~", t.text) || t.text == "..."
	}
	return false
}

// expressionList reads expressions with commas between and maybe after them; stars says whether they may be starred.
func (p *parser) expressionList(stars bool) {
	for {
		if stars && p.accept("*") {
			p.binary(0)
		} else {
			p.expression()
		}
		if !p.accept(",") || !p.startsExpression() && !(stars && p.peek().is("*")) {
			return
		}
	}
}

// expression reads a conditional expression or a lambda.
func (p *parser) expression() shape {
	defer p.nest()()
	if p.accept("lambda") {
		p.parameters()
		p.expect(":")
		p.expression()
		return other
	}
	s := p.disjunction()
	if !p.accept("if") {
		return s
	}
	p.disjunction()
	if !p.accept("else") {
		p.fail("expected 'else' after 'if' expression")
	}
	p.expression()
	return other
}

// named reads an expression that may be an assignment expression; assigned says that it was.
func (p *parser) named() (s shape, assigned bool) {
	if t := p.peek(); t.kind == name && !t.keyword() && p.after().is(":=") {
		p.next()
		p.next()
		p.expression()
		return other, true
	}
	return p.expression(), false
}

func (p *parser) disjunction() shape {
	s := p.conjunction()
	for p.accept("or") {
		p.conjunction()
		s = other
	}
	return s
}

func (p *parser) conjunction() shape {
	s := p.inversion()
	for p.accept("and") {
		p.inversion()
		s = other
	}
	return s
}

func (p *parser) inversion() shape {
	nots := 0
	for p.accept("not") {
		nots++
	}
	s := p.comparison()
	if nots > 0 {
		return other
	}
	return s
}

func (p *parser) comparison() shape {
	s := p.binary(0)
	for {
		switch t := p.peek(); {
		case t.is("=="), t.is("!="), t.is("<"), t.is("<="), t.is(">"), t.is(">="), t.is("in"):
			p.next()
		case t.is("is"):
			p.next()
			p.accept("not")
		case t.is("not"):
			p.next()
			p.expect("in")
		default:
			return s
		}
		p.binary(0)
		s = other
	}
}

// precedence lists the binary operators above comparisons, weakest first.
var precedence = [][]string{{"|"}, {"^"}, {"&"}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "//", "%", "@"}}

func (p *parser) binary(level int) shape {
	if level == len(precedence) {
		return p.factor()
	}
	s := p.binary(level + 1)
	for {
		found := false
		for _, o := range precedence[level] {
			found = found || p.peek().kind == op && p.accept(o)
		}
		if !found {
			return s
		}
		p.binary(level + 1)
		s = other
	}
}

func (p *parser) factor() shape {
	defer p.nest()()
	if p.accept("+") || p.accept("-") || p.accept("~") {
		p.factor()
		return other
	}
	awaited := p.accept("await")
	s := p.primary()
	if p.accept("**") {
		p.factor()
		return other
	}
	if awaited {
		return other
	}
	return s
}

// primary reads an atom and the attributes, calls and subscripts after it.
func (p *parser) primary() shape {
	s := p.atom()
	for {
		switch {
		case p.accept("."):
			if t := p.peek(); t.kind != name || t.keyword() {
				p.fail("invalid syntax")
			}
			p.next()
			s = target
		case p.accept("("):
			p.arguments()
			s = other
		case p.accept("["):
			p.subscript()
			s = target
		default:
			return s
		}
	}
}

func (p *parser) atom() shape {
	t := p.peek()
	switch {
	case t.kind == number, t.constant(), t.is("..."):
		p.next()
		return other
	case t.kind == name && !t.keyword():
		p.next()
		return target
	case t.kind == str, t.kind == bytes_, t.kind == fstart:
		p.literals()
		return other
	case t.is("("):
		p.next()
		return p.parenthesised()
	case t.is("["):
		p.next()
		return p.elements("]")
	case t.is("{"):
		p.next()
		p.dictOrSet()
		return other
	}
	p.fail("invalid syntax")
	return other
}

// literals reads adjacent string literals.
func (p *parser) literals() {
	binary := p.peek().kind == bytes_
	for {
		switch t := p.peek(); t.kind {
		case str, bytes_:
			p.next()
		case fstart:
			p.next()
			for p.peek().kind != fend {
				p.field()
			}
			p.next()
		default:
			return
		}
		if k := p.peek().kind; (k == bytes_) != binary && (k == str || k == bytes_ || k == fstart) {
			p.fail("cannot mix bytes and nonbytes literals")
		}
	}
}

// field reads a replacement field of an f-string.
func (p *parser) field() {
	p.expect("{")
	switch t := p.peek(); {
	case t.is("}"), t.is("!"), t.is("="), t.kind == fcolon:
		p.fail("f-string: valid expression required")
	case t.is("yield"):
		p.yield()
	default:
		p.expressionList(true)
	}
	p.accept("=")
	if p.accept("!") {
		if t := p.peek(); t.kind != name || t.text != "s" && t.text != "r" && t.text != "a" {
			p.fail("f-string: invalid conversion character")
		}
		p.next()
	}
	if p.peek().kind == fcolon {
		p.next()
		for p.peek().is("{") {
			p.field()
		}
	}
	if !p.accept("}") {
		p.fail("f-string: expecting '}'")
	}
}

func (p *parser) yield() {
	p.expect("yield")
	if p.accept("from") {
		p.expression()
	} else if p.startsExpression() || p.peek().is("*") {
		p.expressionList(true)
	}
}

// parenthesised reads what follows an opening parenthesis: a tuple, a group, a yield or a generator.
func (p *parser) parenthesised() shape {
	if p.peek().is("yield") {
		p.yield()
		p.expect(")")
		return other
	}
	return p.elements(")")
}

// elements reads the elements of a list, or of a tuple or group, or a comprehension, and the closing bracket.
func (p *parser) elements(closing string) shape {
	group := closing == ")"
	all := target
	for n := 0; ; n++ {
		if p.accept(closing) {
			return all
		}
		var s shape
		star := p.accept("*")
		if star {
			s = p.binary(0)
		} else {
			s, _ = p.named()
		}
		if p.startsComprehension() {
			if star {
				p.fail("iterable unpacking cannot be used in comprehension")
			}
			if n > 0 {
				p.fail("did you forget parentheses around the comprehension target?")
			}
			p.comprehension()
			p.expect(closing)
			return other
		}
		if s == other {
			all = other
		}
		if p.accept(",") {
			continue
		}
		p.expect(closing)
		if group && n == 0 {
			if star {
				p.fail("cannot use starred expression here")
			}
			return s
		}
		return all
	}
}

func (p *parser) dictOrSet() {
	isDict, isSet := false, false
	for n := 0; !p.accept("}"); n++ {
		unpacked := true
		switch {
		case !isSet && p.accept("**"):
			isDict = true
			p.binary(0)
		case !isDict && p.accept("*"):
			isSet = true
			p.binary(0)
		default:
			unpacked = false
			_, assigned := p.named()
			if !assigned && !isSet && p.accept(":") {
				isDict = true
				p.expression()
			} else if isDict {
				p.fail("':' expected after dictionary key")
			} else {
				isSet = true
			}
		}
		if p.startsComprehension() {
			if unpacked || n > 0 {
				p.fail("invalid syntax")
			}
			p.comprehension()
			p.expect("}")
			return
		}
		if !p.accept(",") {
			p.expect("}")
			return
		}
	}
}

func (p *parser) startsComprehension() bool {
	return p.peek().is("for") || p.peek().is("async") && p.after().is("for")
}

// comprehension reads the for and if clauses.
func (p *parser) comprehension() {
	for p.startsComprehension() {
		p.accept("async")
		p.expect("for")
		for {
			p.accept("*")
			if t := p.peek(); p.binary(0) != target {
				fail(t, "cannot assign to expression")
			}
			if !p.accept(",") || p.peek().is("in") {
				break
			}
		}
		p.expect("in")
		p.disjunction()
		for p.accept("if") {
			p.disjunction()
		}
	}
}

// arguments reads a call's arguments and the closing parenthesis.
func (p *parser) arguments() {
	keyword, unpacking := false, false
	for n := 0; !p.accept(")"); n++ {
		t := p.peek()
		switch {
		case p.accept("*"):
			if unpacking {
				p.fail("iterable argument unpacking follows keyword argument unpacking")
			}
			p.expression()
		case p.accept("**"):
			unpacking = true
			p.expression()
		case t.kind == name && p.after().is("="):
			if t.keyword() {
				p.fail("cannot assign to " + t.text)
			}
			keyword = true
			p.next()
			p.next()
			p.expression()
		default:
			p.named()
			if p.startsComprehension() {
				p.comprehension()
				if n > 0 || !p.peek().is(")") {
					p.fail("Generator expression must be parenthesized")
				}
				break
			}
			if unpacking {
				fail(t, "positional argument follows keyword argument unpacking")
			}
			if keyword {
				fail(t, "positional argument follows keyword argument")
			}
		}
		if !p.accept(",") {
			p.expect(")")
			return
		}
	}
}

// subscript reads indices and slices and the closing bracket.
func (p *parser) subscript() {
	for {
		if p.accept("*") {
			p.expression()
		} else {
			p.slice()
		}
		if p.accept(",") {
			if p.accept("]") {
				return
			}
			continue
		}
		p.expect("]")
		return
	}
}

func (p *parser) slice() {
	if !p.peek().is(":") {
		if _, assigned := p.named(); assigned || !p.peek().is(":") {
			return
		}
	}
	for range 2 {
		if !p.accept(":") {
			return
		}
		if p.startsExpression() {
			p.expression()
		}
	}
}

// parameters reads a lambda's parameters, up to the colon.
func (p *parser) parameters() {
	var slash, star, bare, keywords, defaults bool
	for n := 0; !p.peek().is(":"); n++ {
		switch {
		case keywords:
			p.fail("arguments cannot follow var-keyword argument")
		case p.peek().is("/"):
			if slash || star || n == 0 {
				p.fail("invalid syntax")
			}
			p.next()
			slash = true
		case p.accept("**"):
			if bare {
				p.fail("named arguments must follow bare *")
			}
			keywords = true
			p.parameter()
		case p.accept("*"):
			if star {
				p.fail("* argument may appear only once")
			}
			star = true
			if bare = p.peek().is(","); !bare {
				p.parameter()
			}
		default:
			p.parameter()
			if p.accept("=") {
				p.expression()
				defaults = defaults || !star
			} else if defaults && !star {
				p.fail("parameter without a default follows parameter with a default")
			}
			bare = false
		}
		if !p.accept(",") {
			break
		}
	}
	if bare {
		p.fail("named arguments must follow bare *")
	}
}

func (p *parser) parameter() {
	if t := p.peek(); t.kind != name || t.keyword() {
		p.fail("invalid syntax")
	}
	p.next()
}
