import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
random.seed(5)

COLORS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "pink": (1, .4, .8), "white": (1, 1, 1)}
SHAPES = ["box", "cross", "bar", "pole"]
ROWS, COLS = ["top", "middle", "bottom"], ["left", "center", "right"]
FILL = ["a", "the", "one"]
WORDS = ["<pad>", "<eot>"] + FILL + list(COLORS) + SHAPES + ROWS + COLS + ["at", "in"]
W2I = {w: i for i, w in enumerate(WORDS)}
MAXLEN = 8
CONCEPTS = [(c, s, r, k) for c in COLORS for s in SHAPES for r in ROWS for k in COLS]
random.shuffle(CONCEPTS)
VAL, TRAIN = CONCEPTS[:32], CONCEPTS[32:]


def render(color, shape, row, col):
    img = torch.randn(3, 16, 16) * 0.08
    y, x = ROWS.index(row) * 5 + random.randint(0, 1), COLS.index(col) * 5 + random.randint(0, 1)
    m = torch.zeros(16, 16)
    if shape == "box":
        m[y:y + 4, x:x + 4] = 1
    elif shape == "cross":
        m[y + 1:y + 3, x:x + 4] = 1
        m[y:y + 4, x + 1:x + 3] = 1
    elif shape == "bar":
        m[y + 1:y + 3, x:x + 4] = 1
    else:
        m[y:y + 4, x + 1:x + 3] = 1
    return img + torch.tensor(COLORS[color], dtype=torch.float)[:, None, None] * m * random.uniform(0.8, 1.0)


def caption(color, shape, row, col):
    words = random.choice([[random.choice(FILL), color, shape, random.choice(["at", "in"]), row, col],
                           [random.choice(FILL), row, col, color, shape],
                           [color, shape, row, col]]) + ["<eot>"]
    return [W2I[w] for w in words] + [0] * (MAXLEN - len(words))


def batch(concepts):
    return torch.stack([render(*c) for c in concepts]), torch.tensor([caption(*c) for c in concepts])


class ImageTower(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.GELU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GELU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(32 * 16, 96), nn.GELU(), nn.Linear(96, out))

    def forward(self, x):
        return self.net(x)


class TextTower(nn.Module):
    def __init__(self, out, d=48):
        super().__init__()
        self.tok = nn.Embedding(len(WORDS), d)
        self.pos = nn.Parameter(torch.randn(MAXLEN, d) * 0.02)
        nn.init.normal_(self.tok.weight, std=0.05)
        self.enc = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.norm = nn.LayerNorm(d)
        self.proj = nn.Linear(d, out, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        h = self.norm(self.enc(self.tok(ids) + self.pos, src_mask=mask, is_causal=True))
        eot = (ids == W2I["<eot>"]).int().argmax(1)
        return self.proj(h[torch.arange(len(ids)), eot])


class CLIP(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.image, self.text = ImageTower(dim), TextTower(dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, img, ids):
        a = F.normalize(self.image(img), dim=-1)
        b = F.normalize(self.text(ids), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


def clip_loss(logits):
    target = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


STEPS, B = 350, 32
model = CLIP()
opt = torch.optim.AdamW([
    {"params": [p for n, p in model.named_parameters() if p.ndim > 1], "weight_decay": 0.02},
    {"params": [p for n, p in model.named_parameters() if p.ndim <= 1], "weight_decay": 0.0}], lr=1.5e-3, betas=(0.9, 0.98))
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 30) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * s / STEPS))))

val_batch = batch(VAL)
for step in range(STEPS):
    picked = random.sample(TRAIN, B)
    loss = clip_loss(model(*batch(picked)))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))
    if step % 50 == 0 or step == STEPS - 1:
        model.eval()
        with torch.no_grad():
            lg = model(*val_batch)
        model.train()
        acc = (lg.argmax(1) == torch.arange(len(lg))).float().mean()
        print(f"step {step:3d} loss {loss.item():.4f} | held-out loss {clip_loss(lg).item():.4f} retrieval@1 {acc.item():.3f} | temperature {1 / model.logit_scale.exp().item():.4f}")
