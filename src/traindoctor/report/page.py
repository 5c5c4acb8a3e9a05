"""The built page (its source is page/ in the repository) and the policy that lets only its own script run."""

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files

INLINE = re.compile(r"<(script|style)(?P<attributes>[^>]*)>(?P<body>.*?)</\1>", re.DOTALL)


def page() -> str:
    """The page as it is shipped: one file, no outside address."""
    return (files("traindoctor") / "dashboard" / "static" / "index.html").read_text("utf-8")


def hashes(html: str, tag: str) -> Iterator[str]:
    """The CSP sources of a page's own inline blocks; data blocks are never executed and need none."""
    for match in INLINE.finditer(html):
        if match[1] == tag and "application/json" not in match["attributes"]:
            digest = hashlib.sha256(match["body"].encode()).digest()
            yield f"'sha256-{base64.b64encode(digest).decode()}'"


def content_security_policy(html: str, *, connect: str = "'self'") -> str:
    """Only the page's own script and style by their hash; numbers only from where the page came from."""
    scripts, styles = " ".join(hashes(html, "script")), " ".join(hashes(html, "style"))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        f"connect-src {connect}; img-src data:; base-uri 'none'; form-action 'none'"
    )
