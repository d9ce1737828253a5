"""The mode in which tensors in CPU memory appear on a CUDA device."""

import functools
import types
import weakref

import torch
from torch import _tensor_str
from torch.overrides import TorchFunctionMode

from .dlpack import DL_CUDA
from .errors import Lacking
from .stand_ins import StandIn
from .tensors import CPU, CUDA, PINNED, is_cuda, is_host, kind_of, mark, pin, real, tensors_of

READING = frozenset("""item tolist cpu numpy __array__ __bool__ __int__ __float__ __index__ __contains__ is_nonzero equal allclose nonzero
    argwhere unique unique_consecutive masked_select repeat_interleave bincount""".split())
T = torch.Tensor


class Pretence(TorchFunctionMode):
    """Makes tensors in CPU memory appear on a CUDA device, except for those that the solution has put on the CPU."""

    def __init__(self, machine):
        super().__init__()
        self.machine, self.default = machine, "cpu"
        self.special = {
            T.device.__get__: lambda t: CUDA if is_cuda(t) else t.device,
            T.is_cuda.__get__: is_cuda,
            T.is_cpu.__get__: lambda t: t.is_cpu and is_host(t),
            T.get_device: lambda t: 0 if is_cuda(t) else -1,
            T.cuda: lambda t, device=None, non_blocking=False, **kwargs: self.to(t, "cuda" if device is None else device, **kwargs),
            T.cpu: lambda t, **kwargs: self.to(t, CPU, **kwargs),
            T.pin_memory: lambda t, *args: self.pinned(t),
            T.is_pinned: lambda t, *args: PINNED in t.__dict__,
            T.type: self.type,
            T.data.__set__: self.set_data,
            T.__array__: lambda t, *args, **kwargs: NotImplemented if is_host(t) else self.numpy(t),
            T.__dlpack_device__: lambda t: (torch.utils.dlpack.DLDeviceType.kDLCPU, 0) if is_host(t) else (DL_CUDA, 0),
            T.to: self.to,
            T.data_ptr: self.data_ptr,
            T.numpy: self.numpy,
            T.__dlpack__: lambda t, **kwargs: t.detach().__dlpack__(),
            T.__repr__: self.repr,
            torch.from_dlpack: lambda t, **kwargs: t.detach() if isinstance(t, T) else NotImplemented,
            torch.as_tensor: self.as_tensor,
            **{register: functools.partial(self.hooked, register) for register in (T.register_hook, T.register_post_accumulate_grad_hook)},
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        special = self.special.get(func)
        if special and (result := special(*args, **kwargs)) is not NotImplemented:
            self.act(func, args, kwargs, result)
            return result
        device = kind_of(kwargs.get("device"))
        if device in ("cuda", "cpu"):
            kwargs = kwargs | {"device": CPU}
        pinned = kwargs.get("pin_memory")
        if pinned:
            kwargs = kwargs | {"pin_memory": False}
        try:
            result = func(*args, **kwargs)
        except (AttributeError, RuntimeError, TypeError) as e:
            self.machine.explain(func, args, kwargs, e)
            if any(isinstance(v, StandIn) for v in (*args, *kwargs.values())):
                raise Lacking(f"the virtual GPU does not support {getattr(func, '__name__', func)} of a stream or an event") from None
            raise
        if isinstance(result, (torch.Tensor, list, tuple)):
            given = list(tensors_of((args, kwargs)))
            if device is None and not given:
                device = self.default
            host = device == "cpu" if device else all(is_host(t) for t in given)
            for t in tensors_of(result):
                if not any(t is g for g in given):
                    mark(t, host)
                    if pinned:
                        pin(t)
        self.act(func, args, kwargs, result)
        return result

    def shown(self, f):
        """Returns f, code of a solution, with the device visible. torch suspends modes in the operators that it calls,
        and new threads have none."""
        @functools.wraps(f)
        def run(*args, **kwargs):
            if self.active():
                return f(*args, **kwargs)
            with self:
                return f(*args, **kwargs)

        return run

    def hooked(self, register, t, hook):
        return register(t, self.shown(hook))

    @staticmethod
    def active():
        return torch._C._len_torch_function_stack() > 0

    def act(self, func, args, kwargs, result):
        """Records whether func gives the device work: it does unless it only describes a tensor, makes a view or
        allocates."""
        if self.machine.acted or (name := getattr(func, "__name__", "")) in ("__get__", "__set__", "empty", "empty_like", "new_empty"):
            return
        given, made = list(tensors_of((args, kwargs))), list(tensors_of(result))
        if all(is_host(t) for t in (*given, *made)):
            return
        memory = {t.untyped_storage()._cdata for t in given if t.layout == torch.strided}
        self.machine.acted = (self.reads(func, args, kwargs) or result is None or "out" in kwargs
                              or (name.startswith("__i") if name.startswith("__") else name.endswith("_"))
                              or any(t.layout != torch.strided or t.untyped_storage()._cdata not in memory for t in made))

    @staticmethod
    def reads(func, args, kwargs):
        """Returns whether the host, or the shape of a result, depends on the contents of tensors."""
        name = getattr(func, "__name__", "")
        if name == "to":
            return any(kind_of(v) == "cpu" for v in (*args[1:], *kwargs.values()))
        if name in ("__getitem__", "__setitem__"):
            return any(t.dtype in (torch.bool, torch.uint8) for t in tensors_of(args[1:2]))
        return name in READING or name == "where" and len(args) == 1  # which is nonzero

    @staticmethod
    def moved(t, host):
        if is_host(t) == host:
            return t
        t = t.clone()
        mark(t, host)
        return t

    def to(self, t, *args, **kwargs):
        device = kind_of(kwargs.get("device", args[0] if args else None))
        other = kwargs.get("other", args[0] if args and isinstance(args[0], torch.Tensor) else None)
        host = is_host(t)
        if other is not None:
            host = is_host(other)
        elif device:
            host = device == "cpu"
            if "device" in kwargs:
                kwargs["device"] = CPU if device in ("cpu", "cuda") else kwargs["device"]
            elif device in ("cpu", "cuda"):
                args = (CPU, *args[1:])
        result = t.to(*args, **kwargs)
        if result is t:
            return self.moved(t, host)
        mark(result, host)
        return result

    def pinned(self, t):
        if not is_host(t):
            raise RuntimeError(f"cannot pin '{self.type(t)}' only dense CPU tensors can be pinned")
        if PINNED in t.__dict__:
            return t
        t = t.clone()
        pin(t)
        return t

    @staticmethod
    def set_data(t, value):
        t.data = value
        mark(t, is_host(value))

    def type(self, t, dtype=None, *args, **kwargs):
        if dtype is None:
            with real():
                return t.type().replace("torch.", "torch.cuda.") if is_cuda(t) else t.type()
        if isinstance(dtype, torch.dtype):
            return NotImplemented
        name = dtype if isinstance(dtype, str) else torch.typename(dtype)
        space, _, name = name.rpartition(".")
        return self.to(t, "cuda" if space == "torch.cuda" else "cpu", getattr(torch, name).dtype)

    def data_ptr(self, t):
        at = t.data_ptr()
        if not is_host(t):
            self.machine.pointers[at] = weakref.ref(t)
        return at

    @staticmethod
    def as_tensor(data, **kwargs):
        if isinstance(data, torch.Tensor) or not hasattr(data, "__cuda_array_interface__"):
            return NotImplemented
        import numpy
        t = torch.from_numpy(numpy.asarray(types.SimpleNamespace(__array_interface__=data.__cuda_array_interface__)))
        mark(t, False)
        return t

    @staticmethod
    def repr(t, **kwargs):
        if is_host(t):
            return T.__repr__(t, **kwargs)
        add = _tensor_str._add_suffixes

        def add_device(text, suffixes, *args, **kwargs):
            device = [] if any(s.startswith("device=") for s in suffixes) else ["device='cuda:0'"]
            return add(text, device + suffixes, *args, **kwargs)

        _tensor_str._add_suffixes = add_device
        try:
            return T.__repr__(t, **kwargs)
        finally:
            _tensor_str._add_suffixes = add

    @staticmethod
    def numpy(t, **kwargs):
        if not is_host(t):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
        return t.numpy(**kwargs)
