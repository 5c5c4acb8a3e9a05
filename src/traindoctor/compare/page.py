"""The answer as one page that opens offline: the first difference, its kind, and the error growing through the layers."""

import base64
import hashlib
import json
from contextlib import suppress
from pathlib import Path

from traindoctor.compare.answer import Answer
from traindoctor.errors import TraindoctorError

TEMPLATE = Path(__file__).with_name("page.html")
MARK = '"traindoctor-answer"'


def page(found: Answer) -> str:
    """The page with its data: only the template's own script and style may run, and nothing is loaded."""
    data = json.dumps(found.as_dict(), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":  # nothing in the data can end the block that holds it
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    text = TEMPLATE.read_text(encoding="utf-8")
    for tag in ("script", "style"):
        text = text.replace(f"'sha256-{tag}'", f"'sha256-{_digest(text, tag)}'", 1)
    return text.replace(MARK, data, 1)


def _digest(text: str, tag: str) -> str:
    """Of the one block of this kind without attributes, as a policy names it."""
    body = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()


def write_page(found: Answer, file: Path) -> None:
    """Writes the page whole or not at all."""
    text = page(found)
    part = file.with_name(file.name + ".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise TraindoctorError(f"cannot write {file}: {error.strerror or error}") from None
