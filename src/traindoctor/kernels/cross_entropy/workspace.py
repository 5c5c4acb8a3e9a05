"""What launches share: how many programs a device has room for, and what programs leave to each other."""

from __future__ import annotations

from functools import cache

import torch

# Targets that are looked at together, and the least that a program of `valid_first` places.
SLICE = 1024


@cache
def multiprocessors(device: torch.device) -> int:
    """1 in the interpreter, which runs programs one after the other: no two may wait for each other."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class Workspace:
    """What programs that add up a sum leave to each other: kept for each stream, by its addresses."""

    __slots__ = ("counter", "counter_at", "partials", "partials_at", "room", "valid", "valid_at")

    def __init__(self, device: torch.device, programs: int) -> None:
        self.room = programs
        # the count of finished programs, which every launch leaves at 0
        self.counter = torch.zeros(1, dtype=torch.int32, device=device)
        self.partials = torch.empty(2 * programs, dtype=torch.float64, device=device)
        # for a number of valid targets that nobody asked for
        self.valid = torch.empty((), dtype=torch.float64, device=device)
        self.counter_at = self.counter.data_ptr()
        self.partials_at = self.partials.data_ptr()
        self.valid_at = self.valid.data_ptr()


_WORKSPACES: dict[tuple[torch.device, int], Workspace] = {}


def workspace(device: torch.device, programs: int) -> Workspace:
    """Room for two partial sums of each program."""
    stream = 0
    if device.type == "cuda":
        # What a CUDA graph is to set to 0 at each replay must be its own.
        if torch._C._cuda_isCurrentStreamCapturing():
            return Workspace(device, programs)
        stream = torch._C._cuda_getCurrentRawStream(device.index)
    key = (device, stream)
    found = _WORKSPACES.get(key)
    if found is None or found.room < programs:
        found = _WORKSPACES[key] = Workspace(device, programs)
    return found


def slices(N: int, device: torch.device) -> tuple[int, int]:
    """(programs, rows of each) that put the rows that count first."""
    programs = max(1, min(multiprocessors(device), -(-N // SLICE)))
    return programs, -(-N // programs)
