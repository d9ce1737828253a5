"""The parts of a CUDA device in torch that programs need and submissions do not."""

import functools
import os
import re
import sys

import torch

from . import autocast, torch_cuda
from .errors import Lacking
from .tensors import CPU, CUDA, PINNED, HOST, hosted, is_cuda, is_host, kind_of, mark, real

ON_CUDA = "_fisub_cuda"  # an attribute of storages of saved and loaded tensors on the CUDA device
GPU_FUNCTIONS = re.compile(r"_cuda_|_cudart$|_nccl_|(_scatter|_gather|_broadcast)(_out|_coalesced)?$")  # of torch._C


def install(machine):
    cuda, random = torch.cuda, torch.random
    for name in ("manual_seed", "manual_seed_all"):
        setattr(cuda, name, lambda seed: random.default_generator.manual_seed(int(seed)) and None)
    for name in ("seed", "seed_all"):
        setattr(cuda, name, lambda: random.default_generator.seed() and None)
    torch.get_rng_state = random.get_rng_state = hosted(random.get_rng_state)
    cuda.get_rng_state, cuda.get_rng_state_all = lambda device="cuda": random.get_rng_state(), lambda: [random.get_rng_state()]
    cuda.set_rng_state = lambda state, device="cuda": random.set_rng_state(state)
    cuda.set_rng_state_all = lambda states: random.set_rng_state(states[0])
    cuda.initial_seed = random.initial_seed
    torch.Generator = Generator
    cuda.default_generators = (random.default_generator,)
    cuda._lazy_init = needs_gpu
    for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):
        setattr(cuda.nvtx, name, lambda *args, **kwargs: None)
    cuda.profiler.start = cuda.profiler.stop = lambda: None  # for a tool that is not there
    torch._C._get_accelerator = lambda *args: CUDA
    accelerator = torch.accelerator
    for name, value in {"is_available": True, "current_accelerator": CUDA, "device_count": 1, "current_device_index": 0,
                        "current_device_idx": 0, "set_device_index": None, "set_device_idx": None, "current_stream": cuda.current_stream(),
                        "set_stream": None, "synchronize": None, "device_index": torch_cuda.On(), "empty_cache": None}.items():
        if hasattr(accelerator, name):
            setattr(accelerator, name, lambda *args, value=value, **kwargs: value)
    for name in filter(GPU_FUNCTIONS.match, dir(torch._C)):
        if callable(f := getattr(torch._C, name)) and not isinstance(f, type):
            setattr(torch._C, name, refusing(f))
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    profile = torch.autograd.profiler.profile
    profile.__init__ = of_cpu(profile.__init__)
    if hasattr(torch.distributed, "ProcessGroupNCCL"):
        torch.distributed.ProcessGroupNCCL.__init__ = torch_cuda.lacking("NCCL: torch.distributed has gloo")
    saved_devices()
    legacy()
    autocast.install()


def needs_gpu():
    """Replaces torch.cuda._lazy_init, which torch calls before it uses a GPU."""
    caller = sys._getframe(1)
    if not caller.f_code.co_filename.startswith(os.path.dirname(__file__)):  # the code for extensions uses no GPU
        refuse(caller)


def refusing(f):
    """Returns f, a function of torch._C that may need a GPU, which then raises Lacking."""
    @functools.wraps(f)
    def run(*args, **kwargs):
        try:
            return f(*args, **kwargs)
        except RuntimeError:
            refuse(sys._getframe(1))

    return run


def refuse(caller):
    """Raises Lacking for what the function of a frame uses."""
    code, module = caller.f_code, caller.f_globals.get("__name__", "")
    what = f"{module}.{getattr(code, 'co_qualname', code.co_name)}"
    if not module.startswith("torch."):
        what = f"the use of torch's CUDA library at {os.path.relpath(code.co_filename)}:{caller.f_lineno}"
    raise Lacking(f"the virtual GPU does not support {what}") from None


def of_cpu(init):
    """Returns the constructor of torch's profiler, which is init, without times of kernels."""
    @functools.wraps(init)
    def run(self, enabled=True, *args, **kwargs):
        if enabled and (kwargs.get("use_cuda") or kwargs.get("use_device") == "cuda"):
            raise Lacking("the virtual GPU does not support torch's profiler for CUDA: fisub emu --profile counts what kernels do")
        init(self, enabled, *args, **kwargs)

    return run


class Legacy(type):
    """The type of torch.FloatTensor, torch.cuda.FloatTensor and the like."""

    def __instancecheck__(cls, t):
        return isinstance(t, cls.memory) and is_host(t) != cls.is_cuda

    def __call__(cls, *args, **kwargs):
        t = cls.memory(*args, **kwargs)
        mark(t, not cls.is_cuda)
        return t


def legacy():
    """Replaces torch's old constructors of tensors, which modes do not see."""
    kind = type(torch.FloatTensor)
    for name, memory in list(vars(torch).items()):
        if isinstance(memory, kind):
            for space, on_cuda in ((torch, False), (torch.cuda, True)):
                setattr(space, name, Legacy(name, (), {"__module__": space.__name__, "memory": memory, "dtype": memory.dtype, "is_cuda": on_cuda}))

    def new(cls, *args, **kwargs):
        t = torch._C.TensorBase.__new__(cls, *args, **kwargs)
        mark(t, all(is_host(a) for a in args if isinstance(a, torch.Tensor)))
        return t

    def set_default_tensor_type(kind):
        space, _, name = (kind if isinstance(kind, str) else torch.typename(kind)).rpartition(".")
        torch.set_default_device("cuda" if space == "torch.cuda" else "cpu")
        torch.set_default_dtype(getattr(torch, name).dtype)

    torch.Tensor.__new__, torch.set_default_tensor_type = new, set_default_tensor_type


def saved_devices():
    """Makes torch save the device of a tensor, and restore it."""
    reduce, state = torch.Tensor._reduce_ex_internal, torch._utils._get_obj_state

    @functools.wraps(reduce)
    def run_reduce(self, proto):
        if self.layout == torch.strided:
            with real():
                setattr(self.untyped_storage(), ON_CUDA, is_cuda(self))
        return reduce(self, proto)

    @functools.wraps(state)
    def run_state(self):
        found = state(self)
        if isinstance(self, torch.Tensor) and isinstance(found, dict):
            found = {name: value for name, value in found.items() if name not in (HOST, PINNED)}
        return found

    def rebuilt(rebuild):
        @functools.wraps(rebuild)
        def run(storage, *args, **kwargs):
            t = rebuild(storage, *args, **kwargs)
            mark(t, not getattr(storage._untyped_storage, ON_CUDA, False))
            return t

        return run

    def restore(storage, location):
        if kind_of(location) == "cuda":
            setattr(storage, ON_CUDA, True)
            return storage
        return None

    torch.Tensor._reduce_ex_internal, torch._utils._get_obj_state = run_reduce, run_state
    for name in ("_rebuild_tensor", "_rebuild_tensor_v3"):
        if hasattr(torch._utils, name):
            setattr(torch._utils, name, rebuilt(getattr(torch._utils, name)))
    torch.serialization.register_package(5, lambda storage: "cuda:0" if getattr(storage, ON_CUDA, False) else None, restore)


class Generator(torch.Generator):
    """A generator of random numbers, which are the CPU's."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu" if kind_of(device) == "cuda" else device)

    def __init__(self, device="cpu"):
        self.__dict__["shown"] = CUDA if kind_of(device) == "cuda" else torch.device(device)

    @property
    def device(self):
        return self.__dict__.get("shown", CPU)

    def get_state(self):
        return hosted(super().get_state)()
