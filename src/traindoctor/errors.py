"""Every exception traindoctor raises."""

from __future__ import annotations

# Of a foreign error's text: its first sentence says what is wrong, the rest is advice or a table.
MOST_TOLD = 160


def in_a_sentence(error: BaseException) -> str:
    """A library's error as a part of a sentence of ours: its kind and the first sentence of its text."""
    lines = str(error).strip().splitlines()
    text = lines[0].partition(". ")[0].strip().removesuffix(".") if lines else ""
    if len(text) > MOST_TOLD:
        text = text[: MOST_TOLD - 3].rstrip() + "..."
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


class TraindoctorError(Exception):
    """A mistake of the user's, or of the world's, told in one sentence; the command line exits with 2.

    The message says what was expected, what came and what to do. `slug` names the kind for scripts.
    """

    def __init__(self, message: str, *, slug: str = "wrong-use") -> None:
        super().__init__(message)
        self.slug = slug


class RecordError(TraindoctorError):
    """A record that is missing, corrupt or of a newer format."""

    def __init__(self, message: str) -> None:
        super().__init__(message, slug="bad-record")


class CheckpointError(TraindoctorError):
    """A checkpoint that is missing, corrupt or belongs to other settings."""

    def __init__(self, message: str) -> None:
        super().__init__(message, slug="bad-checkpoint")


class DataError(TraindoctorError):
    """Text or tokens that cannot be trained on."""

    def __init__(self, message: str) -> None:
        super().__init__(message, slug="bad-data")


class ConfigError(TraindoctorError):
    """Settings that contradict each other or name an impossible shape."""

    def __init__(self, message: str) -> None:
        super().__init__(message, slug="bad-settings")


class ReplayError(TraindoctorError):
    """A tape that cannot be replayed; exams turn it into 'not judged', with the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(message, slug="no-replay")


class GradcheckError(TraindoctorError, RuntimeError):
    """A gradient that did not pass `gradcheck(..., raise_exception=True)`; `result` has the whole answer.

    A RuntimeError, as the one that torch.autograd.gradcheck raises.
    """

    def __init__(self, message: str, *, result: object = None) -> None:
        super().__init__(message, slug="wrong-gradient")
        self.result = result
