"""Which tensors are on the CUDA device that solutions see. All are in CPU memory."""

import contextlib
import functools

import torch

HOST = "_fisub_host"  # an attribute of tensors that the solution has put into CPU memory
PINNED = "_fisub_pinned"  # an attribute of tensors in pinned memory
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@contextlib.contextmanager
def real():
    """Suspends the pretence."""
    with torch._C.DisableTorchFunction():
        yield


def is_host(t):
    return HOST in t.__dict__


def is_cuda(t):
    """Returns whether t, which may be on another device than the two, is on the CUDA device."""
    with real():
        return t.is_cpu and not is_host(t)


def pin(t):
    """Makes t count as pinned memory."""
    t.__dict__[HOST] = t.__dict__[PINNED] = True


def mark(t, host):
    if host:
        t.__dict__[HOST] = True
    else:
        t.__dict__.pop(HOST, None)
        t.__dict__.pop(PINNED, None)


def kind_of(device):
    """Returns the kind of a device given in any form, or None if it is not a device. There is one CUDA device."""
    kind, ordinal = None, 0
    if isinstance(device, torch.device):
        kind, ordinal = device.type, device.index
    elif isinstance(device, str):
        kind, _, ordinal = device.partition(":")
    elif isinstance(device, int) and not isinstance(device, bool):
        kind, ordinal = "cuda", device
    if kind == "cuda" and ordinal and int(ordinal) > 0:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return kind


def hosted(f):
    """Returns f, a function that torch does not pass to modes, with results in CPU memory."""
    @functools.wraps(f)
    def run(*args, **kwargs):
        t = f(*args, **kwargs)
        mark(t, True)
        return t

    return run


def tensors_of(value, depth=0):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)) and depth < 3:
        for v in value:
            yield from tensors_of(v, depth + 1)
    elif isinstance(value, dict) and depth < 3:
        for v in value.values():
            yield from tensors_of(v, depth + 1)


def octets(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)
