"""The same through real processes: arguments of any bytes, secrets, hostile names, and exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from traindoctor.dashboard.server import make_app
from traindoctor.record import open_record

SCRIPT = """
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 3)).square().mean()
    loss.backward()
    optimizer.step()
print(ascii(sys.argv[1:]))
"""
MARKUP = "<img src=x onerror=alert(1)>"


def traindoctor(*arguments: bytes | str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "traindoctor", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=600,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_any_argument_is_recorded_and_no_secret(tmp_path: Path) -> None:
    name = f"{MARKUP}\n".encode() + b"\xfe.py"
    (tmp_path / os.fsdecode(name)).write_text(SCRIPT)
    arguments = (b"\xff", "--api-key", "hunter2", MARKUP)
    ran = traindoctor(
        "run", "--out", "run", "--json", "v.json", "--after", "0", name, *arguments, folder=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ascii(["\udcff", "--api-key", "hunter2", MARKUP]) + "\n"
    assert "not watching" not in ran.stderr
    record = open_record(tmp_path / "run")
    assert record.num_steps == 3
    script = record.fact("script")
    assert script["argv"] == ["\\xff", "--api-key", "[redacted]", MARKUP]
    assert script["path"] == f"{MARKUP}\n\\xfe.py"
    assert json.loads((tmp_path / "v.json").read_text())["steps"] == 3
    (tmp_path / "run").rename(tmp_path / MARKUP)
    told = traindoctor("report", MARKUP, "-o", "report.html", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    page = (tmp_path / "report.html").read_text()
    assert MARKUP not in page
    assert "hunter2" not in page
    assert "[redacted]" in page
    with TestClient(make_app(tmp_path), base_url="http://127.0.0.1") as client:
        answer = client.get("/api/runs")
        # JSON, never a page; the page puts it into text nodes.
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert MARKUP in [card["name"] for card in answer.json()["runs"]]
        assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 403


def test_a_spoilt_record_ends_with_status_2(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record-0.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 3000)
    told = traindoctor("diagnose", "run", folder=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("traindoctor: ")
    assert len(told.stderr.splitlines()) == 1
