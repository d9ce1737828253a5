"""The virtual GPU in the worker process of an emulated run.

Tensors are in CPU memory, but a solution sees them on a CUDA device, and its kernels run on fisub's virtual GPU. The
package needs torch; what other libraries need is imported when a solution uses them.

    machine        the virtual GPU: fisub's library
    triton_driver  Triton's kernels on it
    autotune       Triton's autotuning
    descriptors    Triton's descriptors
    refusals       why Triton rejects a kernel
    tvm            tvm-ffi
    cute_dsl       the CuTe DSL
    libraries      libraries by ctypes
    bindings       NVIDIA's Python bindings of CUDA
    extensions     torch's own builder and the modules that it builds
    torch_cuda     torch.cuda
    program, parts, autocast  programs instead of submissions
    pretence       tensors on the CUDA device
    wide           operations that need more precision than torch's CPU build has
    stand_ins      streams, events and other objects of torch.cuda
    missing        packages of the contest's image that this machine lacks
    dlpack, tensors, b200, errors
"""

import functools
import os
import sys

from .errors import Fault, Lacking, Trouble
from .machine import Machine
from .missing import Finder, Missing, stub, stubs, unstub
from .refusals import refusal
from .stand_ins import Event, On, Properties, Runtime, StandIn, Stream, stand_in
from .torch_cuda import pretend

__all__ = ["Machine", "Trouble", "complete", "expose", "install", "pretend", "refusal", "stand_in", "stub", "stubs", "unstub"]

# Users see these classes in tracebacks and messages.
for seen in (Trouble, Fault, Lacking, Finder, Missing, StandIn, Event, On, Properties, Runtime, Stream):
    seen.__module__ = "fisub_vgpu"


def expose(machine, texts):
    """Gives the libraries that sources with those texts use the virtual GPU. Triton needs install."""
    def uses(name):
        return any(name in text for text in texts)

    if uses("cpp_extension"):
        from . import extensions
        extensions.extend(machine)
    if uses("tvm_ffi"):
        from . import tvm
        tvm.expose(machine)
    if uses("ctypes"):
        from . import libraries
        libraries.expose(machine)
    if uses("cutlass") or uses("flashinfer"):
        watch(machine)
    if uses("nvcc") and (uses("tvm_ffi") or uses("ctypes")):
        _ = machine.home


def watch(machine):
    """Gives the CuTe DSL the virtual GPU when it is imported."""
    if not machine.watched:
        machine.watched = True
        from .. import importing
        from . import bindings, cute_dsl
        os.environ.update(importing.SETTINGS)
        binds = functools.partial(bindings.install, machine)
        sys.meta_path.insert(0, importing.Changes({"cutlass": lambda module: cute_dsl.install(machine), "cuda.bindings.driver": binds,
                                                   "cuda.bindings.runtime": binds}))


def complete(machine):
    """Gives torch the parts of a CUDA device that programs use, such as generators."""
    if not machine.complete:
        machine.complete = True
        from . import parts
        parts.install(machine)


def install(machine):
    """Makes the virtual GPU Triton's device."""
    if not machine.installed:
        machine.installed = True
        from . import triton_driver
        triton_driver.install(machine)
