"""Extensions of torch on the virtual GPU: torch.utils.cpp_extension, and the modules that it builds."""

import contextlib
import ctypes
import fcntl
import functools
import glob
import importlib.util
import inspect
import os
import sys
import types
import warnings

import torch
from torch.utils import cpp_extension

from .dlpack import DL_CPU, DL_CUDA, device_of
from .errors import Lacking
from .tensors import CPU, is_host, mark, real

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_cuda.cpp")


def extend(machine):
    """Makes torch.utils.cpp_extension build for the virtual GPU. It raises a Failure if the shared parts are missing."""
    if hasattr(cpp_extension, "_fisub"):
        return
    builder = Builder(machine)
    with contextlib.suppress(Lacking):  # the build reports the error
        builder.shared()
    cpp_extension._fisub = True
    machine.extension = builder.extension
    cpp_extension._prepare_ldflags = builder.ldflags
    cpp_extension.load, cpp_extension.load_inline = builder.built(builder.load), builder.built(cpp_extension.load_inline)


class Builder:
    """torch's own builder for the virtual GPU."""

    def __init__(self, machine):
        self.machine = machine
        self.load, self.prepare = cpp_extension.load, cpp_extension._prepare_ldflags
        self.wrapper = None  # after the first module
        self.standing_in = []  # the library that replaces torch's for CUDA
        self.failed = {}  # errors of builds, by name: torch would take a failed build for done the second time

    def shared(self):
        """Returns the folder of the parts that do not depend on the sources: that library, and the headers that torch's
        include, such as cuBLAS, without those of another CUDA's runtime."""
        machine = self.machine
        roots = getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", None) or []
        headers = sorted(path for root in roots for path in glob.glob(os.path.join(root, "*", "include", "*"))
                         if not os.path.exists(os.path.join(machine.home, "include", os.path.basename(path))))

        def make(folder):
            os.mkdir(os.path.join(folder, "headers"))
            for path in headers:
                with contextlib.suppress(FileExistsError):
                    os.symlink(path, os.path.join(folder, "headers", os.path.basename(path)))
            cpp_extension.CUDA_HOME = machine.home
            with machine.building(), real():
                self.load("fisub_torch_cuda", [SOURCE], extra_include_paths=[os.path.join(machine.home, "include")],
                          is_python_module=False, with_cuda=True, extra_cflags=["-O1"], build_directory=folder)

        with open(SOURCE) as f:
            return machine.prebuilt("torch-cuda", [f.read(), machine.home, headers], make)

    @contextlib.contextmanager
    def loading(self):
        """Allows loading a library that uses torch's CUDA libraries."""
        flags = sys.getdlopenflags()
        try:
            with real():
                sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
                if not self.standing_in:
                    library = os.path.join(self.shared(), "fisub_torch_cuda.so")
                    torch.ops.load_library(library)
                    self.standing_in.append(library)
                yield
        finally:
            sys.setdlopenflags(flags)

    @contextlib.contextmanager
    def alone(self, folder):
        """Locks out other builds of this solution, and removes stale locks: torch would wait forever for a killed
        build."""
        own = self.machine.folder
        os.makedirs(own, exist_ok=True)
        with open(os.path.join(own, "alone"), "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            for path in glob.glob(os.path.join(own, "*", "lock")) + [os.path.join(folder or own, "lock")]:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)
            yield

    def ldflags(self, *args, **kwargs):
        return [*self.standing_in, *(f for f in self.prepare(*args, **kwargs) if f not in ("-lc10_cuda", "-ltorch_cuda"))]

    def wrapped(self, module):
        if not self.wrapper:
            self.wrapper = Wrapper(self.machine)
        return self.wrapper.module(module)

    def extension(self, load):
        """Returns the module loaded by load, which was linked with ldflags."""
        with self.loading():
            module = load()
        return self.wrapped(module)

    def built(self, build):
        """Returns build, which is load or load_inline, for the virtual GPU."""
        machine, signature = self.machine, inspect.signature(build)

        @functools.wraps(build)
        def run(*args, **kwargs):
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if not given.arguments["is_python_module"] or given.arguments.get("is_standalone"):
                raise Lacking(f"the virtual GPU does not support {build.__name__} without a Python module")
            cpp_extension.CUDA_HOME = machine.home
            with machine.building(), self.loading(), self.alone(given.arguments["build_directory"]):
                paths = given.arguments["extra_include_paths"] or []
                given.arguments["extra_include_paths"] = [
                    os.path.join(machine.home, "include"), *([paths] if isinstance(paths, str) else paths),
                    os.path.join(self.shared(), "headers")]
                os.environ["TORCH_EXTENSIONS_DIR"] = machine.folder  # torch identifies an extension only by its name
                name = given.arguments["name"]
                if name in self.failed:
                    raise self.failed[name]
                try:
                    module = build(*given.args, **given.kwargs)
                except Exception as e:
                    self.failed[name] = e
                    raise
            return module and self.wrapped(module)

        return run


class Wrapper:
    """Wraps modules built by torch.utils.cpp_extension. Their C++ code sees CUDA tensors, whose memory is the CPU's. The
    CPU executes their calls of torch."""

    def __init__(self, machine):
        self.machine = machine
        self.library = torch.library.Library("aten", "IMPL")
        keys = ("CUDA", "CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
        names = set().union(*(torch._C._dispatch_get_registrations_for_dispatch_key(key) for key in keys))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about replacing registered kernels
            for name in sorted(name.removeprefix("aten::") for name in names if name.startswith("aten::")):
                packet, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, packet), overload or "default")
                if not any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):  # no views
                    self.library.impl(name, functools.partial(self.on_cpu, op), "CUDA")
        # A guard of the CUDA device would call the driver; the CPU's does nothing.
        libc10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        guards = (ctypes.c_void_p * 2).in_dll(libc10, "_ZN3c104impl26device_guard_impl_registryE")
        guards[DL_CUDA - 1] = guards[DL_CPU - 1]

    @staticmethod
    def seen(t, kind):
        """Returns t with another kind of device, on the same memory."""
        capsule = torch._C._to_dlpack(t.detach() if t.requires_grad else t)
        device_of(capsule).value = kind
        return torch._C._from_dlpack(capsule)

    def on_cpu(self, op, *args, **kwargs):
        given = []

        def to_cpu(value):
            if isinstance(value, torch.Tensor) and value.is_cuda:
                given.append((self.seen(value, DL_CPU), value))
                return given[-1][0]
            if isinstance(value, (list, tuple)):
                return type(value)([to_cpu(v) for v in value])
            return CPU if isinstance(value, torch.device) else value

        def back(value):
            if isinstance(value, (list, tuple)):
                return type(value)([back(v) for v in value])
            if not isinstance(value, torch.Tensor):
                return value
            for t, cuda in given:
                if value is t:
                    return cuda
            if not any(value.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t, _ in given):
                self.machine.own(value)
            return self.seen(value, DL_CUDA)

        to_host = any(isinstance(v, torch.device) and v.type == "cpu" for v in (*args, *kwargs.values()))
        args, kwargs = [to_cpu(v) for v in args], {name: to_cpu(v) for name, v in kwargs.items() if name != "pin_memory"}
        result = op(*args, **kwargs)
        return result if to_host else back(result)

    def call(self, f, args, kwargs):
        given, tensors = [], []

        def to_cuda(value):
            if isinstance(value, (list, tuple)):
                return type(value)([to_cuda(v) for v in value])
            if not isinstance(value, torch.Tensor) or is_host(value):
                return value
            tensors.append((value, f"tensor {len(tensors)} of the call"))
            given.append((self.seen(value, DL_CUDA), value))
            return given[-1][0]

        def back(value):
            if isinstance(value, (list, tuple)):
                return type(value)([back(v) for v in value])
            if not isinstance(value, torch.Tensor):
                return value
            for cuda, t in given:
                if value is cuda:
                    return t
            host = not value.is_cuda
            t = value if host else self.seen(value, DL_CPU)
            mark(t, host)
            return t

        self.machine.acted = True  # its calls of torch are not observed
        with torch._C.DisableTorchFunction(), real():
            args, kwargs = [to_cuda(v) for v in args], {name: to_cuda(v) for name, v in kwargs.items()}
            with self.machine.mapped(tensors):
                return back(f(*args, **kwargs))

    def module(self, module):
        def wrapped(value, name):
            if isinstance(value, type):
                raise Lacking(f"the virtual GPU does not support {name}, a class of an extension")
            return functools.wraps(value)(lambda *args, **kwargs: self.call(value, args, kwargs)) if callable(value) else value

        class Module(types.ModuleType):
            def __getattr__(_, name):
                return wrapped(getattr(module, name), name)

        return Module(module.__name__)
