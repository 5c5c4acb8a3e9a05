from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged
from traindoctor.checks.gradient.clip_ineffective import clip_ineffective
from traindoctor.checks.gradient.clip_too_tight import EXAM, clip_too_tight
from traindoctor.checks.model.init_too_large import init_too_large
from traindoctor.diagnosis.verdict import rank
from traindoctor.record import ExamResult, Record, make_record

NAN = float("nan")


def experiment(wider: float) -> dict:
    def one(loss: float) -> dict:
        return {"loss": loss, "blown": False, "losses": []}

    return {
        "start": 100,
        "steps": 20,
        "before": 4.0,
        "control": one(3.95),
        "permuted": [one(3.95), one(3.951)],
        "variants": {"limit*10": one(wider), "limit*100": one(wider)},
        "fidelity": 0.0,
    }


def record(
    norm: float, limit: float, exams=(), ratio: float = 1e-3, betas=None, scale: float = 0.0
) -> Record:
    """`scale`: a scaler's factor that is still in the gradients when they are clipped."""
    scaled = {"clip.scaled": [1.0] * 30, "scaler.scale": [scale] * 30} if scale else {}
    return make_record(
        {
            "grad.norm": [norm] * 30,
            "clip.limit": [limit] * 30,
            "update.ratio": [ratio] * 5,
            "clip.calls": [1.0] * 30,
            "clip.in_time": [1.0] * 30,
            "clip.coverage": [1.0] * 30,
            **scaled,
        },
        facts={"optimizer.groups": [{"class": "SGD", "groups": [{"betas": betas}]}]},
        exams=exams or {},
    )


def test_fires_when_a_wider_limit_learns_faster() -> None:
    found = clip_too_tight(record(2.2, 1e-3, {EXAM: experiment(3.6)}))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "2200 times shorter" in found.summary


def test_silent_where_next_to_nothing_is_left_of_the_loss() -> None:
    for last, kind in ((0.01, Clear), (1.3, Finding)):
        cut = record(84.0, 1.0, {EXAM: experiment(3.6)})
        losses = [1.4 + (last - 1.4) * k / 59 for k in range(50)] + [last] * 10
        cut._series["loss.root"] = make_record({"loss.root": losses})["loss.root"]
        assert isinstance(clip_too_tight(cut), kind)


def test_silent_where_clipping_bites_on_every_step_a_little() -> None:
    assert isinstance(clip_too_tight(record(2.4, 1.0)), Clear)


def test_silent_where_the_optimizer_undoes_it() -> None:
    assert isinstance(clip_too_tight(record(40.0, 1.0, {EXAM: experiment(3.95)})), Clear)


def test_asks_before_it_accuses() -> None:
    outcome = clip_too_tight(record(2.2, 1e-3))
    assert isinstance(outcome, NotJudged)
    assert outcome.wants == EXAM


def test_without_an_experiment_only_the_extreme_is_likely() -> None:
    refused = [ExamResult(EXAM, 0, "refused", {}, "no tape")]
    found = clip_too_tight(record(2.2, 1e-3, refused, ratio=2e-5))
    assert isinstance(found, Finding)
    assert found.status == "likely"
    adam = record(2.2, 1e-3, refused, ratio=2e-5, betas=[0.9, 0.999])
    assert isinstance(clip_too_tight(adam), NotJudged)


def test_clipping_by_hand_is_judged_like_torchs() -> None:
    def arrival(kind: str | None, limit: float) -> dict:
        return {"gradient_arrival": {"by_hand": kind, "value": limit, "norm": 2.2, "steps": [0, 1]}}

    found = clip_too_tight(record(2.2, NAN, arrival("clip", 1e-3) | {EXAM: experiment(3.6)}))
    assert isinstance(found, Finding)
    assert "by hand" in found.summary
    rows = clip_too_tight(record(2.2, NAN, arrival("unit clip", 1e-3) | {EXAM: experiment(3.6)}))
    assert isinstance(rows, Finding)
    assert "row" in rows.summary
    assert isinstance(clip_too_tight(record(2.2, NAN, arrival("clip", 1.0))), Clear)
    assert isinstance(clip_too_tight(record(2.2, NAN, arrival(None, NAN))), NotApplicable)
    asked = clip_too_tight(record(2.2, NAN))
    assert isinstance(asked, NotJudged)
    assert asked.wants == "gradient_arrival"


def test_a_usual_limit_after_a_start_far_too_large_is_not_the_root() -> None:
    start = {"loss_ratio": 132.0, "logits_std": 102.0, "ln_classes": 6.4}
    exams = {EXAM: experiment(3.6), "init_scale": start}
    for limit, first in ((0.5, "init-too-large"), (1e-3, "clip-too-tight")):
        seen = record(132 * limit, limit, exams)
        found = [clip_too_tight(seen), init_too_large(seen)]
        assert rank(one for one in found if isinstance(one, Finding))[0].finding.cause == first


def test_clipped_before_unscaling_is_too_tight_for_sgd_and_without_effect_for_adam() -> None:
    sgd = record(70_000.0, 1.0, scale=65536.0)
    adam = record(70_000.0, 1.0, scale=65536.0, betas=(0.9, 0.999))
    found = clip_too_tight(sgd)
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "70000 times too short" in found.summary
    assert isinstance(clip_ineffective(sgd), Clear)
    assert not isinstance(clip_too_tight(adam), Finding)
    assert isinstance(clip_ineffective(adam), Finding)
