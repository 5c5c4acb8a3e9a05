"""Two recorded runs side by side, before and after a change: did it help? `compare_runs(a, b).headline` says it in a sentence."""

import math
from dataclasses import dataclass
from typing import Any

from traindoctor.compare.run_differences import curve_rows, law_rows, verdict_rows
from traindoctor.compare.run_headline import Told
from traindoctor.compare.run_lines import lines_of
from traindoctor.compare.run_losses import Losses, first_losses, losses, measure_of, same_data
from traindoctor.compare.run_rows import Row, said_pair
from traindoctor.compare.run_scripts import Scripts, scripts
from traindoctor.compare.run_settings import environment_rows, setting_rows
from traindoctor.diagnosis import diagnose
from traindoctor.record import Record
from traindoctor.record.wording import counted

# 1 (2026-11): first form.
FORMAT = 1


@dataclass(frozen=True)
class RunComparison:
    """What differs between two runs, A and B; `lines()` is a text, `as_dict()` plain data."""

    titles: tuple[str, str]
    """What A and B are called: their folders."""
    headline: str
    remarks: tuple[str, ...]
    """Why the two may differ by more than the change, or cannot be compared."""
    different: bool
    """In their verdict, their settings, or their losses by more than noise."""
    verdict: tuple[Row, ...]
    laws: tuple[Row, ...]
    """How many tests ended how, then the causes of which the runs show something else."""
    losses: Losses | None
    """None where they have no loss in common."""
    curves: tuple[Row, ...]
    settings: tuple[Row, ...]
    environment: tuple[Row, ...]
    script: Scripts

    def as_dict(self) -> dict[str, Any]:
        """Plain data; NaN and infinity become strings, because JSON has none."""
        sections = ("verdict", "laws", "curves", "settings", "environment")
        return {
            "format": FORMAT,
            "titles": list(self.titles),
            "headline": self.headline,
            "remarks": list(self.remarks),
            "different": self.different,
            **{name: [row.as_dict() for row in getattr(self, name)] for name in sections},
            "losses": None if self.losses is None else self.losses.as_dict(),
            "script": {
                "state": self.script.state,
                "said": self.script.said,
                "diff": list(self.script.diff),
            },
        }

    def lines(self, width: int = 80) -> list[str]:
        """The whole comparison as text, no line longer than `width` (40 at least)."""
        notes = [*self.remarks, *_course(self.losses)]
        sections = {
            "verdict": self.verdict,
            "laws and tests": self.laws,
            "curves": self.curves,
            "settings": self.settings,
            "environment": self.environment,
        }
        return lines_of(self.titles, self.headline, notes, sections, self.script, width)


def compare_runs(a: Record, b: Record, *, titles: tuple[str, str] = ("A", "B")) -> RunComparison:
    """`compare_runs(open_record("runs/before"), open_record("runs/after"))` judges both with today's checks."""
    first, second = diagnose(a), diagnose(b)
    curves, (data, since) = losses(a, b), same_data(a, b)
    set_to, texts = setting_rows(a, b), scripts(a, b)
    told = Told(
        first,
        second,
        curves,
        data,
        since,
        settings_differ=any(row.differs for row in set_to),
        scripts_differ=texts.state == "differ",
    )
    return RunComparison(
        titles,
        told.headline(),
        tuple(_remarks(a, b, told)),
        told.different,
        verdict_rows(first, second),
        law_rows(first, second),
        curves,
        curve_rows(a, b, measure_of(a, b)),
        set_to,
        environment_rows(a, b),
        texts,
    )


def _course(one: Losses | None) -> list[str]:
    """From where on the curves differ, in a sentence."""
    if one is None:
        return []
    steps = counted(one.common, "step")
    if one.first_difference is None:
        return [f"the {one.measure} is equal to the last bit at all of {steps} that both measured"]
    text = f"of {steps} that both measured, the {one.measure} differs first at step {one.first_difference}"
    if math.isnan(one.noise):
        return [text]
    noise = f"their noise ({one.noise:.2g}: what they change from step to step)"
    if one.first_beyond_noise is None:
        return [f"{text}, and never by much more than {noise}"]
    return [f"{text}, and clearly beyond {noise} from step {one.first_beyond_noise} on"]


def _remarks(a: Record, b: Record, told: Told) -> list[str]:
    """What else may have made the difference."""
    remarks = []
    if told.data == "differ":
        remarks.append(
            f"the batches differ from step {told.since} on: other rows, another order or other targets"
        )
    elif told.data == "unknown":
        remarks.append("the records do not tell whether both were trained on the same batches")
    if (start := first_losses(a, b)) is not None:
        before = said_pair(*start)
        remarks.append(
            f"before the first step, on the same batch, the loss is {before[0]} in A and {before[1]} in B: other initial weights "
            "(another seed) or another loss, so a part of any difference may be chance"
        )
    if a.num_steps != b.num_steps:
        remarks.append(f"A has {counted(a.num_steps, 'step')}, B {counted(b.num_steps, 'step')}")
    for name, one in (("A", told.a), ("B", told.b)):
        if one.verdict == "running":
            remarks.append(f"the record of {name} has no end: it is still running, or was killed")
    return remarks
