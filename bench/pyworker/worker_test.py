"""Tests of the rules in worker.py that need no torch. Run by go test."""

import inspect
import os
import sys
import tempfile
import typing
import unittest

import worker

SOLUTION = {"name": "n", "definition": "d", "spec": {"language": "cuda", "entry_point": "kernel.cu::kernel"},
            "sources": [{"path": "kernel.cu", "content": "x"}]}


class Case(unittest.TestCase):
    def fails(self, text, f, *args):
        with self.assertRaises(worker.Failure) as c:
            f(*args)
        self.assertEqual((c.exception.kind, c.exception.text), ("build", text))


class Names(Case):
    def test_content_hash(self):
        self.assertEqual(worker.content_hash(SOLUTION), "4570a6c5a6b0fcd651a1f93162bf087049963400")

    def test_package(self):
        for name, want in (("a-b c", "p_a_b_c_4570a6"), ("1x", "p__1x_4570a6"), ("é", "p___4570a6")):
            self.assertEqual(worker.package_name("p_", SOLUTION | {"name": name}), want)

    def test_module(self):
        for file, want in (("main.py", "p.main"), ("sub/k.py", "p.sub.k"), ("./k.py", "p.k")):
            self.assertEqual(worker.module_name("p", file), want)
        self.fails("Entry file 'k.cu' is not a Python file", worker.module_name, "p", "k.cu")


class Sources(Case):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.root = os.path.realpath(self.dir.name)
        sys.path.insert(0, self.root)
        self.addCleanup(sys.path.remove, self.root)
        sys.dont_write_bytecode = True

    def entry(self, name, files, file="main.py", symbol="run"):
        worker.write_sources(os.path.join(self.root, name), [{"path": p, "content": c} for p, c in files.items()])
        worker.importlib.invalidate_caches()
        return worker.import_entry(worker.module_name(name, file), symbol)

    def test_relative_import(self):
        run = self.entry("one", {"main.py": "from .sub import util\ndef run(): return util.x", "sub/util.py": "x = 7"})
        self.assertEqual(run(), 7)

    def test_absolute_import(self):
        self.fails("Failed importing module 'two.main' from sources: No module named 'sibling'",
                   self.entry, "two", {"main.py": "import sibling\ndef run(): pass", "sibling.py": "x = 7"})

    def test_dependency(self):
        with self.assertRaises(worker.Failure) as c:
            worker.write_sources(os.path.join(self.root, "seven"), [{"path": "main.py", "content": "import absent_package.part"}])
            worker.import_entry("seven.main", "run", ["absent_package"])
        self.assertEqual((c.exception.kind, c.exception.code), ("machine", "no-dependency"))
        self.fails("Failed importing module 'seven.main' from sources: No module named 'absent_package'", worker.import_entry, "seven.main", "run")

    def test_exit_while_importing(self):
        self.fails("Failed importing module 'three.main' from sources: 3", self.entry, "three", {"main.py": "import sys\nsys.exit(3)"})

    def test_symbols(self):
        self.fails("Entry symbol 'run' not found in module 'four.main'", self.entry, "four", {"main.py": "x = 1"})
        self.fails("Entry symbol 'x' is not callable", self.entry, "four", {"main.py": "x = 1"}, "main.py", "x")

    def test_rewritten(self):
        for value in (1, 2):
            worker.write_sources(os.path.join(self.root, "five"), [{"path": "main.py", "content": f"x = {value}"}])
            with open(os.path.join(self.root, "five", "main.py")) as f:
                self.assertEqual(f.read(), f"x = {value}")

    def test_outside(self):
        for path in ("../x.py", "/tmp/x.py", "a/../../x.py", "."):
            self.fails(f"Invalid source path: {path}", worker.write_sources, os.path.join(self.root, "six"), [{"path": path, "content": "x"}])
        self.assertFalse(os.path.exists(os.path.join(self.root, "x.py")))


class Tensor:
    pass


