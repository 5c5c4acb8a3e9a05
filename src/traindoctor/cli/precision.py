"""traindoctor precision: the laboratory as a table, JSON or plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from traindoctor.cli.completion import files, json_option
from traindoctor.errors import TraindoctorError
from traindoctor.record.wording import wrapped
from traindoctor.report import terminal

if TYPE_CHECKING:
    from traindoctor.numerics.precision import Conclusion, Measurement
    from traindoctor.numerics.quarrel import DifferenceTest


@click.command()
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=click.IntRange(min=2),
    help="Vocabulary size; may be repeated.  [default: 34 1003 2004 32000 50257 262144]",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the logits.")
@json_option("Write everything as JSON ('-': standard output).")
@click.option(
    "--plot",
    "plot_file",
    metavar="FILE",
    shell_complete=files,
    help="Draw the errors: .png, .svg or .html.",
)
def command(
    sizes: tuple[int, ...], seed: int, json_file: str | None, plot_file: str | None
) -> None:
    """Measure what summation and dtype do to a softmax, its loss and its gradient.

    Everything is measured here and now, against float64: naive, pairwise and compensated sums, in
    float32, bfloat16 and float16, for small and large logits; then why a right gradient fails a
    finite-difference test with a step of 1e-5 in float32.
    """
    from traindoctor.numerics import precision, quarrel

    if plot_file and Path(plot_file).suffix not in PLOTS:
        raise TraindoctorError(
            f"--plot takes a file ending in {', '.join(PLOTS)}, not {plot_file}; give one of these"
        )
    measurements = precision.measure(sizes=sizes or precision.SIZES, seed=seed)
    conclusions = precision.conclusions(measurements)
    tests = quarrel.quarrel(seed)
    reference = precision.reference_error(seed=seed)
    if json_file:
        _write_json(json_file, measurements, conclusions, tests, reference)
    if json_file != "-":
        console = Console(width=terminal.width_of(sys.stdout))
        _print(console, measurements, conclusions, tests, reference)
    if plot_file:
        draw(Path(plot_file), measurements, tests)
        if json_file != "-":
            click.echo(f"plot: {plot_file}")


def _write_json(
    file: str,
    measurements: Sequence[Measurement],
    conclusions: Sequence[Conclusion],
    tests: Sequence[DifferenceTest],
    reference: float | None,
) -> None:
    text = json.dumps(
        {
            "measurements": [_finite(asdict(m)) for m in measurements],
            "conclusions": [_finite(asdict(c)) for c in conclusions],
            "finite_differences": [_finite(asdict(t)) for t in tests],
            "reference_error": reference,
        },
        indent=1,
        allow_nan=False,
    )
    if file == "-":
        click.echo(text)
    else:
        Path(file).write_text(text + "\n")


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN: null."""
    bad = (float("inf"), float("-inf"))
    return {k: None if isinstance(v, float) and (v != v or v in bad) else v for k, v in row.items()}


