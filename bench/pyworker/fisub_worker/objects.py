"""Objects of tensors and plain values, nested in tuples, lists and dictionaries, as they travel between processes.

An object becomes a tree, which JSON can represent, and a list of tensors. In the tree each value is an object with one key:
tensor (an index in the list), float (in hexadecimal, so that no bit is lost), value (an int, a bool, a string or null), tuple,
list, dict (pairs of key and value), dtype, device, or class (module and name of a dataclass, and its fields).
"""

import dataclasses
import importlib


class Foreign(TypeError):
    """A value that cannot travel."""


def take_apart(torch, value, is_tensor, trusted=False):
    """Returns the tree and the tensors of value. Subclasses of the containers are read without their own methods. A
    dataclass travels only if it comes from trusted code."""
    tensors = []

    def tree(v):
        kind = type(v)
        if is_tensor(v):
            tensors.append(v)
            return {"tensor": len(tensors) - 1}
        if kind is float:
            return {"float": v.hex()}
        if v is None or kind in (int, bool, str):
            return {"value": v}
        if issubclass(kind, tuple):
            return {"tuple": [tree(x) for x in tuple.__iter__(v)]}
        if issubclass(kind, list):
            return {"list": [tree(x) for x in list.__iter__(v)]}
        if issubclass(kind, dict):
            return {"dict": [[tree(k), tree(x)] for k, x in dict.items(v)]}
        if kind is torch.dtype:
            return {"dtype": str(v).removeprefix("torch.")}
        if kind is torch.device:
            return {"device": v.type}
        if trusted and dataclasses.is_dataclass(v) and not isinstance(v, type):
            fields = [[f.name, tree(getattr(v, f.name))] for f in dataclasses.fields(v)]
            return {"class": [kind.__module__.rpartition(".")[2], kind.__qualname__], "fields": fields}
        raise Foreign(f"a value of type {kind.__name__}, which is neither a tensor nor a number, a string, None, nor a tuple, list or "
                      "dictionary of these")

    return tree(value), tensors


def assemble(torch, node, tensors, trusted=True):
    """Returns the object of a tree and its tensors. The containers are new ones. A tree from a submission is not trusted:
    it may name no class."""
    def value(n):
        key = next(iter(n))
        inner = n[key]
        if key == "tensor":
            return tensors[inner]
        if key == "float":
            return float.fromhex(inner)
        if key == "value":
            return inner
        if key in ("tuple", "list"):
            return (tuple if key == "tuple" else list)(value(x) for x in inner)
        if key == "dict":
            return {value(k): value(x) for k, x in inner}
        if key == "dtype" and isinstance(found := getattr(torch, inner, None), torch.dtype):
            return found
        if key == "device":
            return torch.device(inner)
        if key != "class" or not trusted:
            raise Foreign(f"{key} in an output")
        kind = importlib.import_module(inner[0])
        for name in inner[1].split("."):
            kind = getattr(kind, name)
        made = object.__new__(kind)
        for name, x in n["fields"]:
            object.__setattr__(made, name, value(x))
        return made

    return value(node)


def names(node, name="data"):
    """Returns a name for each tensor of a tree, such as data[0]['weight']."""
    key = next(iter(node))
    if key == "tensor":
        return {node[key]: name}
    found = {}
    if key in ("tuple", "list"):
        for i, x in enumerate(node[key]):
            found |= names(x, f"{name}[{i}]")
    elif key == "dict":
        for k, x in node[key]:
            found |= names(x, f"{name}[{next(iter(k.values()))!r}]")
    elif key == "class":
        for field, x in node["fields"]:
            found |= names(x, f"{name}.{field}")
    return found


def strided(torch, t):
    """Returns the memory of t as int8, and the strides with which it is t again. A tensor that leaves out most of its
    memory is copied first."""
    t = t.detach().resolve_conj().resolve_neg()
    if t.numel() == 0:
        return torch.empty(0, dtype=torch.int8), list(t.stride())
    extent = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    if extent > 2 * t.numel():
        t = t.contiguous()
        extent = t.numel()
    flat = torch.as_strided(t, (extent,), (1,), t.storage_offset())
    return flat.view(torch.int8), list(t.stride())
