"""The list of runs and the comparison of two: each test is something the page could not do."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from made_runs import make_run
from traindoctor.record import RecordWriter

pytestmark = pytest.mark.browser

NAMES = ".runs .name"
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Sick, healthy and one that blew up: written one after the other, the last one newest."""
    make_run(tmp_path / "b-sick", steps=40)
    make_run(tmp_path / "sweep" / "healthy", steps=60, sick=False)
    writer = RecordWriter(tmp_path / "a-gone")
    for step in range(20):
        writer.scalar("loss.root", step, 3.0 if step < 12 else math.nan)
    causes = [{"cause": "nan-from-op", "status": "confirmed", "summary": "log of 0 at x.py:3"}]
    writer.fact("verdict", {"verdict": "sick", "causes": causes})
    writer.fact("run.ended", 0)
    writer.close()
    return tmp_path


def listed(page) -> list[str]:
    return page.locator(NAMES).all_inner_texts()


def test_nan_is_seen_in_the_list(runs, serve, open_page) -> None:
    page = open_page(serve(runs))
    row = page.locator(".runs li", has_text="a-gone")
    row.wait_for()
    assert "loss NaN since step 12" in row.inner_text()
    assert row.locator(".loss.bad").count() == 1
    assert row.locator(".spark .bad").count() > 0


def test_the_same_loss_in_the_list_on_the_page_and_in_the_command(
    tmp_path, serve, open_page
) -> None:
    writer = RecordWriter(tmp_path / "run")
    for step in range(193):
        loss = 4.0 - 0.01 * step
        writer.scalar("loss.root", step, loss)
        if step < 8 or step % 64 == 0:
            writer.scalar("loss.token", step, loss)
    writer.fact("run.steps", 200)
    writer.fact("run.ended", 0)
    writer.fact("verdict", {"verdict": "healthy", "causes": []})
    writer.close()
    make_run(tmp_path / "other", steps=3)
    page = open_page(serve(tmp_path))
    in_list = page.locator(".runs li", has_text="run").filter(has_text="200 steps")
    in_list.wait_for()
    assert "loss 2.08" in in_list.inner_text()
    page.locator(".runs a:has(.name:text-is('run'))").click()
    page.wait_for_selector("#chart-loss .legend b")
    assert page.locator(".title .loss").inner_text() == "loss 2.08"
    assert page.locator("#chart-loss .legend b").first.inner_text() == "2.08"
    told = subprocess.run(
        [sys.executable, "-m", "traindoctor", "runs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # A long path has a line of its own, above its numbers.
    assert re.search(r"/run\s+\S+ \S+\s+200\s+2\.08\s", told)


def test_search_filters_and_order(runs, serve, open_page) -> None:
    page = open_page(serve(runs))
    page.wait_for_selector(NAMES)
    assert sorted(listed(page)) == ["a-gone", "b-sick", "sweep/healthy"]
    search = page.get_by_label("Search runs")
    search.fill("sweep")
    assert listed(page) == ["sweep/healthy"]
    search.fill("clipping")  # what the verdict says is searched as well
    assert listed(page) == ["b-sick"]
    search.fill("nothing like it")
    assert page.get_by_text("No run matches.").is_visible()
    page.get_by_role("button", name="Show all 3").click()
    page.get_by_label("Filter by verdict").select_option("sick")
    assert sorted(listed(page)) == ["a-gone", "b-sick"]
    page.get_by_label("Filter by cause").select_option("nan-from-op")
    assert listed(page) == ["a-gone"]
    page.get_by_label("Filter by verdict").select_option("")
    page.get_by_label("Filter by cause").select_option("")
    page.get_by_label("Order of the runs").select_option("name")
    assert listed(page) == ["a-gone", "b-sick", "sweep/healthy"]
    page.get_by_label("Order of the runs").select_option("steps")
    assert listed(page) == ["sweep/healthy", "b-sick", "a-gone"]
    page.get_by_label("Order of the runs").select_option("loss")
    assert listed(page)[-1] == "a-gone"
    # It is as it was left when a reader comes back from a run.
    page.get_by_role("link", name="sweep/healthy").click()
    page.wait_for_selector(".verdict .kind")
    page.get_by_role("link", name="all runs").click()
    page.wait_for_selector(NAMES)
    assert page.get_by_label("Order of the runs").input_value() == "loss"


def test_a_run_is_renamed_by_keys_alone(runs, serve, open_page) -> None:
    page = open_page(serve(runs))
    page.wait_for_selector(NAMES)
    button = page.get_by_role("button", name="Rename sweep/healthy")
    button.focus()
    page.keyboard.press("Enter")
    field = page.get_by_label("New name of sweep/healthy")
    page.keyboard.type("never")
    page.keyboard.press("Escape")
    field.wait_for(state="detached")
    page.wait_for_function(
        "name => document.activeElement.ariaLabel === name", arg="Rename sweep/healthy"
    )
    page.keyboard.press("Enter")
    for name, said in (("../out", "cannot contain '/'"), ("", "the new name is empty")):
        field.fill(name)
        page.keyboard.press("Enter")
        page.wait_for_function(
            "said => document.querySelector('.error')?.innerText.includes(said)", arg=said
        )
    field.fill("control")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=sweep/healthy is now called sweep/control.")
    page.wait_for_selector(f"{NAMES}:has-text('sweep/control')")
    assert (runs / "sweep" / "control").is_dir()
    assert not (runs / "sweep" / "healthy").exists()
    assert not (runs.parent / "out").exists()


def test_a_name_that_is_taken_is_one_sentence(runs, serve, open_page) -> None:
    page = open_page(serve(runs))
    page.get_by_role("button", name="Rename a-gone").click()
    page.get_by_label("New name of a-gone").fill("b-sick")
    page.keyboard.press("Enter")
    page.wait_for_selector(".error")
    said = page.locator(".error").inner_text()
    assert said == "there is already something called 'b-sick': choose another name."
    assert (runs / "a-gone").is_dir()


def test_delete_asks_first(runs, serve, open_page) -> None:
    page = open_page(serve(runs))
    page.get_by_role("button", name="Delete b-sick").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]:has-text('file')")
    told = page.locator("dialog").inner_text()
    assert "Delete b-sick?" in told
    assert "cannot be undone" in told
    assert "record-0.sqlite" in told
    assert page.evaluate("document.activeElement.innerText") == "Cancel"
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert (runs / "b-sick").is_dir()
    assert page.evaluate("document.activeElement.ariaLabel") == "Delete b-sick"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]:has-text('file')")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=b-sick was deleted.")
    page.wait_for_function("() => document.querySelectorAll('.runs .name').length === 2")
    assert not (runs / "b-sick").exists()


