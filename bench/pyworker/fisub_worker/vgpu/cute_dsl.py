"""NVIDIA's CuTe DSL, version 4.4 or later, on the virtual GPU.

The DSL compiles kernels to PTX and machine code, and host code that loads the latter. Here the host code gets both, in
one fat binary, and calls fisub's functions (device/vgpu/host/cute_dsl.c) instead of those in the DSL's own library.
"""

import functools
import glob
import os
import re
import struct
import tempfile
import weakref

import torch

from .b200 import MULTIPROCESSORS
from .dlpack import DL_CUDA, device_of
from .errors import Lacking
from .tensors import is_cuda, real, tensors_of

ENTRY = "<HHIQIIIIQQQQ"  # header of an entry of a fat binary
FATBIN, ELF = struct.pack("<I", 0xba55ed50), b"\x7fELF"
PTX_KIND, ELF_KIND = 1, 2
# In PTX: the folder of a submission's sources, which differs between runs.
FOLDER = re.compile(rb'(?m)^(\s*\.file\s+\d+\s+")[^"]*/python/[0-9a-f]{32}/[^/"]+/')


def install(machine):
    """Makes the virtual GPU the device of the DSL, whose package was just imported."""
    try:
        import cutlass
        from cutlass.base_dsl import compiler, env_manager, jit_executor
        from cutlass.cute import runtime
    except ImportError:
        return  # another package of this name
    if not hasattr(cutlass, "__version__"):  # 4.3 or older
        raise Lacking("the virtual GPU does not support this version of the CuTe DSL: it needs 4.4 or later")
    from cutlass.utils import HardwareInfo
    library = os.path.join(machine.runtime, "lib64", "libcuda.so")
    own = env_manager.get_prefix_dsl_libs("CUTE_DSL")
    os.environ["CUTE_DSL_LIBS"] = os.pathsep.join([library, own] if own else [library])
    compiler.Compiler.compile = with_ptx(compiler.Compiler.compile)
    runtime._Tensor.__init__ = on_device(machine, runtime._Tensor.__init__)
    jit_executor.JitExecutor.run_compiled_program = mapped(machine, jit_executor.JitExecutor.run_compiled_program)
    HardwareInfo.get_max_active_clusters = lambda self, size, *args, **kwargs: MULTIPROCESSORS // size
    try:
        from cutlass.cutlass_dsl import tvm_ffi_provider as provider
    except ImportError:
        return  # there is no tvm-ffi
    from . import tvm
    tvm.expose(machine)
    for kind in (provider.TVMFFIJitCompiledFunction, provider.TVMFFIJitCompiledFunctionWithKwargs):
        kind.__call__ = tvm.calling(machine, kind.__call__)


def with_ptx(compile):
    """Returns Compiler.compile, which is compile, for modules with PTX."""
    @functools.wraps(compile)
    def run(self, module, pipeline, *args, **kwargs):
        with tempfile.TemporaryDirectory() as folder:
            if found := re.search(r"dump-ptx-path=(\S+?)[\s}]", pipeline):  # the program wants the file
                path = found[1].strip("'\"")
            else:
                path = os.path.join(folder, "kernels")
                pipeline = pipeline.replace("cubin-format=bin", f"cubin-format=bin dump-ptx-path={path}")
            result = compile(self, module, pipeline, *args, **kwargs)
            texts = sorted(glob.glob(glob.escape(path) + "*.ptx"), key=os.path.getmtime)
            if not texts:
                return result
            with open(texts[-1], "rb") as f:
                add_ptx(module, FOLDER.sub(rb"\1", f.read()))
        return result

    return run


def add_ptx(module, ptx):
    """Adds ptx to the machine code in a compiled module."""
    from cutlass._mlir import ir
    images = []
    for op in module.body.operations:
        attributes = op.operation.attributes
        if op.operation.name == "llvm.mlir.global" and "value" in attributes and isinstance(value := attributes["value"], ir.StringAttr):
            if value.value_bytes[:4] in (FATBIN, ELF):
                images.append((attributes, value.value_bytes))
    if len(images) != 1:
        raise Lacking(f"the virtual GPU does not support {len(images)} modules of machine code in one function of the CuTe DSL")
    attributes, code = images[0]
    code = image(code, ptx)
    with module.context:
        attributes["value"] = ir.StringAttr.get(code)
        attributes["global_type"] = ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{len(code)} x i8>"))


def image(code, ptx):
    """Returns a fat binary with machine code, which may be one already, and with ptx."""
    arch = int(re.search(rb"^\.target sm_(\d+)", ptx, re.M)[1])

    def entry(kind, data):
        data += bytes(-len(data) % 8 or 8)  # PTX ends with a zero
        return struct.pack(ENTRY, kind, 0x101, struct.calcsize(ENTRY), len(data), 0, 0, 0, arch, 0, 0, 0, 0) + data

    if code[:4] == FATBIN:
        head, size = struct.unpack_from("<HQ", code, 6)
        entries = code[head:head + size]
    else:
        entries = entry(ELF_KIND, code)
    entries += entry(PTX_KIND, ptx)
    return FATBIN + struct.pack("<HHQ", 1, 16, len(entries)) + entries


def on_device(machine, init):
    """Returns the constructor of the DSL's tensors, which is init, for tensors on the device."""
    @functools.wraps(init)
    def run(self, tensor, *args, **kwargs):
        init(self, tensor, *args, **kwargs)
        if isinstance(tensor, torch.Tensor) and is_cuda(tensor):
            with real():
                device_of(self._dlpack_data).value = DL_CUDA
                self._fisub_tensor = tensor  # as long as a kernel may use it
                machine.pointers[tensor.data_ptr()] = weakref.ref(tensor)

    return run


def mapped(machine, run):
    """Returns a method that launches kernels, which is run, for kernels that use tensors on the device."""
    @functools.wraps(run)
    def launch(*args, **kwargs):
        with machine.mapped([(t, "a tensor of the call") for t in tensors_of((args, kwargs)) if is_cuda(t)]):
            return run(*args, **kwargs)

    return launch
