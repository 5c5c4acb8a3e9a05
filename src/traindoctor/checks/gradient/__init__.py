from traindoctor.checks.base import Check
from traindoctor.checks.gradient.clip_ineffective import clip_ineffective
from traindoctor.checks.gradient.clip_too_tight import clip_too_tight

CHECKS: tuple[Check, ...] = (
    clip_too_tight,
    clip_ineffective,
)
