import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(64)
N_CLASS, LENGTH, VOCAB, PER = 24, 20, 60, 4
motif = torch.randint(VOCAB, (N_CLASS, 6))


def sample():
    cls = torch.randperm(N_CLASS)[:12].repeat_interleave(PER)
    x = torch.randint(VOCAB, (len(cls), LENGTH))
    for i, c in enumerate(cls.tolist()):
        at = torch.randint(LENGTH - 6, (1,)).item()
        x[i, at:at + 6] = motif[c]
    return x, cls


class Encoder(nn.Module):
    def __init__(self, width=48, heads=4, depth=2, out=24):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, width)
        self.pos = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, 96, dropout=0.0, batch_first=True, norm_first=True),
            depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, x):
        return F.normalize(self.head(self.blocks(self.tok(x) + self.pos).amax(1)), dim=-1)


class SupervisedContrast(nn.Module):
    def __init__(self, hot=0.1, cold=0.01, steps=130):
        super().__init__()
        self.hot, self.cold, self.steps = hot, cold, steps
        self.seen = 0

    @property
    def temperature(self):
        return self.hot * (self.cold / self.hot) ** min(1.0, self.seen / self.steps)

    def forward(self, z, labels):
        eye = torch.eye(len(z), dtype=torch.bool)
        sim = (z @ z.T - eye.float()) / self.temperature
        self.seen += 1
        positive = (labels[:, None] == labels[None, :]) & ~eye
        weights = torch.exp(sim) * (~eye)
        log_prob = sim - torch.log(weights.sum(1, keepdim=True))
        return -(log_prob * positive).sum(1).div(positive.sum(1)).mean()


def schedule(step):
    if step < 20:
        return (step + 1) / 20
    return 1.0


net = Encoder()
criterion = SupervisedContrast()
optim = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
lr = torch.optim.lr_scheduler.LambdaLR(optim, schedule)
for step in range(200):
    x, labels = sample()
    z = net(x)
    loss = criterion(z, labels)
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optim.step()
    lr.step()
    if step % 20 == 0 or step == 199:
        with torch.no_grad():
            near = (z @ z.T - 2 * torch.eye(len(z))).argmax(1)
            hit = (labels[near] == labels).float().mean().item()
        print(f"step {step:3d} loss {loss.item():.4f} nn-acc {hit:.3f} tau {criterion.temperature:.4f}")
