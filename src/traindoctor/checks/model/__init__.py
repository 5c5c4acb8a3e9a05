from traindoctor.checks.base import Check
from traindoctor.checks.model.attention_blind import attention_blind
from traindoctor.checks.model.attention_scale_wrong import attention_scale_wrong
from traindoctor.checks.model.attention_softmax_wrong_dim import attention_softmax_wrong_dim
from traindoctor.checks.model.causal_mask_leak import causal_mask_leak
from traindoctor.checks.model.dead_activations import dead_activations
from traindoctor.checks.model.init_too_large import init_too_large
from traindoctor.checks.model.init_too_small import init_too_small
from traindoctor.checks.model.model_too_small import model_too_small
from traindoctor.checks.model.norm_wrong import norm_wrong
from traindoctor.checks.model.position_missing import position_missing
from traindoctor.checks.model.residual_missing import residual_missing
from traindoctor.checks.model.weights_tied_by_mistake import weights_tied_by_mistake
from traindoctor.checks.model.wrong_train_eval_mode import wrong_train_eval_mode

CHECKS: tuple[Check, ...] = (
    causal_mask_leak,
    attention_blind,
    attention_scale_wrong,
    attention_softmax_wrong_dim,
    position_missing,
    init_too_large,
    init_too_small,
    residual_missing,
    norm_wrong,
    dead_activations,
    wrong_train_eval_mode,
    weights_tied_by_mistake,
    model_too_small,
)
