"""The folder that an agent may look at: what leads outside of it is refused."""

import os
from pathlib import Path

from traindoctor.errors import TraindoctorError

# A folder of logs or of a run has some hundred files; past this something else is meant.
MOST_ENTRIES = 20_000


class Folder:
    """`Folder(Path("project")).inside("runs/mine")` is a path; `inside("../secret")` is an error."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise TraindoctorError(f"--folder must be a folder that is there; {root} is none")
        self.root = root.resolve()

    def holds(self, path: Path) -> bool:
        """Whether the path lies in the folder, its links followed."""
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError, ValueError):  # a circle of links
            return False

    def inside(self, text: str) -> Path:
        """The path of what an agent names; nothing in it may lead outside either."""
        if "\0" in text:
            raise TraindoctorError(f"{text!r} is no path")
        path = self.root / text
        if not self.holds(path):
            raise self._outside(text)
        if path.is_dir():
            for count, entry in enumerate(path.rglob("*")):
                if count > MOST_ENTRIES:
                    raise TraindoctorError(
                        f"{text} holds too many files: name a folder inside of it"
                    )
                if entry.is_symlink() and not self.holds(entry):
                    raise self._outside(os.path.join(text, entry.relative_to(path)))
        return path

    def script(self, text: str) -> str:
        """A Python file in the folder, as it is named from there."""
        path = self.root / text
        if "\0" in text or not self.holds(path):
            raise self._outside(text)
        if not path.is_file():
            raise TraindoctorError(f"there is no script {text!r} in {self.root}")
        return os.path.relpath(path, self.root)

    def shown(self, path: Path) -> str:
        """As an agent may name it."""
        return os.path.relpath(path, self.root)

    def _outside(self, text: str) -> TraindoctorError:
        return TraindoctorError(
            f"{text} leads outside of {self.root}, the folder that this server was started with"
        )
