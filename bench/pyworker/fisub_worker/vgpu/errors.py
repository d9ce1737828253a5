"""The errors with which the virtual GPU ends a call."""


class Trouble(BaseException):
    """Ends a call even if the solution catches Exception: on a GPU the error would come later."""


class Fault(Trouble):
    """An error of a kernel."""

    def verdict(self):
        return "call", f"DeviceFault: {self}"


class Lacking(Trouble):
    """Something that the virtual GPU does not support, so there is no verdict."""

    def verdict(self):
        return "lacking", str(self)
