package preflight

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"fisub/internal/trace"
)

// Workloads says where workloads do not fit their definition: axes that are missing or zero, constraints that do not hold.
// A constraint that is more than arithmetic on axes is left out.
func Workloads(def *trace.Definition, ws []*trace.Workload) []Finding {
	var found []Finding
	add := func(s Finding, format string, args ...any) {
		s.Msg = fmt.Sprintf(format, args...)
		found = append(found, s)
	}
	count := map[string]int{}
	first := map[string]string{}
	var order []string
	note := func(text, uuid string) {
		if count[text]++; count[text] == 1 {
			first[text] = uuid
			order = append(order, text)
		}
	}
	for _, w := range ws {
		axes := map[string]float64{}
		for name, axis := range def.Axes.All() {
			n, ok := w.Axes.Get(name)
			switch {
			case axis.Const:
				axes[name] = float64(axis.Value)
				if ok && n != axis.Value {
					note(fmt.Sprintf("axis %s is const, %d, and the workload says %d", name, axis.Value, n), w.UUID)
				}
			case !ok:
				note(fmt.Sprintf("no value for axis %s", name), w.UUID)
			default:
				axes[name] = float64(n)
			}
		}
		for name := range w.Inputs.All() {
			if _, ok := def.Inputs.Get(name); !ok {
				note(fmt.Sprintf("the definition has no input %s", name), w.UUID)
			}
		}
		for _, text := range def.Constraints {
			holds, err := evaluate(text, axes)
			if err == nil && !holds {
				note(fmt.Sprintf("constraint %q does not hold", text), w.UUID)
			}
		}
	}
	for _, text := range order {
		where := "workload " + first[text]
		if n := count[text]; n > 1 {
			where = fmt.Sprintf("%d workloads, the first is %s", n, first[text])
		}
		code := "bad-workload"
		if strings.HasPrefix(text, "constraint") {
			code = "constraint"
		}
		add(Finding{Code: code, Severity: Warning, Path: def.Name, Hint: "fisub dataset verify looks at the whole dataset"}, "%s (%s)", text, where)
	}
	return found
}

// errUnknown is the error of an expression that is more than arithmetic on known axes.
var errUnknown = errors.New("not arithmetic on axes")

// evaluate is the truth of a Python expression over numbers.
func evaluate(text string, axes map[string]float64) (holds bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			if e, ok := r.(error); ok && errors.Is(e, errUnknown) {
				err = errUnknown
				return
			}
			panic(r)
		}
	}()
	e := &expression{axes: axes}
	if e.tokens = lexExpression(text); len(e.tokens) > 1000 {
		return false, errUnknown
	}
	v := e.or()
	if e.peek() != "" {
		panic(errUnknown)
	}
	return v != 0, nil
}

// lexExpression splits an expression; a character that has no place in one becomes a token that nothing takes.
func lexExpression(s string) []string {
	var out []string
	for i := 0; i < len(s); {
		c := s[i]
		start := i
		alnum := func(c byte) bool {
			return c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		}
		switch {
		case c == ' ' || c == '\t' || c == '\n':
			i++
			continue
		case alnum(c):
			for i < len(s) && alnum(s[i]) {
				i++
			}
		default:
			i++
			if i < len(s) {
				switch s[start : i+1] {
				case "==", "!=", "<=", ">=", "//", "**":
					i++
				}
			}
		}
		out = append(out, s[start:i])
	}
	return out
}

// An expression is evaluated while it is parsed: and, or and chains have no side effects to leave out.
type expression struct {
	tokens []string
	pos    int
	depth  int
	axes   map[string]float64
}

func (e *expression) peek() string {
	if e.pos < len(e.tokens) {
		return e.tokens[e.pos]
	}
	return ""
}

func (e *expression) accept(t string) bool {
	if e.peek() == t && t != "" {
		e.pos++
		return true
	}
	return false
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (e *expression) or() float64 {
	if e.depth++; e.depth > 100 {
		panic(errUnknown)
	}
	defer func() { e.depth-- }()
	v := e.and()
	for e.accept("or") {
		if w := e.and(); v == 0 {
			v = w
		}
	}
	return v
}

func (e *expression) and() float64 {
	v := e.not()
	for e.accept("and") {
		if w := e.not(); v != 0 {
			v = w
		}
	}
	return v
}

func (e *expression) not() float64 {
	negate := false
	for e.accept("not") {
		negate = !negate
		if e.peek() != "not" {
			return truth((e.comparison() != 0) != negate)
		}
	}
	return e.comparison()
}

func (e *expression) comparison() float64 {
	left := e.sum()
	holds, compared := true, false
	for {
		op := e.peek()
		switch op {
		case "==", "!=", "<", "<=", ">", ">=":
		default:
			if compared {
				return truth(holds)
			}
			return left
		}
		e.pos++
		right := e.sum()
		compared = true
		switch op {
		case "==":
			holds = holds && left == right
		case "!=":
			holds = holds && left != right
		case "<":
			holds = holds && left < right
		case "<=":
			holds = holds && left <= right
		case ">":
			holds = holds && left > right
		case ">=":
			holds = holds && left >= right
		}
		left = right
	}
}

func (e *expression) sum() float64 {
	v := e.product()
	for {
		switch {
		case e.accept("+"):
			v += e.product()
		case e.accept("-"):
			v -= e.product()
		default:
			return v
		}
	}
}

func (e *expression) product() float64 {
	v := e.factor()
	for {
		op := e.peek()
		switch op {
		case "*", "/", "//", "%":
			e.pos++
		default:
			return v
		}
		w := e.factor()
		if op != "*" && w == 0 {
			panic(errUnknown)
		}
		switch op {
		case "*":
			v *= w
		case "/":
			v /= w
		case "//":
			v = math.Floor(v / w)
		case "%":
			v -= w * math.Floor(v/w)
		}
		if math.Abs(v) > 1<<53 {
			panic(errUnknown)
		}
	}
}

func (e *expression) factor() float64 {
	switch {
	case e.accept("-"):
		return -e.factor()
	case e.accept("+"):
		return e.factor()
	}
	v := e.atom()
	if e.accept("**") {
		if v = math.Pow(v, e.factor()); math.Abs(v) > 1<<53 || math.IsNaN(v) {
			panic(errUnknown)
		}
	}
	return v
}

func (e *expression) atom() float64 {
	t := e.peek()
	e.pos++
	switch t {
	case "(":
		v := e.or()
		e.expect(")")
		return v
	case "True":
		return 1
	case "False":
		return 0
	case "min", "max", "abs", "int":
		e.expect("(")
		v := e.or()
		for e.accept(",") {
			if w := e.or(); t == "min" {
				v = min(v, w)
			} else {
				v = max(v, w)
			}
		}
		e.expect(")")
		switch t {
		case "abs":
			v = math.Abs(v)
		case "int":
			v = math.Trunc(v)
		}
		return v
	}
	if v, ok := e.axes[t]; ok {
		return v
	}
	v, err := strconv.ParseFloat(t, 64)
	if err != nil || t[0] < '0' || t[0] > '9' {
		panic(errUnknown)
	}
	return v
}

func (e *expression) expect(t string) {
	if !e.accept(t) {
		panic(errUnknown)
	}
}
