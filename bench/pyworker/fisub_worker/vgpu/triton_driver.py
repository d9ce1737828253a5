"""Triton on the virtual GPU.

Triton compiles each kernel twice: for a B200, so that it rejects the same kernels as there, and for a GPU whose tensor
cores support only mma.sync. The PTX of the latter is executed. This module imports Triton.
"""

import contextlib
import functools
import re
import struct
import types

import torch
import triton
import triton.testing
from triton._C.libtriton import nvidia
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import _allocation
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import PTXASError

from . import descriptors
from .autotune import Tuning
from .b200 import BLOCKS, CAPABILITY, CLUSTER, MULTIPROCESSORS, RESERVED, SHARED, SHARED_PER_MULTIPROCESSOR, THREADS
from .errors import Fault, Lacking
from .tensors import is_host, octets, real

EXECUTED = 89  # mma.sync with all types, including e4m3 and e5m2, and nothing newer
PTX_VERSION = 87
DESCRIPTOR_ALIGNMENT = 64  # bytes, of a descriptor in memory
NV_INFO, REGISTERS, FRAME = 0x70000000, 0x2f, 0x11  # of a cubin: the type of sections, and two of their attributes
INTEGERS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "?", "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}

machine = None  # set by install: Triton creates the objects below itself


def install(virtual):
    """Makes the virtual GPU Triton's device."""
    global machine
    machine = virtual
    descriptors.install(f"sm{EXECUTED}")
    Autotuner.run, Autotuner._bench = tuned(Autotuner.run), configured(Autotuner._bench)
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = benchmark
    nvidia.cublas.CublasLt = CublasLt
    backends["nvidia"] = type(backends["nvidia"])(compiler=Backend, driver=Driver)
    triton.runtime.driver.set_active(Driver())


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
            make = stages.get("ttir")

            def make_ttir(src, metadata):
                if "fisub.descriptor" in str(src):
                    descriptors.prune(src)
                return make(src, metadata)

            if make:
                stages["ttir"] = make_ttir
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
        return f"fisub-4-{self.target.arch}"


