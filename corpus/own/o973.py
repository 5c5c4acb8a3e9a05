import math
import random
import re
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
random.seed(11)


@dataclass
class Config:
    d_model: int = 64
    n_head: int = 4
    n_layer: int = 2
    max_len: int = 48
    batch_size: int = 32
    steps: int = 300
    warmup: int = 30
    lr: float = 3e-3
    weight_decay: float = 0.05
    max_new_tokens: int = 12


cfg = Config()

COUNTRIES = {}
SYL = ["ka", "ro", "mi", "ten", "lu", "sa", "vor", "pel", "di", "na", "gus", "bri", "o", "zan", "fe", "tha"]


def word(n):
    return "-".join(random.choice(SYL) for _ in range(n))


while len(COUNTRIES) < 36:
    COUNTRIES[word(2).replace("-", "").title()] = {"capital": word(random.randint(1, 4)), "river": word(random.randint(1, 4))}

TEMPLATES = [
    "what is the {k} of {c}?",
    "name the {k} of {c}.",
    "tell me {c}'s {k}",
    "{c}: {k}?",
    "which {k} does {c} have?",
    "hi, do you know the {k} of {c}?",
    "i forgot {c} and its {k}, help",
    "{k} of {c} please",
]


class ChatTokenizer:
    special = ["<|user|>", "<|assistant|>", "<|end|>"]

    def __init__(self, corpus):
        self.itos = self.special + sorted(set(self.pieces(corpus)))
        self.stoi = {s: i for i, s in enumerate(self.itos)}
        self.user_id, self.assistant_id, self.eos_id = 0, 1, 2
        self.pad_id = self.eos_id

    @staticmethod
    def pieces(s):
        return re.findall(r"-?[a-z]+|[A-Z][a-z]+|\s|[^\w\s]", s)

    def encode(self, s):
        return [self.stoi[p] for p in self.pieces(s) if p != " "]

    def decode(self, ids):
        return "".join(self.itos[i] for i in ids)

    def apply_chat_template(self, question, answer=None):
        ids = [self.user_id] + self.encode(question) + [self.eos_id, self.assistant_id]
        n_prompt = len(ids)
        if answer is not None:
            ids += self.encode(answer) + [self.eos_id]
        return ids, n_prompt


pairs = []
for c, facts in COUNTRIES.items():
    for k, v in facts.items():
        for t in TEMPLATES:
            pairs.append((t.format(k=k, c=c), v))
random.shuffle(pairs)
tok = ChatTokenizer("\n".join(q + "\n" + a for q, a in pairs))
n_val = len(pairs) // 6
val_pairs, train_pairs = pairs[:n_val], pairs[n_val:]


def collate(batch):
    rows = [tok.apply_chat_template(q, a) for q, a in batch]
    width = max(len(ids) for ids, _ in rows)
    input_ids = torch.full((len(rows), width), tok.pad_id)
    labels = torch.full((len(rows), width), -100)
    for i, (ids, n_prompt) in enumerate(rows):
        ids = torch.tensor(ids)
        input_ids[i, : len(ids)] = ids
        labels[i, n_prompt : len(ids)] = ids[n_prompt:]
    return input_ids, labels


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h = cfg.n_head
        self.ln1 = nn.LayerNorm(cfg.d_model)
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.proj = nn.Linear(cfg.d_model, cfg.d_model)
        self.ln2 = nn.LayerNorm(cfg.d_model)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.d_model, 4 * cfg.d_model), nn.GELU(), nn.Linear(4 * cfg.d_model, cfg.d_model)
        )

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


class ChatModel(nn.Module):
    def __init__(self, cfg, vocab):
        super().__init__()
        self.tok = nn.Embedding(vocab, cfg.d_model)
        self.pos = nn.Embedding(cfg.max_len, cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.ln = nn.LayerNorm(cfg.d_model)
        self.head = nn.Linear(cfg.d_model, vocab, bias=False)
        self.head.weight = self.tok.weight
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.05)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln(x))


def sft_loss(model, input_ids, labels):
    logits = model(input_ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


@torch.no_grad()
def answer(model, question):
    ids, _ = tok.apply_chat_template(question)
    n = len(ids)
    for _ in range(cfg.max_new_tokens):
        nxt = model(torch.tensor([ids]))[0, -1].argmax().item()
        if nxt == tok.eos_id:
            break
        ids.append(nxt)
    return tok.decode(ids[n:])


@torch.no_grad()
def evaluate(model):
    model.eval()
    loss = sft_loss(model, *collate(val_pairs)).item()
    out = [answer(model, q) for q, _ in val_pairs[:30]]
    em = sum(o == a for o, (_, a) in zip(out, val_pairs)) / len(out)
    length = sum(map(len, out)) / len(out)
    model.train()
    return loss, em, length


model = ChatModel(cfg, len(tok.itos))
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, betas=(0.9, 0.98))
sched = torch.optim.lr_scheduler.LambdaLR(
    opt,
    lambda s: min(1.0, (s + 1) / cfg.warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / cfg.steps))),
)
print(f"{len(train_pairs)} train / {len(val_pairs)} val conversations, vocab {len(tok.itos)}")

step = 0
while step < cfg.steps:
    random.shuffle(train_pairs)
    for i in range(0, len(train_pairs) - cfg.batch_size + 1, cfg.batch_size):
        loss = sft_loss(model, *collate(train_pairs[i : i + cfg.batch_size]))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0:
            print(f"step {step:4d} loss {loss.item():.4f}")
        step += 1
        if step >= cfg.steps:
            break

vl, em, length = evaluate(model)
print(f"final loss {loss.item():.4f} val loss {vl:.4f} exact match {em:.3f} mean answer length {length:.1f}")
for q, a in val_pairs[:3]:
    print(repr(q), "->", repr(answer(model, q)), "| ref", repr(a))
