"""The bytes of tensors, in files and at addresses."""

import contextlib
import ctypes
import mmap
import os

# The memory at an address as a read-only memoryview. Unlike from_address it raises no audit event, for which a solution
# may have a hook.
MEMORY = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(("PyMemoryView_FromMemory", ctypes.pythonapi))


@contextlib.contextmanager
def opened(spec):
    """Opens the file that holds a tensor and yields its descriptor."""
    if "fd" in spec:
        yield spec["fd"]
        return
    fd = os.open(spec["path"], os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def shared(fd):
    """Returns the memory in a file, mapped."""
    memory = mmap.mmap(fd, os.fstat(fd).st_size)
    return (ctypes.c_ubyte * len(memory)).from_buffer(memory)


def write(fd, t, offset):
    """Writes a contiguous CPU tensor to a file, which grows as needed."""
    size, done = t.numel() * t.element_size(), 0
    if size == 0:
        return
    data = MEMORY(t.data_ptr(), size, 0x100)
    while done < size:
        done += os.pwrite(fd, data[done:done + (1 << 30)], offset + done)


def first_difference(a, b):
    """Returns the index of the first differing byte of two tensors of equal size, or -1."""
    return int((a != b).byte().argmax()) if a.numel() and not a.equal(b) else -1
