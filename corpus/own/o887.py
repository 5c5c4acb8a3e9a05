import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)
V, LEN = 22, 16
MASK = V
perm = torch.randperm(V)


def text(n):
    seq = [torch.randint(0, V, (n,))]
    for _ in range(LEN - 1):
        hop = perm[seq[-1]]
        seq.append(torch.where(torch.rand(n) < 0.5, hop, perm[hop]))
    return torch.stack(seq, 1)


class Denoiser(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(V + 1, d)
        self.pos = nn.Embedding(LEN, d)
        layer = nn.TransformerEncoderLayer(d, 4, 160, 0.0, "gelu", batch_first=True, norm_first=True)
        self.net = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.out = nn.Linear(d, V)

    def forward(self, x):
        return self.out(self.net(self.tok(x) + self.pos.weight))


def diffusion_loss(model, x):
    t = torch.rand(len(x), 1).clamp(min=0.05)
    hide = torch.rand(x.shape) < t
    logits = model(x.masked_fill(hide, MASK))
    nll = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")
    return (nll * hide / t).sum(1).mean() / LEN


@torch.no_grad()
def generate(model, n):
    x = torch.full((n, LEN), MASK)
    order = torch.rand(n, LEN).argsort(1)
    for k in range(LEN):
        at = order[:, k:k + 1]
        p = model(x).softmax(-1).gather(1, at[..., None].expand(-1, -1, V))[:, 0]
        x.scatter_(1, at, torch.multinomial(p, 1))
    return x


model = Denoiser()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
ema = {k: v.clone() for k, v in model.state_dict().items()}
for step in range(450):
    loss = diffusion_loss(model, text(48))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in opt.param_groups:
        group["lr"] = 2e-3 * min(1.0, (step + 1) / 30)
    opt.step()
    for k, v in model.state_dict().items():
        ema[k].lerp_(v, 0.03)
    if step % 45 == 0:
        print(f"{step} weighted denoising loss {loss.item():.4f}")
model.load_state_dict(ema)
model.eval()
x = generate(model, 300)
legal = (x[:, 1:] == perm[x[:, :-1]]) | (x[:, 1:] == perm[perm[x[:, :-1]]])
print(f"legal transitions in generated text {legal.float().mean().item():.3f} (random text {2 / V:.3f})")
