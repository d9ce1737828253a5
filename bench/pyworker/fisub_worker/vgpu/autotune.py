"""Triton's autotuning, when nothing is timed."""

import sys
import time

import torch

from .tensors import octets, real

DIFFERENT = 0.02  # of the largest value: more than a different order of sums causes


class Tuning:
    """Runs each configuration of an autotuned kernel on the same memory. The one whose results differ most from the
    others' counts as the fastest, so that it is judged. A configuration skipped because of the time is never the
    fastest."""

    def __init__(self, name, machine):
        self.name, self.machine, self.config = name, machine, None
        self.before, self.after, self.times, self.configs = {}, [], [], []
        self.running, self.left = False, 0

    def keep(self, tensors):
        """Saves the memory that a kernel may write to."""
        if not self.running:
            return
        for t, _ in tensors:
            storage = t.untyped_storage()
            known = self.machine.arguments.get(storage.data_ptr())
            if storage.data_ptr() in self.before or known and known[2]:
                continue
            self.before[storage.data_ptr()] = octets(storage), octets(storage).clone(), t.dtype

    def run(self, call, n):
        if self.times and self.machine.tuned_enough(self.name):
            self.left += 1
            return [float("inf")] * n
        self.running, begun = True, time.monotonic()
        try:
            with real():
                for memory, was, _ in self.before.values():
                    memory.copy_(was)
            call()
        finally:
            self.running = False
            self.machine.tuned[self.name] += time.monotonic() - begun
        with real():
            self.after.append({at: memory.clone() for at, (memory, was, _) in self.before.items() if not memory.equal(was)})
            self.times.append([1.0] * n)
            self.configs.append(self.config)
            for times, distance in zip(self.times, self.distances()):
                times[:] = [1 / (1 + distance)] * n
        return self.times[-1]

    def settle(self, config):
        """Restores, after the judged call, the elements that config does not write. Without tuning the call would not
        have changed them."""
        if config not in self.configs:
            return
        after = self.after[self.configs.index(config)]
        with real():
            for at in set().union(*self.after):  # excludes memory that Triton restores after each configuration
                memory, was, dtype = self.before[at]
                size = was.numel() // dtype.itemsize * dtype.itemsize
                same = (after.get(at, was) == was)[:size].view(-1, dtype.itemsize)
                unwritten = same.all(1, keepdim=True).expand_as(same).reshape(-1)  # whole elements
                memory[:size][unwritten] = was[:size][unwritten]

    def tell(self):
        """Logs which configuration is judged, if that matters, and how many were not tried."""
        if self.times and (worst := min(self.times)[0]) < 1 / (1 + DIFFERENT):
            print(f"autotune: {self.name}: the results of {self.configs[self.times.index(min(self.times))]} differ from most others' by "
                  f"{1 / worst - 1:.3g} of the largest: these are judged", file=sys.stderr)
        if self.left:
            print(f"autotune: {self.name}: {self.left} configurations were not run within {self.machine.tuning_limit:.0f} s", file=sys.stderr)

    def distances(self):
        """Returns the distance of each configuration's results from the median."""
        found = [0.0] * len(self.after)
        for at in set().union(*self.after):
            _, was, dtype = self.before[at]
            all = [after.get(at, was) for after in self.after]
            if not dtype.is_floating_point:
                dtype = torch.uint8
            size = all[0].numel() // dtype.itemsize * dtype.itemsize
            values = torch.stack([v[:size].view(dtype).double() for v in all])
            middle = values.nanmedian(0).values
            scale = middle.nan_to_num(0, 0, 0).abs().max().item() or 1.0
            for i, v in enumerate(values):
                difference = (v - middle).abs() / scale
                difference[(v == middle) | v.isnan() & middle.isnan()] = 0
                found[i] = max(found[i], difference.nan_to_num(1e30, 1e30, 1e30).max().item() if len(v) else 0)
        return found
