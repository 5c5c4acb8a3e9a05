"""The answer as one page that opens offline: the first difference, its kind, and the error growing through the layers."""

from __future__ import annotations

import json
from pathlib import Path

from traindoctor.compare.answer import Answer
from traindoctor.errors import TraindoctorError

TEMPLATE = Path(__file__).with_name("page.html")
MARK = '"traindoctor-answer"'


def write_page(found: Answer, file: Path) -> None:
    """Writes the page whole or not at all."""
    data = json.dumps(found.as_dict(), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":  # nothing in the data can end the block that holds it
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    text = TEMPLATE.read_text(encoding="utf-8").replace(MARK, data)
    part = file.with_name(file.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TraindoctorError(f"cannot write {file}: {error.strerror}") from None
