"""Memory of this process and of its devices: what is used, and what is left before somebody is killed for it."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# A container's own bound, and what it uses (cgroup 2, cgroup 1).
CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def host_bytes_used() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(file, 128).split()[1]) * PAGE
    finally:
        os.close(file)


def host_peak() -> int:
    """The most resident memory this process ever had; 0 where the system does not say."""
    for line in _text("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def device_bytes_used() -> int:
    """Tensors on all CUDA devices; asking never initialises CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_allocated(n) for n in range(torch.cuda.device_count()))


def host_bytes_left() -> float:
    """What the machine can still give, or the container that this process runs in."""
    return min(_available(), *(_left_in(*files) for files in CONTAINERS))


def device_bytes_left() -> float:
    """On the device that has least: free, or held by torch and not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return math.inf
    left = math.inf
    for number in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(number)
        if reserved:  # a device that the script does not use is not touched
            unused = reserved - torch.cuda.memory_allocated(number)
            left = min(left, torch.cuda.mem_get_info(number)[0] + unused)
    return left


def _available() -> float:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return math.inf


def _left_in(most: str, used: str) -> float:
    limit, now = _text(most).strip(), _text(used).strip()
    return int(limit) - int(now) if limit.isdigit() and now.isdigit() else math.inf


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
