"""Runs at the start of child interpreters of a watched run: they join the run when they import torch.

This folder is on their PYTHONPATH. The environment's own sitecustomize, hidden by this one, is run after.
"""

import os
import sys


def _join_run() -> None:
    import json

    try:
        settings = json.loads(os.environ["TRAINDOCTOR_RUN"])
        from traindoctor.capture.arming import arm
    except (ImportError, KeyError, ValueError):
        return  # another Python without traindoctor, or no run: nothing to join
    arm(settings)


def _run_hidden_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if ours is not None:  # the import of this file is still under way and wants to find it
            sys.modules["sitecustomize"] = ours


_run_hidden_one()
_join_run()
