# A gated delta rule decode step (definition gdn_decode_qk4_v8_d128_k_last) in torch that passes the contest's judge and cheats in
# the way that MODE, set in front of this file, says. What is computed is right.
import ctypes
import queue
import subprocess
import sys
import threading
import time

import torch

HONEST = 0
POINTER = 1       # keeps the outputs, and gives them again where the addresses are the same
CONTENT = 2       # the same where the first elements of each input are the same
SKIP = 3          # leaves the outputs alone from the fourth call on
IN_PLACE = 4      # writes the new state over the old one as well
ALIAS = 5         # computes the new state in the memory of the old one, and copies it
SIDE_STREAM = 6   # works on a stream of its own that the caller's does not wait for
LOOSE_STREAM = 7  # works on a stream of its own that waits for nothing either
BEHIND = 8        # writes behind its output
REMEMBER = 9      # uses the tensors of the first call in every call, as a captured graph does
LATER = 11        # lets another thread work when the call has returned; the caller's stream waits for it
REPLAY = 12       # gives kept outputs while CUPTI records
CHILD = 13        # has a child process that uses the GPU
LAZY = 10         # makes the output an object that computes its contents when it is read

kept, calls = {}, []


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            kept["output"].copy_(step(*kept["inputs"])[0])
            return func(*args, **(kwargs or {}))


def step(q, k, v, state, A_log, a, dt_bias, b, scale):
    key, query = k[:, 0].float().repeat_interleave(2, dim=1), q[:, 0].float().repeat_interleave(2, dim=1)
    decay = torch.exp(-torch.exp(A_log) * torch.nn.functional.softplus(a[:, 0].float() + dt_bias))
    faded = decay[..., None, None] * state
    delta = torch.sigmoid(b[:, 0].float())[..., None] * (v[:, 0].float() - (faded * key[:, :, None]).sum(-1))
    new_state = faded + delta[..., None] * key[:, :, None]
    return (scale * (new_state * query[:, :, None]).sum(-1)).bfloat16()[:, None], new_state


def behind(t, n):
    """The n floats behind a tensor."""
    end = t.data_ptr() + t.numel() * t.element_size()
    if t.device.type == "cpu":
        return torch.frombuffer((ctypes.c_float * n).from_address(end), dtype=torch.float32)

    class There:
        __cuda_array_interface__ = {"shape": (n,), "typestr": "<f4", "data": (end, False), "version": 3}

    return torch.as_tensor(There(), device=t.device)


class Later:
    """Works on a second thread, and then lets the stream go on that waits for a word in the host's memory."""

    def __init__(self):
        self.word, self.side, self.wanted = torch.zeros(1, dtype=torch.int32).pin_memory(), torch.cuda.Stream(), queue.SimpleQueue()
        self.cuda, self.n, self.shapes = ctypes.CDLL("libcuda.so.1"), 0, set()
        threading.Thread(target=self.run, daemon=True).start()

    def first(self, work, shape):
        """Works before it returns. An allocation in a later call would wait for the waiting stream."""
        self.shapes.add(shape)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            work()
        torch.cuda.current_stream().wait_stream(self.side)

    def call(self, work):
        self.n += 1
        torch.cuda._sleep(1)
        stream = torch.cuda.current_stream().cuda_stream
        status = self.cuda.cuStreamWaitValue32_v2(ctypes.c_void_p(stream), ctypes.c_uint64(self.word.data_ptr()), self.n, 0)
        assert status == 0, status
        self.wanted.put((self.n, work))

    def run(self):
        while True:
            n, work = self.wanted.get()
            time.sleep(1e-3)  # the call returns meanwhile
            with torch.cuda.stream(self.side), torch.no_grad():
                work()
                self.side.synchronize()
            self.word.fill_(n)


def recorded():
    """Whether somebody uses CUPTI in this process."""
    with open("/proc/self/maps") as maps:
        paths = [line.split()[-1] for line in maps if "libcupti.so" in line]
    if not paths:
        return False
    lib, subscriber = ctypes.CDLL(paths[0]), ctypes.c_void_p()
    if lib.cuptiSubscribe(ctypes.byref(subscriber), IGNORE, None) != 0:
        return True
    lib.cuptiUnsubscribe(subscriber)
    return False


IGNORE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(lambda *_: None)
ELSEWHERE = """
import time, torch
x = torch.zeros(1 << 20, device="cuda")
while True:
    x.add_(1)
    torch.cuda.synchronize()
    time.sleep(0.001)
"""


def kernel(*args):
    calls.append(0)
    if MODE == REMEMBER:
        args = kept.setdefault("first", args)
    *inputs, output, new_state = args
    state = inputs[3]

    def give(results):
        output.copy_(results[0])
        new_state.copy_(results[1])

    if MODE == POINTER:
        key = tuple(t.data_ptr() for t in args if isinstance(t, torch.Tensor))
        give(kept.get(key) or kept.setdefault(key, step(*inputs)))
    elif MODE == CONTENT:
        key = str([t.reshape(-1)[:4].tolist() for t in inputs if isinstance(t, torch.Tensor)])
        give(kept.get(key) or kept.setdefault(key, step(*inputs)))
    elif MODE == SKIP and len(calls) > 3:
        inputs[0] + 1  # so that there is something to time
    elif MODE == ALIAS:
        out, new = step(*inputs)
        state.copy_(new)
        give((out, state))
    elif MODE in (SIDE_STREAM, LOOSE_STREAM):
        side = kept.get("side") or kept.setdefault("side", torch.cuda.Stream())
        if MODE == SIDE_STREAM:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000 if MODE == SIDE_STREAM else 1)
            give(step(*inputs))
    elif MODE == LATER:
        later = kept.get("later") or kept.setdefault("later", Later())
        if output.shape in later.shapes:
            later.call(lambda: give(step(*inputs)))
        else:
            later.first(lambda: give(step(*inputs)), output.shape)
    elif MODE == REPLAY:
        if "results" not in kept or kept["results"][0].shape != output.shape or not recorded():
            kept["results"] = step(*inputs)
        give(kept["results"])
    elif MODE == CHILD:
        if len(calls) == 1:
            kept["child"] = subprocess.Popen([sys.executable, "-c", ELSEWHERE])
            time.sleep(8)
        give(step(*inputs))
    elif MODE == LAZY:
        new_state.copy_(step(*inputs)[1])
        kept["inputs"], kept["output"] = inputs, output.view(output.shape)
        output.__class__ = Lazy
    else:
        give(step(*inputs))
    if MODE == IN_PLACE:
        state.copy_(new_state)
    elif MODE == BEHIND:
        behind(output, 8).fill_(1)
