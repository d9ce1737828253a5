"""Answers questions about the Python of a definition, for import.go. It runs none of it.

stdin and stdout are one JSON object each.
"""

import ast
import json
import operator
import sys
from fractions import Fraction

BITS = 128  # of a number on the way to a size

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class Unknown(Exception):
    """The name of an axis without a size."""


def runner(source, inputs):
    """Returns a function run that calls the last function of source with the inputs by name."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        return {"fault": f"its reference is not valid Python: {e}"}
    functions = [n for n in body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if not functions or any(f.name == "run" for f in functions):
        return {}
    last = functions[-1]
    if last.args.posonlyargs:
        return {"fault": f"its reference needs {last.args.posonlyargs[0].arg} by position"}
    params = last.args.args
    optional = params[len(params) - len(last.args.defaults) :]
    optional += [p for p, default in zip(last.args.kwonlyargs, last.args.kw_defaults) if default]
    params = params + last.args.kwonlyargs
    missing = sorted({p.arg for p in params} - {p.arg for p in optional} - set(inputs))
    if missing:
        return {"fault": f"its reference needs {missing[0]}, which is no input"}
    names = [n for n in inputs if n in {p.arg for p in params} or last.args.kwarg and n.isidentifier()]
    call = ", ".join(f"{n}={n}" for n in names)
    return {"calls": last.name, "run": f"def run({', '.join(inputs)}):\n    return {last.name}({call})\n"}


def value(node, sizes):
    """Evaluates arithmetic exactly; anything else is an error."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        number = Fraction(node.value)
    elif isinstance(node, ast.Name):
        if node.id not in sizes:
            raise Unknown(node.id)
        return Fraction(sizes[node.id])
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.operand, sizes))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = value(node.left, sizes), value(node.right, sizes)
        if isinstance(node.op, ast.Pow) and (right.denominator > 1 or abs(right) > 63):
            raise ValueError(f"exponent {right}")
        number = Fraction(OPERATORS[type(node.op)](left, right))
    else:
        raise ValueError("it is not arithmetic on axes")
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > BITS:
        raise ValueError(f"a number of more than {BITS} bits")
    return number


def resolve(axes, sizes):
    """Evaluates the expressions of axes in order; each may use the sizes before it."""
    found = []
    for name, expr in axes:
        try:
            if len(expr) > 1000:
                raise ValueError("more than 1000 bytes")
            n = value(ast.parse(expr.strip(), mode="eval").body, sizes)
            if n.denominator > 1 or not 0 <= n < 1 << 31:
                raise ValueError(f"{n} is not a size")
            sizes[name] = int(n)
            found.append({"n": int(n)})
        except Unknown as e:
            found.append({"unknown": str(e)})
        except ZeroDivisionError:
            found.append({"fault": f"expression {expr!r}: division by zero"})
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as e:
            found.append({"fault": f"expression {expr!r}: {e}"})
    return found


question = json.load(sys.stdin)
answer = runner(question["reference"], question["inputs"]) if question["reference"] else {}
answer["sizes"] = [resolve(question["axes"], sizes) for sizes in question["sizes"]]
json.dump(answer, sys.stdout)
