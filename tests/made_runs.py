"""Runs made by hand, with a real writer: a sick one, a healthy one, a huge one, a broken one."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from traindoctor.record import ExamResult, RecordWriter, record_path

VOCABULARY = 5000


def layer_names(blocks: int = 6) -> list[str]:
    parts = ["ln1.weight", "attn.qkv.weight", "attn.proj.weight", "ln2.weight", "mlp.up.weight"]
    names = ["embed.weight", "pos.weight"]
    names += [f"blocks.{i}.{p}" for i in range(blocks) for p in [*parts, "mlp.down.weight"]]
    return [*names, "norm.weight", "head.weight"]


def sick_verdict(steps: int) -> dict[str, Any]:
    return {
        "format": 1,
        "verdict": "sick",
        "reason": "one cause is proven",
        "causes": [
            {
                "cause": "clip-too-tight",
                "code": "GRD006",
                "status": "confirmed",
                "grade": "experiment",
                "confidence": 0.91,
                "where": "blocks.3.attn.qkv.weight",
                "line": "train.py:54",
                "since_step": 120,
                "summary": "Clipping at 0.1 bites on nearly every step and slows the run",
                "evidence": [
                    {
                        "measure": "share of clipped steps",
                        "value": 0.98,
                        "expected": 0.1,
                        "noise": 0.01,
                        "step": 120,
                    },
                    {
                        "measure": "loss after 40 replayed steps without clipping",
                        "value": 3.211,
                        "expected": 4.02,
                        "noise": 0.03,
                        "step": 120,
                    },
                ],
                "remedy": "Raise the limit to about 1.0, or remove clipping and lower the rate.",
                "consequences": ["lr-too-low"],
                "explained_by": [],
            },
            {
                "cause": "lr-too-low",
                "code": "OPT002",
                "status": "likely",
                "confidence": 0.7,
                "where": None,
                "since_step": 140,
                "summary": "The step is far shorter than what lowers the loss",
                "evidence": [],
                "remedy": "",
                "consequences": [],
                "explained_by": ["clip-too-tight"],
            },
        ],
        "symptoms": [{"symptom": "loss-flat", "summary": "the loss has stood still for 200 steps"}],
        "ruled_out": [
            {"cause": "missing-zero-grad", "by": "grad.leftover_norm"},
            {"cause": "backward-incorrect", "by": "tape_gradient"},
            {"cause": "targets-misaligned", "by": "shift"},
        ],
        "not_judged": [
            {"cause": "memory-leak", "reason": "graphs.alive has 3 points, 20 are needed"}
        ],
        "steps": steps,
        "overhead_percent": 1.37,
    }


def healthy_verdict(steps: int) -> dict[str, Any]:
    sick = sick_verdict(steps)
    return {
        **sick,
        "verdict": "healthy",
        "reason": "31 tests found nothing",
        "causes": [],
        "symptoms": [],
    }


def write_step(writer: RecordWriter, step: int, *, steps: int, clip: float, rng: Any) -> None:
    """One step of a small GPT that learns, with every series that is usual."""
    progress = step / steps
    loss = 2.4 + (np.log(VOCABULARY) - 2.4) * np.exp(-5 * progress) + 0.06 * rng.standard_normal()
    norm = float(0.4 + 2 * np.exp(-4 * progress) + 0.1 * abs(rng.standard_normal()))
    rate = 3e-4 * min(1.0, (step + 1) / 50) * (0.55 + 0.45 * np.cos(np.pi * progress))
    writer.scalars(
        step,
        {
            "loss.root": loss,
            "loss.read": loss,
            "loss.token": loss,
            "ladder.unigram": 6.3 + 0.02 * rng.standard_normal(),
            "ladder.bigram": 4.6 - 0.4 * progress,
            "ladder.fivegram": 4.4 - 0.9 * progress,
            "optim.lr": rate,
            "grad.norm": norm,
            "grad.norm_clipped": min(norm, clip),
            "clip.limit": clip,
            "grad.leftover_norm": 0.0,
            "update.ratio": 1.5e-3 * rate / 3e-4,
            "logits.absmax": 3 + 9 * progress,
            "time.step": 0.12 + 0.01 * rng.random(),
            "time.data": 0.008 + 0.004 * rng.random(),
            "time.forward": 0.035 + 0.002 * rng.random(),
            "time.backward": 0.061 + 0.003 * rng.random(),
            "time.optimizer": 0.009,
            "self.seconds": 0.0016 + 0.0004 * rng.random(),
            "memory.rss": 1.2e9 + 4e5 * step,
            "graphs.alive": 1,
        },
    )
    if step % 50 == 49:
        writer.scalar("loss.eval", step, loss + 0.15)
    if step % 5 == 0:
        write_layers(writer, step, progress, rng)


def write_layers(writer: RecordWriter, step: int, progress: float, rng: Any) -> None:
    names = layer_names()
    depth = np.linspace(0, 1, len(names))
    noise = np.exp(0.2 * rng.standard_normal(len(names)))
    gradient = 1e-4 * 10 ** (1.5 * depth) * np.exp(-2 * progress) * noise
    weight = 0.02 * (1 + depth)
    writer.layers("grad.rms", step, names, gradient)
    writer.layers("weight.rms", step, names, weight)
    writer.layers("update.rms", step, names, weight * 1e-3 * noise * 10 ** (depth - 0.7))
    writer.layers("adam.snr", step, names, 0.05 * noise)
    modules = [name.removesuffix(".weight") for name in names]
    writer.layers("act.rms", step, modules, 0.5 + depth * noise)
    writer.layers("act.dead", step, modules, np.clip(0.2 * depth * progress, 0, 1))


def write_facts(writer: RecordWriter) -> None:
    writer.fact("script", {"path": "train.py", "argv": ["--batch-size", "32"]})
    writer.fact("env", {"python": "3.11.2", "torch": "2.13.0", "device": "cpu", "threads": 2})
    writer.fact(
        "loss.site", {"kind": "cross_entropy", "line": "train.py:41", "classes": VOCABULARY}
    )
    writer.fact(
        "optimizer.groups",
        [{"lr": 3e-4, "weight_decay": 0.1, "betas": [0.9, 0.95], "parameters": 40}],
    )
    writer.fact(
        "model.parameters",
        [
            {"name": n, "shape": [384, 384], "dtype": "float32", "trainable": True}
            for n in layer_names()
        ],
    )
    writer.exam(ExamResult("tape_gradient", 3, "done", {"largest": 0.0, "noise": 3e-7}, "", 0.41))
    writer.exam(ExamResult("causality", 3, "done", {"leak": 0.0, "own": 0.31}, "", 0.22))
    writer.exam(
        ExamResult("counterfactual", 120, "refused", {}, "the batches have changing shapes", 0.01)
    )
    writer.fact(
        "text.samples",
        [
            {"step": 100, "prompt": "The sea ", "text": "the the of and the the in"},
            {"step": 400, "prompt": "The sea ", "text": "was calm that morning, and the boats"},
        ],
    )


def make_run(
    folder: Path, *, steps: int = 400, sick: bool = True, end: bool = True, seed: int = 0
) -> Path:
    """A finished run (or one cut off, without `end`) of a small GPT."""
    rng = np.random.default_rng(seed)
    writer = RecordWriter(folder)
    write_facts(writer)
    for step in range(steps):
        write_step(writer, step, steps=steps, clip=0.1 if sick else 1.0, rng=rng)
    writer.fact("verdict", sick_verdict(steps) if sick else healthy_verdict(steps))
    if end:
        writer.fact("run.ended", 0)
    writer.close()
    return folder


def make_huge_run(folder: Path, *, steps: int = 100_000, tensors: int = 200) -> Path:
    """Rows are put straight into the file: the writer's own way would take minutes."""
    RecordWriter(folder).close()
    rng = np.random.default_rng(1)
    database = sqlite3.connect(record_path(folder))
    index = np.arange(steps, dtype=np.int64)
    fall = np.exp(-index / (steps / 5))
    series = {
        "loss.token": 2.5 + 6 * fall + 0.1 * rng.standard_normal(steps),
        "grad.norm": 0.5 + 3 * fall + 0.2 * rng.random(steps),
        "grad.norm_clipped": np.minimum(1.0, 0.5 + 3 * fall),
        "clip.limit": np.ones(steps),
        "optim.lr": 1e-3 * fall,
        "update.ratio": 1e-3 * (0.1 + fall),
        "time.step": 0.1 + 0.01 * rng.random(steps),
        "memory.rss": np.full(steps, 2e9),
    }
    # One step stands out: no down-sampling may lose it.
    series["loss.token"][54_321 % steps] = 99.0
    series["grad.norm"][77_777 % steps] = np.nan
    for number, (name, values) in enumerate(series.items(), start=1):
        database.execute("INSERT INTO series VALUES (?, ?)", (number, name))
        database.execute(
            "INSERT INTO points VALUES (?, ?, ?)",
            (number, index.tobytes(), values.astype(np.float64).tobytes()),
        )
    names = [f"blocks.{i // 10}.part{i % 10}.weight" for i in range(tensors)]
    base = rng.random((997, tensors)).astype(np.float32)
    rows = [(base[i % 997] * np.float32(1e-3 * (1 + fall[i]))).tobytes() for i in range(steps)]
    for number, name in enumerate(["grad.rms", "update.rms"], start=1):
        database.execute("INSERT INTO layers VALUES (?, ?, ?)", (number, name, json.dumps(names)))
        database.executemany(
            f"INSERT INTO layer_rows VALUES ({number}, ?, ?)", zip(range(steps), rows)
        )
    for name, value in {"run.ended": 0, "verdict": healthy_verdict(steps)}.items():
        database.execute(
            "INSERT INTO facts (time, name, value) VALUES (0, ?, ?)", (name, json.dumps(value))
        )
    database.commit()
    database.close()
    return folder


def make_corrupt_run(folder: Path) -> Path:
    """Appears whole: a server that had opened the good record would go on reading it from its log."""
    aside = folder.with_name(f".{folder.name}")
    make_run(aside, steps=30)
    record_path(aside).write_bytes(b"this was a database once" * 50)
    return aside.rename(folder)
