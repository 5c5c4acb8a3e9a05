"""The page in a real browser: what a reader sees and does."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from made_runs import make_corrupt_run, make_huge_run, make_run, write_facts, write_step
from traindoctor.record import ExamResult, RecordWriter, open_record
from traindoctor.report import html

pytestmark = pytest.mark.browser

LEGEND = "#chart-loss .legend b"


def unfold(page, name: str) -> None:
    """Opens a panel that is a line until then."""
    page.locator(f"#fold-{name} h3 button").click()


def shown_steps(page) -> tuple[int, int]:
    numbers = page.locator(".stepbar .window > b").all_inner_texts()
    low, high = (int(text.replace(",", "")) for text in numbers)
    return low, high


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "sick", steps=200)
    make_run(tmp_path / "healthy", steps=300, sick=False, seed=1)
    return tmp_path


def test_verdict_first_then_its_evidence(runs, serve, open_page) -> None:
    page = open_page(f"{serve(runs)}#/run/sick")
    page.wait_for_selector(LEGEND)
    assert "SICK" in page.locator(".verdict .kind").inner_text().upper()
    assert "Clipping at 0.1 bites" in page.locator(".cause.first h2").inner_text()
    assert page.locator(".verdict figure h3").all_inner_texts() == ["Gradient norm", "Loss"]
    folded = page.locator(".fold .what").all_inner_texts()
    assert {"Updates by layer", "Gradient flow by layer", "Activations by module"} <= set(folded)
    page.locator("#chart-gradient .about", has_text="100 % of steps").wait_for()
    legend = page.locator("#chart-loss .legend").inner_text()
    assert "per token = read by the script = what backward got" in legend
    assert {"unigram", "bigram", "5-gram"} <= set(legend.split("\n"))


def test_a_finding_leads_to_its_plot_at_its_step(runs, serve, open_page) -> None:
    page = open_page(f"{serve(runs)}#/run/sick")
    page.wait_for_selector(LEGEND)
    page.get_by_role("button", name="Show it in the plot at step 120").click()
    page.wait_for_selector("#chart-gradient:focus")
    low, high = shown_steps(page)
    assert low <= 120 <= high
    assert high - low < 199
    page.locator(".cause.first summary").last.click()


def test_zoom_and_hover_are_shared(runs, serve, open_page) -> None:
    page = open_page(f"{serve(runs)}#/run/sick")
    page.wait_for_selector(LEGEND)
    assert shown_steps(page) == (0, 199)
    page.locator("#chart-loss").scroll_into_view_if_needed()
    box = page.locator("#chart-loss .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=5)
    page.mouse.up()
    low, high = shown_steps(page)
    assert 40 <= low <= 60
    assert 90 <= high <= 110
    # The gradient chart shows the same window, and its legend the hovered step.
    before = page.locator("#chart-gradient .legend b").first.inner_text()
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + 50)
    page.wait_for_selector(".stepbar .at")
    assert page.locator("#chart-gradient .legend b").first.inner_text() != before
    page.mouse.dblclick(box["x"] + 100, box["y"] + 50)
    assert shown_steps(page) == (0, 199)


def test_keys_alone_are_enough(runs, serve, open_page) -> None:
    page = open_page(f"{serve(runs)}#/run/sick")
    page.wait_for_selector(LEGEND)
    page.locator("#chart-loss").focus()
    page.keyboard.press("+")
    low, high = shown_steps(page)
    assert high - low < 150
    page.keyboard.press("Shift+ArrowLeft")
    assert shown_steps(page)[0] < low
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".stepbar .at")
    page.keyboard.press("0")
    assert shown_steps(page) == (0, 199)
    unfold(page, "layer-gradient")
    page.locator("#chart-layer-gradient").focus()
    page.wait_for_selector("#chart-layer-gradient .cells canvas")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#chart-layer-gradient .where:has-text('embed.weight')")


@pytest.mark.slow  # the second is the page's; beside other tests it would be shared
def test_a_live_run_updates_within_a_second(tmp_path, serve, open_page) -> None:
    rng = np.random.default_rng(0)
    writer = RecordWriter(tmp_path / "live")
    write_facts(writer)
    for step in range(20):
        write_step(writer, step, steps=100, clip=1.0, rng=rng)
    writer.flush()
    page = open_page(f"{serve(tmp_path)}#/run/live")
    page.wait_for_selector("[data-steps='20']")
    assert page.locator(".state").inner_text() == "running"
    for step in range(20, 30):
        write_step(writer, step, steps=100, clip=1.0, rng=rng)
    # The writer's thread flushes it; nothing is reloaded.
    page.wait_for_selector("[data-steps='30']", timeout=1000)
    writer.exam(ExamResult("causality", 29, "done", {"leak": 0.25}, "", 0.1))
    unfold(page, "exams")
    page.wait_for_selector("table.exams tbody tr:nth-child(4)")
    # A verdict is made from the record so far.
    page.wait_for_selector(".verdict:not(.waiting)", timeout=20_000)
    writer.fact("run.ended", 0)
    writer.close()
    page.wait_for_selector(".state.ended")


def test_several_runs_in_one_chart(runs, serve, open_page) -> None:
    page = open_page(serve(runs))
    page.get_by_label("Compare sick").check()
    page.get_by_label("Compare healthy").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_selector("[id='chart-compare-loss.token'] .legend b")
    legend = page.locator("[id='chart-compare-loss.token'] .legend").inner_text()
    assert {"sick", "healthy"} <= set(legend.split("\n"))
    assert shown_steps(page) == (0, 299)


def test_dark_by_system_and_by_choice(runs, serve, open_page) -> None:
    url = f"{serve(runs)}#/run/sick"
    page = open_page(url, color_scheme="dark")
    page.wait_for_selector(LEGEND)
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150
    page.get_by_role("button", name="Switch to light colours").click()
    assert sum(map(int, re.findall(r"\d+", page.evaluate(colour)))) > 600
    page.reload()
    page.wait_for_selector(LEGEND)
    assert sum(map(int, re.findall(r"\d+", page.evaluate(colour)))) > 600


def test_a_phone_shows_all_without_sideways_scrolling(runs, serve, open_page) -> None:
    for path in ("", "#/run/sick", "#/compare/sick/healthy"):
        page = open_page(f"{serve(runs)}{path}", viewport={"width": 390, "height": 844})
        page.wait_for_selector("main h1")
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_empty_folder_and_corrupt_record(tmp_path, serve, open_page) -> None:
    url = serve(tmp_path)
    page = open_page(url)
    page.wait_for_selector("text=No runs in")
    make_corrupt_run(tmp_path / "broken")
    make_run(tmp_path / "good", steps=10)
    page.wait_for_selector(".pill:has-text('unreadable')")
    page.get_by_role("link", name="broken").click()
    page.wait_for_selector("text=This record cannot be read")


def test_hostile_names_are_only_text(tmp_path, serve, open_page) -> None:
    name = "<img src=x onerror=alert(1)>"
    writer = RecordWriter(tmp_path / name)
    writer.scalar("loss.root", 0, 1.0)
    writer.layers("grad.rms", 0, ["<script>alert(1)</script>"] * 2, [1.0, 2.0])
    sample = {"step": 0, "text": "<script>alert(2)</script>", "temperature": 1.0}
    writer.fact("text.samples", [sample])
    writer.fact("script", {"path": "javascript:alert(3)"})
    writer.close()
    make_run(tmp_path / "other", steps=5)
    page = open_page(serve(tmp_path))
    page.locator(".name", has_text=name).click()
    page.wait_for_selector("h1")
    assert page.locator("h1").inner_text() == name
    assert page.locator("main img").count() == 0
    unfold(page, "samples")
    assert "<script>alert(2)</script>" in page.locator(".samples").inner_text()


def test_a_report_opens_from_the_disk(tmp_path, open_page) -> None:
    record = open_record(make_run(tmp_path / "run", steps=60))
    html.write(record, record.fact("verdict"), tmp_path / "report.html", name="run")
    page = open_page((tmp_path / "report.html").as_uri())
    page.wait_for_selector(LEGEND)
    unfold(page, "layer-update")
    page.wait_for_selector("#chart-layer-update canvas")
    requests = page.evaluate("performance.getEntriesByType('resource').length")
    assert requests == 0


def test_a_notebook_frame_shows_the_report(tmp_path, open_page) -> None:
    record = open_record(make_run(tmp_path / "run", steps=30))
    shown = html.notebook(record, record.fact("verdict"), name="run")
    (tmp_path / "cell.html").write_text(f"<body>{shown._repr_html_()}</body>")
    page = open_page((tmp_path / "cell.html").as_uri())
    page.frame_locator("iframe").locator(LEGEND).first.wait_for()


@pytest.mark.slow
def test_a_hundred_thousand_steps_stay_fluid(tmp_path, serve, open_page) -> None:
    make_huge_run(tmp_path / "big")
    page = open_page(f"{serve(tmp_path)}#/run/big")
    page.wait_for_selector(LEGEND)
    loss = page.evaluate("performance.now()")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 1500
    unfold(page, "layer-gradient")
    page.wait_for_selector("#chart-layer-gradient canvas")
    page.wait_for_timeout(1000)
    page.evaluate("performance.clearResourceTimings()")
    for _ in range(8):
        page.get_by_label("Zoom in").click()
        page.wait_for_timeout(250)
    kinds = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/'))"
        ".map(e => [e.name.includes('/series'), e.duration])"
    )
    series = sorted(took for is_series, took in kinds if is_series)
    layers = sorted(took for is_series, took in kinds if not is_series)
    print(f"first paint {paint:.0f} ms, loss {loss:.0f} ms, series {series}, layers {layers}")
    assert statistics.median(series) < 100
    assert statistics.median(layers) < 100
