"""Scripts as sides: run as they are, traced for their first steps, on one process and on several."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from traindoctor import cli
from traindoctor.cli.compare import side
from traindoctor.compare.answer import Answer
from traindoctor.compare.trace import Entry, Trace
from traindoctor.comparison import Options, compare_sides
from traindoctor.errors import TraindoctorError
from traindoctor.tracing.patient import PatientSide
from traindoctor.tracing.script import ScriptSide, last_words
from traindoctor.tracing.script_ranks import on_same_rows, side_by_side, together

SCRIPT = str(Path(__file__).with_name("script_that_trains.py"))
RUNS: dict[str, list[Trace]] = {}
TORCHRUN = f"torchrun --standalone --nproc-per-node 2 {SCRIPT}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python and torch take seconds to start: what was run before, with the same settings, is read again."""
    run = ScriptSide.run

    def once(self: ScriptSide, folder: Path, steps: int, **settings: object) -> list[Trace]:
        asked = sorted(settings.items()) if settings.get("moved") else []
        key = repr((self.words, steps, asked))
        if key not in RUNS:
            RUNS[key] = run(self, home / str(len(RUNS)), steps, **settings)
        return RUNS[key]

    monkeypatch.setattr(ScriptSide, "run", once)


@pytest.fixture
def compared(run_once: None) -> Callable[..., Answer]:
    def compare(a: str, b: str, draws: int = 2) -> Answer:
        return compare_sides(side(a), side(b), Options(steps=2, draws=draws))

    return compare


def test_a_script_run_twice_is_equal_to_the_last_bit(compared) -> None:
    found = compared(SCRIPT, f"{sys.executable} {SCRIPT}")
    assert found.headline.startswith("EQUAL to the last bit")
    kinds = {place.entry.kind for place in found.places}
    assert kinds == {"input", "weight", "activation", "loss", "gradient", "update"}


def test_the_traced_script_is_not_changed(tmp_path: Path) -> None:
    words = [SCRIPT, "--dropout", "0.1", "--steps", "3"]
    plain = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    ScriptSide.of(" ".join(words)).run(tmp_path / "run", 9)
    assert (tmp_path / "run" / "log.txt").read_text() == plain.stdout


@pytest.mark.usefixtures("run_once")
def test_gradients_are_those_before_clipping(tmp_path: Path) -> None:
    (trace,) = ScriptSide.of(SCRIPT).run(tmp_path / "run", 2)
    gradients = [e for e in trace.of_kind("gradient", 0) if e.name.endswith(("weight", "bias"))]
    norm = np.sqrt(sum(float((e.values() ** 2).sum()) for e in gradients))
    assert norm > 0.1, "they are clipped to 0.05"


def test_a_missing_mask_is_found(compared) -> None:
    found = compared(SCRIPT, f"{SCRIPT} --fault mask")
    assert found.verdict == "different"
    assert found.first.entry.key == ("activation", 0, "blocks.0.out.input")
    assert found.kind is not None
    assert found.kind.code == "mask"


@pytest.mark.slow
def test_a_scaled_loss_is_found(compared) -> None:
    found = compared(SCRIPT, f"{SCRIPT} --fault scale")
    assert found.first.entry.key == ("loss", 0, "loss")


@pytest.mark.slow
def test_other_weights_at_the_start_are_told(compared) -> None:
    found = compared(SCRIPT, f"{SCRIPT} --seed 1")
    assert found.first.entry.kind == "weight"
    assert any("same seed or checkpoint" in note for note in found.notes)


def test_two_ranks_with_strided_rows_equal_one_process(compared) -> None:
    found = compared(SCRIPT, f"{TORCHRUN} --ranks ddp --deal strided")
    assert found.headline.startswith("EQUAL within rounding")
    assert {place.state for place in found.places} == {"same"}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["ddp", "fsdp"])
def test_two_ranks_with_blocks_of_rows_equal_one_process(compared, ranks: str) -> None:
    found = compared(SCRIPT, f"{TORCHRUN} --ranks {ranks}", draws=3)
    assert found.headline.startswith("EQUAL within rounding")
    assert {place.state for place in found.places} == {"same"}


