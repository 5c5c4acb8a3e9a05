from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.model.attention_softmax_wrong_dim import attention_softmax_wrong_dim
from traindoctor.record import make_record


def judge(off: float, at_product: float, noise: float = 1e-7) -> Outcome:
    row = {"off": off, "off_at_product": at_product, "noise": noise, "dim": 0, "module": "attn"}
    return attention_softmax_wrong_dim(
        make_record(exams={"softmax_axis": {"attentions": [row | {"line": None}], "built_in": 0}})
    )


def test_fires_on_weights_that_do_not_sum_to_one() -> None:
    found = judge(0.6, 0.6)
    assert isinstance(found, Finding)
    assert found.where == "attn"


def test_silent_on_sound_half_precision_renormalised_and_masked_weights() -> None:
    assert isinstance(judge(2e-7, 2e-7), Clear)
    assert isinstance(judge(0.004, 0.004, noise=0.0078), Clear)
    assert isinstance(judge(0.6, 1e-7), Clear)  # normalised once more
    assert isinstance(judge(1e-7, 0.5), Clear)  # masked after the softmax: a leak, not an axis
