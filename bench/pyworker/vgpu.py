"""The virtual GPU in the worker process of an emulated run.

Triton compiles each kernel twice: for a B200, so that it rejects the same kernels as there, and for a GPU whose tensor
cores support only mma.sync. The PTX of the latter is executed. Tensors are in CPU memory, but a solution sees them on a
CUDA device. worker.py imports this file. It needs torch, and Triton if install is called.
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import glob
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import threading
import time
import types
import uuid
import warnings
import weakref

import torch
from torch.overrides import TorchFunctionMode

CAPABILITY = (10, 0)
EXECUTED = 89  # mma.sync with all types, including e4m3 and e5m2, and nothing newer
SHARED = 232448  # per block of a B200, in bytes
MULTIPROCESSORS, L2_BYTES, MEMORY = 148, 126 << 20, 192 << 30
PTX_VERSION = 87
TUNING = 90  # seconds per call for trying configurations of autotuned kernels
ALLOCATED = "memory allocated by the submission"
DIFFERENT = 0.02  # of the largest value: more than a different order of sums causes


class Trouble(BaseException):
    """Ends a call even if the solution catches Exception: on a GPU the error would come later."""


class Fault(Trouble):
    """An error of a kernel."""

    def told(self):
        return "call", f"DeviceFault: {self}"


class Lacking(Trouble):
    """Something that the virtual GPU does not support, so there is no verdict."""

    def told(self):
        return "lacking", str(self)


class Machine:
    """The virtual GPU: the library that comes with fisub. Its file may be missing until a kernel is loaded."""

    def __init__(self, library, tell, ledger):
        self.library, self.installed = library, False
        self.ledger = ledger  # shared with fisub, for hazards; None without
        self.tell, self.process = tell, os.getpid()
        self.trouble = None  # the first one
        self.arguments = {}  # of the entry: (bytes, name, whether it is an input) by address
        self.pointers = {}  # weak references, by address, to tensors whose address the solution took
        self.kept = []  # tensors that the solution gave to tvm-ffi
        self.tuning, self.tuned = None, 0.0  # tuned: seconds in this call
        self.first = self.looks = True  # whether the next call, and the present one, is the first of a workload
        self.refused = None  # the last error of a stage of Triton's compiler
        self.log = ""  # file for the output of nvcc when it fails
        self.acted = False  # this call gave the device work that lib does not see
        self.made = []  # CPU tensors for memory allocated by C++ code, while it may use them
        self.idle = self.uses(torch.empty(1))

    def sources(self, texts, cache, folder, prebuilt):
        """Sets the texts of the solution, the folders of the cache and of the solution, and Solution.prebuilt."""
        self.cache, self.folder, self.prebuilt = cache, folder, prebuilt
        self.submission_cache = os.environ.get("FISUB_OWN_CACHE") or os.path.join(cache, "python")
        if any("cpp_extension" in text for text in texts):
            extend(self)
        if any("tvm_ffi" in text for text in texts):
            expose(self)
        if any("ctypes" in text for text in texts):
            expose_ctypes(self)
        if any("nvcc" in text for text in texts) and any("tvm_ffi" in text or "ctypes" in text for text in texts):
            _ = self.home

    @contextlib.contextmanager
    def building(self):
        """Reports a build while it runs, because it does not count against the workload's time limit."""
        tells = threading.current_thread() is threading.main_thread() and os.getpid() == self.process
        try:
            if tells:
                self.tell({"building": True})
            yield
        finally:
            if tells:
                self.tell({"building": False})

    def restore(self):
        """Clears the state of a request."""
        self.trouble, self.kept = None, []
        if self.log:
            with contextlib.suppress(OSError):
                os.remove(self.log)

    def said(self):
        """Returns the output of failed runs of nvcc in this request."""
        try:
            with open(self.log, errors="replace") as f:
                return "\n" + f.read(1 << 20)
        except OSError:
            return ""

    @functools.cached_property
    def lib(self):
        lib = ctypes.CDLL(self.library)
        lib.fisub_load.restype, lib.fisub_free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        lib.fisub_home.restype = ctypes.c_void_p
        if self.ledger:
            lib.fisub_ledger(ctypes.c_void_p(ctypes.addressof(self.ledger)))
        lib.fisub_look(int(self.looks))
        return lib

    @functools.cached_property
    def home(self):
        """Returns the $CUDA_HOME whose nvcc builds for the virtual GPU. After this, the process has its runtime."""
        home = ctypes.c_void_p()
        if not os.path.exists(self.library):
            raise Lacking("this fisub is built without the virtual GPU for Python")
        if error := self.lib.fisub_home(self.cache.encode(), ctypes.byref(home)):
            raise Lacking(f"cannot build CUDA: {self.text(error)}; fisub toolchain install fetches nvcc")
        home = self.text(home.value)
        self.log = os.path.join(tempfile.mkdtemp(), "nvcc")
        os.environ.update(CUDA_HOME=home, CUDA_PATH=home, TVM_FFI_CUDA_ARCH_LIST="10.0", FISUB_COMPILER_LOG=self.log,
                          TVM_FFI_CACHE_DIR=os.path.join(self.submission_cache, "tvm-ffi"))
        os.environ["PATH"] = os.pathsep.join(  # a virtual environment has its own ninja
            [os.path.join(home, "bin"), os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
        if shutil.which("ninja") is None:
            raise Lacking("cannot build CUDA: ninja is not on PATH")
        return home

    @contextlib.contextmanager
    def mapped(self, tensors):
        """Lets kernels of the CUDA runtime use the memory of tensors, which come with names, and raises the kernels'
        errors."""
        self.check()
        self.made = [t for t in self.made if self.uses(t) > self.idle]
        u64, text, known = ctypes.c_uint64, ctypes.c_void_p(), len(self.made)
        ranges = self.ranges(tensors + [(t, "a tensor") for t in self.kept] + [(t, ALLOCATED) for t in self.made])
        for base, size, name in ranges:
            self.lib.fisub_map(u64(base), u64(size), name.encode())
        try:
            yield
        finally:
            for base in [r[0] for r in ranges] + [t.untyped_storage().data_ptr() for t in self.made[known:]]:
                self.lib.fisub_unmap(u64(base))
            if result := self.lib.fisub_verdict(ctypes.byref(text)):
                self.stop((Fault if result == 1 else Lacking)(self.text(text.value)))

    def look(self):
        """Begins a call. The first one of a workload is examined more closely."""
        self.worked()
        self.acted = False
        if "lib" in self.__dict__:
            self.lib.fisub_look(int(self.first))
        self.looks, self.first = self.first, False

    def forget(self):
        """Makes the virtual GPU record known hazards again."""
        if "lib" in self.__dict__:
            self.lib.fisub_forget()

    def worked(self):
        """Returns 2 if this call may have launched a kernel, 1 if it only copied or set memory of the device, else 0."""
        work = self.lib.fisub_worked() if "lib" in self.__dict__ else 0
        return 2 if self.acted else work

    def own(self, t):
        """Lets kernels of the present call use t, which C++ code has allocated."""
        storage = t.untyped_storage()
        self.made.append(t)
        self.lib.fisub_map(ctypes.c_uint64(storage.data_ptr()), ctypes.c_uint64(storage.nbytes()), ALLOCATED.encode())

    @staticmethod
    def uses(t):
        return torch._C._storage_Use_Count(t.untyped_storage()._cdata)

    def text(self, address):
        text = ctypes.string_at(address).decode(errors="replace")
        self.lib.fisub_free(address)
        return text

    def stop(self, trouble):
        self.trouble = self.trouble or trouble
        raise trouble

    def check(self):
        """Raises the first error, if there was one."""
        if self.trouble:
            raise self.trouble

    def load(self, ptx):
        """Returns the number of the kernel in ptx, and of its parameters."""
        kernel, params = ctypes.c_int(), ctypes.c_int()
        if isinstance(ptx, str):
            ptx = ptx.encode()
        error = self.lib.fisub_load(ptx, ctypes.byref(kernel), ctypes.byref(params))
        if error:
            self.stop(Lacking(f"the virtual GPU does not support this PTX: {self.text(error)}"))
        return kernel.value, params.value

    def bounds(self, tensor, name):
        """Returns the memory behind a tensor that kernels may use."""
        storage = tensor.untyped_storage()
        size, name, _ = self.arguments.get(storage.data_ptr(), (storage.nbytes(), name, False))
        return storage.data_ptr(), size, name

    def ranges(self, tensors):
        """Returns the memory ranges of the given tensors, with names, and of tensors whose addresses were taken,
        without overlap."""
        for address, ref in list(self.pointers.items()):
            if (t := ref()) is None:
                del self.pointers[address]
            else:
                tensors = tensors + [(t, "a tensor whose address was taken")]
        merged = []
        for base, size, name in sorted({self.bounds(t, name)[:2]: self.bounds(t, name) for t, name in reversed(tensors)}.values()):
            if merged and base < merged[-1][0] + merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], base + size - merged[-1][0])
            elif size:
                merged.append([base, size, name])
        return merged

    def launch(self, kernel, grid, threads, shared, values, tensors):
        self.check()
        ranges = self.ranges(tensors)
        n, text = len(ranges), ctypes.c_void_p()
        u64 = ctypes.c_uint64
        result = self.lib.fisub_launch(
            kernel, (ctypes.c_int * 3)(*grid), threads, shared, (u64 * max(1, len(values)))(*values), n,
            (u64 * max(1, n))(*(r[0] for r in ranges)), (u64 * max(1, n))(*(r[1] for r in ranges)),
            (ctypes.c_char_p * max(1, n))(*(r[2].encode() for r in ranges)), ctypes.byref(text))
        if result:
            self.stop((Fault if result == 1 else Lacking)(self.text(text.value)))


