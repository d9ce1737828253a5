"""The worker process of fisub for solutions in Python and their references.

It answers one JSON object a line on descriptors 3 (requests) and 4 (replies), as package bench/worker describes: open,
build, load, run, measure. Tensors travel through files. It needs the standard library and torch, which open imports;
everything before it, such as the rules for entry points, runs without.
"""

import ctypes
import fcntl
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import mmap
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
import typing

MAX_TEXT = 4 << 10
MAX_LOG = 1 << 20
POISON = 0xFF  # NaN as bfloat16, float16 and float32, so that an element that is left out cannot pass
SCALARS = {"int": int, "float": float, "bool": bool}
ESTIMATES = 5  # calls by which the official harness estimates the time of one, before the warm-up calls


class Failure(Exception):
    """What a reply's error says. kind is one of machine, build, call, fault, timing."""

    def __init__(self, kind, text, log="", code=""):
        super().__init__(text)
        self.kind, self.text, self.log, self.code = kind, clip(text, MAX_TEXT), clip(log, MAX_LOG), code

    def reply(self):
        return {"error": {"kind": self.kind, "text": self.text, "log": self.log, "code": self.code}}


def clip(text, most):
    return text if len(text) <= most else text[: most // 2] + "\n...\n" + text[-most // 2:]


def describe(e):
    """The last line of a traceback; an exception's own __str__ may raise anything."""
    try:
        text = str(e)
    except BaseException:
        text = "(its message cannot be had)"
    return f"{type(e).__name__}: {text}" if text else type(e).__name__


def stack(e):
    """The traceback of e without the frames of this file, which come first."""
    tb = e.__traceback__
    while tb is not None and tb.tb_next is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    try:
        return "".join(traceback.format_exception(type(e), e, tb))
    except BaseException:
        return describe(e)


# The rules of the official builder and evaluator, with their texts. They need no torch.


def content_hash(solution):
    """The contest's SHA-1 of a solution."""
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
    """The module of an entry file, such as pkg.sub.kernel for sub/kernel.py."""
    if not file.endswith(".py"):
        raise Failure("build", f"Entry file '{file}' is not a Python file")
    parts = [p for p in file[: -len(".py")].split("/") if p not in ("", ".")]
    return ".".join([package, *parts])


def write_sources(folder, sources):
    """Writes the sources below folder; files that are there with the same content stay."""
    for source in sources:
        path = os.path.normpath(os.path.join(folder, source["path"]))
        if os.path.isabs(source["path"]) or os.path.commonpath([folder, path]) != folder or path == folder:
            raise Failure("build", f"Invalid source path: {source['path']}")
        data = source["content"].encode()
        try:
            with open(path, "rb") as f:
                if f.read() == data:
                    continue
        except OSError:
            pass
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "wb") as f:
            f.write(data)
        os.replace(temporary, path)


def import_entry(module, symbol, dependencies=()):
    """The entry function. A missing package is the machine's fault where the solution names it as a dependency."""
    try:
        loaded = importlib.import_module(module)
    except BaseException as e:
        missing = (getattr(e, "name", None) or "").partition(".")[0] if isinstance(e, ModuleNotFoundError) else ""
        if missing and missing in dependencies:
            raise Failure("machine", f"python: {sys.executable} has no {missing}, on which the solution depends", code="no-dependency") from None
        raise Failure("build", f"Failed importing module '{module}' from sources: {describe_import(e)}", stack(e)) from None
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
    """Raises where entry cannot be called with that many arguments. What Python cannot introspect passes."""
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
    """How many values the return annotation names; None where it leaves the number open."""
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
    """The list of values that a value-returning call gave. any_count leaves their number to the parent's judgement."""
    if isinstance(value, tuple) and len(value) < 2:
        value = value[0] if value else None
    if isinstance(value, (tuple, list)):
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


