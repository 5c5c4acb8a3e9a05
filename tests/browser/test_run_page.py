"""The page of one run: each test is a defect that the page had."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from made_runs import layer_names, make_run, sick_verdict, write_facts, write_step
from traindoctor.record import RecordWriter, open_record
from traindoctor.report import html

pytestmark = pytest.mark.browser

VERDICT = ".verdict .kind"
SCRIPT = "\n".join(f"    statement_{n} = {n}" for n in range(1, 101))
WIDE, PHONE = {"width": 1400, "height": 1000}, {"width": 390, "height": 844}


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    """A sick run whose record has its script; the page is to be opened on the folder above."""
    run = make_run(tmp_path / "sick", steps=60)
    writer = RecordWriter(run)
    writer.fact("script.text", {"path": "train.py", "text": SCRIPT})
    writer.fact("run.ended", 0)
    writer.close()
    return tmp_path


def parameters(*names: str) -> list[dict]:
    return [{"name": name, "shape": [4, 4], "trainable": True, "tied": []} for name in names]


def colours(page, figure: str) -> list[list[int]]:
    """Of each row of a picture by layer, the colour in the middle of its first column."""
    return page.evaluate(
        """(id) => {
            const box = document.querySelector(`#chart-${id} .cells`);
            const canvas = box.querySelector("canvas");
            const ratio = canvas.width / canvas.clientWidth;
            const left = box.querySelector(".rows li").clientWidth + 12;
            return [...box.querySelectorAll(".rows li")].map((row) => {
                const y = (row.offsetTop + row.clientHeight / 2) * ratio;
                return [...canvas.getContext("2d").getImageData((left + 90) * ratio, y, 1, 1).data];
            });
        }""",
        figure,
    )


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_verdict_is_the_largest_word_of_its_card(sick, serve, open_page, size) -> None:
    page = open_page(f"{serve(sick)}#/run/sick", viewport=size)
    page.wait_for_selector(VERDICT)
    assert page.locator(VERDICT).inner_text() == "Sick"
    sizes = page.evaluate(
        "[...document.querySelectorAll('.verdict *')].filter(e => e.innerText)"
        ".map(e => [e.matches('.kind'), parseFloat(getComputedStyle(e).fontSize)])"
    )
    word = next(size for is_word, size in sizes if is_word)
    others = max(size for is_word, size in sizes if not is_word)
    assert word > 1.5 * others


def test_the_line_that_is_named_stands_with_two_lines_around_it(sick, serve, open_page) -> None:
    page = open_page(f"{serve(sick)}#/run/sick")
    page.wait_for_selector(".source tr")
    assert page.locator(".source .number").all_inner_texts() == ["52", "53", "54", "55", "56"]
    assert page.locator(".source tr.meant code").inner_text() == "statement_54 = 54"
    assert "statement_51" not in page.content()


FIX = """--- a/train.py
+++ b/train.py
@@ -52,5 +52,6 @@
     statement_52 = 52
     statement_53 = 53
+    optimizer.zero_grad()
     statement_54 = 54
     statement_55 = 55
