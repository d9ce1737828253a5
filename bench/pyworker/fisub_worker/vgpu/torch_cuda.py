"""torch.cuda with the virtual GPU."""

import contextlib
import functools
import threading
import types
import uuid
import weakref

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import BackwardHook

from . import wide
from .b200 import CAPABILITY, L2_BYTES, MEMORY, MULTIPROCESSORS, SHARED, SHARED_PER_MULTIPROCESSOR, THREADS
from .errors import Lacking
from .pretence import Pretence
from .stand_ins import Event, On, Properties, Runtime, Stream
from .tensors import CUDA, hosted, is_host, kind_of, mark, real, tensors_of

UUID = uuid.UUID(int=0xf15b)


def lacking(name):
    def raises(*args, **kwargs):
        raise Lacking(f"the virtual GPU does not support {name}")

    return raises


def of_device(value):
    def get(device=None):
        kind_of(device)  # raises an error for a second GPU
        return value

    return get


def pretend(machine):
    """Gives torch a CUDA device, and returns the context in which tensors are on it."""
    mode, cuda, stream = Pretence(machine), torch.cuda, Stream()
    properties = Properties(uuid=UUID,
        name="NVIDIA B200", major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=MEMORY, multi_processor_count=MULTIPROCESSORS,
        L2_cache_size=L2_BYTES, warp_size=32, max_threads_per_multi_processor=THREADS, max_threads_per_block=1024,
        regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=SHARED,
        shared_memory_per_multiprocessor=SHARED_PER_MULTIPROCESSOR, is_integrated=0, is_multi_gpu_board=0, gcnArchName="", clock_rate=1965000,
        memory_clock_rate=3996000, memory_bus_width=8192)
    for name, value in {
            "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
            "is_current_stream_capturing": False, "is_bf16_supported": True, "memory_allocated": 0,
            "memory_reserved": 0, "max_memory_allocated": 0, "max_memory_reserved": 0, "get_arch_list": ["sm_100"], "init": None,
            "_lazy_init": None, "set_stream": None, "synchronize": None, "empty_cache": None, "ipc_collect": None,
            "manual_seed": None, "manual_seed_all": None, "seed": None, "reset_peak_memory_stats": None, "_sleep": None,
            "_check_capability": None, "can_device_access_peer": False, "set_per_process_memory_fraction": None}.items():
        setattr(cuda, name, lambda *args, value=value, **kwargs: value)
    for name, value in {"get_device_capability": CAPABILITY, "get_device_name": properties.name, "get_device_properties": properties,
                        "current_stream": stream, "default_stream": stream, "mem_get_info": (MEMORY, MEMORY), "set_device": None}.items():
        setattr(cuda, name, of_device(value))
    cuda.synchronize = lambda device=None: machine.check()
    cuda.Stream, cuda.ExternalStream, cuda.Event = Stream, Stream, Event
    cuda.device, cuda.device_of, cuda.stream, cuda.StreamContext = On, On, On, On
    for name in ("make_graphed_callables", "_compile_kernel"):
        setattr(cuda, name, lacking(f"torch.cuda.{name}"))
    cuda.cudart = Runtime
    for name in ("CUDAGraph", "graph"):  # classes, which annotations use
        setattr(cuda, name, type(name, (), {"__new__": lacking(f"torch.cuda.{name}")}))
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch.Tensor.record_stream = lambda t, stream: None  # torch checks the stream before it calls the mode
    allocated = {}

    def caching_allocator_alloc(size, device=None, stream=None):
        with real():
            t = torch.empty(size, dtype=torch.uint8)
            allocated[t.data_ptr()] = t
            machine.pointers[t.data_ptr()] = weakref.ref(t)
            return t.data_ptr()

    cuda.caching_allocator_alloc = caching_allocator_alloc

    def caching_allocator_delete(address):
        allocated.pop(address, None)

    cuda.caching_allocator_delete = caching_allocator_delete
    torch.compile = lambda model=None, **kwargs: model if model is not None else lambda f: f
    real_default, get_default, real_parameter = torch.set_default_device, torch.get_default_device, torch.nn.Parameter.__new__

    def set_default_device(device):
        mode.default = kind_of(device) or "cpu"
        real_default(None if mode.default == "cuda" else device)

    def new_parameter(cls, data=None, requires_grad=True):
        t = real_parameter(cls, torch.empty(0) if data is None else data, requires_grad)
        mark(t, mode.default == "cpu" if data is None else is_host(data))
        return t

    torch.set_default_device, torch.from_numpy, torch.frombuffer = set_default_device, hosted(torch.from_numpy), hosted(torch.frombuffer)
    torch.get_default_device = lambda: CUDA if mode.default == "cuda" else get_default()
    torch.nn.Parameter.__new__ = new_parameter
    BackwardCFunction.apply = mode.shown(BackwardCFunction.apply)
    BackwardHook.__init__ = noticed(BackwardHook.__init__, mode)
    saved_tensors_hooks.__init__ = packed(saved_tensors_hooks.__init__, mode)
    threading.Thread.start = started(threading.Thread.start, mode)
    torch.library.Library.impl = registered(torch.library.Library.impl, mode)
    mode.library = wide.install()
    return mode


