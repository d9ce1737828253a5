"""Why Triton rejects a kernel."""

import gc
import re
import sys


def refusal(machine, e):
    """Returns why Triton rejects a kernel for a B200, as ((file, line, column) or None, text), or None if e is another
    error."""
    if "triton" not in sys.modules:
        return None
    from triton.compiler.errors import CompilationError
    from triton.errors import TritonError
    from triton.runtime.errors import PTXASError
    from triton.runtime.jit import JITFunction
    if e is not machine.refused and not isinstance(e, TritonError):
        return None
    if isinstance(e, PTXASError) and (messages := re.findall(r"(?m)^ptxas.*?(?:error|fatal) *: (?!Ptx assembly)(.+)", str(e))):
        return None, "ptxas: " + "; ".join(dict.fromkeys(messages))
    while isinstance(e, CompilationError) and isinstance(e.__cause__, CompilationError):
        e = e.__cause__  # from a call to the error in the called function
    if not isinstance(e, CompilationError) or not hasattr(e.node, "lineno"):
        return None, f"{type(e).__name__}: {e}"
    for f in gc.get_objects():
        if issubclass(type(f), JITFunction) and f.src == e.src:  # isinstance would ask torch's deprecated objects for their class
            head = next((i for i, line in enumerate(f.raw_src) if line.lstrip().startswith("def ")), 0)
            at = f.fn.__code__.co_filename, f.starting_line_number + head + e.node.lineno - 1, e.node.col_offset + 1
            return at, f"{type(e).__name__}: {e.error_message or e}"
    return None, f"{type(e).__name__}: {e}"
