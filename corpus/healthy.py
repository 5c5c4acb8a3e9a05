#!/usr/bin/env python3
"""Sound runs of every kind we have, each attached once: how often is one called sick, how often is nothing decided?

    python corpus/healthy.py --jobs 8                       # all: about a quarter of an hour on 16 cores
    python corpus/healthy.py --groups own,causal --only o001,llama
    python corpus/healthy.py --table docs/healthy.md        # the table of what was measured so far

The groups are the sound scripts of the corpus (`cases`, `twins`, `own`) and every architecture of the installed
`transformers` (`causal`, `seq2seq`, `masked`, `vision`; benchmarks/zoo). Results are lines of JSON in `--results`; what is
there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ZOO = HERE.parent / "benchmarks" / "zoo"
sys.path[:0] = [str(HERE), str(ZOO)]
import run as corpus  # noqa: E402
from architectures import FAMILIES, architectures, versions  # noqa: E402

SCRIPTS = ("cases", "twins", "own")
KINDS = {
    "cases": "scripts that tempt to a false alarm",
    "twins": "sick scripts with only the fault removed",
    "own": "sound controls of all fields",
    "causal": "language models of `transformers`",
    "seq2seq": "its encoder-decoders",
    "masked": "its masked language models",
    "vision": "its image classifiers",
}
# Found in the zoo and true, each looked into (docs/zoo.md): labels that are not shifted, weights that start far too large,
# a part that no loss trains, a mask that one release forgot, a gradient that is meant to be another, a default without any
# positions. Such runs are not sound.
TRUE_FINDINGS = {
    "targets-misaligned": "bart bigbird_pegasus blenderbot blenderbot-small cpmant marian mbart mvp pegasus plbart trocr "
    "whisper xlm",
    "init-too-large": "cpmant mt5 funnel",
    "gradient-not-flowing": "axk2 deepseek_v32 glm_moe_dsa hy_v4",
    "attention-softmax-wrong-dim": "swiftformer",
    "position-missing": "beit data2vec-vision",
    "causal-mask-leak": "big_bird doge megatron-bert reformer rembert roformer umt5",
    "backward-incorrect": "yoso",
}
CANNOT_BE_BUILT = 3
# A run of the zoo has learned whose last losses are below this share of its first ones.
FALLEN = 0.97
# Until the tiny models have visibly learned their toy task.
STEPS = {"causal": 150, "seq2seq": 300, "masked": 300, "vision": 400}


@dataclass(frozen=True)
class Patient:
    """One sound run: what to start."""

    group: str
    name: str
    command: tuple[str, ...]


def patients(groups: Iterable[str], only: set[str]) -> list[Patient]:
    found = []
    for group in groups:
        if group in SCRIPTS:
            jobs = corpus.jobs_of([group], set())
            listed = [
                (job.name, (str(job.script.resolve()),)) for job in jobs if not job.truth["cause"]
            ]
        else:
            train = str(ZOO / "train_one.py")
            listed = [
                (name, (train, name, "--family", group, "--steps", str(STEPS[group])))
                for name in sorted(architectures(group))
            ]
        found += [Patient(group, name, command) for name, command in listed]
    return [one for one in found if not only or one.name in only]


def examined(patient: Patient, after: float, timeout: float) -> dict[str, Any]:
    """One attached run: its verdict, or why there is none."""
    row: dict[str, Any] = {"group": patient.group, "name": patient.name, "verdict": "none"}
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        verdict = Path(scratch) / "verdict.json"
        doctor = [sys.executable, "-m", "traindoctor", "run", "--json", str(verdict)]
        doctor += ["--out", str(Path(scratch) / "run"), "--after", str(after)]
        try:
            done = subprocess.run(
                [*doctor, *patient.command],
                cwd=scratch,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return {**row, "detail": f"stopped after {timeout:.0f} s"}
        row["seconds"] = round(time.perf_counter() - began, 1)
        if patient.group in FAMILIES and done.returncode == CANNOT_BE_BUILT:
            return {**row, "verdict": "not built"}
        try:
            told = json.loads(verdict.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return {**row, "detail": str(error)}
    return {
        **row,
        "learned": learned(done.stdout) if patient.group in FAMILIES else True,
        "verdict": told["verdict"],
        "steps": told["steps"],
        "measured": told["coverage"]["measured_steps"],
        "causes": [(cause["cause"], cause["status"]) for cause in told["causes"]],
        "detail": told["reason"] or "",
    }


def learned(output: str) -> bool:
    """Whether the losses that the zoo's script prints have fallen: a tiny model that does not learn is no sound run."""
    losses = [float.fromhex(line) for line in output.splitlines() if line.startswith("0x")]
    part = max(1, len(losses) // 10)
    return sum(losses[-part:]) < FALLEN * sum(losses[:part])


def sound(row: dict[str, Any]) -> bool:
    """Whether a run counts: it was trained, it learned, and nothing true was found in it."""
    true = row["group"] in FAMILIES and any(
        row["name"] in TRUE_FINDINGS.get(cause, "").split() for cause, _ in row.get("causes", ())
    )
    return row["verdict"] != "not built" and row.get("learned", True) and not true


def table(rows: list[dict[str, Any]], versions: str) -> str:
    counted = [row for row in rows if sound(row)]
    lines = [
        "# Sound runs",
        "Each of these runs is sound as far as anyone knows: any finding is a false alarm. Each was attached once, with at "
        "most 60 s of tests after its end, by `make healthy` (most on 16 cores with torch 2.11 and transformers 5.17, the rest "
        f"on 2 with {versions}). Runs that a fix concerned were made again after it.",
        "",
        "| group | runs | healthy | inconclusive | called sick |",
        "| --- | --- | --- | --- | --- |",
    ]
    for group, kind in KINDS.items():
        chosen = [row for row in counted if row["group"] == group]
        if chosen:
            lines.append(f"| {group}: {kind} | {counts(chosen)} |")
    lines += [f"| all | {counts(counted)} |", "", "What was not called healthy:", ""]
    lines += ["| run | verdict | why |", "| --- | --- | --- |"]
    for row in sorted(counted, key=lambda row: (row["group"], row["name"])):
        if row["verdict"] != "healthy":
            lines.append(f"| {row['group']} {row['name']} | {row['verdict']} | {said(row)} |")
    left = [row for row in rows if not sound(row) and row["verdict"] != "not built"]
    slow = [f"{row['name']} ({row['group']})" for row in left if not row.get("learned", True)]
    left = [row for row in left if row.get("learned", True)]
    found = [f"{row['name']} ({row['group']}): {said(row)}" for row in left]
    lines += [
        "",
        f"Not counted, what is found there is true ([zoo.md](zoo.md)): {'; '.join(found)}.",
    ]
    if slow:
        lines += ["", f"Not counted, their loss did not fall in so few steps: {', '.join(slow)}."]
    lines += ["", "Every run:", ""]
    for group in KINDS:
        names = [row["name"] for row in counted if row["group"] == group]
        if names:
            lines.append(f"- {group}: {', '.join(sorted(names))}")
    return "\n".join(lines) + "\n"


def said(row: dict[str, Any]) -> str:
    """The causes that were named, or why nothing was decided."""
    found = ", ".join(f"{cause} ({status})" for cause, status in row.get("causes", ()))
    return (found or row.get("detail") or row["verdict"]).replace("|", "\\|")


def counts(rows: list[dict[str, Any]]) -> str:
    verdicts = [row["verdict"] for row in rows]
    healthy, open_, sick = (verdicts.count(w) for w in ("healthy", "inconclusive", "sick"))
    return f"{len(rows)} | {healthy} | {open_} ({100 * open_ / len(rows):.1f} %) | {sick}"


def read_results(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["group"], row["name"]): row for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description="attach to every sound run")
    parser.add_argument("--groups", default=",".join(KINDS))
    parser.add_argument("--only", default="", help="comma separated names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--after", type=float, default=60.0, help="seconds of tests after the end")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per run")
    parser.add_argument("--results", type=Path, default=Path("runs/healthy/results.jsonl"))
    parser.add_argument("--table", type=Path, help="write the table of the results and stop")
    options = parser.parse_args()
    known = read_results(options.results)
    if options.table is not None:
        options.table.write_text(table(list(known.values()), versions()), encoding="utf-8")
        return 0
    only = {name for name in options.only.split(",") if name}
    todo = [p for p in patients(options.groups.split(","), only) if (p.group, p.name) not in known]
    print(f"{len(todo)} runs, {options.jobs} at a time", flush=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    alarms = 0
    with ThreadPoolExecutor(options.jobs) as pool, options.results.open("a") as file:
        made = [pool.submit(examined, one, options.after, options.timeout) for one in todo]
        for future in as_completed(made):
            row = future.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            alarms += row["verdict"] == "sick" and sound(row)
            print(f"{row['group']}/{row['name']:24} {row['verdict']:13} {said(row)}", flush=True)
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