# Triton


INTEGERS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "?", "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


def scalar(kind, value):
    """Returns the bits of an argument that is a number."""
    if kind in INTEGERS:
        data = struct.pack("<" + INTEGERS[kind], value)
    elif kind == "fp16":
        data = struct.pack("<e", value)
    elif kind == "bf16":
        data = struct.pack("<f", value)[2:]
    elif kind in ("fp32", "f32"):
        data = struct.pack("<f", value)
    elif kind == "fp64":
        data = struct.pack("<d", value)
    else:
        raise Lacking(f"the virtual GPU does not support arguments of Triton's type {kind}")
    return int.from_bytes(data, "little")


def install(machine):
    """Makes the virtual GPU Triton's device."""
    if machine.installed:
        return
    machine.installed = True
    import triton
    import triton.testing
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime import _allocation
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import PTXASError

    class Backend(CUDABackend):
        """NVIDIA's backend, up to PTX for kernels to execute. Its entries in Triton's cache are separate."""

        def __init__(self, target):
            super().__init__(target)
            if target.arch == EXECUTED:
                self.binary_ext = "ptx"

        def parse_options(self, opts):
            return super().parse_options({**opts, "ptx_version": opts.get("ptx_version") or PTX_VERSION})

        def add_stages(self, stages, options, language):
            super().add_stages(stages, options, language)
            if self.target.arch == EXECUTED:
                del stages["cubin"]
                return

            def noted(stage, compiles, src, metadata):
                metadata["asked_num_warps"] = options.num_warps  # warp specialisation adds to them
                try:
                    return compiles(src, metadata)
                except Exception as e:
                    if stage == "cubin" and not isinstance(e, PTXASError):
                        machine.stop(Lacking(f"cannot run Triton's ptxas: {e}"))
                    machine.refused = e
                    raise

            for stage in list(stages):
                stages[stage] = functools.partial(noted, stage, stages[stage])

        def hash(self):
            return f"fisub-2-{self.target.arch}"

    class Launcher:
        def __init__(self, src, metadata):
            if not hasattr(src, "fn"):
                raise Lacking("the virtual GPU does not support kernels in intermediate code")
            self.src, self.metadata = src, metadata
            self.number = None  # on the virtual GPU, after the first launch

        def load(self):
            src, metadata = self.src, self.metadata
            options = {name: getattr(metadata, name) for name in ("num_stages", "maxnreg", "enable_fp_fusion", "debug", "sanitize_overflow",
                                                                  "launch_cooperative_grid") if hasattr(metadata, name)}
            options["num_warps"] = metadata.asked_num_warps
            try:
                with contextlib.redirect_stdout(None):  # the first compilation has already printed its output
                    self.kernel = triton.compile(src, target=GPUTarget("cuda", EXECUTED, 32), options=options)
            except Exception as e:
                machine.stop(Lacking(f"Triton compiles {src.fn.__name__} for a B200, but not for the virtual GPU: {e}"))
            self.number, self.count = machine.load(self.kernel.asm["ptx"])
            self.kinds = [(name, kind) for name, kind in zip(src.fn.arg_names, src.signature.values())]

        def arguments(self, args):
            values, tensors = [], []

            def pointer(name, value):
                at = 0
                if isinstance(value, int):
                    at = value
                elif value is not None:
                    at = value.data_ptr()
                    t = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
                    if isinstance(t, torch.Tensor):
                        if is_host(t):
                            raise ValueError(f"Pointer argument (at {len(values)}) cannot be accessed from Triton (cpu tensor?)")
                        tensors.append((t, f"the tensor at {name}"))
                values.append(at)

            def add(name, kind, value):
                if isinstance(kind, tuple):
                    for k, v in zip(kind, value):
                        add(name, k, v)
                elif kind == "constexpr":
                    pass
                elif kind.startswith("tensordesc"):
                    pointer(name, value.base)
                    for n in (*value.shape, *value.strides):
                        values.append(scalar("i64", n))
                    values.append(int(getattr(value, "padding", "zero") == "nan"))
                    values.extend(scalar("i32", n) for n in value.shape)
                    values.extend(scalar("i64", n) for n in value.strides)
                elif kind[0] == "*":
                    pointer(name, value)
                else:
                    values.append(scalar(kind, value))

            for (name, kind), value in zip(self.kinds, args):
                add(name, kind, value)
            return values, tensors

        def __call__(self, x, y, z, stream, function, packed, launch_metadata, enter, leave, *args):
            with torch._C.DisableTorchFunction(), real():
                if self.number is None:
                    self.load()
                if enter is not None:
                    enter(launch_metadata)
                values, tensors = self.arguments(args)
                grid, meta = (int(x), int(y), int(z)), self.kernel.metadata
                if min(grid) < 0 or grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
                    raise RuntimeError("Triton Error [CUDA]: invalid argument")
                if min(grid) > 0:
                    blocks = grid[0] * grid[1] * grid[2]
                    if self.metadata.global_scratch_size:  # the solution must have set an allocator
                        _allocation._allocator.get()(blocks * self.metadata.global_scratch_size, self.metadata.global_scratch_align, stream)
                    for size in (meta.global_scratch_size, meta.profile_scratch_size):
                        if len(values) < self.count:
                            scratch = torch.empty(blocks * size, dtype=torch.uint8)
                            tensors.append((scratch, "scratch memory"))
                            values.append(scratch.data_ptr() if size else 0)
                    if len(values) != self.count:
                        raise Lacking(f"the virtual GPU does not support the arguments of {self.src.fn.__name__}: {len(values)}, not {self.count}")
                    if machine.tuning:
                        machine.tuning.keep(tensors)
                    machine.launch(self.number, grid, 32 * meta.num_warps, meta.shared, values, tensors)
                if leave is not None:
                    leave(launch_metadata)

    class Driver(DriverBase):
        launcher_cls = Launcher
        utils = types.SimpleNamespace(
            load_binary=lambda name, kernel, shared, device: (1, 1, 0, 0, 1024),
            get_device_properties=lambda device: {
                "max_shared_mem": SHARED, "max_num_regs": 65536, "multiprocessor_count": MULTIPROCESSORS, "warpSize": 32,
                "sm_clock_rate": 1965000, "mem_clock_rate": 3996000, "mem_bus_width": 8192},
            set_printf_fifo_size=lambda size: None,
            cuOccupancyMaxActiveClusters=lambda *args: MULTIPROCESSORS)

        @classmethod
        def is_active(cls):
            return True

        def get_current_target(self):
            return GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)

        def get_current_device(self):
            return 0

        def set_current_device(self, device):
            pass

        def get_current_stream(self, device=None):
            return 0

        def get_device_capability(self, device=None):
            return CAPABILITY

        def get_active_torch_device(self):
            return torch.device("cuda", 0)

        def get_device_interface(self):
            return torch.cuda

        def map_python_to_cpp_type(self, kind):
            from triton.backends.nvidia.driver import ty_to_cpp
            return ty_to_cpp(kind)

        def get_benchmarker(self):
            return benchmark

        def get_empty_cache_for_benchmark(self):
            return torch.empty(1, dtype=torch.int)

        def clear_cache(self, cache):
            pass

    def benchmark(call, *args, quantiles=None, **kwargs):
        """Makes one call instead of many, with a constant duration except when tuning."""
        if machine.tuning:
            return machine.tuning.run(call, len(quantiles or [0]))
        call()
        return [1.0] * len(quantiles) if quantiles else 1.0

    tune = Autotuner.run

    tune_one = Autotuner._bench

    @functools.wraps(tune)
    def run(self, *args, **kwargs):
        outer, machine.tuning = machine.tuning, Tuning(self.base_fn.__name__, machine)
        try:
            result = tune(self, *args, **kwargs)
            machine.tuning.settle(self.best_config)
            return result
        finally:
            machine.tuning.tell()
            machine.tuning = outer

    @functools.wraps(tune_one)
    def bench(self, *args, config, **kwargs):
        machine.tuning.config = config
        return tune_one(self, *args, config=config, **kwargs)

    Autotuner.run, Autotuner._bench = run, bench
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = benchmark
    backends["nvidia"] = type(backends["nvidia"])(compiler=Backend, driver=Driver)
    triton.runtime.driver.set_active(Driver())


