"""What the shape of a curve is called: the whole sentence, for every shape."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from traindoctor.logs import signs
from traindoctor.record import Record, Series, make_record

STEPS = np.arange(200)
# Scatter of batches, the same on every machine: 0.05 at most, without a pattern over neighbours.
NOISE = ((STEPS * STEPS * 7919 + STEPS * 104729) % 101 - 50) / 1000
FALLING = 2 + 4 * np.exp(-STEPS / 80) + NOISE
NAN = float("nan")


def where(begin: int, end: int) -> NDArray[np.bool_]:
    return (begin <= STEPS) & (end > STEPS)


SHAPES: dict[str, tuple[NDArray[np.float64], list[str]]] = {
    "falling": (FALLING, ["the loss falls from 5.95 to 2.371"]),
    "flat": (6.9 + NOISE, ["the loss does not fall: 6.885 at first, 6.911 at the end"]),
    "rising": (
        3 + STEPS / 50 + NOISE,
        ["the loss rises: 2.95 at first, 6.792 at the end"],
    ),
    "NaN at the end": (
        np.where(where(150, 200), NAN, FALLING),
        ["the loss is NaN or infinite from step 150 to the end (step 199)"],
    ),
    "NaN in the middle and recovered": (
        np.where(where(100, 110), NAN, FALLING),
        [
            "the loss is NaN or infinite at 10 of 200 points (steps 100 to 109) and finite afterwards",
            "the loss falls from 5.95 to 2.369",
        ],
    ),
    "spike and recovery": (
        FALLING + 4.0 * where(120, 126),
        [
            "the loss jumps from 3.012 to 6.911 at step 121 and is back by step 126",
            "the loss falls from 5.95 to 2.371",
        ],
    ),
    "plateau": (
        3.3 + 3 * np.exp(-STEPS / 15) + NOISE,
        ["the loss falls from 6.25 to 3.311 by step 69 and stays there"],
    ),
    "divergence": (
        np.where(
            where(0, 60), 3.5 + 3 * np.exp(-STEPS / 20), 3.6 + 5 - 5 * np.exp((60 - STEPS) / 30)
        )
        + NOISE,
        ["the loss falls from 6.45 to 3.751 (step 51) and rises to 8.543 at the end"],
    ),
    "oscillating": (
        4 + 0.8 * np.sin(STEPS / 5) + NOISE,
        [
            "the loss swings up and down 13 times, between about 3.22 and 4.78; it is at 3.95 at first and at 4.161 at "
            "the end"
        ],
    ),
    "too short": (
        np.array([5.0, 4.0, 3.0, 2.5, 2.0]),
        ["5 points of the loss are too few to tell its course: 20 are needed"],
    ),
}


def said(record: Record) -> list[str]:
    return [sign.sentence for sign in signs(record)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_sentence_of_a_shape(shape: str) -> None:
    values, sentences = SHAPES[shape]
    assert said(make_record({"loss.root": values.tolist()})) == sentences


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_shape_does_not_depend_on_the_unit(shape: str, factor: float) -> None:
    values, _ = SHAPES[shape]
    plain = signs(make_record({"loss.root": values.tolist()}))
    scaled = signs(make_record({"loss.root": (factor * values).tolist()}))
    assert [s.name for s in scaled] == [s.name for s in plain]
    assert [s.since_step for s in scaled] == [s.since_step for s in plain]


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_the_log(shape: str) -> None:
    values, _ = SHAPES[shape]
    every = np.arange(len(values)) * 50
    record = Record(series={"loss.root": Series("loss.root", every, values)})
    plain = signs(make_record({"loss.root": values.tolist()}))
    for sparse, dense in zip(signs(record), plain, strict=True):
        assert sparse.since_step == (None if dense.since_step is None else 50 * dense.since_step)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_has_no_shape(seed: int) -> None:
    """The look-alike of jumps, swings and turns: a loss whose batches scatter by a third of its fall."""
    rng = np.random.default_rng(seed)
    flat = signs(make_record({"loss.root": (4 + rng.normal(0, 0.5, 200)).tolist()}))
    assert [s.name for s in flat] == ["loss-flat"]
    falls = 2.5 + 1.5 * np.exp(-STEPS / 60) + rng.normal(0, 0.5, 200)
    names = [s.name for s in signs(make_record({"loss.root": falls.tolist()}))]
    assert names in (["loss-falls"], ["loss-plateau"])


def test_a_divergence_names_the_warm_up_before_it() -> None:
    loss, [sentence] = SHAPES["divergence"]
    rate = np.minimum(1, (STEPS + 1) / 60) * 0.01
    record = make_record({"loss.root": loss.tolist(), "optim.lr": rate.tolist()})
    assert said(record) == [f"{sentence}; the learning rate rises to 0.01 until step 59"]
    assert signs(record)[0].grave  # it ends above its start


def hugging_face(every: int, norms: bool = True) -> Record:
    """As a Trainer logs a loss that is NaN from step 200 on, at every so many steps."""
    steps = np.arange(every, 401, every)
    values = np.where(steps < 200, 3 - steps / 250, 0.0)
    series = {"loss.root": Series("loss.root", steps, values)}
    if norms:
        series["grad.norm"] = Series("grad.norm", steps, np.where(steps < 200, 1.5, NAN))
    return Record(series=series)


def test_the_zero_loss_of_a_trainer_is_a_nan() -> None:
    [sign] = signs(hugging_face(every=10))
    assert sign.sentence == (
        "the loss is logged as 0 and the gradient norm is NaN from step 200 to the end: so the Hugging Face Trainer logs a "
        "loss that is NaN; the run broke after step 190 and no later than step 200"
    )
    assert (sign.name, sign.since_step, sign.grave) == ("loss-not-finite", 200, True)
    assert signs(hugging_face(every=200))[0].sentence.endswith("broke no later than step 200")
    # It broke within a window: the mean that is logged for that is not 0 yet, the norm is NaN.
    early = hugging_face(every=10)
    early["loss.root"].values[19] = 1.1
    [sign] = signs(early)
    assert "from step 210 to the end" in sign.sentence
    assert sign.sentence.endswith("the run broke after step 190 and no later than step 200")
    assert sign.since_step == 200


def test_a_zero_loss_alone_may_be_either() -> None:
    [sign] = signs(hugging_face(every=10, norms=False))
    assert sign.sentence == (
        "the loss is exactly 0 from step 200 to the end: that is not learned; a logger that leaves NaN out writes it, and "
        "so does a loss without any target"
    )
    # A loss that is learned to nearly nothing is not.
    solved = (3 * 0.9**STEPS + 1e-5).tolist()
    assert [s.name for s in signs(make_record({"loss.root": solved}))][-1] == "loss-falls"


@pytest.mark.parametrize("shape", ["flat", "plateau"])
def test_a_level_is_named_only_where_it_is_known(shape: str) -> None:
    values, [sentence] = SHAPES[shape]
    level = values[-20:].mean()
    size = round(math.exp(level))
    series = {"loss.root": values.tolist()}
    assert said(make_record(series)) == [sentence]
    known = make_record(series, facts={"imported": {"vocab_size": size}})
    assert said(known) == [f"{sentence}, the level of a blind guess among {size} tokens ({math.log(size):.4g})"]  # fmt: skip
    assert signs(known)[0].grave
    other = make_record(series, facts={"imported": {"vocab_size": 3 * size}})
    assert said(other) == [sentence]
    counted = make_record({**series, "ladder.unigram": [level] * 200})
    assert said(counted) == [f"{sentence}, the level of the tokens' frequencies ({level:.4g})"]


@pytest.mark.parametrize(
    ("series", "sentence"),
    [
        ({"optim.lr": [0.0] * 40}, "the learning rate is 0 at every logged step: nothing can be learned"),
        ({"optim.lr": [1e-3] * 40}, "the learning rate is 0.001 at every logged step"),
        ({"optim.lr": [1e-3] * 40 + [0.0] * 20}, "the learning rate is 0 from step 40 to the end"),
        (
            {"grad.norm": [0.0] * 40},
            "the gradient norm is 0 at every logged step: nothing reaches the weights",
        ),
        (
            {"grad.norm": [1.0] * 30 + [NAN] * 10},
            "the gradient norm is NaN or infinite at 10 of 40 points, first at step 30, and at the end",
        ),
        (
            {"grad.norm": [1.0] * 30 + [math.inf] + [1.0] * 10},
            "the gradient norm is NaN or infinite at 1 of 41 points, first at step 30",
        ),
    ],
)  # fmt: skip
def test_rates_and_norms(series: dict[str, list[float]], sentence: str) -> None:
    found = said(make_record(series))
    assert set(found) == {sentence, "the log has no training loss"}
    calm = {"optim.lr": [1e-3 * (1 - k / 40) for k in range(41)], "grad.norm": [1.0] * 41}
    assert said(make_record(calm)) == ["the log has no training loss"]


def test_a_validation_loss_alone_has_a_course() -> None:
    found = said(make_record({"loss.eval": FALLING.tolist()}))
    assert found == ["the log has no training loss", "the validation loss falls from 5.95 to 2.371"]


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "too short"])
def test_a_long_log_is_told_as_a_short_one(shape: str) -> None:
    """A million points: the same shape, and no more work than for some thousand."""
    values, _ = SHAPES[shape]
    long = make_record({"loss.root": np.repeat(values, 5000).tolist()})
    names = [sign.name for sign in signs(make_record({"loss.root": values.tolist()}))]
    assert [sign.name for sign in signs(long)] == names
