"""The report of a run as one file: the built page with the run's numbers inside. It opens offline."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traindoctor.errors import TraindoctorError
from traindoctor.record import Record
from traindoctor.report.across_ranks import rank_maps, rank_names
from traindoctor.report.downsample import Keep, heat_map, layer_names
from traindoctor.report.page import content_security_policy, page
from traindoctor.report.payload import heat_payload, run_payload, series_names, series_payload

# Zooming into a report shows these points and no more: enough for a screen twice as wide.
POINTS = 1600
COLUMNS = 200
# The page shows the smallest value of these, where small is what matters.
KEEP_SMALLEST = {"act.input_dependence", "attention.entropy"}


def embedded(record: Record, verdict: Mapping[str, Any] | None, *, name: str) -> dict[str, Any]:
    """All that the page would ask a server for."""
    heats = {
        **{
            layer: heat_map(record, layer, columns=COLUMNS, keep=keep_of(layer))
            for layer in layer_names(record)
        },
        **rank_maps(record, rank_names(record), columns=COLUMNS),
    }
    return {
        "run": run_payload(record, name=name, state="ended", verdict=verdict),
        "series": series_payload(record, series_names(record), points=POINTS),
        "layers": {
            name: heat_payload(record, name, heat)
            for name, heat in heats.items()
            if heat is not None
        },
    }


def keep_of(name: str) -> Keep:
    return "min" if name in KEEP_SMALLEST else "max"


def report(record: Record, verdict: Mapping[str, Any] | None, *, name: str) -> str:
    """The page with its data. Nothing in the data can end the block that holds it."""
    data = json.dumps(embedded(record, verdict, name=name), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    built = page()
    policy = html.escape(content_security_policy(built, connect="'none'"))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    block = f'<script type="application/json" id="traindoctor-data">{data}</script>'
    before, found, after = built.partition("<head>")
    assert found, "the built page has no head"
    start, _, end = after.rpartition("</body>")
    return f"{before}{found}{head}{start}{block}</body>{end}"


def write(record: Record, verdict: Mapping[str, Any] | None, path: Path, *, name: str) -> None:
    """Writes the file whole or not at all."""
    text = report(record, verdict, name=name)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(text.encode("utf-8", "replace"))
        part.replace(path)
    except OSError as error:
        raise TraindoctorError(f"cannot write the report to {path}: {error}") from error


class Notebook:
    """Shows a report in a notebook, in a frame that can reach neither the notebook nor the network."""

    def __init__(self, text: str, *, height: int = 900) -> None:
        self.text = text
        self.height = height

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.text)}" '
            f'width="100%" height="{self.height}" frameborder="0"></iframe>'
        )

    def save(self, path: Path | str) -> None:
        Path(path).write_bytes(self.text.encode("utf-8", "replace"))

    def __repr__(self) -> str:
        return "<report of a run: save(path) writes it as one HTML file>"


def notebook(record: Record, verdict: Mapping[str, Any] | None, *, name: str) -> Notebook:
    """What `doctor.report()` gives."""
    return Notebook(report(record, verdict, name=name))
