"""The page that is shipped: one file, no outside address, built from the source beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from traindoctor.report.page import INLINE, content_security_policy, page

SOURCE = Path(__file__).parents[2] / "page"


def test_one_script_one_style_nothing_else() -> None:
    assert [match[1] for match in INLINE.finditer(page())] in (
        ["script", "style"],
        ["style", "script"],
    )
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="', page())


def test_no_address_outside() -> None:
    addresses = set(re.findall(r"https?://[\w./-]+", page()))
    # Names of XML dialects; a browser never asks for them.
    assert all(address.startswith("http://www.w3.org/") for address in addresses)


def test_small_enough_to_travel_in_every_report() -> None:
    assert len(page()) < 200_000


def test_nothing_that_the_policy_would_forbid() -> None:
    assert not re.search(r"\beval\(|new Function\(|dangerouslySetInnerHTML=", page())
    assert content_security_policy(page()).count("sha256-") == 2


def test_every_version_is_exact() -> None:
    wanted = json.loads((SOURCE / "package.json").read_text())
    for version in {**wanted["dependencies"], **wanted["devDependencies"]}.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_every_series_that_is_drawn_is_known() -> None:
    """A renamed series must not vanish from the page unnoticed."""
    charts = (SOURCE / "src" / "charts.ts").read_text()
    known = (SOURCE.parent / "docs" / "architecture.md").read_text()
    drawn = set(re.findall(r'name: "([a-z_]+\.[a-z_]+)"', charts))
    assert len(drawn) > 40
    assert {name for name in drawn if name not in known} == set()
    built = page()
    assert all(name in built for name in drawn), "run `make page`"
