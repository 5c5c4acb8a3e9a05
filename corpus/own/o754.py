import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(63)
DIM, WAYS, SHOTS, QUERY = 16, 4, 2, 1
MIX = torch.randn(DIM, DIM) / DIM ** 0.5


def episode(b):
    proto = torch.randn(b, WAYS, DIM)
    relabel = torch.rand(b, WAYS).argsort(1)
    cls = torch.arange(WAYS).repeat_interleave(SHOTS).expand(b, -1)
    sx = proto.gather(1, cls[..., None].expand(-1, -1, DIM)) + 0.5 * torch.randn(b, WAYS * SHOTS, DIM)
    sy = relabel.gather(1, cls)
    qc = torch.randint(0, WAYS, (b, QUERY))
    qx = proto.gather(1, qc[..., None].expand(-1, -1, DIM)) + 0.5 * torch.randn(b, QUERY, DIM)
    return torch.tanh(sx @ MIX), sy, torch.tanh(qx @ MIX), relabel.gather(1, qc)


class InContext(nn.Module):
    def __init__(self, d=64, layers=2):
        super().__init__()
        self.x = nn.Linear(DIM, d)
        self.y = nn.Embedding(WAYS + 1, d)
        enc = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, batch_first=True, norm_first=True)
        self.tr = nn.TransformerEncoder(enc, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, WAYS)

    def forward(self, sx, sy, qx):
        none = torch.full(qx.shape[:2], WAYS)
        h = self.x(torch.cat([sx, qx], 1)) + self.y(torch.cat([sy, none], 1))
        return self.out(self.tr(h)[:, -QUERY:])


net = InContext()
opt = torch.optim.AdamW(net.parameters(), lr=1.5e-3, weight_decay=0.01)
val = episode(1000)
for it in range(451):
    sx, sy, qx, qy = episode(64)
    loss = F.cross_entropy(net(sx, sy, qx).flatten(0, 1), qy.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 75 == 0:
        with torch.no_grad():
            acc = (net(*val[:3]).argmax(-1) == val[3]).float().mean()
        print(f"it {it} loss {loss.item():.4f} new-episode accuracy {acc.item():.3f}")
