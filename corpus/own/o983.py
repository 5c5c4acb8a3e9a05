import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
gen = torch.Generator().manual_seed(21)
V, ROW, D, HEADS = 36, 64, 64, 4
EOS, ASK = 0, 1
IGNORE = -100


def conversation():
    """prompt: items with a query marker at the front; reply: the items in sorted order"""
    n = int(torch.randint(3, 6, (1,), generator=gen))
    items = torch.randperm(V - 2, generator=gen)[:n] + 2
    prompt = torch.cat([items, torch.tensor([ASK])])
    reply = torch.cat([items.sort().values, torch.tensor([EOS])])
    return prompt, reply


def packed_row():
    ids = torch.full((ROW,), EOS)
    labels = torch.full((ROW,), IGNORE)
    doc = torch.full((ROW,), -1)
    pos = torch.zeros(ROW, dtype=torch.long)
    prefix = torch.zeros(ROW, dtype=torch.bool)
    at = k = 0
    while True:
        p, r = conversation()
        n = len(p) + len(r)
        if at + n > ROW:
            return ids, labels, doc, pos, prefix
        ids[at : at + n] = torch.cat([p, r])
        labels[at + len(p) - 1 : at + n - 1] = r
        doc[at : at + n] = k
        pos[at : at + n] = torch.arange(n)
        prefix[at : at + len(p)] = True
        at, k = at + n, k + 1


def attention_mask(doc, prefix):
    """same document and (not in the future, or inside the prompt)"""
    n = doc.size(1)
    same = doc[:, :, None] == doc[:, None, :]
    past = torch.ones(n, n, dtype=torch.bool).tril()
    return (same & (past | prefix[:, None, :]))[:, None]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x, mask):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).reshape(B, T, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.ln2(x))


class PrefixLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(16, D)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.ln = nn.LayerNorm(D)

    def forward(self, ids, pos, mask):
        x = self.tok(ids) * D**-0.5 + self.pos(pos) * D**-0.5
        for layer in self.layers:
            x = layer(x, mask)
        return self.ln(x) @ self.tok.weight.T * D**-0.5


def forward_loss(model, rows):
    ids, labels, doc, pos, prefix = (torch.stack(c) for c in zip(*rows))
    logits = model(ids, pos, attention_mask(doc, prefix))
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    n = (labels != IGNORE).sum()
    hit = ((logits.argmax(-1) == labels) & (labels != IGNORE)).sum()
    return loss, n, hit


model = PrefixLM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.0)
STEPS, ACCUM = 240, 2
valid = [packed_row() for _ in range(48)]
for step in range(STEPS):
    for g in opt.param_groups:
        g["lr"] = 4e-3 * min(1.0, (step + 1) / 30) * (1 - step / STEPS)
    parts = [[packed_row() for _ in range(8)] for _ in range(ACCUM)]
    total = sum(int((r[1] != IGNORE).sum()) for rows in parts for r in rows)
    opt.zero_grad()
    running = 0.0
    for rows in parts:
        loss, _, _ = forward_loss(model, rows)
        (loss / total).backward()
        running += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss per reply token {running / total:.4f}")
model.eval()
with torch.no_grad():
    loss, n, hit = forward_loss(model, valid)
print(f"valid loss {loss.item() / n:.4f} token accuracy {hit / n:.3f}")
