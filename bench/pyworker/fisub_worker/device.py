"""The device of a run: a GPU, or the CPU with the virtual GPU."""

import contextlib
import ctypes
import functools
import importlib.util
import mmap
import os
import re
import sys
import time

from .cupti import Unavailable, cupti_paths, open_cupti
from .errors import Failure
from .image import version
from .memory import opened

CANARY = 0xA5  # fills the memory around tensors; not POISON, which a solution may copy from an unwritten output
STALL_CYCLES = 20_000_000  # before a probed call: about 10 ms, longer than most calls take to launch
QUIET, SLOW = 5e-3, 2e-4  # seconds for which the GPU must be idle, and that an event takes if it is not
LIMIT_PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE


class Device:
    """A GPU through torch.cuda, or CPU memory, with Triton kernels running on the virtual GPU."""

    def __init__(self, kind, ordinal, tell, ledger=None, sanitize=""):
        self.emulated, self.vgpu, self.tell, self.ledger = kind != "cuda", None, tell, ledger
        self.sanitize = sanitize  # on the virtual GPU: tools, separated by commas, whose findings are faults
        self.call = contextlib.nullcontext()  # around calls whose outputs are judged
        if kind not in ("cuda", "emu", "vgpu"):
            raise Failure("machine", f'python: no device of kind "{kind}"')
        if self.emulated:
            os.environ.pop("TRITON_INTERPRET", None)  # read when triton is imported
        try:
            import torch
            import torch.utils.dlpack
        except (ImportError, OSError) as e:
            raise Failure("machine", f"python: {sys.executable}: importing torch: {e}", code="no-torch") from None
        self.torch, self.ordinal = torch, ordinal
        # Called unbound: objects of the solution may have attributes of the same names.
        self.tensor_type, self.parameter_type, self.detach, self.cpu = torch.Tensor, torch.nn.Parameter, torch.Tensor.detach, torch.Tensor.cpu
        if self.emulated:
            if ordinal != 0:
                raise Failure("machine", f"python: there is no CPU {ordinal}", code="no-ordinal")
            self.device = torch.device("cpu")
            return
        self.tracer = None  # a CUPTI, or the error why CUPTI is unavailable
        if torch.version.cuda is None:
            raise Failure("machine", f"python: torch {torch.__version__} of {sys.executable} is built without CUDA", code="no-torch-cuda")
        if not torch.cuda.is_available():
            raise Failure("machine", f"python: torch {torch.__version__} sees no GPU", code="no-gpu")
        if ordinal >= torch.cuda.device_count():
            raise Failure("machine", f"python: there is no GPU {ordinal}; torch sees {torch.cuda.device_count()}", code="no-ordinal")
        self.device = torch.device("cuda", ordinal)
        torch.cuda.set_device(self.device)
        self.event, self.wait = torch.cuda.Event, torch.cuda.synchronize
        self.wait(self.device)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.reserved = self.persisting_l2()

    def pretend(self, texts, cache, folder, prebuilt):
        """Gives an emulated run the CUDA device that sources with those texts need. folder is the solution's own;
        prebuilt is Builder.prebuilt."""
        if not self.emulated:
            return
        if self.vgpu is None:
            from . import vgpu  # needs torch
            self.machine = vgpu.Machine(self.tell, self.ledger, self.sanitize)
            self.pretence, self.vgpu = vgpu.pretend(self.machine), vgpu
        self.vgpu.unstub()
        self.machine.set_folders(os.path.realpath(cache), folder, prebuilt)
        self.vgpu.expose(self.machine, texts)
        if any("triton" in text for text in texts) and importlib.util.find_spec("triton") is not None:
            if not os.path.exists(self.machine.library):
                raise Failure("machine", "python: this fisub is built without the virtual GPU for Triton", code="no-vgpu")
            self.vgpu.install(self.machine)

    def does(self, f):
        """Runs f, which is code of the solution, with its device visible."""
        if self.vgpu is None:
            return f()
        with self.pretence:
            return f()

    def info(self):
        torch = self.torch
        libs = {name: v for name in ("torch", "triton", "tilelang") if (v := version(name))}
        libs["torch"] = str(torch.__version__)
        tools = ", ".join([f"Python {sys.version.split()[0]}"] + [f"{name} {v}" for name, v in libs.items()])
        info = {"ordinal": self.ordinal, "emulated": self.emulated, "toolchain": tools, "libs": libs}
        if torch.version.cuda:
            libs["cuda"] = str(torch.version.cuda)
        if self.emulated:
            return info | {"name": processor(), "arch": "", "driver": ""}
        p = torch.cuda.get_device_properties(self.device)
        uuid = str(getattr(p, "uuid", ""))
        return info | {"bandwidth": self.bandwidth()} | {
            "name": p.name, "arch": f"sm_{p.major}{p.minor}", "driver": driver_version(), "cuda": str(torch.version.cuda),
            "l2_bytes": self.l2_bytes(), "memory_bytes": int(p.total_memory),
            "multiprocessors": int(p.multi_processor_count), "uuid": f"GPU-{uuid}" if uuid else ""}

    def bandwidth(self):
        """Returns the memory's bandwidth in bytes per second: clock times width, two transfers per clock; 0 if the
        driver does not report it."""
        kilohertz, bits, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda = self.driver
        if (cuda.cuDeviceGet(ctypes.byref(device), self.ordinal) == 0 and cuda.cuDeviceGetAttribute(ctypes.byref(kilohertz), 36, device) == 0
                and cuda.cuDeviceGetAttribute(ctypes.byref(bits), 37, device) == 0):
            return 2000 * kilohertz.value * (bits.value // 8)
        return 0

    def l2_bytes(self):
        return int(getattr(self.torch.cuda.get_device_properties(self.device), "L2_cache_size", 0))

    def cupti(self):
        if self.tracer is None:
            try:
                self.tracer = open_cupti(cupti_paths(str(self.torch.version.cuda).partition(".")[0]))
            except Unavailable as e:
                self.tracer = e
        if isinstance(self.tracer, Unavailable):
            raise self.tracer
        return self.tracer

    def exact(self, v):
        """Returns whether v is a tensor whose use runs no code of the solution, apart from its attributes."""
        kind = type(v)
        return kind is self.tensor_type or kind is self.parameter_type

    def alias(self, v, name):
        """Returns a new tensor object on the memory of v, without attributes of the solution's."""
        if not self.exact(v):
            raise Failure("lacking", f"output '{name}' is of type {type(v).__name__}, a subclass of torch.Tensor: fisub reads only "
                          "torch.Tensor, because a subclass could compute its contents when it is read")
        t = self.detach(v)
        if t.device.type not in ("cpu", "cuda", "meta"):  # of meta there is nothing to read
            raise Failure("lacking", f"output '{name}' is on {t.device}: fisub reads only tensors on a GPU or CPU, because another "
                          "device could compute their contents when they are read")
        return t

    @contextlib.contextmanager
    def quiet(self):
        """Suspends modes of torch that a call has left active: they are code of the solution."""
        c = self.torch._C
        if not c._len_torch_function_stack() and not c._len_torch_dispatch_stack():
            yield
            return
        with c.DisableTorchFunction(), self.torch.utils._python_dispatch._disable_current_modes():
            yield

    def stall(self):
        """Keeps the stream busy."""
        if not self.emulated:
            self.torch.cuda._sleep(STALL_CYCLES)

    def octets(self, t):
        """Returns the bytes of a tensor, copied if it is not contiguous."""
        return t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(self.torch.uint8)

    def copies(self, tensors, rooms):
        """Returns copies, made in stream order, of the bytes of tensors on the device, in rooms that fit. Entries
        without a tensor are None."""
        def copy():
            return [t if t is None else self.octets(t).clone() if room is None or room.numel() != t.numel() * t.element_size()
                    else room.copy_(self.octets(t)) for t, room in zip(tensors, rooms, strict=True)]

        if self.emulated:
            return copy()
        with self.torch.cuda.stream(self.torch.cuda.default_stream(self.device)):
            return copy()

    def restore(self):
        """Undoes a submission's choice of device and stream, and clears its faults."""
        if self.vgpu:
            self.machine.restore()
        if not self.emulated:
            self.torch.cuda.set_device(self.device)
            self.torch.cuda.set_stream(self.torch.cuda.default_stream(self.device))

    def synchronize(self):
        if not self.emulated:
            self.wait(self.device)
        elif self.vgpu:
            self.machine.check()
            if error := self.machine.pending():  # on a GPU, the next operation of torch would raise it
                raise Failure("call", error)

    def settle(self, limit):
        """Waits until the GPU has had no work of other processes for QUIET seconds, and returns whether that was within
        limit seconds. Such work delays even an event, by up to a time slice."""
        begun = since = time.monotonic()
        while limit > 0 and time.monotonic() - since < QUIET:
            asked = time.monotonic()
            if asked - begun > limit:
                return False
            self.event().record()
            self.synchronize()
            if time.monotonic() - asked > SLOW:
                since = time.monotonic()
            time.sleep(SLOW)
        return True

    def persisting_l2(self):
        """Returns the bytes of the L2 that are reserved for persisting lines; the driver has a default."""
        size = ctypes.c_size_t()
        return size.value if self.driver.cuCtxGetLimit(ctypes.byref(size), LIMIT_PERSISTING_L2) == 0 else 0

    def reset_l2(self):
        """Lets the L2 evict persisting lines again."""
        self.driver.cuCtxResetPersistingL2Cache()  # fails on GPUs without such lines

    def dtype(self, name):
        found = getattr(self.torch, "float4_e2m1fn_x2" if name == "float4_e2m1" else name, None)
        if not isinstance(found, self.torch.dtype):
            raise Failure("machine", f"python: torch {self.torch.__version__} has no dtype {name}")
        return found

    def tensor(self, spec, guard):
        """Returns memory for a tensor, as uint8, and the same memory with its guards."""
        size = spec["bytes"]
        band = self.torch.empty(guard + size + guard, dtype=self.torch.uint8, device=self.device)
        if guard:
            band.fill_(CANARY)
        data = band[guard:guard + size]
        return data, band

    def view(self, spec, data):
        """Returns a new tensor object on memory from the method tensor. Like one of torch.empty, it begins with its
        storage."""
        shape = list(spec.get("shape") or [])
        if spec["dtype"] == "float4_e2m1" and shape:
            shape[-1] //= 2  # two elements per byte
        data = self.torch.utils.dlpack.from_dlpack(self.torch.utils.dlpack.to_dlpack(data))
        data = data.view(self.dtype(spec["dtype"]))
        if spec.get("stride"):
            return self.torch.as_strided(data, spec["shape"], spec["stride"])
        return data.view(shape)

    def gap(self, size):
        """Returns unused memory."""
        return self.torch.empty(size, dtype=self.torch.uint8, device=self.device)

    def fill(self, data, spec):
        """Copies contents from the file described by spec into the bytes of a tensor."""
        size, offset = spec["bytes"], spec["offset"]
        if size == 0:
            return
        with opened(spec) as fd:
            end = os.fstat(fd).st_size
            if offset < 0 or size < 0 or offset > end - size:
                raise OSError(f"{spec.get('path', 'tensors')}: bytes {offset} to {offset + size} are outside the file of {end} bytes")
            skip = offset % mmap.ALLOCATIONGRANULARITY
            with mmap.mmap(fd, size + skip, access=mmap.ACCESS_COPY, offset=offset - skip) as m:
                view = self.torch.frombuffer(m, dtype=self.torch.uint8, count=size, offset=skip)
                data.copy_(view)
                self.synchronize()
                del view  # otherwise the mapping cannot be closed

    def shape(self, t):
        """Returns the dtype's name in the format, and the shape."""
        name, shape = str(t.dtype).removeprefix("torch."), list(t.shape)
        if name == "float4_e2m1fn_x2":
            name = "float4_e2m1"
            if shape:
                shape[-1] *= 2
        return name, shape


def quiet(f):
    """Runs a method of Solution in Device.quiet."""
    @functools.wraps(f)
    def run(self, *args):
        with self.device.quiet():
            return f(self, *args)

    return run


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return os.uname().machine


def driver_version():
    try:
        with open("/proc/driver/nvidia/version") as f:
            found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)\s", f.read())
            return found.group(1) if found else ""
    except OSError:
        return ""
