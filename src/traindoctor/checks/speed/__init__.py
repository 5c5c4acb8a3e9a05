from traindoctor.checks.base import Check
from traindoctor.checks.speed.input_pipeline_bound import input_pipeline_bound
from traindoctor.checks.speed.memory_leak import memory_leak
from traindoctor.checks.speed.python_loop_per_example import python_loop_per_example
from traindoctor.checks.speed.sync_every_step import sync_every_step

CHECKS: tuple[Check, ...] = (
    input_pipeline_bound,
    python_loop_per_example,
    sync_every_step,
    memory_leak,
)
