"""The decode functions of the gated delta rule, with the names and arguments of FlashInfer 0.7.2.

    from fisub_gdn import gated_delta_rule_mtp      # instead of: from flashinfer.gdn_decode import ...

Tensors are torch tensors on a GPU of compute capability 8.0 or later. The package needs torch, apache-tvm-ffi and, at the
first call of a kernel, nvcc: from $CUDA_HOME, $CUDA_PATH, PATH or /usr/local/cuda. Built kernels are kept below
$FISUB_CACHE, by default ~/.cache/fisub. Calls use torch's current stream, return without waiting for the GPU, and can be
captured in a CUDA graph.

Differences from FlashInfer, apart from speed:

- q, k, v, a, b and output must be bfloat16, head_size must be 128, and a call has 1 to 8 tokens per row.
- For both state dtypes, a row with a slot below 0 is padding: its output is 0, and no slot is read or written.
  FlashInfer does this for float32 states only; with bfloat16 it reads and writes slot 0.
- Several tokens per call are also allowed for float32 states in gated_delta_rule_decode_pretranspose, and for bfloat16
  states in gated_delta_rule_mtp.
- backend has no effect, and cache_replayssm with its buffers raises a ValueError.
"""

import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

__all__ = ["gated_delta_rule_decode", "gated_delta_rule_decode_pretranspose", "gated_delta_rule_mtp"]

SOURCES = pathlib.Path(__file__).resolve().parent / "cuda"


def compiler():
    """Returns the path of nvcc."""
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if home and os.access(os.path.join(home, "bin", "nvcc"), os.X_OK):
            return os.path.join(home, "bin", "nvcc")
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not found:
        raise RuntimeError("fisub_gdn: no nvcc in $CUDA_HOME/bin, on PATH or in /usr/local/cuda/bin\n"
                           "hint: set CUDA_HOME to a CUDA toolkit of 12.0 or later")
    return found


@functools.lru_cache(maxsize=None)
def kernels(arch):
    """Returns the module of kernels for an arch such as 90, from the cache or newly built."""
    try:
        import tvm_ffi
        from tvm_ffi import libinfo
    except ImportError:
        raise ImportError("fisub_gdn: no package tvm_ffi, by which the kernels are called\nhint: pip install apache-tvm-ffi") from None
    nvcc = compiler()
    options = ["-std=c++17", "-O2", "-shared", "-Xcompiler=-fPIC", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    options += [f"-I{path}" for path in libinfo.include_paths()]
    library = pathlib.Path(libinfo.find_libtvm_ffi())
    key = hashlib.sha256(repr([nvcc, options, tvm_ffi.__version__]).encode())
    for source in sorted(SOURCES.iterdir()):
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = pathlib.Path(os.environ.get("FISUB_CACHE") or pathlib.Path.home() / ".cache" / "fisub") / "gdn"
    built = cache / f"{key.hexdigest()[:32]}.so"
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = os.path.join(folder, "kernels.so")
            command = [nvcc, *options, str(SOURCES / "kernel.cu"), "-o", made, f"-L{library.parent}", "-ltvm_ffi"]
            ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if ran.returncode != 0:
                raise RuntimeError(f"fisub_gdn: nvcc ended with exit status {ran.returncode}:\n{ran.stdout}")
            os.replace(made, built)
    return tvm_ffi.load_module(str(built))


def call(name, q, *args):
    if not q.is_cuda:
        raise ValueError(f"q: a tensor on {q.device}; expected one on a GPU")
    import torch
    major, minor = torch.cuda.get_device_capability(q.device)
    with torch.cuda.device(q.device):
        getattr(kernels(10 * major + minor), name)(q, *args)


def outputs(q, v, output):
    """Returns output, or new memory for it, which the kernels overwrite completely."""
    if output is None:
        import torch
        return torch.empty(v.shape, dtype=v.dtype, device=q.device)
    return output


def gated_delta_rule_decode_pretranspose(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True,
                                         initial_state=None, initial_state_indices=None, output_state_indices=None,
                                         intermediate_states_buffer=None, disable_state_update=False, backend="auto"):
    """Decodes one to eight tokens per row; states (slots, HV, V, K), float32 or bfloat16, are updated in place.

    state has one slot per row. initial_state is a pool instead: initial_state_indices are the slots to read, and
    output_state_indices, if given, the slots to write. intermediate_states_buffer (B, >= T, HV, V, K) receives the state
    after each token. With disable_state_update the states do not change. Returns (output, state or pool).
    """
    if initial_state is None and (initial_state_indices is not None or output_state_indices is not None):
        raise ValueError("initial_state_indices and output_state_indices: they name slots of initial_state, which is None")
    if initial_state is not None and initial_state_indices is None:
        raise ValueError("initial_state_indices: None; a pool needs the slot of each row")
    if state is None and initial_state is None:
        raise ValueError("state: None, and initial_state too")
    output = outputs(q, v, output)
    call("gated_delta_rule_decode_pretranspose", q, k, v, state, A_log, a, dt_bias.float(), b, scale, output, use_qk_l2norm,
         initial_state, initial_state_indices, output_state_indices, intermediate_states_buffer, bool(disable_state_update))
    return output, state if initial_state is None else initial_state


def gated_delta_rule_decode(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, backend="auto"):
    """Decodes one to eight tokens per row; state (B, HV, K, V), float32, is updated in place. Returns (output, state)."""
    output = outputs(q, v, output)
    call("gated_delta_rule_decode", q, k, v, state, A_log, a, dt_bias.float(), b, scale, output, use_qk_l2norm)
    return output, state


def gated_delta_rule_mtp(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None,
                         intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None, use_qk_l2norm=True,
                         output_state_indices=None, cache_replayssm=False, replayssm_rawv=None, replayssm_rawk=None,
                         replayssm_g=None, replayssm_beta=None):
    """Decodes one to eight tokens per row with a pool of states (slots, HV, V, K).

    ssm_state_indices (B, T) are the slots for the state after each token; they exclude the other ways to keep states. As
    in FlashInfer 0.7.2, disable_state_update defaults to True, but to False with ssm_state_indices. Returns
    (output, initial_state).
    """
    if cache_replayssm or any(x is not None for x in (replayssm_rawv, replayssm_rawk, replayssm_g, replayssm_beta)):
        raise ValueError("cache_replayssm: these kernels keep no inputs to replay; pass intermediate_states_buffer or ssm_state_indices")
    if disable_state_update is None:
        disable_state_update = ssm_state_indices is None
    output = outputs(q, v, output)
    call("gated_delta_rule_mtp", q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias.float(), b, scale, output,
         intermediate_states_buffer, ssm_state_indices, bool(disable_state_update), use_qk_l2norm, output_state_indices)
    return output, initial_state
