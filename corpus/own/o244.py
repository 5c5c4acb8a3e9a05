import torch
import torch.nn as nn

torch.manual_seed(123)
SYMBOLS, MASK, LEN = 24, 24, 20


class CyclicText:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.cycle = torch.randperm(SYMBOLS, generator=self.g)

    def __call__(self, n):
        start = torch.randint(SYMBOLS, (n, 1), generator=self.g)
        ids = self.cycle[(start + torch.arange(LEN)) % SYMBOLS]
        hide = torch.rand(n, LEN, generator=self.g) < 0.2
        labels = torch.where(hide, ids, -100)
        return torch.where(hide, MASK, ids), labels


class MaskedModel(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS + 1, d)
        self.pos = nn.Parameter(torch.randn(LEN, d) * 0.5)
        self.mixers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(d), "attn": nn.MultiheadAttention(d, 4, batch_first=True),
                           "norm2": nn.LayerNorm(d), "ff": nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))})
            for _ in range(2))
        self.decoder = nn.Linear(d, SYMBOLS)

    def forward(self, ids):
        x = self.embed(ids) + self.pos
        for m in self.mixers:
            h = m["norm"](x)
            x = x + m["attn"](h, h, h, need_weights=False)[0]
            x = x + m["ff"](m["norm2"](x))
        return self.decoder(x)


def train(steps, max_norm=1.0):
    data, model = CyclicText(9), MaskedModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    for i in range(steps):
        ids, labels = data(24)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits.float().transpose(1, 2), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        if i % 15 == 0 or i == steps - 1:
            print(f"mlm step {i:3d}: {loss.item():.4f}")


train(160)