def refusal(machine, e):
    """Returns why Triton rejects a kernel for a B200, as ((file, line, column) or None, text), or None if e is another
    error."""
    if "triton" not in sys.modules:
        return None
    from triton.compiler.errors import CompilationError
    from triton.errors import TritonError
    from triton.runtime.errors import PTXASError
    from triton.runtime.jit import JITFunction
    if e is not machine.refused and not isinstance(e, TritonError):
        return None
    if isinstance(e, PTXASError) and (said := re.findall(r"(?m)^ptxas.*?(?:error|fatal) *: (?!Ptx assembly)(.+)", str(e))):
        return None, "ptxas: " + "; ".join(dict.fromkeys(said))
    while isinstance(e, CompilationError) and isinstance(e.__cause__, CompilationError):
        e = e.__cause__  # from a call to the error in the called function
    if not isinstance(e, CompilationError) or not hasattr(e.node, "lineno"):
        return None, f"{type(e).__name__}: {e}"
    for f in gc.get_objects():
        if issubclass(type(f), JITFunction) and f.src == e.src:  # isinstance would ask torch's deprecated objects for their class
            head = next((i for i, line in enumerate(f.raw_src) if line.lstrip().startswith("def ")), 0)
            at = f.fn.__code__.co_filename, f.starting_line_number + head + e.node.lineno - 1, e.node.col_offset + 1
            return at, f"{type(e).__name__}: {e.error_message or e}"
    return None, f"{type(e).__name__}: {e}"


