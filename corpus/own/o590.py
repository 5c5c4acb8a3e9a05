import torch
import torch.nn as nn
import torch.nn.functional as F

IMG, PATCH, DIM = 20, 4, 64
torch.manual_seed(99)
yy, xx = torch.meshgrid(torch.arange(IMG).float(), torch.arange(IMG).float(), indexing="ij")


def draw(n):
    kind = torch.randint(5, (n,))
    cx, cy = 6 + 8 * torch.rand(2, n, 1, 1)
    r = 3 + 2.5 * torch.rand(n, 1, 1)
    dx, dy = (xx - cx).abs(), (yy - cy).abs()
    disc = (dx ** 2 + dy ** 2 < r ** 2)
    box = (torch.maximum(dx, dy) < 0.9 * r)
    ring = disc & (dx ** 2 + dy ** 2 > (0.55 * r) ** 2)
    plus = ((dx < 0.3 * r) | (dy < 0.3 * r)) & (torch.maximum(dx, dy) < r)
    diam = (dx + dy < 1.2 * r)
    stack = torch.stack([disc, box, ring, plus, diam], 1).float()
    img = stack[torch.arange(n), kind] + 0.35 * torch.randn(n, IMG, IMG)
    where = torch.stack([cx.flatten(), cy.flatten()], 1) / IMG
    return img, kind, where


class PatchEncoder(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.unfold = nn.Unfold(PATCH, stride=PATCH)
        self.lin = nn.Linear(PATCH * PATCH, DIM)
        self.pos = nn.Parameter(0.3 * torch.randn((IMG // PATCH) ** 2, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 128, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, img):
        x = self.lin(self.unfold(img[:, None]).transpose(1, 2)) + self.pos
        return self.norm(self.body(x).mean(1))


def freeze(net):
    net.requires_grad_(False)
    net.forward = torch.no_grad()(net.forward)
    return net.eval()


def unfreeze(net):
    net.requires_grad_(True)
    return net.train()


def run(tag, steps, opt, closure, every=20):
    for i in range(steps):
        loss, note = closure()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % every == 0 or i == steps - 1:
            print(f"{tag:8s} {i:4d}  loss {loss.item():.4f}  {note}", flush=True)


enc, locate, classify = PatchEncoder(), nn.Linear(DIM, 2), nn.Linear(DIM, 5)


def where_step():
    img, _, w = draw(48)
    return 50 * F.mse_loss(locate(enc(img)), w), ""


def what_step():
    img, kind, _ = draw(48)
    out = classify(enc(img))
    return F.cross_entropy(out, kind), f"acc {(out.argmax(1) == kind).float().mean().item():.2f}"


run("locate", 80, torch.optim.AdamW([*enc.parameters(), *locate.parameters()], lr=1e-3), where_step)

freeze(enc)
run("probe", 50, torch.optim.AdamW(classify.parameters(), lr=1e-2), what_step)

unfreeze(enc)
opt = torch.optim.AdamW([{"params": classify.parameters(), "lr": 2e-3}, {"params": enc.parameters(), "lr": 1e-3}])
run("finetune", 200, opt, what_step)

with torch.no_grad():
    img, kind, _ = draw(1000)
    out = classify(enc.eval()(img))
    print(f"test loss {F.cross_entropy(out, kind).item():.4f} accuracy {(out.argmax(1) == kind).float().mean().item():.3f}")
