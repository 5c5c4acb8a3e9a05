"""What scores are divided by on their way to a divergence, by its values: however it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.exams.loss_coefficient import loss_coefficient
from traindoctor.experiment.patient import Patient

WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "divided": lambda scores: F.log_softmax(scores / 4.0, dim=-1),
    "a factor": lambda scores: (0.25 * scores).log_softmax(-1),
    "in two steps, turned": lambda scores: (scores.div(2).T / 2).T.log_softmax(-1),
    "in place": lambda scores: scores.clone().div_(4).log_softmax(-1),
    "a method of the softmax": lambda scores: nn.LogSoftmax(-1)(scores * 0.25),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("way", WAYS)
def test_the_temperature_is_read_back(way: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 10), torch.randn(8, 6)
    soft, hard = torch.randn(8, 10).softmax(-1), torch.randint(10, (8,))

    def loss() -> Tensor:
        scores = model(x)
        divergence = F.kl_div(WAYS[way](scores), soft, reduction="mean")
        return 0.9 * 16 * divergence + 0.1 * F.cross_entropy(scores, hard)

    patient = Patient()
    patient.add_tape(tape_step(loss, model))
    groups = loss_coefficient(patient).values["groups"]
    found = next(group for group in groups if group["kind"] == "kl_div")
    assert found["temperature"] == pytest.approx(4.0)
    assert found["coefficient"] == pytest.approx(14.4)
    assert found["over_classes"] == 10
