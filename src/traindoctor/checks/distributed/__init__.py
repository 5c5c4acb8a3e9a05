from traindoctor.checks.base import Check
from traindoctor.checks.distributed.gradients_not_synced import gradients_not_synced
from traindoctor.checks.distributed.ranks_diverged import ranks_diverged

CHECKS: tuple[Check, ...] = (ranks_diverged, gradients_not_synced)
