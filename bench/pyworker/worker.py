"""The worker process of fisub for solutions in Python and Python references.

It reads requests from descriptor 3, a socket that also carries descriptors, and writes replies to 4, one JSON object a
line. Package bench/worker describes them: open, build, load, run, measure, check. Tensors travel through files. It
needs the standard library and torch. open imports torch; code before that, such as the rules for entry points, does
not need it.
"""

import array
import base64
import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import linecache
import mmap
import os
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import typing
import warnings

MAX_TEXT = 4 << 10
MAX_LOG = 1 << 20
POISON = 0xFF  # NaN as bfloat16, float16 and float32, so an element that is left out cannot pass
CANARY = 0xA5  # fills the memory around tensors; not POISON, which a solution may copy from an unwritten output
STALL_CYCLES = 20_000_000  # before a probed call: about 10 ms, longer than most calls take to launch
SOURCE = re.compile(r"/python/[0-9a-f]{32}/[^/]+/(.+)$")  # Solution.sources, the package, and the author's path
SCALARS = {"int": int, "float": float, "bool": bool}
BUILDS = "python-build"  # a cache folder that no process with submitted code may write
MAX_FILES = 16  # in one request
QUIET, SLOW = 5e-3, 2e-4  # seconds for which the GPU must be idle, and that an event takes if it is not
BUSY = "the GPU was busy with other work before the calls"
LIMIT_PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
ESTIMATES = 5  # calls with which the official harness estimates the time of one, before the warm-up calls


# Packages of the contest's image, from the starter kit's EVALUATION.md and the requirements of FlashInfer and
# flashinfer-bench.
IMAGE = set("""click cuda cudnn cupti cutlass deep_gemm einops flashinfer flashinfer_bench helion ninja numpy packaging pydantic
    pynvml requests safetensors tabulate tilelang tirx torch tqdm triton tvm_ffi""".split())
TRITON = "3.6.0"  # the contest's
# PyPI names of some of them.
PYPI = {name: name for name in ("einops", "helion", "ninja", "numpy", "safetensors", "tilelang", "tqdm")} | {
        "cuda": "cuda-python", "cudnn": "nvidia-cudnn-frontend", "cupti": "cupti-python", "cutlass": "nvidia-cutlass-dsl",
        "flashinfer": "flashinfer-python", "pynvml": "nvidia-ml-py", "tvm_ffi": "apache-tvm-ffi", "flashinfer_bench": "flashinfer-bench"}
# Parts of messages about a missing GPU or CUDA library, or an operation without a version for CPU memory.
NO_GPU = re.compile(r"not implemented for '|compiled with CUDA|[Nn]o NVIDIA driver|CUDA_HOME environment variable is not set"
                    r"|lib(cuda|nvrtc|cublas|cudnn|nvJitLink)|No such file or directory: '(\S*/)?nvcc'|nvcc: (command )?not found|nvrtc|_cuda_|_Cuda"
                    r"|undefined symbol: (\w*4cuda|cu|nv)"
                    r"|'CUDA'|the 'CPU' backend|support for cuda|No CUDA|CUDA driver|CUDA error|NVML|nvidia-smi")

# An error that a compiler reports in a source, except a missing header of the contest's image.
COMPILER = re.compile(r"\.(?:cuh?|c|cc|cpp|cxx|h|hpp)(?:\(\d+\)|:\d+:\d+): (?:fatal |catastrophic )?error\b(?P<text>.*)")
NO_HEADER = re.compile(r"(\S+): No such file|cannot open source file \"([^\"]+)\"")
# Headers of CUDA, CUTLASS, torch and the other packages of the contest's image.
HEADERS = re.compile(r"(cutlass|cute|cub|thrust|cuda|nv|cooperative_groups|crt|cccl|nvtx3|flashinfer|deep_gemm|tvm|dlpack|torch|ATen|c10|pybind11"
                     r"|triton)/|(cu|nv|nccl|cooperative_groups|mma|Python|library_types|vector_|device_|sm_|math_constants)\w*\.h(pp)?$")


def own_error(text, cache):
    """Returns whether text has a compiler or linker error outside the headers of torch and CUDA. Files that a
    submission builds itself are below the folder cache."""
    paths = [text[text.rfind("\n", 0, m.start()) + 1:m.start()] for m in COMPILER.finditer(text)]
    shared = ("/vgpu-python/", f"/{BUILDS}/")
    return "undefined reference to" in text or any(
        not p.startswith("/") or "/python/" in p or p.startswith(cache) and not any(part in p for part in shared) for p in paths)


def missing_header(text):
    """Returns the first header of the contest's image that the compiler did not find, or "" if text has any other
    error."""
    missing = ""
    for error in COMPILER.finditer(text):
        found = NO_HEADER.search(error["text"])
        name = found and (found[1] or found[2])
        if not name or not HEADERS.match(name):
            return ""
        missing = missing or name
    return missing


HINTS = {  # by the code of a Failure
    "no-dependency": "install it for that Python, or set FISUB_PYTHON to one with it",
    "no-gpu": "nvidia-smi lists the driver's GPUs; --device emu runs on the CPU",
    "no-ninja": "pip install ninja, and put its folder on PATH",
    "no-ordinal": "--device cuda:0 is the first GPU",
    "no-tilelang": "pip install tilelang for that Python, or set FISUB_PYTHON to another one",
    "no-torch": "pip install torch, or set FISUB_PYTHON to a Python with torch",
    "no-torch-cuda": "install a torch with CUDA, or set FISUB_PYTHON to a Python with one; --device emu runs on the CPU",
    "no-triton": "pip install triton==3.6.0 for that Python, or set FISUB_PYTHON to another one",
    "no-vgpu": "build fisub with scripts/build",
}


class Failure(Exception):
    """The error of a reply. kind is one of machine, build, call, fault, timing, lacking."""

    def __init__(self, kind, text, log="", code="", missing=""):
        super().__init__(text)
        self.kind, self.text, self.log, self.code = kind, clip(text, MAX_TEXT), clip(log, MAX_LOG), code
        self.missing = missing  # with code unbuilt: the name of the missing build

    def reply(self):
        return {"error": {"kind": self.kind, "text": self.text, "log": self.log, "code": self.code, "missing": self.missing,
                          "hint": HINTS.get(self.code, "")}}


class Made(Failure):
    """Ends a build request once the build that it asked for is complete."""

    def __init__(self):
        super().__init__("machine", "made")

    def reply(self):
        return {}


def clip(text, most):
    return text if len(text) <= most else text[: most // 2] + "\n...\n" + text[-most // 2:]


def describe(e):
    """Returns the last line of a traceback. The exception's own __str__ may raise anything."""
    try:
        text = str(e)
    except BaseException:
        text = "(no message)"
    return f"{type(e).__name__}: {text}" if text else type(e).__name__


def stack(e):
    """Returns the traceback of e with the paths of the solution's sources, without fisub's frames."""
    try:
        told = traceback.TracebackException.from_exception(e)
        queue, seen = [told], set()
        while queue:
            part = queue.pop()
            if part is None or id(part) in seen:
                continue
            seen.add(id(part))
            queue += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or [])]
            if getattr(part, "filename", None) and (source := SOURCE.search(part.filename)):
                part.filename = source[1]  # of a SyntaxError
            part.stack[:] = own(part.stack)
        return "".join(told.format())
    except BaseException:
        return describe(e)


