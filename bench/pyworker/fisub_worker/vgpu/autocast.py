"""torch.autocast for the CUDA device.

The tensors are in CPU memory, so torch's autocast for the CPU does the work, with CUDA's lists of functions instead of
its own.
"""

import functools
import warnings

import torch

from .errors import Lacking
from .tensors import is_host

LOWER = frozenset("""_convolution _convolution.deprecated _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm
    addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell
    scaled_dot_product_attention""".split())
FLOAT = frozenset("""_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity dist erfinv exp expm1 frobenius_norm.dim
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2 logsumexp margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss native_layer_norm nll_loss nll_loss2d nuclear_norm nuclear_norm.dim pdist poisson_nll_loss
    pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss softplus tan
    triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d""".split())
# These get the argument dtype.
SUMS = frozenset("""cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.int prod prod.dim_int
    softmax.int sum sum.dim_IntList""".split())
NORMS = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}  # the overload with a dtype
RECURRENT = frozenset("gru lstm rnn_relu rnn_tanh".split())
WIDEST = frozenset("addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot".split())


def install():
    """Makes torch.autocast work for tensors on the CUDA device."""
    enter, leave, library = torch.autocast.__enter__, torch.autocast.__exit__, []

    @functools.wraps(enter)
    def run_enter(self):
        if self.device == "cuda":
            if self._enabled and not library:
                library.append(replace())
            self.__dict__.setdefault("_fisub", []).append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            torch.set_autocast_enabled("cpu", self._enabled)
            torch.set_autocast_dtype("cpu", self.fast_dtype)
        return enter(self)

    @functools.wraps(leave)
    def run_leave(self, *args):
        if self.device == "cuda":
            enabled, dtype = self._fisub.pop()
            torch.set_autocast_enabled("cpu", enabled)
            torch.set_autocast_dtype("cpu", dtype)
        return leave(self, *args)

    torch.autocast.__enter__, torch.autocast.__exit__ = run_enter, run_leave


def replace():
    """Replaces the rules of autocast for the CPU by those for CUDA, and returns the library with them."""
    library = torch.library.Library("aten", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        cuda, cpu = (torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("AutocastCUDA", "AutocastCPU"))
        space, _, name = name.partition("::")
        base, _, overload = name.partition(".")
        if space != "aten" or not cuda and not cpu and base not in RECURRENT:
            continue
        rule = torch.library.fallthrough_kernel
        if cuda or base in RECURRENT:
            rule = cast(getattr(getattr(torch.ops.aten, base), overload or "default"), name)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")  # about the override
            library.impl(name, rule, "AutocastCPU", allow_override=True)
    return library


def cast(op, name):
    """Returns the rule for op."""
    positions = [a.name for a in op._schema.arguments]

    def run(*args, **kwargs):
        low, function = torch.get_autocast_dtype("cpu"), op
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            if name in LOWER or name in FLOAT:
                args, kwargs = converted((args, kwargs), low if name in LOWER else torch.float32)
            elif name in WIDEST:
                wide = any(t.dtype == torch.float32 or t.dtype != low for t in eligible((args, kwargs)))
                args, kwargs = converted((args, kwargs), torch.float32 if wide else low)
            elif is_eligible(args[0]):
                if name in SUMS:
                    at = positions.index("dtype")
                    if len(args) > at:
                        args = (*args[:at], torch.float32 if args[at] is None else args[at], *args[at + 1:])
                    elif kwargs.get("dtype") is None:
                        kwargs = kwargs | {"dtype": torch.float32}
                elif name in NORMS:
                    function, kwargs = getattr(torch.ops.aten.norm, NORMS[name]), kwargs | {"dtype": torch.float32}
                elif name == "binary_cross_entropy":
                    raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.")
                else:  # RECURRENT too, which calls cuDNN on a GPU
                    raise Lacking(f"the virtual GPU does not support {name} in torch.autocast for cuda")
            return function(*args, **kwargs)

    return run


def is_eligible(value):
    """Returns whether value is a tensor that autocast may convert."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float16, torch.bfloat16) and not is_host(value)


def eligible(value):
    """Yields the eligible tensors in value."""
    if is_eligible(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from eligible(v)
    elif isinstance(value, dict):
        yield from eligible(list(value.values()))


def converted(value, dtype):
    """Returns value with its eligible tensors in dtype."""
    if is_eligible(value):
        return value.to(dtype)
    if isinstance(value, (list, tuple)):
        return type(value)([converted(v, dtype) for v in value])
    if isinstance(value, dict):
        return {name: converted(v, dtype) for name, v in value.items()}
    return value
