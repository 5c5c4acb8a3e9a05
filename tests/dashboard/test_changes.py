"""Renaming, deleting and comparing runs through the server, and who may ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from made_runs import make_run
from traindoctor.dashboard.server import make_app
from traindoctor.record import RecordWriter

HOME = "http://127.0.0.1:8765"
FROM_PAGE = {"origin": HOME, "x-traindoctor": "1", "sec-fetch-site": "same-origin"}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    make_run(tmp_path / "sick", steps=20)
    make_run(tmp_path / "sweep" / "healthy", steps=20, sick=False)
    return TestClient(make_app(tmp_path), base_url=HOME)


def names(client: TestClient) -> set[str]:
    return {card["name"] for card in client.get("/api/runs").json()["runs"]}


def ask(client: TestClient, what: str, headers: dict[str, str] = FROM_PAGE, **query: str):
    return client.post(f"/api/{what}", params=query, headers=headers)


def test_a_run_is_renamed_within_its_folder(client: TestClient, tmp_path: Path) -> None:
    client.get("/api/run", params={"run": "sweep/healthy"})  # its record is open
    answer = ask(client, "rename", run="sweep/healthy", to="control")
    assert answer.json() == {"run": "sweep/control"}
    assert names(client) == {"sick", "sweep/control"}
    assert client.get("/api/run", params={"run": "sweep/control"}).json()["steps"] == 20
    assert client.get("/api/run", params={"run": "sweep/healthy"}).status_code == 404
    assert (tmp_path / "sweep" / "control").is_dir()


def test_another_run_of_an_old_name_is_read_anew(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/api/run", params={"run": "sick"}).json()["steps"] == 20
    ask(client, "rename", run="sick", to="first")
    make_run(tmp_path / "sick", steps=7)
    assert client.get("/api/run", params={"run": "sick"}).json()["steps"] == 7


def test_a_run_is_deleted(client: TestClient, tmp_path: Path) -> None:
    found = client.get("/api/contents", params={"run": "sick"}).json()
    assert found["files"] >= 1
    assert "record-0.sqlite" in found["entries"]
    assert not found["running"]
    assert ask(client, "delete", run="sick").status_code == 200
    assert names(client) == {"sweep/healthy"}
    assert not (tmp_path / "sick").exists()


@pytest.mark.parametrize("name", ["../outside", "..", "", "/etc", "sweep", "sick/../sick"])
def test_no_folder_but_a_run_of_the_list_is_touched(
    client: TestClient, tmp_path: Path, name: str
) -> None:
    make_run(tmp_path.parent / "outside", steps=3)
    for answer in (ask(client, "delete", run=name), ask(client, "rename", run=name, to="x")):
        assert answer.status_code in (400, 404)
    assert names(client) == {"sick", "sweep/healthy"}
    assert (tmp_path.parent / "outside").is_dir()


def test_what_is_refused_is_one_sentence(client: TestClient, tmp_path: Path) -> None:
    make_run(tmp_path / "live", steps=3, end=False)
    make_run(tmp_path / "sweep", steps=3)
    for answer, said in (
        (ask(client, "rename", run="sick", to="sweep"), "already something called"),
        (ask(client, "rename", run="sick", to="../x"), "cannot contain '/'"),
        (ask(client, "rename", run="sick"), "the new name is empty"),
        (ask(client, "delete", run="live"), "still running"),
        (ask(client, "rename", run="live", to="x"), "still running"),
        (ask(client, "delete", run="sweep"), "holds other runs (sweep/healthy)"),
    ):
        assert answer.status_code == 409
        assert said in answer.json()["error"]
    assert names(client) == {"sick", "sweep", "sweep/healthy", "live"}


def test_the_folder_that_the_page_was_opened_on_stays(tmp_path: Path) -> None:
    client = TestClient(make_app(make_run(tmp_path / "only", steps=3)), base_url=HOME)
    for answer in (ask(client, "delete", run="only"), ask(client, "rename", run="only", to="x")):
        assert answer.status_code == 409
        assert "open the page on the folder above" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": HOME},
        {"x-traindoctor": "1"},
        {"origin": "http://evil.example", "x-traindoctor": "1"},
        {"origin": "null", "x-traindoctor": "1"},
        {"origin": "http://127.0.0.1:3000", "x-traindoctor": "1"},
        {**FROM_PAGE, "sec-fetch-site": "cross-site"},
        {**FROM_PAGE, "sec-fetch-site": "same-site"},
        {**FROM_PAGE, "sec-fetch-site": "none"},
        {**FROM_PAGE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {**FROM_PAGE, "host": "evil.example", "origin": "http://evil.example"},
    ],
)
def test_only_the_page_itself_may_change_something(
    client: TestClient, headers: dict[str, str]
) -> None:
    assert ask(client, "delete", headers, run="sick").status_code == 403
    assert ask(client, "rename", headers, run="sick", to="x").status_code == 403
    assert names(client) == {"sick", "sweep/healthy"}


def test_another_site_may_not_ask_for_leave(client: TestClient) -> None:
    """A browser asks before it sends our header for another site: no answer of ours ever allows it."""
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    for headers in (asked, {**asked, "origin": HOME}):
        answer = client.options("/api/delete?run=sick", headers=headers)
        assert answer.status_code in (403, 405)
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_two_runs_are_compared_as_the_command_does(client: TestClient) -> None:
    found = client.get("/api/compare", params={"a": "sick", "b": "sweep/healthy"}).json()
    assert found["titles"] == ["sick", "sweep/healthy"]
    assert found["headline"]
    assert {row["name"] for row in found["verdict"]} >= {"verdict", "causes"}
    clip = next(row for row in found["curves"] if row["name"] == "share of steps clipped")
    assert clip["differs"]
    assert client.get("/api/compare", params={"a": "sick", "b": "no"}).status_code == 404


def test_the_list_names_causes_and_a_loss_that_is_gone(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "gone")
    for step in range(20):
        writer.scalar("loss.root", step, 3.0 if step < 12 else float("nan"))
    causes = [{"cause": "nan-from-op"}, {"cause": "lr-too-low", "explained_by": ["nan-from-op"]}]
    writer.fact("verdict", {"verdict": "sick", "reason": "why", "causes": causes})
    writer.close()
    (card,) = TestClient(make_app(tmp_path), base_url=HOME).get("/api/runs").json()["runs"]
    assert card["loss"]["value"] == "NaN"
    assert card["loss"]["bad_since"] == 12
    assert None in card["spark"]
    assert card["causes"] == ["nan-from-op"]
    assert card["reason"] == "why"
