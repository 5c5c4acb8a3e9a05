import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(88)
PREFIX, WIDTH = 4, 44
IGNORE = -100
pages = [(k, " ".join(v.split())) for k, v in sorted(topics.items())]
pages = [(k, v) for k, v in pages if len(v) > 4 * WIDTH]
symbols = sorted(set("".join(v for _, v in pages)))
BOS = len(symbols)
table = {c: i for i, c in enumerate(symbols)}
encoded = [torch.tensor([table[c] for c in v]) for _, v in pages]


def collate(n):
    which = torch.randint(len(encoded), (n,))
    rows = []
    for w in which.tolist():
        a = int(torch.randint(len(encoded[w]) - WIDTH, (1,)))
        rows.append(encoded[w][a:a + WIDTH])
    text = torch.stack(rows)
    inputs = torch.cat((torch.full((n, 1), BOS), text[:, :-1]), 1)
    labels = torch.cat((torch.full((n, PREFIX), IGNORE), text), 1)
    return which, inputs, labels


class SwiGLU(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, hidden, False), nn.Linear(d, hidden, False), nn.Linear(hidden, d, False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PrefixLM(nn.Module):
    def __init__(self, pages, vocab, d=64, depth=2):
        super().__init__()
        self.page = nn.Embedding(pages, PREFIX * d)
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(PREFIX + WIDTH, d) * 0.02)
        self.att = nn.ModuleList(nn.MultiheadAttention(d, 4, bias=False, batch_first=True) for _ in range(depth))
        self.mlp = nn.ModuleList(SwiGLU(d, 160) for _ in range(depth))
        self.n1 = nn.ModuleList(nn.RMSNorm(d) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.RMSNorm(d) for _ in range(depth))
        self.final = nn.RMSNorm(d)
        self.head = nn.Linear(d, vocab - 1, False)
        self.register_buffer("mask", torch.triu(torch.ones(PREFIX + WIDTH, PREFIX + WIDTH, dtype=torch.bool), 1))

    def forward(self, which, ids, labels=None):
        soft = self.page(which).view(len(ids), PREFIX, -1)
        x = torch.cat((soft, self.tok(ids)), 1) + self.pos
        for att, mlp, n1, n2 in zip(self.att, self.mlp, self.n1, self.n2):
            y = n1(x)
            x = x + att(y, y, y, attn_mask=self.mask, need_weights=False)[0]
            x = x + mlp(n2(x))
        logits = self.head(self.final(x))
        if labels is None:
            return logits
        shift_logits = logits[:, :-1].reshape(-1, logits.size(-1))
        shift_labels = labels[:, 1:].reshape(-1)
        return F.cross_entropy(shift_logits, shift_labels, ignore_index=IGNORE)


model = PrefixLM(len(pages), len(symbols) + 1)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95))
history = []
for step in range(1, 181):
    for g in optimizer.param_groups:
        g["lr"] = 3e-3 * min(step / 20, 1)
    loss = model(*collate(12))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    history.append(loss.item())
    if step == 1 or step % 18 == 0:
        print(f"step {step} | loss {sum(history[-15:]) / len(history[-15:]):.4f}")