def own(frames):
    """Returns frames without fisub's and importlib's, starting at the first one in a source, if there is one."""
    ours = (__file__, os.path.join(os.path.dirname(os.path.abspath(__file__)), "vgpu.py"), importlib.__file__)
    frames = [f for f in frames if f.filename not in ours and not f.filename.startswith("<frozen importlib")]
    first = next((i for i, f in enumerate(frames) if SOURCE.search(f.filename)), 0)
    for f in frames[first:]:
        if source := SOURCE.search(f.filename):
            _ = f.line  # reads it from the file before the path changes
            f.filename = source[1]
    return frames[first:]


format_warning = warnings.formatwarning


def warning(message, category, filename, lineno, line=None):
    """formatwarning with the path of a source in the solution."""
    if source := SOURCE.search(filename):
        line, filename = linecache.getline(filename, lineno) if line is None else line, source[1]
    return format_warning(message, category, filename, lineno, line)


def frame(e):
    """Returns the innermost frame of e's traceback in a source of the solution, or None."""
    tb, found = e.__traceback__, None
    while tb is not None:
        if SOURCE.search(tb.tb_frame.f_code.co_filename):
            found = tb
        tb = tb.tb_next
    return found


def place(e):
    """Returns the line of the solution's sources that raised e: "kernel.py:12"."""
    at = frame(e)
    if at is None:
        return "no line of the sources"
    return f"{SOURCE.search(at.tb_frame.f_code.co_filename)[1]}:{at.tb_lineno}"


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
    if told := getattr(e, "told", None):
        kind, text = told()
        return Failure(kind, text, failure.log)
    text = refused(e, device) if failure.kind == "call" else ""
    if isinstance(e, Exception) and (other := other_triton(e, text)):
        return Failure("lacking", other, failure.log)
    if text:
        return Failure("call", text, failure.log)
    if failure.kind not in ("build", "call") or not isinstance(e, Exception):
        return failure
    if device.vgpu and (missing := device.vgpu.stubs()):
        return Failure("lacking", f"{'; '.join(missing)}; without it: {failure.text} ({place(e)})", failure.log)
    said = failure.text + "\n" + failure.log + (device.machine.said() if device.vgpu else "")
    if header := missing_header(said):
        return Failure("lacking", f"the virtual GPU's build has no header {header} ({place(e)})", failure.log)
    if device.vgpu and (missing := device.vgpu.stand_in(e)):
        return Failure("lacking", f"the virtual GPU does not support {missing}: {failure.text} ({place(e)})", failure.log)
    if "Error building extension" in failure.text and not own_error(said, device.cache):
        return Failure("lacking", f"cannot build its torch extension: {describe(e).splitlines()[0][:200]} ({place(e)})", failure.log)
    if COMPILER.search(said) or not NO_GPU.search(failure.text.rpartition(" from sources: ")[2]):  # after the solution's name
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


# The rules and texts of the official builder and evaluator. They need no torch.


def content_hash(solution):
    """Returns the contest's SHA-1 of a solution."""
    spec = solution["spec"]
    parts = [solution["definition"], spec["language"], spec["entry_point"], spec.get("binding") or ""]
    parts += spec.get("dependencies") or []
    for source in solution["sources"]:
        parts += [source["path"], source["content"]]
    return hashlib.sha1("".join(parts).encode()).hexdigest()


def package_name(prefix, solution):
    name = re.sub(r"[^0-9A-Za-z_]", "_", solution["name"])
    if not name or name[0].isdigit():
        name = "_" + name
    return f"{prefix}{name}_{content_hash(solution)[:6]}"


def module_name(package, file):
    """Returns the module of an entry file, such as pkg.sub.kernel for sub/kernel.py."""
    if not file.endswith(".py"):
        raise Failure("build", f"Entry file '{file}' is not a Python file")
    parts = [p for p in file[: -len(".py")].split("/") if p not in ("", ".")]
    return ".".join([package, *parts])


def write_sources(folder, sources):
    """Writes the sources below folder."""
    for source in sources:
        path = os.path.normpath(os.path.join(folder, source["path"]))
        if os.path.isabs(source["path"]) or os.path.commonpath([folder, path]) != folder or path == folder:
            raise Failure("build", f"Invalid source path: {source['path']}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(source["content"].encode())


def import_entry(module, symbol, dependencies=(), stub=None):
    """Returns the entry function. A missing package is an error of the machine if the solution names it as a
    dependency. stub, if not None, makes a missing package of the contest's image importable; its argument is the error
    to raise at the first use."""
    try:
        loaded = importlib.import_module(module)
    except BaseException as e:
        missing = (getattr(e, "name", None) or "").partition(".")[0] if isinstance(e, ModuleNotFoundError) else ""
        if missing and missing in dependencies:
            raise Failure("machine", f"python: {sys.executable} has no {missing}, on which the solution depends", code="no-dependency") from None
        if missing in IMAGE:
            text = f"{sys.executable} has no {missing}, which the contest's image has ({place(e)})"
            if missing in PYPI:
                text += f": pip install {PYPI[missing]}"
            if stub and stub(missing, text):
                return import_entry(module, symbol, dependencies, stub)
            raise Failure("lacking", text) from None
        raise Failure("build", f"Failed importing module '{module}' from sources: {describe_import(e)}", stack(e)) from e
    try:
        entry = getattr(loaded, symbol)
    except AttributeError:
        raise Failure("build", f"Entry symbol '{symbol}' not found in module '{module}'") from None
    if not callable(entry):
        raise Failure("build", f"Entry symbol '{symbol}' is not callable")
    return entry


def describe_import(e):
    try:
        return str(e) or type(e).__name__
    except BaseException:
        return type(e).__name__


def check_signature(entry, inputs, outputs, destination_passing):
    """Raises a Failure if entry does not take that many arguments. Callables without a known signature pass."""
    try:
        signature = inspect.signature(entry)
    except (ValueError, TypeError):
        return
    count = inputs + outputs if destination_passing else inputs
    style = "Destination-passing style" if destination_passing else "Value-returning style"
    try:
        signature.bind(*[None] * count)
    except TypeError as e:
        raise Failure("build", f"{style} callable: expected {count} positional parameters, but signature '{signature}' is incompatible: {e}") from None
    if destination_passing:
        return
    returned = annotated_results(entry, signature)
    if returned is not None and returned != outputs:
        raise Failure("build", f"{style} callable: annotated to return {returned} values, but {outputs} outputs expected")


def annotated_results(entry, signature):
    """Returns the number of values in the return annotation, or None if it is open."""
    annotation = signature.return_annotation
    if isinstance(annotation, str):
        try:
            annotation = typing.get_type_hints(entry).get("return", inspect.Signature.empty)
        except Exception:
            return None
    if annotation is inspect.Signature.empty or annotation is typing.Any:
        return None
    if annotation is None or annotation is type(None):
        return 0
    if annotation in (tuple, list):
        return None
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return None if Ellipsis in args else len([a for a in args if a != ()])
    return None if origin is not None else 1


def results(value, count, any_count):
    """Returns the values of a value-returning call, in types of Solution.plain, as a list. any_count leaves checking
    their number to the parent."""
    if type(value) is tuple and len(value) < 2:
        value = value[0] if value else None
    if type(value) is tuple or type(value) is list:
        if len(value) != count and not any_count:
            raise ValueError(f"Tuple/list has {len(value)} elements but {count} outputs expected")
        return list(value)
    if value is None and count == 0:
        return []
    if count != 1 and not any_count:
        raise ValueError(f"Single value returned but {count} outputs expected")
    return [value]


def version(package):
    try:
        return importlib.metadata.version(package)
    except Exception:
        return ""


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


# CUPTI's activity records. They are only collected here; fisub computes the times.

MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL = 1, 2, 4, 5, 10
# By kind, the number of bytes of a record to pass on, up to the last field used. In a kernel's record the address of
# its name follows, which is replaced by an index.
READ = {MEMCPY: 48, MEMSET: 48, DRIVER: 36, RUNTIME: 36, KERNEL: 104}
BUFFER_BYTES, MAX_BUFFERS = 8 << 20, 48
MAX_RECORD_BYTES = 96 << 20  # total to pass on
MAX_NAMES, MAX_NAME = 1 << 14, 1 << 16
MAX_LIMIT_REACHED = 12  # CUPTI's status for the end of a buffer
FLUSH_FORCED = 1

REQUESTED = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
FUNCTIONS = {
    "cuptiGetVersion": [ctypes.POINTER(ctypes.c_uint32)],
    "cuptiGetResultString": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
    "cuptiGetTimestamp": [ctypes.POINTER(ctypes.c_uint64)],
    "cuptiSubscribe": [ctypes.POINTER(ctypes.c_void_p), CALLBACK, ctypes.c_void_p],
    "cuptiUnsubscribe": [ctypes.c_void_p],
    "cuptiActivityRegisterCallbacks": [REQUESTED, COMPLETED],
    "cuptiActivityEnable": [ctypes.c_int],
    "cuptiActivityDisable": [ctypes.c_int],
    "cuptiActivityFlushAll": [ctypes.c_uint32],
    "cuptiActivityGetNextRecord": [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)],
    "cuptiActivityGetNumDroppedRecords": [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_size_t)],
}


