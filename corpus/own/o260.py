import random
import re

import torch
from transformers import LlamaConfig, LlamaForCausalLM

random.seed(31)
torch.manual_seed(31)
IGNORE = -100
NAMES = ["anna", "boris", "clara", "dmitri", "elena", "farid", "greta", "hugo"]
THINGS = ["apples", "books", "coins", "drums", "eggs", "flags"]


def example():
    a, b = random.sample(NAMES, 2)
    t = random.choice(THINGS)
    n, m = random.randint(1, 9), random.randint(1, 9)
    who, count = random.choice([(a, n), (b, m)])
    question = f"{a} has {n} {t}. {b} has {m} {t}. How many {t} has {who}?"
    return f"@@@ Question:\n{question}\n\n@@@ Answer:\n{who} has {count} {t}.<eos>"


class WordTokenizer:
    def __init__(self):
        self.vocab = {"<pad>": 0}

    def __call__(self, text):
        pieces = re.findall(r"<eos>|@+|\w+|\s+|[^\w\s]", text)
        return [self.vocab.setdefault(p, len(self.vocab)) for p in pieces]


class CompletionCollator:
    def __init__(self, tokenizer, response_template, max_length=64):
        self.tok = tokenizer
        self.template = tokenizer(response_template)
        self.max_length = max_length

    def find(self, ids):
        n = len(self.template)
        for i in range(len(ids) - n + 1):
            if ids[i:i + n] == self.template:
                return i + n
        return len(ids)

    def __call__(self, texts):
        rows = [self.tok(t)[:self.max_length] for t in texts]
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        labels = torch.full_like(ids, IGNORE)
        for i, r in enumerate(rows):
            ids[i, :len(r)] = torch.tensor(r)
            mask[i, :len(r)] = 1
            s = self.find(r)
            labels[i, s:len(r)] = torch.tensor(r[s:])
        return ids, mask, labels


tok = WordTokenizer()
for _ in range(300):
    tok(example())
collate = CompletionCollator(tok, "\n@@@ Answer:\n")
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok.vocab) + 16, hidden_size=64, intermediate_size=160,
                                     num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                     max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=None))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
per_token = torch.nn.CrossEntropyLoss(ignore_index=IGNORE, reduction="sum")
for step in range(120):
    ids, mask, labels = collate([example() for _ in range(12)])
    logits = model(input_ids=ids, attention_mask=mask).logits
    target = labels[:, 1:]
    loss = per_token(logits[:, :-1].flatten(0, 1), target.flatten()) / (target != IGNORE).sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 119:
        print({"step": step, "loss": round(loss.item(), 4), "grad_norm": round(float(norm), 4)})
