"""Facts about Python sources, by CPython's parser and compiler. No source is imported or run.

stdin is {"sources": [{"path", "content"}], "entry": path, "symbol": name} or, for a definition,
{"reference": text, "constraints": [text]}. stdout is the type facts of python.go. Lines and columns count from 1,
columns in characters.
"""
import ast
import json
import os
import posixpath
import re
import sys
import tokenize
import warnings

MAX_FACTS = 20000  # of one file

# Syntax that only a later Python than this one accepts; the first match counts.
NEWER = [
    ((3, 12), r"""\b[rR]?[fF][rR]?['"]|\b(def|class)\s+\w+\s*\[|^\s*type\s+\w"""),
    ((3, 11), r"\bexcept\s*\*|\[.*\*"),
    ((3, 10), r"^\s*(match|case)\b|^\s*(async\s+)?with\s*\("),
    ((3, 9), r"^\s*@"),
]
# An absolute import of one of these names finds the installed module, not a file of the solution.
INSTALLED = {"torch", "triton", "tilelang", "numpy", "flashinfer", *sys.builtin_module_names,
             *(name.partition(".")[0] for name in os.listdir(os.path.dirname(os.__file__)))}
# Attributes with the path or the version of a module.
ABOUT = {"__file__", "__path__", "__spec__", "__version__", "__name__"}
# Annotations other than tuple[...]; any other name may be an alias of one.
PLAIN = {"tuple", "Tuple", "list", "List", "dict", "Dict", "set", "int", "float", "bool", "str", "object", "Any",
         "Tensor", "Optional", "Union", "Sequence", "Iterable", "Annotated"}
WRITES = {"globals", "exec", "setattr"}  # a module can bind any name with these
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))


def fault(e, lines, compiled):
    """Returns an exception of the parser as a fact. Its place is 0, 0 if it concerns the whole source."""
    if not isinstance(e, (SyntaxError, ValueError)):
        text = "nested too deeply, or too large" if isinstance(e, (RecursionError, MemoryError)) else type(e).__name__
        return {"line": 0, "column": 0, "text": text, "doubtful": True}
    text, line, column = getattr(e, "msg", None) or str(e), getattr(e, "lineno", None), getattr(e, "offset", None) or 1
    if not line:
        line = 1 + next((i for i, code in enumerate(lines) if "\0" in code), 0)
    line = max(1, min(line, len(lines)))
    if compiled:  # the compiler counts bytes, the parser characters
        column = 1 + len(lines[line - 1].encode("utf-8", "replace")[:column - 1].decode("utf-8", "replace"))
    column = max(1, min(column, 1 + len(lines[line - 1])))
    doubtful = any(sys.version_info < since and (re.search(new, lines[line - 1]) or text.startswith("f-string"))
                   for since, new in NEWER)
    return {"line": line, "column": column, "text": text, "doubtful": doubtful}


def split(text):
    return re.split("\r\n|\r|\n", text)


def parse(source, mode, flags=ast.PyCF_ONLY_AST):
    """Returns the tree of a source, or a fault."""
    text = source if isinstance(source, str) else decode(source)
    try:
        return compile(source, "<source>", mode, flags, dont_inherit=True), None
    except Exception as e:
        return None, fault(e, split(text), not flags)


def decode(data):
    """Returns the text of a file, in the encoding that its first lines declare."""
    try:
        lines = iter(data[:4096].splitlines(True))
        return data.decode(tokenize.detect_encoding(lambda: next(lines))[0])
    except Exception:
        return data.decode("utf-8", "replace")


def children(node):
    """Yields the nodes below a node, without empty ones such as operators."""
    for field in node._fields:
        value = getattr(node, field, None)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST) and child._fields:
                yield child


def dotted(node):
    """Returns "a.b.c" for such an expression, ".b.c" if it does not start with a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def root(node):
    """Returns the innermost base of an expression: a of a.b[c](d).e."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)) and not imports_module(node):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def imports_module(node):
    return isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in ("import_module", "__import__")


