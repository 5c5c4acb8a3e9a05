"""A copy of a script with a patch, in a folder where it finds all that lies beside the script.

The user's file is never changed: the copy stands among links to its neighbours, so that `import model` and
`Path(__file__).parent / "data.txt"` work as they do for the script itself.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath

from traindoctor.errors import TraindoctorError
from traindoctor.fixes import patch
from traindoctor.plain_files import MEGABYTE, read_text

FOLDER, PATCH = "patched", "fix.diff"
# Those who patch scripts by hand change lines, not megabytes.
MOST_PATCH = MEGABYTE


@dataclass(frozen=True)
class PatchedScript:
    """The script with the change; nothing is written before `lay_out`."""

    script: Path
    text: str
    patch_text: str

    def lay_out(self, folder: Path) -> Path:
        """Writes the copy into the folder of the run, among links to what lies beside the script."""
        home = folder / FOLDER
        shutil.rmtree(home, ignore_errors=True)
        copy = home / self.script.name
        try:
            home.mkdir(parents=True)
            copy.write_text(self.text, encoding="utf-8", newline="")
            (home / PATCH).write_text(self.patch_text, encoding="utf-8")
            for beside in self.script.resolve().parent.iterdir():
                if beside.name not in (self.script.name, "__pycache__", PATCH):
                    (home / beside.name).symlink_to(beside)
        except OSError as error:
            raise TraindoctorError(
                f"cannot lay out the patched script in {home}: {error.strerror}"
            ) from None
        return copy


def clean(home: Path) -> None:
    """Takes the links away, when the run has ended: what stays are the patched script and its patch."""
    try:
        for entry in home.iterdir():
            if entry.is_symlink():
                entry.unlink()
        shutil.rmtree(home / "__pycache__", ignore_errors=True)
    except OSError:
        pass  # links that stay do no harm


def patched(script: str, patch_file: str) -> PatchedScript:
    """Says in one sentence why the patch cannot be tried, before anything is run or written."""
    file = Path(script)
    if file.is_dir():
        raise TraindoctorError(
            f"--verify-fix changes a script: give a Python file, not the folder {script}"
        )
    diff = _read(Path(patch_file), "patch")
    change = patch.read(diff, patch_file)
    refuse_other_files(change.file, file, patch_file)
    before = _read(file, "script")
    # Lines may end in \r\n; the patch need not.
    ending = "\r\n" if "\r\n" in before else "\n"
    text = patch.applied(change, before.replace("\r\n", "\n"), patch_file)
    try:
        compile(text, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        said = (
            f"{error.msg} in line {error.lineno}" if isinstance(error, SyntaxError) else str(error)
        )
        raise TraindoctorError(f"{script} with {patch_file} is not valid Python: {said}") from None
    return PatchedScript(file, text.replace("\n", ending), diff)


def refuse_other_files(named: str, script: Path, patch_file: str) -> None:
    """The patch may name the script alone, by its name or by the end of its path."""
    path = PurePath(named)
    full = PurePath(os.path.abspath(script))
    if ".." in path.parts or (path.is_absolute() and path != full):
        raise TraindoctorError(
            f"{patch_file} names {named}, which leads elsewhere: a patch may change {script} alone"
        )
    if full.parts[-len(path.parts) :] != path.parts:
        raise TraindoctorError(
            f"{patch_file} changes {named}, not {script}: give a patch of the script alone"
        )


def _read(file: Path, what: str) -> str:
    try:
        return read_text(file, most=MOST_PATCH)
    except FileNotFoundError:
        raise TraindoctorError(f"there is no {what} {str(file)!r}") from None
    except OSError as error:
        raise TraindoctorError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise TraindoctorError(f"cannot read {file}: {error}") from None
