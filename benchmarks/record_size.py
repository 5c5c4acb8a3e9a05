"""How large a record grows: 100 000 steps of a model of 200 tensors, at the default intervals.

python benchmarks/record_size.py [--steps 100000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from traindoctor.record import RecordWriter, StoredRecord, record_path

TENSORS = 200
# Series written at every step, layer series and how often, as the probes ask for.
SERIES = 48
LAYERS = {"grad.rms": 4, "weight.rms": 10, "update.rms": 10} | dict.fromkeys(
    [
        *("grad.absmax", "grad.zeros", "weight.absmax", "update.lost", "adam.m_rms", "adam.v_rms"),
        *("adam.snr", "adam.step_rms", "act.rms", "act.absmax", "act.zeros", "act.dead"),
    ],
    50,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    # A flush every half second at 60 ms a step: one row per series for each.
    parser.add_argument("--flush", type=int, default=8, help="steps between two flushes")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    writer = RecordWriter(folder)
    names = [f"blocks.{i // 12}.part{i % 12}.weight" for i in range(TENSORS)]
    draw = np.random.default_rng(0)
    began = time.perf_counter()
    for step in range(options.steps):
        for number in range(SERIES):
            writer.scalar(f"series.{number}", step, float(step + number))
        for name, every in LAYERS.items():
            if step % every == 0:
                writer.layers(name, step, names, draw.random(TENSORS, dtype=np.float32))
        if step % options.flush == 0:
            writer.flush()
    writer.close()
    took = time.perf_counter() - began
    size = sum(file.stat().st_size for file in folder.iterdir())
    record = StoredRecord(record_path(folder))
    began = time.perf_counter()
    series = record["series.7"]
    read = time.perf_counter() - began
    began = time.perf_counter()
    table = record.layers("grad.rms")
    read_layers = time.perf_counter() - began
    assert len(series) == options.steps
    assert table is not None
    print(
        f"{options.steps} steps, {TENSORS} tensors: {size / 2**20:.0f} MiB, {1e6 * took / options.steps:.0f} us "
        f"a step; one series read in {read:.2f} s, {len(table)} rows of a layer series in {read_layers:.2f} s"
    )


if __name__ == "__main__":
    main()