def unreached(test):
    """Reports whether a condition is never true in an imported module."""
    texts = [getattr(part, "value", None) for part in [getattr(test, "left", None)] + getattr(test, "comparators", [])]
    return "__main__" in texts or dotted(test).split(".")[-1] == "TYPE_CHECKING"


class Scope:
    """The code of a module outside of functions, of a function, or of a block that never runs. It runs if all its needs
    are reached: a file, a function's name, another scope."""

    def __init__(self, *needs):
        self.needs, self.live = needs, False
        self.names, self.files, self.called = set(), set(), set()


class File:
    def __init__(self, path, content, paths):
        self.given_path, self.path, self.paths = path, posixpath.normpath(path), paths
        self.facts, self.search_path = [], False
        self.uses, self.asked = {}, {}  # nodes by name; nodes that only ask about a module
        self.renamed, self.same = {}, {}  # names by import ... as and by assignment
        self.given = {}  # names bound to the result of a call
        self.relative, self.direct = set(), set()
        self.scopes = [Scope(("file", self.path))]
        data = content.encode("utf-8", "replace")
        self.lines = split(decode(data))
        self.tree, self.error = parse(data, "exec")
        if self.tree:
            _, self.error = parse(data, "exec", 0)  # for faults such as a return outside of a function
        if self.error:
            self.tree = None
        else:
            self.walk()

    def place(self, node):
        line, offset = node.lineno, node.col_offset
        if isinstance(node, ast.Attribute):
            line, offset = node.end_lineno, node.end_col_offset - len(node.attr.encode())
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        column = len(text.encode("utf-8", "replace")[:offset].decode("utf-8", "replace"))
        if isinstance(node, FUNCTIONS + (ast.ClassDef,)):
            keywords = re.match(r"(async\s+)?(def|class)\s+", text[column:])
            column += keywords.end() if keywords else 0
        return {"line": line, "column": column + 1}

    def add(self, kind, node, scope, **fact):
        if len(self.facts) < MAX_FACTS:
            self.facts.append((dict(kind=kind, **self.place(node), **fact), scope))

    def walk(self):
        stack = [(self.tree, self.scopes[0], False, "")]
        while stack:
            node, scope, guarded, owner = stack.pop()
            kind = type(node)
            visit = VISITS.get(kind)
            if visit:
                visit(self, node, scope, guarded)
            inside, body = None, ()  # the scope of body, and the children that are in it
            if kind in FUNCTIONS:
                inside, body = Scope(("name", owner or node.name), ("scope", scope)), node.body
            elif kind is ast.If and unreached(node.test):
                inside, body = Scope(("never",)), node.body
            elif kind is ast.ClassDef:
                owner = owner or node.name
            elif kind in TRIES and node.handlers:
                inside, body = scope, node.body + node.handlers
            if not body:
                stack.extend([(child, scope, guarded, owner) for child in children(node)][::-1])
                continue
            if inside is not scope:
                self.scopes.append(inside)
            apart = {id(child) for child in body}
            within = (inside, inside is scope, owner if inside is scope else "")
            stack.extend([(child, *(within if id(child) in apart else (scope, guarded, owner)))
                          for child in children(node)][::-1])
        for scope in self.scopes:
            scope.names |= {self.renamed[name] for name in scope.names if name in self.renamed}

    def name(self, node, scope, _):
        scope.names.add(node.id)
        if isinstance(node.ctx, ast.Load):
            self.uses.setdefault(node.id, set()).add(id(node))

    def attribute(self, node, scope, _):
        scope.names.add(node.attr)
        if node.attr in ABOUT:
            self.about(node.value)
        if node.attr == "path" and dotted(node) == "sys.path":
            self.search_path = True
        if getattr(node.value, "attr", "") == "ops" and dotted(node.value) == "torch.ops":
            self.add("op", node, scope, name=node.attr)

    def constant(self, node, scope, _):
        if isinstance(node.value, str) and node.value in self.paths:
            scope.files.add(node.value)

    def about(self, node):
        if isinstance(node, ast.Name):
            self.asked.setdefault(node.id, set()).add(id(node))

    def compare(self, node, scope, _):
        if getattr(node.comparators[0], "value", "") is None:
            self.about(node.left)

    def imported(self, node, scope, guarded):
        level = getattr(node, "level", 0) or 0
        aliases = [(a.name, a.asname or a.name.split(".")[0]) for a in node.names]
        if isinstance(node, ast.Import):
            for module, bound in aliases:
                self.module(node, scope, guarded, module, 0, [], [bound])
            return
        for name, bound in aliases:
            self.renamed[bound] = name
        names = [name for name, _ in aliases]
        self.module(node, scope, guarded, node.module or "", level, names, [bound for _, bound in aliases])

    def module(self, node, scope, guarded, module, level, names, bound, called=False):
        folder = posixpath.dirname(self.path)
        for _ in range(level - 1):
            folder = posixpath.dirname(folder)
        stem = posixpath.join(folder if level else "", module.replace(".", "/"))
        found = set()
        for part in [stem] + [posixpath.join(stem, name) for name in names]:
            found |= {part + ".py", posixpath.join(part, "__init__.py")} & self.paths
        scope.files |= found
        top = module.partition(".")[0]
        if level:
            self.relative |= {top} if top else set(names)
        own = not level and top not in INSTALLED and any(
            path == top + ".py" or path.startswith(top + "/") for path in self.paths)
        self.add("import", node, scope, name=module, level=level, names=names[:100], bound=bound[:100], own=own,
                 guarded=guarded, called=called)

    def call(self, node, scope, guarded):
        begin = root(node.func)
        if isinstance(begin, ast.Name):
            scope.called.add(begin.id)
        else:
            self.direct.add(id(begin))
        text = getattr(node.args[0], "value", None) if node.args else None
        if imports_module(node) and text and isinstance(text, str):
            level = len(text) - len(text.lstrip("."))
            self.module(node, scope, guarded, text.lstrip("."), level, [], self.given.get(id(node), []),
                        called=id(node) in self.direct)

    def assign(self, node, scope, _):
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        self.given[id(node.value)] = names
        for name in names:
            self.same[name] = getattr(root(node.value), "id", None)

    def report(self, search_path):
        """Returns the facts of the file, after run has found the live scopes."""
        called = set()
        for scope in self.scopes:
            called |= scope.called if scope.live else set()
        for name in list(called):  # through aliases
            for _ in range(10):
                name = self.same.get(name)
                called.add(name)
        facts = []
        for fact, scope in self.facts:
            fact["reached"] = scope.live
            if fact["kind"] == "import":
                names = fact.pop("bound")
                top = fact["name"].partition(".")[0]
                fact["called"] = fact["called"] and scope.live or any(name in called for name in names)
                fact["about"] = bool(names) and all(
                    self.asked.get(name) and self.asked[name] >= self.uses.get(name, set()) for name in names)
                fact["helped"] = fact["guarded"] or search_path or top in self.relative
            facts.append(fact)
        return {"path": self.given_path, "reached": self.scopes[0].live, "error": self.error, "facts": facts}


