"""A program that fisub emu runs, instead of a submission.

Its messages are printed at once, and an error does not end it: like the error of a torch that waits for each kernel, it
is an exception at the line that started the kernel, and later kernels run.
"""

import functools
import hashlib
import json
import os
import re
import sys
import tempfile
import time
import types

import torch

from . import errors, parts, torch_cuda
from .errors import Fault, Lacking
from .machine import Machine
from .stand_ins import Event
from .tensors import is_host, tensors_of

OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# Parts of torch's messages about an operation without a version for CPU memory.
CPU_ONLY = re.compile(r"not implemented for '|the 'CPU' backend|'CUDA' backend|compiled with CUDA|[Nn]o NVIDIA driver|CUDA driver"
                      r"|support for cuda|NVML|only supported (on|for) (CUDA|GPU)|CPU .*not support|not support.* CPU", re.I)
TIMES = "times are those of the virtual GPU, not of a GPU"
CHOSEN = ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "TVM_FFI_CUDA_ARCH_LIST", "CXX", "NVCC_APPEND_FLAGS")


class Program(Machine):
    """The virtual GPU of a program. Messages go to the file descriptor messages."""

    library = os.environ.get("FISUB_EMU")
    tuning_limit = 5.0

    def __init__(self, messages):
        super().__init__(lambda message: None, None, "")
        self.messages, self.noted = messages, set()
        cache = os.environ["FISUB_EMU_CACHE"]
        self.set_folders(cache, os.path.join(cache, "python-programs", digest([os.getcwd(), sys.orig_argv])), self.build)

    def begin(self):
        """Gives torch, which has just been imported, a CUDA device."""
        errors.Lacking.report = lambda text: self.tell_emu("l", text)
        self.tell_emu("a")
        mode = torch_cuda.pretend(self)
        Event.elapsed = self.elapsed
        for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "memory_stats", "memory_summary",
                     "memory_snapshot", "memory_cached", "max_memory_cached", "memory_usage", "utilization", "temperature", "power_draw",
                     "clock_rate", "host_memory_stats"):
            setattr(torch.cuda, name, torch_cuda.lacking(f"torch.cuda.{name}"))
        parts.install(self)
        from . import libraries
        libraries.expose(self)
        mode.__enter__()
        hook = sys.excepthook
        sys.excepthook = lambda kind, e, tb: hook(kind, without_ours(e), e.__traceback__)

    def prepare(self, lib):
        if error := lib.fisub_program(self.messages):
            raise RuntimeError(self.text(error))

    def tell_emu(self, event, text=""):
        """Reports an event to fisub emu, as its library does."""
        with open(os.environ["FISUB_EMU_REPORT"], "ab", 0) as f:
            f.write(event.encode())
        if text:
            os.write(self.messages, f"fisub: {'note: ' * (event == 'n')}{text}\n".encode())

    def note(self, text):
        """Prints a text once."""
        if text not in self.noted:
            self.noted.add(text)
            self.tell_emu("n", text)

    def lacks(self, text):
        raise Lacking(text)

    def stop(self, trouble):
        raise trouble

    def verdict(self, result, text):
        """Returns the error of a launch. The library has reported it."""
        return Fault(text) if result == 1 else Lacking(text, reported=True)

    def check(self):
        if os.getpid() != self.process and self.loaded_by not in (None, os.getpid()):
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                               "'spawn' start method")

    def explain(self, func, args, kwargs, e):
        """Raises Lacking if e, an error of a function of torch, is one of its CPU build."""
        given = list(tensors_of((args, kwargs)))
        if not isinstance(e, errors.Trouble) and CPU_ONLY.search(str(e)) and not (given and all(is_host(t) for t in given)):
            name = getattr(func, "__name__", str(func))
            reason = re.split(r"[.] |\n", str(e))[0]
            raise Lacking(f"torch's own functions run in its CPU build, in which torch.{name} does not work: {reason}") from None

    def tuned_enough(self, kernel):
        return self.tuned[kernel] > self.tuning_limit

    def elapsed(self, begun, ended):
        self.note(TIMES)
        return (ended - begun) * 1e3

    def timed(self, call):
        """Returns the milliseconds that a call takes."""
        begun = time.perf_counter()
        call()
        return self.elapsed(begun, time.perf_counter())

    def build(self, name, parts, make):
        """Returns the folder of the build called name from parts, which make(folder) makes if it is missing."""
        key = digest([sys.version, str(torch.__version__), [os.environ.get(name) for name in CHOSEN], parts])
        folder = os.path.join(self.cache, "python-programs", f"{name}-{key}")
        if not os.path.isdir(folder):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            made = tempfile.mkdtemp(dir=os.path.dirname(folder))
            make(made)
            try:
                os.rename(made, folder)
            except OSError:
                if not os.path.isdir(folder):  # otherwise another process was faster
                    raise
        return folder


def digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def without_ours(e):
    """Returns e, whose traceback and causes have lost fisub's frames."""
    seen, queue = set(), [e]
    while queue:
        one = queue.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        queue += [one.__cause__, one.__context__]
        kept, tb = [], one.__traceback__
        while tb is not None:
            if not tb.tb_frame.f_code.co_filename.startswith(OURS):
                kept.append(tb)
            tb = tb.tb_next
        following = None
        for tb in reversed(kept):
            following = types.TracebackType(following, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
        one.__traceback__ = following
    return e
