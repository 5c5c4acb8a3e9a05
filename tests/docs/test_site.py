"""The documentation site builds with strict links, loads nothing from other servers and has up-to-date generated pages."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from traindoctor.checks import CHECKS, laws

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("pages_tool", ROOT / "tools" / "pages.py")
assert spec is not None
assert spec.loader is not None
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_a_page_per_cause(site: Path) -> None:
    for check in CHECKS:
        assert check.title.split()[0] in (site / "checks" / f"{check.slug}.html").read_text()


def test_pages_show_the_files_that_they_include(site: Path) -> None:
    """An include that a formatter took for Python would stand on the page as it is."""
    for page in site.rglob("*.html"):
        assert "--8" not in page.read_text(encoding="utf-8"), page.name
    quick = (site / "quick-start.html").read_text(encoding="utf-8")
    firsts = [
        script.read_text(encoding="utf-8").splitlines()[0]
        for script in (ROOT / "examples" / "quick_start").glob("*.py")
    ]
    told = [first.strip('"') for first in firsts if first.startswith('"""')]
    assert told
    assert [sentence for sentence in told if sentence not in html.unescape(quick)] == []


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """Links may lead away; scripts, styles, images and frames may not come from there."""
    loads = re.compile(
        r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?((?:https?:)?//[^\" >]+)"
    )
    for page in site.rglob("*.html"):
        found = [url for url in loads.findall(page.read_text()) if "squidfunk" not in url]
        assert not found, page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style.name


@pytest.mark.parametrize("name", sorted(pages.pages()))
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == pages.pages()[name]


def test_every_law_has_a_cause_that_breaks_it() -> None:
    sentences = [v for k, v in vars(laws).items() if k.isupper() and isinstance(v, str)]
    assert {check.law for check in CHECKS} - {None} == set(sentences)


def test_a_schema_is_shown_with_its_nested_fields() -> None:
    text = pages.pages()["schema-verdict.md"]
    assert "| `evidence[].value` | [number](#number) |" in text
    assert "| `verdict` | `healthy`, `sick`, `inconclusive`, `running` |" in text
