"""What watching costs a short step: the same training plain and attached, each in a process of its own, side by side.

    python benchmarks/listening.py                       # steps of about 10 ms, one core each, CPU and wall time
    python benchmarks/listening.py --batch 32            # longer steps
    python benchmarks/listening.py --load 2              # beside so many competing processes
    python benchmarks/listening.py --seconds 120 --skip 60

Both arms start together and change cores between rounds, so a busy machine slows both. The first `--skip` seconds are
left out: there the budget is spent up front. Printed per round and in the median: milliseconds a step, the difference,
and what the tool says itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def train(options: argparse.Namespace) -> None:
    """The patient: 6 layers, 78 tensors, AdamW, clipping, a schedule, a DataLoader."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, length, vocab = options.width, 32, 64
    layers = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        for _ in range(6)
    ]
    model = nn.Sequential(nn.Embedding(vocab, width), *layers, nn.Linear(width, vocab))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    tokens = torch.randint(0, vocab, (4096, length + 1))
    tokens[:, 1:] = (tokens[:, :-1] * 3 + 1) % vocab
    loader = torch.utils.data.DataLoader(tokens, batch_size=options.batch, shuffle=True)
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    began, cpu, wall = time.monotonic(), [], []
    while time.monotonic() - began < options.seconds:
        for rows in loader:
            c, w = time.process_time(), time.perf_counter()
            x = model[0](rows[:, :-1])
            for layer in model[1:-1]:
                x = layer(x, src_mask=mask, is_causal=True)
            loss = F.cross_entropy(model[-1](x).flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if time.monotonic() - began > options.skip:
                cpu.append(time.process_time() - c)
                wall.append(time.perf_counter() - w)
            if time.monotonic() - began > options.seconds:
                break
    Path(options.result).write_text(json.dumps({"cpu": cpu, "wall": wall}))


def main() -> None:
    options = arguments()
    if options.result:
        return train(options)
    rows = []
    rivals = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)
    ]
    try:
        for number in range(options.rounds):
            rows.append(one_round(options, swapped=number % 2 == 1))
            print(json.dumps(rows[-1]), flush=True)
    finally:
        for rival in rivals:
            rival.kill()
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(json.dumps({"median": middle, "batch": options.batch, "load": options.load}))


def one_round(options: argparse.Namespace, *, swapped: bool) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp())
    given = [f"--{k}={getattr(options, k)}" for k in ("batch", "width", "seconds", "skip")]
    script = [__file__, *given]
    watched = ["-m", "traindoctor", "run", "--quiet", "--after", "0"]
    watched += ["--out", str(folder / "run"), "--json", str(folder / "verdict.json")]
    cores = sorted(os.sched_getaffinity(0))
    commands = {
        "plain": [*script, f"--result={folder / 'plain'}"],
        "attached": [*watched, *script, f"--result={folder / 'attached'}"],
    }
    processes = []
    for number, command in enumerate(commands.values()):
        core = cores[(number + swapped) % len(cores)]
        pin = ["taskset", "-c", str(core)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([*pin, sys.executable, *command], env=environment))
    for process in processes:
        if process.wait():
            raise SystemExit("an arm of the benchmark failed")
    arms = {name: json.loads((folder / name).read_text()) for name in commands}
    row: dict[str, float] = {}
    for clock in ("cpu", "wall"):
        mean = {name: 1e3 * statistics.fmean(arms[name][clock]) for name in arms}
        typical = {name: 1e3 * statistics.median(arms[name][clock]) for name in arms}
        row[f"{clock}_plain_ms"] = mean["plain"]
        row[f"{clock}_extra_ms"] = mean["attached"] - mean["plain"]
        row[f"{clock}_extra_median_ms"] = typical["attached"] - typical["plain"]
        row[f"{clock}_percent"] = 100 * (mean["attached"] / mean["plain"] - 1)
    from traindoctor.record import open_record

    # Not every step is heard: what a heard one reports is for all since the one before.
    record, seen = open_record(folder / "run"), len(arms["attached"]["cpu"])
    own = record["self.seconds"]
    late = own.values[own.steps >= int(record.fact("run.steps")) - seen]
    row["reported_ms"] = 1e3 * float(late.sum()) / seen
    row["reported_percent"] = 100 * row["reported_ms"] / row["wall_plain_ms"]
    return row


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=75.0, help="length of one arm")
    parser.add_argument("--skip", type=float, default=60.0, help="left out at its beginning")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--load", type=int, default=0, help="competing processes")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
