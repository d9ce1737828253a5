"""Tests of the rules of fisub_worker that need no torch. Run by go test."""

import base64
import collections
import ctypes
import inspect
import json
import os
import struct
import subprocess
import sys
import tempfile
import typing
import unittest
import unittest.mock

from fisub_worker import below, build, cupti, entry, errors, guard, objects

SOLUTION = {"name": "n", "definition": "d", "spec": {"language": "cuda", "entry_point": "kernel.cu::kernel"},
            "sources": [{"path": "kernel.cu", "content": "x"}]}


class Case(unittest.TestCase):
    def fails(self, text, f, *args):
        with self.assertRaises(errors.Failure) as c:
            f(*args)
        self.assertEqual((c.exception.kind, c.exception.text), ("build", text))


class Below(unittest.TestCase):
    """Below a tool, a process may write to its own folder in /proc only."""

    def test_narrow(self):
        if ctypes.CDLL(None).syscall(below.CREATE_RULESET, None, 0, 1) < 1:
            self.skipTest("this kernel has no Landlock")
        paths = [f"/proc/{os.getpid()}/oom_score_adj", "/proc/self/comm", "/dev/null", os.path.join(tempfile.mkdtemp(), "file")]
        program = ("import ctypes, os, sys; from fisub_worker import below; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); print(below.narrow())\n"
                   "for path in sys.argv[1:]:\n"
                   "    try: open(path, 'w').close(); print('written')\n"
                   "    except PermissionError: print('denied')\n")
        for spec, want in ("{}", "True denied written written written"), ("", "False written written written written"):
            out = subprocess.run([sys.executable, "-c", program, *paths], check=True, capture_output=True, text=True,
                                 env=os.environ | {"FISUB_SANDBOX_BELOW": spec}).stdout
            self.assertEqual(out.split(), want.split())


class Names(Case):
    def test_content_hash(self):
        self.assertEqual(entry.content_hash(SOLUTION), "4570a6c5a6b0fcd651a1f93162bf087049963400")

    def test_package(self):
        for name, want in (("a-b c", "p_a_b_c_4570a6"), ("1x", "p__1x_4570a6"), ("é", "p___4570a6")):
            self.assertEqual(entry.package_name("p_", SOLUTION | {"name": name}), want)

    def test_module(self):
        for file, want in (("main.py", "p.main"), ("sub/k.py", "p.sub.k"), ("./k.py", "p.k")):
            self.assertEqual(entry.module_name("p", file), want)
        self.fails("Entry file 'k.cu' is not a Python file", entry.module_name, "p", "k.cu")


class Sources(Case):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.root = os.path.realpath(self.dir.name)
        sys.path.insert(0, self.root)
        self.addCleanup(sys.path.remove, self.root)
        sys.dont_write_bytecode = True

    def entry(self, name, files, file="main.py", symbol="run"):
        entry.write_sources(os.path.join(self.root, name), [{"path": p, "content": c} for p, c in files.items()])
        entry.importlib.invalidate_caches()
        return entry.import_entry(entry.module_name(name, file), symbol)

    def test_relative_import(self):
        run = self.entry("one", {"main.py": "from .sub import util\ndef run(): return util.x", "sub/util.py": "x = 7"})
        self.assertEqual(run(), 7)

    def test_absolute_import(self):
        self.fails("Failed importing module 'two.main' from sources: No module named 'sibling'",
                   self.entry, "two", {"main.py": "import sibling\ndef run(): pass", "sibling.py": "x = 7"})

    def test_dependency(self):
        with self.assertRaises(errors.Failure) as c:
            entry.write_sources(os.path.join(self.root, "seven"), [{"path": "main.py", "content": "import absent_package.part"}])
            entry.import_entry("seven.main", "run", ["absent_package"])
        self.assertEqual((c.exception.kind, c.exception.code), ("machine", "no-dependency"))
        self.fails("Failed importing module 'seven.main' from sources: No module named 'absent_package'", entry.import_entry, "seven.main", "run")

    def test_exit_while_importing(self):
        self.fails("Failed importing module 'three.main' from sources: 3", self.entry, "three", {"main.py": "import sys\nsys.exit(3)"})

    def test_symbols(self):
        self.fails("Entry symbol 'run' not found in module 'four.main'", self.entry, "four", {"main.py": "x = 1"})
        self.fails("Entry symbol 'x' is not callable", self.entry, "four", {"main.py": "x = 1"}, "main.py", "x")

    def test_rewritten(self):
        for value in (1, 2):
            entry.write_sources(os.path.join(self.root, "five"), [{"path": "main.py", "content": f"x = {value}"}])
            with open(os.path.join(self.root, "five", "main.py")) as f:
                self.assertEqual(f.read(), f"x = {value}")

    def test_outside(self):
        for path in ("../x.py", "/tmp/x.py", "a/../../x.py", "."):
            self.fails(f"Invalid source path: {path}", entry.write_sources, os.path.join(self.root, "six"), [{"path": path, "content": "x"}])
        self.assertFalse(os.path.exists(os.path.join(self.root, "x.py")))


