"""Secrets in command lines: what looks like one is never recorded.

The rule, which docs/records.md states for users. A value is replaced by `[redacted]`
- after, or behind the = or : of, a name that ends in a word for a secret (`--api-key X`, `wandb.token=X`,
  `PASSWORD=X`); under `token`, `auth` and `key` ordinary values stay (a short number, `true`, `<pad>`);
- where it has the form of a known kind of key (`hf_...`, `sk-...`, `ghp_...`, `AKIA...`), wherever it stands;
- as the user and password of an address (`https://me:pw@host`);
- where it is 20 characters or more of mixed letters and digits without a pattern.
Hexadecimal numbers (commits, checksums, UUIDs) are ordinary unless their name says otherwise.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

REDACTED = "[redacted]"

# Whatever stands under these is a secret.
ALWAYS = frozenset(
    "password passwd passphrase passcode pwd secret secrets credential credentials apikey apitoken "
    "authtoken accesstoken bearer authorization cookie".split()
)
# These name ordinary things as well: a padding token, a sort key.
SOMETIMES = frozenset(["token", "auth"])
# `key` is a secret behind one of these words only: datasets have text keys, attention has key sizes.
BEFORE_KEY = frozenset(
    "api access private secret encryption signing account service license auth ssh deploy master session storage "
    "wandb openai anthropic hf huggingface comet neptune aws azure gcp google mlflow clearml swanlab".split()
)
# Tokens of a vocabulary.
BEFORE_TOKEN = frozenset(
    "pad padding eos bos unk unknown mask sep cls special image audio video text start end stop begin prefix suffix "
    "per next first last new max min num decoder forced sot eot im bot tool".split()
)
ORDINARY_VALUE = re.compile(
    r"[+-]?\d{1,7}|[+-]?\d*\.\d+(e[+-]?\d+)?|[+-]?\d+\.?\d*e[+-]?\d+|true|false|none|null|auto|yes|no|on|off"
    r"|<[^<>]{1,40}>|\[[^\[\]]{1,40}\]|</?s>",
    re.IGNORECASE,
)
KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z]*\d)[A-Za-z0-9]{8,})"
    r"|(?:sk|pk|rk)[-_](?:[A-Za-z]+-)*(?:(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{12,}|[A-Za-z0-9]{24,})"
    r"|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_[A-Za-z0-9_]{8,}|glpat-[A-Za-z0-9_-]{8,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{20,}|ya29\.[0-9A-Za-z_-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"
    r"|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}|dckr_pat_[A-Za-z0-9_-]{8,}|r8_[A-Za-z0-9]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*)",
    re.DOTALL,
)
ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#@]+@")
# name=value, "name": "value", name: value, inside of an argument or a line of text.
NAMED = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_.-]*)(?P<sign>[\"']?\s?[=:]\s?)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|Bearer\s+[^\s,;&}\"']+|[^\s,;&}\"']+)"
)
BEARER = re.compile(r"\b(?P<word>Bearer|Basic)\s+(?P<value>[A-Za-z0-9+/=._~-]{8,})")
FEWEST_RANDOM = 20
# Of 62 letters and digits, neighbours are of another kind (small, large, digit) 62 times in 100; in a name of
# joined words about 40 times.
CHANGES = 0.45


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line with its secrets left out; as many arguments as before."""
    kept: list[str] = []
    name: str | None = None
    for argument in arguments:
        is_option = argument.startswith("-") and not re.fullmatch(r"-[\d.].*", argument)
        if name is not None and not is_option and is_secret_name(name, argument):
            kept.append(REDACTED)
        else:
            kept.append(redact_text(argument, whole=True))
        name = argument if is_option and "=" not in argument else None
    return kept


def redact_text(text: str, *, whole: bool = False) -> str:
    """A text with its secrets left out. `whole`: it is one argument, which may itself be a random string."""
    text = ADDRESS.sub(rf"\g<scheme>{REDACTED}@", text)
    text = KNOWN.sub(REDACTED, text)
    text = BEARER.sub(rf"\g<word> {REDACTED}", text)
    text = _without_values(text)
    if whole:
        head, sign, value = text.rpartition("=")
        if looks_random(value):
            return head + sign + REDACTED
    return text


def _without_values(text: str) -> str:
    """Looks at every name=value; behind an ordinary name the value may hold another (`url=https://host/?token=X`)."""
    kept, place = "", 0
    while found := NAMED.search(text, place):
        value = found["value"]
        if REDACTED in value or not is_secret_name(found["name"], value.strip("\"'")):
            kept += text[place : found.end("sign")]
            place = found.end("sign")
            continue
        quote = value[0] if value[0] in "\"'" else ""
        kept += f"{text[place : found.end('sign')]}{quote}{REDACTED}{quote}"
        place = found.end()
    return kept + text[place:]


def is_secret_name(name: str, value: str) -> bool:
    """Whether a value under this name is a secret; `--max-tokens` and `--key-dim` name none."""
    words = _words(name)
    if not words or not value:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in ALWAYS:
        return True
    if ORDINARY_VALUE.fullmatch(value):
        return False
    if last == "key":
        return before in BEFORE_KEY or (not before and _mixed(value) and len(value) >= 8)
    return last in SOMETIMES and before not in BEFORE_TOKEN


def _words(name: str) -> list[str]:
    """`--wandbApiKey`, `WANDB_API_KEY` and `wandb.api-key` -> wandb, api, key."""
    split = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", split) if word]


def looks_random(text: str) -> bool:
    """Letters and digits without a pattern, 20 or more between two separators. Not hexadecimal: commits are."""
    pieces = re.split(r"[^A-Za-z0-9]+", text)
    return any(_is_random(piece) for piece in pieces)


def _is_random(piece: str) -> bool:
    if len(piece) < FEWEST_RANDOM or re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", piece):
        return False
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in piece]
    if "d" not in kinds or kinds.count("d") > 0.8 * len(kinds):
        return False
    changes = sum(a != b for a, b in pairwise(kinds)) / (len(kinds) - 1)
    # With letters of one kind only, digits come 10 times in 36: neighbours differ 40 times in 100.
    return changes > (CHANGES if {"u", "l"} <= set(kinds) else 0.25)


def _mixed(value: str) -> bool:
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
