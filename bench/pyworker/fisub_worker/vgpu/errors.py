"""The errors of the virtual GPU."""

import os


class Trouble(RuntimeError if "FISUB_EMU_REPORT" in os.environ else BaseException):
    """Ends a call even if the solution catches Exception: on a GPU the error would come later. To a program it is an
    error like others."""


class Fault(Trouble):
    """An error of a kernel."""

    def verdict(self):
        return "call", f"DeviceFault: {self}"


class Lacking(Trouble):
    """Something that the virtual GPU does not support, so there is no verdict."""

    report = None  # in a program: called with the texts of errors that are not reported

    def __init__(self, text, reported=False):
        super().__init__(text)
        if Lacking.report and not reported:
            Lacking.report(text)

    def verdict(self):
        return "lacking", str(self)
