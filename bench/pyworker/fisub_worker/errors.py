"""The errors of replies."""

MAX_TEXT = 4 << 10
MAX_LOG = 1 << 20
HINTS = {  # by the code of a Failure
    "no-dependency": "install it for that Python, or set FISUB_PYTHON to one with it",
    "no-gpu": "nvidia-smi lists the driver's GPUs; --device emu runs on the CPU",
    "no-ninja": "pip install ninja, and put its folder on PATH",
    "no-ordinal": "--device cuda:0 is the first GPU",
    "no-tilelang": "pip install tilelang for that Python, or set FISUB_PYTHON to another one",
    "no-torch": "pip install torch, or set FISUB_PYTHON to a Python with torch",
    "no-torch-cuda": "install a torch with CUDA, or set FISUB_PYTHON to a Python with one; --device emu runs on the CPU",
    "no-triton": "pip install triton==3.6.0 for that Python, or set FISUB_PYTHON to another one",
    "no-vgpu": "build fisub with scripts/build",
}


class Failure(Exception):
    """The error of a reply. kind is one of machine, build, call, fault, timing, lacking."""

    def __init__(self, kind, text, log="", code="", missing=""):
        super().__init__(text)
        self.kind, self.text, self.log, self.code = kind, clip(text, MAX_TEXT), clip(log, MAX_LOG), code
        self.missing = missing  # with code unbuilt: the name of the missing build

    def reply(self):
        return {"error": {"kind": self.kind, "text": self.text, "log": self.log, "code": self.code, "missing": self.missing,
                          "hint": HINTS.get(self.code, "")}}


class Made(Failure):
    """Ends a build request once the build that it asked for is complete."""

    def __init__(self):
        super().__init__("machine", "made")

    def reply(self):
        return {}


def clip(text, most):
    return text if len(text) <= most else text[: most // 2] + "\n...\n" + text[-most // 2:]


def describe(e):
    """Returns the last line of a traceback. The exception's own __str__ may raise anything."""
    try:
        text = str(e)
    except BaseException:
        text = "(no message)"
    return f"{type(e).__name__}: {text}" if text else type(e).__name__
