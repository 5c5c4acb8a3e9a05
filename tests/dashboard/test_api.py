"""The server's answers, and whom it refuses."""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from made_runs import make_corrupt_run, make_huge_run, make_run
from traindoctor.dashboard.server import make_app
from traindoctor.record import RecordWriter, record_path

HOME = "http://127.0.0.1:8765"
# What the page's own script sends with a change.
FROM_PAGE = {"origin": HOME, "x-traindoctor": "1", "sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "sick", steps=120)
    make_run(root / "sweep" / "healthy", steps=60, sick=False, seed=1)
    make_corrupt_run(root / "broken")
    make_huge_run(root / "long", steps=8_000, tensors=4)
    (root / "no-run").mkdir()
    return root


@pytest.fixture
def client(runs: Path) -> TestClient:
    return TestClient(make_app(runs), base_url=HOME)


def test_lists_runs_with_their_state(client: TestClient) -> None:
    cards = {card["name"]: card for card in client.get("/api/runs").json()["runs"]}
    assert set(cards) == {"sick", "sweep/healthy", "broken", "long"}
    assert cards["sick"]["verdict"] == "sick"
    assert cards["sick"]["steps"] == 120
    assert cards["broken"]["state"] == "corrupt"
    assert "is not a readable record" in cards["broken"]["error"]


def test_a_run_gives_its_verdict_exams_and_facts(client: TestClient) -> None:
    run = client.get("/api/run", params={"run": "sweep/healthy"}).json()
    assert run["state"] == "ended"
    assert run["verdict"]["verdict"] == "healthy"
    assert run["exams"][0]["exam"] == "tape_gradient"
    assert run["facts"]["env"]["torch"] == "2.13.0"


def test_a_corrupt_record_is_an_answer(client: TestClient) -> None:
    answer = client.get("/api/run", params={"run": "broken"})
    assert answer.status_code == 422
    assert answer.json()["kind"] == "record"


def test_series_are_down_sampled_and_keep_the_spike(client: TestClient) -> None:
    query = {"run": "long", "names": "loss.token,grad.norm,unknown", "points": 200}
    found = client.get("/api/series", params=query).json()
    assert set(found) == {"loss.token", "grad.norm"}
    assert len(found["loss.token"]["steps"]) < 320
    assert max(v for v in found["loss.token"]["values"] if v is not None) == 99.0
    assert found["grad.norm"]["bad"] == [[77_777 % 8_000, "NaN"]]


def test_a_narrow_window_has_every_step(client: TestClient) -> None:
    query = {"run": "long", "names": "loss.token", "from": 1000, "to": 1100}
    steps = client.get("/api/series", params=query).json()["loss.token"]["steps"]
    assert steps == list(range(999, 1102))


@pytest.mark.parametrize("window", [{}, {"from": 100, "to": 7900}, {"from": 500, "to": 540}])
def test_layers_are_the_extremes_of_the_record(client: TestClient, runs: Path, window) -> None:
    query = {"run": "long", "name": "grad.rms", "columns": 40, **window}
    heat = client.get("/api/layers", params=query).json()
    cells = np.frombuffer(base64.b64decode(heat["cells"]), "<f4").reshape(4, -1)
    assert cells.shape[1] == len(heat["steps"]) <= 41
    database = sqlite3.connect(record_path(runs / "long"))
    rows = database.execute(
        "SELECT numbers FROM layer_rows WHERE layers = 1 AND step BETWEEN ? AND ?",
        (window.get("from", 0), window.get("to", 8000)),
    ).fetchall()
    database.close()
    whole = np.stack([np.frombuffer(row[0], np.float32) for row in rows])
    # Coarse blocks may reach a little over the window's edges, never fall short of it.
    assert (cells.max(axis=1) >= whole.max(axis=0)).all()
    if not window or window["to"] - window["from"] < 100:
        np.testing.assert_array_equal(cells.max(axis=1), whole.max(axis=0))


@pytest.mark.parametrize(
    "name",
    ["../outside", "/etc/passwd", "..", "sick/../../outside", "%2e%2e/outside", "no-run", "sick\0"],
)
def test_no_path_outside_the_folder_is_read(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / "outside", steps=5)
    make_run(tmp_path / "runs" / "sick", steps=5)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    client = TestClient(make_app(tmp_path / "runs"), base_url=HOME)
    assert [card["name"] for card in client.get("/api/runs").json()["runs"]] == ["sick"]
    for path in ("run", "series", "layers"):
        query = {"run": name, "names": "loss.root", "name": "grad.rms"}
        assert client.get(f"/api/{path}", params=query).status_code in (400, 404)


@pytest.mark.parametrize(
    "query", [{}, {"run": "sick", "rank": "x"}, {"run": "sick", "rank": "nan"}, {"run": ""}]
)
def test_nonsense_is_refused_with_a_sentence(client: TestClient, query: dict) -> None:
    answer = client.get("/api/run", params=query)
    assert answer.status_code == 400
    assert "parameter" in answer.json()["error"]


def test_unknown_rank_and_unknown_layer(client: TestClient) -> None:
    assert client.get("/api/run", params={"run": "sick", "rank": 3}).status_code == 404
    query = {"run": "sick", "name": "no.such"}
    assert client.get("/api/layers", params=query).status_code == 400


def test_writing_methods_are_not_there(client: TestClient) -> None:
    assert client.post("/api/runs", headers=FROM_PAGE).status_code == 405
    assert client.delete("/api/run", headers=FROM_PAGE).status_code == 405
    assert client.get("/api/delete", params={"run": "sick"}).status_code == 405
    assert client.get("/api/rename", params={"run": "sick", "to": "x"}).status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8765"},
        {"host": "evil.example:127.0.0.1"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8765"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_foreign_requests_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for path in ("/", "/api/runs", "/api/events"):
        assert client.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:9000"},
        {"host": "[::1]:8765"},
        {"host": "127.0.0.1:9000", "origin": "http://127.0.0.1:9000"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_this_machine_is_let_in(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/", headers=headers).status_code == 200


def test_every_answer_carries_the_policy(client: TestClient) -> None:
    for path in ("/", "/api/runs", "/api/run?run=broken", "/nothing"):
        policy = client.get(path).headers["content-security-policy"]
        assert "script-src 'sha256-" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


def test_empty_and_missing_folders(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "not-yet"):
        client = TestClient(make_app(folder), base_url=HOME)
        assert client.get("/api/runs").json() == {"root": folder.name, "runs": []}


def test_a_folder_that_is_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "only", steps=10)
    client = TestClient(make_app(tmp_path / "only"), base_url=HOME)
    assert [card["name"] for card in client.get("/api/runs").json()["runs"]] == ["only"]
    assert client.get("/api/run", params={"run": "only"}).json()["steps"] == 10


def test_strange_names_come_back_as_they_are(tmp_path: Path) -> None:
    name = '<script>alert("1")&amp; ünï'
    make_run(tmp_path / name, steps=5)
    client = TestClient(make_app(tmp_path), base_url=HOME)
    (card,) = client.get("/api/runs").json()["runs"]
    assert card["name"] == name
    answer = client.get("/api/run", params={"run": name})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["name"] == name


def test_a_run_without_a_verdict_gets_one_in_the_background(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "fresh")
    for step in range(30):
        writer.scalar("loss.root", step, 3.0)
    writer.close()
    app = make_app(tmp_path)
    client = TestClient(app, base_url=HOME)
    app.state.live.verdicts.of("fresh", app.state.live.store.open("fresh").record)
    for _ in range(200):
        verdict = client.get("/api/run", params={"run": "fresh"}).json()["verdict"]
        if verdict is not None:
            break
        import time

        time.sleep(0.05)
    assert verdict["verdict"] in ("healthy", "inconclusive", "sick")
    json.dumps(verdict, allow_nan=False)
