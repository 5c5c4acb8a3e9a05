import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

random.seed(52)
torch.manual_seed(52)
BANDS, SYMBOLS, D = 16, 10, 64
CODES = torch.randn(SYMBOLS + 1, BANDS) * 1.5


def utterance():
    text = [random.randint(1, SYMBOLS)]
    for _ in range(random.randint(2, 5)):
        text.append(random.choice([s for s in range(1, SYMBOLS + 1) if s != text[-1]]))
    frames = torch.cat([CODES[s].repeat(random.randint(3, 6), 1) for s in text])
    frames = frames + 0.7 * torch.randn_like(frames)
    return (frames - frames.mean(0)) / (frames.std(0) + 1e-5), text


def collate(items):
    n = max(len(f) for f, _ in items)
    x = torch.zeros(len(items), n, BANDS)
    for i, (f, _) in enumerate(items):
        x[i, :len(f)] = f
    xl = torch.tensor([len(f) for f, _ in items])
    y = torch.tensor([s for _, t in items for s in t])
    yl = torch.tensor([len(t) for _, t in items])
    return x, xl, y, yl


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Linear(BANDS, D)
        self.conv = nn.Conv1d(D, D, 3, padding=1)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, SYMBOLS + 1)

    def forward(self, x, xl):
        pad = torch.arange(x.size(1))[None] >= xl[:, None]
        h = F.relu(self.front(x)).masked_fill(pad[..., None], 0.0)
        h = h + F.relu(self.conv(h.transpose(1, 2)).transpose(1, 2))
        h = self.enc(h, src_key_padding_mask=pad)
        return self.out(self.norm(h)).log_softmax(-1)


def spec_augment(x):
    x = x.clone()
    f = random.randrange(BANDS - 2)
    x[:, :, f:f + 2] = 0.0
    return x


@torch.no_grad()
def exact(model, items):
    model.eval()
    x, xl, _, _ = collate(items)
    best = model(x, xl).argmax(-1)
    good = 0
    for i, (_, text) in enumerate(items):
        path = torch.unique_consecutive(best[i, :xl[i]]).tolist()
        good += [p for p in path if p != 0] == text
    model.train()
    return good / len(items)


train, dev = [utterance() for _ in range(1000)], [utterance() for _ in range(200)]
model = Encoder()
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
EPOCHS, BS = 8, 25
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=EPOCHS * (len(train) // BS), pct_start=0.2)
for epoch in range(EPOCHS):
    random.shuffle(train)
    total = 0.0
    for i in range(0, len(train), BS):
        x, xl, y, yl = collate(train[i:i + BS])
        lp = model(spec_augment(x), xl).transpose(0, 1)
        loss = F.ctc_loss(lp, y, xl, yl, blank=0, reduction="sum", zero_infinity=True) / BS
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        averaged.update_parameters(model)
        total += loss.item()
    print(f"epoch {epoch} loss per utterance {total / (len(train) // BS):.4f} "
          f"exact {exact(model, dev):.3f} averaged {exact(averaged, dev):.3f}")
