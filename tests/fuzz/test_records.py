"""Every command that reads a record, on 500 spoilt ones: an answer or one sentence, never a traceback or a hang."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fuzz.outcome import Hang, fault_of, limited
from fuzz.record_variants import NUMBER, variants
from made_runs import make_run
from traindoctor.dashboard.server import make_app

PARTS = 10
ALL = list(variants())


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("good") / "run", steps=30)


def read_in_every_way(folder: Path, number: int) -> list[str]:
    """The faults of `diagnose` and of one more command, in turn; of `runs` where another run lies beside it."""
    out = folder.parent / "out"
    ways: list[tuple[object, ...]] = [
        ("report", folder, "-o", f"{out}.html"),
        ("export", folder, "--format", "csv", "-o", f"{out}.csv"),
        ("runs", folder.parent),
        ("report", folder, "--format", "md"),
        ("diagnose", folder / "record-0.sqlite"),
    ]
    turn = number % (len(ways) + 1)
    faults = [fault_of("diagnose", folder)]
    faults.append(fault_of(*ways[turn]) if turn < len(ways) else fault_of_server(folder.parent))
    return [fault for fault in faults if fault]


def fault_of_server(folder: Path) -> str | None:
    """What the page asks for. A bad record is an answer with its reason; the list of runs always comes."""
    requests = [
        ("/api/run?run=run", (200, 404, 422)),
        ("/api/series?run=run&names=loss.token,grad.norm,clip.clipped", (200, 404, 422)),
        ("/api/layers?run=run&name=grad.rms", (200, 400, 404, 422)),
        ("/api/runs", (200,)),
    ]
    with TestClient(make_app(folder), base_url="http://127.0.0.1") as client:
        for url, allowed in requests:
            try:
                with limited():
                    answer = client.get(url)
            except Hang:
                return f"{url} hangs"
            except Exception as error:  # the server would print a traceback
                return f"{url}: {type(error).__name__}: {error}"
            if answer.status_code not in allowed or not isinstance(answer.json(), dict):
                return f"{url}: status {answer.status_code}"
    return None


def test_there_are_enough_of_them() -> None:
    assert len(ALL) == NUMBER
    assert len({name for name, _ in ALL}) == NUMBER


@pytest.mark.parametrize("part", range(PARTS))
def test_no_traceback_and_no_hang(tmp_path: Path, good: Path, part: int) -> None:
    faults: dict[str, Any] = {}
    for number in range(part, NUMBER, PARTS):
        name, spoil = ALL[number]
        folder = tmp_path / str(number) / "run"
        shutil.copytree(good, folder)
        spoil(folder / "record-0.sqlite")
        before = content(folder)
        found = read_in_every_way(folder, number // PARTS)
        if content(folder) != before:
            found.append("the record was changed")
        if found:
            faults[name] = found
        shutil.rmtree(folder.parent)
    assert faults == {}


def content(folder: Path) -> dict[str, bytes]:
    return {
        f.name: f.read_bytes()
        for f in folder.glob("record-*.sqlite")
        if f.is_file() and not f.is_symlink()
    }


def test_a_good_record_is_read(tmp_path: Path, good: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    assert [read_in_every_way(folder, number) for number in range(6)] == [[]] * 6


def test_one_spoilt_run_does_not_hide_the_others(tmp_path: Path, good: Path) -> None:
    shutil.copytree(good, tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "record-0.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 3000)
    from click.testing import CliRunner

    from traindoctor.cli import cli

    result = CliRunner().invoke(cli, ["runs", str(tmp_path)])
    assert "good" in result.output
    assert "unreadable" in result.output
    with TestClient(make_app(tmp_path), base_url="http://127.0.0.1") as client:
        states = {card["name"]: card["state"] for card in client.get("/api/runs").json()["runs"]}
    assert states == {"good": "ended", "bad": "corrupt"}
