"""What a torch function computes, however it is spelled, and which kinds of functions are alike in some respect.

torch reports `x + y` as "add", `x += y` as "add_", `1 / x` as "__rdiv__". Each is an Operator of a kind, which bears
the name of its plainest spelling; a group is a set of kinds. Nobody else needs to know the spellings.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class Operator(NamedTuple):
    """What the name of a function tells."""

    kind: str
    in_place: bool = False
    """It writes to its first argument."""
    reflected: bool = False
    """Its operands stand the other way round: `1 / x` is a function of (x, 1)."""


# Each kind and its other spellings. A function that stands nowhere here is a kind of its own.
SPELLINGS = """
sub subtract | mul multiply | div divide true_divide | neg negative | pow float_power | trunc fix
eq __eq__ | ne not_equal | lt less | le less_equal | gt greater | ge greater_equal | clamp clip clamp_min
matmul mm bmm linalg_matmul | softmax _softmax special_softmax | log_softmax _log_softmax special_log_softmax
logsumexp special_logsumexp | threshold _threshold | index __getitem__ | cat concat concatenate
dropout alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d
reshape view flatten unflatten ravel squeeze unsqueeze view_as reshape_as | expand expand_as broadcast_to
transpose T mT t permute movedim moveaxis swapaxes swapdims | split chunk unbind tensor_split split_with_sizes | select narrow
clone contiguous alias | to type type_as | float double | half bfloat16 | detach data
repeat repeat_interleave tile
"""
REFLECTED = "rsub __rsub__ __rdiv__ __rpow__ __rmatmul__"
# Those whose name does not end as in-place functions do.
IN_PLACE = "__setitem__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__"

KINDS = [words.split() for words in SPELLINGS.strip().replace("\n", "|").split("|")]
OPERATORS = {
    **{name: Operator(kind) for kind, *names in KINDS for name in names},
    **{name: Operator(name.strip("_")[1:], reflected=True) for name in REFLECTED.split()},
    **{name: Operator(name.strip("_"), in_place=True) for name in IN_PLACE.split()},
}


@cache
def operator_of(name: str) -> Operator:
    """Of the function that torch reports by this name."""
    if name.endswith("_") and not name.endswith("__"):
        return operator_of(name[:-1])._replace(in_place=True)
    return OPERATORS.get(name, Operator(name))


def group(kinds: str) -> frozenset[str]:
    return frozenset(kinds.split())


# The same numbers in another shape, order of axes or dtype; or some of them, or several times; or with the other sign,
# or without their gradient.
CASTS = group("float half")
REARRANGING = CASTS | group("reshape transpose clone to expand split select")
PASSING_ON = REARRANGING | group("index repeat")
RETRACED = REARRANGING | group("detach neg")

SUMS = group("add sub")
# A gated cell gives (1 - z) n + z h: a sum with what it held before.
JOINING = group("add gru_cell")
SCALING = group("mul div")
WEIGHTING_TERMS = SCALING | group("neg")
SQUARES = group("square pow")
DISTANCES = SQUARES | group("abs")
ROOTS = group("sqrt rsqrt")
PRODUCTS = group("matmul baddbmm einsum")
ABOVE = group("gt ge")
COMPARISONS = ABOVE | group("eq ne lt le")
ROUNDING = group("round floor ceil trunc")
STEPS = ROUNDING | group("sign sgn heaviside")
CHOOSING = group("argmax argmin argsort one_hot long int bool topk multinomial bernoulli tensor")
STOPPING_GRADIENTS = STEPS | COMPARISONS | CHOOSING

ACTIVATIONS = group("relu gelu silu leaky_relu elu mish tanh relu6 selu hardswish glu celu")
# Only these are exactly 0 where they do not fire.
CUTTING = group("relu relu6 threshold hardtanh hardswish")
ATTENTION_CALLS = group("scaled_dot_product_attention multi_head_attention_forward")
# A way through one of these is no way around the layer.
BLOCKING = ACTIVATIONS | ATTENTION_CALLS | group("softmax")
CONVOLUTIONS = group("conv1d conv2d conv3d")
TAKING_WEIGHTS = CONVOLUTIONS | group("linear matmul addmm einsum multi_head_attention_forward")
SHAPE_NORMS = group("layer_norm rms_norm")
GROUP_NORMS = group("group_norm instance_norm")
LAYERS = ATTENTION_CALLS | SHAPE_NORMS | group("linear addmm conv1d embedding batch_norm add")
MOMENTS = group("var std var_mean std_mean mean")
UNDER_ROOT = group("add clamp to float")
POOLS = group("mean sum adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d")

# Between scores and softmax: the numbers that are left stay what they are.
MASKS = SUMS | group("masked_fill where clamp nan_to_num")
# Between softmax and values; a listener hears less of it, and the ends, to be quick.
ON_WEIGHTS = PASSING_ON | SCALING | MASKS | group("dropout")
DROPPING = group("dropout scaled_dot_product_attention")
OF_ATTENTION = REARRANGING | PRODUCTS | DROPPING | group("softmax masked_fill nan_to_num mul")
# Infinities of these are meant as a mask, or only passed on; or they come at 0 in every dtype.
FILLING = group("masked_fill index_fill setitem fill full full_like where triu tril")
WITH_INFINITY = REARRANGING - CASTS | FILLING | SUMS | group("float index zeros_like cat stack mul")
POLES = group("log log2 div rsqrt reciprocal scaled_dot_product_attention")
INFINITE_AT_ZERO = FILLING | POLES

EMBEDDINGS = group("embedding embedding_bag")
TABLES = group("embedding index index_select")
PICKING = group("index gather take_along_dim index_select take")
PICKING_PLACES = PICKING | group("masked_select split select")
SELECTING = EMBEDDINGS | PICKING | group("one_hot")
# A matrix is only turned, or its rows are looked up.
NO_PRODUCT = group("embedding transpose")

# The target names a class, or says yes or no to each of several labels, or is a number.
CLASS_LOSSES = group("cross_entropy nll_loss")
BINARY_LOSSES = group("binary_cross_entropy binary_cross_entropy_with_logits")
NUMBER_LOSSES = group("mse_loss l1_loss smooth_l1_loss huber_loss")
LOSSES = CLASS_LOSSES | BINARY_LOSSES | NUMBER_LOSSES | group("kl_div")
COMPARING_NUMBERS = NUMBER_LOSSES | group("sub")
# Losses written by hand: log(softmax(x) + eps), or x less its maximum on the way to a softmax; what is picked of them
# is on the way to a mask that says whether it counts.
SOFTMAXES = group("softmax log_softmax")
LOG_NORMALISING = SOFTMAXES | group("logsumexp")
NORMALISING = LOG_NORMALISING | group("exp logaddexp")
AFTER_SOFTMAX = group("log clamp add")
TO_SOFTMAX = RETRACED | SCALING | group("sub index")
TO_MASK = RETRACED | group("sub log")
# A step that differentiates (a penalty on gradients, forces): torch.autograd.grad(outputs, inputs, create_graph=True).
SLOPES = group("grad")
# How losses are spread over the examples.
OF_THE_SPREAD = group("max amax min amin median nanmedian quantile kthvalue topk sort std var")
