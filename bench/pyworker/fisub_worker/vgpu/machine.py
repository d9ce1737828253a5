"""The virtual GPU: fisub's library, and the memory that kernels may use."""

import collections
import contextlib
import ctypes
import functools
import os
import shutil
import sys
import tempfile
import threading

import torch

from .errors import Fault, Lacking


def allocation(nbytes):
    """Names memory that the submission's C++ code has allocated."""
    return f"an allocation of the submission ({nbytes} bytes)"


class Machine:
    """The virtual GPU: the library that comes with fisub. Its file may be missing until a kernel is loaded."""

    tuning_limit = 90.0  # seconds, see tuned_enough
    library = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vgpu.so")

    def __init__(self, tell, ledger, sanitize):
        self.installed = self.complete = False  # as the device of Triton, and with the parts of it that programs use
        self.watched = False  # for imports of the CuTe DSL
        self.sanitize = sanitize  # tools whose findings are faults
        self.ledger = ledger  # shared with fisub, for hazards; None without
        self.tell, self.process = tell, os.getpid()
        self.loaded_by = None  # the process that has loaded the library
        self.trouble = None  # the first one
        self.arguments = {}  # of the entry: (bytes, name, whether it is an input) by address
        self.pointers = {}  # weak references, by address, to tensors whose address the solution took
        self.kept = []  # tensors that the solution gave to tvm-ffi
        self.tuning, self.tuned = None, collections.Counter()  # tuned: seconds in this call, by kernel
        # Whether the next call, and the present one, is the first of a workload; 2: and is checked fully.
        self.first = self.looks = 1
        self.sample = 0  # clusters of each launch to count, 0: none
        self.refused = None  # the last error of a stage of Triton's compiler
        self.log = ""  # file for the output of nvcc when it fails
        self.acted = False  # this call gave the device work that lib does not see
        self.made = []  # CPU tensors for memory allocated by C++ code, while it may use them
        self.idle = self.uses(torch.empty(1))

    def set_folders(self, cache, folder, prebuilt):
        """Sets the folders of the cache and of the solution, and Builder.prebuilt."""
        self.cache, self.folder, self.prebuilt = cache, folder, prebuilt
        self.submission_cache = os.environ.get("FISUB_OWN_CACHE") or os.path.join(cache, "python")

    @contextlib.contextmanager
    def building(self):
        """Reports a build while it runs, because it does not count against the workload's time limit."""
        reports = threading.current_thread() is threading.main_thread() and os.getpid() == self.process
        try:
            if reports:
                self.tell({"building": True})
            yield
        finally:
            if reports:
                self.tell({"building": False})

    def restore(self):
        """Clears the state of a request."""
        self.trouble, self.kept = None, []
        if self.log:
            with contextlib.suppress(OSError):
                os.remove(self.log)

    def nvcc_log(self):
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
        lib.fisub_home.restype = lib.fisub_pending.restype = lib.fisub_program.restype = ctypes.c_void_p
        self.loaded_by = os.getpid()
        self.prepare(lib)
        return lib

    def prepare(self, lib):
        """Configures the library."""
        if self.ledger:
            lib.fisub_ledger(ctypes.c_void_p(ctypes.addressof(self.ledger)))
        lib.fisub_sanitize(self.sanitize.encode())
        lib.fisub_look(int(self.looks))
        lib.fisub_count(self.sample)

    @functools.cached_property
    def runtime(self):
        """Returns the folder of the virtual GPU's runtime. After this, the process has it."""
        home = ctypes.c_void_p()
        if not os.path.exists(self.library):
            raise Lacking("this fisub is built without the virtual GPU for Python")
        if error := self.lib.fisub_home(self.cache.encode(), ctypes.byref(home)):
            raise Lacking(f"cannot build CUDA: {self.text(error)}; fisub toolchain install fetches nvcc")
        return self.text(home.value)

    @functools.cached_property
    def home(self):
        """Returns the $CUDA_HOME whose nvcc builds for the virtual GPU. After this, the process has its runtime."""
        home = self.runtime
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
        ranges = self.ranges(tensors + [(t, "a tensor") for t in self.kept] + [(t, allocation(t.untyped_storage().nbytes())) for t in self.made])
        for base, size, name in ranges:
            self.lib.fisub_map(u64(base), u64(size), name.encode())
        try:
            yield
        finally:
            for base in [r[0] for r in ranges] + [t.untyped_storage().data_ptr() for t in self.made[known:]]:
                self.lib.fisub_unmap(u64(base))
            if result := self.lib.fisub_verdict(ctypes.byref(text)):
                self.stop(self.verdict(result, self.text(text.value)))

    @staticmethod
    def verdict(result, text):
        """Returns the error of a kernel."""
        return (Fault if result == 1 else Lacking)(text)

    def explain(self, func, args, kwargs, e):
        """Raises a better error for e, the error of a function of torch, if there is one."""

    def timed(self, call):
        """Returns the milliseconds that a call takes, which is made. Submissions are not timed."""
        call()
        return 1.0

    def tuned_enough(self, kernel):
        """Returns whether no more configurations of an autotuned kernel are to be tried in this call."""
        return sum(self.tuned.values()) > self.tuning_limit

    def begin_call(self):
        """Begins a call. The first one of a workload is examined more closely."""
        self.worked()
        self.acted = False
        if "lib" in self.__dict__:
            self.lib.fisub_look(int(self.first))
        self.looks, self.first = self.first, 0

    def count(self, sample):
        """Counts what launches do, in about sample clusters of each; 0: not."""
        self.sample = sample
        if "lib" in self.__dict__:
            self.lib.fisub_count(sample)

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
        self.lib.fisub_map(ctypes.c_uint64(storage.data_ptr()), ctypes.c_uint64(storage.nbytes()),
                            allocation(storage.nbytes()).encode())

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

    def pending(self):
        """Returns the error of the CUDA runtime that host code has ignored, or "". It is cleared."""
        error = "runtime" in self.__dict__ and self.lib.fisub_pending()
        return self.text(error) if error else ""

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
            self.stop(self.verdict(result, self.text(text.value)))
