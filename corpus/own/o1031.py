import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
V, T, D = 24, 20, 64


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V + 1, D)
        self.place = nn.Parameter(torch.randn(T, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(self.embed(x) + self.place)


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


rule = torch.randperm(V)


def sequences(n, g):
    """Each token is the rule applied to the one two places before it."""
    x = torch.randint(V, (n, T), generator=g)
    for t in range(2, T):
        x[:, t] = rule[x[:, t - 2]]
    return x


g = torch.Generator().manual_seed(3)
encoder = Encoder()
runner = Wrapped(encoder)
to_token = nn.Linear(D, V)
opt = torch.optim.AdamW([*runner.parameters(), *to_token.parameters()], lr=2e-3)
for step in range(300):
    x = sequences(64, g)
    hidden = torch.rand(x.shape, generator=g) < 0.2
    loss = F.cross_entropy(to_token(runner(x.masked_fill(hidden, V)))[hidden], x[hidden])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"pre-training {step:3d} loss {loss.item():.4f}")
state = runner.state_dict()

model = Encoder()
model.load_state_dict(state, strict=False)
head = nn.Linear(D, 2)


def labelled(n, g):
    x, y = sequences(n, g), torch.randint(2, (n,), generator=g)
    place = torch.randint(2, T, (n,), generator=g)
    other = (x[torch.arange(n), place] + torch.randint(1, V, (n,), generator=g)) % V
    x[torch.arange(n), place] = torch.where(y == 1, other, x[torch.arange(n), place])
    return x, y


train_x, train_y = labelled(256, g)
test_x, test_y = labelled(512, g)
opt = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=5e-4)
for step in range(160):
    i = torch.randint(len(train_x), (32,), generator=g)
    loss = F.cross_entropy(head(model(train_x[i]).amax(1)), train_y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0 or step == 159:
        model.eval()
        with torch.no_grad():
            scores = head(model(test_x).amax(1))
        model.train()
        print(
            f"fine-tuning {step:3d} loss {loss.item():.4f} test loss {F.cross_entropy(scores, test_y):.4f} "
            f"acc {(scores.argmax(1) == test_y).float().mean():.3f}"
        )
