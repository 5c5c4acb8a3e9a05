from traindoctor.checks.base import Check
from traindoctor.checks.data.ranks_see_same_data import ranks_see_same_data

CHECKS: tuple[Check, ...] = (ranks_see_same_data,)