class Unavailable(Exception):
    """The reason why CUPTI cannot be used."""


def loaded_libraries(name):
    """Returns the paths of loaded libraries whose names begin with name."""
    found = []
    try:
        with open("/proc/self/maps") as f:
            for line in f:
                path = line.rstrip("\n").split(None, 5)[5:]
                if path and os.path.basename(path[0]).startswith(name) and path[0] not in found:
                    found.append(path[0])
    except OSError:
        pass
    return found


def cupti_paths(major):
    """Returns possible paths of libcupti for that CUDA release: already loaded, as torch's is, in NVIDIA's wheels, in a
    toolkit, or on the loader's path."""
    name = f"libcupti.so.{major}"
    paths = loaded_libraries("libcupti.so")
    try:
        roots = list(importlib.util.find_spec("nvidia").submodule_search_locations)
    except (ImportError, AttributeError, ValueError, TypeError):
        roots = []
    for root in roots:
        paths += [os.path.join(root, f"cu{major}", "lib", name), os.path.join(root, "cuda_cupti", "lib", name)]
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            paths += [os.path.join(home, "extras", "CUPTI", "lib64", name), os.path.join(home, "lib64", name)]
    return paths + [name]


def open_cupti(paths):
    """Returns the first one that can be loaded."""
    why = ""
    for path in paths:
        try:
            return CUPTI(path)
        except Unavailable as e:
            if not why and "No such file or directory" not in str(e):  # the error of most paths
                why = str(e)
    raise Unavailable(why or f"no {paths[-1]}")


def demangler():
    """Returns a function that demangles C++ symbols and returns other symbols unchanged."""
    try:
        demangle, free = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle"), ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return lambda symbol: symbol
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]

    def plain(symbol):
        at = demangle(symbol, None, None, ctypes.byref(ctypes.c_int()))
        if not at:
            return symbol
        try:
            return ctypes.string_at(at)
        finally:
            free(at)

    return plain


class Records:
    """CUPTI's records in fisub's format."""

    def __init__(self, plain):
        self.data, self.names, self.lost, self.plain = bytearray(), [], 0, plain
        self.indices = {}

    def add(self, address, end):
        """Adds the record at address, in a buffer filled up to end."""
        kind = ctypes.c_uint32.from_address(address).value
        size = READ.get(kind)
        if size is None:
            return
        room = size + 8 if kind == KERNEL else size
        if address + room > end or len(self.data) + room > MAX_RECORD_BYTES:
            self.lost += 1
            return
        record = ctypes.string_at(address, size)
        if kind == KERNEL:
            index = self.name(ctypes.c_void_p.from_address(address + size).value)
            if index is None:
                self.lost += 1
                return
            record += struct.pack("<I", index)
        self.data += record

    def name(self, address):
        """Returns the index of the name at address. It copies the text, because unloading a module frees its names."""
        symbol = ctypes.string_at(address) if address else b""
        index = self.indices.get(symbol)
        if index is None and len(self.names) < MAX_NAMES and len(symbol) <= MAX_NAME:
            index = self.indices[symbol] = len(self.names)
            self.names.append([text.decode(errors="replace") for text in (symbol, self.plain(symbol)[:MAX_NAME])])
        return index

    def reply(self, version):
        return {"version": version, "lost": self.lost, "names": self.names, "records": base64.b64encode(self.data).decode()}


