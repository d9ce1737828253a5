"""The entry function of a solution: its module, its signature and the values that it returns.

These are the rules and texts of the official builder and evaluator. They need no torch.
"""

import hashlib
import importlib
import inspect
import os
import re
import sys
import typing

from .errors import Failure
from .image import IMAGE, PYPI
from .tracebacks import place, stack


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