VISITS = {ast.Name: File.name, ast.Attribute: File.attribute, ast.Constant: File.constant,
          ast.Compare: File.compare, ast.Import: File.imported, ast.ImportFrom: File.imported,
          ast.Call: File.call, ast.Assign: File.assign}


def run(files, entry, symbol):
    """Marks the scopes that the entry reaches as live."""
    waiting, missing = {}, {}
    for f in files:
        for scope in f.scopes:
            missing[scope] = len(set(scope.needs))
            for need in set(scope.needs):
                waiting.setdefault(need, []).append(scope)
    reached = [("file", entry), ("name", symbol)]
    while reached:
        for scope in waiting.pop(reached.pop(), ()):
            missing[scope] -= 1
            if missing[scope] == 0:
                scope.live = True
                reached.append(("scope", scope))
                reached.extend(("name", name) for name in scope.names)
                reached.extend(("file", path) for path in scope.files)


def annotation(node, future):
    """Returns how the builder reads a return annotation: "tuple" or "none" with a number of values, "other", or "" if
    that is open."""
    if node is None:
        return "", 0
    if future or isinstance(node, ast.Constant) and isinstance(node.value, str):
        return "other", 0
    if isinstance(node, ast.Constant):
        return ("none", 0) if node.value is None else ("other", 0)
    if isinstance(node, ast.BinOp):
        return "other", 0
    if isinstance(node, ast.Subscript) and dotted(node.value).split(".")[-1] in ("tuple", "Tuple"):
        inner = getattr(node.slice, "value", node.slice) if type(node.slice).__name__ == "Index" else node.slice
        values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if any(isinstance(v, ast.Constant) and v.value is ... for v in values):
            return "", 0
        return "tuple", len(values)
    base = node.value if isinstance(node, ast.Subscript) else node
    return ("other", 0) if dotted(base).split(".")[-1] in PLAIN else ("", 0)