class Tuning:
    """Runs each configuration of an autotuned kernel on the same memory. The one whose results differ most from the
    others' counts as the fastest, so that it is judged. A configuration skipped because of the time is never the
    fastest."""

    def __init__(self, name, machine):
        self.name, self.machine, self.config = name, machine, None
        self.before, self.after, self.times, self.configs = {}, [], [], []
        self.running, self.left = False, 0

    def keep(self, tensors):
        """Saves the memory that a kernel may write to."""
        if not self.running:
            return
        for t, _ in tensors:
            storage = t.untyped_storage()
            known = self.machine.arguments.get(storage.data_ptr())
            if storage.data_ptr() in self.before or known and known[2]:
                continue
            self.before[storage.data_ptr()] = octets(storage), octets(storage).clone(), t.dtype

    def run(self, call, n):
        if self.times and self.machine.tuned > TUNING:
            self.left += 1
            return [float("inf")] * n
        self.running, begun = True, time.monotonic()
        try:
            with real():
                for memory, was, _ in self.before.values():
                    memory.copy_(was)
            call()
        finally:
            self.running = False
            self.machine.tuned += time.monotonic() - begun
        with real():
            self.after.append({at: memory.clone() for at, (memory, was, _) in self.before.items() if not memory.equal(was)})
            self.times.append([1.0] * n)
            self.configs.append(self.config)
            for times, distance in zip(self.times, self.distances()):
                times[:] = [1 / (1 + distance)] * n
        return self.times[-1]

    def settle(self, config):
        """Restores, after the judged call, the elements that config does not write. Without tuning the call would not
        have changed them."""
        if config not in self.configs:
            return
        after = self.after[self.configs.index(config)]
        with real():
            for at in set().union(*self.after):  # excludes memory that Triton restores after each configuration
                memory, was, dtype = self.before[at]
                size = was.numel() // dtype.itemsize * dtype.itemsize
                same = (after.get(at, was) == was)[:size].view(-1, dtype.itemsize)
                unwritten = same.all(1, keepdim=True).expand_as(same).reshape(-1)  # whole elements
                memory[:size][unwritten] = was[:size][unwritten]

    def tell(self):
        """Logs which configuration is judged, if that matters, and how many were not tried."""
        if self.times and (worst := min(self.times)[0]) < 1 / (1 + DIFFERENT):
            print(f"autotune: {self.name}: the results of {self.configs[self.times.index(min(self.times))]} differ from most others' by "
                  f"{1 / worst - 1:.3g} of the largest: these are judged", file=sys.stderr)
        if self.left:
            print(f"autotune: {self.name}: {self.left} configurations were not run within {TUNING} s", file=sys.stderr)

    def distances(self):
        """Returns the distance of each configuration's results from the median."""
        found = [0.0] * len(self.after)
        for at in set().union(*self.after):
            _, was, dtype = self.before[at]
            all = [after.get(at, was) for after in self.after]
            if not dtype.is_floating_point:
                dtype = torch.uint8
            size = all[0].numel() // dtype.itemsize * dtype.itemsize
            values = torch.stack([v[:size].view(dtype).double() for v in all])
            middle = values.nanmedian(0).values
            scale = middle.nan_to_num(0, 0, 0).abs().max().item() or 1.0
            for i, v in enumerate(values):
                difference = (v - middle).abs() / scale
                difference[(v == middle) | v.isnan() & middle.isnan()] = 0
                found[i] = max(found[i], difference.nan_to_num(1e30, 1e30, 1e30).max().item() if len(v) else 0)
        return found


