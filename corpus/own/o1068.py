import itertools
import math

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 3
NUM_QUERIES = 6
MAX_OBJECTS = 3
IMG = 24


class Shapes(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            img = 0.1 * torch.randn(3, IMG, IMG, generator=g)
            count = int(torch.randint(1, MAX_OBJECTS + 1, (1,), generator=g))
            boxes, labels = [], []
            for _ in range(count):
                w, h = torch.randint(5, 10, (2,), generator=g).tolist()
                x0 = int(torch.randint(0, IMG - w, (1,), generator=g))
                y0 = int(torch.randint(0, IMG - h, (1,), generator=g))
                c = int(torch.randint(NUM_CLASSES, (1,), generator=g))
                img[:, y0:y0 + h, x0:x0 + w] = 0.0
                img[c, y0:y0 + h, x0:x0 + w] = 1.0
                boxes.append([(x0 + w / 2) / IMG, (y0 + h / 2) / IMG, w / IMG, h / IMG])
                labels.append(c)
            self.items.append((img, torch.tensor(boxes), torch.tensor(labels)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    imgs, boxes, labels = zip(*items)
    return torch.stack(imgs), list(zip(boxes, labels))


class Detector(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.GroupNorm(4, 24), nn.ReLU(),
            nn.Conv2d(24, dim, 3, 2, 1), nn.GroupNorm(4, dim), nn.ReLU(),
        )
        self.pos = nn.Parameter(0.1 * torch.randn(1, (IMG // 4) ** 2, dim))
        self.queries = nn.Parameter(torch.randn(1, NUM_QUERIES, dim))
        self.encoder = nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True)
        self.decoder = nn.ModuleList(
            [nn.TransformerDecoderLayer(dim, 4, 96, dropout=0.0, batch_first=True) for _ in range(2)])
        self.cls = nn.Linear(dim, NUM_CLASSES + 1)
        self.box = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, x):
        mem = self.encoder(self.backbone(x).flatten(2).transpose(1, 2) + self.pos)
        h = self.queries.expand(len(x), -1, -1)
        for layer in self.decoder:
            h = layer(h, mem)
        return self.cls(h), self.box(h).sigmoid()


ASSIGN = {k: torch.tensor(list(itertools.permutations(range(NUM_QUERIES), k))) for k in range(1, MAX_OBJECTS + 1)}


@torch.no_grad()
def match(logits, boxes, gt_boxes, gt_labels):
    cost = 5 * torch.cdist(boxes, gt_boxes, p=1) - logits.softmax(-1)[:, gt_labels]
    options = ASSIGN[len(gt_labels)]
    total = cost[options, torch.arange(len(gt_labels))].sum(1)
    return options[total.argmin()]


def set_loss(out, targets):
    logits, boxes = out
    weight = torch.ones(NUM_CLASSES + 1)
    weight[-1] = 0.2
    target_cls = torch.full(logits.shape[:2], NUM_CLASSES)
    l1, count = 0.0, 0
    for i, (gb, gl) in enumerate(targets):
        src = match(logits[i], boxes[i], gb, gl)
        target_cls[i, src] = gl
        l1 = l1 + (boxes[i, src] - gb).abs().sum()
        count += len(gl)
    ce = F.cross_entropy(logits.transpose(1, 2), target_cls, weight)
    return ce + 5 * l1 / count, ce.item(), (l1 / count).item()


def train_one_epoch(model, optimizer, loader, lr_scheduler, epoch):
    model.train()
    for it, (imgs, targets) in enumerate(loader):
        loss, ce, l1 = set_loss(model(imgs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        if it % 10 == 0:
            print(f"epoch {epoch} [{it:2d}/{len(loader)}] loss {loss.item():.3f} ce {ce:.3f} l1 {l1:.3f}")


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hit = total = 0
    loss_sum = 0.0
    for imgs, targets in loader:
        out = model(imgs)
        loss_sum += set_loss(out, targets)[0].item()
        for i, (gb, gl) in enumerate(targets):
            src = match(out[0][i], out[1][i], gb, gl)
            ok = (out[0][i, src].argmax(-1) == gl) & ((out[1][i, src] - gb).abs().sum(-1) < 0.25)
            hit += ok.sum().item()
            total += len(gl)
    return loss_sum / len(loader), hit / total


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(Shapes(800, 1), batch_size=32, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(Shapes(128, 2), batch_size=32, collate_fn=collate)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    for epoch in range(9):
        train_one_epoch(model, optimizer, train_loader, lr_scheduler, epoch)
        if epoch % 2 == 0:
            loss, recall = evaluate(model, val_loader)
            print(f"epoch {epoch} val loss {loss:.3f} recall {recall:.3f}")


if __name__ == "__main__":
    main()
