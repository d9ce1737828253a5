"""NVIDIA's Python bindings of CUDA (cuda.bindings), of which the virtual GPU has the functions that ask for the device."""

import ctypes
import os

from .torch_cuda import lacking


def install(machine, module):
    """Gives cuda.bindings.driver or cuda.bindings.runtime, which was just imported, the virtual GPU."""
    for name, value in list(vars(module).items()):
        if name.startswith("cu") and callable(value) and not isinstance(value, type):
            setattr(module, name, lacking(f"{module.__name__}.{name}"))
    table = driver if hasattr(module, "CUresult") else runtime
    for name, f in table(module, lambda: ctypes.CDLL(os.path.join(machine.runtime, "lib64", "libcuda.so"))).items():
        setattr(module, name, f)


def number(library, name, *args):
    value = ctypes.c_int()
    return getattr(library, name)(ctypes.byref(value), *(int(a) for a in args)), value.value


def text(library, name, error):
    value = ctypes.c_char_p()
    return getattr(library, name)(int(error), ctypes.byref(value)), value.value


def pointer(handle):
    return ctypes.c_void_p(int(handle))


def driver(module, library):
    """Returns functions of the driver. library returns the virtual GPU's."""
    status, context = module.CUresult, module.CUcontext(1)

    def answer(result):
        return status(result[0]), *result[1:]

    def total(device):
        size = ctypes.c_size_t()
        return status(library().cuDeviceTotalMem_v2(ctypes.byref(size), int(device))), size.value

    def device(n):
        return (status(0), module.CUdevice(0)) if n == 0 else (status.CUDA_ERROR_INVALID_DEVICE, None)

    def synchronize(*args):
        return status(library().cuCtxSynchronize()),

    def event(flags):
        value = ctypes.c_void_p()
        return status(library().cuEventCreate(ctypes.byref(value), int(flags))), module.CUevent(value.value or 0)

    def elapsed(begun, ended):
        value = ctypes.c_float()
        return status(library().cuEventElapsedTime_v2(ctypes.byref(value), pointer(begun), pointer(ended))), value.value

    return {"cuEventCreate": event, "cuEventElapsedTime": elapsed,
            "cuEventRecord": lambda e, stream: (status(library().cuEventRecord(pointer(e), pointer(stream))),),
            "cuEventSynchronize": lambda e: (status(library().cuEventSynchronize(pointer(e))),),
            "cuEventDestroy": lambda e: (status(library().cuEventDestroy_v2(pointer(e))),),
            "cuInit": lambda flags: (status(0),), "cuDriverGetVersion": lambda: answer(number(library(), "cuDriverGetVersion")),
            "cuDeviceGetCount": lambda: (status(0), 1), "cuDeviceGet": device, "cuDeviceGetName": lambda n, d: (status(0), b"NVIDIA B200"),
            "cuDeviceGetAttribute": lambda a, d: answer(number(library(), "cuDeviceGetAttribute", a, d)), "cuDeviceTotalMem": total,
            "cuCtxCreate": lambda *args: (status(0), context), "cuCtxGetCurrent": lambda: (status(0), context),
            "cuCtxSetCurrent": lambda c: (status(0),), "cuCtxGetDevice": lambda: device(0), "cuDevicePrimaryCtxRetain": lambda d: (status(0), context),
            "cuDevicePrimaryCtxRelease": lambda d: (status(0),), "cuCtxSynchronize": synchronize, "cuStreamSynchronize": synchronize,
            "cuGetErrorName": lambda e: answer(text(library(), "cuGetErrorName", e)),
            "cuGetErrorString": lambda e: answer(text(library(), "cuGetErrorString", e))}


def runtime(module, library):
    """Returns functions of the runtime."""
    status = module.cudaError_t

    def attribute(a, device):
        error, value = number(library(), "cuDeviceGetAttribute", a, device)
        return status(error), value

    def synchronize(*args):
        return status(library().cuCtxSynchronize()),

    return {"cudaGetDeviceCount": lambda: (status(0), 1), "cudaGetDevice": lambda: (status(0), 0), "cudaSetDevice": lambda n: (status(n and 101),),
            "cudaDeviceGetAttribute": attribute, "cudaDeviceSynchronize": synchronize, "cudaStreamSynchronize": synchronize,
            "cudaGetErrorName": lambda e: (status(0), text(library(), "cuGetErrorName", e)[1]),
            "cudaGetErrorString": lambda e: (status(0), text(library(), "cuGetErrorString", e)[1]), "cudaLibraryUnload": lambda library: (status(0),)}
