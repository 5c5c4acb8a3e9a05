import math
import random
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

ACTIONS = ["cancel", "upgrade", "return", "repair", "query"]
PRODUCTS = ["phone", "router", "laptop", "contract", "tablet"]
QUEUES = [[(a + 2 * p) % 5 for p in range(5)] for a in range(5)]
FILLER = "i we my the a last week really about with from it and then that site told me chat mail today".split()
WORDS = ["<pad>"] + sorted(set(ACTIONS + PRODUCTS + FILLER))
STOI = {w: i for i, w in enumerate(WORDS)}


class TicketDataset(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            a, p = rng.randrange(5), rng.randrange(5)
            words = [rng.choice(FILLER) for _ in range(rng.randint(4, 7))]
            words.insert(rng.randrange(len(words)), ACTIONS[a])
            words.insert(rng.randrange(len(words)), PRODUCTS[p])
            self.rows.append(([STOI[w] for w in words], QUEUES[a][p]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": ids, "labels": label}


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    for i, f in enumerate(features):
        ids[i, : len(f["input_ids"])] = torch.tensor(f["input_ids"])
    return {"input_ids": ids, "attention_mask": ids.ne(0), "labels": torch.tensor([f["labels"] for f in features])}


class EncoderLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class TicketModel(nn.Module):
    def __init__(self, vectors, layers=2, heads=2):
        super().__init__()
        d = vectors.shape[1]
        self.embeddings = nn.Embedding.from_pretrained(vectors, freeze=True, padding_idx=0)
        pos = torch.arange(64).unsqueeze(1) * torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        self.register_buffer("positions", torch.stack([pos.sin(), pos.cos()], -1).flatten(1))
        self.layers = nn.ModuleList(EncoderLayer(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.classifier = nn.Linear(d, 5)
        self.gradient_checkpointing = False

    def gradient_checkpointing_enable(self):
        self.gradient_checkpointing = True

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.embeddings(input_ids) + self.positions[: input_ids.shape[1]]
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, attention_mask, use_reentrant=False)
            else:
                x = layer(x, attention_mask)
        keep = attention_mask.unsqueeze(-1).float()
        pooled = (self.norm(x) * keep).sum(1) / keep.sum(1)
        logits = self.classifier(pooled)
        loss = F.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


class TrainingArguments:
    learning_rate = 3e-3
    per_device_train_batch_size = 32
    max_steps = 400
    warmup_steps = 40
    logging_steps = 50
    max_grad_norm = 1.0
    gradient_checkpointing = True


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset):
        self.model, self.args = model, args
        self.loader = DataLoader(train_dataset, args.per_device_train_batch_size, shuffle=True, collate_fn=collate)
        self.eval_loader = DataLoader(eval_dataset, 128, collate_fn=collate)
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=args.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda s: min((s + 1) / args.warmup_steps, max(0.05, 1 - s / args.max_steps)))
        if args.gradient_checkpointing:
            model.gradient_checkpointing_enable()

    def evaluate(self):
        self.model.eval()
        hit = total = 0
        with torch.no_grad():
            for batch in self.eval_loader:
                out = self.model(**batch)
                hit += (out["logits"].argmax(-1) == batch["labels"]).sum().item()
                total += len(batch["labels"])
        self.model.train()
        return hit / total

    def train(self):
        step, running = 0, []
        self.model.train()
        while True:
            for batch in self.loader:
                loss = self.model(**batch)["loss"]
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                running.append(loss.item())
                step += 1
                if step % self.args.logging_steps == 0 or step == 1:
                    print({"step": step, "loss": round(sum(running) / len(running), 4),
                           "eval_accuracy": round(self.evaluate(), 4)}, flush=True)
                    running = []
                if step >= self.args.max_steps:
                    return


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    vectors = torch.randn(len(WORDS), 48)
    vectors[0] = 0
    trainer = Trainer(TicketModel(vectors), TrainingArguments(), TicketDataset(4000, 1), TicketDataset(300, 2))
    trainer.train()
