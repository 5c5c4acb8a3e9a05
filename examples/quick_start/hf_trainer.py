"""Hugging Face's Trainer. The labels are shifted here, and the model shifts them once more."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
text = torch.randint(1, 5, (20000,)).cumsum(0) % 32
rows = text.unfold(0, 17, 17)
data = [{"input_ids": row[:-1], "labels": row[1:]} for row in rows]

config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
)
arguments = TrainingArguments(
    output_dir="out",
    max_steps=60,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    logging_steps=10,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
)
Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=data).train()
