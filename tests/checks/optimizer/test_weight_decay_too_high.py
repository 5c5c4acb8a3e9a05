from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.optimizer.weight_decay_too_high import EXAMS, weight_decay_too_high
from traindoctor.record import Record, make_record


def experiment(without: float) -> dict:
    def one(loss: float) -> dict:
        return {"loss": loss, "blown": False, "losses": []}

    return {
        "start": 100,
        "steps": 20,
        "before": 3.3,
        "control": one(3.2),
        "permuted": [one(3.204), one(3.197)],
        "variants": {"no decay": one(without)},
        "fidelity": 0.0,
    }


def record(
    decay: float, ratio: float, without=(), *, by_hand: float | None = 0.0, losses=()
) -> Record:
    """`by_hand`: the ratio of decay that the script does itself; None: not asked yet."""
    outside = {"tensors": 9 if by_hand else 0, "factor": 0.99, "ratio": by_hand}
    asked = {} if by_hand is None else {"outside_changes": outside}
    return make_record(
        {"decay.ratio": [ratio] * 4, **({"loss.root": list(losses)} if losses else {})},
        facts={"optimizer.groups": [{"class": "Adam", "groups": [{"weight_decay": decay}]}]},
        exams={name: experiment(loss) for name, loss in zip(EXAMS, without)} | asked,
    )


def test_fires_when_the_run_learns_without_it() -> None:
    found = weight_decay_too_high(record(0.1, 3.0, [3.07]))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "Adam" in found.summary


def test_asks_late_first_and_then_from_the_start() -> None:
    first = weight_decay_too_high(record(0.1, 3.0))
    then = weight_decay_too_high(record(0.1, 3.0, [3.199]))
    assert isinstance(first, NotJudged)
    assert isinstance(then, NotJudged)
    assert (first.wants, then.wants) == EXAMS


def test_silent_when_decay_is_weak_absent_or_harmless() -> None:
    assert isinstance(weight_decay_too_high(record(0.01, 0.02)), Clear)
    assert isinstance(weight_decay_too_high(record(0.0, 0.0)), Clear)
    assert isinstance(weight_decay_too_high(record(0.1, 0.9, [3.199, 3.19])), Clear)


def test_silent_when_hardly_any_loss_is_left() -> None:
    stuck, solved = ([3.3 * end**k for k in range(40)] for end in (0.995, 0.9))
    assert isinstance(weight_decay_too_high(record(0.5, 0.9, [3.07], losses=stuck)), Finding)
    assert isinstance(weight_decay_too_high(record(0.5, 0.9, [3.07], losses=solved)), Clear)


def test_decay_by_hand_counts_as_decay() -> None:
    found = weight_decay_too_high(record(0.0, 0.0, [3.07], by_hand=4.0))
    assert isinstance(found, Finding)
    assert "Hand-written decay" in found.summary
    assert isinstance(weight_decay_too_high(record(0.0, 0.0, by_hand=0.1)), Clear)
    open_ = weight_decay_too_high(record(0.0, 0.0, by_hand=None))
    assert isinstance(open_, NotJudged)
    assert open_.wants == "outside_changes"


def test_an_optimizer_that_may_call_its_decay_anything_is_not_cleared() -> None:
    facts = {"optimizer.groups": [{"class": "Mine", "groups": [{"lr": 0.1, "shrink": 0.1}]}]}
    exams = {"outside_changes": {"tensors": 0}}
    outcome = weight_decay_too_high(
        make_record({"loss.token": [3.2] * 20}, facts=facts, exams=exams)
    )
    assert isinstance(outcome, NotJudged)
    assert "its own rule" in outcome.reason
