"""Runs at the start of child interpreters of a watched run: they join the run when they import torch.

This folder is on their PYTHONPATH. The environment's own sitecustomize, hidden by this one, is run first; where there is
none, this file ends as an import that found nothing, and the interpreter has no such module, as without us.
"""

import os
import sys


def _join_run() -> None:
    import json

    try:
        settings = json.loads(os.environ["TRAINDOCTOR_RUN"])
        from traindoctor.capture.arming import join

        join(settings)
    except Exception:
        return  # another Python without traindoctor, or no run: nothing to join


def _run_hidden_one() -> bool:
    """Whether there was one. Its errors are its own: Python reports them as ever."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return False
    finally:
        # The import of this file is still under way and wants to find it.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)
    return True


_join_run()
if not _run_hidden_one():
    raise ImportError("there is no other start-up file", name="sitecustomize")
