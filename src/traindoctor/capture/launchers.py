"""What a launcher made of this process, by its environment alone: no torch, no communication."""

from __future__ import annotations

import os
import re

# Variables with a process's number and with how many there are, set for each process that a launcher starts: torchrun,
# accelerate and deepspeed; srun (inside a step: the batch script itself has the first of them too); mpirun.
NUMBERED = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
# What the processes of one job share, and no other job has.
SHARED = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
)


def numbered() -> tuple[str, int, int] | None:
    """The variable that numbers this process, its rank and the world size; None where no launcher started it."""
    for variable, world in NUMBERED:
        try:
            return variable, int(os.environ[variable]), int(os.environ[world])
        except (KeyError, ValueError):
            continue
    return None


def rank() -> int:
    found = numbered()
    return found[1] if found else 0


def world_size() -> int:
    found = numbered()
    return found[2] if found else 1


def identity() -> str | None:
    """Of a rank. What a rank starts itself inherits its variables, and so its identity."""
    found = numbered()
    return f"{found[0]}={found[1]}" if found else None


def job() -> str | None:
    """A name that all ranks of a job have and find by themselves."""
    if numbered() is None:
        return None
    if os.environ.get("MASTER_PORT") and os.environ.get("RANK"):
        return f"{os.environ['MASTER_PORT']}-{os.getppid()}"
    for names in SHARED:
        values = [os.environ.get(name) for name in names]
        if all(values):
            return re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(map(str, values)))
    return None
