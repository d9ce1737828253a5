"""Tracebacks and warnings as the solution's author knows them: with the paths of its sources and without fisub's frames."""

import importlib
import linecache
import os
import re
import traceback
import warnings

from .errors import describe

OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
SOURCE = re.compile(r"/python/[0-9a-f]{32}/[^/]+/(.+)$")  # Solution.sources, the package, and the author's path


def stack(e):
    """Returns the traceback of e with the paths of the solution's sources, without fisub's frames."""
    try:
        formatted = traceback.TracebackException.from_exception(e)
        queue, seen = [formatted], set()
        while queue:
            part = queue.pop()
            if part is None or id(part) in seen:
                continue
            seen.add(id(part))
            queue += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or [])]
            if getattr(part, "filename", None) and (source := SOURCE.search(part.filename)):
                part.filename = source[1]  # of a SyntaxError
            part.stack[:] = own(part.stack)
        return "".join(formatted.format())
    except BaseException:
        return describe(e)


def own(frames):
    """Returns frames without fisub's and importlib's, starting at the first one in a source, if there is one."""
    frames = [f for f in frames if not f.filename.startswith((OURS, importlib.__file__, "<frozen importlib"))]
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
