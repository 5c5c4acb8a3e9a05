import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import tempfile

import torch
from pydoc_data.topics import topics
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(21)
BLOCK = 48


class ByteBlocks(Dataset):

    def __init__(self, blocks: torch.Tensor):
        self.blocks = blocks

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        ids = self.blocks[i]
        labels = ids.clone()
        labels[0] = -100
        return {"input_ids": ids, "labels": labels}


paragraphs = list(dict.fromkeys(p for t in topics.values() for p in t.split("\n\n")))
text = "\n\n".join(paragraphs).encode("ascii", errors="replace")
blocks = torch.tensor(list(text[: len(text) // BLOCK * BLOCK])).view(-1, BLOCK)
held_out = torch.arange(len(blocks)) % 60 == 0
train_set, eval_set = ByteBlocks(blocks[~held_out]), ByteBlocks(blocks[held_out])

config = GPT2Config(
    vocab_size=128, n_positions=BLOCK, n_embd=56, n_layer=2, n_head=4,
    initializer_range=0.05, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    bos_token_id=None, eos_token_id=None, use_cache=False,
)
model = GPT2LMHeadModel(config)

with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        output_dir=out,
        max_steps=200,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=4e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        weight_decay=0.01,
        adam_beta2=0.98,
        max_grad_norm=1.0,
        logging_steps=20,
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=50,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=0,
        seed=21,
    )
    trainer = Trainer(model=model, args=args, train_dataset=train_set, eval_dataset=eval_set)
    print("before training:", round(trainer.evaluate()["eval_loss"], 4))
    result = trainer.train()
    print("after training:", round(trainer.evaluate()["eval_loss"], 4), "| mean train loss", round(result.training_loss, 4))
