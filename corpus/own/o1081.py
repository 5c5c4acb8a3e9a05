import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class BasicDataset(Dataset):
    def __init__(self, n, seed, size=32):
        rng = np.random.default_rng(seed)
        self.images, self.masks = [], []
        yy, xx = np.mgrid[0:size, 0:size]
        for _ in range(n):
            img = rng.integers(60, 110, (size, size, 3)).astype(np.int64)
            mask = np.zeros((size, size), dtype=np.uint8)
            for kind in rng.permutation(3)[: rng.integers(1, 4)]:
                cy, cx, r = rng.integers(6, size - 6), rng.integers(6, size - 6), rng.integers(4, 7)
                if kind == 0:
                    region = (yy - cy) ** 2 + (xx - cx) ** 2 <= r * r
                elif kind == 1:
                    region = (abs(yy - cy) <= r) & (abs(xx - cx) <= r)
                else:
                    region = abs(yy - cy) + abs(xx - cx) <= r
                img[region] += np.array([70, 40, 20])[[kind, (kind + 1) % 3, (kind + 2) % 3]]
                mask[region] = kind + 1
            self.images.append(np.clip(img + rng.normal(0, 12, img.shape), 0, 255).astype(np.uint8))
            self.masks.append(mask)

    def __len__(self):
        return len(self.images)

    @classmethod
    def preprocess(cls, arr, is_mask):
        arr = np.asarray(arr)
        if arr.ndim == 2:
            arr = arr[None]
        else:
            arr = arr.transpose(2, 0, 1)
        if not is_mask and arr.max() > 1:
            arr = arr / 255
        return arr

    def __getitem__(self, i):
        img = self.preprocess(self.images[i], is_mask=False)
        mask = self.preprocess(self.masks[i], is_mask=True)
        return {
            "image": torch.from_numpy(img).float(),
            "mask": torch.from_numpy(mask).long().squeeze(0),
        }


class MixBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class SegNet(nn.Module):
    def __init__(self, n_classes=4, dim=48):
        super().__init__()
        self.n_classes = n_classes
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.GELU())
        self.down = nn.Conv2d(24, dim, 4, stride=4)
        self.pos = nn.Parameter(torch.randn(1, 64, dim) * 0.02)
        self.blocks = nn.Sequential(MixBlock(dim, 4), MixBlock(dim, 4))
        self.up = nn.ConvTranspose2d(dim, 24, 4, stride=4)
        self.fuse = nn.Sequential(nn.Conv2d(48, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, n_classes, 1))

    def forward(self, x):
        s = self.stem(x)
        d = self.down(s)
        b, c, h, w = d.shape
        t = self.blocks(d.flatten(2).transpose(1, 2) + self.pos)
        u = self.up(t.transpose(1, 2).reshape(b, c, h, w))
        return self.fuse(torch.cat([s, u], 1))


@torch.no_grad()
def eval_net(net, loader):
    net.eval()
    tot, correct, count = 0.0, 0, 0
    for batch in loader:
        out = net(batch["image"])
        tot += F.cross_entropy(out, batch["mask"]).item()
        correct += (out.argmax(1) == batch["mask"]).sum().item()
        count += batch["mask"].numel()
    net.train()
    return tot / len(loader), correct / count


def train_net(epochs=5, batch_size=16, lr=2e-3):
    torch.manual_seed(8)
    train = DataLoader(BasicDataset(480, 0), batch_size=batch_size, shuffle=True, drop_last=True)
    val = DataLoader(BasicDataset(96, 1), batch_size=32)
    net = SegNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=1e-4)
    global_step = 0
    for epoch in range(epochs):
        for batch in train:
            masks_pred = net(batch["image"])
            loss = F.cross_entropy(masks_pred, batch["mask"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if global_step % 15 == 0:
                print(f"step {global_step} loss {loss.item():.4f}")
            global_step += 1
        v, acc = eval_net(net, val)
        print(f"epoch {epoch + 1}/{epochs} val loss {v:.4f} pixel accuracy {acc:.4f}")


if __name__ == "__main__":
    train_net()
