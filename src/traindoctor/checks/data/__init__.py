from traindoctor.checks.base import Check
from traindoctor.checks.data.batch_not_changing import batch_not_changing
from traindoctor.checks.data.data_not_shuffled import data_not_shuffled
from traindoctor.checks.data.labels_unrelated import labels_unrelated
from traindoctor.checks.data.padding_in_loss import padding_in_loss
from traindoctor.checks.data.ranks_see_same_data import ranks_see_same_data
from traindoctor.checks.data.targets_misaligned import targets_misaligned

CHECKS: tuple[Check, ...] = (
    targets_misaligned,
    batch_not_changing,
    labels_unrelated,
    padding_in_loss,
    data_not_shuffled,
    ranks_see_same_data,
)