def test_what_cannot_be_deleted_says_why(runs, serve, open_page) -> None:
    (runs / "b-sick" / "train.py").write_text("print()")
    make_run(runs / "live", steps=5, end=False)
    page = open_page(serve(runs))
    page.get_by_role("button", name="Delete live").wait_for()
    for what in ("Rename", "Delete"):
        assert page.get_by_role("button", name=f"{what} live").is_disabled()
    page.get_by_role("button", name="Delete b-sick").click()
    page.locator("dialog .danger").click()
    page.wait_for_selector("dialog .error")
    assert (
        "also holds train.py, which traindoctor did not make" in page.locator("dialog").inner_text()
    )
    page.locator("dialog").get_by_role("button", name="Close").click()
    assert (runs / "b-sick" / "train.py").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_list_and_its_dialog(runs, serve, open_page, scheme) -> None:
    page = open_page(serve(runs), viewport=PHONE, color_scheme=scheme)
    page.get_by_role("button", name="Delete a-gone").click()
    page.wait_for_selector("dialog[open]:has-text('file')")
    box = page.locator("dialog").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Rename a-gone").click()
    page.wait_for_selector(".rename input")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def with_script(folder: Path, text: str, **facts: object) -> None:
    writer = RecordWriter(folder)
    writer.fact("script.text", {"path": "train.py", "text": text, "sha256": str(hash(text))})
    for name, value in facts.items():
        writer.fact(name, value)
    writer.close()


@pytest.mark.parametrize("size", [{"width": 1400, "height": 1000}, PHONE], ids=["wide", "phone"])
def test_two_runs_differ_in_verdict_tests_settings_environment_and_code(
    tmp_path, serve, open_page, size
) -> None:
    make_run(tmp_path / "before", steps=40)
    make_run(tmp_path / "after", steps=40, sick=False)
    with_script(
        tmp_path / "before", "a = 1\nclip(0.1)\n", env={"torch": "2.9.0"}, clip={"limit": 0.1}
    )
    with_script(
        tmp_path / "after", "a = 1\nclip(1.0)\n", env={"torch": "2.13.0"}, clip={"limit": 1.0}
    )
    page = open_page(f"{serve(tmp_path)}#/compare/before/after", viewport=size)
    page.wait_for_selector(".diff")
    assert page.locator(".compared-as .told").inner_text() != "Comparing…"
    for heading in ("Verdict", "Tests", "Code", "Settings", "Environment", "Numbers", "Plots"):
        assert page.get_by_role("heading", name=heading, exact=True).count() == 1
    assert page.locator(".diff .gone").inner_text().strip() == "-clip(0.1)"
    assert page.locator(".diff .added").inner_text().strip() == "+clip(1.0)"
    settings = page.get_by_role("region", name="Settings").inner_text()
    assert "clipping limit" in settings
    assert "0.1" in settings
    assert "batch rows" not in settings  # the same in both: only on request
    environment = page.get_by_role("region", name="Environment").inner_text()
    assert "2.9.0" in environment
    assert "2.13.0" in environment
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.wait_for_selector("[id='chart-compare-loss.token'] .legend b")


def test_another_model_is_told_in_one_line_until_it_is_asked_for(
    tmp_path, serve, open_page
) -> None:
    for name, kind in (("before", "Linear"), ("after", "Conv1d")):
        make_run(tmp_path / name, steps=10)
        with_script(
            tmp_path / name,
            "a = 1\n",
            **{"model.tree": [f"h.{i}: {kind}" for i in range(40)], "clip": {"limit": len(name)}},
        )
    page = open_page(f"{serve(tmp_path)}#/compare/before/after")
    model = page.get_by_role("region", name="Model")
    model.wait_for()
    assert model.locator("tr").count() == 0
    assert re.search(r"40 of \d+ modules and parameters differ", model.inner_text())
    assert "module h.0" not in page.get_by_role("region", name="Settings").inner_text()
    model.get_by_role("button", name="Show them").focus()
    page.keyboard.press("Enter")
    assert model.locator("tr.differs").count() == 40


def test_of_three_runs_any_two_are_compared(runs, serve, open_page) -> None:
    page = open_page(f"{serve(runs)}#/compare/a-gone/b-sick/sweep%2Fhealthy")
    page.wait_for_selector(".sides tbody tr")
    before = page.locator(".compared-as .told").inner_text()
    page.get_by_label("Run A").select_option("sweep/healthy")
    page.wait_for_function(
        "before => document.querySelector('.compared-as .told').innerText !== before", arg=before
    )
    page.wait_for_selector("text=sweep/healthy")


def test_a_run_that_is_gone_is_told(runs, serve, open_page) -> None:
    page = open_page(f"{serve(runs)}#/compare/a-gone/nowhere")
    page.wait_for_selector("text=There is no run called 'nowhere'")
