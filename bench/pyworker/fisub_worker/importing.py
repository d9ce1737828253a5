"""Gives the modules that a program imports the virtual GPU. It needs only the standard library."""

import functools
import importlib.machinery
import importlib.metadata
import os
import sys

from .image import TRITON

# Libraries that use a GPU in ways the virtual GPU does not know. They can be imported, but not used.
REFUSED = {"cupy": "CuPy", "pycuda": "PyCUDA", "numba.cuda": "Numba's kernels", "tilelang": "TileLang", "nvmath": "nvmath"}
REMEDY = f"FISUB_PYTHON={sys.executable} fisub toolchain install fetches Triton {TRITON}, without a change to that Python"


# Of the CuTe DSL and FlashInfer: lines for messages about faults, and no files with compiled code, which they would use
# on a GPU too.
SETTINGS = {"CUTE_DSL_LINEINFO": "1", "CUTE_DSL_DISABLE_FILE_CACHING": "1", "FLASHINFER_CUTE_DSL_DISABLE_CACHE": "1"}


def start():
    os.environ.pop("TRITON_INTERPRET", None)  # read when triton is imported
    os.environ.update(SETTINGS)
    sys.meta_path.insert(0, Finder(os.dup(2)))


class Changes:
    """Finds modules like Python, and changes some of them once they are imported. changes has a function for each."""

    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        return self.changed(name, path, target) if name in self.changes else None

    def changed(self, name, path, target):
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                break
        else:
            return None
        if spec.loader in sys.meta_path or name not in self.changes:  # for instance a stub
            return spec
        load, change = spec.loader.exec_module, self.changes[name]

        def exec_module(module):
            load(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


class Finder(Changes):
    """Finds the modules of a program that fisub emu runs."""

    def __init__(self, messages):
        self.messages = messages  # descriptor of stderr: pytest redirects the program's
        self.changes = {"torch": self.torch, "triton": self.triton, "torch.utils.cpp_extension": self.extensions, "tvm_ffi": self.tvm,
                        "cutlass": self.cute_dsl, "cuda.bindings.driver": self.bindings, "cuda.bindings.runtime": self.bindings,
                        "triton.profiler.profile": self.profiler, "torch._subclasses.fake_tensor": self.fake}

    @functools.cached_property
    def machine(self):
        from .vgpu.program import Program
        return Program(self.messages)

    def find_spec(self, name, path=None, target=None):
        refused = REFUSED.get(name)
        if name not in self.changes and not refused:
            return None
        if name == "triton":
            self.choose()
        spec = self.changed(name, path, target)
        if spec is None and name == "triton" and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":  # the program does not only ask
            raise ModuleNotFoundError(f"No module named 'triton': {REMEDY}", name=name)
        return self.refused(name, refused) if spec and refused else spec

    def refused(self, name, title):
        from .vgpu import missing
        missing.stub(name, f"the virtual GPU does not support {title}: it supports PyTorch, Triton, torch's extensions, tvm-ffi and the CuTe DSL")
        return missing.finder.find_spec(name)

    def choose(self):
        """Makes the contest's Triton the one that is found, if it is in fisub's cache."""
        if (has := version()) == TRITON:
            return
        tag = f"{'cp' * (sys.implementation.name == 'cpython')}{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}"
        folders = dict(part.split("=", 1) for part in os.environ.get("FISUB_EMU_TRITON", "").split(os.pathsep) if part)
        if tag in folders:
            sys.path.insert(0, folders[tag])
        elif has:
            self.torch_needed()
            self.machine.lacks(f"Triton {has} of {sys.executable} does not run on the virtual GPU, which needs Triton {TRITON}: {REMEDY}")

    @staticmethod
    def torch_needed():
        import torch  # noqa: F401

    def torch(self, module):
        self.machine.begin()

    def triton(self, module):
        self.torch_needed()
        from .vgpu import install
        install(self.machine)

    def bindings(self, module):
        self.torch_needed()
        from .vgpu import bindings
        bindings.install(self.machine, module)

    def profiler(self, module):
        from .vgpu.torch_cuda import lacking
        module.start = lacking("Triton's profiler: fisub emu --profile counts what kernels do")

    def fake(self, module):
        make = module.FakeTensor.__new__

        @functools.wraps(make)
        def run(cls, fake_mode, elem, device, *args, **kwargs):
            if device.type == "cuda":
                self.machine.lacks("the virtual GPU does not support fake tensors on it, for instance of torch.export")
            return make(cls, fake_mode, elem, device, *args, **kwargs)

        module.FakeTensor.__new__ = staticmethod(run)

    def extensions(self, module):
        from .vgpu.extensions import extend
        extend(self.machine)

    def cute_dsl(self, module):
        self.torch_needed()
        from .vgpu import cute_dsl
        cute_dsl.install(self.machine)

    def tvm(self, module):
        from .vgpu import tvm
        tvm.expose(self.machine)


def version():
    try:
        return importlib.metadata.version("triton")
    except Exception:
        return ""
