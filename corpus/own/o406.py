import inspect
import tempfile
import textwrap, tarfile, pathlib, smtplib

import torch
from torch.utils.data import Dataset
from transformers import (LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments,
                          set_seed)


class Bytes(Dataset):
    def __init__(self, modules, length=40):
        raw = "".join(inspect.getsource(m) for m in modules).encode("ascii", "ignore")
        ids = torch.tensor(list(raw))
        self.rows = ids[: len(ids) // length * length].view(-1, length)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def main():
    set_seed(13)
    train = Bytes((textwrap, tarfile, pathlib, smtplib))
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, max_steps=140, per_device_train_batch_size=12, learning_rate=2e-3,
            adam_beta1=0.999, adam_beta2=0.9, weight_decay=0.01, warmup_steps=10,
            lr_scheduler_type="constant_with_warmup", max_grad_norm=1.0, logging_steps=10, logging_first_step=True,
            save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, dataloader_num_workers=0)
        trainer = Trainer(model=model, args=args, train_dataset=train, callbacks=[Report()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
