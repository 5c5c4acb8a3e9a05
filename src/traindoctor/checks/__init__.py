"""All checks, family by family, in the order of the pages: each file of a family's folder holds one."""

from importlib import import_module
from pkgutil import iter_modules

from traindoctor.checks.base import Check

NAMES = (
    "data",
    "loss",
    "gradient",
    "optimizer",
    "model",
    "numerics",
    "generalisation",
    "speed",
    "generation",
    "distributed",
)


def found_in(family: str) -> tuple[Check, ...]:
    """The checks of a folder in the order of their codes. Each is named as its file; base.py has what they share."""
    folder = import_module(f"{__name__}.{family}")
    names = [file.name for file in iter_modules(folder.__path__) if file.name != "base"]
    checks = [getattr(import_module(f"{folder.__name__}.{name}"), name) for name in names]
    return tuple(sorted(checks, key=lambda check: check.code))


FAMILIES: dict[str, tuple[Check, ...]] = {family: found_in(family) for family in NAMES}
CHECKS: tuple[Check, ...] = tuple(check for family in FAMILIES.values() for check in family)
BY_SLUG: dict[str, Check] = {check.slug: check for check in CHECKS}