@pytest.mark.slow
def test_ranks_that_are_not_averaged_are_found(compared) -> None:
    found = compared(SCRIPT, f"{TORCHRUN} --ranks apart")
    assert found.first.entry.key == ("gradient", 0, "head.weight")
    assert found.notes[0] == "rank 1 differs from rank 0 in the gradient of head.weight at step 0"


@pytest.mark.slow
def test_bfloat16_equals_float32_within_rounding(compared) -> None:
    found = compared(SCRIPT, f"{SCRIPT} --dtype bfloat16", draws=3)
    assert found.headline.startswith("EQUAL within rounding")
    assert found.tolerance.coarsest == "bfloat16"


@pytest.mark.slow
def test_a_compiled_script_equals_the_eager_one(compared) -> None:
    found = compared(SCRIPT, f"{SCRIPT} --compile", draws=3)
    assert found.headline.startswith("EQUAL within rounding")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "b",
    [
        f"torchrun --standalone --nproc-per-node 1 {SCRIPT} --ranks ddp --device cuda",
        f"torchrun --standalone --nproc-per-node 1 {SCRIPT} --ranks fsdp --device cuda",
        f"{SCRIPT} --device cuda --compile",
        SCRIPT,
    ],
    ids=["NCCL, DDP", "NCCL, FSDP2", "compiled", "on the CPU"],
)
def test_on_a_gpu(compared, b: str) -> None:
    found = compared(f"{SCRIPT} --device cuda", b, draws=3)
    assert found.verdict == "equal", found.headline


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_missing_mask_is_found_on_a_gpu(compared) -> None:
    on = f"{SCRIPT} --device cuda --dtype bfloat16"
    found = compared(on, f"{on} --fault mask")
    assert found.first.entry.key == ("activation", 0, "blocks.0.out.input")


# -- what cannot be run ------------------------------------------------------------------------------


def refused(monkeypatch, capsys, a: str, b: str) -> str:
    """The sentence that the command line says, with its exit status."""
    monkeypatch.setattr(sys, "argv", ["traindoctor", "compare", a, b, "--steps", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_script_that_dies(monkeypatch, capsys) -> None:
    said = refused(monkeypatch, capsys, f"{SCRIPT} --fault dies", SCRIPT)
    assert "ended with status 1 before its first step: RuntimeError: the data is gone" in said


def test_a_script_that_never_steps(monkeypatch, capsys) -> None:
    said = refused(monkeypatch, capsys, f"{SCRIPT} --fault 'never steps'", SCRIPT)
    assert "ended without a training step" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "one side is empty"),
        ("   ", "one side is empty"),
        ("nowhere.py --lr 1", "there is no file 'nowhere.py'"),
        (
            "no-such-program train.py",
            "'no-such-program' is neither a Python script nor a folder or a program",
        ),
        ("train.py 'open", "is not a command"),
    ],
)
def test_a_side_that_is_no_command(monkeypatch, capsys, text: str, sentence: str) -> None:
    assert sentence in refused(monkeypatch, capsys, text, SCRIPT)


def test_a_module_is_no_option_of_ours(monkeypatch, capsys) -> None:
    said = refused(monkeypatch, capsys, "-m no_such_package.train", SCRIPT)
    assert "ended with status 1 before its first step" in said
    assert "no_such_package" in said


def test_a_script_and_a_function(monkeypatch, tmp_path: Path) -> None:
    function = PatientSide(tmp_path / "ref.py", "make")
    with pytest.raises(TraindoctorError, match="give two functions or two scripts"):
        compare_sides(function, ScriptSide.of(SCRIPT))


def test_arguments_that_look_like_a_function_are_arguments() -> None:
    assert isinstance(side(f"{SCRIPT} --model other.py:make"), ScriptSide)
    assert isinstance(side(f"{SCRIPT}:make"), PatientSide)


def test_the_line_that_says_why() -> None:
    log = "warming up\n[rank1]: ValueError: no rows\ntorch...ChildFailedError: \n===\n"
    assert last_words(log) == "ValueError: no rows"
    assert last_words("one\ntwo\n\n") == "two"


# -- ranks put together ------------------------------------------------------------------------------


def entry(name: str, kind: str, values, **more) -> Entry:
    array = np.asarray(values)
    shape = more.pop("shape", array.shape)
    return Entry(name, kind, 0, shape, str(array.dtype), lambda: array, **more)


