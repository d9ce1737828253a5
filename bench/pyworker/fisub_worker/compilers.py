"""The causes of errors that compilers print: a mistake of the solution, or something that this machine lacks."""

import re

BUILDS = "python-build"  # a cache folder that no process with submitted code may write
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