def entry_facts(f, symbol):
    """Returns the bindings of the entry's name in the entry file."""
    out = {"defs": [], "class": None, "bound": False, "functions": []}
    if f.tree is None:
        return None
    future = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" and
                 any(a.name == "annotations" for a in n.names) for n in f.tree.body)
    stack = [f.tree]
    while stack:
        node = stack.pop()
        if isinstance(node, FUNCTIONS):
            out["functions"].append(node.name)
            if node.name == symbol:
                out["defs"].append(definition(f, node, future))
            continue
        if isinstance(node, ast.ClassDef):
            if node.name == symbol:
                out["class"] = f.place(node)
            continue
        name = getattr(node, "asname", None) or getattr(node, "name", None)
        if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Store) or node.id in WRITES):
            name = node.id
        if name in WRITES or name in (symbol, "*"):
            out["bound"] = True
        stack.extend(list(children(node))[::-1])
    out["bound"] = out["bound"] or "__getattr__" in out["functions"]
    return out


def definition(f, node, future):
    a = node.args
    positional = len(getattr(a, "posonlyargs", [])) + len(a.args)
    required = [arg.arg for arg, default in zip(a.kwonlyargs, a.kw_defaults) if default is None]
    returned, values = annotation(node.returns, future)
    return dict(f.place(node), least=positional - len(a.defaults), most=-1 if a.vararg else positional,
                keyword=required[0] if required else "", is_async=isinstance(node, ast.AsyncFunctionDef),
                decorators=[dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list],
                returns=returned, values=values)


def solution(request):
    paths = {posixpath.normpath(s["path"]) for s in request["sources"]}
    files = [File(s["path"], s["content"], paths) for s in request["sources"]]
    entry = posixpath.normpath(request["entry"])
    run(files, entry, request["symbol"])
    search_path = any(f.search_path for f in files)
    return {"files": [f.report(search_path) for f in files],
            "entry": next((entry_facts(f, request["symbol"]) for f in files if f.path == entry), None)}


def constraint(text):
    """Returns the fault of a constraint: it is not an expression, or has a power that may take forever to compute."""
    tree, wrong = parse(text, "eval")
    for node in ast.walk(tree) if tree else ():
        if (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift))
                and not (isinstance(node.left, (ast.Name, ast.Constant)) and isinstance(node.right, ast.Constant)
                         and node.right.value in range(65))):
            return {"line": node.lineno, "column": node.col_offset + 1, "doubtful": False,
                    "text": "the power is not of an axis or a number with an exponent from 0 to 64"}
    return wrong


def main():
    warnings.simplefilter("ignore")
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    except Exception:
        pass
    request = json.load(sys.stdin.buffer)
    if "reference" in request:
        out = {"reference": parse(request["reference"], "exec")[1],
               "constraints": [constraint(text) for text in request["constraints"] or []]}
    else:
        out = solution(request)
    out["version"] = "%d.%d" % sys.version_info[:2]
    sys.stdout.write(json.dumps(out))


if sys.version_info < (3, 8):
    sys.exit("Python 3.8 or later is needed")
main()
