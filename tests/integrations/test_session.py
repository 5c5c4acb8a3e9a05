"""Numbers handed in by hand become the same record."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from traindoctor.errors import TraindoctorError
from traindoctor.integrations.session import Session
from traindoctor.record import open_record


def test_a_loop_in_another_language(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    with Session(tmp_path / "run") as session:
        session.register_layer("wte", 12)
        session.register_layer("head", 6)
        for step in range(5):
            gradient = draw.normal(size=(3, 4))
            session.update_layer_gradients("wte", gradient)
            session.update_layer_gradients("head", np.zeros(6))
            session.record_step(step, loss=3.0 - step, lr=1e-3, perplexity=9.0)
        session.print_diagnostics(io.StringIO())
    record = open_record(tmp_path / "run")
    assert record["loss.root"].values.tolist() == [3.0, 2.0, 1.0, 0.0, -1.0]
    assert record["log.perplexity"].values.tolist() == [9.0] * 5
    # Without grad_norm the norm over all layers is made from what came.
    assert record["grad.norm"].values[-1] == pytest.approx(np.linalg.norm(gradient))
    rms = record.layers("grad.rms")
    assert rms.layer("wte").values[-1] == pytest.approx(np.sqrt(np.mean(gradient**2)), rel=1e-6)
    assert record.layers("grad.zeros").layer("head").values.tolist() == [1.0] * 5
    assert record.num_steps == 5


def test_mistakes_are_told(tmp_path: Path) -> None:
    session = Session(tmp_path / "run")
    with pytest.raises(TraindoctorError, match="num_params must be positive"):
        session.register_layer("w", 0)
    session.register_layer("w", 4)
    with pytest.raises(TraindoctorError, match="no layer 'v' was registered"):
        session.update_layer_gradients("v", [1.0])
    with pytest.raises(TraindoctorError, match="4 parameters, 3 numbers"):
        session.update_layer_gradients("w", [1.0, 2.0, 3.0])
    session.record_step(3, loss=1.0)
    with pytest.raises(TraindoctorError, match="steps must rise"):
        session.record_step(3, loss=1.0)
    session.close()
    with pytest.raises(TraindoctorError, match="closed"):
        session.record_step(4, loss=1.0)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, traindoctor\n"
        f"s = traindoctor.Session({str(tmp_path / 'run')!r})\n"
        "s.record_step(0, loss=1.0); s.diagnose(); s.close()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
