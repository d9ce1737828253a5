"""Packages of the contest's image that this machine lacks."""

import importlib.machinery
import sys
import types

from .errors import Lacking


class Missing(types.ModuleType):
    """A part of a package that is not installed. It can be imported, passed on and named in annotations. Any other use
    needs the package, so there is no verdict."""

    def __init__(self, name, text):
        super().__init__(name)
        self.__dict__.update(_fisub_text=text, __path__=[])

    def __getattr__(self, name):
        if name == "__all__":
            self()
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}", self._fisub_text)

    def __call__(self, *args, **kwargs):
        raise Lacking(self._fisub_text)

    def __getitem__(self, key):
        return self

    __or__ = __ror__ = __getitem__
    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __enter__ = __instancecheck__ = __mro_entries__ = __call__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = __matmul__ = __call__


class Finder:
    """Finds stubbed packages and their parts by name, with the text of the error for each."""

    def __init__(self):
        self.texts = {}

    def find_spec(self, name, path=None, target=None):
        parents = [name[:i] for i, c in enumerate(name + ".") if c == "."]
        if text := next((self.texts[n] for n in parents if n in self.texts), None):
            self.text = text
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Missing(spec.name, self.text)

    def exec_module(self, module):
        pass


finder = Finder()


def unstub():
    """Removes the packages added by stub."""
    finder.texts.clear()
    for name in [name for name, module in sys.modules.items() if type(module) is Missing]:
        del sys.modules[name]


def stubs():
    """Returns the texts of the packages added by stub."""
    return list(finder.texts.values())


def stub(package, text):
    """Makes a missing package importable. Using it raises text. Returns False if it was importable already."""
    if package in finder.texts:
        return False
    finder.texts[package] = text
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)
    return True
