import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(10)
torch.set_num_threads(1)
A, PAD, ASK = 10, 10, 11
MAXLEN = 16


def prompts(n):
    """[index token 0..5] + list of items + ASK -> item at that index"""
    rows, ys = [], []
    for _ in range(n):
        m = int(torch.randint(6, 13, (1,)))
        items = torch.randint(0, A, (m,))
        i = int(torch.randint(0, 5, (1,)))
        rows.append(torch.cat([torch.tensor([12 + i]), items, torch.tensor([ASK])]))
        ys.append(items[i])
    return rows, torch.stack(ys)


def left_pad(rows):
    w = MAXLEN
    ids = torch.full((len(rows), w), PAD)
    mask = torch.zeros(len(rows), w, dtype=torch.bool)
    for k, r in enumerate(rows):
        ids[k, w - len(r):] = r
        mask[k, w - len(r):] = True
    return ids, mask


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, bias):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(17, d), nn.Embedding(MAXLEN, d)
        nn.init.normal_(self.pos.weight, std=0.5)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, A)

    def forward(self, ids, mask):
        T = ids.size(1)
        pos = torch.arange(T).expand_as(ids)
        h = self.tok(ids) + self.pos(pos)
        bias = torch.tril(torch.ones(T, T, dtype=torch.bool)) & mask[:, None, None, :]
        bias = bias | torch.eye(T, dtype=torch.bool)
        for b in self.blocks:
            h = b(h, bias)
        return self.head(self.norm(h[:, -1]))


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
STEPS = 280
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=STEPS, pct_start=0.1)
pool, answers = prompts(6000)
test_rows, test_y = prompts(200)


@torch.no_grad()
def one_by_one():
    hit = 0
    for r, y in zip(test_rows[:150], test_y[:150]):
        hit += (model(r[None], torch.ones(1, len(r), dtype=torch.bool)).argmax(-1) == y).item()
    return hit / 150


@torch.no_grad()
def batched():
    return (model(*left_pad(test_rows)).argmax(-1) == test_y).float().mean().item()


for step in range(STEPS):
    pick = torch.randint(0, len(pool), (48,)).tolist()
    loss = F.cross_entropy(model(*left_pad([pool[i] for i in pick])), answers[pick])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 40 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f} batched acc {batched():.3f}")
print(f"single-prompt acc {one_by_one():.3f} batched acc {batched():.3f}")
