"""A built solution: its arguments, a call, and the outputs of a call."""

import gc
import json
import random
import sys

from .build import Builder
from .device import quiet
from .entry import results
from .errors import Failure, describe
from .guard import guard
from .memory import write
from .objects import Foreign, assemble, take_apart

POISON = 0xFF  # NaN as bfloat16, float16 and float32, so an element that is left out cannot pass
INTEGER_POISON = 0x7F  # POISON reads as -1, a common result
SCALARS = {"Int": int, "Float": float, "Bool": bool}


class Packed:
    """The value of a call that returns an object: its tree and tensors (see objects)."""

    def __init__(self, tree, tensors):
        self.tree, self.tensors = tree, tensors


class Solution:
    """A built solution and its loaded arguments. key and only are the Builder's."""

    def __init__(self, device, cache, definition, solution, key, only):
        self.device = device
        self.outputs = list(definition["outputs"].items())
        # Outputs with their own memory. Each of the others is an input changed in place.
        own = [name for name, output in self.outputs if output.get("param") not in definition["inputs"]]
        self.names = [*definition["inputs"], *own]
        self.destination_passing = solution["spec"].get("destination_passing_style", True)
        # How an object of inputs is passed: as one argument, as positional ones, or to a model; "" without an object.
        self.convention = (definition.get("python") or {}).get("call", "")
        # State of a load. loaded: the request, with the last contents of the inputs. places: by argument, its memory
        # from Device.tensor, or None if it is not a tensor. results: by output, its name, spec and memory, None if
        # not passed. at: by output, its argument, or None if it is returned. before: the state before each move,
        # starting with the load's.
        self.args, self.results, self.any_count, self.loaded, self.places, self.before = None, [], False, None, [], []
        self.leaves = []  # the arguments or, with a convention, the tensors of the object
        self.at, self.gaps = [], []
        self.collecting = False  # whether a call has left the collection of garbage on, which is off until the next call
        self.entry = Builder(device, cache, definition, solution, key, only).entry(len(own))
        self.model = self.entry  # the class, if the entry is one

    @quiet
    def load(self, request):
        self.args, self.results, self.places, self.before, self.gaps = None, [], [], [], []
        self.loaded = request
        self.any_count = request.get("any_count", False)
        self.place()
        if self.convention == "model":
            self.construct()
        if self.device.vgpu:
            self.device.machine.first = 2 if request.get("fully") else 1
            self.device.machine.count(request.get("count", 0))

    def construct(self):
        """Replaces the entry by a new model. KernelBench makes the reference's and the submission's under the same seed."""
        torch, data = self.device.torch, self.object()

        def make():
            random.seed(42)
            torch.manual_seed(42)
            return self.model(*data["init"]).to("cuda" if self.device.vgpu else self.device.device)

        with torch.no_grad():
            self.entry = guard(self.device, "call", lambda: self.device.does(make))

    def object(self):
        return assemble(self.device.torch, self.loaded["tree"], self.leaves)

    def bundle(self):
        """Returns the arguments of a call."""
        if not self.convention:
            return self.leaves
        data = self.object()
        if self.convention == "one":
            return [data]
        return list(data["inputs"] if self.convention == "model" else data)

    @quiet
    def place(self):
        """Allocates the tensors of the request."""
        guard = self.loaded.get("guard", 0)
        if guard < 0 or guard % 256 != 0:
            raise Failure("machine", f"python: guard of {guard} bytes")
        self.places, self.results, self.at = [], [], []
        args = [self.argument(i, v, guard) for i, v in enumerate(self.inputs())]
        outputs, values = self.outputs, self.loaded.get("outputs") or []
        if self.convention:  # the object, and the inputs that a call may change
            outputs = outputs + [(f"input {v['in_place']}", {}) for v in values[len(outputs):]]
        for (name, spec), value in zip(outputs, values, strict=True):
            tensor, place = value["tensor"], value.get("in_place")
            if place is not None:
                if not 0 <= place < len(self.inputs()) or not self.places[place] or self.places[place][0].numel() != tensor["bytes"]:
                    raise Failure("machine", f"python: output {name} is no input's tensor of {tensor['bytes']} bytes")
                self.at.append(place)
                self.results.append((name, tensor | {"scalar": False}, self.places[place][0]))
                continue
            if not self.destination_passing:
                self.at.append(None)
                self.results.append((name, tensor, None))
                continue
            data, band = self.device.tensor(tensor, guard)
            self.at.append(len(args))
            self.places.append((data, band))
            self.results.append((name, tensor | {"scalar": spec.get("shape") is None}, data))
            args.append(self.device.view(tensor, data))
        self.leaves = args
        self.args = self.bundle()

    @quiet
    def fresh(self, keep=False):
        """Replaces each argument by an unmodified tensor object, as the official harness does in each trial: a call can
        rebind one to other memory or change its shape. With keep, an object that has its memory and shape stays."""
        specs = [v.get("tensor") for v in self.inputs()] + [spec for i, (_, spec, _) in enumerate(self.results) if not self.in_place(i)]

        def stays(arg, place, spec):
            return place is None or keep and arg.data_ptr() == place[0].data_ptr() and list(arg.shape) == spec["shape"]

        self.leaves = [arg if stays(arg, place, spec) else self.device.view(spec, place[0])
                       for arg, place, spec in zip(self.leaves, self.places, specs, strict=False)]
        self.args = self.bundle()

    def in_place(self, i):
        """Returns whether output i is an input."""
        return self.at[i] is not None and self.at[i] < len(self.inputs())

    @quiet
    def renew(self):
        """Restores the last contents of inputs that are changed in place."""
        for i, (_, _, data) in enumerate(self.results):
            if self.in_place(i):
                try:
                    self.device.fill(data, self.inputs()[self.at[i]]["tensor"])
                except OSError as e:
                    raise Failure("machine", f"input {self.at[i]}: {describe(e)}") from None

    @quiet
    def whole(self, value):
        """Returns all outputs, or None if they were all passed: the values returned by the call, and the memory of the
        inputs that it changes."""
        if self.destination_passing:
            return None
        if self.convention:
            d = self.device
            here = [] if d.emulated else [i for i, t in enumerate(value.tensors) if t.device.type == "cpu"]
            text = bytearray(json.dumps({"tree": value.tree, "cpu": here}).encode())
            return [d.torch.frombuffer(text, dtype=d.torch.int8), *(d.alias(t, "output") for t in value.tensors)]
        changed = [i for i in range(len(self.at)) if self.in_place(i)]
        own = results(value, len(self.at) - len(changed), self.any_count)
        names = [name for i, (name, _, _) in enumerate(self.results) if i not in changed]
        own = [v if v is None else self.device.alias(v, names[i] if i < len(names) else str(i)) for i, v in enumerate(own)]
        for i in changed:
            own.insert(i, self.memory(i))
        return own

    def plain(self, value):
        """Returns the value of a call as a torch.Tensor, None, or a list or tuple of these. Whatever code of the solution
        turns other values into tensors runs here, within the timed window."""
        sys.setprofile(None)
        sys.settrace(None)
        self.collecting = gc.isenabled()
        gc.disable()  # a collection calls gc.callbacks and finalizers
        d, kind = self.device, type(value)
        if self.destination_passing:
            return None
        if self.convention:
            try:
                return Packed(*take_apart(d.torch, value, lambda v: issubclass(type(v), d.tensor_type)))
            except Foreign as e:
                raise TypeError(f"the call returned {e}") from None
        if value is None or d.exact(value):
            return value
        if issubclass(kind, (tuple, list)):
            base = tuple if issubclass(kind, tuple) else list  # its own iterator could run code of the solution
            return base(self.number(v, i) for i, v in enumerate(base.__iter__(value)))
        return self.number(value, 0)

    def number(self, v, i):
        """Returns v as a tensor, as the official harness does with numbers, arrays and lists of output i."""
        d = self.device
        if v is None or d.exact(v) or issubclass(type(v), d.tensor_type):
            return v
        name, spec, _ = self.results[i] if i < len(self.results) else (str(i), {"dtype": "float32"}, None)
        try:
            return d.torch.tensor(v, dtype=d.dtype(spec["dtype"]), device="cpu")
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"output '{name}' is of type {type(v).__name__}, not a tensor or numbers") from None

    def memory(self, i):
        """Returns a new tensor object on the memory of output i."""
        return self.device.view(*self.results[i][1:])

    def passed(self):
        """Returns aliases of the tensor objects passed for the outputs, in their present state. For an input changed in
        place this is its memory."""
        return [self.memory(i) if self.in_place(i) else self.device.alias(self.args[at], self.results[i][0]) for i, at in enumerate(self.at)]

    def inputs(self):
        return self.loaded.get("inputs") or []

    def argument(self, i, value, guard):
        self.places.append(None)
        if scalar := value.get("scalar"):
            kind = ("Int", "Float", "Bool")[scalar["Kind"]]
            return SCALARS[kind](scalar[kind])
        if value.get("tensor") is None:
            return None
        try:
            data, band = self.device.tensor(value["tensor"], guard)
            self.device.fill(data, value["tensor"])
        except (OSError, RuntimeError) as e:
            raise Failure("machine", f"input {i}: {describe(e)}") from None
        self.places[i] = data, band
        return self.device.view(value["tensor"], data)

    def addresses(self):
        """Returns the places of the arguments' tensors in this process's memory, or None if they are on a GPU."""
        guard = self.loaded.get("guard", 0)
        return [place[1].data_ptr() + guard if place else 0 for place in self.places] if self.device.emulated else None

    def judged(self):
        """Calls the solution as the official harness does when it judges."""
        if self.device.vgpu:
            self.device.machine.arguments = self.bounds()
            self.device.machine.tuned.clear()
            self.device.machine.begin_call()
        with self.device.torch.no_grad():
            return self.device.does(lambda: self.plain(self.entry(*self.args)))

    def bounds(self):
        """Returns the memory of the arguments that kernels may use, for Machine.arguments."""
        return {place[0].data_ptr(): (place[0].numel(), f"argument {i} ({self.name(i)})", i < len(self.inputs()) and i not in self.at)
                for i, place in enumerate(self.places) if place}

    def name(self, i):
        names = self.loaded.get("names") or self.names
        return names[i] if i < len(names) else str(i)

    @quiet
    def poison(self):
        """Prepares a call."""
        if self.collecting:
            gc.enable()
        for i, (name, spec, data) in enumerate(self.results):
            if self.in_place(i):
                continue
            if self.destination_passing and spec["scalar"]:
                raise Failure("call", f"output '{name}' is a scalar, which cannot be allocated")
            if self.destination_passing:
                data.fill_(POISON if "float" in spec["dtype"] else INTEGER_POISON)

    def run(self, out):
        self.fresh()
        self.renew()
        self.poison()
        with self.device.call:
            value = guard(self.device, "call", self.judged)
            guard(self.device, "call", self.device.synchronize)
        return self.store(out, guard(self.device, "call", lambda: self.whole(value)), 0)

    @quiet
    def store(self, fd, values, base):
        """Writes the outputs to a file, starting at base: values if they were returned, or the passed objects if values
        is None. It returns a description of the outputs if they differ from the request's."""
        if values is not None:
            return {"outputs": guard(self.device, "call", lambda: self.returned(fd, values, base))}
        if any(self.altered(i) for i in range(len(self.results))):
            return {"outputs": guard(self.device, "call", lambda: self.returned(fd, self.passed(), base))}
        for _, spec, data in self.results:
            write(fd, self.device.cpu(data), base + spec["offset"])
        return {}

    def altered(self, i):
        """Returns whether the object passed for output i has changed."""
        now, was = self.passed()[i], self.memory(i)
        return (self.moved(i) or now.dtype != was.dtype or now.shape != was.shape or now.stride() != was.stride()
                or now.is_conj() or now.is_neg() or now.layout != was.layout)

    def moved(self, i):
        """Returns whether the object passed for output i is in other memory now."""
        now, data = self.passed()[i], self.results[i][2]
        return now.device != data.device or now.numel() > 0 and now.data_ptr() != data.data_ptr()

    def bound(self, tensor):
        """Returns the argument in whose memory a tensor is, or -1."""
        at = tensor.data_ptr()
        for other, place in enumerate(self.places):
            if place and place[0].data_ptr() <= at < place[0].data_ptr() + place[0].numel():
                return other
        return -1

    def returned(self, fd, values, end):
        """Writes values one after the other, starting at end, and returns their descriptions."""
        outputs = []
        for i, v in enumerate(values):
            name, spec, _ = self.results[i] if i < len(self.results) else (str(i), {"dtype": "float32"}, None)
            if v is None:
                raise TypeError(f"output '{name}' is of type NoneType, not a tensor or numbers")
            if self.destination_passing and v.device != self.device.device:
                raise RuntimeError(f"output '{name}' is on {v.device}, and was passed on {self.device.device}")
            t = self.device.cpu(v.resolve_conj().resolve_neg()).contiguous()
            dtype, shape = self.device.shape(t)
            size = t.numel() * t.element_size()
            write(fd, t, end)
            outputs.append({"dtype": dtype, "shape": shape, "bytes": size, "offset": end})
            if self.destination_passing and self.moved(i):
                outputs[-1]["bound"] = self.bound(self.passed()[i])
            elif self.convention and i > 0 and size and (at := self.bound(v)) >= 0:
                outputs[-1]["bound"] = at
            end = (end + size + 255) & ~255
        return outputs
