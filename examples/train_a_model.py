"""Trains a character-level transformer from Python, with the doctor attached, and lets it write.

python examples/train_a_model.py [folder] [steps]
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

import traindoctor
from traindoctor.lm.callbacks import Callbacks, Progress
from traindoctor.lm.checkpoint import load_run
from traindoctor.lm.generate import Sampling, write_text
from traindoctor.lm.loop import train
from traindoctor.lm.sources import resolve


def main(run: Path, steps: int) -> None:
    config = resolve(preset="tiny", given={"steps": steps, "eval_every": max(steps // 2, 1)})

    def show(now: Progress) -> None:
        print(f"step {now.step:4d}  loss {now.loss:.3f}")

    with contextlib.ExitStack() as attached:

        def attach(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
            attached.enter_context(traindoctor.watch(model, optimizer, out=run, after=5))

        outcome = train(run, config, Callbacks(on_ready=attach, on_progress=show))
    print(f"validation loss {outcome.best_loss:.3f} nats per character")

    model, tokenizer, _ = load_run(run)
    sampling = Sampling(temperature=0.8, top_p=0.95)
    print(write_text(model, tokenizer, "The ", max_tokens=200, sampling=sampling)[0])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/example")
    main(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 300)
