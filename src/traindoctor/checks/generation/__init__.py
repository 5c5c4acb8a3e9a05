from traindoctor.checks.base import Check
from traindoctor.checks.generation.greedy_repetition import greedy_repetition
from traindoctor.checks.generation.undertrained import undertrained

CHECKS: tuple[Check, ...] = (greedy_repetition, undertrained)
