"""What the record of a script of spellings.py holds: as it was measured when each was run (tests/fixes/test_end_to_end.py runs them)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fixes.spellings import Spelling
from traindoctor.checks import BY_SLUG
from traindoctor.checks.base import Finding
from traindoctor.record import ExamResult, Record, RecordWriter, open_record

# The line at which each fault was found holds the first of these that the script has.
FOUND_AT = {
    "targets-misaligned": ["F.cross_entropy("],
    "causal-mask-leak": ["scaled_dot_product", "self.attend(x", "self.encoder(h", "(q @ k"],
    "double-softmax": [
        "softmax(logits",
        ".softmax(-1)",
        "self.normalise(self",
        "logits = self.head(h)",
    ],
    "loss-scale-wrong": ["F.cross_entropy(", "criterion(logits"],
}
MISSING = {
    "the head is left out": [
        "tokens.weight",
        "places.weight",
        "norm.weight",
        "norm.bias",
        "head.weight",
        "head.bias",
    ],
    "filtered by name": ["head.weight", "head.bias"],
    "made too early": ["head.weight", "head.bias"],
    "in a plain list": [
        f"layers[{i}].{part}.{kind}"
        for i in (0, 1)
        for part in ("qkv", "out")
        for kind in ("weight", "bias")
    ],
    "one of several modules": ["Linear.weight", "Linear.bias"],
    "groups that forget some": [
        "tokens.weight",
        "places.weight",
        "attention.qkv.weight",
        "attention.out.weight",
        "head.weight",
    ],
}
MISSING |= {
    "a list of parameters": ["scales[0]", "scales[1]"],
    "a list before the module is one": ["layers[0].qkv.weight", "layers[0].out.weight"],
    "some of a part of the model": ["head.weight"],
    "a part of a whole": ["body.tokens.weight", "last.weight"],
}
HELD = {"made too early": 10, "in a plain list": 6, "one of several modules": 10}
TRAINABLE = {"in a plain list": 14, "one of several modules": 12}


def line_of(one: Spelling) -> str | None:
    for mark in FOUND_AT.get(one.cause, []):
        lines = [n for n, line in enumerate(one.text.splitlines(), 1) if mark in line]
        if lines:
            return f"train.py:{lines[0]}"
    return None


def finding(one: Spelling, line: str | None) -> Finding:
    check = BY_SLUG[one.cause]
    return check.finding(grade="exact", line=line, since_step=0)


def record(folder: Path, name: str, one: Spelling, **script: Any) -> Record:
    """Written by a real writer, and read again. `script`: facts of the script's text that are otherwise."""
    line = line_of(one)
    writer = RecordWriter(folder)
    text = one.text
    writer.fact("script", {"path": "train.py", "argv": []})
    known = {
        "path": "train.py",
        "bytes": len(text.encode()),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "text": text,
        "redacted": 0,
    }
    writer.fact("script.text", known | script)
    used = "SGD" if "optim.SGD" in text else "AdamW"
    writer.fact("optimizer.groups", [{"class": used, "groups": [{}]}])
    writer.fact("optimizer.coverage", coverage(name))
    for exam, values in exams(name, one, line).items():
        writer.exam(ExamResult(exam, 1, "done", values))
    writer.close()
    return open_record(folder)


def coverage(name: str) -> dict[str, Any]:
    missing = MISSING.get(name, [])
    return {
        "optimizers": 1,
        "trainable": TRAINABLE.get(name, 10),
        "held": HELD.get(name, 10 - len(missing)),
        "num_missing": len(missing),
        "missing": [{"name": each} for each in missing],
    }


def exams(name: str, one: Spelling, line: str | None) -> dict[str, Any]:
    apart = 2 if name == "shifted again at the loss" or name.startswith("two places on") else 0
    passes = 4 if name.startswith("micro") else 1
    summed = 45.0 if name == "a sum with a weight" else 96.0
    return {
        "shift": {"pairs": [{"line": line, "shift": apart, "axis": 1, "prefix": 0}]},
        "dependence": {"pairs": [{"input": "tokens.weight"}]},
        "loss_input": {
            "sites": [
                {
                    "kind": "nll_loss" if "nll_loss" in one.text else "cross_entropy",
                    "made_by": {"op": "softmax", "line": line, "module": None},
                }
            ]
        },
        "loss_coefficient": {
            "backwards": passes,
            "main": {
                "coefficient": float(passes) if passes > 1 else summed,
                "calls": passes,
                "valid": 96.0,
                "rows": 96,
            },
        },
    }
