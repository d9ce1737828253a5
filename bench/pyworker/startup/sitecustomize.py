"""Lets a Python that `fisub emu` starts, itself or through other programs, use the virtual GPU.

Python imports this module before a program. If torch is installed, tensors of the program may be on a CUDA device once
it has imported torch, and Triton's kernels run on the virtual GPU. Otherwise nothing changes: the program may load the
CUDA runtime itself, or start programs that use it.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Without:
    """Fails to import torch, with a remedy."""

    def __init__(self, remedy):
        self.remedy = remedy

    def find_spec(self, name, path=None, target=None):
        if name == "torch" and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":  # the program does not only ask
            raise ModuleNotFoundError(f"No module named 'torch' for {sys.executable}: {self.remedy}", name=name)
        return None


def start():
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
    if other := importlib.machinery.PathFinder.find_spec(__name__):  # the one that this module hides
        module = importlib.util.module_from_spec(other)
        sys.modules[__name__] = module
        other.loader.exec_module(module)
    if "FISUB_EMU_REPORT" not in os.environ:
        return
    if importlib.util.find_spec("torch") is None:
        sys.meta_path.append(Without(f"{sys.executable} -m pip install torch installs it; fisub emu runs the Python that you name"))
        return
    if sys.version_info < (3, 10):
        sys.meta_path.insert(0, Without("the virtual GPU needs Python 3.10 or later"))
        return
    # torch has a CUDA runtime of its own, with the name of the virtual GPU's. The loader has read this variable already.
    folder, name, paths = os.path.dirname(os.environ["FISUB_EMU_RUNTIME"]), "LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", "")
    if os.environ.pop("FISUB_EMU_PYTHON", "") != str(os.getpid()):
        if folder in paths.split(os.pathsep):
            os.environ["FISUB_EMU_PYTHON"] = str(os.getpid())
            os.environ[name] = os.pathsep.join(p for p in paths.split(os.pathsep) if p != folder)
            os.execv(sys.executable, sys.orig_argv)
    else:
        os.environ[name] = os.pathsep.join(p for p in (folder, paths) if p)  # for programs that this one starts
    sys.path.insert(0, os.path.dirname(HERE))
    try:
        from fisub_worker import importing
    finally:
        del sys.path[0]
    importing.start()


start()
