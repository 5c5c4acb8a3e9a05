import torch, torch.nn as nn

torch.manual_seed(100)
NCLS, NULL = 4, 4


def data(n):
    y = torch.randint(0, NCLS, (n,))
    base = torch.tensor([[-1.5, -1.5], [-1.5, 1.5], [1.5, -1.5], [1.5, 1.5]])[y]
    return base + (torch.rand(n, 2) - 0.5) * 1.2, y


class V(nn.Module):
    def __init__(s, h=128):
        super().__init__()
        s.cls = nn.Embedding(NCLS + 1, 16)
        s.a = nn.Linear(2 + 1 + 16, h)
        s.b = nn.Linear(h + 1, h)
        s.c = nn.Linear(h + 1, h)
        s.o = nn.Linear(h, 2)

    def forward(s, x, t, y):
        t = t[:, None]
        h = torch.relu(s.a(torch.cat([x, t, s.cls(y)], 1)))
        h = torch.relu(s.b(torch.cat([h, t], 1)))
        h = torch.relu(s.c(torch.cat([h, t], 1)))
        return s.o(h)


@torch.no_grad()
def generate(model, y, n_steps=25):
    x = torch.randn(len(y), 2)
    for i in range(n_steps):
        t = torch.full((len(y),), i / n_steps)
        x = x + model(x, t, y) / n_steps
    return x


def quality(model):
    y = torch.randint(0, NCLS, (800,))
    x = generate(model, y)
    c = torch.tensor([[-1.5, -1.5], [-1.5, 1.5], [1.5, -1.5], [1.5, 1.5]])[y]
    return ((x - c).abs().amax(1) < 0.7).float().mean().item()


model = V()
opt = torch.optim.Adam(model.parameters(), 2e-3)
cum, cnt = 0.0, 0
for it in range(1, 801):
    x1, y = data(256)
    x0 = torch.randn_like(x1)
    t = torch.sigmoid(torch.randn(len(x1)))
    xt = torch.lerp(x0, x1, t[:, None])
    y = torch.where(torch.rand(len(y)) < 0.1, torch.full_like(y, NULL), y)
    loss = (model(xt, t, y) - (x1 - x0)).pow(2).sum(1).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    cum += loss.item(); cnt += 1
    if it in (1, 10, 25) or it % 50 == 0:
        print(f"it={it:4d} cfm loss={cum / cnt:.4f} in-square rate={quality(model):.3f}")
        cum, cnt = 0.0, 0