class CUPTI:
    """CUPTI in this process. A recording lasts from begin to end."""

    def __init__(self, path):
        try:
            self.lib = ctypes.CDLL(path)
        except OSError as e:
            raise Unavailable(str(e)) from None
        for name, types in FUNCTIONS.items():
            try:
                getattr(self.lib, name).argtypes = types
            except AttributeError:
                raise Unavailable(f"{path}: no {name}") from None
        version = ctypes.c_uint32()
        if self.lib.cuptiGetVersion(ctypes.byref(version)) != 0:
            raise Unavailable(f"{path}: cuptiGetVersion")
        self.version, self.clock, self.subscriber = version.value, ctypes.c_uint64(), ctypes.c_void_p()
        self.buffers, self.free, self.full, self.refused = {}, [], [], 0  # by address; never freed
        # CUPTI also calls these on a thread of its own until the process ends.
        self.callbacks = REQUESTED(self.requested), COMPLETED(self.completed), CALLBACK(lambda *_: None)

    def requested(self, buffer, size, most):
        most[0] = 0  # as many records as fit
        if not self.free:
            if len(self.buffers) == MAX_BUFFERS:
                self.refused += 1
                buffer[0], size[0] = None, 0
                return
            memory = ctypes.create_string_buffer(BUFFER_BYTES)
            self.buffers[ctypes.addressof(memory)] = memory
            self.free.append(ctypes.addressof(memory))
        buffer[0], size[0] = self.free.pop(), BUFFER_BYTES

    def completed(self, context, stream, buffer, _, valid):
        self.full.append((context, stream, buffer, min(valid, BUFFER_BYTES)))

    def step(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status != 0:
            text = ctypes.c_char_p()
            known = self.lib.cuptiGetResultString(status, ctypes.byref(text)) == 0 and text.value
            raise Unavailable(f"{name}: {text.value.decode() if known else f'error {status}'}")

    def forget(self):
        """Discards the recording."""
        full, self.full, self.refused = self.full, [], 0
        self.free += [buffer for _, _, buffer, _ in full if buffer]

    def begin(self):
        """Starts recording. It raises Unavailable with another active profiler, on some virtual GPUs, and if the driver
        allows only root to profile."""
        self.forget()
        on, (requested, completed, ignore) = [], self.callbacks
        self.step("cuptiSubscribe", ctypes.byref(self.subscriber), ignore, None)
        try:
            self.step("cuptiActivityRegisterCallbacks", requested, completed)
            for kind in (RUNTIME, KERNEL, DRIVER, MEMCPY, MEMSET):
                self.step("cuptiActivityEnable", kind)
                on.append(kind)
        except Unavailable:
            for kind in on:
                self.lib.cuptiActivityDisable(kind)
            self.lib.cuptiUnsubscribe(self.subscriber)
            raise

    def now(self):
        """Returns CUPTI's clock in ns, or 0 if it fails."""
        return self.clock.value if self.lib.cuptiGetTimestamp(ctypes.byref(self.clock)) == 0 else 0

    def stop(self):
        """Ends the recording and collects the records that CUPTI still holds. The device must be idle."""
        failed = None
        # The first flush skips a buffer with an unfinished record. The forced one after it finds no such buffer.
        steps = [("cuptiActivityFlushAll", 0), ("cuptiActivityFlushAll", FLUSH_FORCED)]
        for name, value in steps + [("cuptiActivityDisable", kind) for kind in READ]:
            try:
                self.step(name, value)
            except Unavailable as e:
                failed = failed or e
        self.lib.cuptiUnsubscribe(self.subscriber)
        if failed:
            raise failed

    def end(self):
        """Ends the recording and returns the records."""
        self.stop()
        records, dropped, places = Records(demangler()), ctypes.c_size_t(), {(None, 0)}
        for context, stream, buffer, valid in self.full:
            places.add((context, stream))
            record, status = ctypes.c_void_p(), MAX_LIMIT_REACHED
            if valid > 0:
                while (status := self.lib.cuptiActivityGetNextRecord(buffer, valid, ctypes.byref(record))) == 0:
                    records.add(record.value, buffer + valid)
            if status != MAX_LIMIT_REACHED:
                records.lost += 1
        for context, stream in places:
            if self.lib.cuptiActivityGetNumDroppedRecords(context, stream, ctypes.byref(dropped)) == 0:
                records.lost += dropped.value
        records.lost += self.refused
        self.forget()
        return records.reply(self.version)


class Device:
    """A GPU through torch.cuda, or CPU memory, with Triton kernels running on the virtual GPU."""

    def __init__(self, kind, ordinal, tell, ledger=None):
        self.emulated, self.vgpu, self.tell, self.ledger = kind != "cuda", None, tell, ledger
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
        prebuilt is Solution.prebuilt."""
        if not self.emulated:
            return
        here = os.path.dirname(os.path.abspath(__file__))
        if self.vgpu is None:
            spec = importlib.util.spec_from_file_location("fisub_vgpu", os.path.join(here, "vgpu.py"))
            vgpu = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(vgpu)
            self.machine = vgpu.Machine(os.path.join(here, "vgpu.so"), self.tell, self.ledger)
            self.pretence, self.vgpu = vgpu.pretend(self.machine), vgpu
        self.vgpu.unstub()
        self.machine.sources(texts, os.path.realpath(cache), folder, prebuilt)
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
        return data.view(self.dtype(spec["dtype"])).view(shape)

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


def first_difference(a, b):
    """Returns the index of the first differing byte of two tensors of equal size, or -1."""
    return int((a != b).byte().argmax()) if a.numel() and not a.equal(b) else -1


# The memory at an address as a read-only memoryview. Unlike from_address it raises no audit event, for which a solution
# may have a hook.
MEMORY = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(("PyMemoryView_FromMemory", ctypes.pythonapi))


def write(fd, t, offset):
    """Writes a contiguous CPU tensor to a file, which grows as needed."""
    size, done = t.numel() * t.element_size(), 0
    if size == 0:
        return
    data = MEMORY(t.data_ptr(), size, 0x100)
    while done < size:
        done += os.pwrite(fd, data[done:done + (1 << 30)], offset + done)


def quiet(f):
    """Runs a method of Solution in Device.quiet."""
    @functools.wraps(f)
    def run(self, *args):
        with self.device.quiet():
            return f(self, *args)

    return run


class Solution:
    """A built solution and its loaded arguments. key identifies the solution. If only is not empty, this is a build for
    another process, which loads nothing: only["name"] is the name of the build, and only["folder"] takes its files."""

    def __init__(self, device, cache, definition, solution, key, only):
        self.device, self.key, self.only, self.cache = device, key, only, os.path.realpath(cache)
        device.cache = self.cache
        key = hashlib.sha256(json.dumps(solution).encode()).hexdigest()[:32]
        # No other process has written to the folder of the sources. The other folder holds the solution's own
        # compiled files.
        self.fresh_folder = os.path.join(os.path.realpath(tempfile.mkdtemp()), "python", key)
        self.own_folder = os.path.join(os.path.realpath(os.environ.get("FISUB_OWN_CACHE") or os.path.join(cache, "python")), key)
        self.outputs = list(definition["outputs"].items())
        # Outputs with their own memory. Each of the others is an input changed in place.
        own = [name for name, output in self.outputs if output.get("param") not in definition["inputs"]]
        self.names = [*definition["inputs"], *own]
        spec = solution["spec"]
        self.destination_passing = spec.get("destination_passing_style", True)
        # State of a load. loaded: the request, with the last contents of the inputs. places: by argument, its memory
        # from Device.tensor, or None if it is not a tensor. results: by output, its name, spec and memory, None if
        # not passed. at: by output, its argument, or None if it is returned. before: the state before each move,
        # starting with the load's.
        self.args, self.results, self.any_count, self.loaded, self.places, self.before = None, [], False, None, [], []
        self.at, self.gaps = [], []
        self.collecting = False  # whether a call has left the collection of garbage on, which is off until the next call
        file, _, symbol = spec["entry_point"].partition("::")
        language = spec["language"]
        if language in ("cuda", "cpp"):
            build = self.extension if spec.get("binding") == "torch" else self.module
            self.entry = build(solution, file, symbol)
        else:
            for needed in ("triton", "tilelang"):
                if language == needed and importlib.util.find_spec(needed) is None:
                    raise Failure("machine", f"python: {sys.executable} has no {needed}", code=f"no-{needed}")
            package = package_name(f"fib_{language}_", solution)
            module = module_name(package, file)
            write_sources(os.path.join(self.fresh_folder, package), solution["sources"])
            self.pretend([source["content"] for source in solution["sources"]])
            self.complete()
            sys.path.insert(0, self.fresh_folder)
            importlib.invalidate_caches()
            self.entry = guard(device, "build", lambda: device.does(
                lambda: import_entry(module, symbol, spec.get("dependencies") or (), device.vgpu and device.vgpu.stub)))
        guard(device, "build", lambda: check_signature(self.entry, len(definition["inputs"]), len(own), self.destination_passing))

    def pretend(self, texts):
        guard(self.device, "build", lambda: self.device.pretend(texts, self.cache, self.own_folder, self.prebuilt))

    def complete(self):
        """Raises a Failure in a process that builds for another one: the build does not belong to this solution."""
        if self.only:
            raise Failure("machine", f"python: {self.only['name']} is not a build of this solution")

    def prebuilt(self, name, parts, make):
        """Returns the folder of the build called name from parts. If it is missing, this raises a Failure: a process
        that may run submitted code cannot write to the cache. Another process then builds it with make(folder)."""
        machine = [sys.version, str(self.device.torch.__version__), self.device.info()["arch"]]
        chosen = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "TVM_FFI_CUDA_ARCH_LIST", "CXX")]
        key = hashlib.sha256(json.dumps([machine, chosen, parts]).encode()).hexdigest()[:32]
        name = f"{name}-{key}"
        folder = os.path.join(self.cache, BUILDS, name)
        if self.only.get("name") == name:
            make(self.only["folder"])
            raise Made()
        if not os.path.isdir(folder):
            raise Failure("machine", f"python: {folder} is not built", code="unbuilt", missing=name)
        return folder

    def extension(self, solution, file, symbol):
        """Builds C++ or CUDA with torch's own builder (binding torch)."""
        suffixes = (".cu", ".cpp", ".cc", ".cxx", ".c")
        if not file.endswith(suffixes):
            raise Failure("build", f"Entry file type not recognized. Must be one of {list(suffixes)}, got {os.path.splitext(file)[1]}.")
        cuda = solution["spec"]["language"] == "cuda"
        # A virtual environment has its own ninja, even if it is not activated.
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
        if shutil.which("ninja") is None:
            raise Failure("machine", "python: torch builds extensions with ninja, which is not on PATH", code="no-ninja")
        package = package_name("torch_", solution)
        root = os.path.join(self.fresh_folder, package)
        write_sources(root, solution["sources"])
        from torch.utils import cpp_extension
        virtual = cuda and self.device.emulated
        if virtual:
            self.pretend(["cpp_extension"])
        sources = [os.path.join(root, s["path"]) for s in solution["sources"] if s["path"].endswith(suffixes)]
        load = cpp_extension._import_module_from_library

        def make(folder):
            cpp_extension._import_module_from_library = lambda *_: None
            try:
                cpp_extension.load(name=package, sources=sources, extra_include_paths=[root], extra_ldflags=[], with_cuda=cuda,
                                   build_directory=folder, verbose=False)
            finally:
                cpp_extension._import_module_from_library = load

        def loaded(folder):
            name = next(name for name in os.listdir(folder) if name.endswith(".so"))
            return load(name.removesuffix(".so"), folder, True)

        try:
            folder = self.prebuilt(f"torch-{self.key}", [solution, self.device.machine.home if virtual else ""], make)
            self.complete()
            module = self.device.machine.extension(lambda: loaded(folder)) if virtual else loaded(folder)
        except Failure:
            raise
        except BaseException as e:
            text = describe(e)
            if "No space left on device" in text:
                raise Failure("machine", "python: building with torch: No space left on device", text) from None
            failure = Failure("build", f"Torch build failed for solution '{solution['name']}': {text.splitlines()[0]}", text)
            failure.__cause__ = e
            raise excuse(failure, self.device) from None
        if not hasattr(module, symbol):
            raise Failure("build", f"Exported symbol '{symbol}' not found in built extension")
        return getattr(module, symbol)

    def module(self, solution, file, symbol):
        """Builds C++ or CUDA with tvm-ffi's own builder, whose functions return tensors."""
        try:
            import tvm_ffi
            import tvm_ffi.cpp
        except ImportError:
            raise Failure("lacking", f"{sys.executable} has no tvm_ffi, which calls CUDA that returns its outputs: pip install apache-tvm-ffi") from None
        name = package_name("tvm_ffi_", solution)
        root = os.path.join(self.fresh_folder, name)
        if self.device.emulated:
            self.pretend(["tvm_ffi"])
        write_sources(root, solution["sources"])
        paths = [os.path.join(root, s["path"]) for s in solution["sources"]]

        def make(folder):
            tvm_ffi.cpp.build(name, cuda_files=[p for p in paths if p.endswith(".cu")],
                              cpp_files=[p for p in paths if p.endswith((".cpp", ".cc", ".cxx", ".c"))],
                              extra_include_paths=[root], build_directory=folder)

        def build():
            home = self.device.machine.home if self.device.emulated else ""
            folder = self.prebuilt(f"tvm-ffi-{self.key}", [solution, tvm_ffi.__version__, home], make)
            self.complete()
            return tvm_ffi.load_module(os.path.join(folder, f"{name}.so"))

        found = guard(self.device, "build", build)
        try:
            function = getattr(found, symbol)
        except AttributeError:
            raise Failure("build", f"Entry point '{symbol}' not found in module") from None

        def call(*args):
            value = function(*args)
            if isinstance(value, list):  # tvm-ffi's Array, which the official evaluator treats as one value
                raise ValueError(f"Single value returned but {len(self.outputs)} outputs expected")
            return value

        return call

    @quiet
    def load(self, request):
        self.args, self.results, self.places, self.before, self.gaps = None, [], [], [], []
        self.loaded = request
        self.any_count = request.get("any_count", False)
        self.place()
        if self.device.vgpu:
            self.device.machine.first = True

    @quiet
    def place(self):
        """Allocates the tensors of the request."""
        guard = self.loaded.get("guard", 0)
        if guard < 0 or guard % 256 != 0:
            raise Failure("machine", f"python: guard of {guard} bytes")
        self.places, self.results, self.at = [], [], []
        args = [self.argument(i, v, guard) for i, v in enumerate(self.inputs())]
        for (name, spec), value in zip(self.outputs, self.loaded.get("outputs") or [], strict=True):
            tensor, place = value["tensor"], value.get("in_place")
            if place is not None:
                if not 0 <= place < len(self.inputs()) or not self.places[place] or self.places[place][0].numel() != tensor["bytes"]:
                    raise Failure("machine", f"python: output {name} is no input's tensor of {tensor['bytes']} bytes")
                self.at.append(place)
                self.results.append((name, tensor | {"scalar": False}, self.places[place][0]))
                continue
            if not self.destination_passing:
                self.at.append(None)
                self.results.append((name, tensor, None))
                continue
            data, band = self.device.tensor(tensor, guard)
            self.at.append(len(args))
            self.places.append((data, band))
            self.results.append((name, tensor | {"scalar": spec.get("shape") is None}, data))
            args.append(self.device.view(tensor, data))
        self.args = args

    @quiet
    def fresh(self):
        """Replaces each argument by an unmodified tensor object, as the official harness does in each trial: a call can
        rebind one to other memory or change its shape."""
        specs = [v.get("tensor") for v in self.inputs()] + [spec for i, (_, spec, _) in enumerate(self.results) if not self.in_place(i)]
        self.args = [arg if place is None else self.device.view(spec, place[0])
                     for arg, place, spec in zip(self.args, self.places, specs, strict=False)]

    def in_place(self, i):
        """Returns whether output i is an input."""
        return self.at[i] is not None and self.at[i] < len(self.inputs())

    @quiet
    def renew(self):
        """Restores the last contents of inputs that are changed in place."""
        for i, (_, _, data) in enumerate(self.results):
            if self.in_place(i):
                try:
                    self.device.fill(data, self.inputs()[self.at[i]]["tensor"])
                except OSError as e:
                    raise Failure("machine", f"input {self.at[i]}: {describe(e)}") from None

    @quiet
    def whole(self, value):
        """Returns all outputs, or None if they were all passed: the values returned by the call, and the memory of the
        inputs that it changes."""
        if self.destination_passing:
            return None
        changed = [i for i in range(len(self.at)) if self.in_place(i)]
        own = results(value, len(self.at) - len(changed), self.any_count)
        names = [name for i, (name, _, _) in enumerate(self.results) if i not in changed]
        own = [v if v is None else self.device.alias(v, names[i] if i < len(names) else str(i)) for i, v in enumerate(own)]
        for i in changed:
            own.insert(i, self.memory(i))
        return own

    def plain(self, value):
        """Returns the value of a call as a torch.Tensor, None, or a list or tuple of these. Whatever code of the solution
        turns other values into tensors runs here, within the timed window."""
        sys.setprofile(None)
        sys.settrace(None)
        self.collecting = gc.isenabled()
        gc.disable()  # a collection calls gc.callbacks and finalizers
        d, kind = self.device, type(value)
        if self.destination_passing:
            return None
        if value is None or d.exact(value):
            return value
        if issubclass(kind, (tuple, list)):
            base = tuple if issubclass(kind, tuple) else list  # its own iterator could run code of the solution
            return base(self.number(v, i) for i, v in enumerate(base.__iter__(value)))
        return self.number(value, 0)

    def number(self, v, i):
        """Returns v as a tensor, as the official harness does with numbers, arrays and lists of output i."""
        d = self.device
        if v is None or d.exact(v) or issubclass(type(v), d.tensor_type):
            return v
        name, spec, _ = self.results[i] if i < len(self.results) else (str(i), {"dtype": "float32"}, None)
        try:
            return d.torch.tensor(v, dtype=d.dtype(spec["dtype"]), device="cpu")
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"output '{name}' is of type {type(v).__name__}, not a tensor or numbers") from None

    def memory(self, i):
        """Returns a new tensor object on the memory of output i."""
        return self.device.view(*self.results[i][1:])

    def passed(self):
        """Returns aliases of the tensor objects passed for the outputs, in their present state. For an input changed in
        place this is its memory."""
        return [self.memory(i) if self.in_place(i) else self.device.alias(self.args[at], self.results[i][0]) for i, at in enumerate(self.at)]

    def inputs(self):
        return self.loaded.get("inputs") or []

    def argument(self, i, value, guard):
        self.places.append(None)
        for kind in ("int", "float", "bool"):
            if value.get(kind) is not None:
                return SCALARS[kind](value[kind])
        if value.get("tensor") is None:
            return None
        try:
            data, band = self.device.tensor(value["tensor"], guard)
            self.device.fill(data, value["tensor"])
        except (OSError, RuntimeError) as e:
            raise Failure("machine", f"input {i}: {describe(e)}") from None
        self.places[i] = data, band
        return self.device.view(value["tensor"], data)

    def judged(self):
        """Calls the solution as the official harness does when it judges."""
        if self.device.vgpu:
            self.device.machine.arguments, self.device.machine.tuned = self.bounds(), 0.0
            self.device.machine.look()
        with self.device.torch.no_grad():
            return self.device.does(lambda: self.plain(self.entry(*self.args)))

    def bounds(self):
        """Returns the memory of the arguments that kernels may use, for Machine.arguments."""
        return {place[0].data_ptr(): (place[0].numel(), f"argument {i} ({self.names[i]})", i < len(self.inputs()) and i not in self.at)
                for i, place in enumerate(self.places) if place}

    @quiet
    def poison(self):
        """Prepares a call."""
        if self.collecting:
            gc.enable()
        for i, (name, spec, data) in enumerate(self.results):
            if self.in_place(i):
                continue
            if self.destination_passing and spec["scalar"]:
                raise Failure("call", f"output '{name}' is a scalar, which cannot be allocated")
            if self.destination_passing:
                data.fill_(POISON)

    def run(self, out):
        self.fresh()
        self.renew()
        self.poison()
        value = guard(self.device, "call", self.judged)
        guard(self.device, "call", self.device.synchronize)
        return self.store(out, guard(self.device, "call", lambda: self.whole(value)), 0)

    def patch(self, patch, which):
        """Writes the old or new bytes of a patch to its input."""
        data, begin = base64.b64decode(patch[which]), patch["offset"]
        target = self.places[patch["arg"]][0][begin:begin + len(data)]
        target.copy_(self.device.torch.frombuffer(bytearray(data), dtype=self.device.torch.uint8))

    @quiet
    def store(self, fd, values, base):
        """Writes the outputs to a file, starting at base: values if they were returned, or the passed objects if values
        is None. It returns a description of the outputs if they differ from the request's."""
        if values is not None:
            return {"outputs": guard(self.device, "call", lambda: self.returned(fd, values, base))}
        if any(self.altered(i) for i in range(len(self.results))):
            return {"outputs": guard(self.device, "call", lambda: self.returned(fd, self.passed(), base))}
        for _, spec, data in self.results:
            write(fd, self.device.cpu(data), base + spec["offset"])
        return {}

    def altered(self, i):
        """Returns whether the object passed for output i has changed."""
        now, was = self.passed()[i], self.memory(i)
        return (self.moved(i) or now.dtype != was.dtype or now.shape != was.shape or now.stride() != was.stride()
                or now.is_conj() or now.is_neg() or now.layout != was.layout)

    def moved(self, i):
        """Returns whether the object passed for output i is in other memory now."""
        now, data = self.passed()[i], self.results[i][2]
        return now.device != data.device or now.numel() > 0 and now.data_ptr() != data.data_ptr()

    def bound(self, i):
        """Returns the argument in whose memory output i is now, or -1."""
        at = self.passed()[i].data_ptr()
        for other, place in enumerate(self.places):
            if place and place[0].data_ptr() <= at < place[0].data_ptr() + place[0].numel():
                return other
        return -1

    def returned(self, fd, values, end):
        """Writes values one after the other, starting at end, and returns their descriptions."""
        outputs = []
        for i, v in enumerate(values):
            name, spec, _ = self.results[i] if i < len(self.results) else (str(i), {"dtype": "float32"}, None)
            if v is None:
                raise TypeError(f"output '{name}' is of type NoneType, not a tensor or numbers")
            if self.destination_passing and v.device != self.device.device:
                raise RuntimeError(f"output '{name}' is on {v.device}, and was passed on {self.device.device}")
            t = self.device.cpu(v.resolve_conj().resolve_neg()).contiguous()
            dtype, shape = self.device.shape(t)
            size = t.numel() * t.element_size()
            write(fd, t, end)
            outputs.append({"dtype": dtype, "shape": shape, "bytes": size, "offset": end})
            if self.destination_passing and self.moved(i):
                outputs[-1]["bound"] = self.bound(i)
            end = (end + size + 255) & ~255
        return outputs

    def check(self, request):
        """Prepares a check of calls for forbidden side effects, and makes the call that it asks for. fisub itself
        compares the memory."""
        if request.get("move"):
            self.before.append((self.args, self.places, self.results))
            if request.get("gap"):
                with self.device.quiet():
                    self.gaps.append(self.device.gap(request["gap"]))
            self.place()
        if request.get("back") and self.before:
            self.before.append((self.args, self.places, self.results))
            self.args, self.places, self.results = self.before[0]
        self.change(request.get("inputs") or [])
        return self.probe(request["out"]) if request.get("out") else {}

    def addresses(self):
        """Returns the places of the arguments' tensors in this process's memory, or None if they are on a GPU."""
        guard = self.loaded.get("guard", 0)
        return [place[1].data_ptr() + guard if place else 0 for place in self.places] if self.device.emulated else None

    @quiet
    def look(self, request):
        """Copies memory of arguments to a file."""
        guard = self.loaded.get("guard", 0)
        for part in request["parts"]:
            band, begin = self.places[part["arg"]][1], guard + part["offset"]
            write(request["out"], self.device.cpu(band[begin:begin + part["bytes"]]), part["at"])

    @quiet
    def change(self, inputs):
        """Replaces the contents of inputs at their present addresses."""
        if len(inputs) > len(self.inputs()):
            raise Failure("machine", f"python: contents of {len(inputs)} inputs, want {len(self.inputs())}")
        for i, spec in enumerate(inputs):
            if spec is None:
                continue
            old = self.inputs()[i].get("tensor")
            if old is None or any(spec[key] != old[key] for key in ("dtype", "shape", "bytes")):
                raise Failure("machine", f"input {i}: the new contents have a different type")
            try:
                self.device.fill(self.places[i][0], spec)
            except OSError as e:
                raise Failure("machine", f"input {i}: {describe(e)}") from None
            self.inputs()[i] = {"tensor": spec}

    def probe(self, out):
        """Makes a call while the stream is busy, and compares its outputs after it in stream order with those when the
        device is idle."""
        d = self.device
        self.fresh()
        self.renew()
        # Allocating memory after the call could wait for it.
        with d.quiet():
            rooms = [data if data is None else d.torch.empty_like(data) for _, _, data in self.results]

        def call():
            d.stall()
            self.poison()
            value = self.judged()
            with d.quiet():
                values = self.passed() if self.destination_passing else self.whole(value)
                mine = [v if v is not None and v.device == d.device else None for v in values]
                early = d.copies(mine, rooms[:len(mine)] + [None] * (len(mine) - len(rooms)))
                d.synchronize()
                return values, [-1 if now is None else first_difference(was, d.octets(now)) for was, now in zip(early, mine, strict=True)]

        values, differences = guard(d, "call", call)
        late, number = [], len(self.inputs())  # of the next output that is not an input
        for i, at in enumerate(differences):
            in_place = i < len(self.at) and self.in_place(i)
            late += [{"arg": self.at[i] if in_place else number, "offset": at}] * (at >= 0)
            number += not in_place
        found = {"late": late}
        return found | self.store(out, None if self.destination_passing else values, 0)

    def measure(self, plan, tell):
        """Times calls with CUPTI's records, from which fisub computes the times, or with CUDA events. tell is called
        like a plan's Timing. fisub decides whether to fall back to another timer."""
        d, cupti = self.device, None
        self.fresh()
        if d.emulated:
            raise Failure("timing", "python: the CPU keeps no time for a GPU")
        if plan.get("timer") != "events":
            try:
                cupti = d.cupti()
                cupti.begin()
            except Unavailable as e:
                return {"recorded": {"failed": str(e)}}

        def by_cupti():
            d.synchronize()
            begin = cupti.now()
            value = self.plain(self.entry(*self.args))
            end = cupti.now()
            d.synchronize()
            return (begin, end, cupti.now()), value

        def measure():
            if cupti:
                return self.trials(plan, tell, by_cupti, cupti.now)
            start, end = d.event(enable_timing=True), d.event(enable_timing=True)

            def by_events():
                start.record()
                value = self.plain(self.entry(*self.args))
                end.record()
                end.synchronize()
                return round(start.elapsed_time(end) * 1e6), value

            return self.trials(plan, tell, by_events, lambda: 0)

        try:
            trials, judged, first, disturbed = guard(d, "call", measure)
        except Failure as e:
            if cupti and e.kind != "fault":
                try:
                    cupti.stop()
                except Unavailable:
                    pass
            raise
        whole = len(trials) == plan["trials"] and len(trials[-1]) == plan["iterations"]
        samples = {"timer": "cupti" if cupti else "cuda events", "cold_l2": plan["cold_l2"], "truncated": not whole, "disturbed": disturbed,
                   "persisting_l2": kept if (kept := d.persisting_l2()) != d.reserved else 0}
        if not cupti:
            apart = plan.get("apart", -1)
            for row in trials:
                made = len(row)
                if 0 <= apart < made:
                    del row[apart]
                apart -= made
            return {"samples": samples | {"trials_ns": trials}, "judged": judged}
        try:
            return {"samples": samples, "judged": judged, "recorded": cupti.end() | {"windows": trials, "thread": threading.get_ident() & 0xffffffff, "first": first}}
        except Unavailable as e:
            return {"recorded": {"failed": str(e)}}

    def trials(self, plan, tell, timed, now):
        """Returns the result of timed for each call of each trial, the judged calls, the result of now before the first
        call, and disturbances. A trial is one call, five more, the warm-up calls and then, for each sample, zeroing
        twice the L2's size and the timed call. Before each call, inputs changed in place are restored and other outputs
        poisoned."""
        d, begun = self.device, time.monotonic()
        self.renew()
        limit = plan.get("max_time", 0) / 1e9
        size = 2 * d.l2_bytes() >> 20 << 20 if plan["cold_l2"] else 0
        with d.quiet():
            kept = [(data, data.clone()) for i, (_, _, data) in enumerate(self.results) if self.in_place(i)]
            l2 = d.torch.empty(size, dtype=d.torch.uint8, device=d.device)

        def renew():
            for data, was in kept:
                data.copy_(was)
            self.poison()

        def flush(call=-1):
            with d.quiet():
                renew()
                if call == patched:
                    self.patch(patch, "new")
                if size:
                    if call >= 0:
                        d.reset_l2()  # with an idle device: the driver may wait for it
                    l2.zero_()

        def late():
            return limit > 0 and time.monotonic() - begun > limit

        def repeat(n):
            for _ in range(n):
                if late():
                    break
                flush()
                self.entry(*self.args)
            d.synchronize()

        trials, judged, wanted, calls, patch = [], [], plan.get("judged") or [], 0, plan.get("patch")
        patched = plan.get("apart") if patch else None
        disturbed = [] if d.settle(plan.get("idle", 0) / 1e9) else [BUSY]
        first = now()
        for i in range(plan["trials"]):
            with d.quiet():
                renew()
            self.entry(*self.args)
            d.synchronize()
            repeat(ESTIMATES)
            repeat(plan["warmup"])
            if i == 0:
                tell(True)
            row = []
            while len(row) < plan["iterations"] and (not late() or not trials and not row):
                flush(calls)
                sample, value = timed()
                row.append(sample)
                if len(judged) < len(wanted) and calls == wanted[len(judged)]:
                    judged.append({"call": calls} | self.store(plan["out"], self.whole(value), len(judged) * plan["stride"]))
                del value  # so that the next call can reuse its memory
                if calls == patched:
                    with d.quiet():
                        self.patch(patch, "old")
                calls += 1
            if row:
                trials.append(row)
            if late():
                break
        d.synchronize()
        tell(False)
        return trials, judged, first, disturbed


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


