import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed


def shapes(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    grid = torch.arange(16).float()
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    imgs = torch.randn(n, 1, 16, 16, generator=g) * 0.7
    phase = torch.rand(n, generator=g) * 6.28
    for i in range(n):
        angle = y[i] * torch.pi / 10
        imgs[i, 0] += torch.sin(0.9 * (xx * torch.cos(angle) + yy * torch.sin(angle)) + phase[i])
    return imgs, y


class PatchClassifier(nn.Module):
    def __init__(self, dim=48, depth=2, heads=4, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.body(x))[:, 0])


def main():
    set_seed(5)
    grad_accum = 16
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=grad_accum)
    images, labels = shapes(2400, 1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=4, shuffle=True, drop_last=True)
    model = PatchClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = nn.CrossEntropyLoss()
    updates, running, hits, seen = 0, 0.0, 0, 0
    for epoch in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                out = model(x)
                loss = criterion(out, y)
                running += loss.item()
                hits += (out.argmax(1) == y).sum().item()
                seen += 1
                loss = loss / grad_accum
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                updates += 1
                if updates == 1 or updates % 10 == 0:
                    print(f"update {updates} loss {running / seen:.4f} acc {hits / (4 * seen):.3f}")
                    running, hits, seen = 0.0, 0, 0


if __name__ == "__main__":
    main()