def two(a, b): ...
def spare(a, b, c=1): ...
def anything(*args): ...
def named(a, *, b): ...
def gives_none(a) -> None: ...
def gives_one(a) -> Tensor: ...
def gives_two(a) -> tuple[Tensor, Tensor]: ...
def gives_many(a) -> tuple[Tensor, ...]: ...
def gives_text(a) -> "typing.Tuple[int, int, int]": ...
def gives_union(a) -> typing.Union[Tensor, tuple]: ...


class Signatures(Case):
    def test_arguments(self):
        for f, inputs, outputs, dps in ((two, 1, 1, True), (two, 2, 1, False), (spare, 2, 1, True), (spare, 2, 0, True),
                                        (anything, 9, 9, True), (max, 3, 3, True)):
            worker.check_signature(f, inputs, outputs, dps)
        self.fails("Destination-passing style callable: expected 3 positional parameters, but signature '(a, b)' is incompatible: "
                   "too many positional arguments", worker.check_signature, two, 2, 1, True)
        self.fails("Value-returning style callable: expected 1 positional parameters, but signature '(a, b)' is incompatible: "
                   "missing a required argument: 'b'", worker.check_signature, two, 1, 2, False)
        with self.assertRaises(worker.Failure):
            worker.check_signature(named, 2, 0, True)

    def test_annotations(self):
        for f, want in ((gives_none, 0), (gives_one, 1), (gives_two, 2), (gives_many, None), (gives_text, 3), (gives_union, None), (two, None)):
            self.assertEqual(worker.annotated_results(f, inspect.signature(f)), want, f.__name__)
        worker.check_signature(gives_two, 1, 2, False)
        worker.check_signature(gives_two, 0, 1, True)  # an annotation says nothing about destination-passing
        with self.assertRaises(worker.Failure):
            worker.check_signature(gives_two, 1, 1, False)


class Results(unittest.TestCase):
    def test_counts(self):
        for value, count, want in ((5, 1, [5]), ((5,), 1, [5]), ([5], 1, [5]), ((1, 2), 2, [1, 2]), ([1, 2], 2, [1, 2]), ((), 0, []), (None, 0, [])):
            self.assertEqual(worker.results(value, count, False), want)
        for value, count, text in (((1, 2), 3, "Tuple/list has 2 elements but 3 outputs expected"),
                                   ([], 1, "Tuple/list has 0 elements but 1 outputs expected"),
                                   ((1, 2), 1, "Tuple/list has 2 elements but 1 outputs expected"),
                                   (7, 2, "Single value returned but 2 outputs expected"),
                                   ((7,), 2, "Single value returned but 2 outputs expected")):
            with self.assertRaises(ValueError) as c:
                worker.results(value, count, False)
            self.assertEqual(str(c.exception), text)

    def test_any_count(self):
        for value, want in ((7, [7]), ((7,), [7]), ((1, 2), [1, 2]), ((1, 2, 3), [1, 2, 3])):
            self.assertEqual(worker.results(value, 2, True), want)


class Errors(unittest.TestCase):
    def test_message_that_raises(self):
        class Odd(Exception):
            def __str__(self):
                raise SystemExit(1)

        self.assertEqual(worker.describe(Odd()), "Odd: (its message cannot be had)")

    def test_frames_of_the_worker_are_left_out(self):
        def user():
            raise KeyError("x")

        try:
            worker.guard(type("D", (), {"synchronize": lambda self: None})(), "call", user)
        except worker.Failure as e:
            self.assertEqual((e.kind, e.text), ("call", "KeyError: 'x'"))
            self.assertIn("in user", e.log)
            self.assertNotIn("in guard", e.log)

    def test_lost_device(self):
        class Lost:
            def synchronize(self):
                raise RuntimeError("illegal address")

        with self.assertRaises(worker.Failure) as c:
            worker.guard(Lost(), "call", lambda: 1 / 0)
        self.assertEqual(c.exception.kind, "fault")


if __name__ == "__main__":
    unittest.main()