class Builds(unittest.TestCase):
    def test_settings_of_a_submission(self):
        """A build is another one after a change of the user's settings, but not of the submission's."""
        builder = build.Builder.__new__(build.Builder)
        builder.device, builder.cache, builder.only = unittest.mock.Mock(), "/nowhere", {}
        builder.device.info.return_value, builder.device.torch.__version__ = {"arch": "emu"}, "2"

        def missing():
            with self.assertRaises(errors.Failure) as c:
                builder.prebuilt("torch-cuda", ["text"], None)
            return c.exception.missing

        first = missing()
        with unittest.mock.patch.dict(os.environ, TORCH_CUDA_ARCH_LIST="12.0"):
            self.assertEqual(missing(), first)
        with unittest.mock.patch.object(build, "CHOSEN", ["/usr/local/cuda"]):
            self.assertNotEqual(missing(), first)


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
            entry.check_signature(f, inputs, outputs, dps)
        self.fails("Destination-passing style callable: expected 3 positional parameters, but signature '(a, b)' is incompatible: "
                   "too many positional arguments", entry.check_signature, two, 2, 1, True)
        self.fails("Value-returning style callable: expected 1 positional parameters, but signature '(a, b)' is incompatible: "
                   "missing a required argument: 'b'", entry.check_signature, two, 1, 2, False)
        with self.assertRaises(errors.Failure):
            entry.check_signature(named, 2, 0, True)

    def test_annotations(self):
        for f, want in ((gives_none, 0), (gives_one, 1), (gives_two, 2), (gives_many, None), (gives_text, 3), (gives_union, None), (two, None)):
            self.assertEqual(entry.annotated_results(f, inspect.signature(f)), want, f.__name__)
        entry.check_signature(gives_two, 1, 2, False)
        entry.check_signature(gives_two, 0, 1, True)  # annotations do not matter for destination-passing
        with self.assertRaises(errors.Failure):
            entry.check_signature(gives_two, 1, 1, False)


class Results(unittest.TestCase):
    def test_counts(self):
        for value, count, want in ((5, 1, [5]), ((5,), 1, [5]), ([5], 1, [5]), ((1, 2), 2, [1, 2]), ([1, 2], 2, [1, 2]), ((), 0, []), (None, 0, [])):
            self.assertEqual(entry.results(value, count, False), want)
        for value, count, text in (((1, 2), 3, "Tuple/list has 2 elements but 3 outputs expected"),
                                   ([], 1, "Tuple/list has 0 elements but 1 outputs expected"),
                                   ((1, 2), 1, "Tuple/list has 2 elements but 1 outputs expected"),
                                   (7, 2, "Single value returned but 2 outputs expected"),
                                   ((7,), 2, "Single value returned but 2 outputs expected")):
            with self.assertRaises(ValueError) as c:
                entry.results(value, count, False)
            self.assertEqual(str(c.exception), text)

    def test_any_count(self):
        for value, want in ((7, [7]), ((7,), [7]), ((1, 2), [1, 2]), ((1, 2, 3), [1, 2, 3])):
            self.assertEqual(entry.results(value, 2, True), want)


