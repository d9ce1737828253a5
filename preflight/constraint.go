package preflight

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"math"
	"strconv"
	"strings"

	"fisub/internal/trace"
)

// Workloads says where workloads do not fit their definition: axes that are missing or zero, constraints that do not
// hold. A constraint that is more than arithmetic on axes is left out.
func Workloads(def *trace.Definition, ws []*trace.Workload) []Finding {
	var found []Finding
	uuids := map[string][]string{}
	var order []string
	note := func(text, uuid string) {
		if uuids[text] == nil {
			order = append(order, text)
		}
		uuids[text] = append(uuids[text], uuid)
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
			if holds, known := evaluate(text, axes); known && !holds {
				note(fmt.Sprintf("constraint %q does not hold", text), w.UUID)
			}
		}
	}
	for _, text := range order {
		where := "workload " + uuids[text][0]
		if n := len(uuids[text]); n > 1 {
			where = fmt.Sprintf("%d workloads, the first is %s", n, uuids[text][0])
		}
		code := "bad-workload"
		if strings.HasPrefix(text, "constraint") {
			code = "constraint"
		}
		found = append(found, Finding{Code: code, Severity: Warning, Path: def.Name, Msg: text + " (" + where + ")",
			Hint: "fisub dataset verify looks at the whole dataset"})
	}
	return found
}

// pythons are the operators of Python that Go writes otherwise; &^, which Python lacks, stands for its //.
var pythons = strings.NewReplacer(" and ", " && ", " or ", " || ", "not ", "!", "//", "&^")

// evaluate is the truth of a constraint over axes. ok is false for one that is more than comparisons of sums and
// products, which Python and Go write alike.
func evaluate(text string, axes map[string]float64) (holds, ok bool) {
	e, err := parser.ParseExpr(pythons.Replace(text))
	if err != nil || len(text) > 1000 {
		return false, false
	}
	holds, ok = value(e, axes).(bool)
	return holds, ok
}

// value is that of an expression: a float64, a bool, or nil where it is not known.
func value(e ast.Expr, axes map[string]float64) any {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return value(e.X, axes)
	case *ast.Ident:
		if v, ok := axes[e.Name]; ok {
			return v
		}
	case *ast.BasicLit:
		if v, err := strconv.ParseFloat(e.Value, 64); err == nil {
			return v
		}
	case *ast.UnaryExpr:
		switch x := value(e.X, axes).(type) {
		case float64:
			return binary(0, e.Op, x)
		case bool:
			return !x
		}
	case *ast.BinaryExpr:
		x, y := value(e.X, axes), value(e.Y, axes)
		if left, ok := e.X.(*ast.BinaryExpr); ok && compares(left.Op) && compares(e.Op) { // a < b < c
			e, y = &ast.BinaryExpr{Op: token.LAND}, value(&ast.BinaryExpr{X: left.Y, Op: e.Op, Y: e.Y}, axes)
		}
		switch x := x.(type) {
		case float64:
			if y, ok := y.(float64); ok {
				return binary(x, e.Op, y)
			}
		case bool:
			if y, ok := y.(bool); ok && e.Op == token.LAND {
				return x && y
			} else if ok && e.Op == token.LOR {
				return x || y
			}
		}
	}
	return nil
}

func compares(op token.Token) bool { return op.Precedence() == token.EQL.Precedence() }

// binary is x op y by Python's rules.
func binary(x float64, op token.Token, y float64) any {
	var v float64
	switch op {
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		return constant.Compare(constant.MakeFloat64(x), op, constant.MakeFloat64(y))
	case token.ADD:
		v = x + y
	case token.SUB:
		v = x - y
	case token.MUL:
		v = x * y
	case token.QUO:
		v = x / y
	case token.AND_NOT:
		v = math.Floor(x / y)
	case token.REM:
		v = x - y*math.Floor(x/y)
	default:
		return nil
	}
	if math.IsNaN(v) || math.Abs(v) > 1<<53 {
		return nil
	}
	return v
}
