from traindoctor.checks.base import Check
from traindoctor.checks.generalisation.overfitting import overfitting

CHECKS: tuple[Check, ...] = (overfitting,)
