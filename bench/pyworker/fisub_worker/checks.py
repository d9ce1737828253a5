"""Checks of calls for forbidden side effects. fisub itself compares the memory."""

from .device import quiet
from .errors import Failure, describe
from .guard import guard
from .memory import first_difference, write


def check(solution, request):
    """Prepares a check and makes the call that it asks for."""
    if request.get("move"):
        solution.before.append((solution.leaves, solution.places, solution.results))
        if request.get("gap"):
            with solution.device.quiet():
                solution.gaps.append(solution.device.gap(request["gap"]))
        solution.place()
    if request.get("back") and solution.before:
        solution.before.append((solution.leaves, solution.places, solution.results))
        solution.leaves, solution.places, solution.results = solution.before[0]
    change(solution, request.get("inputs") or [])
    # Callers use a tensor object again with other contents, so an object is no key of a cache.
    keep = bool(request.get("inputs")) and not request.get("move")
    return probe(solution, request["out"], keep) if request.get("out") else {}


@quiet
def copy_memory(solution, request):
    """Copies memory of arguments to a file."""
    guard = solution.loaded.get("guard", 0)
    for part in request["parts"]:
        band, begin = solution.places[part["arg"]][1], guard + part["offset"]
        write(request["out"], solution.device.cpu(band[begin:begin + part["bytes"]]), part["at"])


@quiet
def change(solution, inputs):
    """Replaces the contents of inputs at their present addresses."""
    if len(inputs) > len(solution.inputs()):
        raise Failure("machine", f"python: contents of {len(inputs)} inputs, want {len(solution.inputs())}")
    for i, spec in enumerate(inputs):
        if spec is None:
            continue
        old = solution.inputs()[i].get("tensor")
        if old is None or any(spec[key] != old[key] for key in ("dtype", "shape", "bytes")):
            raise Failure("machine", f"input {i}: the new contents have a different type")
        try:
            solution.device.fill(solution.places[i][0], spec)
        except OSError as e:
            raise Failure("machine", f"input {i}: {describe(e)}") from None
        solution.inputs()[i] = {"tensor": spec}


def probe(solution, out, keep=False):
    """Makes a call while the stream is busy, and compares its outputs after it in stream order with those when the
    device is idle."""
    d = solution.device
    solution.fresh(keep)
    solution.renew()
    # Allocating memory after the call could wait for it.
    with d.quiet():
        rooms = [data if data is None else d.torch.empty_like(data) for _, _, data in solution.results]

    def call():
        d.stall()
        solution.poison()
        value = solution.judged()
        with d.quiet():
            values = solution.passed() if solution.destination_passing else solution.whole(value)
            mine = [v if v is not None and v.device == d.device else None for v in values]
            early = d.copies(mine, rooms[:len(mine)] + [None] * (len(mine) - len(rooms)))
            d.synchronize()
            return values, [-1 if now is None else first_difference(was, d.octets(now)) for was, now in zip(early, mine, strict=True)]

    values, differences = guard(d, "call", call)
    late, number = [], len(solution.inputs())  # of the next output that is not an input
    for i, at in enumerate(differences):
        in_place = not solution.convention and i < len(solution.at) and solution.in_place(i)
        late += [{"arg": solution.at[i] if in_place else number, "offset": at}] * (at >= 0)
        number += not in_place
    found = {"late": late}
    return found | solution.store(out, None if solution.destination_passing else values, 0)
