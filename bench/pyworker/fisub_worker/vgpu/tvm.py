"""tvm-ffi on the virtual GPU: what it builds, and tensors that its functions take and return."""

import ctypes
import functools
import os

import torch

from .dlpack import DL_CPU, DL_CUDA, DTYPES, VERSIONED_KIND, DLTensor, device_of, pointer_of
from .tensors import is_host, mark, real


def given(value, tensors):
    """Converts value for tvm-ffi, and adds its tensors to tensors."""
    import tvm_ffi
    if isinstance(value, (list, tuple)):
        return type(value)([given(v, tensors) for v in value])
    if not isinstance(value, torch.Tensor):
        return value
    capsule = torch.utils.dlpack.to_dlpack(value.detach())
    if not is_host(value):
        device_of(capsule).value = DL_CUDA
        tensors.append((value, f"tensor {len(tensors)} of the call"))
    return getattr(tvm_ffi, "_fisub", tvm_ffi.from_dlpack)(capsule)


def calling(machine, call):
    """Returns call, a method of a function of tvm-ffi, for tensors on the virtual GPU."""
    @functools.wraps(call)
    def run(self, *args, **kwargs):
        with torch._C.DisableTorchFunction(), real():
            tensors = []
            args, kwargs = [given(v, tensors) for v in args], {name: given(v, tensors) for name, v in kwargs.items()}
            with machine.mapped(tensors):
                return call(self, *args, **kwargs)

    return run


def expose(machine):
    """Makes tvm-ffi build for the virtual GPU, and its functions accept tensors on it."""
    try:
        import tvm_ffi
        import tvm_ffi.cpp.extension as extension
    except ImportError:
        return
    if hasattr(tvm_ffi, "_fisub"):
        return
    tvm_ffi._fisub = from_dlpack = tvm_ffi.from_dlpack
    load_module, global_func = tvm_ffi.load_module, tvm_ffi.get_global_func

    def taken(value):
        if isinstance(value, (list, tuple, tvm_ffi.Array)):
            return [taken(v) for v in value]
        if not isinstance(value, tvm_ffi.Tensor):
            return Function(value) if isinstance(value, tvm_ffi.Function) else value
        capsule = value.__dlpack__()
        kind = device_of(capsule)
        host, kind.value = kind.value != DL_CUDA, DL_CPU
        t = torch.utils.dlpack.from_dlpack(capsule)
        mark(t, host)
        return t

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
                      ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p))
    def allocate(prototype, out, context, fail):
        p = prototype[0]
        try:
            with torch._C.DisableTorchFunction(), real():
                t = torch.empty(p.shape[:p.ndim], dtype=DTYPES[p.code, p.bits])
                capsule = torch._C._to_dlpack_versioned(t)
                at = pointer_of(capsule, b"dltensor_versioned")
                ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor_versioned")
                if p.kind == DL_CUDA:
                    ctypes.c_int32.from_address(at + VERSIONED_KIND).value = DL_CUDA
                    machine.own(t)
                out[0] = at
            return 0
        except Exception as e:
            fail(context, type(e).__name__.encode(), str(e).encode())
            return -1

    machine.allocate = allocate
    tvm_ffi.LIB.TVMFFIEnvSetDLPackManagedTensorAllocator(allocate, 1, None)

    class Function:
        def __init__(self, f):
            self.f = f

        def __call__(self, *args):
            with torch._C.DisableTorchFunction(), real():
                tensors = []
                args = [given(value, tensors) for value in args]
                with machine.mapped(tensors):
                    return taken(self.f(*args))

    class Module:
        def __init__(self, module):
            self._module = module

        def __getattr__(self, name):
            found = getattr(self._module, name)
            return Function(found) if isinstance(found, tvm_ffi.Function) else found

        def __getitem__(self, name):
            return Function(self._module[name])

        def get_function(self, *args, **kwargs):
            return Function(self._module.get_function(*args, **kwargs))

    def load(path, *args, **kwargs):
        if machine.home:  # before a CUDA runtime that torch has loaded
            ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        return Module(load_module(path, *args, **kwargs))

    def view(value, *args, **kwargs):
        if not isinstance(value, torch.Tensor):
            return from_dlpack(value, *args, **kwargs)
        with torch._C.DisableTorchFunction(), real():
            machine.kept.append(value)
            return given(value, [])

    def built(build):
        @functools.wraps(build)
        def run(*args, **kwargs):
            with machine.building():
                return machine.home and build(*args, **kwargs)

        return run

    for name in ("build", "build_inline", "load", "load_inline"):
        setattr(extension, name, built(getattr(extension, name)))
        setattr(tvm_ffi.cpp, name, getattr(extension, name))
    tvm_ffi.load_module = tvm_ffi.module.load_module = extension.load_module = load
    tvm_ffi.from_dlpack = view
    tvm_ffi.get_global_func = lambda *args, **kwargs: (f := global_func(*args, **kwargs)) and Function(f)
