#!/usr/bin/env python3
"""Runs every script of the corpus under `traindoctor run --json` and prints hits, misses, false alarms.

    python corpus/run.py [--jobs 2] [--timeout 300] [--sets cases,twins,own] [--only c001,c002] [--out FOLDER] [--keep]

Verdicts and logs stay in FOLDER (runs/corpus by default), so that `score.py` can read them again; with --keep the records as well. Exit status 1
when a sick script is missed, a cause is first in less than 90 %, or a healthy script is called sick.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import score

HERE = Path(__file__).parent
# Issue's bars: all sick found, the cause first in nine of ten, no false alarm.
BAR = (1.0, 0.9, 0.0)


@dataclass(frozen=True)
class Job:
    """One script, its truth and where its verdict goes."""

    set: str
    name: str
    script: Path
    truth: dict[str, object]


def jobs_of(sets: list[str], only: set[str]) -> list[Job]:
    listed = []
    shared = score.load_truth(HERE / "truth.json")
    own = score.load_truth(HERE / "own" / "truth.json")
    sound: dict[str, object] = {"cause": None, "accept": []}
    sources = {
        "cases": {name: (HERE / "cases" / f"{name}.py", truth) for name, truth in shared.items()},
        "twins": {file.stem: (file, sound) for file in sorted((HERE / "twins").glob("*.py"))},
        "own": {name: (HERE / "own" / f"{name}.py", truth) for name, truth in own.items()},
    }
    for chosen in sets:
        for name, (script, truth) in sources[chosen].items():
            if not only or name in only or f"{chosen}/{name}" in only:
                listed.append(Job(chosen, name, script, dict(truth)))
    return listed


def runs_here(job: Job) -> bool:
    """Some faults show on a GPU only; without one their scripts are left out, and said so."""
    if job.truth.get("needs") != "cuda":
        return True
    import torch

    if not torch.cuda.is_available():
        print(f"{job.set}/{job.name}  needs a CUDA device: not run", flush=True)
    return torch.cuda.is_available()


def run_one(job: Job, out: Path, timeout: float, after: float, *, keep: bool = False) -> float:
    """Runs one script; gives its wall seconds. Never raises: what went wrong is in the log."""
    folder = out / job.set
    folder.mkdir(parents=True, exist_ok=True)
    verdict = folder / f"{job.name}.json"
    verdict.unlink(missing_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    begin = time.perf_counter()
    kept = folder / f"{job.name}.run"
    if keep:
        shutil.rmtree(kept, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch, (folder / f"{job.name}.log").open("w") as log:
        command = [
            *(sys.executable, "-m", "traindoctor", "run", "--json", str(verdict.resolve())),
            *(
                "--out",
                str(kept.resolve() if keep else Path(scratch) / "run"),
                "--after",
                str(after),
                str(job.script.resolve()),
            ),
        ]
        try:
            # A folder of its own: scripts write checkpoints where they stand.
            subprocess.run(
                command, cwd=scratch, env=environment, stdout=log, stderr=log, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            log.write(f"\ncorpus: stopped after {timeout} s\n")
    seconds = time.perf_counter() - begin
    if verdict.exists():
        said = json.loads(verdict.read_text(encoding="utf-8"))
        verdict.write_text(json.dumps({**said, "wall_seconds": round(seconds, 1)}, indent=1))
    return seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="run the corpus under traindoctor")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per script")
    parser.add_argument(
        "--after", type=float, default=30.0, help="seconds for exams after a script's end"
    )
    parser.add_argument("--sets", default="cases,twins,own")
    parser.add_argument("--only", default="", help="comma separated names, or set/name")
    parser.add_argument("--out", type=Path, default=Path("runs/corpus"))
    parser.add_argument("--keep", action="store_true", help="keep the records too")
    options = parser.parse_args(arguments)
    only = {name for name in options.only.split(",") if name}
    jobs = jobs_of(options.sets.split(","), only)
    if not jobs:
        parser.error("no script has that name")
    jobs = [job for job in jobs if runs_here(job)]

    def work(job: Job) -> score.Row:
        seconds = run_one(job, options.out, options.timeout, options.after, keep=options.keep)
        row = score.read_row(job.name, job.truth, options.out / job.set)
        said = row.causes[0] if row.causes else "-"
        print(f"{job.set}/{job.name}  {seconds:5.0f} s  {row.result:<12} {said}", flush=True)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(work, jobs))
    by_set: dict[str, list[score.Row]] = {}
    for job, row in zip(jobs, rows):
        by_set.setdefault(job.set, []).append(row)
    for chosen, part in by_set.items():
        print(f"\n== {chosen}\n{score.table(part)}\n\n{score.totals(part)}")
    if len(by_set) > 1:
        print(f"\n== all\n{score.totals(rows)}")
    return 0 if score.meets(rows, *BAR) else 1


if __name__ == "__main__":
    sys.exit(main())