class Device:
    """A GPU through torch.cuda, or the CPU, where Triton kernels run in their interpreter."""

    def __init__(self, kind, ordinal):
        self.emulated = kind == "emu"
        if kind not in ("cuda", "emu"):
            raise Failure("machine", f'python: no device of kind "{kind}"')
        if self.emulated:
            os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
        try:
            import torch
        except (ImportError, OSError) as e:
            raise Failure("machine", f"python: {sys.executable}: importing torch: {e}", code="no-torch") from None
        self.torch, self.ordinal = torch, ordinal
        if self.emulated:
            if ordinal != 0:
                raise Failure("machine", f"python: there is no CPU {ordinal}", code="no-ordinal")
            self.device = torch.device("cpu")
            return
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
        return info | {
            "name": p.name, "arch": f"sm_{p.major}{p.minor}", "driver": driver_version(), "cuda_version": str(torch.version.cuda),
            "l2_bytes": int(getattr(p, "L2_cache_size", 0)), "memory_bytes": int(p.total_memory),
            "multiprocessors": int(p.multi_processor_count), "uuid": f"GPU-{uuid}" if uuid else ""}

    def restore(self):
        """Undoes a submission's choice of device and stream."""
        if not self.emulated:
            self.torch.cuda.set_device(self.device)
            self.torch.cuda.set_stream(self.torch.cuda.default_stream(self.device))

    def synchronize(self):
        if not self.emulated:
            self.wait(self.device)

    def dtype(self, name):
        found = getattr(self.torch, "float4_e2m1fn_x2" if name == "float4_e2m1" else name, None)
        if not isinstance(found, self.torch.dtype):
            raise Failure("machine", f"python: torch {self.torch.__version__} has no dtype {name}")
        return found

    def tensor(self, spec):
        """An uninitialised tensor, and its bytes as a tensor of uint8."""
        shape = list(spec.get("shape") or [])
        if spec["dtype"] == "float4_e2m1" and shape:
            shape[-1] //= 2  # two elements a byte
        data = self.torch.empty(spec["bytes"], dtype=self.torch.uint8, device=self.device)
        return data.view(self.dtype(spec["dtype"])).view(shape), data

    def input(self, spec):
        t, data = self.tensor(spec)
        size, offset = spec["bytes"], spec["offset"]
        if size == 0:
            return t
        with open(spec["path"], "rb") as f:
            end = os.fstat(f.fileno()).st_size
            if offset < 0 or size < 0 or offset > end - size:
                raise OSError(f"{spec['path']}: bytes {offset} to {offset + size} are outside the file of {end} bytes")
            skip = offset % mmap.ALLOCATIONGRANULARITY
            with mmap.mmap(f.fileno(), size + skip, access=mmap.ACCESS_COPY, offset=offset - skip) as m:
                view = self.torch.frombuffer(m, dtype=self.torch.uint8, count=size, offset=skip)
                data.copy_(view)
                self.synchronize()
                del view  # or the mapping could not be closed
        return t

    def shape(self, t):
        """Name of the dtype and shape of a tensor, in the words of the format."""
        name, shape = str(t.dtype).removeprefix("torch."), list(t.shape)
        if name == "float4_e2m1fn_x2":
            name = "float4_e2m1"
            if shape:
                shape[-1] *= 2
        return name, shape


def write(fd, t, offset):
    """Writes a contiguous tensor of the CPU to a file, which grows as needed."""
    size, done = t.numel() * t.element_size(), 0
    if size == 0:
        return
    data = memoryview((ctypes.c_ubyte * size).from_address(t.data_ptr())).cast("B")
    while done < size:
        done += os.pwrite(fd, data[done:done + (1 << 30)], offset + done)


