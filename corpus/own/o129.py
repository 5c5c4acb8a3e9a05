import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(73)

CTX, WIDTH, DEPTH = 20, 64, 2


def words_of(s):
    return [w for w in (t.strip(".,;:()[]\"'`*").lower() for t in s.split()) if w]


docs = {k: words_of(topics[k]) for k in sorted(topics)}
freq = {}
for ws in docs.values():
    for w in ws:
        freq[w] = freq.get(w, 0) + 1
lut = {w: i + 1 for i, w in enumerate(sorted(freq, key=lambda w: (-freq[w], w))[:700])}
VOCAB = len(lut) + 1
MASK = VOCAB
ids = {k: torch.tensor([lut.get(w, 0) for w in ws]) for k, ws in docs.items()}
big = sorted(ids, key=lambda k: -len(ids[k]))[:6]
streams = [ids[k] for k in big]
everything = torch.cat([ids[k] for k in ids if k not in big])


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB + 1, WIDTH)
        self.pos = nn.Parameter(torch.randn(CTX, WIDTH) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(DEPTH)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.mlm = nn.Linear(WIDTH, VOCAB)

    def forward(self, x):
        h = self.tok(x) + self.pos
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)


def mlm_loss(net, x):
    hide = torch.rand(x.shape) < 0.2
    h = net(x.masked_fill(hide, MASK))
    return F.cross_entropy(net.mlm(h[hide]), x[hide])


net = Backbone()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
for step in range(70):
    x = everything[torch.randint(len(everything) - CTX, (24, 1)) + torch.arange(CTX)]
    loss = mlm_loss(net, x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(f"pretrain {step} loss {loss.item():.4f}")

head = nn.Linear(2 * WIDTH, len(big))
net.tok.requires_grad_(False)
net.pos.requires_grad_(False)
top, decay = 8e-4, 0.6
groups = [
    {"params": head.parameters(), "lr": 4e-3},
    {"params": list(net.norm.parameters()) + list(net.mlm.parameters()), "lr": top},
]
for i, layer in enumerate(reversed(net.layers)):
    groups.append({"params": layer.parameters(), "lr": top * decay**i})
opt = torch.optim.AdamW(groups, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
for step in range(140):
    y = torch.randint(len(big), (24,))
    x = torch.stack(
        [
            streams[c][s : s + CTX]
            for c in y.tolist()
            for s in [torch.randint(len(streams[c]) - CTX, (1,)).item()]
        ]
    )
    h = net(x)
    cls = F.cross_entropy(head(torch.cat([h.mean(1), h.amax(1)], -1)), y)
    rec = mlm_loss(net, x)
    loss = cls + 0.2 * rec
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([p for g in opt.param_groups for p in g["params"]], 1.0)
    opt.step()
    sched.step()
    if step % 15 == 0 or step == 139:
        print(f"tune {step} loss {loss.item():.4f} cls {cls.item():.4f} mlm {rec.item():.4f}")