# tvm-ffi


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


def expose(machine):
    """Makes tvm-ffi build for the virtual GPU, and its functions accept tensors on it."""
    try:
        import tvm_ffi
        import tvm_ffi.cpp.extension as extension
    except ImportError:
        return
    if hasattr(tvm_ffi, "_fisub"):
        return
    tvm_ffi._fisub = True
    load_module, from_dlpack, global_func = tvm_ffi.load_module, tvm_ffi.from_dlpack, tvm_ffi.get_global_func

    def given(value, tensors):
        """Converts value for tvm-ffi, and adds its tensors to tensors."""
        if isinstance(value, (list, tuple)):
            return type(value)([given(v, tensors) for v in value])
        if not isinstance(value, torch.Tensor):
            return value
        capsule = torch.utils.dlpack.to_dlpack(value.detach())
        if not is_host(value):
            device_of(capsule).value = DL_CUDA
            tensors.append((value, f"tensor {len(tensors)} of the call"))
        return from_dlpack(capsule)

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


# Libraries by ctypes


RUNTIMES = re.compile(r"lib(cudart|cuda)\.so[.\d]*$")


def expose_ctypes(machine):
    """Gives a solution that loads NVIDIA's CUDA runtime and driver the virtual GPU's, and lets libraries linked with
    the runtime use tensors whose addresses were taken."""
    load = ctypes.CDLL.__init__

    @functools.wraps(load)
    def init(self, name, mode=ctypes.DEFAULT_MODE, *args, **kwargs):
        path = os.fspath(name) if name is not None else ""
        found = isinstance(path, str) and RUNTIMES.search(path)
        if found:
            name = path = os.path.join(machine.home, "lib64", f"lib{found[1]}.so")
        elif path in ("", machine.library) or not runs_here(path):
            return load(self, name, mode, *args, **kwargs)
        load(self, name, mode | (os.RTLD_DEEPBIND if not found else 0), *args, **kwargs)

        class Function(self._FuncPtr):
            _flags_, _restype_ = self._FuncPtr._flags_, self._FuncPtr._restype_

            def __call__(self, *args):
                with machine.mapped([]):
                    return super().__call__(*args)

        self._FuncPtr = Function

    ctypes.CDLL.__init__ = init