class Solution:
    """A built solution, and the arguments that were loaded for it."""

    def __init__(self, device, cache, definition, solution):
        self.device = device
        self.outputs = list(definition["outputs"].items())
        spec = solution["spec"]
        self.destination_passing = spec.get("destination_passing_style", True)
        self.args, self.results, self.any_count = None, [], False
        file, _, symbol = spec["entry_point"].partition("::")
        language = spec["language"]
        if language in ("cuda", "cpp"):
            self.entry = self.extension(cache, solution, file, symbol)
        else:
            for needed in ("triton", "tilelang"):
                if language == needed and importlib.util.find_spec(needed) is None:
                    raise Failure("machine", f"python: {sys.executable} has no {needed}", code=f"no-{needed}")
            package = package_name(f"fib_{language}_", solution)
            module = module_name(package, file)
            root = self.folder(cache, solution)
            write_sources(os.path.join(root, package), solution["sources"])
            sys.path.insert(0, root)
            importlib.invalidate_caches()
            self.entry = guard(device, "build", lambda: import_entry(module, symbol, spec.get("dependencies") or ()))
        guard(device, "build", lambda: check_signature(self.entry, len(definition["inputs"]), len(self.outputs), self.destination_passing))

    @staticmethod
    def folder(cache, solution):
        """A folder for the sources of this very solution."""
        key = hashlib.sha256(json.dumps(solution).encode()).hexdigest()[:32]
        return os.path.join(os.path.realpath(cache), "python", key)

    def extension(self, cache, solution, file, symbol):
        """Builds C++ or CUDA with torch's own builder (binding torch)."""
        suffixes = (".cu", ".cpp", ".cc", ".cxx", ".c")
        if not file.endswith(suffixes):
            raise Failure("build", f"Entry file type not recognized. Must be one of {list(suffixes)}, got {os.path.splitext(file)[1]}.")
        cuda = solution["spec"]["language"] == "cuda"
        if cuda and self.device.emulated:
            raise Failure("machine", "python: a CUDA source with binding torch runs on a GPU only", code="no-gpu")
        # A virtual environment has its own ninja, although the environment need not be activated.
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
        if shutil.which("ninja") is None:
            raise Failure("machine", "python: torch builds extensions with ninja, which is not on PATH", code="no-ninja")
        package = package_name("torch_", solution)
        root = os.path.join(self.folder(cache, solution), package)
        write_sources(root, solution["sources"])
        from torch.utils import cpp_extension
        sources = [os.path.join(root, s["path"]) for s in solution["sources"] if s["path"].endswith(suffixes)]
        try:
            module = cpp_extension.load(name=package, sources=sources, extra_include_paths=[root], extra_ldflags=[], with_cuda=cuda,
                                        build_directory=root, verbose=False)
        except BaseException as e:
            text = describe(e)
            raise Failure("build", f"Torch build failed for solution '{solution['name']}': {text.splitlines()[0]}", text) from None
        if not hasattr(module, symbol):
            raise Failure("build", f"Exported symbol '{symbol}' not found in built extension")
        return getattr(module, symbol)

    def load(self, request):
        self.args, self.results = None, []
        args = [self.argument(i, v) for i, v in enumerate(request.get("inputs") or [])]
        for (name, spec), value in zip(self.outputs, request.get("outputs") or [], strict=True):
            tensor = value["tensor"]
            if not self.destination_passing:
                self.results.append((name, tensor, None))
                continue
            t, data = self.device.tensor(tensor)
            self.results.append((name, tensor | {"scalar": spec.get("shape") is None}, data))
            args.append(t)
        self.any_count = request.get("any_count", False)
        self.args = args

    def argument(self, i, value):
        for kind in ("int", "float", "bool"):
            if value.get(kind) is not None:
                return SCALARS[kind](value[kind])
        if value.get("tensor") is None:
            return None
        try:
            return self.device.input(value["tensor"])
        except (OSError, RuntimeError) as e:
            raise Failure("machine", f"input {i}: {describe(e)}") from None

    def call(self):
        return guard(self.device, "call", lambda: self.entry(*self.args))

    def poison(self):
        for name, spec, data in self.results:
            if self.destination_passing and spec["scalar"]:
                raise Failure("call", f"output '{name}' is a scalar, which cannot be allocated")
            if self.destination_passing:
                data.fill_(POISON)

    def repeat(self, out, n):
        """The outputs of n calls, each output stacked on a first axis."""
        torch, rows = self.device.torch, []

        def calls():
            for _ in range(n):
                self.poison()
                value = self.entry(*self.args)
                if self.destination_passing:
                    first = len(self.args) - len(self.results)
                    rows.append([a.clone() for a in self.args[first:]])
                else:
                    rows.append(results(value, len(self.results), self.any_count))
            self.device.synchronize()
            return [torch.stack([torch.as_tensor(v) for v in column]) for column in zip(*rows, strict=True)]

        stacked = guard(self.device, "call", calls)
        fd = os.open(out, os.O_RDWR | os.O_CLOEXEC)
        try:
            return {"outputs": guard(self.device, "call", lambda: self.returned(fd, stacked))}
        finally:
            os.close(fd)

    def run(self, out):
        self.poison()
        value = self.call()
        guard(self.device, "call", self.device.synchronize)
        fd = os.open(out, os.O_RDWR | os.O_CLOEXEC)
        try:
            if self.destination_passing:
                for _, spec, data in self.results:
                    write(fd, data.cpu(), spec["offset"])
                return {}
            return {"outputs": guard(self.device, "call", lambda: self.returned(fd, results(value, len(self.results), self.any_count)))}
        finally:
            os.close(fd)

    def returned(self, fd, values):
        """Writes results one behind the other, and describes them."""
        outputs, end = [], 0
        for i, v in enumerate(values):
            name, spec, _ = self.results[i] if i < len(self.results) else (str(i), {"dtype": "float32"}, None)
            torch = self.device.torch
            if isinstance(v, (bool, int, float)):
                v = torch.tensor(v, dtype=self.device.dtype(spec["dtype"]))
            if not isinstance(v, torch.Tensor):
                raise TypeError(f"output '{name}' is of type {type(v).__name__}, not a tensor or a number")
            t = v.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
            dtype, shape = self.device.shape(t)
            size = t.numel() * t.element_size()
            write(fd, t, end)
            outputs.append({"dtype": dtype, "shape": shape, "bytes": size, "offset": end})
            end = (end + size + 255) & ~255
        return outputs

    def measure(self, plan):
        """Times calls by CUDA events: a trial is one call, five more and the warm-up calls, and then, for each sample, the
        zero-fill of twice the L2, an event, the call, an event."""
        d = self.device
        if d.emulated:
            raise Failure("timing", "python: the CPU keeps no time for a GPU")
        timer = plan.get("timer") or "auto"
        if timer == "cupti":
            raise Failure("machine", "python: the Python worker does not time with CUPTI", code="no-timer")
        torch, begun = d.torch, time.monotonic()
        limit = plan.get("max_time", 0) / 1e9
        info = torch.cuda.get_device_properties(d.device)
        size = 2 * int(getattr(info, "L2_cache_size", 0)) >> 20 << 20 if plan["cold_l2"] else 0
        l2 = torch.empty(size, dtype=torch.uint8, device=d.device)
        start, end = d.event(enable_timing=True), d.event(enable_timing=True)

        def flush():
            if size:
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

        trials = []

        def measure():
            for _ in range(plan["trials"]):
                self.entry(*self.args)
                d.synchronize()
                repeat(ESTIMATES)
                repeat(plan["warmup"])
                row = []
                while len(row) < plan["iterations"] and (not late() or not trials and not row):
                    flush()
                    start.record()
                    self.entry(*self.args)
                    end.record()
                    end.synchronize()
                    row.append(round(start.elapsed_time(end) * 1e6))
                if row:
                    trials.append(row)
                if late():
                    break
            d.synchronize()

        guard(d, "call", measure)
        whole = len(trials) == plan["trials"] and len(trials[-1]) == plan["iterations"]
        samples = {"timer": "cuda events", "cold_l2": plan["cold_l2"], "trials_ns": trials, "truncated": not whole}
        if timer == "auto":
            samples["timer_note"] = "the Python worker does not time with CUPTI"
        return samples