def ranks_of(batch: np.ndarray, dealt: list[list[int]], *more: list[Entry]) -> list[Trace]:
    return [
        Trace((entry("batch", "input", batch[rows]), *extra), "B")
        for rows, extra in zip(dealt, more)
    ]


BATCH = np.arange(8).reshape(4, 2)
DEALT = [[3, 0], [2, 1]]


def test_rows_are_put_where_the_other_side_has_them() -> None:
    values = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    one = Trace((entry("batch", "input", BATCH), entry("h", "activation", values)), "A")
    parts = [[entry("h", "activation", values[rows])] for rows in DEALT]
    found = together(ranks_of(BATCH, DEALT, *parts), one).trace
    assert np.array_equal(found.by_key["input", 0, "batch"].read(), BATCH)
    assert np.array_equal(found.by_key["activation", 0, "h"].read(), values)


def test_flattened_tokens_go_with_their_rows() -> None:
    tokens = np.arange(8)
    one = Trace((entry("batch", "input", BATCH), entry("target", "input", tokens)), "A")
    parts = [[entry("target", "input", BATCH[rows].reshape(-1))] for rows in DEALT]
    found = together(ranks_of(BATCH, DEALT, *parts), one).trace
    assert np.array_equal(found.by_key["input", 0, "target"].read(), tokens)


def test_what_has_no_rows_of_the_batch_stays() -> None:
    table = np.ones((2, 3), np.float32)
    one = Trace((entry("batch", "input", BATCH), entry("wpe", "activation", table)), "A")
    parts = [
        [entry("wpe", "activation", table), entry("wpe", "gradient", table * factor)]
        for factor in (1, 3)
    ]
    one = Trace((*one.entries, entry("wpe", "gradient", table * 2)), "A")
    found = together(ranks_of(BATCH, DEALT, *parts), one).trace
    assert np.array_equal(found.by_key["activation", 0, "wpe"].read(), table)
    assert np.array_equal(found.by_key["gradient", 0, "wpe"].values(), table * 2)


def test_shards_are_put_together_along_their_dimension() -> None:
    weight = np.arange(12.0).reshape(2, 6)
    parts = [
        [entry("w", "weight", weight[:, :4], about={"shard": [1, 0, 2]})],
        [entry("w", "weight", weight[:, 4:], about={"shard": [1, 1, 2]})],
    ]
    found = together(ranks_of(BATCH, DEALT, *parts)).trace.by_key["weight", 0, "w"]
    assert found.shape == (2, 6)
    assert np.array_equal(found.read(), weight)


def test_the_loss_is_the_mean_and_a_gradient_is_shared() -> None:
    gradient = np.ones((2, 3), np.float32)
    parts = [
        [
            entry("loss", "loss", np.float32(value)),
            entry("h", "activation", gradient),
            entry("h", "gradient", gradient),
        ]
        for value in (1, 2)
    ]
    found = together(ranks_of(BATCH, DEALT, *parts)).trace
    assert found.by_key["loss", 0, "loss"].values() == 1.5
    assert np.array_equal(found.by_key["gradient", 0, "h"].read(), np.full((4, 3), 0.5))


def test_large_tensors_are_compared_on_the_rows_that_both_have() -> None:
    values = np.random.default_rng(0).normal(size=(4, 2, 3))
    flat = values.reshape(-1, 3)
    a = entry("h", "activation", flat[[0, 3, 5]], shape=(4, 2, 3), rows=(0, 3, 5))
    parts = [
        [entry("h", "activation", values[rows].reshape(-1, 3)[::2], shape=(2, 2, 3), rows=(0, 2))]
        for rows in ([0, 1], [2, 3])
    ]
    ranks = ranks_of(BATCH, [[0, 1], [2, 3]], *parts)
    one = Trace((entry("batch", "input", BATCH), a), "A")
    first, second, _ = side_by_side([one], ranks, steps=1)
    held = [side.by_key["activation", 0, "h"] for side in (first, second)]
    assert [one.rows for one in held] == [(0,), (0,)]
    assert np.array_equal(held[0].values(), held[1].values())
    assert on_same_rows(first, second)[0].entries == first.entries
