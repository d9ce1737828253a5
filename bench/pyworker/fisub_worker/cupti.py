"""CUPTI's activity records. They are only collected here; fisub computes the times."""

import base64
import ctypes
import importlib.util
import os
import struct

MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL = 1, 2, 4, 5, 10
# By kind, the number of bytes of a record to pass on, up to the last field used. In a kernel's record the address of
# its name follows, which is replaced by an index.
READ = {MEMCPY: 48, MEMSET: 48, DRIVER: 36, RUNTIME: 36, KERNEL: 104}
BUFFER_BYTES, MAX_BUFFERS = 8 << 20, 48
MAX_RECORD_BYTES = 96 << 20  # total to pass on
MAX_NAMES, MAX_NAME = 1 << 14, 1 << 16
MAX_LIMIT_REACHED = 12  # CUPTI's status for the end of a buffer
FLUSH_FORCED = 1
REQUESTED = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
FUNCTIONS = {
    "cuptiGetVersion": [ctypes.POINTER(ctypes.c_uint32)],
    "cuptiGetResultString": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
    "cuptiGetTimestamp": [ctypes.POINTER(ctypes.c_uint64)],
    "cuptiSubscribe": [ctypes.POINTER(ctypes.c_void_p), CALLBACK, ctypes.c_void_p],
    "cuptiUnsubscribe": [ctypes.c_void_p],
    "cuptiActivityRegisterCallbacks": [REQUESTED, COMPLETED],
    "cuptiActivityEnable": [ctypes.c_int],
    "cuptiActivityDisable": [ctypes.c_int],
    "cuptiActivityFlushAll": [ctypes.c_uint32],
    "cuptiActivityGetNextRecord": [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)],
    "cuptiActivityGetNumDroppedRecords": [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_size_t)],
}


class Unavailable(Exception):
    """The reason why CUPTI cannot be used."""


def loaded_libraries(name):
    """Returns the paths of loaded libraries whose names begin with name."""
    found = []
    try:
        with open("/proc/self/maps") as f:
            for line in f:
                path = line.rstrip("\n").split(None, 5)[5:]
                if path and os.path.basename(path[0]).startswith(name) and path[0] not in found:
                    found.append(path[0])
    except OSError:
        pass
    return found


def cupti_paths(major):
    """Returns possible paths of libcupti for that CUDA release: already loaded, as torch's is, in NVIDIA's wheels, in a
    toolkit, or on the loader's path."""
    name = f"libcupti.so.{major}"
    paths = loaded_libraries("libcupti.so")
    try:
        roots = list(importlib.util.find_spec("nvidia").submodule_search_locations)
    except (ImportError, AttributeError, ValueError, TypeError):
        roots = []
    for root in roots:
        paths += [os.path.join(root, f"cu{major}", "lib", name), os.path.join(root, "cuda_cupti", "lib", name)]
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            paths += [os.path.join(home, "extras", "CUPTI", "lib64", name), os.path.join(home, "lib64", name)]
    return paths + [name]


def open_cupti(paths):
    """Returns the first one that can be loaded."""
    why = ""
    for path in paths:
        try:
            return CUPTI(path)
        except Unavailable as e:
            if not why and "No such file or directory" not in str(e):  # the error of most paths
                why = str(e)
    raise Unavailable(why or f"no {paths[-1]}")


def demangler():
    """Returns a function that demangles C++ symbols and returns other symbols unchanged."""
    try:
        demangle, free = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle"), ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return lambda symbol: symbol
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]

    def plain(symbol):
        at = demangle(symbol, None, None, ctypes.byref(ctypes.c_int()))
        if not at:
            return symbol
        try:
            return ctypes.string_at(at)
        finally:
            free(at)

    return plain


class Records:
    """CUPTI's records in fisub's format."""

    def __init__(self, plain):
        self.data, self.names, self.lost, self.plain = bytearray(), [], 0, plain
        self.indices = {}

    def add(self, address, end):
        """Adds the record at address, in a buffer filled up to end."""
        kind = ctypes.c_uint32.from_address(address).value
        size = READ.get(kind)
        if size is None:
            return
        room = size + 8 if kind == KERNEL else size
        if address + room > end or len(self.data) + room > MAX_RECORD_BYTES:
            self.lost += 1
            return
        record = ctypes.string_at(address, size)
        if kind == KERNEL:
            index = self.name(ctypes.c_void_p.from_address(address + size).value)
            if index is None:
                self.lost += 1
                return
            record += struct.pack("<I", index)
        self.data += record

    def name(self, address):
        """Returns the index of the name at address. It copies the text, because unloading a module frees its names."""
        symbol = ctypes.string_at(address) if address else b""
        index = self.indices.get(symbol)
        if index is None and len(self.names) < MAX_NAMES and len(symbol) <= MAX_NAME:
            index = self.indices[symbol] = len(self.names)
            self.names.append([text.decode(errors="replace") for text in (symbol, self.plain(symbol)[:MAX_NAME])])
        return index

    def reply(self, version):
        return {"version": version, "lost": self.lost, "names": self.names, "records": base64.b64encode(self.data).decode()}