def runs_here(path):
    """Returns whether the library at path is linked with the virtual GPU's runtime."""
    try:
        with open(path, "rb") as f:
            return b"libfisub_cudart.so" in f.read(1 << 28)
    except OSError:
        return False


# Extensions of torch


class Extensions:
    """The modules built by torch.utils.cpp_extension. Their C++ code sees CUDA tensors, whose memory is the CPU's. The
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


def extend(machine):
    """Makes torch.utils.cpp_extension build for the virtual GPU. It raises a Failure if the shared parts are missing."""
    from torch.utils import cpp_extension
    if hasattr(cpp_extension, "_fisub"):
        return
    made = []
    prepare = cpp_extension._prepare_ldflags
    load = cpp_extension.load
    standing_in = []  # the library that replaces torch's for CUDA
    failed = {}  # errors of builds, by name: torch would take a failed build for done the second time

    def shared():
        """Returns the folder of the parts that do not depend on the sources: that library, and the headers that torch's
        include, such as cuBLAS, without those of another CUDA's runtime."""
        roots = getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", None) or []
        headers = sorted(path for root in roots for path in glob.glob(os.path.join(root, "*", "include", "*"))
                         if not os.path.exists(os.path.join(machine.home, "include", os.path.basename(path))))
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_cuda.cpp")

        def make(folder):
            os.mkdir(os.path.join(folder, "headers"))
            for path in headers:
                with contextlib.suppress(FileExistsError):
                    os.symlink(path, os.path.join(folder, "headers", os.path.basename(path)))
            cpp_extension.CUDA_HOME = machine.home
            with machine.building(), real():
                load("fisub_torch_cuda", [source], extra_include_paths=[os.path.join(machine.home, "include")], is_python_module=False,
                     with_cuda=True, extra_cflags=["-O1"], build_directory=folder)

        with open(source) as f:
            return machine.prebuilt("torch-cuda", [f.read(), machine.home, headers], make)

    @contextlib.contextmanager
    def loading():
        """Allows loading a library that uses torch's CUDA libraries."""
        flags = sys.getdlopenflags()
        try:
            with real():
                sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
                if not standing_in:
                    library = os.path.join(shared(), "fisub_torch_cuda.so")
                    torch.ops.load_library(library)
                    standing_in.append(library)
                yield
        finally:
            sys.setdlopenflags(flags)

    @contextlib.contextmanager
    def alone(folder):
        """Locks out other builds of this solution, and removes stale locks: torch would wait forever for a killed
        build."""
        os.makedirs(machine.folder, exist_ok=True)
        with open(os.path.join(machine.folder, "alone"), "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            for path in glob.glob(os.path.join(machine.folder, "*", "lock")) + [os.path.join(folder or machine.folder, "lock")]:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)
            yield

    def ldflags(*args, **kwargs):
        return [*standing_in, *(f for f in prepare(*args, **kwargs) if f not in ("-lc10_cuda", "-ltorch_cuda"))]

    def wrapped(module):
        if not made:
            made.append(Extensions(machine))
        return made[0].module(module)

    def extension(load):
        """Returns the module loaded by load, which was linked with ldflags."""
        with loading():
            module = load()
        return wrapped(module)

    def built(build):
        signature = inspect.signature(build)

        @functools.wraps(build)
        def run(*args, **kwargs):
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if not given.arguments["is_python_module"] or given.arguments.get("is_standalone"):
                raise Lacking(f"the virtual GPU does not support {build.__name__} without a Python module")
            cpp_extension.CUDA_HOME = machine.home
            with machine.building(), loading(), alone(given.arguments["build_directory"]):
                paths = given.arguments["extra_include_paths"] or []
                given.arguments["extra_include_paths"] = [
                    os.path.join(machine.home, "include"), *([paths] if isinstance(paths, str) else paths), os.path.join(shared(), "headers")]
                os.environ["TORCH_EXTENSIONS_DIR"] = machine.folder  # torch identifies an extension only by its name
                name = given.arguments["name"]
                if name in failed:
                    raise failed[name]
                try:
                    module = build(*given.args, **given.kwargs)
                except Exception as e:
                    failed[name] = e
                    raise
            return module and wrapped(module)

        return run

    with contextlib.suppress(Lacking):  # the build reports the error
        shared()
    cpp_extension._fisub = True
    machine.extension = extension
    cpp_extension._prepare_ldflags = ldflags
    cpp_extension.load, cpp_extension.load_inline = built(load), built(cpp_extension.load_inline)


def octets(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)


# torch


HOST = "_fisub_host"  # an attribute of tensors that the solution has put into CPU memory
NAMES = ("empty", "zeros", "ones", "full")


@contextlib.contextmanager
def real():
    """Suspends the pretence."""
    with torch._C.DisableTorchFunction():
        yield


def is_host(t):
    return HOST in t.__dict__


def mark(t, host):
    if host:
        t.__dict__[HOST] = True
    else:
        t.__dict__.pop(HOST, None)


def kind_of(device):
    """Returns the kind of a device given in any form, or None if it is not a device."""
    if isinstance(device, torch.device):
        return device.type
    if isinstance(device, str):
        return device.partition(":")[0]
    if isinstance(device, int) and not isinstance(device, bool):
        return "cuda"
    return None


def tensors_of(value, depth=0):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)) and depth < 3:
        for v in value:
            yield from tensors_of(v, depth + 1)
    elif isinstance(value, dict) and depth < 3:
        for v in value.values():
            yield from tensors_of(v, depth + 1)


