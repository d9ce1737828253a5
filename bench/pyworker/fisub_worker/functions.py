"""The Python functions of a definition, which make its inputs and judge outputs.

They run in the process of the reference, which never imports a submission, as the entry function of a solution of fisub's
own. A call takes a request as the bytes of JSON, and tensors; it returns the reply in the same form. All tensors are of
int8: the trees say what they contain (see objects).
"""

import importlib
import inspect
import json
import os
import random
import sys
import tempfile
import types

from .memory import MEMORY
from .objects import assemble, names, strided, take_apart

MOST_KEPT = 3  # objects of inputs


def seed_all(torch, seed):
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


def paired(a, b):
    """Returns Cantor's pairing of two seeds, with which GPU MODE's boards combine a case's seed with a secret one."""
    return a + (a + b) * (a + b + 1) // 2


def octets(t):
    """Returns the bytes of a contiguous tensor on the CPU."""
    return bytes(MEMORY(t.data_ptr(), t.numel() * t.element_size(), 0x100)) if t.numel() else b""


class Functions:
    """The functions of python, an object of a definition, whose files are in folder."""

    def __init__(self, folder, python):
        import torch
        self.torch, self.python, self.kept, self.model = torch, python, {}, None
        if folder not in sys.path:
            sys.path.insert(0, folder)
        self.poison_empty()
        sys.modules.setdefault("submission", types.ModuleType("submission")).custom_kernel = None  # some programs import it
        self.inputs = self.function("inputs")
        self.check, self.expected = self.function("check"), self.function("expected")

    def function(self, key):
        file, _, name = (self.python.get(key) or "").partition("::")
        return getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name) if file else None

    def poison_empty(self):
        """Fills what torch.empty returns. It could hold the outputs of an earlier check, and a solution that writes nothing
        would pass."""
        torch = self.torch

        def poisoned(make):
            def empty(*args, **kwargs):
                t = make(*args, **kwargs)
                if t.is_floating_point() and t.element_size() > 1:
                    return t.fill_(float("nan"))
                return t.view(torch.uint8).fill_(0x7F).view(t.dtype) if t.is_contiguous() and t.dim() and t.numel() else t
            return empty

        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty")):
            setattr(owner, name, poisoned(getattr(owner, name)))

    def __call__(self, request, *tensors):
        request = json.loads(octets(request.cpu()))
        if request["seed"]:
            os.environ["POPCORN_SEED"] = str(request["seed"])
        reply, out = self.make(request) if "make" in request else self.judge(request, tensors)
        text = self.torch.frombuffer(bytearray(json.dumps(reply).encode()), dtype=self.torch.int8)
        return [text, *out]

    def data(self, arguments):
        """Returns the inputs for arguments. The object is kept; callers must not change it."""
        key = json.dumps(arguments, sort_keys=True)
        if key not in self.kept:
            while len(self.kept) >= MOST_KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = self.generate(dict(arguments))
        return self.kept[key]

    def generate(self, arguments):
        torch, secret = self.torch, os.environ.get("POPCORN_SEED")
        if self.python["call"] == "inputs":
            seed_all(torch, arguments["seed"])
            made = self.inputs(arguments["sizes"], torch.device("cuda"))
            return {name: self.fitting(name, made, *spec) for name, *spec in arguments["want"]}
        if self.python["call"] == "model":
            seed_all(torch, 42)
            init = self.function("init")() if self.python.get("init") else []
            seed_all(torch, arguments.get("seed", 42))
            return {"init": list(init), "inputs": [self.placed(x) for x in self.inputs()]}
        if cases := self.function("cases"):
            arguments = self.parsed(cases, arguments, secret)
        elif secret and "seed" in arguments:
            arguments["seed"] = paired(arguments["seed"], int(secret))
        seed_all(torch, int(secret or 42))
        return self.inputs(**{k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()})

    def parsed(self, cases, arguments, secret):
        """Returns the arguments that the board's own program reads from a case: it takes a boolean as a string, for example."""
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("; ".join(f"{key}: {value}" for key, value in arguments.items()) + "\n")
            f.flush()
            takes_seed = len(inspect.signature(cases).parameters) > 1
            try:
                return cases(f.name, *([int(secret) if secret else None] if takes_seed else []))[0].args
            except SystemExit:
                raise ValueError(f"the board's program rejects the case {arguments}") from None

    def placed(self, x):
        return x.cuda() if isinstance(x, self.torch.Tensor) else x

    def fitting(self, name, made, dtype, shape):
        """Returns an input of made, which must have a dtype and shape, or be a number if shape is None."""
        x, where = made.get(name), self.python["inputs"].partition("::")[2]
        if shape is None:
            if type(x) not in (int, float, bool):
                raise ValueError(f"{where} returns {name} as a {type(x).__name__}, want a number")
            return x
        if not isinstance(x, self.torch.Tensor) or list(x.shape) != shape or str(x.dtype)[6:] != dtype:
            got = f"{str(x.dtype)[6:]}{list(x.shape)}" if isinstance(x, self.torch.Tensor) else f"a {type(x).__name__}"
            raise ValueError(f"{where} returns {name} as {got}, want {dtype}{shape}")
        return self.placed(x).contiguous()

    def copy(self, data):
        tree, tensors = take_apart(self.torch, data, lambda v: isinstance(v, self.torch.Tensor), trusted=True)
        return assemble(self.torch, tree, [t.clone() for t in tensors])

    def make(self, request):
        """Returns the tree of the inputs, and for each tensor its name, dtype, shape, strides, and whether it holds only what
        torch.empty left."""
        torch = self.torch
        tree, tensors = take_apart(torch, self.data(request["make"]), lambda v: isinstance(v, torch.Tensor), trusted=True)
        found, specs, out = names(tree), [], []
        if self.python["call"] == "inputs":
            found = {x["tensor"]: k["value"] for k, x in tree["dict"] if "tensor" in x}
            kinds = [int, float, bool]  # as in package trace
            tree = {k: {"kind": kinds.index(type(x)), type(x).__name__: x} for k, x in self.data(request["make"]).items()
                    if type(x) in kinds}
        for i, t in enumerate(tensors):
            memory, stride = strided(torch, t)
            nan = t.is_floating_point() and t.element_size() > 1
            empty = t.numel() > 0 and bool(t.isnan().all() if nan else (memory == 0x7F).all())
            specs.append({"name": found[i], "dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "stride": stride,
                          "empty": empty})
            out.append(memory)
        return {"tree": tree, "tensors": specs}, out

    def judge(self, request, tensors):
        """Returns whether outputs are right for inputs, with a text."""
        torch = self.torch
        made = json.loads(octets(tensors[0].cpu()))  # by the submission's process: see Packed
        outputs = []
        for i, (spec, t) in enumerate(zip(request["tensors"], tensors[1:], strict=True)):
            dtype, shape = getattr(torch, spec["dtype"]), spec["shape"] or []
            t = t.view(dtype).reshape(shape) if t.numel() else self.placed(torch.empty(shape, dtype=dtype))
            outputs.append(t.cpu() if i in made["cpu"] else t)
        output = assemble(torch, made["tree"], outputs, trusted=False)
        data = self.copy(self.data(request["judge"]))
        if self.check:
            good = self.checked(data, output, request["emulated"])
            ok, text = good if isinstance(good, tuple) else (good == "" or good is True, good)
        else:
            ok, text = self.close(output, self.reference(data), self.python.get("atol", 1e-8), self.python.get("rtol", 1e-5))
        return {"ok": bool(ok), "text": str(text or "")}, []

    def checked(self, data, output, emulated):
        """Returns what the check says. If it fails on a GPU, so it does on the board: the output is none that it expects.
        Without a GPU the cause may be an operation that torch lacks there."""
        try:
            return self.check(data, output)
        except Exception as e:
            if emulated or isinstance(e, self.torch.OutOfMemoryError) or "CUDA error" in str(e):
                raise
            return False, f"{self.python['check']} raised {type(e).__name__}: {e}"

    def reference(self, data):
        torch = self.torch
        if self.python["call"] != "model":
            return self.expected(data) if self.python["call"] == "one" else self.expected(*data)
        if self.model is None:
            seed_all(torch, 42)
            self.model = self.expected(*data["init"]).cuda()
        return self.model(*data["inputs"])

    def close(self, got, want, atol, rtol):
        """Compares as torch.allclose does, in nested containers too."""
        torch = self.torch
        if isinstance(want, (tuple, list)):
            if not isinstance(got, (tuple, list)) or len(got) != len(want):
                return False, f"the output is not {len(want)} values"
            for g, w in zip(got, want, strict=True):
                ok, text = self.close(g, w, atol, rtol)
                if not ok:
                    return ok, text
            return True, ""
        if not isinstance(want, torch.Tensor):
            return got == want, f"{got!r}, expected {want!r}"
        if not isinstance(got, torch.Tensor):
            return False, f"a {type(got).__name__}, expected a tensor"
        if got.shape != want.shape:
            return False, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
        got, want = got.to(want.device), want.detach()
        if got.dtype != want.dtype:
            return False, f"dtype {str(got.dtype)[6:]}, expected {str(want.dtype)[6:]}"
        wrong = ~torch.isclose(got, want, atol=atol, rtol=rtol)
        n = int(wrong.sum())
        if n == 0:
            return True, ""
        at = tuple(wrong.nonzero()[0].tolist())
        return False, f"output{list(at)} is {got[at].item():.6g}, expected {want[at].item():.6g}; {n} of {want.numel()} elements are wrong"
