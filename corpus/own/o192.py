import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)


class UniversalEncoder(nn.Module):
    def __init__(self, n_in, dim=64, rounds=4):
        super().__init__()
        self.rounds = rounds
        self.inp = nn.Linear(n_in, dim)
        self.pos = nn.Parameter(torch.randn(32, dim) * 0.1)
        self.depth = nn.Parameter(torch.randn(rounds, dim) * 0.1)
        self.cell = nn.TransformerEncoderLayer(dim, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(dim)
        self.mean = nn.Linear(dim, 1)
        self.log_var = nn.Linear(dim, 1)
        nn.init.zeros_(self.mean.weight)
        nn.init.zeros_(self.log_var.weight)

    def forward(self, x):
        h = self.inp(x) + self.pos[: x.size(1)]
        m = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        for r in range(self.rounds):
            h = self.cell(h + self.depth[r], src_mask=m)
        h = self.norm(h)
        return self.mean(h).squeeze(-1), self.log_var(h).squeeze(-1).clamp(-9, 4)


def waves(n, t=33):
    f = torch.rand(n, 1) * 0.5 + 0.2
    p = torch.rand(n, 1) * 6.28
    s = torch.sin(f * torch.arange(t) + p)
    return s + 0.01 * torch.randn_like(s)


net = UniversalEncoder(1)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 20))
for k in range(200):
    s = waves(16)
    mu, lv = net(s[:, :-1, None])
    nll = 0.5 * (lv + (s[:, 1:] - mu).square() * torch.exp(-lv)).mean()
    opt.zero_grad()
    nll.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    warm.step()
    if k % 20 == 0 or k == 199:
        print(f"{k} nll {nll.item():.4f} mse {(s[:, 1:] - mu).square().mean().item():.4f}")
