import torch
torch.set_num_threads(1)
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(33)
V, T, D = 40, 20, 64
MASK = V


def patterns(n):
    start = torch.randint(0, V, (n, 1))
    stride = torch.randint(1, 4, (n, 1))
    return (start + stride * torch.arange(T)) % V


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V + 1, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.5)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(D), enable_nested_tensor=False)
        self.out = nn.Linear(D, V)

    def forward(self, x):
        return self.out(self.enc(self.emb(x) + self.pos))


net = Reader()
opt = torch.optim.SGD(net.parameters(), lr=0.5)
ramp = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, total_iters=20)
for step in range(220):
    seq = patterns(64)
    r = torch.rand(seq.shape)
    x = torch.where(r < 0.10, torch.full_like(seq, MASK), seq)
    x = torch.where((r >= 0.10) & (r < 0.12), torch.randint(0, V, seq.shape), x)
    hit = r < 0.15
    logits = net(x)
    loss = F.cross_entropy(logits[hit], seq[hit])
    opt.zero_grad()
    loss.backward()
    opt.step()
    ramp.step()
    if step % 20 == 0 or step == 219:
        print(f"step {step} loss {loss.item():.4f}")
