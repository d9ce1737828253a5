"""Libraries that a solution loads with ctypes."""

import ctypes
import functools
import os
import re

RUNTIMES = re.compile(r"lib(cudart|cuda)\.so[.\d]*$")


def expose(machine):
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
