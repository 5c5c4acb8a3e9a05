from traindoctor.checks.base import Check
from traindoctor.checks.gradient.backward_incorrect import backward_incorrect
from traindoctor.checks.gradient.clip_ineffective import clip_ineffective
from traindoctor.checks.gradient.clip_too_tight import clip_too_tight
from traindoctor.checks.gradient.gradient_not_flowing import gradient_not_flowing
from traindoctor.checks.gradient.gradients_exploding import gradients_exploding
from traindoctor.checks.gradient.gradients_vanishing import gradients_vanishing
from traindoctor.checks.gradient.missing_zero_grad import missing_zero_grad

CHECKS: tuple[Check, ...] = (
    missing_zero_grad,
    backward_incorrect,
    gradient_not_flowing,
    gradients_exploding,
    gradients_vanishing,
    clip_too_tight,
    clip_ineffective,
)
