from traindoctor.checks.base import Check
from traindoctor.checks.loss.all_targets_ignored import all_targets_ignored
from traindoctor.checks.loss.double_softmax import double_softmax
from traindoctor.checks.loss.loss_gradient_mismatch import loss_gradient_mismatch
from traindoctor.checks.loss.loss_scale_wrong import loss_scale_wrong
from traindoctor.checks.loss.unstable_softmax import unstable_softmax

CHECKS: tuple[Check, ...] = (
    loss_gradient_mismatch,
    loss_scale_wrong,
    double_softmax,
    all_targets_ignored,
    unstable_softmax,
)
