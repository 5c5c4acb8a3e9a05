"""The server of tools, asked by a real client over standard input and output."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from agents.conversation import ask, talk
from fixes.spellings import SOUND, zero_grad
from traindoctor.record import RecordWriter

TOOLS = {
    "run_script",
    "check_script",
    "diagnose_run",
    "explain_cause",
    "list_causes",
    "compare_two_runs",
    "list_runs",
    "read_series",
}
# An answer that is read by a model: some thousand characters.
SMALL = 12_000


def made_run(folder: Path, *, sick: bool) -> Path:
    writer = RecordWriter(folder)
    for step in range(3000):
        loss = math.nan if sick and step >= 2900 else 4.0 - step / 3000
        writer.scalars(step, {"loss.root": loss, "optim.lr": 1e-3})
    writer.fact("run.steps", 3000)
    writer.fact("run.ended", 0)
    writer.close()
    return folder


def test_what_is_recorded_can_be_asked_for(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "a", sick=False)
    made_run(tmp_path / "runs" / "b", sick=True)

    async def conversation(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        assert all(tool.description for tool in tools)

        page = await ask(client, "explain_cause", cause="GRD001")
        assert page["cause"] == "missing-zero-grad"
        assert "## How to fix" in page["page"]
        assert "did you mean missing-zero-grad" in await ask(
            client, "explain_cause", cause="zero-grad"
        )

        listed = await ask(client, "list_runs", most=1)
        assert (len(listed["runs"]), listed["left_out"]) == (1, 1)
        assert listed["runs"][0]["run"] in ("runs/a", "runs/b")

        verdict = await ask(client, "diagnose_run", run="runs/b")
        assert verdict["verdict"] == "inconclusive"
        assert "NaN" in " ".join(verdict["symptoms"])
        assert len(json.dumps(verdict)) < SMALL

        names = await ask(client, "read_series", run="runs/b")
        assert names == {"names": ["loss.root", "optim.lr"]}
        series = await ask(client, "read_series", run="runs/b", name="loss.root", points=40)
        assert series["points_recorded"] == 3000
        assert len(series["steps"]) == len(series["values"]) <= 44
        assert {kind for _, kind in series["not_finite"]} == {"NaN"}
        assert None in series["values"]
        many = await ask(client, "read_series", run="runs/a", name="loss.root", points=10**9)
        assert len(many["steps"]) <= 502
        last = await ask(client, "read_series", run="runs/a", name="loss.root", first_step=2990)
        assert min(last["steps"]) >= 2990
        assert "no series 'x'" in await ask(client, "read_series", run="runs/a", name="x")

        compared = await ask(client, "compare_two_runs", before="runs/b", after="runs/a")
        assert compared["different"]
        assert len(json.dumps(compared)) < SMALL

    talk(tmp_path, conversation)


def test_what_leads_outside_is_refused_in_a_sentence(tmp_path: Path) -> None:
    inside = tmp_path / "project"
    outside = made_run(tmp_path / "private", sick=False)
    (tmp_path / "train.py").write_text("print('ran')")
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "linked.py").symlink_to(tmp_path / "train.py")
    made_run(inside / "mixed", sick=False)
    (inside / "mixed" / "record-1.sqlite").symlink_to(outside / "record-0.sqlite")

    async def conversation(client: Any) -> None:
        for tool, given in (
            ("diagnose_run", {"run": "../private"}),
            ("diagnose_run", {"run": str(outside)}),
            ("diagnose_run", {"run": "link"}),
            ("diagnose_run", {"run": "mixed"}),
            ("read_series", {"run": "link"}),
            ("compare_two_runs", {"before": "link", "after": "link"}),
            ("list_runs", {"under": ".."}),
            ("run_script", {"script": "../train.py"}),
            ("run_script", {"script": "linked.py"}),
            ("check_script", {"script": "/etc/passwd"}),
        ):
            said = await ask(client, tool, **given)
            assert isinstance(said, str), (tool, given, said)
            assert f"outside of {inside}" in said
        assert (await ask(client, "list_runs"))["runs"] == []
        assert "there is no script 'x.py'" in await ask(client, "run_script", script="x.py")

    talk(inside, conversation)
    assert not (inside / "runs").exists()


@pytest.mark.slow
def test_a_sick_script_is_run_and_its_fix_verified(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(zero_grad["in the loop"].text)
    told: list[tuple[float, str | None]] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async def conversation(client: Any) -> tuple[Any, Any]:
        first = await client.call_tool(
            "run_script", {"script": "train.py"}, progress_callback=heard
        )
        sick = first.structured_content
        fixed = await ask(
            client, "run_script", script="train.py", verify_fix=sick["causes"][0]["fix"]
        )
        return sick, fixed

    sick, fixed = talk(tmp_path, conversation)
    assert (sick["verdict"], sick["causes"][0]["cause"]) == ("sick", "missing-zero-grad")
    assert "step 39" in sick["output"]
    assert (tmp_path / sick["run"] / "record-0.sqlite").exists()
    assert told
    assert [seconds for seconds, _ in told] == sorted({seconds for seconds, _ in told})
    assert (fixed["verified"]["holds"], fixed["verified"]["against"]) == (
        True,
        str(tmp_path / sick["run"]),
    )
    assert (tmp_path / "train.py").read_text() == zero_grad["in the loop"].text
    assert len(json.dumps(fixed)) < SMALL


@pytest.mark.slow
def test_a_cancelled_run_ends_with_all_that_it_started(tmp_path: Path) -> None:
    endless = SOUND.replace(
        "for step in range(STEPS):",
        "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "import itertools\nfor step in itertools.count():",
    )
    (tmp_path / "train.py").write_text(endless)
    pids = tmp_path / "pids"

    async def conversation(client: Any) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("run_script", {"script": "train.py"}))
            while not (pids.exists() and len(pids.read_text().split()) == 2):
                await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            while any(alive(int(pid)) for pid in pids.read_text().split()):
                await anyio.sleep(0.1)
        # The server is there for the next question.
        assert (await ask(client, "list_causes"))["missing-zero-grad"]

    talk(tmp_path, conversation)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_without_the_sdk_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("raise ModuleNotFoundError('x', name='mcp')")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "traindoctor", "mcp"], capture_output=True, text=True, env=env
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "traindoctor: the server needs the mcp package, which is not installed: "
        "pip install 'traindoctor[mcp]'\n"
    )


def test_the_folder_has_to_be_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "traindoctor", "mcp", "--folder", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be a folder that is there" in done.stderr
