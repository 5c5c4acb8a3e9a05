import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(12)
CLASSES, LENGTH, NOISE = 5, 18, 24


def sample(n, domain):
    x = torch.randint(NOISE // 2, (n, LENGTH)) + domain * (NOISE // 3)
    y = torch.randint(CLASSES, (n,))
    for i in range(n):
        at = torch.randperm(LENGTH)[:3]
        x[i, at] = NOISE + y[i]
        x[i, torch.randint(LENGTH, (2,))] = NOISE + torch.randint(CLASSES, (2,))
    return x, y


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok = nn.Embedding(NOISE + CLASSES, d)
        self.pos = nn.Parameter(torch.randn(LENGTH, d) * 0.02)
        layer = nn.TransformerEncoderLayer(
            d, 4, 2 * d, dropout=0.1, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        return self.norm(self.body(self.tok(x) + self.pos).mean(1))


encoder = Encoder()
labeler = nn.Linear(48, CLASSES)
critic = nn.Sequential(nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
opt_task = torch.optim.Adam(itertools.chain(encoder.parameters(), labeler.parameters()), lr=1e-3)
opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.95))
tx, ty = sample(300, 1)

for step in range(220):
    xs, ys = sample(24, 0)
    xt, _ = sample(24, 1)
    origin = torch.cat([torch.zeros(24), torch.ones(24)])

    feats = encoder(torch.cat([xs, xt]))
    d_loss = F.binary_cross_entropy_with_logits(critic(feats.detach()).squeeze(-1), origin)
    opt_critic.zero_grad()
    d_loss.backward()
    opt_critic.step()

    task = F.cross_entropy(labeler(feats[:24]), ys)
    confusion = F.binary_cross_entropy_with_logits(
        critic(feats).squeeze(-1), torch.full_like(origin, 0.5)
    )
    g_loss = task + 0.5 * confusion
    opt_task.zero_grad()
    g_loss.backward()
    opt_task.step()
    if step % 20 == 0 or step == 219:
        encoder.eval()
        with torch.no_grad():
            acc = (labeler(encoder(tx)).argmax(-1) == ty).float().mean().item()
        encoder.train()
        print(
            f"step {step} critic {d_loss.item():.4f} confusion {confusion.item():.4f} task loss {task.item():.4f} target acc {acc:.3f}"
        )
