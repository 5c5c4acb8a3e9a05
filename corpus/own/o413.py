import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pydoc_data.topics import topics
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup
from transformers.utils import logging

logging.set_verbosity_error()
ACCUM, MICRO, LENGTH, EPOCHS = 4, 4, 32, 1


class Chunks(Dataset):
    def __init__(self, text, length, count):
        self.vocab = sorted(set(text))
        index = {c: i for i, c in enumerate(self.vocab)}
        ids = torch.tensor([index[c] for c in text])
        self.rows = ids[: len(ids) // length * length].view(-1, length)
        self.rows = self.rows[torch.randperm(len(self.rows))[:count]]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def main():
    set_seed(21)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUM)
    dataset = Chunks("".join(topics.values()), LENGTH, 1600)
    loader = DataLoader(dataset, batch_size=MICRO, shuffle=True, drop_last=True)
    config = GPT2Config(vocab_size=len(dataset.vocab), n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    updates = EPOCHS * len(loader) // ACCUM
    scheduler = get_linear_schedule_with_warmup(optimizer, int(0.06 * updates), updates)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    done, total, seen = 0, 0.0, 0
    for epoch in range(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total, seen = total + loss.item(), seen + 1
            if accelerator.sync_gradients:
                done += 1
                if done == 1 or done % 10 == 0:
                    accelerator.print(f"update {done}/{updates} loss {total / seen:.4f}")
                    total, seen = 0.0, 0


if __name__ == "__main__":
    main()
