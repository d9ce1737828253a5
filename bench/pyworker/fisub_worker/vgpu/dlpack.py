"""Tensors in DLPack capsules, whose device can be replaced."""

import ctypes

import torch

KIND = 8  # offset of the device's kind in the target of a DLPack capsule
VERSIONED_KIND = 40  # and in the target of a versioned one
DL_CPU, DL_CUDA = 1, 2
DTYPES = {(0, 8): torch.int8, (0, 16): torch.int16, (0, 32): torch.int32, (0, 64): torch.int64, (1, 8): torch.uint8, (2, 16): torch.float16,
          (2, 32): torch.float32, (2, 64): torch.float64, (4, 16): torch.bfloat16, (6, 8): torch.bool, (10, 8): torch.float8_e4m3fn,
          (12, 8): torch.float8_e5m2}  # by DLPack's code and bits


def device_of(capsule):
    """Returns the kind of the device in a DLPack capsule, for reading and writing."""
    return ctypes.c_int32.from_address(pointer_of(capsule, b"dltensor") + KIND)


def pointer_of(capsule, name):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer(capsule, name)


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]
