"""`--board`: a process of its own that sends a run's record to a board while it grows, then its verdict.

The script's process is left alone: no board is imported there, its own wandb or mlflow run is not touched, and a
board that hangs or fails costs the training nothing. It talks to the run through the record.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

from traindoctor.errors import RecordError, TraindoctorError

BOARDS = ("tensorboard", "wandb", "mlflow")
# A board is told so often while the run goes on.
EVERY_SECONDS = 5.0
# How long the end of a run waits for the rest to be sent.
LAST_SECONDS = 60.0


# The child's exit status when there was no record to send.
NOTHING = 3


def require(name: str) -> None:
    """Says in one sentence that a board's package is missing, before the run begins."""
    if importlib.util.find_spec(name) is None:
        raise TraindoctorError(
            f"--board {name} needs the package {name}, which is not installed: pip install {name}",
            slug="no-board",
        )


class BoardBeside:
    """Started before the run, `finish()`ed after its verdict."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.log = folder / "board.log"
        # Without the variables that would make the child record itself.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINDOCTOR_")}
        folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, name, str(folder.resolve())],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def finish(self) -> str:
        """Waits for the last points and the verdict; says in one line where they are."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended before its time
            self._child.stdin.close()
        try:
            status = self._child.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{self.name} is still being told; {self.log} has what it says"
        if status == NOTHING:
            return f"nothing was recorded that {self.name} could be told"
        if status:
            return f"{self.name} could not be told: {self.log} says why"
        return f"measures and verdict are in {place(self.name, self.folder)}"


def place(name: str, folder: Path) -> str:
    return str(folder / "tensorboard") if name == "tensorboard" else name


def follow_record(name: str, folder: Path, ended: threading.Event) -> int:
    """Sends what the record in `folder` has and gets, until `ended`; then the verdict. The exit status."""
    from traindoctor.diagnosis import diagnose
    from traindoctor.integrations.boards import Mirror, open_board
    from traindoctor.record import StoredRecord, open_record, record_path

    mirror: Mirror | None = None
    over = False
    while not over:
        over = ended.wait(EVERY_SECONDS)
        if mirror is None:
            try:
                record = StoredRecord(record_path(folder))
            except RecordError:  # not there yet, or its tables are being made
                continue
            mirror = Mirror(record, open_board(name, folder / "tensorboard"))
        mirror.send()
    if mirror is None:
        return NOTHING
    mirror.finish(diagnose(open_record(folder)))
    return 0


def main() -> None:
    name, folder = sys.argv[1:]
    ended = threading.Event()

    def wait_for_parent() -> None:
        # The pipe closes when the run is over, and also when its process is killed.
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_parent, daemon=True).start()
    sys.exit(follow_record(name, Path(folder), ended))


if __name__ == "__main__":
    main()
