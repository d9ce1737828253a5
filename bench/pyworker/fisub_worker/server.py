"""Answers fisub's requests."""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings

from . import checks, timing
from .below import Range
from .device import Device
from .errors import Failure, describe
from .guard import lost
from .memory import shared
from .protocol import Pipes
from .solution import Solution
from .tracebacks import stack, warning


class Server:
    """Answers requests. tell sends messages before an answer."""

    def __init__(self, tell, below):
        self.device, self.solution, self.cache, self.tell, self.below = None, None, "", tell, below
        self.files = []  # descriptors received, of the present inputs and of the request

    def attach(self, request, files):
        """Replaces the numbers of descriptors in a request by the descriptors."""
        self.files += files
        load, check, other = request.get("load", {}), request.get("check", {}), request.get("measure", {}).get("other") or []
        for spec in [v.get("tensor") for v in load.get("inputs") or []] + (check.get("inputs") or []) + other:
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
                self.device = Device(r["kind"], r["ordinal"], self.tell, shared(r["ledger"]) if r.get("ledger") else None,
                                     r.get("sanitize", ""))
                if self.below:
                    self.device.call = Range(self.device.torch)
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
                return timing.measure(self.solution, request["measure"], lambda on: self.tell({"timing": on}))
            if "check" in request:
                return {"checked": checks.check(self.solution, request["check"]), "addresses": self.solution.addresses()}
            if "look" in request:
                checks.copy_memory(self.solution, request["look"])
                return {}
            raise Failure("machine", "python: unknown request")
        except Failure as e:
            return e.reply()
        except Exception as e:
            kind = lost(self.device) if self.device else ""
            return Failure(kind or "machine", f"python: {describe(e)}", stack(e)).reply()
        finally:
            self.release()


def die_with_parent(parent):
    """Ends this process and its children when fisub is gone: a hanging kernel would never notice the end of the
    requests."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def called(request):
    """Returns whether a request asks for a call."""
    return "run" in request or request.get("check", {}).get("out") is not None


def main(below):
    """Answers until there are no more requests. below is whether a tool has started this process."""
    if os.environ.get("FISUB_WORKER") != "1":
        sys.exit("fisub starts this program itself")
    pipes = Pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=die_with_parent, args=(os.getppid(),), daemon=True).start()
    warnings.formatwarning = warning
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # tensors do not need it
    server = Server(pipes.write, below)
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
