"""transformers' Trainer with accumulation, clipping, saving and a schedule, from a tiny untrained GPT-2."""

from __future__ import annotations

import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()  # its speed is another in every run

import torch  # noqa: E402
from toy import DEVICE, VOCABULARY, batch, finish, seed  # noqa: E402


class Rows(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.rows = [batch(1)[0][0].cpu() for _ in range(64)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


seed()
sizes = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=16,
    n_embd=16,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=1,
)
model = GPT2LMHeadModel(sizes)
settings = TrainingArguments(
    "trainer",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=12,
    save_strategy="no",
    logging_steps=3,
    report_to=[],
    use_cpu=DEVICE.type == "cpu",
    disable_tqdm=True,
    seed=0,
)
trainer = Trainer(model, settings, train_dataset=Rows())
trainer.remove_callback(transformers.PrinterCallback)  # it prints seconds
trainer.train()
print([(entry.get("loss"), entry.get("grad_norm")) for entry in trainer.state.log_history])
trainer.save_model("saved")
finish(model)
