"""What a record's cells may hold. Everything that reads a record builds on it, so it is looked at once, here:
a value of another kind is a ValueError that says what was expected.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.plain_files import parse_json
from traindoctor.record.schema import ExamResult, Note
from traindoctor.record.text import readable

# A step a millisecond for thirty years. Before the first step counts as -1.
FIRST_STEP, LAST_STEP = -1, 10**12
# Seconds since 1970, up to the year 5000: what every calendar function takes.
LAST_TIME = 1e11
LONGEST_NAME = 10_000
OUTCOMES = ("done", "refused", "not-applicable", "failed")
VERDICTS = ("healthy", "sick", "inconclusive")

_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def from_json(text: Any) -> Any:
    """A stored value: what JSON lacks comes back as a number, what no terminal should see is written out."""
    return _restored(parse_json(expect(text, str, "text")))


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        return _NUMBERS[value] if value in _NUMBERS else readable(value)
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if isinstance(value, dict):
        return {readable(key): _restored(item) for key, item in value.items()}
    return value


def expect(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{what} is expected, not {type(value).__name__}")
    return value


def column_of(value: Any) -> str:
    """A parameter or module; the outermost module has no name."""
    return name_of(value) if value != "" else ""


def name_of(value: Any) -> str:
    name = str(expect(value, str, "a name"))
    if not name or len(name) > LONGEST_NAME:
        raise ValueError(f"a name has {len(name)} characters")
    return readable(name)


def meta_value(key: Any, value: Any) -> tuple[str, Any]:
    name, read = name_of(key), from_json(value)
    if name in ("format", "rank") and not _is_count(read):
        raise ValueError(f"its {name} is not a number")
    if name == "created" and not (_is_number(read) and 0 <= read <= LAST_TIME):
        raise ValueError("its time of creation is not a time")
    return name, read


def fact_value(name: Any, value: Any) -> tuple[str, Any]:
    key, read = name_of(name), from_json(value)
    if key in FACTS and not FACTS[key][0](read):
        raise ValueError(f"{FACTS[key][1]} is expected under {key!r}")
    return key, read


def exam_result(
    exam: Any, step: Any, outcome: Any, numbers: Any, reason: Any, seconds: Any
) -> ExamResult:
    if outcome not in OUTCOMES:
        raise ValueError(f"an exam ended neither as {', '.join(OUTCOMES[:-1])} nor {OUTCOMES[-1]}")
    values = from_json(numbers)
    if not isinstance(values, dict):
        raise ValueError("the numbers of an exam are not named")
    return ExamResult(
        name_of(exam),
        step_number(0 if step is None else step),
        outcome,
        values,
        readable(expect(reason or "", str, "a reason")),
        _seconds(seconds),
    )


def note(time: Any, level: Any, text: Any) -> Note:
    return Note(_seconds(time), name_of(level), readable(expect(text, str, "a note")))


def step_number(step: Any) -> int:
    if not (type(step) is int and FIRST_STEP <= step <= LAST_STEP):
        raise ValueError("one of its steps is not a step")
    return step


def points(
    steps: Sequence[Any], values: Sequence[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The numbers of one series, as they were written one run of steps after the other."""
    for some_steps, some_values in zip(steps, values, strict=True):
        size = len(expect(some_steps, bytes, "a list of steps"))
        if size % 8 or size != len(expect(some_values, bytes, "a list of numbers")):
            raise ValueError(f"{size / 8:g} steps have {len(some_values) / 8:g} numbers")
    at = np.frombuffer(b"".join(steps), dtype=np.int64)
    numbers = np.frombuffer(b"".join(values), dtype=np.float64)
    if len(at) and not (at.min() >= FIRST_STEP and at.max() <= LAST_STEP):
        raise ValueError("its steps are not steps")
    return at, numbers


def layer_columns(text: Any) -> tuple[str, ...]:
    columns = parse_json(expect(text, str, "a list of layers"))
    return tuple(column_of(column) for column in expect(columns, list, "a list of layers"))


def layer_row(step: Any, blob: Any, columns: int) -> tuple[int, NDArray[np.float32]]:
    numbers = np.frombuffer(expect(blob, bytes, "a row of numbers"), dtype=np.float32)
    if len(numbers) != columns:
        raise ValueError(f"{columns} layers have {len(numbers)} numbers")
    return step_number(step), numbers


def _seconds(value: Any) -> float:
    if value is None:
        return 0.0
    if not (_is_number(value) and math.isfinite(value) and abs(value) <= LAST_TIME):
        raise ValueError("a time is not a time")
    return float(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0 and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LAST_STEP


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _is_parameters(value: Any) -> bool:
    return _is_rows(value) and all(
        isinstance(row.get("name"), str) and _is_counts(row.get("shape")) for row in value
    )


def _is_verdict(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("verdict") not in VERDICTS:
        return False
    lists = [value.get(name) or [] for name in ("causes", "symptoms", "ruled_out", "not_judged")]
    causes = value.get("causes") or []
    return all(map(_is_rows, lists)) and all(isinstance(c.get("cause"), str) for c in causes)


def _or_nothing(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _maps(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(test, value.values()))


def _is_loss_site(value: Any) -> bool:
    return isinstance(value, dict) and (
        value.get("classes") is None or _is_amount(value.get("classes"))
    )


# Facts that are read outside of the checks (a check that cannot read a fact judges nothing, and says so).
FACTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "run.steps": (_is_count, "a count of steps"),
    "run.seconds": (_is_amount, "a number of seconds"),
    "run.total_steps": (_or_nothing(_is_count), "a count of steps"),
    "self.listener_seconds": (_is_amount, "a number of seconds"),
    "stages.taped": (_or_nothing(_is_counts), "a list of stages"),
    "watch.ended": (_or_nothing(lambda value: isinstance(value, str)), "a sentence"),
    "doctor.proven": (_maps(_is_count), "a step for each cause"),
    "doctor.unmade": (_or_nothing(_is_names), "a list of exams"),
    "doctor.asked": (_maps(_is_names), "a list of causes for each exam"),
    "verdict": (_is_verdict, "a verdict"),
    "loss.site": (_or_nothing(_is_loss_site), "a place in the script"),
    "text.samples": (_or_nothing(_is_rows), "a list of texts"),
    "model.parameters": (_or_nothing(_is_parameters), "a list of parameters"),
    "schedule": (_or_nothing(_is_rows), "a list of schedulers"),
    "ranks": (_or_nothing(lambda value: isinstance(value, dict)), "what is known of the ranks"),
}
