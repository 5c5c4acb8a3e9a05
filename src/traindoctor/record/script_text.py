"""The script's own text, read as data, with its secrets left out: what two runs are told apart by.

Only strings and comments are looked at: `token = tokenizer.encode(text)` is code and stays, `token = "x3f..."` does not.
What a string is called (`api_key="..."`, `"password": "..."`, `os.environ["HF_TOKEN"] = "..."`) counts as an option's name does in a
command line (record/secrets.py).
"""

import hashlib
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from traindoctor.plain_files import MEGABYTE, read_bytes
from traindoctor.record.secrets import REDACTED, is_secret_name, looks_random, redact_text

# Longer scripts (generated ones, data in a literal) are told by their size and hash alone.
MOST_TEXT = MEGABYTE // 4
MOST_READ = 64 * MEGABYTE

QUOTED = re.compile(
    r"(?P<head>[A-Za-z]{0,3}(?P<quote>'''|\"\"\"|'|\"))(?P<body>.*)(?P=quote)", re.DOTALL
)
PIECE = re.compile(r"[A-Za-z0-9]{20,}")
# Of two arguments that follow each other, the first names the second where it is an environment variable.
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")
# What may stand between a name and the = of its default: `token: Optional[str] = "..."`.
ANNOTATION = frozenset("[].|")
BLANK = frozenset(
    [tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER]
)
# From Python 3.12 on an f-string comes in parts.
PART = getattr(tokenize, "FSTRING_MIDDLE", -1)

Kind = tuple[int, str]
"""Type and text of a token."""


def script_text(file: Path | str, *, name: str | None = None) -> dict[str, Any] | None:
    """The fact `script.text` of a run; None where the file cannot be read as text. It never raises.

    `text` is missing where the script is too long or not understood; then `sha256` is that of the file.
    """
    try:
        content = read_bytes(Path(file), most=MOST_READ)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    fact = {
        "path": str(file) if name is None else name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    if len(content) > MOST_TEXT:
        return fact
    try:
        shown, redacted = redact_source(text.replace("\r\n", "\n").replace("\r", "\n"))
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return fact
    if redacted:
        # The hash of a text of which all but a short password is known would give the password away.
        fact["sha256"] = hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()
    return {**fact, "text": shown, "redacted": redacted}


def redact_source(text: str) -> tuple[str, int]:
    """Python source with the secrets in its strings and comments left out, and how many places were changed."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    kept, place, changed = [], 0, 0
    for token, before in _with_what_is_before(text):
        shown = _without_secrets(token, before)
        if shown == token.string:
            continue
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        kept += [text[place:begin], shown]
        place, changed = end, changed + 1
    return "".join([*kept, text[place:]]), changed


def _with_what_is_before(text: str) -> Iterator[tuple[tokenize.TokenInfo, list[Kind]]]:
    """Every string and comment, with the tokens of its logical line that stand before it."""
    before: list[Kind] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, PART):
            yield token, before
        if token.type == tokenize.NEWLINE:
            before = []
        elif token.type not in BLANK and token.type not in (tokenize.COMMENT, PART):
            before.append((token.type, token.string))


def _without_secrets(token: tokenize.TokenInfo, before: Sequence[Kind]) -> str:
    if token.type == tokenize.COMMENT:
        return _redacted(token.string)
    found = QUOTED.fullmatch(token.string) if token.type == tokenize.STRING else None
    body = token.string if found is None else found["body"]
    if any(is_secret_name(name, body) for name in names_of_the_next(before)):
        shown = REDACTED
    else:
        shown = _redacted(body)
    # What stands below keeps its line.
    shown += "\n" * (body.count("\n") - shown.count("\n"))
    return shown if found is None else f"{found['head']}{shown}{found['quote']}"


def _redacted(text: str) -> str:
    return PIECE.sub(lambda m: REDACTED if looks_random(m[0]) else m[0], redact_text(text))


def names_of_the_next(before: Sequence[Kind]) -> list[str]:
    """What a string that follows these tokens is assigned to, or stands under."""
    at = len(before) - 1
    # `key = ("one part" "and another")`
    while at >= 0 and (before[at][0] == tokenize.STRING or before[at][1] == "("):
        at -= 1
    if at < 1:
        return []
    sign, target = before[at][1], before[at - 1]
    if sign in (":", ","):
        name = _body(target)
        return [name] if sign == ":" or VARIABLE.fullmatch(name) else []
    if sign not in ("=", "==", "!=", ":="):
        return []
    names = [target[1]]
    if target[1] == "]":
        names = [_body(before[at - 2])]
    elif target[1] == "default":  # add_argument("--password", default="...")
        names += [body for kind in before if (body := _body(kind)).startswith("--")]
    at -= 1
    while at > 0 and (before[at][0] == tokenize.NAME or before[at][1] in ANNOTATION):
        at -= 1
    if before[at][1] == ":":
        names.append(before[at - 1][1])
    return names


def _body(token: Kind) -> str:
    """What a string says; nothing of any other token."""
    found = QUOTED.fullmatch(token[1]) if token[0] == tokenize.STRING else None
    return "" if found is None else found["body"]