def guard(device, kind, f):
    """Runs the solution's code. Whatever it raises is a Failure of that kind, or a fault, when the device is lost; a copy
    of this process that the code forked ends here."""
    pid = os.getpid()
    try:
        return f()
    except Failure:
        raise
    except BaseException as e:
        if os.getpid() == pid:
            raise Failure(lost(device) or kind, describe(e), stack(e)) from None
    finally:
        if os.getpid() != pid:
            os._exit(0)


def lost(device):
    """ "fault" where the device fails although nothing more was asked of it: errors of the context stay for good."""
    try:
        device.synchronize()
    except BaseException:
        return "fault"
    return ""


class Server:
    def __init__(self):
        self.device, self.solution, self.cache = None, None, ""

    def answer(self, request):
        try:
            if "open" in request:
                r = request["open"]
                self.cache = r["cache_dir"]
                self.device = Device(r["kind"], r["ordinal"])
                return {"info": self.device.info()}
            if self.device is None:
                raise Failure("machine", "python: request out of order")
            self.device.restore()
            if "build" in request:
                r = request["build"]
                self.solution = Solution(self.device, self.cache, r["definition"], r["solution"])
                return {"info": self.device.info()}
            if self.solution is None:
                raise Failure("machine", "python: request out of order")
            if "load" in request:
                self.solution.load(request["load"])
                return {}
            if self.solution.args is None:
                raise Failure("machine", "python: request out of order")
            if "run" in request:
                r = request["run"]
                return self.solution.repeat(r["out"], r["repeat"]) if r.get("repeat") else self.solution.run(r["out"])
            if "measure" in request:
                return {"samples": self.solution.measure(request["measure"])}
            raise Failure("machine", "python: unknown request")
        except Failure as e:
            return e.reply()
        except Exception as e:
            kind = lost(self.device) if self.device else ""
            return Failure(kind or "machine", f"python: {describe(e)}", stack(e)).reply()


