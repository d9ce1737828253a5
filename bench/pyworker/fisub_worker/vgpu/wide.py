"""Operations that torch computes in float32 on a GPU, and in float16 or bfloat16 in its CPU build, whose sums then lose
much more."""

import functools
import warnings

import torch

from .tensors import is_host

LOW = (torch.float16, torch.bfloat16)
# The number of results that become float16 or bfloat16 again. The others, such as the mean of native_layer_norm, do not.
OPERATIONS = {"native_layer_norm": 1, "native_layer_norm_backward": 3, "convolution": 1, "convolution_backward": 3,
              "embedding_dense_backward": 1, "_index_put_impl_": 1, "max_pool2d_with_indices_backward": 1,
              "max_pool3d_with_indices_backward": 1, "grid_sampler_2d": 1, "grid_sampler_2d_backward": 2, "grid_sampler_3d": 1,
              "grid_sampler_3d_backward": 2, "col2im": 1, "prod": 1, "prod.dim_int": 1}


def install():
    """Makes the operations above compute in float32 for tensors on the CUDA device, and returns the library for it."""
    library = torch.library.Library("aten", "IMPL")
    if not hasattr(torch.library, "get_kernel"):  # an old torch
        return library
    for name, results in OPERATIONS.items():
        kernel = own_kernel(name)
        quietly(library.impl, name, widened(kernel, results), "CPU", allow_override=True)
    for name in ("mm", "bmm", "addmm", "baddbmm"):  # torch.mm(a, b, out_dtype=torch.float32)
        library.impl(f"{name}.dtype", functools.partial(with_dtype, getattr(torch.ops.aten, name).default), "CPU")
    return library


def quietly(f, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # about an override
        return f(*args, **kwargs)


def with_dtype(op, *args, **kwargs):
    *tensors, dtype = args
    return op(*(t.to(dtype) for t in tensors), **kwargs)


def own_kernel(name):
    """Returns torch's kernel of an operation for the CPU. It raises RuntimeError if there is none."""
    kernel, keys = torch.library.get_kernel(f"aten::{name}", "CPU"), torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    packet, _, overload = name.partition(".")
    kinds = [str(a.type) for a in getattr(getattr(torch.ops.aten, packet), overload or "default")._schema.arguments]

    def run(*args, **kwargs):
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if first is not None:  # torch passes a number in a tensor as a number
            args = [torch.tensor(a, dtype=torch.result_type(first, a)) if kind == "Tensor" and isinstance(a, (int, float, complex)) else a
                    for a, kind in zip(args, kinds)]
        return kernel.call_boxed(keys, *args, **kwargs)

    return run


def widened(kernel, results):
    def run(*args, **kwargs):
        low = next((t.dtype for t in args if isinstance(t, torch.Tensor) and t.dtype in LOW and not is_host(t)), None)
        if low is None or kwargs.get("dtype") not in (None, low):
            return kernel(*args, **kwargs)
        wide = [t.float() if isinstance(t, torch.Tensor) and t.dtype in LOW else t for t in args]
        result = kernel(*wide, **kwargs | ({"dtype": torch.float32} if "dtype" in kwargs else {}))
        if result is wide[0]:  # an operation in place
            return args[0].copy_(result)
        if isinstance(result, torch.Tensor):
            return result.to(low)
        return tuple(t.to(low) if i < results and t is not None else t for i, t in enumerate(result))

    return run
