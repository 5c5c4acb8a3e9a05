"""Callbacks of frameworks: the same events, the same record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from traindoctor.record import open_record

HUGGING_FACE = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from traindoctor.integrations.huggingface import TraindoctorCallback
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2))
data = [{"input_ids": (x := torch.randint(0, 40, (16,))), "labels": x} for _ in range(32)]
arguments = TrainingArguments(output_dir=sys.argv[1] + "/hf", per_device_train_batch_size=4, max_steps=10, eval_steps=5,
    eval_strategy="steps", report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
callback = TraindoctorCallback(out=sys.argv[1] + "/run", quiet=True)
Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[callback]).train()
assert callback.diagnosis is not None
assert torch.nn.Module.__call__.__module__.startswith("torch")
"""

LIGHTNING = """
import sys, torch, lightning as L
from torch.utils.data import DataLoader, TensorDataset
from traindoctor.integrations.lightning import TraindoctorCallback
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
    def training_step(self, batch, i):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, i):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)
loader = DataLoader(TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,))), batch_size=8)
callback = TraindoctorCallback(out=sys.argv[1] + "/run", quiet=True)
L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
          enable_model_summary=False, callbacks=[callback]).fit(Model(), loader, loader)
assert callback.diagnosis is not None
"""

ACCELERATE = """
import sys, torch
from accelerate import Accelerator
from traindoctor.integrations.accelerate import TraindoctorTracker
tracker = TraindoctorTracker("mine", out=sys.argv[1] + "/run", quiet=True)
accelerator = Accelerator(cpu=True, log_with=tracker)
accelerator.init_trackers("mine", config={"lr": 1e-2})
model = torch.nn.Linear(8, 3)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
for step in range(10):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 3, (4,)))
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
    accelerator.log({"eval_loss": loss.item()}, step=step)
accelerator.end_training()
assert tracker.diagnosis is not None
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [HUGGING_FACE, LIGHTNING, ACCELERATE], ids=["huggingface", "lightning", "accelerate"]
)
def test_a_callback_records_the_run(tmp_path: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    record = open_record(tmp_path / "run")
    assert record.fact("run.steps") == 10
    assert len(record["loss.root"]) == 10
    assert len(record["loss.eval"]) >= 2
    assert not [note.text for note in record.notes if note.level == "fault"]
