"""Builds a solution: it writes the sources, compiles C++ and CUDA with their own builders, and finds the entry function."""

import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile

from .compilers import BUILDS
from .entry import check_signature, import_entry, module_name, package_name, write_sources
from .errors import Failure, Made, describe
from .guard import excuse, guard

# The user's settings. A submission may change them later, for its own builds.
CHOSEN = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "TVM_FFI_CUDA_ARCH_LIST", "CXX",
                                            "NVCC_APPEND_FLAGS")]


class Builder:
    """Builds the solution identified by key. If only is not empty, this is a build for another process, which loads
    nothing: only["name"] is the name of the build, and only["folder"] takes its files."""

    def __init__(self, device, cache, definition, solution, key, only):
        self.device, self.key, self.only, self.cache = device, key, only, os.path.realpath(cache)
        self.definition, self.solution = definition, solution
        device.cache = self.cache
        key = hashlib.sha256(json.dumps(solution).encode()).hexdigest()[:32]
        # No other process has written to the folder of the sources. The other folder holds the solution's own
        # compiled files.
        self.fresh_folder = os.path.join(os.path.realpath(tempfile.mkdtemp()), "python", key)
        self.own_folder = os.path.join(os.path.realpath(os.environ.get("FISUB_OWN_CACHE") or os.path.join(cache, "python")), key)

    def entry(self, own):
        """Returns the entry function, which has that many outputs with their own memory."""
        spec = self.solution["spec"]
        file, _, symbol = spec["entry_point"].partition("::")
        if spec["language"] in ("cuda", "cpp"):
            build = self.extension if spec.get("binding") == "torch" else self.module
        else:
            build = self.python
        entry, passing = build(file, symbol), spec.get("destination_passing_style", True)
        if (self.definition.get("python") or {}).get("call") in ("model", "positional"):
            return entry
        guard(self.device, "build", lambda: check_signature(entry, len(self.definition["inputs"]), own, passing))
        return entry

    def python(self, file, symbol):
        """Imports Python, Triton or TileLang."""
        solution, spec, device = self.solution, self.solution["spec"], self.device
        language = spec["language"]
        for needed in ("triton", "tilelang"):
            if language == needed and importlib.util.find_spec(needed) is None:
                raise Failure("machine", f"python: {sys.executable} has no {needed}", code=f"no-{needed}")
        package = package_name(f"fib_{language}_", solution)
        module = module_name(package, file)
        folder = os.path.join(self.fresh_folder, package)
        sources = solution["sources"]
        if python := self.definition.get("python"):  # its files are modules of the submission, too
            sources = [{"path": name, "content": text} for name, text in python["files"].items()] + sources
            sys.path.insert(0, folder)
        write_sources(folder, sources)
        self.pretend([source["content"] for source in sources])
        if self.device.vgpu and (python or any("fisub_worker.functions" in source["content"] for source in sources)):
            self.device.vgpu.complete(self.device.machine)
        self.complete()
        sys.path.insert(0, self.fresh_folder)
        importlib.invalidate_caches()
        return guard(device, "build", lambda: device.does(
            lambda: import_entry(module, symbol, spec.get("dependencies") or (), device.vgpu and device.vgpu.stub)))

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
        key = hashlib.sha256(json.dumps([machine, CHOSEN, parts]).encode()).hexdigest()[:32]
        name = f"{name}-{key}"
        folder = os.path.join(self.cache, BUILDS, name)
        if self.only.get("name") == name:
            make(self.only["folder"])
            raise Made()
        if not os.path.isdir(folder):
            raise Failure("machine", f"python: {folder} is not built", code="unbuilt", missing=name)
        return folder

    def extension(self, file, symbol):
        """Builds C++ or CUDA with torch's own builder (binding torch)."""
        solution = self.solution
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

    def module(self, file, symbol):
        """Builds C++ or CUDA with tvm-ffi's own builder, whose functions return tensors."""
        solution = self.solution
        try:
            import tvm_ffi
            import tvm_ffi.cpp
        except ImportError:
            raise Failure("lacking", f"{sys.executable} has no tvm_ffi, which calls CUDA that returns its outputs: "
                          "pip install apache-tvm-ffi") from None
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
                raise ValueError(f"Single value returned but {len(self.definition['outputs'])} outputs expected")
            return value

        return call