def _print(
    console: Console,
    measurements: Sequence[Measurement],
    conclusions: Sequence[Conclusion],
    tests: Sequence[DifferenceTest],
    reference: float | None,
) -> None:
    methods = list(dict.fromkeys(m.method for m in measurements))
    title = "Worst relative error against float64 (denominator/loss/gradient)"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    for name in ("V", "dtype", "logits"):
        table.add_column(name)
    for method in methods:
        table.add_column(method, justify="right", overflow="fold")
    rows: dict[tuple[int, str, str], dict[str, Measurement]] = {}
    for m in measurements:
        rows.setdefault((m.vocabulary, m.dtype, m.scale), {})[m.method] = m
    for (V, dtype, scale), found in rows.items():
        cells = [
            "/".join(map(short, (found[k].denominator, found[k].loss, found[k].gradient)))
            for k in methods
        ]
        table.add_row(str(V), dtype, scale, *cells)
    console.print(table)
    console.print("\nDoes the way of adding change the loss or the gradient? It ...")
    for c in conclusions:
        lead = f"  V = {c.vocabulary:<7} {c.dtype:<9} "
        for line in wrapped(c.text, console.width, lead, " " * len(lead)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if reference is None:
        console.print("  (float64 itself was not checked: pip install mpmath)")
    else:
        console.print(f"  float64 itself is right to {reference:.0e} (50-digit arithmetic, V = 34)")
    _print_quarrel(console, tests)


def short(value: float) -> str:
    """One digit that matters: 4e-8, 0.3, 20."""
    rounded = float(f"{value:.0e}")
    if rounded == 0 or 0.01 <= abs(rounded) < 1000:
        return f"{rounded:g}"
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _print_quarrel(console: Console, tests: Sequence[DifferenceTest]) -> None:
    from traindoctor.numerics import quarrel

    table = Table(
        title="Finite differences of a RIGHT gradient (V = 50)", box=None, padding=(0, 2, 0, 0)
    )
    for name in ("dtype", "step h", "failed", "mean error", "rounding u|L|/h", "curvature h²"):
        table.add_column(name, justify="right")
    for t in tests:
        table.add_row(
            t.dtype,
            short(t.step),
            f"{t.failures} of {t.checks}",
            short(t.mean_error),
            short(t.rounding),
            short(t.curvature),
        )
    console.print()
    console.print(table)
    disputed, right = quarrel.settle(list(tests))
    text = (
        f"With h = {short(disputed.step)} in float32, {disputed.failures} of {disputed.checks} checks "
        f"of a right gradient fail: rounding alone is {short(disputed.rounding)} of a coordinate. In "
        f"float64 with h = {short(right.step)}, {right.failures} fail (mean error {short(right.mean_error)})."
    )
    console.print("\n".join(wrapped(text, console.width)), highlight=False, markup=False)


PLOTS = (".png", ".svg", ".html")


def draw(file: Path, measurements: Sequence[Measurement], tests: Sequence[DifferenceTest]) -> None:
    """Errors over the vocabulary, one panel per dtype, and the finite-difference curves."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise TraindoctorError(
            "--plot needs matplotlib, which is not installed: pip install 'traindoctor[plots]'"
        ) from error
    dtypes = list(dict.fromkeys(m.dtype for m in measurements))
    methods = list(dict.fromkeys(m.method for m in measurements))
    figure, axes = pyplot.subplots(1, len(dtypes) + 1, figsize=(4 * len(dtypes) + 4.5, 3.8))
    for axis, dtype in zip(axes, dtypes):
        for method in methods:
            here = [m for m in measurements if m.dtype == dtype and m.method == method]
            sizes = sorted({m.vocabulary for m in here})
            worst = [max(m.denominator for m in here if m.vocabulary == V) for V in sizes]
            axis.loglog(sizes, worst, marker="o", label=method)
        axis.set(title=f"softmax denominator, {dtype}", xlabel="vocabulary")
        axis.legend()
    axes[0].set_ylabel("worst relative error")
    for dtype, colour in (("float32", "tab:red"), ("float64", "tab:green")):
        here_tests = [t for t in tests if t.dtype == dtype]
        steps = [t.step for t in here_tests]
        axes[-1].loglog(steps, [t.mean_error for t in here_tests], "o-", color=colour, label=dtype)
        rounding = [t.rounding for t in here_tests]
        axes[-1].loglog(steps, rounding, ":", color=colour, label=f"u |L| / h, {dtype}")
    curvature = [t.curvature for t in here_tests]
    floor = min(rounding)
    shown = [(h, c) for h, c in zip(steps, curvature) if c >= floor]
    axes[-1].loglog(*zip(*shown), "--", color="grey", label="curvature, h²")
    axes[-1].set(title="finite differences of a right gradient", xlabel="step h")
    axes[-1].set_ylabel("mean relative error")
    axes[-1].legend(loc="lower left", fontsize="small")
    figure.tight_layout()
    if file.suffix == ".html":
        import io

        drawing = io.StringIO()
        figure.savefig(drawing, format="svg")
        svg = drawing.getvalue()
        file.write_text("<!doctype html><meta charset=utf-8>\n" + svg[svg.index("<svg") :])
    else:
        figure.savefig(file, dpi=120)
    pyplot.close(figure)
