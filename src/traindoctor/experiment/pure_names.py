"""Names that a rule may use: torch's functions that only compute from what they are given, and Python's containers.

A list of what is known to be harmless, not of what is known to harm. Left out on purpose is whatever draws random numbers
(also `rrelu`, `dropout`, `svd_lowrank`), gives memory as it is found (`empty`), talks to other ranks, changes a setting
of torch, registers a hook, or hands a tensor's memory to somebody else.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from traindoctor.ground.torch_code import is_builtin, is_torchs, is_untouched

# Functions of torch that are also methods of a tensor, most of them with a twin that writes (`add_`).
OPS = frozenset(
    """abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all allclose amax amin aminmax any argmax
    argmin argsort asin asinh atan atan2 atanh baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to
    cat ceil cholesky_inverse cholesky_solve chunk clamp clamp_max clamp_min clip clone concat conj copysign cos cosh
    count_nonzero cross cummax cummin cumprod cumsum diag diag_embed diagonal diff dist div divide dot eq equal erf erfc
    erfinv exp exp2 expm1 fix flatten flip floor floor_divide fmax fmin fmod frac frexp gather ge greater greater_equal
    gt heaviside hypot index_add index_copy index_fill index_select inner inverse isclose isfinite isinf isnan isneginf
    isposinf kron kthvalue ldexp le lerp less less_equal lgamma log log10 log1p log2 logaddexp logical_and logical_not
    logical_or logical_xor logsumexp lt masked_fill masked_select matmul matrix_exp matrix_power max maximum mean median
    min minimum mm movedim mul multiply mv nan_to_num nanmean nansum narrow ne neg negative nonzero norm not_equal numel
    outer permute pow prod quantile ravel reciprocal relu remainder renorm repeat_interleave reshape roll round rsqrt
    scatter scatter_add select sgn sigmoid sign signbit sin sinc sinh softmax sort split sqrt square squeeze std sub
    subtract sum swapaxes swapdims t take tan tanh tensor_split tile topk trace transpose tril triu true_divide trunc
    unbind unflatten unsqueeze var vdot where xlogy zero""".split()
)
# Without a method of the same name, or with a class behind them.
TORCH = OPS | frozenset(
    """arange as_tensor block_diag cartesian_prod cdist clone cov einsum enable_grad eye finfo full full_like
    iinfo is_complex is_floating_point is_tensor linspace logspace no_grad ones ones_like scalar_tensor
    stack hstack vstack tensor tensordot zeros zeros_like Tensor""".split()
)
FOREACH = frozenset(
    """abs add addcdiv addcmul ceil clamp_max clamp_min copy cos cosh div erf exp expm1 floor frac lerp log log10 log1p
    log2 max maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
    zero""".split()
)
LINALG = frozenset(
    """cholesky cond cross det diagonal eigh eigvalsh inv inv_ex lstsq matmul matrix_exp matrix_norm matrix_power
    matrix_rank multi_dot norm pinv qr slogdet solve solve_triangular svd svdvals vecdot vector_norm""".split()
)
FUNCTIONAL = frozenset(
    "normalize pad relu relu6 hardtanh softplus softsign logsigmoid threshold".split()
)
# By the module's full name.
MODULES = {
    "torch": TORCH | {f"_foreach_{op}" for op in FOREACH} | {f"_foreach_{op}_" for op in FOREACH},
    "torch.linalg": LINALG,
    "torch.nn.functional": FUNCTIONAL,
    "math": frozenset(vars(math)),
}

# Of a tensor only: its properties, conversions that copy or look, writes into itself.
TENSOR = (
    OPS
    | {f"{op}_" for op in OPS}
    | frozenset(
        """H T bfloat16 bool contiguous copy_ cpu data detach detach_ device dim double dtype element_size expand
        expand_as fill_ fill_diagonal_ float grad half imag int is_complex is_contiguous is_cpu is_cuda is_floating_point
        is_leaf is_mps is_sparse item layout long mH mT nbytes ndim ndimension nelement new_full new_ones new_tensor
        new_zeros real repeat requires_grad reshape_as shape size stride to tolist type type_as view view_as""".split()
    )
)
# Of numbers, strings, lists, tuples, dicts, sets and queues; what they write to is the rule's own.
CONTAINERS = frozenset(
    """add append appendleft clear copy count discard endswith extend extendleft format get index insert is_integer items
    join keys lower pop popitem popleft remove replace reverse rotate setdefault sort split startswith strip union update
    upper values""".split()
)
BUILTINS = frozenset(
    """abs all any bool complex dict divmod enumerate filter float frozenset int isinstance iter len list map max
    min next pow range reversed round set slice sorted str sum super tuple zip
    ArithmeticError AssertionError AttributeError Exception FloatingPointError IndexError KeyError NotImplementedError
    OverflowError RuntimeError StopIteration TypeError ValueError ZeroDivisionError""".split()
)


def is_pure(module: str, name: str, value: Any) -> bool:
    """Whether `module.name` is in the list, and `value` is what torch has under that name."""
    if name not in MODULES.get(module, ()):
        return False
    if isinstance(value, type):
        return value.__module__.partition(".")[0] == "torch"
    return is_untouched(value)


def is_listed(value: Any) -> bool:
    """The same of a function that was imported by its name: `from torch import zeros_like`."""
    if not (is_builtin(value) or is_torchs(value) or isinstance(value, type)):
        return False
    name = getattr(value, "__name__", "")
    return any(
        is_pure(module, name, value) and vars(sys.modules[module]).get(name) is value
        for module in MODULES
    )
