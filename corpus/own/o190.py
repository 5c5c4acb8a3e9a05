import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)


class StatsPooling(nn.Module):
    def forward(self, h, mask):
        m = mask.unsqueeze(-1).float()
        n = m.sum(1)
        mu = (h * m).sum(1) / n
        var = ((h - mu.unsqueeze(1)).square() * m).sum(1) / (n - 1)
        return torch.cat([mu, (var + 1e-5).sqrt()], -1)


class SpeakerNet(nn.Module):
    def __init__(self, feats=12, dim=48, speakers=10):
        super().__init__()
        self.proj = nn.Linear(feats, dim)
        self.pos = nn.Embedding(20, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pool = StatsPooling()
        self.cls = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, speakers))

    def forward(self, x, mask):
        h = self.proj(x) + self.pos.weight
        h = self.enc(h, src_key_padding_mask=~mask)
        return self.cls(self.pool(h, mask))


centre = torch.randn(10, 12) * 0.7
spread = torch.rand(10, 12) + 0.3


def utterances(n, frames=20):
    who = torch.randint(0, 10, (n,))
    length = (torch.distributions.Gamma(4.0, 0.4).sample((n,)).long() + 1).clamp(1, frames)
    mask = torch.arange(frames) < length[:, None]
    x = centre[who][:, None] + spread[who][:, None] * torch.randn(n, frames, 12)
    return x * mask.unsqueeze(-1), mask, who


net = SpeakerNet()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(180):
    x, mask, who = utterances(24)
    loss = F.cross_entropy(net(x, mask), who)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    opt.step()
    if step % 15 == 0 or step == 179:
        print(f"step={step} loss={loss.item():.4f}")