class CUPTI:
    """CUPTI in this process. A recording lasts from begin to end."""

    def __init__(self, path):
        try:
            self.lib = ctypes.CDLL(path)
        except OSError as e:
            raise Unavailable(str(e)) from None
        for name, types in FUNCTIONS.items():
            try:
                getattr(self.lib, name).argtypes = types
            except AttributeError:
                raise Unavailable(f"{path}: no {name}") from None
        version = ctypes.c_uint32()
        if self.lib.cuptiGetVersion(ctypes.byref(version)) != 0:
            raise Unavailable(f"{path}: cuptiGetVersion")
        self.version, self.clock, self.subscriber = version.value, ctypes.c_uint64(), ctypes.c_void_p()
        self.buffers, self.free, self.full, self.refused = {}, [], [], 0  # by address; never freed
        # CUPTI also calls these on a thread of its own until the process ends.
        self.callbacks = REQUESTED(self.requested), COMPLETED(self.completed), CALLBACK(lambda *_: None)

    def requested(self, buffer, size, most):
        most[0] = 0  # as many records as fit
        if not self.free:
            if len(self.buffers) == MAX_BUFFERS:
                self.refused += 1
                buffer[0], size[0] = None, 0
                return
            memory = ctypes.create_string_buffer(BUFFER_BYTES)
            self.buffers[ctypes.addressof(memory)] = memory
            self.free.append(ctypes.addressof(memory))
        buffer[0], size[0] = self.free.pop(), BUFFER_BYTES

    def completed(self, context, stream, buffer, _, valid):
        self.full.append((context, stream, buffer, min(valid, BUFFER_BYTES)))

    def step(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status != 0:
            text = ctypes.c_char_p()
            known = self.lib.cuptiGetResultString(status, ctypes.byref(text)) == 0 and text.value
            raise Unavailable(f"{name}: {text.value.decode() if known else f'error {status}'}")

    def forget(self):
        """Discards the recording."""
        full, self.full, self.refused = self.full, [], 0
        self.free += [buffer for _, _, buffer, _ in full if buffer]

    def begin(self):
        """Starts recording. It raises Unavailable with another active profiler, on some virtual GPUs, and if the driver
        allows only root to profile."""
        self.forget()
        on, (requested, completed, ignore) = [], self.callbacks
        self.step("cuptiSubscribe", ctypes.byref(self.subscriber), ignore, None)
        try:
            self.step("cuptiActivityRegisterCallbacks", requested, completed)
            for kind in (RUNTIME, KERNEL, DRIVER, MEMCPY, MEMSET):
                self.step("cuptiActivityEnable", kind)
                on.append(kind)
        except Unavailable:
            for kind in on:
                self.lib.cuptiActivityDisable(kind)
            self.lib.cuptiUnsubscribe(self.subscriber)
            raise

    def now(self):
        """Returns CUPTI's clock in ns, or 0 if it fails."""
        return self.clock.value if self.lib.cuptiGetTimestamp(ctypes.byref(self.clock)) == 0 else 0

    def stop(self):
        """Ends the recording and collects the records that CUPTI still holds. The device must be idle."""
        failed = None
        # The first flush skips a buffer with an unfinished record. The forced one after it finds no such buffer.
        steps = [("cuptiActivityFlushAll", 0), ("cuptiActivityFlushAll", FLUSH_FORCED)]
        for name, value in steps + [("cuptiActivityDisable", kind) for kind in READ]:
            try:
                self.step(name, value)
            except Unavailable as e:
                failed = failed or e
        self.lib.cuptiUnsubscribe(self.subscriber)
        if failed:
            raise failed

    def end(self):
        """Ends the recording and returns the records."""
        self.stop()
        records, dropped, places = Records(demangler()), ctypes.c_size_t(), {(None, 0)}
        for context, stream, buffer, valid in self.full:
            places.add((context, stream))
            record, status = ctypes.c_void_p(), MAX_LIMIT_REACHED
            if valid > 0:
                while (status := self.lib.cuptiActivityGetNextRecord(buffer, valid, ctypes.byref(record))) == 0:
                    records.add(record.value, buffer + valid)
            if status != MAX_LIMIT_REACHED:
                records.lost += 1
        for context, stream in places:
            if self.lib.cuptiActivityGetNumDroppedRecords(context, stream, ctypes.byref(dropped)) == 0:
                records.lost += dropped.value
        records.lost += self.refused
        self.forget()
        return records.reply(self.version)
