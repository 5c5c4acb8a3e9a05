"""Two processes with gloo: the loss curve of one process, sharded or not; devices that are not there."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from traindoctor.errors import ConfigError
from traindoctor.lm.checkpoint import load_run
from traindoctor.lm.distributed import World, joined, pick_device
from traindoctor.lm.files import write_json
from traindoctor.lm.loop import train

# Reads the settings that the test wrote into the run folder, as a resumed run does.
RANK = """
import sys
from pathlib import Path
from traindoctor.lm.sources import load_config
from traindoctor.lm.loop import train
run = Path(sys.argv[1])
train(run, load_config(run / "settings.json"))
"""


def in_two_processes(run: Path, config: Any) -> None:
    run.mkdir(exist_ok=True)
    write_json(run / "settings.json", config.to_dict())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(run)],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=1200)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()


def losses(run: Path, name: str = "loss") -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


@pytest.mark.parametrize(
    "shard", [pytest.param(False, id="ddp", marks=pytest.mark.slow), pytest.param(True, id="fsdp2")]
)
def test_two_processes_have_the_curve_of_one(tmp_path: Path, tiny: Any, shard: bool) -> None:
    config = tiny(steps=6, eval_every=3, accumulation=2, sample_tokens=0)
    train(tmp_path / "one", config)
    in_two_processes(tmp_path / "two", config.replace(shard=shard))
    one, two = tmp_path / "one", tmp_path / "two"
    # Adam magnifies the last bits of a gradient; a wrong mean or a shared batch is off by 1e-2.
    assert losses(two) == pytest.approx(losses(one), abs=2e-4)
    assert losses(two, "val_loss") == pytest.approx(losses(one, "val_loss"), abs=2e-4)
    # What two processes wrote, one process reads.
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        mine, theirs = (load_run(run)[0](tokens) for run in (one, two))
    torch.testing.assert_close(theirs, mine, atol=2e-3, rtol=0)
    # And goes on from, with the moments of the optimizer.
    train(one, config.replace(steps=8))
    train(two, config.replace(steps=8))
    assert losses(two)[6:] == pytest.approx(losses(one)[6:], abs=1e-3)


@pytest.mark.slow
def test_two_processes_and_a_clock(tmp_path: Path, tiny: Any) -> None:
    in_two_processes(tmp_path, tiny(minutes=0.2, eval_every=1000, sample_tokens=0))
    # The rate has followed the clock to its end, over many readings of the losses.
    assert len(losses(tmp_path)) > 20
    assert losses(tmp_path, "lr")[-1] < 0.2 * max(losses(tmp_path, "lr"))


def test_a_batch_that_cannot_be_shared_is_told() -> None:
    assert World(size=2).rows(8) == 4
    with pytest.raises(ConfigError, match="choose a multiple of 2"):
        World(size=2).rows(7)


def test_alone_every_method_does_nothing() -> None:
    with joined("cpu") as world:
        assert (world.rank, world.size, world.main) == (0, 1, True)
        world.barrier()
        assert world.any(True)
        assert not world.any(False)
        assert world.first(2.5) == 2.5
        assert world.mean(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_told() -> None:
    assert pick_device("auto").type in ("cpu", "mps")
    with pytest.raises(ConfigError, match="sees no GPU"):
        pick_device("cuda")


@pytest.mark.parametrize("name", ["toaster", "meta"])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="choose auto, cpu, cuda or mps"):
        pick_device(name)
