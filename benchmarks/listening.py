"""What watching costs a step: the same training plain and attached, two processes that take turns step by step.

    python benchmarks/listening.py                       # steps of about 10 ms, CPU and wall time
    python benchmarks/listening.py --batch 64            # longer steps
    python benchmarks/listening.py --load 1              # beside so many competing processes
    python benchmarks/listening.py --pairs 16 --jobs 8   # so many pairs, so many at a time, each on a core of its own
    python benchmarks/listening.py --control             # both arms plain: what a pair shows without us

Both arms are on one core and take turns of `--turn` steps, so whatever else the machine does slows both. (With turns of
one step each arm would find the caches full of the other's data at every step, which no run of its own does.)
While the other arm has its turn the clock of an arm stands still: the tool earns nothing from waiting. The first `--skip`
seconds are left out: there the budget is spent up front. Printed for each pair: milliseconds a step and the difference,
and what the tool says itself. CPU time is that of all threads.

Two processes that do the same differ by up to 3 % of a step, all their life: where their memory lies decides what the
caches hold. So one pair tells nothing below that, and the last line is the mean over all pairs with its standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Ends with the benchmark, however that ends.
RIVAL = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


class Turns:
    """One byte goes round: who has it makes some steps. Time spent without it is taken off this process's clock."""

    def __init__(self, read: int, write: int, steps: int) -> None:
        self.read, self.write, self.waited = read, write, 0.0
        self.steps, self.made = steps, 0
        self.alone = False
        self.clock = time.perf_counter
        time.perf_counter = lambda: self.clock() - self.waited

    def begin(self) -> None:
        if not self.alone and self.made % self.steps == 0:
            began = self.clock()
            self.alone = not os.read(self.read, 1)
            self.waited += self.clock() - began

    def end(self) -> None:
        self.made += 1
        if not self.alone and self.made % self.steps == 0:
            try:
                os.write(self.write, b".")
            except BrokenPipeError:
                self.alone = True


def train(options: argparse.Namespace) -> None:
    """The patient: 6 layers, 78 tensors, AdamW, clipping, a schedule, a DataLoader."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    turns = Turns(*map(int, options.turns.split(",")), options.turn)
    # As a progress bar or a logger would: a process with one thread only has cheaper locks.
    threading.Thread(target=threading.Event().wait, daemon=True).start()
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
    cpu, wall, skipped, batches = [], [], 0, iter(loader)
    began = time.perf_counter()
    while not turns.alone and time.perf_counter() - began < options.seconds:
        turns.begin()
        cpu.append(time.process_time())
        wall.append(time.perf_counter())
        skipped += wall[-1] - began < options.skip
        rows = next(batches, None)
        if rows is None:
            batches = iter(loader)
            rows = next(batches)
        x = model[0](rows[:, :-1])
        for layer in model[1:-1]:
            x = layer(x, src_mask=mask, is_causal=True)
        loss = F.cross_entropy(model[-1](x).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        turns.end()
    os.close(turns.write)
    Path(options.result).write_text(json.dumps({"cpu": cpu, "wall": wall, "skipped": skipped}))


def main() -> None:
    options = arguments()
    if options.result:
        return train(options)
    cores = sorted(os.sched_getaffinity(0))[: options.jobs]
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in cores:
        free.put(core)
    rows = []

    def on_a_free_core(_: int) -> dict[str, float]:
        core = free.get()
        try:
            return one_pair(options, core)
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        for row in pool.map(on_a_free_core, range(options.pairs)):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if len(rows) > 1:
        print(json.dumps({name: with_error([row[name] for row in rows]) for name in rows[0]}))


def one_pair(options: argparse.Namespace, core: int) -> dict[str, float]:
    rivals = [
        subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", RIVAL])
        for _ in range(options.load)
    ]
    try:
        return measured(options, core)
    finally:
        for rival in rivals:
            rival.kill()


def measured(options: argparse.Namespace, core: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp())
    given = [f"--{k}={getattr(options, k)}" for k in ("batch", "width", "seconds", "skip", "turn")]
    watched = ["-m", "traindoctor", "run", "--quiet", "--after", "0"]
    watched += ["--out", str(folder / "run"), "--json", str(folder / "verdict.json")]
    pipes = {"plain": os.pipe(), "attached": os.pipe()}
    other = {"plain": "attached", "attached": "plain"}
    os.write(pipes["plain"][1], b".")
    processes = []
    for name, command in {"plain": [], "attached": [] if options.control else watched}.items():
        ends = (pipes[name][0], pipes[other[name]][1])
        turns = f"--turns={ends[0]},{ends[1]}"
        script = [__file__, *given, turns, f"--result={folder / name}"]
        pin = ["taskset", "-c", str(core), sys.executable]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen([*pin, *command, *script], env=environment, pass_fds=ends)
        )
    for end in (*pipes["plain"], *pipes["attached"]):
        os.close(end)
    for process in processes:
        if process.wait():
            raise SystemExit("an arm of the benchmark failed")
    arms = {name: json.loads((folder / name).read_text()) for name in pipes}
    skipped = max(arm["skipped"] for arm in arms.values())
    last = min(len(arm["cpu"]) for arm in arms.values()) - 1
    row: dict[str, float] = {"steps": last - skipped}
    for clock in ("cpu", "wall"):
        plain, attached = (
            [1e3 * t for t in arms[name][clock][skipped : last + 1]] for name in pipes
        )
        level = (plain[-1] - plain[0]) / (last - skipped)
        extra = (attached[-1] - attached[0]) / (last - skipped) - level
        row[f"{clock}_plain_ms"] = round(level, 3)
        row[f"{clock}_extra_ms"] = round(extra, 3)
        row[f"{clock}_extra_percent"] = round(100 * extra / level, 3)
    if options.control:
        return row
    from traindoctor.record import open_record

    # Not every step is heard: what a heard one reports is for all since the one before.
    own = open_record(folder / "run")["self.seconds"]
    late = own.values[(own.steps >= skipped) & (own.steps < last)]
    row["reported_ms"] = round(1e3 * float(late.sum()) / (last - skipped), 3)
    row["reported_percent"] = round(100 * row["reported_ms"] / row["wall_plain_ms"], 3)
    return row


def with_error(values: Sequence[float]) -> list[float]:
    """Mean and standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return [round(statistics.fmean(values), 3), round(error, 3)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=90.0, help="of one arm's own time")
    parser.add_argument("--skip", type=float, default=60.0, help="left out at its beginning")
    parser.add_argument("--turn", type=int, default=16, help="steps of one arm in a row")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="pairs at a time")
    parser.add_argument("--load", type=int, default=0, help="competing processes")
    parser.add_argument("--control", action="store_true", help="both arms plain: must be 0")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
