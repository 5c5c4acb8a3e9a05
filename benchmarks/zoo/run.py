"""The zoo: every architecture that the installed `transformers` knows, trained plain and attached. Are they the same run?

    python benchmarks/zoo/run.py --jobs 8                     # every causal architecture: about twenty minutes on 8 cores
    python benchmarks/zoo/run.py --only llama mamba cohere
    python benchmarks/zoo/run.py --family masked --device cuda
    python benchmarks/zoo/run.py --table docs/zoo.md          # the table of what was measured so far

Nothing is downloaded. Results are lines of JSON in `--results`; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from architectures import FAMILIES, architectures, versions

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
TRAIN = HERE / "train_one.py"
CANNOT_BE_BUILT = 3
# An attached run may take so many times the plain one's time and so many seconds more.
FACTOR, SECONDS = 1.5, 10.0
# A process is stopped after so long: plain, and attached in terms of plain (what is late is still told from a hang).
PLAIN_TIMEOUT, ATTACHED_TIMEOUT = 600.0, 10.0
AFTER_THE_END = 5.0


def main() -> None:
    options = read_arguments()
    known = {} if options.again else read_results(options.results)
    if options.table is not None:
        options.table.write_text(table(list(known.values())))
        return
    names = options.only or architectures(options.family)
    todo = [name for name in names if (options.family, options.device, name) not in known]
    print(f"{len(todo)} of {len(names)} to do, {options.jobs} at a time", flush=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool, options.results.open("a") as file:
        for measured in as_completed([pool.submit(measure, name, options) for name in todo]):
            row = measured.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            known[options.family, options.device, row["architecture"]] = row
            print(f"{row['architecture']:28} {row['outcome']:16} {row['detail']}", flush=True)
    bad = [row for row in known.values() if row["outcome"] in BAD]
    if bad:
        sys.exit(
            f"{len(bad)} runs were changed, broken or slowed: {', '.join(r['architecture'] for r in bad)}"
        )


def read_arguments() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description="plain and attached runs of every architecture")
    arguments.add_argument("--family", choices=FAMILIES, default="causal")
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--jobs", type=int, default=1)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--only", nargs="+", metavar="NAME")
    arguments.add_argument("--results", type=Path, default=Path("runs/zoo/results.jsonl"))
    arguments.add_argument("--again", action="store_true", help="measure what is known, too")
    arguments.add_argument("--table", type=Path, help="write the table of the results and stop")
    return arguments.parse_args()


def read_results(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["family"], row["device"], row["architecture"]): row for row in rows}


# -- one architecture ------------------------------------------------------------------------------

BAD = ("other losses", "hang", "crash", "too slow", "nothing seen")


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plain, then attached, one after the other in processes of their own."""
    folder = Path(tempfile.mkdtemp(prefix="zoo-"))
    try:
        train = [str(TRAIN), name, "--family", options.family]
        train += ["--device", options.device, "--steps", str(options.steps)]
        row: dict[str, Any] = {
            "architecture": name,
            "family": options.family,
            "device": options.device,
            "versions": versions(),
            "steps": 0,
        }
        plain = run([sys.executable, *train], PLAIN_TIMEOUT)
        row["plain_seconds"] = round(plain["seconds"], 2)
        if plain["status"] != 0:
            why = "not within the time" if plain["status"] is None else last_line(plain["errors"])
            return {**row, "outcome": "not built", "detail": why.removeprefix("cannot be built: ")}
        doctor = [sys.executable, "-m", "traindoctor", "run", "--out", str(folder / "run")]
        doctor += ["--after", str(AFTER_THE_END)]
        limit = ATTACHED_TIMEOUT * (plain["seconds"] + SECONDS)
        attached = run([*doctor, *train], limit)
        row["attached_seconds"] = round(attached["seconds"], 2)
        row["plain_cpu"], row["attached_cpu"] = round(plain["cpu"], 2), round(attached["cpu"], 2)
        row |= recorded(folder / "run")
        again = lambda: run([sys.executable, *train], PLAIN_TIMEOUT)  # noqa: E731
        return {**row, **judged(plain, attached, row, again)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judged(
    plain: dict[str, Any], attached: dict[str, Any], row: dict[str, Any], again: Any
) -> dict[str, str]:
    seconds = attached["seconds"]
    if attached["status"] is None:
        return {"outcome": "hang", "detail": f"stopped after {seconds:.0f} s"}
    if attached["status"] != 0:
        return {"outcome": "crash", "detail": last_line(attached["errors"])}
    if attached["output"] != plain["output"]:
        if again()["output"] != plain["output"]:
            return {"outcome": "not repeatable", "detail": "two plain runs differ as well"}
        return {"outcome": "other losses", "detail": first_difference(plain, attached)}
    if not row["steps"]:
        return {"outcome": "nothing seen", "detail": last_line(attached["errors"])}
    # Beside other programs the wall clock says little: then the CPU's time must be too long as well.
    if all(attached[clock] > FACTOR * plain[clock] + SECONDS for clock in ("seconds", "cpu")):
        return {
            "outcome": "too slow",
            "detail": f"{plain['seconds']:.1f} s plain, {seconds:.1f} s attached",
        }
    return {"outcome": "same", "detail": row["verdict"]}


def run(command: list[str], timeout: float) -> dict[str, Any]:
    """Status (None: stopped by the clock), output, errors, seconds, seconds of CPU time."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        pid = 0
        while not pid and time.perf_counter() - began < timeout:
            time.sleep(0.05)
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        took = time.perf_counter() - began
        if not pid:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it again
        output.seek(0)
        errors.seek(0)
        return {
            "status": process.returncode if pid else None,
            "output": output.read(),
            "errors": errors.read(),
            "seconds": took,
            "cpu": usage.ru_utime + usage.ru_stime,
        }


def recorded(folder: Path) -> dict[str, Any]:
    """What the run's record says: steps, cost, verdict, faults of ours."""
    sys.path[:0] = [] if str(SOURCE) in sys.path else [str(SOURCE)]
    from traindoctor.errors import TraindoctorError
    from traindoctor.record import open_record

    try:
        record = open_record(folder)
        verdict = record.fact("verdict") or {}
        word = str(verdict.get("verdict", "no verdict"))
        causes = [cause["cause"] for cause in verdict.get("causes", ()) if word == "sick"]
        faults = [
            note.text.strip().splitlines()[-1] for note in record.notes if note.level == "fault"
        ]
        return {
            "steps": int(record.fact("run.steps") or 0),
            "cost": record.fact("self.share"),
            "verdict": ", ".join(causes) or word,
            "faults": faults,
        }
    except (TraindoctorError, OSError) as error:
        return {"steps": 0, "cost": None, "verdict": "no verdict", "faults": [str(error)]}


def first_difference(plain: dict[str, Any], attached: dict[str, Any]) -> str:
    pairs = zip(plain["output"].splitlines(), attached["output"].splitlines())
    for number, (one, other) in enumerate(pairs):
        if one != other:
            return f"line {number + 1}: {one} plain, {other} attached"
    return "one output is longer"


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


# -- the table -------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    made_with = "; ".join(sorted({row["versions"] for row in rows}))
    parts = [
        "# The zoo",
        "Every architecture that `transformers` knows, tiny and untrained, 60 steps on a toy language: plain, and attached "
        "with `traindoctor run`. *Same* means: every loss and a checksum of the weights are equal bit for bit, nothing "
        f"hung or crashed, and the attached process took at most {FACTOR} times as long plus {SECONDS:.0f} s, by the wall or by the "
        f"CPU's clock (of which {AFTER_THE_END:.0f} s are exams after the end). Made by `make zoo` with {made_with}.",
    ]
    for family in FAMILIES:
        for device in ("cpu", "cuda"):
            chosen = [r for r in rows if (r["family"], r["device"]) == (family, device)]
            if chosen:
                parts.append(section(family, device, chosen))
    parts.append((HERE / "verdicts.md").read_text().strip())
    return "\n\n".join(parts) + "\n"


def section(family: str, device: str, rows: list[dict[str, Any]]) -> str:
    counts = Counter(row["outcome"] for row in rows)
    compared = len(rows) - counts["not built"] - counts["not repeatable"]
    lines = [
        f"## {family}, {device}",
        f"{counts['same']} of {compared} are the same run; of {len(rows)} in all {counts['not built']} have no tiny twin, and "
        f"{counts['not repeatable']} give other losses in each plain run.",
        "",
        "| architecture | outcome | steps | plain s | attached s | verdict, or why not |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: row["architecture"]):
        detail = row["detail"].replace("|", "\\|")
        times = f"{row.get('plain_seconds', '')} | {row.get('attached_seconds', '')}"
        lines.append(
            f"| {row['architecture']} | {row['outcome']} | {row['steps']} | {times} | {detail} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
