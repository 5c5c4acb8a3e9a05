"""Freed memory is kept for the next step: no page is asked for twice."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from traindoctor.lm.heap import SETTINGS

# Takes and frees 20 x 16 MB, some times over, and prints the page faults of the last time.
SCRIPT = """
import ctypes, resource, sys
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
if "keep" in sys.argv:
    from traindoctor.lm.heap import keep_freed_memory
    assert keep_freed_memory() is ("asked otherwise" not in sys.argv)
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    taken = [library.malloc(16 << 20) for _ in range(20)]
    for address in taken:
        library.memset(address, 1, 16 << 20)
    for address in taken:
        library.free(address)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


def faults(*words: str, **settings: str) -> int:
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(ended.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this system's malloc is another")
def test_freed_memory_is_kept_unless_the_user_has_said_how() -> None:
    pages = 20 * (16 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert faults() > pages // 2
    assert faults("keep") < pages // 100
    assert faults("keep", "asked otherwise", MALLOC_TRIM_THRESHOLD_="0") > pages // 2
