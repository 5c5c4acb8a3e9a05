import itertools
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
SIZE, QUERIES, CLASSES, DIM = 20, 3, 2, 48
NONE = CLASSES
PERMS = torch.tensor(list(itertools.permutations(range(QUERIES))))


def scenes(n, seed):
    rng = np.random.default_rng(seed)
    img = rng.normal(0, 0.1, (n, 1, SIZE, SIZE))
    cls = np.full((n, QUERIES), NONE)
    box = np.zeros((n, QUERIES, 2))
    for i in range(n):
        spots = rng.choice(4, rng.integers(1, QUERIES + 1), replace=False)
        for j, s in enumerate(spots):
            cy, cx = 5 + 10 * (s // 2) + rng.integers(-2, 3), 5 + 10 * (s % 2) + rng.integers(-2, 3)
            cls[i, j] = rng.integers(CLASSES)
            if cls[i, j] == 0:
                img[i, 0, cy - 2:cy + 3, cx - 2:cx + 3] += 1
            else:
                img[i, 0, cy - 2:cy + 3, cx] += 1.5
                img[i, 0, cy, cx - 2:cx + 3] += 1.5
            box[i, j] = cy / SIZE, cx / SIZE
    return torch.tensor(img, dtype=torch.float32), torch.tensor(cls), torch.tensor(box, dtype=torch.float32)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_att = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.n = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))

    def forward(self, q, where, mem, pos):
        h = self.n[0](q) + where
        q = q + self.self_att(h, h, self.n[0](q), need_weights=False)[0]
        q = q + self.cross(self.n[1](q) + where, mem + pos, mem, need_weights=False)[0]
        return q + self.ff(self.n[2](q))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 5, 2, 2), nn.ReLU(), nn.Conv2d(24, DIM, 3, 2, 1), nn.ReLU())
        self.pos = nn.Parameter(torch.randn(1, 25, DIM) * 0.3)
        self.query = nn.Parameter(torch.randn(1, QUERIES, DIM) * 0.5)
        self.layers = nn.ModuleList(Decoder() for _ in range(2))
        self.norm = nn.LayerNorm(DIM)
        self.cls = nn.Linear(DIM, CLASSES + 1)
        self.box = nn.Linear(DIM, 2)

    def forward(self, img):
        mem = self.stem(img).flatten(2).transpose(1, 2)
        q = torch.zeros(len(img), QUERIES, DIM)
        where = self.query.expand(len(img), -1, -1)
        outs = []
        for layer in self.layers:
            q = layer(q, where, mem, self.pos)
            h = self.norm(q)
            outs.append((self.cls(h), self.box(h).sigmoid()))
        return outs


@torch.no_grad()
def match(logits, boxes, cls, box):
    p = logits.softmax(-1)
    cost = -p.gather(2, cls[:, None].expand(-1, QUERIES, -1))
    cost = cost + 5 * torch.cdist(boxes, box, p=1) * (cls != NONE)[:, None]
    total = cost[:, PERMS, torch.arange(QUERIES)].sum(-1)
    return PERMS[total.argmin(1)]


def set_loss(outs, cls, box):
    total = 0.0
    weight = torch.tensor([1.0] * CLASSES + [0.4])
    for logits, boxes in outs:
        perm = match(logits, boxes, cls, box)
        logits = logits.gather(1, perm[..., None].expand_as(logits))
        boxes = boxes.gather(1, perm[..., None].expand_as(boxes))
        real = cls != NONE
        l1 = (boxes - box).abs().sum(-1)[real].sum() / real.sum()
        total = total + F.cross_entropy(logits.flatten(0, 1), cls.flatten(), weight=weight) + 5 * l1
    return total


def main(steps=320, batch=32):
    train, test = scenes(3000, 1), scenes(300, 2)
    model = Detector()
    stem = list(model.stem.parameters())
    rest = [p for n, p in model.named_parameters() if not n.startswith("stem")]
    opt = torch.optim.AdamW([{"params": rest, "lr": 2e-3}, {"params": stem, "lr": 1e-3}], weight_decay=1e-4)
    drop = torch.optim.lr_scheduler.MultiStepLR(opt, [int(0.8 * steps)], gamma=0.2)
    gen = torch.Generator().manual_seed(1)
    for step in range(steps):
        idx = torch.randint(0, len(train[0]), (batch,), generator=gen)
        img, cls, box = (t[idx] for t in train)
        loss = set_loss(model(img), cls, box)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        drop.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d}  set loss {loss.item():.4f}")
    with torch.no_grad():
        img, cls, box = test
        logits, boxes = model(img)[-1]
        perm = match(logits, boxes, cls, box)
        hyp = logits.argmax(-1).gather(1, perm)
        err = (boxes.gather(1, perm[..., None].expand_as(boxes)) - box).abs().sum(-1)[cls != NONE].mean() * SIZE
    print(f"slot accuracy {(hyp == cls).float().mean():.3f}  centre error {err:.2f} px")


if __name__ == "__main__":
    main()