def started(start, mode):
    """Returns threading.Thread.start, which is start, for threads of a solution that see the device too."""
    @functools.wraps(start)
    def run(self):
        if mode.active():
            self.run = mode.shown(self.run)
        start(self)

    return run


def noticed(init, mode):
    """Returns the constructor of a module's backward hooks, which is init, for hooks that see the device too."""
    @functools.wraps(init)
    def run(self, module, user_hooks, user_pre_hooks):
        init(self, module, [mode.shown(f) for f in user_hooks], [mode.shown(f) for f in user_pre_hooks])

    return run


def packed(init, mode):
    """Returns the constructor of saved_tensors_hooks, which is init, for hooks that see the device too."""
    @functools.wraps(init)
    def run(self, pack_hook, unpack_hook):
        init(self, mode.shown(pack_hook), mode.shown(unpack_hook))

    return run


def registered(register, mode):
    """Returns torch.library.Library.impl, which is register, for a solution's own operators and its replacements of
    torch's. Their kernels for CUDA run with tensors that are in CPU memory."""
    for_cuda, for_cpu, replaced = set(), set(), {}

    @functools.wraps(register)
    def run(self, name, f, key="", **kwargs):
        key = key or self.dispatch_key
        if self.ns == "aten" and key == "CUDA" and isinstance(f, types.FunctionType) and hasattr(torch.library, "get_kernel"):
            name = (name.name() if isinstance(name, torch._ops.OpOverload) else name).removeprefix("aten::")
            with contextlib.suppress(RuntimeError):  # an operation without a version for the CPU
                replaced.setdefault(name, wide.own_kernel(name))
            return wide.quietly(register, self, name, on_device(mode.shown(f), replaced.get(name)), "CPU", allow_override=True)
        if self.ns == "aten" or self.ns.startswith("_inductor") or key not in ("", "CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd"):
            return register(self, name, f, key, **kwargs)
        at = self.ns, str(name)
        if key == "CUDA":
            for_cuda.add(at)
            key, kwargs = "CPU", kwargs | {"allow_override": at in for_cpu}
        elif key == "CPU":
            if at in for_cuda:
                return None
            for_cpu.add(at)
        return wide.quietly(register, self, name, mode.shown(f) if isinstance(f, types.FunctionType) else f, key, **kwargs)

    return run


def on_device(f, kernel):
    """Returns a kernel that is f for tensors on the CUDA device, and kernel, that of torch, for others and for fisub."""
    def run(*args, **kwargs):
        if kernel and (torch._C._is_torch_function_all_disabled() or all(is_host(t) for t in tensors_of((args, kwargs)))):
            return kernel(*args, **kwargs)
        return f(*args, **kwargs)

    return run