class Pipes:
    """The protocol's descriptors, moved where a solution that closes or inherits descriptors is unlikely to hit them; and
    copies of the standard ones, to put back."""

    def __init__(self):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        base = max(16, min(soft, 1024) - 16) if soft != resource.RLIM_INFINITY else 1008
        move = lambda fd: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, base)
        self.requests, self.replies = os.fdopen(move(3), "rb", 1 << 16), move(4)
        self.standard = [move(1), move(2)]
        os.close(3)
        os.close(4)
        self.kept = [self.requests.fileno(), self.replies, *self.standard]
        os.register_at_fork(after_in_child=self.close)

    def close(self):
        for fd in self.kept:
            try:
                os.close(fd)
            except OSError:
                pass

    def read(self):
        """The next request; None at the end."""
        line = self.requests.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def write(self, reply):
        data = memoryview(json.dumps(reply).encode() + b"\n")
        while data:
            data = data[os.write(self.replies, data):]

    def settle(self):
        """Hands on what was printed, and puts back descriptors that a solution closed or replaced."""
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()
            except BaseException:
                pass
        for fd, kept in zip((1, 2), self.standard):
            os.dup2(kept, fd)


def die_with_parent(parent):
    """Ends this process and its children when fisub is gone: a hanging kernel would never read the end of the requests."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def main():
    if os.environ.get("FISUB_WORKER") != "1":
        sys.exit("fisub starts this program itself")
    pipes = Pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=die_with_parent, args=(os.getppid(),), daemon=True).start()
    # A sibling of this file must not be importable, and the sources of a solution are written anew where they differ.
    del sys.path[0]
    sys.dont_write_bytecode = True
    server = Server()
    try:
        while (request := pipes.read()) is not None:
            reply = server.answer(request)
            pipes.settle()
            pipes.write(reply)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # threads and exit hooks of a solution do not keep the process


if __name__ == "__main__":
    main()