class Server:
    """Answers requests. tell sends messages before an answer."""

    def __init__(self, tell):
        self.device, self.solution, self.cache, self.tell = None, None, "", tell
        self.files = []  # descriptors received, of the present inputs and of the request

    def attach(self, request, files):
        """Replaces the numbers of descriptors in a request by the descriptors."""
        self.files += files
        load, check = request.get("load", {}), request.get("check", {})
        for spec in [v.get("tensor") for v in load.get("inputs") or []] + (check.get("inputs") or []):
            if spec and spec.get("file"):
                spec["fd"] = files[spec["file"] - 1]
        if request.get("open", {}).get("ledger"):
            request["open"]["ledger"] = files[request["open"]["ledger"] - 1]
        for holder in (request.get("run", {}), request.get("measure", {}), request.get("look", {}), check):
            if holder.get("out"):
                holder["out"] = files[holder["out"] - 1]

    def release(self):
        """Closes the descriptors that no present input refers to."""
        tensors = [v.get("tensor") or {} for v in self.solution.inputs()] if self.solution and self.solution.loaded else []
        kept = [spec["fd"] for spec in tensors if "fd" in spec]
        for fd in self.files:
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.files = [fd for fd in self.files if fd in kept]

    def answer(self, request, files):
        try:
            self.attach(request, files)
            if "open" in request:
                r = request["open"]
                self.cache = r["cache_dir"]
                self.device = Device(r["kind"], r["ordinal"], self.tell, shared(r["ledger"]) if r.get("ledger") else None)
                return {"info": self.device.info()}
            if self.device is None:
                raise Failure("machine", "python: request out of order")
            self.device.restore()
            if "build" in request:
                r = request["build"]
                self.solution = None
                self.solution = Solution(self.device, self.cache, r["definition"], r["solution"], r["key"], r.get("only") or {})
                return {"info": self.device.info()}
            if self.solution is None:
                raise Failure("machine", "python: request out of order")
            if "load" in request:
                self.solution.load(request["load"])
                return {"addresses": self.solution.addresses()}
            if self.solution.args is None:
                raise Failure("machine", "python: request out of order")
            if "run" in request:
                return self.solution.run(request["run"]["out"])
            if "measure" in request:
                return self.solution.measure(request["measure"], lambda on: self.tell({"timing": on}))
            if "check" in request:
                return {"checked": self.solution.check(request["check"]), "addresses": self.solution.addresses()}
            if "look" in request:
                self.solution.look(request["look"])
                return {}
            raise Failure("machine", "python: unknown request")
        except Failure as e:
            return e.reply()
        except Exception as e:
            kind = lost(self.device) if self.device else ""
            return Failure(kind or "machine", f"python: {describe(e)}", stack(e)).reply()
        finally:
            self.release()


