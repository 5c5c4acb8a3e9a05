"""What `traindoctor train` shows: settings, plan, progress, samples, and what to try next."""

from __future__ import annotations

import json
import math
import shlex
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from traindoctor.cli.live import health, sparkline
from traindoctor.lm.config import RunConfig
from traindoctor.lm.estimate import human_bytes
from traindoctor.lm.presets import PRESETS

if TYPE_CHECKING:
    from traindoctor.diagnosis import Diagnosis
    from traindoctor.doctor import Doctor
    from traindoctor.lm import callbacks

# Lines of a sample that are shown while training goes on.
SAMPLE_LINES = 4
# Samples kept in the record.
SAMPLES_KEPT = 8
# Losses in the little picture beside the bar.
RECENT = 400


class Display:
    """Called back by the loop. Silent on all ranks but the first."""

    def __init__(self, run: Path, config: RunConfig, *, quiet: bool, silent: bool = False) -> None:
        self.run, self.config = run, config
        self.doctor: Doctor | None = None
        self.silent = silent
        self.console = Console(highlight=False, quiet=quiet or silent, soft_wrap=True)
        self.bar: Progress | None = None
        self.task: Any = None
        self.last: callbacks.Progress | None = None
        self.losses: deque[float] = deque(maxlen=RECENT)
        self.samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES_KEPT)
        self._told_settings = False

    def preparing(self, what: str, share: float) -> None:
        self._settings()
        if self.bar is None:
            self._open_bar("{task.description}")
        assert self.bar is not None
        self.bar.update(self.task, description=what, completed=share)

    def plan(self, plan: callbacks.Plan) -> None:
        self._close_bar()
        self._settings()
        length = f"{plan.total_steps:,} steps" if plan.total_steps else "until the time is up"
        unknown = f", {plan.unknown_share:.2%} unknown" if plan.unknown_share else ""
        for title, text in (
            ("run", str(self.run)),
            ("text", f"{plan.train_tokens:,} tokens, {plan.val_tokens:,} for validation{unknown}"),
            ("model", f"{plan.parameters:,} parameters, vocabulary {plan.vocab_size:,}"),
            ("length", length + (f", from step {plan.first_step}" if plan.first_step else "")),
            (
                "on",
                f"{plan.device}, {plan.precision}, about {human_bytes(plan.peak_bytes)} at peak",
            ),
            (
                "start",
                f"a loss near ln {plan.vocab_size} = {plan.expected_first_loss:.3f} is right",
            ),
        ):
            self.console.print(f"[bold]{title:>8}[/]  {text}")
        for warning in plan.warnings:
            self.console.print(f"[yellow]{'note':>8}[/]  {warning}")
        self.console.print()
        self._open_bar("{task.description}")

    def progress(self, now: callbacks.Progress) -> None:
        self.last = now
        self.losses.append(now.loss)
        if self.bar is not None:
            speed = (
                "" if math.isnan(now.tokens_per_second) else f"{now.tokens_per_second:,.0f} tok/s"
            )
            self.bar.update(
                self.task,
                completed=now.share,
                description=f"step {now.step}  loss {now.loss:.3f}  {sparkline(self.losses, 16)}  "
                f"lr {now.lr:.1e}  {speed}  {self._health()}",
            )

    def validation(self, seen: callbacks.Validation) -> None:
        self._keep_sample(seen)
        loss = f"{self.last.loss:.3f}" if self.last else "-"
        mark = "  [green]best[/]" if seen.best else ""
        self.console.print(
            f"[bold]step {seen.step:>6}[/]  training loss {loss}  validation loss {seen.loss:.3f}{mark}"
        )
        lines = [line for line in seen.sample.splitlines() if line.strip()][:SAMPLE_LINES]
        for line in lines:
            self.console.print(Text(f"    | {line}", style="dim"))

    def _keep_sample(self, seen: callbacks.Validation) -> None:
        """The latest texts stand in the record: the page shows them, the checks of generation read them."""
        if self.doctor is None or not seen.sample or not self.doctor.watch.has_record:
            return
        temperature = self.config.train.sample_temperature
        row = {"step": seen.step, "text": seen.sample, "temperature": temperature}
        self.samples.append(row)
        self.doctor.watch.record_writer.fact("text.samples", list(self.samples))

    def interrupted(self) -> None:
        """Said at once: the step in hand may take a while."""
        self.console.print("stopping after this step and saving; Ctrl-C again stops at once")

    def end(self, outcome: callbacks.Outcome) -> None:
        self._close_bar()

    def after(self, outcome: callbacks.Outcome) -> None:
        """The last words, when the doctor has spoken too."""
        self._close_bar()
        if self.silent:
            return
        console = Console(highlight=False, soft_wrap=True)
        run = shlex.quote(str(self.run))
        if outcome.reason == "interrupted":
            console.print(f"\nstopped at step {outcome.step}; everything is saved. Go on with:")
            console.print(f"    traindoctor train --resume {run}")
            return
        why = {"early-stop": " (no improvement for a while)"}.get(outcome.reason, "")
        best = (
            ""
            if math.isinf(outcome.best_loss)
            else (
                f"; best validation loss {outcome.best_loss:.3f} nats per token at step {outcome.best_step}"
            )
        )
        console.print(f"\ndone{why}: {outcome.step:,} steps in {outcome.seconds:.0f} s{best}")
        self._verdict(console)
        console.print(f"the run is in {run}; next:")
        for line in (
            f'traindoctor generate {run} --prompt "The "',
            f"traindoctor ui {run}",
            f"traindoctor export {run} --format hf -o exported",
            f"traindoctor train --resume {run} --steps {2 * outcome.step}",
        ):
            console.print(f"    {line}")

    def _health(self) -> str:
        if self.doctor is None:
            return ""
        return health(tuple(self.doctor.proven), len(self.doctor.asked)) + " "

    @property
    def verdict(self) -> Diagnosis | None:
        """None without a doctor, and where one that was here before will speak later."""
        return self.doctor.diagnosis if self.doctor is not None and self.doctor.finished else None

    def _verdict(self, console: Console) -> None:
        diagnosis = self.verdict
        if diagnosis is None:
            return
        causes = ", ".join(cause.finding.cause for cause in diagnosis.roots)
        console.print(f"verdict: {diagnosis.verdict}{': ' + causes if causes else ''}")

    def _settings(self) -> None:
        """Every setting and, in bold, those that are not the default; once, when they are known to be possible."""
        if self._told_settings:
            return
        self._told_settings = True
        default = RunConfig().flat()
        table = Table.grid(padding=(0, 2))
        line = Text(f"preset {self.config.preset} ({PRESETS[self.config.preset][0]})\n")
        for name, value in self.config.flat().items():
            shown = json.dumps(value) if not isinstance(value, str) else value
            line.append(f"{name}={shown} ", style="bold" if value != default[name] else "dim")
        table.add_row(line)
        self.console.print(table)
        self.console.print()

    def _open_bar(self, columns: str) -> None:
        self._close_bar()
        self.bar = Progress(
            TextColumn(columns, markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=self.console.quiet,
        )
        self.task = self.bar.add_task("", total=1.0)
        self.bar.start()

    def _close_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
