from traindoctor.checks.base import Check

CHECKS: tuple[Check, ...] = ()
