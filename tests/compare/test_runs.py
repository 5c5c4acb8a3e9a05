"""Two recorded runs side by side: what is said of them, and what is not claimed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_runs import make_corrupt_run, make_run
from traindoctor.compare.run_differences import curve_rows
from traindoctor.compare.run_losses import losses, noise_of, same_data
from traindoctor.compare.run_rows import Row, said_pair
from traindoctor.compare.run_scripts import MOST_LINES, scripts
from traindoctor.compare.run_settings import environment_rows, setting_rows
from traindoctor.compare.runs import RunComparison, compare_runs
from traindoctor.errors import RecordError
from traindoctor.logs import read_log
from traindoctor.record import Record, make_record, open_record
from warm_python import warm_run

SICK = """
import os
os.chdir("elsewhere")  # before torch is there: the script is found all the same
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
text = torch.randint(12, (64, 9), generator=torch.Generator().manual_seed(1)).cumsum(1) % 12
model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 12))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
token = "hunter2x"
for step in range(120):
    rows = text[torch.randint(64, (16,))]
    logits = model(rows[:, :-1]).flatten(0, 1)
    loss = F.cross_entropy(logits, rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
"""
FIXED = SICK.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The script without `zero_grad` and with it, through the real runner."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "elsewhere").mkdir()
    for name, text in (("sick", SICK), ("fixed", FIXED)):
        (folder / f"{name}.py").write_text(text)
        command = ["-m", "traindoctor", "run", "--quiet", "--budget", "50", "--out", name]
        assert warm_run([*command, f"{name}.py"], folder=folder).returncode == 0
    return folder / "sick", folder / "fixed"


def compared(pair: Sequence[Path]) -> RunComparison:
    return compare_runs(open_record(pair[0]), open_record(pair[1]), titles=("sick", "fixed"))


def test_a_fix_is_told_as_one(pair: tuple[Path, Path]) -> None:
    found = compared(pair)
    assert found.headline.startswith(
        "B fixes missing-zero-grad: sick -> healthy; the loss of B is "
    )
    assert found.different
    assert found.losses is not None
    assert found.losses.certain
    assert found.losses.b < found.losses.a
    assert same_data(*map(open_record, pair)) == ("same", None)
    rows = {row.name: row for row in found.laws}
    law = rows["missing-zero-grad"]
    assert (law.a, law.b) == ("broken (confirmed)", "holds")
    assert law.note == "gradients of earlier steps do not leak into this one"
    assert not [row for row in found.settings if row.differs]
    assert not any("before the first step" in remark for remark in found.remarks)


def test_the_change_of_the_script_is_shown_and_no_secret_is(pair: tuple[Path, Path]) -> None:
    found = compared(pair)
    diff = found.script.diff
    assert [line for line in diff[2:] if line[0] in "+-"] == ["+    optimizer.zero_grad()"]
    assert diff[:2] == ("--- A: sick.py", "+++ B: fixed.py")
    assert len(diff) == 9  # two heads, a place, the line, and three lines before and two behind it
    for folder in pair:
        fact = open_record(folder).fact("script.text")
        assert 'token = "[redacted]"' in fact["text"]
        assert "hunter2" not in json.dumps(open_record(folder).facts)


def test_the_other_way_round_it_is_worse(pair: tuple[Path, Path]) -> None:
    headline = compared(pair[::-1]).headline
    assert headline.startswith("B is worse: missing-zero-grad (confirmed), and A is healthy; the")


def test_a_run_is_itself(pair: tuple[Path, Path]) -> None:
    found = compared([pair[1], pair[1]])
    assert found.headline == "A and B are the same run: losses equal to the last bit in 120 steps"
    assert not found.different
    assert found.script.state == "same"


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_too_wide_and_nothing_is_lost(pair: tuple[Path, Path], width: int) -> None:
    found = compared(pair)
    lines = found.lines(width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert text.startswith(found.headline)
    for part in ("missing-zero-grad", "optimizer.zero_grad()", "environment: the same in all"):
        assert part in text
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["format"] == 1
    assert data["different"] is True
    assert data["laws"][0] == {"name": "found", "a": 1, "b": 0, "differs": True}


def curve(
    seed: int = 0, *, end: float = 1.0, steps: int = 200, noise: float = 0.05, batches: int = 0
) -> np.ndarray:
    """A loss that falls from 3 to `end`; `batches`: what is hard and what is easy."""
    fall = end + (3 - end) * np.exp(-np.arange(steps) / 20)
    chance = np.random.default_rng(batches).standard_normal(steps)
    own = np.random.default_rng(seed + 100).standard_normal(steps)
    return fall + noise * chance + 1e-3 * noise * own


def run(
    loss: Sequence[float] | np.ndarray,
    *,
    data: int = 0,
    facts: Mapping[str, Any] | None = None,
    series: Mapping[str, Sequence[float]] | None = None,
) -> Record:
    batches = [float(data * 1000 + step) for step in range(len(loss))]
    made = {"loss.root": list(loss), "batch.fingerprint": batches, **(series or {})}
    return make_record(made, facts={"run.steps": len(loss), "run.ended": 0, **(facts or {})})


def group(**more: Any) -> dict[str, Any]:
    groups = [{"lr": 1e-3, "betas": [0.9, 0.999], **more}]
    return {"optimizer.groups": [{"class": "AdamW", "groups": groups}]}


def setting(found: RunComparison, name: str) -> Row:
    return next(row for row in found.settings if row.name == name)


def test_chaos_within_the_noise_is_no_difference() -> None:
    found = compare_runs(run(curve(0)), run(curve(1)))
    assert found.losses is not None
    assert found.losses.first_difference == 0
    assert not found.losses.differ
    assert not found.different
    assert "their losses end within their noise of each other" in found.headline


def test_a_lower_loss_is_told_with_its_digits() -> None:
    found = compare_runs(run(curve(end=1.2)), run(curve(end=1.0)))
    assert found.losses is not None
    assert found.losses.certain
    assert found.different
    assert f"is {found.losses.b:.3g} instead of {found.losses.a:.3g}" in found.headline
    assert "(mean of steps 180 to 199)" in found.headline
    first = found.losses.first_beyond_noise
    assert first is not None
    assert 2 < first < 199


@given(st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_other_batches_of_the_same_curve_are_within_noise(seed: int) -> None:
    """No more often than chance: three noises at two neighbouring steps, or in the mean of twenty."""
    one, other = run(curve(batches=2 * seed)), run(curve(batches=2 * seed + 1))
    found = losses(one, other)
    assert found is not None
    assert abs(found.a - found.b) < 0.05
    assert not found.certain
    assert found.noise == pytest.approx(0.05 * math.sqrt(2), rel=0.4)


def test_the_noise_is_that_of_steps_not_of_the_fall() -> None:
    assert noise_of(curve(noise=0.0)) < 0.01
    assert math.isnan(noise_of(np.arange(5.0)))


def test_losses_of_other_data_are_not_compared() -> None:
    found = compare_runs(run(curve(end=1.2)), run(curve(end=1.0), data=1))
    assert found.headline.endswith("the runs cannot be compared by their loss: the data differ")
    assert found.different
    series = {"batch.fingerprint": [float(k if k < 50 else 0) for k in range(200)]}
    found = compare_runs(run(curve(end=1.2)), run(curve(end=1.0), series=series))
    assert found.headline.endswith("the data differ from step 50 on")
    assert "from step 50 on: other rows" in found.remarks[0]


def test_other_weights_at_the_start_are_told() -> None:
    found = compare_runs(run(curve()), run(curve() + 0.5))
    assert any("before the first step, on the same batch" in one for one in found.remarks)
    found = compare_runs(run(curve()), run([*curve()[:1], *(curve()[1:] + 0.5)]))
    assert not any("before the first step" in one for one in found.remarks)


def test_a_loss_that_breaks() -> None:
    broken = [*curve()[:31], *[math.nan] * 169]
    found = compare_runs(run(broken), run(curve()))
    assert "the loss of A is not finite from step 31 on, that of B stays finite" in found.headline
    assert found.different
    json.dumps(found.as_dict(), allow_nan=False)
    again = compare_runs(run(broken), run(broken))
    assert again.losses is not None
    assert again.losses.equal
    assert not again.different


def test_the_scale_of_the_loss_does_not_matter_where_the_loss_per_token_is_known() -> None:
    token = curve()
    found = compare_runs(
        run(token, series={"loss.token": list(token)}),
        run(token * 640, series={"loss.token": list(token)}),
    )
    assert found.losses is not None
    assert found.losses.measure == "training loss per token"
    assert found.losses.equal


def test_settings_that_differ() -> None:
    one = run(curve(), facts=group())
    other = run(curve(), facts=group(lr=1.0000001e-3, weight_decay=0.1))
    found = compare_runs(one, other)
    assert found.different
    assert setting(found, "lr").said() == ("0.001", "0.0010000001")
    assert setting(found, "weight_decay").said() == ("-", "0.1")
    assert not setting(found, "betas").differs
    text = "\n".join(found.lines())
    assert "betas" not in text
    assert "weight_decay" in text


def test_parts_of_the_model_that_differ() -> None:
    def model(width: int, act: str) -> dict[str, Any]:
        rows = [("embed", [10, 8]), ("up", [width, 8])]
        made = [{"name": n, "shape": s, "dtype": "float32", "trainable": True} for n, s in rows]
        return {"model.parameters": made, "model.tree": ["embed: Embedding 80", f"act: {act}"]}

    found = compare_runs(
        run(curve(), facts=model(16, "ReLU")), run(curve(), facts=model(32, "GELU"))
    )
    differ = {row.name: (row.a, row.b) for row in found.settings if row.differs}
    assert differ == {
        "model parameters": (208, 336),
        "trainable parameters": (208, 336),
        "parameter up": ("16 x 8 float32", "32 x 8 float32"),
        "module act": ("ReLU", "GELU"),
    }


def leftover(norm: float, steps: int = 40) -> dict[str, Sequence[float]]:
    return {
        "grad.leftover_norm": [norm] * steps,
        "backward.calls": [1.0] * steps,
        "backward.into_grad": [1.0] * steps,
    }


def test_nothing_is_called_fixed_that_was_not_tested() -> None:
    sick = run(curve(steps=40), series=leftover(3.0), facts=group())
    found = compare_runs(sick, run(curve(steps=40), facts=group()))
    assert "missing-zero-grad" in str(found.verdict[1].a)
    assert found.headline.startswith("missing-zero-grad could not be tested in B, and B is ")
    cured = compare_runs(sick, run(curve(steps=40), series=leftover(0.0), facts=group()))
    assert cured.headline.startswith("B fixes missing-zero-grad, but is not shown to be healthy")


def test_no_better() -> None:
    one = run(curve(end=1.0, steps=40), series=leftover(3.0), facts=group())
    other = run(curve(1, end=1.0, steps=40), series=leftover(2.0), facts=group())
    headline = compare_runs(one, other).headline
    assert headline.startswith("B is no better: missing-zero-grad is still ")


def test_runs_of_different_length() -> None:
    found = compare_runs(run(curve(steps=100)), run(curve(steps=200)))
    assert "A has 100 steps, B 200 steps" in found.remarks
    assert found.losses is not None
    assert (found.losses.common, found.losses.equal) == (100, True)
    assert setting(found, "steps").differs
    assert found.different


def test_records_that_know_nothing() -> None:
    found = compare_runs(Record(), Record())
    assert found.losses is None
    assert found.script.said == "the record does not hold the text of either script"
    assert "their losses cannot be compared" in found.headline
    assert not found.different
    assert "environment: not recorded" in found.lines()
    one_sided = compare_runs(Record(), run(curve()))
    assert one_sided.losses is None
    assert one_sided.different
    json.dumps(one_sided.as_dict(), allow_nan=False)


def test_logs_of_other_tools(tmp_path: Path) -> None:
    for name, end in (("a", 1.2), ("b", 1.0)):
        rows = "".join(f"{k},{x}\n" for k, x in enumerate(curve(end=end)))
        (tmp_path / f"{name}.csv").write_text("step,loss\n" + rows)
    records = [read_log(tmp_path / f"{name}.csv") for name in "ab"]
    found = compare_runs(*records)
    assert "no cause is proven in either run, both are inconclusive" in found.headline
    assert " instead of " in found.headline
    assert "the records do not tell whether both were trained on the same batches" in found.remarks
    assert any(row.name == "read from the log" for row in found.environment)


def test_a_record_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    good = open_record(make_run(tmp_path / "good", steps=30))
    with pytest.raises(RecordError, match="is not a readable record"):
        compare_runs(good, open_record(make_corrupt_run(tmp_path / "bad")))


def test_made_runs_with_facts(tmp_path: Path) -> None:
    sick = open_record(make_run(tmp_path / "sick", steps=60))
    healthy = open_record(make_run(tmp_path / "well", steps=60, sick=False))
    rows = {row.name: row for row in curve_rows(sick, healthy, "loss.root")}
    assert rows["share of steps clipped"].a == 1.0
    assert rows["evaluation loss, last"].a is not None
    env = {row.name: row.a for row in environment_rows(sick, healthy)}
    assert (env["Python"], env["PyTorch"], env["ranks"]) == ("3.11.2", "2.13.0", 1)
    assert {row.name: row.a for row in setting_rows(sick, healthy)}[
        "arguments"
    ] == "--batch-size 32"


def script(text: str | None, digest: str = "") -> Record:
    fact = {"path": "train.py", "sha256": digest or str(text)}
    return make_record(facts={"script.text": fact | ({} if text is None else {"text": text})})


def test_scripts_without_their_text() -> None:
    assert scripts(script(None, "1"), script(None, "1")).state == "same"
    assert scripts(script(None, "1"), script(None, "2")).state == "differ"
    assert (
        scripts(script("x\n"), make_record()).said
        == "the record does not hold the text of B's script"
    )
    changed = scripts(script("x\n"), script("x"))
    assert changed.state == "differ"
    assert changed.diff


def test_scripts_that_would_take_too_long() -> None:
    """Nothing in a record may keep a command waiting."""
    long = "\n".join(f"line {k}" for k in range(MOST_LINES + 1))
    assert scripts(script(long), script(long + "x")).diff == ()
    few = "a\nb\n" * 99
    assert scripts(script(few), script(few + "a\n")).diff
    # Each of a hundred lines thirty times: 90,000 pairs of equal lines.
    alike = [str(k % 100) for k in range(3000)]
    found = scripts(script("\n".join(alike)), script("\n".join(alike[::-1])))
    assert (found.state, found.diff) == ("differ", ())
    assert "too long" in found.said


def test_a_long_line_of_a_diff_goes_on_behind_its_sign() -> None:
    found = compare_runs(script("x = 1\n"), script("x = '" + "a b" * 60 + "'\n"))
    lines = found.lines(60)
    at = lines.index(next(line for line in lines if line.startswith("+x")))
    whole = lines[at] + "".join(line.removeprefix("+... ") for line in lines[at + 1 :])
    assert whole == "+x = '" + "a b" * 60 + "'"
    assert all(line.startswith("+... ") for line in lines[at + 1 :])


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "class groups lr shape name argv world libraries kind text sha256".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
NAMES = "script script.text optimizer.groups schedule clip loss.site model.parameters model.tree env ranks imported".split()


@given(*[st.dictionaries(st.sampled_from(NAMES), ODD, max_size=6) for _ in "ab"])
@settings(max_examples=150, deadline=None)
def test_facts_of_any_kind_are_read(a: dict[str, Any], b: dict[str, Any]) -> None:
    one, other = make_record(facts=a), make_record(facts=b)
    for row in (*setting_rows(one, other), *environment_rows(one, other)):
        assert all(isinstance(cell, str) for cell in row.said())
        json.dumps(row.as_dict(), allow_nan=False)
    scripts(one, other)


@given(st.floats(), st.floats())
def test_numbers_that_differ_look_different(a: float, b: float) -> None:
    said = said_pair(a, b)
    if Row("x", a, b).differs:
        assert said[0] != said[1]
    else:
        assert said[0] == said[1] or a == b == 0