class Recording(unittest.TestCase):
    """Records in CUPTI's layout, with 0xcc in unread bytes."""

    def setUp(self):
        self.records = cupti.Records(lambda symbol: symbol.upper())
        self.keep = []

    def record(self, size, kind, **fields):
        r = bytearray(b"\xcc" * size)
        struct.pack_into("<I", r, 0, kind)
        for at, value in fields.items():
            struct.pack_into("<Q", r, int(at[1:]), value)
        self.keep.append(ctypes.create_string_buffer(bytes(r), size))
        return ctypes.addressof(self.keep[-1])

    def text(self, value):
        self.keep.append(ctypes.create_string_buffer(value))
        return ctypes.addressof(self.keep[-1])

    def test_lengths(self):
        for kind, size in ((cupti.RUNTIME, 36), (cupti.DRIVER, 36), (cupti.MEMCPY, 48), (cupti.MEMSET, 48)):
            at = self.record(size + 40, kind, _8=7)
            before = len(self.records.data)
            self.records.add(at, at + size + 40)
            self.assertEqual(bytes(self.records.data[before:]), ctypes.string_at(at, size))
        self.assertEqual(self.records.lost, 0)

    def test_kernels(self):
        for symbol, index in ((b"a", 0), (b"b", 1), (b"a", 0), (None, 2), (b"\xff", 3)):
            at = self.record(216, cupti.KERNEL, _16=5, _104=self.text(symbol) if symbol else 0)
            before = len(self.records.data)
            self.records.add(at, at + 216)
            self.assertEqual(bytes(self.records.data[before:]), ctypes.string_at(at, 104) + struct.pack("<I", index))
        self.assertEqual(self.records.names, [["a", "A"], ["b", "B"], ["", ""], ["\ufffd", "\ufffd"]])
        reply = self.records.reply(130001)
        self.assertEqual((reply["version"], reply["lost"], len(base64.b64decode(reply["records"]))), (130001, 0, 5 * 108))

    def test_not_taken(self):
        self.records.add(self.record(40, 3), 1 << 60)  # a kind that was not requested
        self.assertEqual((self.records.data, self.records.lost), (b"", 0))
        at = self.record(40, cupti.RUNTIME)
        self.records.add(at, at + 35)  # cut off
        at = self.record(216, cupti.KERNEL, _104=self.text(b"a"))
        self.records.add(at, at + 111)
        self.assertEqual((self.records.data, self.records.lost), (b"", 2))

    def test_bounds(self):
        self.records.names = [["", ""]] * cupti.MAX_NAMES
        at = self.record(216, cupti.KERNEL, _104=self.text(b"one too many"))
        self.records.add(at, at + 216)
        self.assertEqual(self.records.lost, 1)
        self.records.data = bytearray(cupti.MAX_RECORD_BYTES - 35)
        at = self.record(40, cupti.RUNTIME)
        self.records.add(at, at + 40)
        self.assertEqual(self.records.lost, 2)
        self.records.names = []
        at = self.record(216, cupti.KERNEL, _104=self.text(b"x" * (cupti.MAX_NAME + 1)))
        self.records.add(at, at + 216)
        self.assertEqual(self.records.lost, 3)

    def test_demangle(self):
        plain = cupti.demangler()
        self.assertIn(plain(b"_Z5firstPfi"), (b"first(float*, int)", b"_Z5firstPfi"))
        self.assertEqual(plain(b"decode_kernel"), b"decode_kernel")

    def test_buffers(self):
        c = cupti.CUPTI.__new__(cupti.CUPTI)
        c.buffers, c.free, c.full, c.refused = {}, [], [], 0
        seen = set()
        address, size, most = (ctypes.c_void_p * 1)(), (ctypes.c_size_t * 1)(), (ctypes.c_size_t * 1)(9)
        for _ in range(cupti.MAX_BUFFERS):
            c.requested(address, size, most)
            self.assertEqual((size[0], most[0]), (cupti.BUFFER_BYTES, 0))
            seen.add(address[0])
        self.assertEqual(len(seen), cupti.MAX_BUFFERS)
        c.requested(address, size, most)
        self.assertEqual((address[0], size[0], c.refused), (None, 0, 1))
        c.completed(None, 0, min(seen), cupti.BUFFER_BYTES, 1 << 60)
        self.assertEqual(c.full, [(None, 0, min(seen), cupti.BUFFER_BYTES)])
        c.forget()
        c.requested(address, size, most)
        self.assertEqual((address[0], c.refused, c.full), (min(seen), 0, []))


