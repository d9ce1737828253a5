"""The rules of tensor copies, for Triton's descriptors.

The code that the virtual GPU executes has plain pointers instead of descriptors, so the checks are added here.
"""

import functools
import inspect

import triton.language as tl
from triton._C.libtriton import ir, passes
from triton.language.semantic import TritonSemantic

ALIGNED = 16  # bytes: addresses, strides and innermost coordinates are multiples
FARTHEST = 1 << 40  # strides in bytes are less than this
LONGEST = 1 << 32  # elements of a dimension
READS = " reads"  # marks the check of an operation that is not needed if its result is unused
USES = ("load", "store", "gather", "scatter", "atomic_add", "atomic_min", "atomic_max", "atomic_and", "atomic_or",
        "atomic_xor")


def install(arch):
    """Makes Triton add checks to the kernels that it compiles for arch, such as "sm89"."""
    for name in USES:
        name = f"descriptor_{name}"
        setattr(TritonSemantic, name, used(getattr(TritonSemantic, name), arch))
    TritonSemantic.make_tensor_descriptor = made(TritonSemantic.make_tensor_descriptor, arch)


def used(use, arch):
    """Returns use, a method of TritonSemantic that copies with a descriptor, after a check of what it copies. The shape
    and the strides are checked here, because a descriptor that is only made may break the rules."""
    parameters = inspect.signature(use)

    @functools.wraps(use)
    def run(self, desc, *args, **kwargs):
        if compiles_for(self, arch):
            given = parameters.bind(self, desc, *args, **kwargs).arguments
            innermost = given["y_offset"] if "y_offset" in given else given["offsets"][-1]
            extents = [self.make_scalar(n, tl.int32).handle for n in getattr(desc, "shape", [1])]
            strides = [self.make_scalar(n, tl.int64).handle for n in getattr(desc, "strides", [1])[:-1]]
            operands = self._convert_to_ir_values([innermost], False) + extents + strides
            check(self, f"use {max(8, desc.dtype.primitive_bitwidth) // 8},", "r" * (1 + len(extents)) + "l" * len(strides),
                  operands, READS if "value" not in given else "")
        return use(self, desc, *args, **kwargs)

    return run


def made(make, arch):
    """Returns TritonSemantic.make_tensor_descriptor, which is make, with a check of the address."""
    @functools.wraps(make)
    def run(self, base, *args, **kwargs):
        if not compiles_for(self, arch):
            return make(self, base, *args, **kwargs)
        address = self.builder.create_ptr_to_int(base.handle, tl.int64.to_ir(self.builder))
        result = make(self, base, *args, **kwargs)
        check(self, "base", "l", [address])
        return result

    return run


def compiles_for(semantic, arch):
    return getattr(getattr(semantic.builder, "options", None), "arch", "") == arch


def check(semantic, name, kinds, operands, note=""):
    """Adds an instruction that only the virtual GPU has."""
    text = f"fisub.descriptor.{name} {', '.join(f'${1 + i}' for i in range(len(operands)))}; // $0{note}"
    types = [tl.int32.to_ir(semantic.builder)]  # inline code must have a result
    semantic.builder.create_inline_asm(text, ",".join(["=r", *kinds]), operands, types, False, 1)


def prune(mod):
    """Removes the checks of descriptors and loads that are not used, because no code is generated for these."""
    first = ir.pass_manager(mod.context)
    passes.common.add_inliner(first)
    passes.common.add_canonicalizer(first)
    first.run(mod, "prune")
    ops, true = [], ir.builder(mod.context).get_bool_attr(True)
    mod.walk(lambda op: op.get_name() == "arith.constant" or ops.append(op))
    names = ["", *(op.get_name() for op in ops), ""]
    for op, before, name, after in zip(ops, names, names[1:], names[2:]):
        text = op.get_str_attr("asm_string") if name == "tt.elementwise_inline_asm" else ""
        if (text.startswith("fisub.descriptor.base") and before != "tt.make_tensor_descriptor"
                or text.endswith(READS) and after not in ("tt.descriptor_load", "tt.descriptor_gather")):
            op.get_result(0).set_attr("pure", true)


def encode(name, desc, meta):
    """Raises the error of Triton's driver if the CUDA driver refuses a descriptor passed to a kernel as the argument of
    that name. meta is Triton's description of it."""
    size = meta["elem_size"]
    assert desc.strides[-1] == 1
    address, faults = desc.base.data_ptr(), []
    if address % ALIGNED:
        faults.append(f"the address {address:#x} is not a multiple of {ALIGNED}")
    for i, n in enumerate(desc.shape):
        if not 0 < n <= LONGEST:
            faults.append(f"shape[{i}] = {n}")
    for i, n in enumerate(desc.strides[:-1]):
        if not 0 <= n * size < FARTHEST:
            faults.append(f"strides[{i}] = {n}, not between 0 and 2^40 bytes")
        elif n * size % ALIGNED:
            faults.append(f"strides[{i}] = {n}: {n * size} bytes, not a multiple of {ALIGNED}")
    if (row := meta["block_size"][-1] * size) % ALIGNED:
        faults.append(f"blocks of {row} contiguous bytes, not a multiple of {ALIGNED}")
    if faults:
        raise RuntimeError("Triton Error [CUDA]: Failed to create tensor map descriptor: invalid argument "
                           f"({name}: {'; '.join(faults)})")
