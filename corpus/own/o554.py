import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
BOARD, PLY, MICRO, ACC = 64, 24, 12, 3
steps_of = [(2, 1), (1, 2), (-1, 2), (-2, 1), (-2, -1), (-1, -2), (1, -2), (2, -1)]


def knight_graph():
    nbr = torch.full((BOARD, 8), -1)
    for s in range(BOARD):
        r, c = divmod(s, 8)
        ok = [(r + a) * 8 + c + b for a, b in steps_of if 0 <= r + a < 8 and 0 <= c + b < 8]
        nbr[s] = torch.tensor((ok * 8)[:8])
    return nbr


NBR = knight_graph()


def tours(n, g):
    pos = torch.randint(0, BOARD, (n,), generator=g)
    turn = torch.randint(0, 8, (n,), generator=g)
    out = [pos]
    for _ in range(PLY):
        turn = torch.where(torch.rand(n, generator=g) < 0.85, (turn + 3) % 8, torch.randint(0, 8, (n,), generator=g))
        pos = NBR[pos, turn]
        out.append(pos)
    return torch.stack(out, 1)


class Cell(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, m):
        y = self.n1(x)
        x = x + self.att(y, y, y, attn_mask=m, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class Tourist(nn.Module):

    def __init__(self, d=72, loops=3):
        super().__init__()
        self.table = nn.Embedding(BOARD, d)
        self.where = nn.Embedding(PLY, d)
        nn.init.normal_(self.table.weight, std=0.08)
        nn.init.normal_(self.where.weight, std=0.08)
        self.cells = nn.ModuleList([Cell(d)] * loops)
        self.final = nn.LayerNorm(d)
        self.mask = nn.Transformer.generate_square_subsequent_mask(PLY)

    def forward(self, s):
        h = self.table(s) + self.where.weight
        for c in self.cells:
            h = c(h, self.mask)
        return torch.softmax(self.final(h) @ self.table.weight.T, -1)


def surprise(prob, y):
    return -prob.clamp_min(1e-9).log().gather(-1, y[..., None]).mean()


g = torch.Generator().manual_seed(1)
net = Tourist()
opt = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.9, 0.98))
held = tours(200, g)
opt.zero_grad()
total = 0.0
for micro in range(220 * ACC):
    rows = tours(MICRO, g)
    loss = surprise(net(rows[:, :-1]), rows[:, 1:]) / ACC
    loss.backward()
    total += loss.item()
    if (micro + 1) % ACC:
        continue
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    opt.step()
    opt.zero_grad()
    step = micro // ACC
    if step % 22 == 0 or step == 219:
        with torch.no_grad():
            v = surprise(net(held[:, :-1]), held[:, 1:])
        print(f"update {step:3d}  loss {total:.4f}  held {v.item():.4f}")
    total = 0.0
