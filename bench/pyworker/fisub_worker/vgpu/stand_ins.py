"""Replacements of torch.cuda's objects."""

import re
import time

import torch

from .errors import Lacking
from .tensors import CUDA, kind_of


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
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        pass

    wait_event = wait_stream = lambda self, other: None


class Event(StandIn):
    real = torch.cuda.Event

    elapsed = staticmethod(lambda begun, ended: 1.0)  # of a submission nothing is timed

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self.cuda_event, self.enable_timing, self.at = 0, enable_timing, None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def wait(self, stream=None):
        pass

    def query(self):
        return True

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        if not self.enable_timing or not end.enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return Event.elapsed(self.at, end.at)


class Runtime(StandIn):
    """The result of torch.cuda.cudart."""

    def __init__(self):
        self.cudaProfilerStart = self.cudaProfilerStop = lambda: 0


class On:
    """Replaces torch.cuda.device and torch.cuda.stream."""

    def __init__(self, device=None, **kwargs):
        kind_of(device)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None
