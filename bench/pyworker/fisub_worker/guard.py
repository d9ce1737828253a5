"""Runs code of a solution and finds the cause of its errors.

Something that this machine lacks, or that the virtual GPU finds, is not the solution's own error.
"""

import errno
import os
import re
import sys
import tempfile

from .compilers import COMPILER, missing_header, own_error
from .errors import Failure, describe
from .image import TRITON, version
from .tracebacks import SOURCE, place, stack

# Parts of messages about a missing GPU or CUDA library, or an operation without a version for CPU memory.
NO_GPU = re.compile(r"not implemented for '|compiled with CUDA|[Nn]o NVIDIA driver|CUDA_HOME environment variable is not set"
                    r"|lib(cuda|nvrtc|cublas|cudnn|nvJitLink)|No such file or directory: '(\S*/)?nvcc'|nvcc: (command )?not found|nvrtc|_cuda_|_Cuda"
                    r"|undefined symbol: (\w*4cuda|cu|nv)"
                    r"|'CUDA'|the 'CPU' backend|support for cuda|No CUDA|CUDA driver|CUDA error|NVML|nvidia-smi")


def guard(device, kind, f):
    """Runs the solution's code. Any exception becomes a Failure of that kind, or a fault if the device is lost. A copy
    of this process forked by the code ends here."""
    pid = os.getpid()
    try:
        return f()
    except Failure as e:
        raise excuse(e, device) from None
    except BaseException as e:
        if os.getpid() == pid:
            if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT) and full():
                kind = "machine"
            failure = Failure(lost(device) or kind, describe(e), stack(e))
            failure.__cause__ = e
            raise excuse(failure, device) from None
    finally:
        if os.getpid() != pid:
            os._exit(0)


def excuse(failure, device):
    """Returns failure, or a replacement for it: something missing on this machine or, in an emulated run, a finding of
    the virtual GPU."""
    e = failure.__cause__
    if isinstance(e, PermissionError) and e.filename is not None and os.environ.get("FISUB_CONFINED"):
        return Failure("lacking", "solutions may write only to temporary files and compilers' caches, "
                       f"not to {e.filename!r} ({place(e)})", failure.log)
    if not device.emulated:
        return failure
    e = device.vgpu and device.machine.trouble or e
    if device.vgpu and isinstance(e, device.vgpu.Trouble):
        return Failure(*e.verdict(), failure.log)
    text = refused(e, device) if failure.kind == "call" else ""
    if isinstance(e, Exception) and (other := other_triton(e, text)):
        return Failure("lacking", other, failure.log)
    if text:
        return Failure("call", text, failure.log)
    if failure.kind not in ("build", "call") or not isinstance(e, Exception):
        return failure
    if device.vgpu and (missing := device.vgpu.stubs()):
        return Failure("lacking", f"{'; '.join(missing)}; without it: {failure.text} ({place(e)})", failure.log)
    output = failure.text + "\n" + failure.log + (device.machine.nvcc_log() if device.vgpu else "")
    if header := missing_header(output):
        return Failure("lacking", f"the virtual GPU's build has no header {header} ({place(e)})", failure.log)
    if device.vgpu and (missing := device.vgpu.stand_in(e)):
        return Failure("lacking", f"the virtual GPU does not support {missing}: {failure.text} ({place(e)})", failure.log)
    if "Error building extension" in failure.text and not own_error(output, device.cache):
        return Failure("lacking", f"cannot build its torch extension: {describe(e).splitlines()[0][:200]} ({place(e)})", failure.log)
    if COMPILER.search(output) or not NO_GPU.search(failure.text.rpartition(" from sources: ")[2]):  # after the solution's name
        return failure
    return Failure("lacking", f"it needs a GPU, and this machine has none: {failure.text} ({place(e)})", failure.log)


def other_triton(e, text):
    """Returns a text for e, described by text, if a Triton other than the contest's may have caused it, else ""."""
    if "triton" not in sys.modules or (has := version("triton")) == TRITON:
        return ""
    tb, folder = e.__traceback__, os.path.dirname(sys.modules["triton"].__file__ or "/triton/__init__.py")
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    inside = tb is not None and tb.tb_frame.f_code.co_filename.startswith(folder + os.sep)
    if not text and not inside and not (isinstance(e, (AttributeError, ImportError)) and re.search(r"\btriton\b", describe(e))):
        return ""
    return (f"{text or f'{place(e)}: {describe(e)}'}: by Triton {has}; the contest uses {TRITON}, which "
            "fisub toolchain install fetches")


def refused(e, device):
    """Returns why Triton rejects a kernel, "kernel.py:12:5: ...", or "" for other errors."""
    refusal = device.vgpu and device.vgpu.refusal(device.machine, e)
    if not refusal:
        return ""
    at, text = refusal
    source = at and SOURCE.search(at[0])
    return f"{source[1]}:{at[1]}:{at[2]}: {text}" if source else f"{place(e)}: {text}"


def full():
    """Returns whether the disk for temporary files is full."""
    try:
        with tempfile.TemporaryFile() as f:
            os.posix_fallocate(f.fileno(), 0, 1 << 20)
        return False
    except OSError:
        return True


def lost(device):
    """Returns "fault" if the device fails without new work, because errors of the context are permanent."""
    try:
        device.synchronize()
    except BaseException:
        return "fault"
    return ""