class Launcher:
    """Launches a compiled kernel."""

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
        self.number, self.count = machine.load(rounded_once(self.kernel.asm["ptx"]))
        self.kinds = [(name, kind) for name, kind in zip(src.fn.arg_names, src.signature.values())]

    def __call__(self, x, y, z, stream, function, packed, launch_metadata, enter, leave, *args):
        if self.number is None:
            self.load()
        grid, meta = (int(x), int(y), int(z)), self.kernel.metadata
        blocks = grid[0] * grid[1] * grid[2]
        # In the order of Triton's own launcher. The allocator and the hooks are code of the solution.
        if self.metadata.global_scratch_size:
            self.allocate(blocks * self.metadata.num_ctas * self.metadata.global_scratch_size, stream)
        with real():
            for (name, _), value, desc in self.descriptors(args):
                descriptors.encode(name, value, desc)
        if enter is not None:
            enter(launch_metadata)
        with real():
            values, tensors = arguments(self.kinds, args)
            if min(grid) < 0 or grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
                raise RuntimeError("Triton Error [CUDA]: invalid argument")
            self.check(blocks)
            if min(grid) > 0:
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

    def check(self, blocks):
        """Raises the error of the CUDA driver if a B200 refuses the launch."""
        m = self.metadata
        if blocks > 0 and m.num_ctas > CLUSTER:
            raise RuntimeError("Triton Error [CUDA]: a kernel launch error has occurred due to cluster misconfiguration")
        # Registers may leave room for fewer blocks.
        room = min(BLOCKS, THREADS // (32 * m.num_warps), SHARED_PER_MULTIPROCESSOR // (m.shared + RESERVED))
        if m.launch_cooperative_grid and blocks * m.num_ctas > MULTIPROCESSORS * room:
            raise RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")

    def descriptors(self, args):
        """Returns the names, values and descriptions of descriptors among the arguments. Like Triton, it takes none in
        tuples."""
        found = [((name, kind), value) for (name, kind), value in zip(self.kinds, args)
                 if isinstance(kind, str) and kind.startswith("tensordesc")]
        metas = getattr(self.metadata, "tensordesc_meta", None) or []
        assert not metas or len(metas) == len(found)
        return [(kind, value, meta) for (kind, value), meta in zip(found, metas)]

    def allocate(self, size, stream):
        """Gets memory from the solution's allocator, as a B200 would need it for descriptors, and overwrites it, as a
        kernel on a B200 would. The code that is executed does not need it."""
        buffer = _allocation._allocator.get()(size, self.metadata.global_scratch_align, stream)
        if buffer is not None and not isinstance(buffer, int) and not hasattr(buffer, "data_ptr"):
            raise TypeError("Pointer argument must be either uint64 or have data_ptr method")
        at = buffer if buffer is None or isinstance(buffer, int) else buffer.data_ptr()
        returned = f"kernel {self.src.fn.__name__}: Triton's allocator returned"
        if size == 0:
            return
        if not at:
            machine.stop(Fault(f"{returned} {at}, not {size} bytes"))
        if not isinstance(buffer, torch.Tensor):
            return
        with real():
            if is_host(buffer):
                raise ValueError("Pointer argument (at -1) cannot be accessed from Triton (cpu tensor?)")
            storage = buffer.untyped_storage()
            offset = at - storage.data_ptr()
            if size > storage.nbytes() - offset:
                machine.stop(Fault(f"{returned} {storage.nbytes() - offset} bytes, not {size}"))
            if offset % DESCRIPTOR_ALIGNMENT:
                machine.stop(Fault(f"{returned} memory {offset} bytes after the start of a tensor, "
                                   f"not aligned to {self.metadata.global_scratch_align} bytes"))
            octets(storage)[offset:offset + size].fill_(0xff)


def rounded_once(ptx):
    """Returns ptx, in which conversions of float32 to fp8 round as on a B200. For 8.9 Triton converts to float16 first,
    toward 0. There the last bit is set if the conversion is inexact, so that the second one rounds right."""
    text = ptx.decode() if isinstance(ptx, bytes) else ptx
    pairs = set(re.findall(r"cvt\.rn\.satfinite\.(?:e4m3|e5m2)x2\.f16x2\s+%rs\d+, (%r\d+)", text))
    halves = {half for pair, *parts in re.findall(r"mov\.b32\s+(%r\d+), \{(%rs\d+), (%rs\d+)\}", text) if pair in pairs for half in parts}

    def odd(match):
        half, value = match.groups()
        if half not in halves:
            return match[0]
        return (f"{match[0]} {{ .reg .pred %fisub; .reg .f32 %fisubf; .reg .b16 %fisubs; cvt.f32.f16 %fisubf, {half}; "
                f"setp.neu.f32 %fisub, %fisubf, {value}; selp.b16 %fisubs, 1, 0, %fisub; or.b16 {half}, {half}, %fisubs; }}")

    return re.sub(r"cvt\.rz\.f16\.f32\s+(%rs\d+), (%\w+);", odd, text)


def arguments(kinds, args):
    """Returns the values of a kernel's parameters, and the tensors among its arguments with names."""
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

    for (name, kind), value in zip(kinds, args):
        add(name, kind, value)
    return values, tensors


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


class Driver(DriverBase):
    """The device that Triton sees."""

    launcher_cls = Launcher
    utils = types.SimpleNamespace(
        load_binary=lambda name, kernel, shared, device: (1, 1, *(resources(kernel) if kernel[:4] == b"\x7fELF" else (0, 0)), 1024),
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


class CublasLt:
    """Replaces Triton's wrapper of cuBLAS. Matrix b is transposed."""

    def __init__(self, workspace):
        pass

    def matmul(self, a, b, c):
        self.gemm(a, b, c, c, 1.0, 0.0)

    def gemm(self, a, b, c, d, alpha, beta):
        with real():
            result = alpha * (a.float() @ b.float().T) + (beta * c.float() if beta else 0)
            if d.dtype.itemsize == 1:
                limit = torch.finfo(d.dtype).max
                result = result.clamp(-limit, limit)
            d.copy_(result)


def resources(cubin):
    """Returns the registers of each thread, and the words of local memory, in the machine code of one kernel for a B200."""
    def parts(format, at, n, size):
        return (struct.unpack_from(format, cubin, at + i * size) for i in range(n))

    registers = local = 0
    start, = struct.unpack_from("<Q", cubin, 40)
    size, n = struct.unpack_from("<HH", cubin, 58)
    for _, kind, _, _, at, length, _, _, _, _ in parts("<IIQQQQIIQQ", start, n, size):
        end = at + length if kind == NV_INFO else at
        while at < end:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            if form == 4 and attribute in (REGISTERS, FRAME):
                _, count = struct.unpack_from("<II", cubin, at + 4)
                registers, local = (max(registers, count), local) if attribute == REGISTERS else (registers, max(local, count))
            at += 4 + (value if form == 4 else 0)
    return registers, local // 4


def benchmark(call, *args, quantiles=None, **kwargs):
    """Makes one call instead of many."""
    if machine.tuning:
        return machine.tuning.run(call, len(quantiles or [0]))
    milliseconds = machine.timed(call)
    return [milliseconds] * len(quantiles) if quantiles else milliseconds


def tuned(tune):
    """Returns Autotuner.run, which is tune, with a Tuning."""
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

    return run


def configured(tune_one):
    """Returns Autotuner._bench, which is tune_one, that names the configuration in Tuning."""
    @functools.wraps(tune_one)
    def bench(self, *args, config, **kwargs):
        machine.tuning.config = config
        return tune_one(self, *args, config=config, **kwargs)

    return bench