class Library(unittest.TestCase):
    def test_not_there(self):
        for paths, text in ((["/absent/libcupti.so.13", "libcupti.so.99"], "no libcupti.so.99"), ([cupti.__file__, "libcupti.so.99"], cupti.__file__)):
            with self.assertRaises(cupti.Unavailable) as c:
                cupti.open_cupti(paths)
            self.assertTrue(str(c.exception).startswith(text), c.exception)

    def test_something_else(self):
        libc = cupti.loaded_libraries("libc.so")[0]
        with self.assertRaises(cupti.Unavailable) as c:
            cupti.CUPTI(libc)
        self.assertEqual(str(c.exception), f"{libc}: no cuptiGetVersion")

    def test_paths(self):
        with unittest.mock.patch.dict(os.environ, {"CUDA_HOME": "/cuda", "CUDA_PATH": ""}):
            paths = cupti.cupti_paths("12")
        self.assertEqual(paths[-1], "libcupti.so.12")
        self.assertLess(paths.index("/cuda/extras/CUPTI/lib64/libcupti.so.12"), paths.index("/usr/local/cuda/lib64/libcupti.so.12"))
        self.assertNotIn("", paths)


class Tensor:
    def __repr__(self):
        return "T"


class Torch:
    class dtype:  # noqa: N801
        pass

    class device:  # noqa: N801
        def __init__(self, kind):
            self.type = kind

    float16 = dtype()


class Objects(unittest.TestCase):
    """An object that travels to another process and back is the same."""

    def travel(self, value):
        tree, tensors = objects.take_apart(Torch, value, lambda v: isinstance(v, Tensor))
        return objects.assemble(Torch, json.loads(json.dumps(tree, allow_nan=False)), tensors)

    def test_travel(self):
        a, b = Tensor(), Tensor()
        for value in ((a, [b, {"w": a, 3: (True, None)}], "x", 7, 1 << 70), {}, [], (), ((a,),), a, 5, -2.5, True, None):
            got = self.travel(value)
            self.assertEqual(got, value)
            self.assertIs(type(got), type(value))
        for x in (0.1, float("inf"), -0.0, 5e-324):
            self.assertEqual(self.travel([x])[0].hex(), x.hex())
        self.assertNotEqual(x := self.travel(float("nan")), x)
        self.assertIs(type(self.travel([True])[0]), bool)
        self.assertEqual(self.travel(Torch.device("cuda")).type, "cuda")

    def test_own_classes(self):
        """A container's own methods are not called, and other objects have no place."""
        class Own(list):
            def __iter__(self):
                raise SystemExit(1)

        self.assertEqual(self.travel(Own([1, 2])), [1, 2])
        self.assertEqual(self.travel(collections.namedtuple("P", "x y")(1, 2)), (1, 2))
        with self.assertRaisesRegex(TypeError, "^a value of type Tensors, which is neither a tensor nor a number"):
            self.travel([type("Tensors", (), {})()])
        with self.assertRaises(TypeError):
            self.travel({"f": print})

    def test_untrusted(self):
        """A tree from a submission makes no objects but plain ones."""
        for tree in ({"class": ["subprocess", "Popen"], "fields": []}, {"dtype": "device"}, {"dtype": "none"}, {"what": 1}):
            with self.assertRaises(objects.Foreign):
                objects.assemble(Torch, {"list": [tree]}, [], trusted=False)

    def test_names(self):
        tree, _ = objects.take_apart(Torch, (Tensor(), {"w": [Tensor()]}), lambda v: isinstance(v, Tensor))
        self.assertEqual(objects.names(tree), {0: "data[0]", 1: "data[1]['w'][0]"})


class Errors(unittest.TestCase):
    def test_message_that_raises(self):
        class Odd(Exception):
            def __str__(self):
                raise SystemExit(1)

        self.assertEqual(errors.describe(Odd()), "Odd: (no message)")

    def test_frames_of_the_worker_are_left_out(self):
        def user():
            raise KeyError("x")

        try:
            guard.guard(type("D", (), {"synchronize": lambda self: None, "emulated": False})(), "call", user)
        except errors.Failure as e:
            self.assertEqual((e.kind, e.text), ("call", "KeyError: 'x'"))
            self.assertIn("in user", e.log)
            self.assertNotIn("in guard", e.log)

    def test_lost_device(self):
        class Lost:
            emulated = False

            def synchronize(self):
                raise RuntimeError("illegal address")

        with self.assertRaises(errors.Failure) as c:
            guard.guard(Lost(), "call", lambda: 1 / 0)
        self.assertEqual(c.exception.kind, "fault")


if __name__ == "__main__":
    unittest.main()