READING = frozenset("""item tolist cpu numpy __array__ __bool__ __int__ __float__ __index__ __contains__ is_nonzero equal allclose nonzero
    argwhere unique unique_consecutive masked_select repeat_interleave bincount""".split())

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
UUID = uuid.UUID(int=0xf15b)
T = torch.Tensor


class Pretence(TorchFunctionMode):
    """Makes tensors in CPU memory appear on a CUDA device, except for those that the solution has put on the CPU."""

    def __init__(self, machine):
        super().__init__()
        self.machine, self.default = machine, "cpu"
        self.special = {
            T.device.__get__: lambda t: CPU if is_host(t) else CUDA,
            T.is_cuda.__get__: lambda t: not is_host(t),
            T.is_cpu.__get__: is_host,
            T.get_device: lambda t: -1 if is_host(t) else 0,
            T.cuda: lambda t, *args, **kwargs: self.moved(t, False),
            T.cpu: lambda t, *args, **kwargs: self.moved(t, True),
            T.pin_memory: lambda t, *args: self.moved(t, True),
            T.is_pinned: lambda t, *args: is_host(t),
            T.__dlpack_device__: lambda t: (torch.utils.dlpack.DLDeviceType.kDLCPU, 0) if is_host(t) else (DL_CUDA, 0),
            T.to: self.to,
            T.data_ptr: self.data_ptr,
            T.numpy: self.numpy,
            torch.as_tensor: self.as_tensor,
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
        try:
            result = func(*args, **kwargs)
        except (AttributeError, RuntimeError, TypeError):
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
        self.act(func, args, kwargs, result)
        return result

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
    def numpy(t, **kwargs):
        if not is_host(t):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
        return t.numpy(**kwargs)


class StandIn:
    """Replaces an object of torch.cuda of class real. Using an attribute that only real has raises Lacking."""

    real = None

    def __getattr__(self, name):
        if not name.startswith("__") and (self.real is None or hasattr(self.real, name)):
            raise Lacking(f"the virtual GPU does not support {type(self).__name__}.{name} of torch.cuda")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


def stand_in(e):
    """Returns the missing attribute of a stand-in object that caused e, an error from the solution, or "" for other
    errors."""
    if not isinstance(e, (AttributeError, RuntimeError, TypeError)):
        return ""
    if isinstance(e, AttributeError) and isinstance(of := getattr(e, "obj", None), type) and issubclass(of, StandIn):
        return f"{of.__name__}.{e.name} of torch.cuda" if hasattr(of.real, e.name) else ""
    found = re.search(r"\b(Stream|Event|On|Properties)\.([\w<>]+)\(\)|\bfisub_vgpu\.(\w+)|not (Stream|Event|Properties)\b|(unknown parameter type)", str(e))
    return next((f"{name} of torch.cuda in this form" for name in found.groups() if name), "") if found else ""


class Properties(StandIn):
    """The result of torch.cuda.get_device_properties."""

    real = getattr(torch._C, "_CudaDeviceProperties", None)  # missing from a torch without CUDA

    def __init__(self, **values):
        self.__dict__.update(values)


class Stream(StandIn):
    """A stream whose work is done when the call that started it returns."""

    real = torch.cuda.Stream

    def __init__(self, device=None, priority=0, **kwargs):
        self.device, self.priority, self.cuda_stream, self.device_index = CUDA, priority, 0, 0
        self.stream_id, self.device_type = 0, 1

    def __eq__(self, other):
        return isinstance(other, Stream)

    __hash__ = object.__hash__

    @staticmethod
    def priority_range():
        return 0, -5

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None

    def query(self):
        return True

    def record_event(self, event=None):
        return event or Event()

    def synchronize(self):
        pass

    wait_event = wait_stream = lambda self, other: None


class Event(StandIn):
    real = torch.cuda.Event

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self.cuda_event = 0

    def record(self, stream=None):
        pass

    wait = record

    def query(self):
        return True

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1.0  # nothing is timed


class On:
    """Replaces torch.cuda.device and torch.cuda.stream."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None


class Missing(types.ModuleType):
    """A part of a package that is not installed. It can be imported, passed on and named in annotations. Any other use
    needs the package, so there is no verdict."""

    def __init__(self, name, text):
        super().__init__(name)
        self.__dict__.update(_fisub_text=text, __path__=[])

    def __getattr__(self, name):
        if name == "__all__":
            self()
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}", self._fisub_text)

    def __call__(self, *args, **kwargs):
        raise Lacking(self._fisub_text)

    def __getitem__(self, key):
        return self

    __or__ = __ror__ = __getitem__
    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __enter__ = __instancecheck__ = __mro_entries__ = __call__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = __matmul__ = __call__


class Finder:
    """Finds stubbed packages by name, with the text of the error for each."""

    def __init__(self):
        self.texts = {}

    def find_spec(self, name, path=None, target=None):
        if text := self.texts.get(name.partition(".")[0]):
            self.text = text
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Missing(spec.name, self.text)

    def exec_module(self, module):
        pass


finder = Finder()


def unstub():
    """Removes the packages added by stub."""
    finder.texts.clear()
    for name in [name for name, module in sys.modules.items() if type(module) is Missing]:
        del sys.modules[name]


def stubs():
    """Returns the texts of the packages added by stub."""
    return list(finder.texts.values())


def stub(package, text):
    """Makes a missing package importable. Using it raises text. Returns False if it was importable already."""
    if package in finder.texts:
        return False
    finder.texts[package] = text
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)
    return True


def lacking(name):
    def raises(*args, **kwargs):
        raise Lacking(f"the virtual GPU does not support {name}")

    return raises


def pretend(machine):
    """Gives torch a CUDA device, and returns the context in which tensors are on it."""
    mode, cuda, stream = Pretence(machine), torch.cuda, Stream()
    properties = Properties(uuid=UUID,
        name="NVIDIA B200", major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=MEMORY, multi_processor_count=MULTIPROCESSORS,
        L2_cache_size=L2_BYTES, warp_size=32, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=SHARED,
        shared_memory_per_multiprocessor=233472, is_integrated=0, is_multi_gpu_board=0, gcnArchName="", clock_rate=1965000,
        memory_clock_rate=3996000, memory_bus_width=8192)
    for name, value in {
            "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "get_device_capability": CAPABILITY,
            "get_device_name": properties.name, "get_device_properties": properties, "current_stream": stream, "default_stream": stream,
            "is_current_stream_capturing": False, "is_bf16_supported": True, "mem_get_info": (MEMORY, MEMORY), "memory_allocated": 0,
            "memory_reserved": 0, "max_memory_allocated": 0, "max_memory_reserved": 0, "get_arch_list": ["sm_100"], "init": None,
            "_lazy_init": None, "set_device": None, "set_stream": None, "synchronize": None, "empty_cache": None, "ipc_collect": None,
            "manual_seed": None, "manual_seed_all": None, "seed": None, "reset_peak_memory_stats": None, "_sleep": None,
            "_check_capability": None, "can_device_access_peer": False, "set_per_process_memory_fraction": None}.items():
        setattr(cuda, name, lambda *args, value=value, **kwargs: value)
    cuda.synchronize = lambda device=None: machine.check()
    cuda.Stream, cuda.ExternalStream, cuda.Event = Stream, Stream, Event
    cuda.device, cuda.device_of, cuda.stream, cuda.StreamContext = On, On, On, On
    for name in ("CUDAGraph", "graph", "make_graphed_callables", "cudart"):
        setattr(cuda, name, lacking(f"torch.cuda.{name}"))
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    T.record_stream = lambda t, stream: None  # torch checks the stream before it calls the mode
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
    real_default, real_numpy = torch.set_default_device, torch.from_numpy

    def set_default_device(device):
        mode.default = kind_of(device) or "cpu"
        real_default(None if mode.default == "cuda" else device)

    def from_numpy(array):
        t = real_numpy(array)
        mark(t, True)
        return t

    torch.set_default_device, torch.from_numpy = set_default_device, from_numpy
    return mode
