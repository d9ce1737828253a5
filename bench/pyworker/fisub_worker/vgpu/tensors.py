"""Which tensors are on the CUDA device that solutions see. All are in CPU memory."""

import contextlib

import torch

HOST = "_fisub_host"  # an attribute of tensors that the solution has put into CPU memory
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


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


def octets(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)
