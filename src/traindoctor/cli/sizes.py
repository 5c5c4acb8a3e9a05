"""Sizes of memory as people write them: 512M, 2G, 1.5 GiB."""

import re
from typing import Any

import click

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


class Bytes(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments there
    """A number of bytes."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        found = _SIZE.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not a size: write it as 512M or 2G", param, ctx)
        return int(float(found[1]) * 2 ** UNITS[found[2].upper()])
