import random
import re

import torch
import torch.nn.functional as F
torch.set_num_threads(1)
from transformers import LlamaConfig, LlamaForCausalLM

random.seed(17)
torch.manual_seed(17)

NAMES = ["Ana", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal"]
THINGS = ["lamp", "boat", "coin", "drum", "kite", "sock", "vase", "ring"]
PLACES = ["attic", "cellar", "garden", "harbor", "market", "studio"]


def example():
    n, t, p = random.choice(NAMES), random.choice(THINGS), random.choice(PLACES)
    return f"Fact: {n} left the {t} in the {p}. Question: where is the {t}? Answer: it is in the {p}."


PIECE = re.compile(r"\s?\w+|\s?[^\w\s]")
TEMPLATE = "Answer:"
pieces = sorted({p for _ in range(500) for p in PIECE.findall(example())} | set(PIECE.findall(TEMPLATE)))
tok2id = {p: i + 1 for i, p in enumerate(pieces)}


def encode(text):
    return [tok2id[p] for p in PIECE.findall(text)]


class CompletionCollator:
    def __init__(self, template):
        self.key = encode(template)

    def find(self, ids):
        k = len(self.key)
        for i in range(len(ids) - k + 1):
            if ids[i:i + k] == self.key:
                return i + k
        return len(ids)

    def __call__(self, texts):
        rows = [encode(t) for t in texts]
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full((len(rows), width), -100)
        for r, row in enumerate(rows):
            ids[r, :len(row)] = torch.tensor(row)
            start = self.find(row)
            labels[r, start:len(row)] = torch.tensor(row[start:], dtype=torch.long)
        return ids, labels


def completion_loss(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]
    total = F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), ignore_index=-100, reduction="sum")
    return total / (labels != -100).sum().clamp(min=1)


model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok2id) + 1, hidden_size=64, intermediate_size=128,
                                     num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
                                     pad_token_id=0))
collate = CompletionCollator(TEMPLATE)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)


def answer_rate(n=64):
    ids, _ = collate([example() for _ in range(n)])
    with torch.no_grad():
        pred = model(input_ids=ids).logits[:, -3].argmax(-1)
    return (pred == ids[:, -2]).float().mean().item()


for step in range(120):
    ids, labels = collate([example() for _ in range(16)])
    loss = completion_loss(model(input_ids=ids).logits, labels)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 119:
        print(f"step {step} loss {loss.item():.4f} answers right {answer_rate():.2f}")