class Pipes:
    """The protocol's descriptors, moved to numbers that a solution is unlikely to close or inherit, and copies of the
    standard ones to restore."""

    def __init__(self):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.base = max(16, min(soft, 1024) - 64) if soft != resource.RLIM_INFINITY else 960
        self.requests, self.replies = socket.socket(fileno=self.move(3)), self.move(4)
        self.standard = [self.move(1), self.move(2)]
        os.close(3)
        os.close(4)
        self.kept = [self.requests.fileno(), self.replies, *self.standard]
        os.register_at_fork(after_in_child=self.close)

    def move(self, fd):
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, self.base)

    def close(self):
        for fd in self.kept:
            try:
                os.close(fd)
            except OSError:
                pass

    def read(self):
        """Returns the next request and its descriptors, or None at the end."""
        parts, files = [], []
        while not parts or b"\n" not in parts[-1]:
            data, messages, _, _ = self.requests.recvmsg(1 << 16, socket.CMSG_SPACE(4 * MAX_FILES), socket.MSG_CMSG_CLOEXEC)
            if not data:
                return None
            parts.append(data)
            for _, _, content in messages:
                fds = array.array("i")
                fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
                for fd in fds:
                    files.append(self.move(fd))
                    os.close(fd)
        return json.loads(b"".join(parts)), files

    def write(self, reply):
        data = memoryview(json.dumps(reply).encode() + b"\n")
        while data:
            data = data[os.write(self.replies, data):]

    def settle(self):
        """Flushes printed output, and restores descriptors that a solution closed or replaced."""
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()
            except BaseException:
                pass
        for fd, kept in zip((1, 2), self.standard):
            os.dup2(kept, fd)


def die_with_parent(parent):
    """Ends this process and its children when fisub is gone: a hanging kernel would never notice the end of the
    requests."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def called(request):
    """Returns whether a request asks for a call."""
    return "run" in request or request.get("check", {}).get("out") is not None


def main():
    if os.environ.get("FISUB_WORKER") != "1":
        sys.exit("fisub starts this program itself")
    pipes = Pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=die_with_parent, args=(os.getppid(),), daemon=True).start()
    # A sibling of this file must not be importable. Byte code of a solution's sources is useless to other processes.
    del sys.path[0]
    sys.dont_write_bytecode = True
    warnings.formatwarning = warning
    server = Server(pipes.write)
    try:
        while (message := pipes.read()) is not None:
            request, files = message
            reply = server.answer(request, files)
            if server.device and server.device.vgpu:
                server.device.machine.forget()
            if called(request) and server.device and server.device.vgpu and (work := server.device.machine.worked()) < 2:
                reply["hosted" if work else "idle"] = True
            pipes.settle()
            pipes.write(reply)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # without waiting for a solution's threads and exit hooks


if __name__ == "__main__":
    main()
