"""Diagnosing a run of many ranks: records of 1,000 ranks and 10,000 steps each, made from a real run of two.

python benchmarks/many_ranks.py [--ranks 1000] [--steps 10000]

One rank's weights go their own way from the middle of the run on: the verdict must say which.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from traindoctor.record import Record, RecordWriter, open_record, record_path

SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(16, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + dist.get_rank())
for step in range(200):
    tokens = torch.cumsum(torch.randint(1, 3, (8, 33)), 1) % 16
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""
# A flush every half second at 60 ms a step: one row per series for each.
FLUSH = 8
# What differs from rank to rank, and what differs on the rank that strays.
OWN = ("loss.root", "batch.fingerprint")
STRAYING = ("weights.crc", "weights.crc_before")
# Another number at every step of a real run: the last one cannot be held.
CHANGING = ("batch.fingerprint", "batch.rowset", "random.crc", "grad.crc", *STRAYING)


def real_run(folder: Path) -> Record:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    watch = ["-m", "traindoctor", "run", "--no-replay", "--out", str(folder / "real"), str(script)]
    subprocess.run([*launch, *watch], check=True, capture_output=True)
    return open_record(folder / "real")


def stretched(real: Record, folder: Path, steps: int) -> Path:
    """The record of a rank, as long as asked for: each series as often as in the real run, its last value held."""
    writer = RecordWriter(folder, rank=0)
    for name, value in real.facts.items():
        writer.fact(name, steps if name == "run.steps" else value)
    for result in real.exam_results:
        writer.exam(result)
    series = {name: real[name] for name in real.names if len(real[name])}
    length = real.num_steps
    for step in range(steps):
        for name, one in series.items():
            every = max(1, length // len(one))
            if step % every == 0:
                value = float(one.values[min(step // every, len(one) - 1)])
                writer.scalar(name, step, value + step if name in CHANGING else value)
        if step % FLUSH == 0:
            writer.flush()
    for name in real.layer_names:
        table = real.layers(name)
        assert table is not None
        for step, row in zip(table.steps.tolist(), table.values):
            writer.layers(name, step, table.layers, row)
    writer.close()
    return record_path(folder)


def of_rank(template: Path, folder: Path, rank: int, strays_from: int | None) -> None:
    file = record_path(folder, rank)
    shutil.copyfile(template, file)
    draw = np.random.default_rng(rank)
    with sqlite3.connect(file) as record:
        record.execute("UPDATE meta SET value = ? WHERE key = 'rank'", (str(rank),))
        ids = dict(record.execute("SELECT name, id FROM series").fetchall())
        for name in OWN if strays_from is None else OWN + STRAYING:
            rows = record.execute(
                "SELECT rowid, steps, numbers FROM points WHERE series = ?", (ids[name],)
            )
            for rowid, at, numbers in rows.fetchall():
                values = np.frombuffer(numbers, np.float64).copy()
                changed = np.frombuffer(at, np.int64) >= (0 if name in OWN else strays_from)
                values[changed] += draw.random(changed.sum())
                record.execute(
                    "UPDATE points SET numbers = ? WHERE rowid = ?", (values.tobytes(), rowid)
                )
    record.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        template = stretched(real_run(folder), folder / "stretched", options.steps)
        run = folder / "run"
        run.mkdir()
        odd = options.ranks // 3
        for rank in range(options.ranks):
            of_rank(template, run, rank, options.steps // 2 if rank == odd else None)
        size = sum(file.stat().st_size for file in run.iterdir())
        print(f"{options.ranks} ranks, {options.steps} steps: {size / 2**30:.1f} GiB of records")
        for command in (["diagnose", str(run)], ["report", str(run), "-o", str(folder / "r.html")]):
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            told = subprocess.run(
                [sys.executable, "-m", "traindoctor", *command], capture_output=True, text=True
            )
            took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(
                f"{command[0]}: {took:.1f} s ({cpu:.1f} s of CPU), at most {after.ru_maxrss / 2**20:.2f} GiB of memory so far"
            )
            print("\n".join((told.stdout or told.stderr).splitlines()[:4]))
            if command[0] == "diagnose" and f"rank {odd}" not in told.stdout:
                raise SystemExit(f"the rank that strays ({odd}) was not named:\n{told.stdout}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
