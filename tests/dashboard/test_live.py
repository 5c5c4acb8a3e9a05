"""Events: a step is on its way to the page less than a second after it was recorded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from made_runs import make_run
from traindoctor.dashboard.server import Server, listen, make_app, url_of
from traindoctor.errors import TraindoctorError
from traindoctor.record import RecordWriter


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    sock = listen(0)
    server = Server(make_app(tmp_path))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    yield url_of(sock), tmp_path
    server.should_exit = True
    thread.join(timeout=60)
    sock.close()
    assert not thread.is_alive(), "an open event stream must not hold the server up"


def events(url: str) -> Iterator[dict]:
    with urllib.request.urlopen(url, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def test_a_step_is_told_within_a_second(served: tuple[str, Path]) -> None:
    url, folder = served
    writer = RecordWriter(folder / "run")
    writer.scalar("loss.root", 0, 1.0)
    writer.flush()
    stream = events(f"{url}api/events?run=run")
    assert next(stream)["steps"] == 1
    late = []
    for step in range(1, 4):
        time.sleep(0.3)
        wrote = time.monotonic()
        writer.scalar("loss.root", step, 1.0)  # the writer's own thread flushes it
        while next(stream)["steps"] < step + 1:
            pass
        late.append(time.monotonic() - wrote)
    stream.close()
    writer.close()
    assert sorted(late)[1] < 1.0, late


def test_the_list_tells_of_a_new_run(served: tuple[str, Path]) -> None:
    url, folder = served
    stream = events(f"{url}api/events")
    assert next(stream) == {}
    make_run(folder / "new", steps=3)
    assert "new" in next(stream)
    stream.close()


def test_a_run_that_is_unknown_is_told_as_an_event(served: tuple[str, Path]) -> None:
    url, _ = served
    stream = events(f"{url}api/events?run=nothing")
    assert "no run called" in next(stream)["error"]
    stream.close()


def test_a_port_that_is_taken_is_told() -> None:
    with (
        listen(0) as sock,
        pytest.raises(TraindoctorError, match="is taken"),
    ):
        listen(sock.getsockname()[1])


@pytest.mark.slow
def test_the_page_beside_a_run_ends_after_it(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=3)
    code = (
        "from traindoctor.dashboard.server import serve_in_background\n"
        f"print(serve_in_background({str(tmp_path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    url = done.stdout.strip()
    # Its parent has ended; a page that is still open keeps it.
    with urllib.request.urlopen(f"{url}api/runs", timeout=60) as answer:
        assert json.load(answer)["runs"][0]["name"] == "run"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=30).close()
        except OSError:
            return
        time.sleep(2)
    pytest.fail("the server outlived its run and its last page")


def test_the_page_beside_a_run_needs_nothing_heavy() -> None:
    code = (
        "import sys, traindoctor.dashboard.launch\n"
        "assert not {'torch', 'numpy', 'uvicorn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_deleted_while_the_list_is_read_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path / "kept", steps=3)
    make_run(tmp_path / "deleted", steps=3)
    live = make_app(tmp_path).state.live
    listed = live.store.names()
    shutil.rmtree(tmp_path / "deleted")
    live.store.names = lambda: listed
    assert list(live._look_at_list()) == ["kept"]
