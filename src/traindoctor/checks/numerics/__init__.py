from traindoctor.checks.base import Check
from traindoctor.checks.numerics.fp16_overflow import fp16_overflow
from traindoctor.checks.numerics.fp16_underflow import fp16_underflow
from traindoctor.checks.numerics.low_precision_updates_lost import low_precision_updates_lost
from traindoctor.checks.numerics.nan_from_op import nan_from_op

CHECKS: tuple[Check, ...] = (
    fp16_overflow,
    fp16_underflow,
    low_precision_updates_lost,
    nan_from_op,
)
