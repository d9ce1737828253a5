package trace

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"
)

// An UnknownAxisError is the name of an axis in an expression that has no size.
type UnknownAxisError string

func (e UnknownAxisError) Error() string { return fmt.Sprintf("unknown axis %q", string(e)) }

const (
	maxExpr = 1000 // bytes
	maxBits = 128  // of a number on the way to a size
)

var exprTokens = regexp.MustCompile(`^(?:[\pL_][\pL\p{Nd}_]*|[0-9]+(?:\.[0-9]*)?|\*\*|//|[-+*/%()])`)

// Size evaluates the expression of an axis with the sizes of others: numbers, names, + - * / // % **, signs and
// parentheses, as in Python, but exact. Its result is a size: an integer from 0 to 2^31-1.
func Size(expr string, sizes map[string]int) (int, error) {
	if len(expr) > maxExpr {
		return 0, fmt.Errorf("expression of more than %d bytes", maxExpr)
	}
	e := evaluation{sizes: sizes}
	for rest := strings.TrimSpace(expr); rest != ""; rest = strings.TrimSpace(rest) {
		token := exprTokens.FindString(rest)
		if token == "" {
			return 0, fmt.Errorf("expression %q: not understood at %q", expr, rest)
		}
		e.tokens, rest = append(e.tokens, token), rest[len(token):]
	}
	n := e.sum()
	switch {
	case e.err != nil:
	case len(e.tokens) > 0:
		e.err = fmt.Errorf("not understood at %q", e.tokens[0])
	case !n.IsInt() || n.Sign() < 0 || n.Num().BitLen() > 31:
		e.err = fmt.Errorf("%s is not a size", n.RatString())
	}
	if e.err != nil {
		return 0, fmt.Errorf("expression %q: %w", expr, e.err)
	}
	return int(n.Num().Int64()), nil
}

// An evaluation reads tokens from the left. After the first fault its values say nothing.
type evaluation struct {
	tokens []string
	sizes  map[string]int
	err    error
}

func (e *evaluation) fail(err error) *big.Rat {
	if e.err == nil {
		e.err = err
	}
	e.tokens = nil
	return new(big.Rat)
}

// next takes the next token if it is one of those.
func (e *evaluation) next(tokens ...string) string {
	for _, t := range tokens {
		if len(e.tokens) > 0 && e.tokens[0] == t {
			e.tokens = e.tokens[1:]
			return t
		}
	}
	return ""
}

func (e *evaluation) sum() *big.Rat {
	n := e.product()
	for op := e.next("+", "-"); op != ""; op = e.next("+", "-") {
		m := e.product()
		if op == "-" {
			m.Neg(m)
		}
		n = e.bounded(n.Add(n, m))
	}
	return n
}

func (e *evaluation) product() *big.Rat {
	n := e.signed()
	for op := e.next("*", "//", "/", "%"); op != ""; op = e.next("*", "//", "/", "%") {
		m := e.signed()
		if op == "*" {
			n = e.bounded(n.Mul(n, m))
			continue
		}
		if m.Sign() == 0 {
			return e.fail(fmt.Errorf("division by zero"))
		}
		quotient := new(big.Rat).Quo(n, m)
		floor := new(big.Rat).SetInt(new(big.Int).Div(quotient.Num(), quotient.Denom()))
		switch op {
		case "/":
			n = quotient
		case "//":
			n = floor
		case "%":
			n.Sub(n, floor.Mul(floor, m))
		}
		n = e.bounded(n)
	}
	return n
}

func (e *evaluation) signed() *big.Rat {
	switch e.next("-", "+") {
	case "-":
		n := e.signed()
		return n.Neg(n)
	case "+":
		return e.signed()
	}
	n := e.operand()
	if e.next("**") == "" {
		return n
	}
	power := e.signed()
	if !power.IsInt() || power.Num().BitLen() > 6 || power.Sign() < 0 && n.Sign() == 0 {
		return e.fail(fmt.Errorf("exponent %s", power.RatString()))
	}
	exponent := power.Num().Int64()
	if exponent < 0 {
		n.Inv(n)
	}
	result := big.NewRat(1, 1)
	for range max(exponent, -exponent) {
		result = e.bounded(result.Mul(result, n))
	}
	return result
}

func (e *evaluation) operand() *big.Rat {
	if len(e.tokens) == 0 {
		return e.fail(fmt.Errorf("ends too early"))
	}
	token := e.tokens[0]
	e.tokens = e.tokens[1:]
	if token == "(" {
		n := e.sum()
		if e.next(")") == "" {
			return e.fail(fmt.Errorf("a parenthesis is open"))
		}
		return n
	}
	if n, ok := new(big.Rat).SetString(token); ok && len(token) < 40 {
		return n
	}
	if strings.ContainsAny(token[:1], "0123456789*/%)") {
		return e.fail(fmt.Errorf("not understood at %q", token))
	}
	size, ok := e.sizes[token]
	if !ok {
		return e.fail(UnknownAxisError(token))
	}
	return new(big.Rat).SetInt64(int64(size))
}

func (e *evaluation) bounded(n *big.Rat) *big.Rat {
	if n.Num().BitLen() > maxBits || n.Denom().BitLen() > maxBits {
		return e.fail(fmt.Errorf("a number of more than %d bits", maxBits))
	}
	return n
}
