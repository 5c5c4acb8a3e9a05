"""The evidence as PNG files, for a paper, a slide or an issue. Needs matplotlib (the `plots` extra)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from traindoctor.errors import TraindoctorError
from traindoctor.record import Record
from traindoctor.report.downsample import RATIO, heat_map, layer_names, min_max
from traindoctor.report.payload import clipped_steps, in_order

POINTS = 4000
COLUMNS = 400
# More layers than this cannot be named on a picture.
MAX_LABELS = 40

# file -> (title, unit of y, logarithmic, [(series, label), ...])
LINES: dict[str, tuple[str, str, bool, tuple[tuple[str, str], ...]]] = {
    "loss": (
        "Loss",
        "nats",
        False,
        (
            ("loss.token", "per token"),
            ("loss.read", "read by the script"),
            ("loss.root", "what backward got"),
            ("loss.eval", "held out"),
            ("ladder.unigram", "unigram"),
            ("ladder.bigram", "bigram"),
            ("ladder.fivegram", "5-gram"),
        ),
    ),
    "gradient-norm": (
        "Gradient norm",
        "2-norm",
        True,
        (
            ("grad.norm", "before clipping"),
            ("grad.norm_clipped", "after"),
            ("clip.limit", "limit"),
        ),
    ),
    "learning-rate": ("Learning rate", "", False, (("optim.lr", "rate"),)),
    "update-ratio": ("Update to weight ratio", "", True, (("update.ratio", "ratio"),)),
    "time": (
        "Time per part",
        "seconds",
        True,
        (
            ("time.step", "step"),
            ("time.data", "data"),
            ("time.forward", "forward"),
            ("time.backward", "backward"),
            ("time.optimizer", "optimizer"),
        ),
    ),
    "memory": ("Memory", "bytes", False, (("memory.rss", "process"), ("memory.cuda", "device"))),
}
# file -> (title, layer series)
HEATS = {
    "update-ratio-by-layer": ("Update to weight ratio by layer", RATIO),
    "gradient-by-layer": ("Gradient by layer (rms)", "grad.rms"),
    "activations-by-module": ("Activations by module (rms)", "act.rms"),
    "adam-by-layer": ("Adam's signal to noise by layer", "adam.snr"),
}


def write_plots(record: Record, folder: Path) -> list[Path]:
    """One PNG for each picture the record has numbers for."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TraindoctorError(
            "PNG plots need matplotlib: pip install 'traindoctor[plots]'", slug="no-matplotlib"
        ) from error

    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def save(name: str, draw: Callable[[Any], bool]) -> None:
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        if draw(figure):
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=140)
            written.append(path)

    for name in LINES:
        save(name, lambda figure, name=name: draw_lines(figure, record, name))  # type: ignore[misc]
    for name in HEATS:
        save(name, lambda figure, name=name: draw_heat(figure, record, name))  # type: ignore[misc]
    return written


def draw_lines(figure: Any, record: Record, name: str) -> bool:
    title, unit, log, lines = LINES[name]
    axes = figure.add_subplot()
    drawn = 0
    for series_name, label in lines:
        series = record.get(series_name)
        if series is None or not len(series):
            continue
        points = min_max(in_order(series), POINTS)
        aside = series_name.startswith(("ladder.", "clip."))
        axes.plot(
            points.steps,
            np.where(np.isfinite(points.values), points.values, np.nan),
            label=label,
            linewidth=0.9 if aside else 1.2,
            linestyle="--" if aside else "-",
            alpha=0.7 if aside else 1.0,
        )
        drawn += 1
    if not drawn:
        return False
    if name == "loss":
        draw_guessing(axes, record)
    if name == "gradient-norm":
        draw_clipped(axes, record)
    finish(axes, title, unit, log=log)
    return True


def draw_guessing(axes: Any, record: Record) -> None:
    """ln V: the loss of a model that knows nothing."""
    site = record.fact("loss.site")
    classes = site.get("classes") if isinstance(site, dict) else None
    if isinstance(classes, int | float) and classes > 1:
        axes.axhline(
            np.log(classes), color="gray", linestyle=":", label=f"ln {classes:g}, guessing"
        )


def draw_clipped(axes: Any, record: Record) -> None:
    clipped = clipped_steps(record)
    if clipped is not None and clipped.values.any():
        steps = clipped.steps[clipped.values > 0]
        share = clipped.values.mean()
        axes.plot(
            steps[:: max(1, len(steps) // 2000)],
            np.full(len(steps[:: max(1, len(steps) // 2000)]), 0.02),
            "|",
            color="tab:red",
            transform=axes.get_xaxis_transform(),
            label=f"clipped: {share:.0%} of steps",
        )


def draw_heat(figure: Any, record: Record, name: str) -> bool:
    title, layer_series = HEATS[name]
    if layer_series not in layer_names(record):
        return False
    heat = heat_map(record, layer_series, columns=COLUMNS)
    if heat is None or not len(heat.steps):
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.log10(np.abs(heat.values.T))
    table[~np.isfinite(table)] = np.nan
    axes = figure.add_subplot()
    ratio = layer_series == RATIO
    image = axes.imshow(
        table,
        aspect="auto",
        interpolation="nearest",
        extent=(
            heat.steps[0],
            max(heat.steps[-1], heat.steps[0] + 1),
            len(heat.layers) - 0.5,
            -0.5,
        ),
        cmap="RdBu_r" if ratio else "viridis",
        vmin=-5 if ratio else None,
        vmax=-1 if ratio else None,
    )
    if len(heat.layers) <= MAX_LABELS:
        axes.set_yticks(range(len(heat.layers)), heat.layers, fontsize=6)
    figure.colorbar(image, ax=axes, label="log10")
    axes.set_title(title, loc="left")
    axes.set_xlabel("step")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return True


def finish(axes: Any, title: str, unit: str, *, log: bool) -> None:
    positive = any(np.nanmax(line.get_ydata(), initial=0) > 0 for line in axes.get_lines())
    if log and positive:
        axes.set_yscale("log")
    axes.set_title(title, loc="left")
    axes.set_xlabel("step")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
