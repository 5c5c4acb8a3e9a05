"""Lightning's Trainer with validation, clipping, accumulation and a checkpoint written by hand."""

from __future__ import annotations

import logging
import warnings

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from toy import DEVICE, TinyLM, batch, finish, loss_of, seed

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Patient(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = TinyLM()

    def training_step(self, rows: list[Tensor], index: int) -> Tensor:
        loss = loss_of(self.model(rows[0]), rows[1])
        print(index, repr(loss.item()))
        return loss

    def validation_step(self, rows: list[Tensor], index: int) -> None:
        print("validation", repr(loss_of(self.model(rows[0]), rows[1]).item()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


seed()
tokens, targets = (rows.cpu() for rows in batch(48))
trainer = lightning.Trainer(
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accelerator="gpu" if DEVICE.type == "cuda" else "cpu",
    devices=1,
    gradient_clip_val=0.5,
    accumulate_grad_batches=2,
)
patient = Patient()
trainer.fit(
    patient,
    DataLoader(TensorDataset(tokens, targets), 4, shuffle=True),
    DataLoader(TensorDataset(tokens[:8], targets[:8]), 4),
)
finish(patient)