-    statement_56 = 56
+    statement_56 = 57
"""


def test_the_change_the_law_and_what_is_not_proven_stand_in_the_card(
    sick, serve, open_page
) -> None:
    verdict = sick_verdict(60)
    verdict["causes"][0] |= {
        "summary": "`.grad` was not cleared in 9 of 9 steps",
        "fix": FIX,
        "law": "the gradient is new",
        "undecided": "no trial was made",
    }
    verdict["causes"][0]["evidence"] = [
        {"measure": "error", "value": 383.0021, "expected": 0, "noise": 9.537e-07, "step": 1},
        {"measure": "alike, z", "value": 613.8, "expected": 0, "noise": 2.683e-16, "step": None},
    ]
    seen = ["`.grad` was not cleared in 9 of 9 steps", "the loss turns"]
    verdict["symptoms"] = [{"symptom": "loss", "summary": one, "since_step": 1} for one in seen]
    writer = RecordWriter(sick / "sick")
    writer.fact("verdict", verdict | {"overhead_seconds": 1.34, "overhead_percent": 12.34})
    writer.close()
    url = serve(sick)
    page = open_page(f"{url}#/run/sick")
    card = page.locator(".cause.first")
    card.wait_for()
    assert card.locator("h2 code").inner_text() == ".grad"
    assert [line.strip("\n") for line in card.locator(".diff span").all_inner_texts()] == [
        "line 54",
        "+    optimizer.zero_grad()",
        "line 56",
        "-    statement_56 = 56",
        "+    statement_56 = 57",
    ]
    told = card.inner_text()
    assert "Violates: the gradient is new" in told
    assert "Not proven: no trial was made" in told
    rows = card.locator(".told table").last.locator("tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["error", "383", "0 ± 1e−6", "1"],
        ["alike (z-score)", "614", "0", "–"],
    ]
    assert page.locator(".symptoms li").all_inner_texts() == ["the loss turns"]
    words = page.locator(".tests .why code").first
    assert words.evaluate("(code) => getComputedStyle(code).display") == "inline"
    assert "1.3 s while the script ran (12 %)" in page.locator(".rest").inner_text()
    assert "`" not in page.locator("main").inner_text()
    page.goto(url)
    page.wait_for_selector(".runs li")
    assert "`" not in page.locator(".runs").inner_text()


def test_a_report_has_no_more_of_the_script(sick, tmp_path, open_page) -> None:
    record = open_record(sick / "sick")
    html.write(record, record.fact("verdict"), tmp_path / "report.html", name="run")
    text = (tmp_path / "report.html").read_text()
    assert re.findall(r"statement_(\d+) ", text) == ["52", "53", "54", "55", "56"]
    page = open_page((tmp_path / "report.html").as_uri())
    page.wait_for_selector(".source tr.meant")


def test_the_plots_of_the_cause_are_beside_it_and_the_others_are_folded(
    sick, serve, open_page
) -> None:
    page = open_page(f"{serve(sick)}#/run/sick", viewport=WIDE)
    page.wait_for_selector(".verdict #chart-gradient .legend b")
    top = page.locator(".verdict figure.chart")
    assert top.count() == 2
    # What the check read of a run that clips; on a wide screen it is seen without scrolling.
    assert top.first.get_attribute("id") == "chart-gradient"
    box = page.locator("#chart-gradient").bounding_box()
    assert box["y"] + box["height"] < WIDE["height"]
    assert page.locator("figure.chart, figure.heat").count() == 2
    rate = page.get_by_role("button", name="Learning rate")
    assert rate.get_attribute("aria-expanded") == "false"
    rate.click()
    page.wait_for_selector("#chart-rate .legend b")
    page.reload()
    page.wait_for_selector("#chart-rate .legend b")
    assert page.locator("figure.chart, figure.heat").count() == 3


def test_the_table_of_tests_is_in_plain_words(sick, serve, open_page) -> None:
    writer = RecordWriter(sick / "sick")
    open_tests = [
        {"cause": "overfitting", "reason": "not-measured", "sentence": "no", "command": None}
    ]
    apart = [{"cause": "ranks-diverged", "sentence": "one process trains"}]
    writer.fact("verdict", {**sick_verdict(60), "untested": open_tests, "not_applicable": apart})
    writer.close()
    page = open_page(f"{serve(sick)}#/run/sick")
    page.wait_for_selector(".tests tbody tr")
    rows = {
        row[0]: row[1]
        for row in page.evaluate(
            "[...document.querySelectorAll('.tests tbody tr')]"
            ".map(r => [r.cells[1].querySelector('code').innerText, r.cells[0].innerText])"
        )
    }
    assert rows == {
        "clip-too-tight": "fail",
        "lr-too-low": "fail",
        "overfitting": "not tested",
        "missing-zero-grad": "pass",
        "backward-incorrect": "pass",
        "targets-misaligned": "pass",
        "ranks-diverged": "does not apply",
    }
    first = page.locator(".tests tbody tr", has_text="missing-zero-grad")
    assert "Gradients are not cleared between optimizer steps" in first.inner_text()
    page.get_by_role("button", name="not tested 1").click()
    assert page.locator(".tests tbody tr").count() == 1
    # What a test of a recorded step measured is told by its outcome, not by a status of ours.
    page.get_by_role("button", name="Measurements on recorded steps").click()
    measured = page.locator("table.exams").inner_text()
    assert "not possible: the batches have changing shapes" in measured
    assert not {"done", "refused", "not-applicable"} & set(re.findall(r"[\w-]+", measured))


def test_a_script_that_does_not_clip_shows_no_nan(tmp_path, serve, open_page) -> None:
    rng = np.random.default_rng(0)
    writer = RecordWriter(tmp_path / "run")
    for step in range(30):
        write_step(writer, step, steps=30, clip=math.nan, rng=rng)
    writer.scalars(30, {"grad.norm": 1.0, "grad.norm_clipped": 1.0})
    writer.fact("verdict", {"verdict": "healthy", "causes": []})
    writer.fact("run.ended", 0)
    writer.close()
    page = open_page(serve(tmp_path) + "#/run/run")
    page.wait_for_selector("#chart-gradient .legend b")
    legend = page.locator("#chart-gradient .legend").inner_text()
    assert legend.startswith("norm")
    assert "clipping" not in legend
    assert "limit" not in legend
    assert "NaN" not in legend


def write_layers(folder: Path, series: str, values: dict[str, float], model: list[str]) -> None:
    writer = RecordWriter(folder)
    writer.fact("model.parameters", parameters(*model))
    for step in range(12):
        writer.scalar("loss.root", step, 3.0)
        writer.layers(series, step, list(values), list(values.values()))
    writer.fact("verdict", {"verdict": "healthy", "causes": []})
    writer.fact("run.ended", 0)
    writer.close()


MODEL = ["wte.weight", "h.0.attn.weight", "h.0.mlp.weight", "h.1.attn.weight", "head.weight"]


def test_layers_stand_in_the_order_of_the_model_and_none_is_missing(
    tmp_path, serve, open_page
) -> None:
    found = {"head.weight": 0.3, "h.1.attn.weight": 0.1, "wte.weight": 0.2}
    write_layers(tmp_path / "run", "grad.rms", found, MODEL)
    page = open_page(f"{serve(tmp_path)}#/run/run")
    page.locator("#fold-layer-gradient h3 button").click()
    page.wait_for_selector("#chart-layer-gradient .rows li")
    rows = page.locator("#chart-layer-gradient .rows li")
    assert [rows.nth(i).get_attribute("title") for i in range(rows.count())] == MODEL
    assert page.locator(".rows li em").all_inner_texts() == ["no gradient", "no gradient"]
    # A hatched row is neither the colour of a value nor the empty panel alone.
    strip = page.evaluate(
        """() => {
            const canvas = document.querySelector("#chart-layer-gradient .cells canvas");
            const ratio = canvas.width / canvas.clientWidth;
            const data = canvas.getContext("2d").getImageData(600 * ratio, 22 * ratio, 24, 1).data;
            return new Set([...Array(24).keys()].map((i) => data[4 * i])).size;
        }"""
    )
    assert strip > 1


def test_ordinary_updates_of_adam_are_not_red(tmp_path, serve, open_page) -> None:
    """A rate of 1e-3 on weights of 0.02 is a twentieth; a bias that began at zero moves by half of itself."""
    ratios = dict(zip(MODEL, [5e-2, 0.5, 3e-3, 1e-4, 30.0]))
    write_layers(tmp_path / "run", "update.ratio", ratios, MODEL)
    for scheme in ("light", "dark"):
        page = open_page(f"{serve(tmp_path)}#/run/run", color_scheme=scheme)
        page.locator("#fold-layer-update h3 button").click()
        page.wait_for_selector("#chart-layer-update .rows li")
        page.wait_for_timeout(300)
        shown = colours(page, "layer-update")
        for red, green, blue, _ in shown[:-1]:
            assert red - max(green, blue) < 25, (scheme, shown)
        red, green, blue, _ = shown[-1]
        assert red - max(green, blue) > 60, (scheme, shown)


def test_labels_of_layers_can_be_read_on_a_phone(tmp_path, serve, open_page) -> None:
    names = [
        f"model.decoder.layers.{i}.self_attention.{p}_proj.weight" for i in range(8) for p in "qkv"
    ]
    write_layers(tmp_path / "run", "grad.rms", dict.fromkeys(names, 0.1), names)
    page = open_page(f"{serve(tmp_path)}#/run/run", viewport=PHONE)
    page.locator("#fold-layer-gradient h3 button").click()
    page.wait_for_selector("#chart-layer-gradient .rows li")
    labels = page.locator("#chart-layer-gradient .rows li").all_inner_texts()
    assert len(set(labels)) == len(names)
    assert labels[4] == "1.k_proj"
    boxes = page.evaluate(
        "[...document.querySelectorAll('.rows li')].map(e => { const b = e.getBoundingClientRect();"
        " return [b.left, b.top, parseFloat(getComputedStyle(e).fontSize), e.scrollWidth - e.clientWidth] })"
    )
    assert all(left >= 0 and size >= 11 and over <= 0 for left, _, size, over in boxes)
    tops = [top for _, top, _, _ in boxes]
    assert min(b - a for a, b in pairwise(tops)) >= 14


def test_a_bias_is_named_with_what_it_belongs_to(tmp_path, serve, open_page) -> None:
    ends = ["out_proj.weight", "out_proj.bias", "in_proj_weight", "in_proj_bias"]
    names = [f"decoder.layers.{i}.self_attention.{end}" for i in range(3) for end in ends]
    write_layers(tmp_path / "run", "grad.rms", dict.fromkeys(names, 0.1), names)
    page = open_page(f"{serve(tmp_path)}#/run/run", viewport=PHONE)
    page.locator("#fold-layer-gradient h3 button").click()
    page.wait_for_selector("#chart-layer-gradient .rows li")
    labels = page.locator("#chart-layer-gradient .rows li").all_inner_texts()
    assert len(set(labels)) == len(names)
    assert labels[1].startswith("0.")
    assert labels[1].endswith("proj.bias")


def test_the_row_of_the_whole_model_has_a_name(tmp_path, serve, open_page) -> None:
    names = ["embed", "head", ""]
    write_layers(tmp_path / "run", "act.rms", dict.fromkeys(names, 0.1), [])
    page = open_page(f"{serve(tmp_path)}#/run/run")
    page.get_by_role("button", name="Activations by module").click()
    page.wait_for_selector("figure.heat .rows li")
    rows = page.locator("figure.heat .rows li")
    assert rows.all_inner_texts()[-1] == "(whole model)"
    page.locator("figure.heat").focus()
    for _ in names:
        page.keyboard.press("ArrowDown")
    assert "(whole model) step" in page.locator(".reading .where").inner_text()


def test_smoothing_leaves_the_raw_curve(sick, serve, open_page) -> None:
    page = open_page(f"{serve(sick)}#/run/sick")
    page.wait_for_selector("#chart-loss .legend b")
    raw = page.locator("#chart-loss .legend li").first.locator("b").inner_text()
    drawn = "document.querySelector('#chart-loss canvas').toDataURL()"
    before = page.evaluate(drawn)
    page.get_by_label("smooth").select_option(label="over 10 steps")
    page.wait_for_selector("#chart-loss[data-smooth='10'] .legend em")
    assert page.evaluate(drawn) != before
    first = page.locator("#chart-loss .legend li").first
    assert first.locator("b").inner_text() == raw
    assert first.locator("em").inner_text() != f"~{raw}"
    page.reload()
    page.wait_for_selector("#chart-loss .legend em")  # remembered
    page.get_by_label("smooth").select_option(label="off")
    page.wait_for_selector("#chart-loss[data-smooth='0']")
    assert page.locator("#chart-loss .legend em").count() == 0


def test_the_page_of_a_run_by_keys_alone(sick, serve, open_page) -> None:
    page = open_page(f"{serve(sick)}#/run/sick", viewport=WIDE)
    page.wait_for_selector("#chart-loss .legend b")
    reached, unseen = [], []
    for _ in range(90):
        page.keyboard.press("Tab")
        what, seen = page.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e === document.body ? '' : e.id || e.innerText.split('\\n')[0] || e.ariaLabel,"
            " e === document.body || (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2)] }"
        )
        if not what:
            break
        reached.append(what)
        unseen += [] if seen else [what]
    assert unseen == []
    panels = page.locator(".fold .what").all_inner_texts()
    for wanted in (
        "Skip to the content",
        "all runs",
        "dark",
        "chart-gradient",
        "chart-loss",
        *panels,
    ):
        assert wanted in reached, (wanted, reached)
    assert any("About this cause" in what for what in reached)
    assert any(what.startswith("all ") and what != "all runs" for what in reached)
    # Enter opens a panel and leaves the focus on it.
    page.locator("#fold-rate h3 button").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#chart-rate")
    assert page.evaluate("document.activeElement.closest('#fold-rate') !== null")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chart-rate", state="detached")


def a_run(folder: Path, kind: str) -> Path:
    if kind in ("healthy", "ranks"):
        make_run(folder, steps=40, sick=False)
    if kind == "ranks":
        other = RecordWriter(folder, rank=1)
        other.scalar("loss.root", 0, 1.0)
        other.close()
        return folder
    if kind == "healthy":
        return folder
    writer = RecordWriter(folder)
    if kind == "running":
        write_facts(writer)
    rng = np.random.default_rng(0)
    for step in range(0 if kind == "no steps" else 20):
        if kind == "running":
            write_step(writer, step, steps=20, clip=1.0, rng=rng)
        else:
            writer.scalar("loss.root", step, math.nan if kind == "nan" and step > 11 else 3.0)
    if kind == "log":
        writer.fact("imported", {"from": "metrics.csv", "rows": 20, "used": {}, "ignored": {}})
    if kind == "inconclusive":
        found = {
            "verdict": "inconclusive",
            "reason": "too few steps",
            "decides": "traindoctor run x.py",
        }
        writer.fact("verdict", {**found, "causes": []})
    if kind != "running":
        writer.fact("run.ended", "ValueError" if kind == "no steps" else 0)
    writer.close()
    return folder


@pytest.mark.parametrize(
    ("kind", "word", "said"),
    [
        ("healthy", "Healthy", "31 tests found nothing."),
        ("inconclusive", "Inconclusive", "To decide: traindoctor run x.py"),
        ("running", "Running", "20 steps"),
        ("log", "Inconclusive", "as logged"),
        ("nan", None, "loss NaN since step 12"),
        ("ranks", "Healthy", "rank"),
        ("no steps", "Inconclusive", "This run has recorded no numbers."),
    ],
)
def test_runs_that_are_not_sick(tmp_path, serve, open_page, kind, word, said) -> None:
    a_run(tmp_path / "run", kind)
    make_run(tmp_path / "other", steps=5)
    url = f"{serve(tmp_path)}#/run/run"
    for size, scheme in ((WIDE, "light"), (PHONE, "dark")):
        page = open_page(url, viewport=size, color_scheme=scheme)
        page.wait_for_selector(".verdict:not(.waiting) .kind")
        if word is not None:
            assert page.locator(VERDICT).inner_text() == word
        page.wait_for_function("said => document.body.innerText.includes(said)", arg=said)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    if kind == "ranks":
        page.get_by_label("rank").select_option("1")
        page.wait_for_selector("[data-steps='1']")


def test_a_report_of_several_ranks_offers_no_rank_that_it_has_not(tmp_path, open_page) -> None:
    record = open_record(a_run(tmp_path / "run", "ranks"))
    html.write(record, record.fact("verdict"), tmp_path / "report.html", name="run")
    page = open_page((tmp_path / "report.html").as_uri())
    page.wait_for_selector("text=rank 0 of 2")
    assert page.locator("header select").count() == 0


def test_ranks_are_one_picture(tmp_path, serve, open_page) -> None:
    run = a_run(tmp_path / "run", "ranks")
    record = open_record(run)
    html.write(record, record.fact("verdict"), tmp_path / "report.html", name="run")
    for url in (f"{serve(tmp_path)}#/run/run", (tmp_path / "report.html").as_uri()):
        page = open_page(url)
        page.get_by_role("button", name="open all").click()
        page.locator("#chart-ranks").scroll_into_view_if_needed()
        page.wait_for_selector("#chart-ranks .rows li")
        assert page.locator("#chart-ranks .rows li").all_inner_texts() == ["rank 0", "rank 1"]
        page.get_by_label("Filter ranks").fill("rank 1")
        page.wait_for_function("document.querySelectorAll('#chart-ranks .rows li').length === 1")


def test_all_layers_of_a_run_have_their_picture(sick, serve, open_page) -> None:
    page = open_page(f"{serve(sick)}#/run/sick")
    page.get_by_role("button", name="open all").click()
    page.locator("#chart-layer-update").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-layer-update .rows li")
    names = page.locator("#chart-layer-update .rows li")
    titles = [names.nth(i).get_attribute("title") for i in range(names.count())]
    assert titles == [name for name in layer_names() if name in titles]
    page.get_by_role("button", name="close all").click()
    assert page.locator("figure.heat").count() == 0
