"""The worker with a GPU that is none: tensors are the CPU's, and what is launched is what a solution tells the fake driver in the
library FISUB_FAKE_LIB, which is its CUPTI too."""

import ctypes
import os
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(here)
from fisub_worker import device, server  # noqa: E402

del sys.path[0]
fake = ctypes.CDLL(os.environ["FISUB_FAKE_LIB"])


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0

    def record(self):
        self.at = time.monotonic()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3


class GPU(device.Device):
    def __init__(self, kind, ordinal, tell, ledger, sanitize):
        super().__init__("emu", ordinal, tell, ledger, sanitize)
        self.emulated, self.tracer, self.event, self.driver, self.reserved = False, None, Event, fake, 10 << 20

    def info(self):
        return {"name": "fake", "arch": "sm_90", "ordinal": 0, "driver": "1", "emulated": False, "toolchain": "none"}

    def l2_bytes(self):
        return 1 << 20

    def restore(self):
        pass

    def synchronize(self):
        fake.cuCtxSynchronize()

    def stall(self):
        pass


server.Device = GPU
device.cupti_paths = lambda major: ["/nonexistent/libcupti.so.13", os.environ["FISUB_FAKE_LIB"]]
server.main(False)
