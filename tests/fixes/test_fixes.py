"""Every spelling of a fault gets its diff, every twin none; a diff applies, parses and changes nothing else."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixes import known, spellings
from fixes.spellings import ALL, SOUND, Spelling
from traindoctor.fixes import FIXES, fix_for, patch
from traindoctor.record import StoredRecord


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No train.py lies here, as on another machine."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def fix(folder: Path, name: str, one: Spelling, **script: object) -> str | None:
    record = known.record(folder / "run", name.partition(": ")[2], one, **script)
    return fix_for(known.finding(one, known.line_of(one)), record)


@pytest.mark.parametrize("name", ALL)
def test_every_spelling_gets_its_diff_and_every_twin_none(tmp_path: Path, name: str) -> None:
    one = ALL[name]
    diff = fix(tmp_path, name, one)
    if one.adds is None:
        assert diff is None
        return
    assert diff is not None
    added = [line[1:] for line in diff.splitlines()[2:] if line.startswith("+")]
    assert added == [one.adds] or (one.adds in added and len(added) <= 2)
    change = patch.read(diff)
    assert change.file == "train.py"
    ast.parse(patch.applied(change, one.text))


def test_every_fault_has_three_spellings_and_a_twin() -> None:
    for cause in FIXES.keys() - {"optimizer-holds-stale-params"}:  # made as for what it leaves out
        of_it = [one for one in ALL.values() if one.cause == cause]
        assert sum(one.adds is not None for one in of_it) >= 3
        assert any(one.adds is None for one in of_it)


def twin(cause: str, *pairs: tuple[str, str]) -> Spelling:
    return Spelling(cause, spellings.changed(*pairs), None)


S = spellings
TWINS = {
    "zero_grad: on one line": twin(
        "missing-zero-grad",
        (S.ZERO + S.BACKWARD + S.STEP, "    loss.backward(); optimizer.step()\n"),
    ),
    "zero_grad: who steps is not known": twin(
        "missing-zero-grad", (S.ZERO, ""), (S.MAKE, "import lion\noptimizer = lion.make(model)\n")
    ),
    "zero_grad: a closure": twin(
        "missing-zero-grad", (S.ZERO, ""), (S.STEP, "    optimizer.step(lambda: loss)\n")
    ),
    "zero_grad: cleared somewhere in the loop": twin(
        "missing-zero-grad", (S.ZERO, "    if step == 0:\n        optimizer.zero_grad()\n")
    ),
    "zero_grad: gradients are read after the step": twin(
        "missing-zero-grad",
        (
            S.ZERO + S.BACKWARD + S.STEP,
            "    if True:\n        loss.backward()\n    optimizer.step()\n    norm = model.head.weight.grad.norm()\n",
        ),
    ),
    "shift: inputs from elsewhere": twin("targets-misaligned", (S.TARGETS, "    y = other(ix)\n")),
    "shift: other lengths": twin(
        "targets-misaligned",
        (S.TARGETS, "    y = torch.stack([text[i : i + T + 1] for i in ix])\n"),
    ),
    "shift: bound in two branches": twin(
        "targets-misaligned",
        (
            S.TARGETS,
            "    y = torch.stack([text[i : i + T] for i in ix])\n    if T > 3:\n        y = y.clone()\n",
        ),
    ),
    "mask: a slice that begins later": twin(
        "causal-mask-leak", (S.MASKED, S.MASKED.replace("[:T, :T] == 0", "[1 : T + 1, :T] == 0"))
    ),
    "mask: right as it is": twin("causal-mask-leak"),
    "mask: two uses want different triangles": twin(
        "causal-mask-leak",
        (S.BUFFER, S.BUFFER.replace("tril", "triu")),
        ("        y = att @ v\n", "        y = att @ v\n        past = self.mask[:T, :T]\n"),
    ),
    "mask: filled in place": twin(
        "causal-mask-leak", (S.MASKED, "        att.masked_fill_(self.mask[:T, :T] == 1, -1e9)\n")
    ),
    "mask: two attentions in one function": twin(
        "causal-mask-leak",
        (S.MASKED, ""),
        ("        y = att @ v\n", "        y = att @ v + F.softmax(att, -1) @ v\n"),
    ),
    "mask: options behind a star": twin(
        "causal-mask-leak",
        (S.BY_HAND, "        y = F.scaled_dot_product_attention(q, k, v, **self.options)\n"),
    ),
    "mask: between two tensors": twin(
        "causal-mask-leak",
        (
            "self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)",
            "self.attend, self.out = nn.MultiheadAttention(D, 2, batch_first=True), nn.Linear(D, D)",
        ),
        (S.BY_HAND, "        y, _ = self.attend(x, v, v)\n"),
    ),
    "mask: attention to another text": twin(
        "causal-mask-leak",
        (
            "    def forward(self, x):\n        T = x.shape[1]\n",
            "    def forward(self, x, other):\n        T = x.shape[1]\n",
        ),
        (
            "        q, k, v = self.qkv(x).split(D, dim=2)\n",
            "        q, k, v = self.qkv(x)[..., :D], *self.qkv(other).split(D, dim=2)[1:]\n",
        ),
        (S.BY_HAND, "        y = F.scaled_dot_product_attention(q, k, v)\n"),
    ),
    "shift: place by place": twin(
        "targets-misaligned",
        (
            S.LOSS,
            "    loss = F.cross_entropy(logits.view(-1, V), x.view(-1), reduction='none')\n    loss = (loss * keep).mean()\n",
        ),
    ),
    "softmax: kept for later": twin(
        "double-softmax",
        (
            S.LOSS,
            "    probs = F.softmax(logits, dim=-1)\n"
            + S.LOSS.replace("logits.", "probs.")
            + "    kept.append(probs)\n",
        ),
    ),
    "softmax: the model is handed on": twin(
        "double-softmax",
        ("        return logits\n", "        return torch.softmax(logits, dim=-1)\n"),
        ("for step in", "evaluate(model)\nfor step in"),
    ),
    "softmax: a sequence that two call": twin(
        "double-softmax",
        (
            "self.head = nn.Linear(D, V)",
            "self.head = nn.Sequential(nn.Linear(D, V), nn.Softmax(dim=-1))",
        ),
        (
            "        return logits\n",
            "        return logits\n\n    def write(self, h):\n        return torch.multinomial(self.head(h)[0], 1)\n",
        ),
    ),
    "softmax: the model calls itself": twin(
        "double-softmax",
        (
            "        return logits\n",
            "        return torch.softmax(logits, dim=-1)\n\n    def write(self, x):\n        return torch.multinomial(self(x)[0], 1)\n",
        ),
    ),
    "scale: another number of micro-batches": twin(
        "loss-scale-wrong", ("range(STEPS)", "range(3)")
    ),
    "params: a group of dicts": twin(
        "params-not-in-optimizer",
        ("model.parameters(), lr", "[{'params': model.head.parameters()}], lr"),
    ),
    "scale: an evaluation divides the sums itself": twin(
        "loss-scale-wrong",
        (
            "model = Model()\n",
            "model = Model()\ncriterion = nn.CrossEntropyLoss(reduction='sum')\n",
        ),
        (S.LOSS, S.LOSS.replace("F.cross_entropy(", "criterion(")),
        (
            '    print("step"',
            "    mean = criterion(logits.view(-1, V), y.view(-1)).item() / y.numel()\n"
            '    print("step"',
        ),
    ),
    "scale: the sums are divided by a count": twin(
        "loss-scale-wrong",
        ("for step in", "total = count = 0\nfor step in"),
        (
            S.LOSS,
            S.LOSS.replace("y.view(-1))", "y.view(-1), reduction='sum')")
            + "    total += loss.item()\n    count += y.numel()\n",
        ),
    ),
    "scale: a product with one-hot targets": twin(
        "loss-scale-wrong",
        (
            S.LOSS,
            "    loss = -(F.one_hot(y, V) * logits.log_softmax(-1)).sum()  # F.cross_entropy(\n",
        ),
    ),
    "shift: the scores were flattened before": twin(
        "targets-misaligned",
        (
            S.LOSS,
            "    logits = logits.view(-1, V)\n    loss = F.cross_entropy(logits, x.view(-1))\n",
        ),
    ),
    "shift: the targets were flattened before": twin(
        "targets-misaligned",
        (
            S.LOSS,
            "    goal = x.view(-1)\n    loss = F.cross_entropy(logits.view(-1, V), goal)\n",
        ),
    ),
    "shift: the scores were turned before": twin(
        "targets-misaligned",
        (
            S.LOSS,
            "    logits = logits.transpose(1, 2)\n    loss = F.cross_entropy(logits, x)\n",
        ),
    ),
    "shift: the model flattens its scores": twin(
        "targets-misaligned",
        ("        return logits\n", "        return logits.view(-1, V)\n"),
        (S.LOSS, "    loss = F.cross_entropy(logits, x.view(-1))\n"),
    ),
    "mask: a memory stands before the keys": twin(
        "causal-mask-leak",
        (
            S.BY_HAND,
            "        k, v = (torch.cat([self.memory, one], dim=1) for one in (k, v))\n"
            "        y = F.scaled_dot_product_attention(q, k, v)\n",
        ),
    ),
    "mask: a softmax over the queries": twin(
        "causal-mask-leak", (S.MASKED, ""), ("F.softmax(att, dim=-1)", "F.softmax(att, dim=-2)")
    ),
    "params: a list of parameters": twin(
        "params-not-in-optimizer",
        (
            "        self.head = nn.Linear(D, V)\n",
            "        self.head = nn.Linear(D, V)\n"
            "        self.scales = [nn.Parameter(torch.ones(D)) for _ in range(2)]\n",
        ),
    ),
    "params: a list before the module is one": twin(
        "params-not-in-optimizer",
        (
            "        super().__init__()\n        self.tokens",
            "        self.layers = [Attention()]\n        super().__init__()\n        self.tokens",
        ),
    ),
    "params: some of a part of the model": twin(
        "params-not-in-optimizer",
        (
            S.MAKE,
            "body = model.attention\n"
            "optimizer = torch.optim.AdamW([p for p in body.parameters() if p.ndim > 1], lr=1e-2)\n",
        ),
    ),
    "params: a part of a whole": twin(
        "params-not-in-optimizer",
        (
            "model = Model()\n" + S.MAKE,
            "class Whole(nn.Module):\n    def __init__(self, body):\n        super().__init__()\n"
            "        self.body, self.last = body, nn.Linear(V, V)\n\n\n"
            "body = Model()\nmodel = Whole(body)\n"
            "optimizer = torch.optim.AdamW(body.attention.parameters(), lr=1e-2)\n",
        ),
    ),
    "params: two optimizers are made": twin(
        "params-not-in-optimizer", (S.MAKE, S.MAKE.replace("model.p", "model.head.p") + S.MAKE)
    ),
}


@pytest.mark.parametrize(
    ("name", "offered"), [("made too early", True), ("filtered by name", False)]
)
def test_an_optimizer_of_old_parameters_is_made_again(
    tmp_path: Path, name: str, offered: bool
) -> None:
    one = replace(spellings.params[name], cause="optimizer-holds-stale-params")
    diff = fix(tmp_path, f"params: {name}", one)
    assert (diff is not None) == offered
    if diff is not None:
        assert diff == fix(tmp_path / "again", f"params: {name}", spellings.params[name])


@pytest.mark.parametrize("name", TWINS)
def test_what_is_not_surely_right_is_not_offered(tmp_path: Path, name: str) -> None:
    assert fix(tmp_path, name, TWINS[name]) is None


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("scale: summed", {"coefficient": 45.0}),  # divided by hand elsewhere
        ("scale: summed by hand", {"valid": 90.0, "coefficient": 90.0}),  # six are ignored
        ("scale: micro-batches in a loop", {"coefficient": 1.0}),
        ("scale: micro-batches in a loop", {"calls": 8, "coefficient": 8.0}),
        ("scale: micro-batches counted", {"backwards": 2, "calls": 2, "coefficient": 2.0}),
        ("shift: not shifted in get_batch", {"shift": 2}),
        ("shift: two places on in a dataset", {"shift": 3}),
        ("shift: not shifted at the loss", {"axis": 0}),
    ],
)
def test_where_the_script_does_not_say_what_was_measured_nothing_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, measured: dict[str, float]
) -> None:
    real = known.exams

    def otherwise(*given: object) -> dict[str, Any]:
        made = real(*given)  # type: ignore[arg-type]
        for part in (
            made["shift"]["pairs"][0],
            made["loss_coefficient"],
            made["loss_coefficient"]["main"],
        ):
            part |= {key: value for key, value in measured.items() if key in part}
        return made

    monkeypatch.setattr(known, "exams", otherwise)
    assert fix(tmp_path, name, ALL[name]) is None


def test_the_diff_is_that_of_the_recorded_text(tmp_path: Path) -> None:
    one = ALL["zero_grad: in the loop"]
    path = "zero_grad: in the loop"
    assert fix(tmp_path / "a", path, one, bytes=3) is None  # \r\n, or a byte order mark
    assert fix(tmp_path / "b", path, one, text=None) is None
    assert fix(tmp_path / "c", path, one, text="def (") is None
    diff = fix(tmp_path / "d", path, one, path="/home/me/../train.py")
    assert diff is not None
    assert diff.startswith("--- a/train.py\n")
    Path("train.py").write_text(one.text)
    assert fix(tmp_path / "e", path, one) is not None
    Path("train.py").write_text(one.text + "# more\n")
    assert fix(tmp_path / "f", path, one) is None


def test_no_secret_stands_in_a_diff(tmp_path: Path) -> None:
    """The record leaves it out; the file has it, and the context of a diff must not show it."""
    one = ALL["zero_grad: in the loop"]
    far = "key = 'api_key=abcdef'\n" + one.text
    near = one.text.replace(
        "    loss.backward()\n", "    api_key = 'x3fabcdef'\n    loss.backward()\n"
    )
    for number, (text, offered) in enumerate(((far, True), (near, False))):
        Path("train.py").write_text(text)
        from traindoctor.record.script_text import script_text

        fact = script_text("train.py")
        assert fact is not None
        assert fact["redacted"] == 1
        diff = fix(tmp_path / str(number), "zero_grad: in the loop", one, **fact)
        assert (diff is not None) == offered
        assert "abcdef" not in (diff or "")
        Path("train.py").unlink()
        # On another machine nobody can tell whether its lines are those of the file.
        assert fix(tmp_path / f"away{number}", "zero_grad: in the loop", one, **fact) is None


def test_beside_an_encoder_no_mask_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention may be the encoder's as well, which reads its text freely."""
    one, real = ALL["mask: none in a fused call"], known.exams

    def two_texts(*given: object) -> dict[str, Any]:
        made = real(*given)  # type: ignore[arg-type]
        return made | {"dependence": {"pairs": [{"input": "source"}, {"input": "target"}]}}

    monkeypatch.setattr(known, "exams", two_texts)
    assert fix(tmp_path, "mask: none in a fused call", one) is None


def test_a_line_of_another_file_is_not_changed(tmp_path: Path) -> None:
    one = ALL["mask: none in a fused call"]
    record = known.record(tmp_path / "run", "", one)
    found = known.finding(one, known.line_of(one))
    assert fix_for(found, record) is not None
    assert fix_for(replace(found, line=str(found.line).replace("train", "model")), record) is None


def test_a_patched_copy_gets_no_further_diff(tmp_path: Path) -> None:
    one = ALL["zero_grad: in the loop"]
    record = known.record(tmp_path / "run", "", one)
    assert isinstance(record, StoredRecord)
    record.facts["script"] = {"path": "train.py", "argv": [], "patch": "p.diff"}
    assert fix_for(known.finding(one, None), record) is None


def test_the_sound_script_is_what_the_others_are_made_of() -> None:
    ast.parse(SOUND)
    assert len({hashlib.sha256(one.text.encode()).hexdigest() for one in ALL.values()}) == len(ALL)
