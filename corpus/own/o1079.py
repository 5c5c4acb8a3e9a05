import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore", category=UserWarning)


class SpeechCorpus:
    def __init__(self, phones=10, mels=24, seed=13):
        g = torch.Generator().manual_seed(seed)
        self.g, self.phones, self.mels = g, phones, mels
        f = torch.arange(mels).float()
        c1 = torch.rand(phones, 1, generator=g) * 10 + 1
        c2 = torch.rand(phones, 1, generator=g) * 10 + 12
        self.shape = torch.exp(-(f - c1) ** 2 / 6) + torch.exp(-(f - c2) ** 2 / 6)
        self.slope = torch.randint(-1, 2, (phones,), generator=g).float()

    def batch(self, n, segments=10, length=8):
        ph = torch.randint(self.phones, (n, segments), generator=self.g)
        t = torch.linspace(-1, 1, length)
        gain = 1 + 0.8 * self.slope[ph][..., None] * t
        x = self.shape[ph][:, :, None] * gain[..., None]
        x = x.reshape(n, segments * length, self.mels)
        tilt = torch.randn(n, 1, 1, generator=self.g) * torch.linspace(-1, 1, self.mels)
        x = x + tilt + 0.7 * torch.randn(x.shape, generator=self.g)
        return x, ph.repeat_interleave(length // 4, dim=1)


class ConvStem(nn.Module):
    def __init__(self, mels, dim):
        super().__init__()
        self.c1 = nn.Conv1d(mels, dim, 5, stride=2, padding=2)
        self.c2 = nn.Conv1d(dim, dim, 5, stride=2, padding=2)

    def forward(self, x):
        x = F.gelu(self.c1(x.transpose(1, 2)))
        return F.gelu(self.c2(x)).transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_a, self.ln_c, self.ln_f = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.conv = nn.Conv1d(dim, dim, 5, padding=2, groups=dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.ln_a(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        x = x + F.silu(self.conv(self.ln_c(x).transpose(1, 2))).transpose(1, 2)
        return x + self.ff(self.ln_f(x))


class PhoneRecognizer(nn.Module):
    def __init__(self, mels=24, dim=48, depth=2, phones=10, checkpointing=True):
        super().__init__()
        self.checkpointing = checkpointing
        self.stem = ConvStem(mels, dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, phones)

    def _run(self, module, x):
        if self.checkpointing and self.training:
            return checkpoint(module, x, use_reentrant=False)
        return module(x)

    def forward(self, x):
        x = self._run(self.stem, x)
        for layer in self.layers:
            x = self._run(layer, x)
        return self.classifier(self.norm(x))


class Trainer:
    def __init__(self, steps=240, batch=16, lr=1e-3):
        torch.manual_seed(2)
        self.steps, self.batch = steps, batch
        self.data = SpeechCorpus()
        self.model = PhoneRecognizer()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: min(1.0, (s + 1) / 20))

    def step(self):
        x, y = self.data.batch(self.batch)
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        self.sched.step()
        return loss.item()

    @torch.no_grad()
    def frame_error(self):
        self.model.eval()
        x, y = self.data.batch(64)
        err = (self.model(x).argmax(-1) != y).float().mean().item()
        self.model.train()
        return err

    def fit(self):
        running = None
        for i in range(self.steps):
            loss = self.step()
            running = loss if running is None else 0.9 * running + 0.1 * loss
            if i % 20 == 0 or i == self.steps - 1:
                print(f"[{i:4d}] loss={loss:.4f} avg={running:.4f}")
        print(f"frame error rate {self.frame_error():.4f}")


Trainer().fit()
