"""Timed calls."""

import base64
import threading
import time

from .checks import change
from .cupti import Unavailable
from .errors import Failure
from .guard import guard

ESTIMATES = 5  # calls with which the official harness estimates the time of one, before the warm-up calls
BUSY = "the GPU was busy with other work before the calls"


def measure(solution, plan, tell):
    """Times calls with CUPTI's records, from which fisub computes the times, or with CUDA events. tell is called
    like a plan's Timing. fisub decides whether to fall back to another timer."""
    d, cupti = solution.device, None
    solution.fresh()
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
        value = solution.plain(solution.entry(*solution.args))
        end = cupti.now()
        d.synchronize()
        return (begin, end, cupti.now()), value

    def trials():
        if cupti:
            return run_trials(solution, plan, tell, by_cupti, cupti.now)
        start, end = d.event(enable_timing=True), d.event(enable_timing=True)

        def by_events():
            start.record()
            value = solution.plain(solution.entry(*solution.args))
            end.record()
            end.synchronize()
            return round(start.elapsed_time(end) * 1e6), value

        return run_trials(solution, plan, tell, by_events, lambda: 0)

    try:
        made, judged, first, disturbed = guard(d, "call", trials)
    except Failure as e:
        if cupti and e.kind != "fault":
            try:
                cupti.stop()
            except Unavailable:
                pass
        raise
    whole = len(made) == plan["trials"] and len(made[-1]) == plan["iterations"]
    samples = {"timer": "cupti" if cupti else "cuda events", "cold_l2": plan["cold_l2"], "truncated": not whole, "disturbed": disturbed,
               "persisting_l2": kept if (kept := d.persisting_l2()) != d.reserved else 0}
    if not cupti:
        apart = plan.get("apart", -1)
        for row in made:
            calls = len(row)
            if 0 <= apart < calls:
                del row[apart]
            apart -= calls
        return {"samples": samples | {"trials_ns": made}, "judged": judged}
    try:
        recorded = cupti.end() | {"windows": made, "thread": threading.get_ident() & 0xffffffff, "first": first}
        return {"samples": samples, "judged": judged, "recorded": recorded}
    except Unavailable as e:
        return {"recorded": {"failed": str(e)}}


def run_trials(solution, plan, tell, timed, now):
    """Returns the result of timed for each call of each trial, the judged calls, the result of now before the first
    call, and disturbances. A trial is one call, five more, the warm-up calls and then, for each sample, zeroing
    twice the L2's size and the timed call. Before each call, inputs changed in place are restored and other outputs
    poisoned."""
    d, begun = solution.device, time.monotonic()
    solution.renew()
    limit = plan.get("max_time", 0) / 1e9
    size = plan.get("clear") or (2 * d.l2_bytes() >> 20 << 20 if plan["cold_l2"] else 0)
    with d.quiet():
        kept = [(data, data.clone()) for i, (_, _, data) in enumerate(solution.results) if solution.in_place(i)]
        l2 = d.torch.empty(size, dtype=d.torch.uint8, device=d.device)

    def renew():
        for data, was in kept:
            data.copy_(was)
        solution.poison()

    def flush(call=-1):
        with d.quiet():
            renew()
            if call == patched:
                vary()
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
            solution.entry(*solution.args)
        d.synchronize()

    trials, judged, wanted, calls, patch = [], [], plan.get("judged") or [], 0, plan.get("patch")
    other, own = plan.get("other"), [v.get("tensor") for v in solution.inputs()]
    patched = plan.get("apart") if patch or other else None

    def vary(back=False):
        if patch:
            write_patch(solution, patch, "old" if back else "new")
        else:
            change(solution, [spec and mine for spec, mine in zip(other, own, strict=True)] if back else other)

    disturbed = [] if d.settle(plan.get("idle", 0) / 1e9) else [BUSY]
    first = now()
    for i in range(plan["trials"]):
        with d.quiet():
            renew()
        solution.entry(*solution.args)
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
                judged.append({"call": calls} | solution.store(plan["out"], solution.whole(value), len(judged) * plan["stride"]))
            del value  # so that the next call can reuse its memory
            if calls == patched:
                with d.quiet():
                    vary(back=True)
            calls += 1
        if row:
            trials.append(row)
        if late():
            break
    d.synchronize()
    tell(False)
    return trials, judged, first, disturbed


def write_patch(solution, patch, which):
    """Writes the old or new bytes of a patch to its input."""
    data, begin = base64.b64decode(patch[which]), patch["offset"]
    target = solution.places[patch["arg"]][0][begin:begin + len(data)]
    target.copy_(solution.device.torch.frombuffer(bytearray(data), dtype=solution.device.torch.uint8))
