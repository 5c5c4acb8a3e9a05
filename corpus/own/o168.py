import torch
torch.set_num_threads(1)
import torch.nn as nn
import warnings

warnings.simplefilter("ignore")
torch.manual_seed(77)


def batch(n=32, length=16):
    phase = torch.rand(n, 1) * 6.28
    freq = 0.3 + torch.rand(n, 1) * 0.5
    t = torch.arange(length + 1)
    s = torch.sin(freq * t + phase)
    spikes = (torch.rand(n, 1) < 0.01).float() * 40 * torch.randn(n, 1)
    s = s + spikes * (torch.rand(n, length + 1) < 0.3)
    return s[:, :-1, None], s[:, 1:, None]


class Forecaster(nn.Module):
    def __init__(self, d=48, n=16):
        super().__init__()
        self.lift = nn.Linear(1, d)
        self.time = nn.Parameter(torch.randn(n, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.core = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.drop = nn.Linear(d, 1)
        self.register_buffer("mask", torch.triu(torch.full((n, n), float("-inf")), 1))

    def forward(self, x):
        return self.drop(self.core(self.lift(x) + self.time, mask=self.mask))


model = Forecaster()
trainable = filter(lambda p: p.requires_grad, model.parameters())
optimizer = torch.optim.SGD(trainable, lr=0.01, momentum=0.9)
criterion = nn.MSELoss()


def clean_error():
    t = torch.arange(17)
    f, ph = torch.linspace(0.3, 0.8, 40)[:, None], torch.linspace(0, 6.0, 40)[:, None]
    s = torch.sin(f * t + ph)
    with torch.no_grad():
        return criterion(model(s[:, :-1, None]), s[:, 1:, None]).item()


for step in range(200):
    x, y = batch()
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, max_norm=0.3)
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(f"step {step} batch {loss.item():.3f} clean loss {clean_error():.4f}")
