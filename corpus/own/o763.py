import torch
import torch.nn as nn
import torch.nn.functional as F
from itertools import permutations

torch.set_num_threads(1)
torch.manual_seed(7)
IMG, NCLS, NQ = 32, 4, 6
PALETTE = torch.tensor([[1.0, 0.1, 0.1], [0.1, 1.0, 0.1], [0.2, 0.2, 1.0], [1.0, 1.0, 0.1]])


def make_scene():
    img = 0.1 * torch.randn(3, IMG, IMG)
    n = int(torch.randint(2, 4, (1,)))
    cells = torch.randperm(4)[:n]
    boxes, labels = [], []
    for c in cells.tolist():
        w, h = (torch.rand(2) * 6 + 6).tolist()
        x0 = (c % 2) * 16 + torch.rand(1).item() * (15 - w)
        y0 = (c // 2) * 16 + torch.rand(1).item() * (15 - h)
        k = int(torch.randint(0, NCLS, (1,)))
        xi, yi, xj, yj = int(round(x0)), int(round(y0)), int(round(x0 + w)), int(round(y0 + h))
        img[:, yi:yj, xi:xj] += PALETTE[k][:, None, None]
        boxes.append([(xi + xj) / 2, (yi + yj) / 2, xj - xi, yj - yi])
        labels.append(k)
    return img, {"boxes": torch.tensor(boxes) / IMG, "labels": torch.tensor(labels)}


def to_xyxy(b):
    c, s = b[..., :2], b[..., 2:]
    return torch.cat([c - s / 2, c + s / 2], -1)


def giou(a, b):
    lt, rb = torch.max(a[..., :2], b[..., :2]), torch.min(a[..., 2:], b[..., 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inter
    hull = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).prod(-1)
    return inter / (union + 1e-7) - (hull - union) / (hull + 1e-7)


class MiniDETR(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, d, 4, 2, 1))
        self.pos = nn.Parameter(0.5 * torch.randn(1, (IMG // 4) ** 2, d))
        self.encoder = nn.TransformerEncoderLayer(d, 4, 128, 0.0, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, NQ, d))
        layer = nn.TransformerDecoderLayer(d, 4, 128, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.cls = nn.Linear(d, NCLS + 1)
        self.box = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4))

    def forward(self, x):
        m = self.stem(x).flatten(2).transpose(1, 2) + self.pos
        h = self.decoder(self.query.expand(len(x), -1, -1), self.encoder(m))
        return self.cls(h), self.box(h).sigmoid()


ASSIGN = {n: torch.tensor(list(permutations(range(NQ), n))) for n in (1, 2, 3, 4)}


def linear_sum_assignment(cost):
    """Exact search (few objects); same contract as scipy: rows come back sorted."""
    n = cost.size(1)
    rows = ASSIGN[n][cost[ASSIGN[n], torch.arange(n)].sum(1).argmin()]
    row, col = rows.sort()
    return row, col


@torch.no_grad()
def match(logits, boxes, targets):
    out = []
    for lg, bx, t in zip(logits, boxes, targets):
        cost = -lg.softmax(-1)[:, t["labels"]] + 5 * torch.cdist(bx, t["boxes"], p=1) \
            - 2 * giou(to_xyxy(bx)[:, None], to_xyxy(t["boxes"])[None])
        i, j = linear_sum_assignment(cost)
        out.append((i, j))
    return out


def set_loss(logits, boxes, targets, eos_coef=0.2):
    pairs = match(logits.detach(), boxes.detach(), targets)
    batch_idx = torch.cat([torch.full_like(i, b) for b, (i, _) in enumerate(pairs)])
    query_idx = torch.cat([i for i, _ in pairs])
    tgt_boxes = torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, pairs)])
    tgt_labels = torch.cat([t["labels"] for t in targets])

    classes = torch.full(logits.shape[:2], NCLS)
    classes[batch_idx, query_idx] = tgt_labels
    weight = torch.ones(NCLS + 1)
    weight[-1] = eos_coef
    ce = F.cross_entropy(logits.transpose(1, 2), classes, weight)
    src = boxes[batch_idx, query_idx]
    l1 = F.l1_loss(src, tgt_boxes, reduction="none").sum(-1).mean()
    gi = (1 - giou(to_xyxy(src), to_xyxy(tgt_boxes))).mean()
    return ce + 5 * l1 + 2 * gi, ce, l1, gi


@torch.no_grad()
def evaluate(model, scenes):
    model.eval()
    logits, boxes = model(torch.stack([s[0] for s in scenes]))
    hit = tot = 0
    for lg, bx, (_, t) in zip(logits, boxes, scenes):
        g = giou(to_xyxy(t["boxes"])[:, None], to_xyxy(bx)[None])
        best, q = g.max(1)
        hit += ((lg[q, :NCLS].argmax(-1) == t["labels"]) & (best > 0.4)).sum().item()
        tot += len(t["labels"])
    model.train()
    return hit / tot


data = [make_scene() for _ in range(1500)]
train, val = data[:1400], data[1400:]
model = MiniDETR()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
STEPS, BS = 420, 24
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1.2e-3, STEPS, pct_start=0.1)
order = torch.randperm(len(train))
for step in range(STEPS):
    if (step * BS) % len(train) < BS:
        order = torch.randperm(len(train))
    at = (step * BS) % (len(train) - BS)
    batch = [train[k] for k in order[at:at + BS].tolist()]
    loss, ce, l1, gi = set_loss(*model(torch.stack([b[0] for b in batch])), [b[1] for b in batch])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    sched.step()
    if step % 40 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.3f} | ce {ce.item():.3f} l1 {l1.item():.3f} "
              f"giou {gi.item():.3f} | val hit rate {evaluate(model, val):.3f}")
