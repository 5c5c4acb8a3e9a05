import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.optimizer import Optimizer

batch_size = 32
block_size = 32
max_iters = 350
eval_interval = 50
n_embd, n_head, n_layer = 64, 4, 2
peak_lr, min_lr, warmup = 6e-4, 6e-5, 20
wd = 0.05
torch.manual_seed(1337)

names = "ada bert carl dora emil fred gina hans ida jan kurt lena".split()
verbs = "sees likes helps finds calls paints".split()
things = "apples books cars dogs eggs forks goats hats".split()


def story(n, seed):
    g = torch.Generator().manual_seed(seed)
    pick = lambda xs: xs[int(torch.randint(0, len(xs), (1,), generator=g))]
    out = []
    for _ in range(n):
        a = pick(names)
        out.append(f"{a} {pick(verbs)} {pick(things)} and {a} rests. ")
    return "".join(out)


text = story(3000, 0)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
split = int(0.9 * len(data))
train_data, val_data = data[:split], data[split:]


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, (b1, b2), decay = group["lr"], group["betas"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - decay)
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-lr)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def get_batch(part):
    src = train_data if part == "train" else val_data
    ix = torch.randint(len(src) - block_size - 1, (batch_size,))
    x = torch.stack([src[i:i + block_size] for i in ix])
    y = torch.stack([src[i + 1:i + 1 + block_size] for i in ix])
    return x, y


class GPTLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(chars), n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.h = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(chars), bias=False)

    def forward(self, idx, targets):
        t = idx.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        x = self.h(self.wte(idx) + self.wpe(torch.arange(t)), mask=mask, is_causal=True)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_lr(it):
    if it < warmup:
        return peak_lr * (it + 1) / warmup
    r = (it - warmup) / (max_iters - warmup)
    return min_lr + 0.5 * (1 + math.cos(math.pi * r)) * (peak_lr - min_lr)


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    out = {p: sum(model(*get_batch(p)).item() for _ in range(5)) / 5 for p in ("train", "val")}
    model.train()
    return out


model = GPTLanguageModel()
matrices = [p for p in model.parameters() if p.dim() >= 2]
vectors = [p for p in model.parameters() if p.dim() < 2]
optimizer = Lion([{"params": matrices, "weight_decay": wd}, {"params": vectors, "weight_decay": 0.0}], lr=peak_lr)
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % eval_interval == 0:
        l = estimate_loss(model)
        print(f"step {it}: train loss {l['train']:.4f}, val loss {l['val']:.4f}")
    loss = model(*get_batch("train"))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(f"final val loss {estimate_loss(model)['val']:.4f}")
