"""Runs the minimal examples of examples/causes/ and keeps what traindoctor says: python tools/examples.py [CAUSE ...]

Beside `missing_zero_grad.py` the verdict is kept as `missing_zero_grad.txt`, which `make docs` shows on the page of the cause.
What depends on the clock (seconds, costs, what there was time to test) is left out of the text.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "causes"
# These runs last seconds: more than the usual budget and time after the end, so that a slow machine leaves no test out.
GENEROUS = ["--budget", "20", "--after", "120"]
# Fields of the terminal's verdict that depend on the clock, or belong to one machine.
LEFT_OUT = {
    "passed",
    "result",
    "cost",
    "not tested",
    "n/a",
    "next",
    "note",
    "to decide",
    "recorded",
}


def main(names: list[str]) -> int:
    failed = []
    for script in scripts(names):
        verdict, text = run(script)
        if said := complaint(verdict, cause_of(script)):
            failed.append(f"{script.name}: {said}")
            print(failed[-1], flush=True)
        else:
            script.with_suffix(".txt").write_text(shown(text), encoding="utf-8")
            print(f"{script.name}: ok", flush=True)
    return 1 if failed else 0


def scripts(names: list[str]) -> list[Path]:
    wanted = {name.replace("-", "_") for name in names}
    return [file for file in sorted(FOLDER.glob("*.py")) if not wanted or file.stem in wanted]


def cause_of(script: Path) -> str:
    return script.stem.replace("_", "-")


def run(script: Path) -> tuple[dict[str, Any], str]:
    """The verdict as JSON and as the terminal shows it; the script runs in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "traindoctor", "run", *GENEROUS]
        done = subprocess.run(
            [*command, "--json", "verdict.json", str(script)],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "88"},
            capture_output=True,
            text=True,
            check=False,
        )
        file = Path(folder) / "verdict.json"
        if done.returncode != 0 or not file.exists():
            raise SystemExit(f"{script.name} failed:\n{done.stderr}")
        return json.loads(file.read_text(encoding="utf-8")), done.stderr


def complaint(verdict: dict[str, Any], cause: str) -> str | None:
    """Why this is not the verdict that the example is there to show."""
    findings = verdict["causes"] or verdict["advice"]
    if not findings:
        return f"{verdict['verdict']}: {verdict['reason']}"
    first = findings[0]
    if first["cause"] != cause or first["status"] == "possible":
        return f"{verdict['verdict']}: {first['cause']} ({first['status']})"
    return None


def shown(text: str) -> str:
    """The verdict without what another run on the same machine would say otherwise."""
    headline, _, rest = "\n".join(judged(text)).partition("\n\n")
    headline = " ".join(headline.split())
    # Steps stay, seconds do not; of a sound run the counts of tests depend on the time there was.
    headline = re.sub(r" \[(\d+ steps?)[^\]]*\].*", r" [\1]", headline)
    rest = (
        re.sub(r"\d[\d.]*(?= %| ms| s\b| of \d[\d.]* ms)", "N", rest) if "  slow " in rest else rest
    )
    rest = rest.strip("\n")
    return f"{headline}\n\n{rest}\n"


def judged(text: str) -> Iterator[str]:
    """The lines from the verdict on, without the fields that are left out."""
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if re.match(r"traindoctor: [A-Z]+[ ,\[]", line)]
    dropping = False
    for line in lines[heads[-1] :]:
        field = re.match(r"  (\S.*?)(  |$)", line)
        if field is not None:
            dropping = any(field[1].startswith(name) for name in LEFT_OUT)
        elif not line.startswith(" " * 13):
            dropping = False
        if not dropping:
            yield line.replace(f"{FOLDER}/", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
