import itertools
import torch
import torch.nn as nn
import torch.nn.functional as F

NQ, NCLS, SIZE = 3, 3, 24
PERMS = {k: torch.tensor(list(itertools.permutations(range(NQ), k))) for k in (1, 2)}


def make_scene(g):
    img = 0.1 * torch.randn(NCLS, SIZE, SIZE, generator=g)
    n = int(torch.randint(1, 3, (1,), generator=g))
    labels, boxes = [], []
    for _ in range(n):
        w, h = [int(v) for v in torch.randint(5, 11, (2,), generator=g)]
        x = int(torch.randint(0, SIZE - w, (1,), generator=g))
        y = int(torch.randint(0, SIZE - h, (1,), generator=g))
        c = int(torch.randint(0, NCLS, (1,), generator=g))
        img[c, y:y + h, x:x + w] += 1.0
        labels.append(c)
        boxes.append([(x + w / 2) / SIZE, (y + h / 2) / SIZE, w / SIZE, h / SIZE])
    return img, torch.tensor(labels), torch.tensor(boxes)


class MLP(nn.Module):
    def __init__(self, d, out):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, out)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


class TinyDETR(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(NCLS, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, d, 3, 2, 1), nn.ReLU())
        self.pos = nn.Parameter(torch.randn(36, d) * 0.3)
        self.query_embed = nn.Embedding(NQ, d)
        self.transformer = nn.Transformer(d, 4, 1, 2, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.class_embed = nn.Linear(d, NCLS + 1)
        self.bbox_embed = MLP(d, 4)
        nn.init.zeros_(self.bbox_embed.b.weight)
        nn.init.zeros_(self.bbox_embed.b.bias)

    def forward(self, x):
        f = self.backbone(x).flatten(2).transpose(1, 2) + self.pos
        q = self.query_embed.weight.expand(len(x), -1, -1)
        h = self.transformer(f, q)
        return self.class_embed(h), self.bbox_embed(h).sigmoid()


@torch.no_grad()
def match(logits, boxes, tl, tb):
    cost = -logits.softmax(-1)[:, tl] + 5 * torch.cdist(boxes, tb, p=1)
    perms = PERMS[len(tl)]
    total = cost[perms, torch.arange(len(tl))].sum(-1)
    return perms[total.argmin()]


def criterion(logits, boxes, targets):
    target_cls = torch.full(logits.shape[:2], NCLS)
    l1, n = 0.0, 0
    for b, (tl, tb) in enumerate(targets):
        src = match(logits[b], boxes[b], tl, tb)
        target_cls[b, src] = tl
        l1 = l1 + (boxes[b, src] - tb).abs().sum()
        n += len(tl)
    ce = F.cross_entropy(logits.transpose(1, 2), target_cls, weight=torch.tensor([1.0] * NCLS + [0.3]))
    return ce + 5 * l1 / n


def iou(a, b):
    lo = torch.max(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    hi = torch.min(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    inter = (hi - lo).clamp(min=0).prod(-1)
    return inter / (a[:, 2:].prod(-1) + b[:, 2:].prod(-1) - inter)


def get_param_groups(model, lr, lr_backbone):
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.startswith(("transformer", "class_"))], "lr": lr},
        {"params": [p for n, p in model.named_parameters() if n.startswith(("backbone", "pos", "query_"))], "lr": lr_backbone},
    ]
    return groups


def main():
    torch.manual_seed(5)
    g = torch.Generator().manual_seed(8)
    train = [make_scene(g) for _ in range(1200)]
    test = [make_scene(g) for _ in range(200)]
    model = TinyDETR()
    opt = torch.optim.AdamW(get_param_groups(model, 1.5e-3, 1.5e-3), weight_decay=1e-4)
    for step in range(500):
        pick = torch.randint(0, len(train), (16,), generator=g).tolist()
        imgs = torch.stack([train[i][0] for i in pick])
        logits, boxes = model(imgs)
        loss = criterion(logits, boxes, [train[i][1:] for i in pick])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 50 == 0:
            print("step %d loss %.4f" % (step, loss.item()))
    model.eval()
    ious, hit = [], []
    with torch.no_grad():
        logits, boxes = model(torch.stack([s[0] for s in test]))
        for b, (_, tl, tb) in enumerate(test):
            src = match(logits[b], boxes[b], tl, tb)
            ious.append(iou(boxes[b, src], tb))
            hit.append((logits[b, src].argmax(-1) == tl).float())
    print("val mean iou %.3f class accuracy %.3f" % (torch.cat(ious).mean(), torch.cat(hit).mean()))


if __name__ == "__main__":
    main()
