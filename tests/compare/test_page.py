"""The page of a comparison as a file: its data cannot get out of their block, and it is written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.made_traces import answered, changed, full_disk, renamed, transformer, wrong_from
from traindoctor.compare.answer import Answer
from traindoctor.compare.page import MARK, TEMPLATE, page, write_page
from traindoctor.errors import TraindoctorError

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "&lt;/script&gt;",
    "\u2028\u2029\0",
    "\ud800 half a character",
    MARK,
    "'sha256-script'",
    "$& $1 \\u003c",
]


class Reader(HTMLParser):
    """The elements of a page, and the text of its data block."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, str] = {}
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.blocks[self._inside] = self.blocks.get(self._inside, "") + data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


@pytest.fixture(scope="module")
def found() -> Answer:
    a = transformer()
    return answered(a, changed(a, wrong_from("blocks.1.mlp.up")), reproduce="traindoctor compare")


def with_text(found: Answer, text: str) -> Answer:
    """The answer with this wherever somebody else's text can stand."""
    named = renamed(found, text)
    assert named.kind is not None
    told = replace(named.kind, sentence=text)
    return replace(named, a=text, b=text, kind=told, layouts=(text,), notes=(text,), reproduce=text)


def assert_only_data(text: str, found: Answer) -> None:
    page_of, template = read(text), read(TEMPLATE.read_text(encoding="utf-8"))
    # The policy has its hashes in the one and placeholders in the other.
    named = [(tag, tag != "meta" and found) for tag, found in page_of.tags]
    assert named == [(tag, tag != "meta" and found) for tag, found in template.tags]
    assert json.loads(page_of.blocks["answer"]) == found.as_dict()


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_text_stays_in_its_block(found: Answer, text: str, tmp_path: Path) -> None:
    hostile = with_text(found, text)
    write_page(hostile, tmp_path / "page.html")
    assert_only_data((tmp_path / "page.html").read_text(encoding="utf-8"), hostile)


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters() | st.sampled_from(string.punctuation), max_size=30))
def test_any_text_stays_in_its_block(text: str) -> None:
    a = transformer(layers=1)
    hostile = with_text(answered(a, changed(a, wrong_from("blocks.0.mlp"))), text)
    assert_only_data(page(hostile), hostile)


def test_nothing_is_loaded_and_only_its_own_script_runs(found: Answer) -> None:
    text = page(found)
    reader = read(text)
    policy = next(found["content"] for _, found in reader.tags if "content" in found)
    assert policy is not None
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(reader.blocks[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert attributes.get("src") is None
        assert attributes.get("href") in (None, "data:,")
    program = reader.blocks["script"].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|innerHTML|outerHTML|insertAdjacent|document\.write", program)
    assert not re.search(r"url\(|@import", reader.blocks["style"])


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    a = transformer(layers=1)
    for bad in (float("nan"), float("inf")):
        b = changed(a, lambda one, values, bad=bad: values * bad if one.kind == "loss" else values)
        found = answered(a, b)
        write_page(found, tmp_path / "page.html")
        data = json.loads(read((tmp_path / "page.html").read_text()).blocks["answer"])
        assert data["kind"]["code"] == "not-finite"
        assert data["first"]["difference"] is None


def test_a_full_disk_leaves_the_old_page(found: Answer, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    with full_disk(), pytest.raises(TraindoctorError, match=r"cannot write .*page\.html: "):
        write_page(found, file)
    assert file.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_a_path_that_cannot_be_written(found: Answer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for name in ("file/page.html", "folder.html", "x" * 300 + ".html"):
        with pytest.raises(TraindoctorError, match="cannot write "):
            write_page(found, tmp_path / name)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder.html"]
    write_page(found, tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").stat().st_size > 10_000
