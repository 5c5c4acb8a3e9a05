"""Text that any reader can take: no half characters, no control characters that a terminal would obey."""

import re

# Everything that is not a character by itself (bytes of a foreign encoding, as Python holds them in arguments and
# file names, and other lone surrogates) and what a terminal takes as a command. Line ends and tabs stay.
UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def readable(text: str) -> str:
    r"""The text with what cannot be shown written out: a byte 0xff becomes `\xff`, an escape `\x1b`."""
    return text if text.isprintable() else UNREADABLE.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
