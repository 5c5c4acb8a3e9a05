"""The text behind --data: files, folders, standard input or the embedded text, read in stretches."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from traindoctor.errors import DataError
from traindoctor.lm.files import writing
from traindoctor.private_files import make_private_folder


def find_files(data: tuple[str, ...], scratch: Path) -> list[Path]:
    """The text files behind --data; standard input and the embedded text are first written to `scratch`."""
    if not data:
        return [_embedded_text(scratch)]
    files: list[Path] = []
    for name in data:
        path = Path(name)
        if name == "-":
            files.append(_standard_input(scratch))
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p, path))
            texts = [p for p in inside if p.stat().st_size and _why_no_text(p) is None]
            if not texts:
                raise DataError(
                    f"the folder {name} holds no UTF-8 text file ({len(inside)} files seen): give another"
                )
            files += texts
        elif not path.exists():
            raise DataError(f"there is no file {name}: give a text file, a folder, or - for stdin")
        elif path.stat().st_size == 0:
            raise DataError(f"{name} is empty: give a file with text")
        else:
            reason = _why_no_text(path)
            if reason:
                raise DataError(f"{name} is {reason}")
            files.append(path)
    return files


def read_stretches(files: list[Path], size: int) -> Iterator[str]:
    """All texts in stretches of about `size` characters, cut at line ends where lines are not huge."""
    for file in files:
        try:
            with file.open(encoding="utf-8", newline="") as handle:
                while text := handle.read(size):
                    text += handle.readline(size)
                    if "\x00" in text:
                        raise DataError(f"{file} is a binary file: give UTF-8 text")
                    yield text
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is {not_utf8(error)}") from error
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}") from error


def _embedded_text(scratch: Path) -> Path:
    """The Python manual's help topics: 460 kB of English that every Python has."""
    from pydoc_data.topics import topics

    file = scratch / "python-topics.txt"
    with writing(file):
        make_private_folder(scratch.parent)
        scratch.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
    return file


def _standard_input(scratch: Path) -> Path:
    file = scratch / "stdin.txt"
    # A resumed run finds the text of its first start here.
    if not file.exists():
        with writing(file):
            make_private_folder(scratch.parent)
            scratch.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as out:
                shutil.copyfileobj(sys.stdin.buffer, out)
    if file.stat().st_size == 0:
        file.unlink()
        raise DataError("standard input is empty: pipe a text into --data -")
    return file


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _why_no_text(path: Path) -> str | None:
    """What the first bytes of a file are, if they are not UTF-8 text."""
    try:
        with path.open("rb") as handle:
            head = handle.read(1 << 14)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if b"\x00" in head:
        return "a binary file: give UTF-8 text"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may fall inside the last character.
        if error.start <= len(head) - 4:
            return not_utf8(error)
    return None


def not_utf8(error: UnicodeDecodeError) -> str:
    byte = error.object[error.start]
    return f"not UTF-8 text (byte 0x{byte:02x}): convert it, for example with iconv -t utf-8"
