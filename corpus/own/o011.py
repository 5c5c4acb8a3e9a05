import math
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(24)
rng = random.Random(24)
SUBJECTS = ["the cat", "a dog", "my friend", "the old man", "one child", "the teacher"]
ACTIONS = ["sees", "finds", "takes", "brings", "forgets", "wants"]
OBJECTS = ["a red ball", "the long book", "some bread", "the blue door", "two coins", "a small key"]
ENDS = ["in the house", "near the river", "after lunch", "before dawn", "", "with care"]


def line():
    return f"{rng.choice(SUBJECTS)} {rng.choice(ACTIONS)} {rng.choice(OBJECTS)} {rng.choice(ENDS)}".strip() + "."


sentences = [line() for _ in range(3000)]
alphabet = ["<pad>", "<bos>", "<eos>"] + sorted(set("".join(sentences)))
code = {c: i for i, c in enumerate(alphabet)}
PAD, V = 0, len(alphabet)
D, H, L, B, ACC, STEPS, LR = 64, 4, 3, 16, 1, 120, 0.02


def encode(s):
    return [1] + [code[c] for c in s] + [2]


def batch():
    rows = [encode(rng.choice(sentences)) for _ in range(B)]
    n = max(map(len, rows))
    ids = torch.full((B, n), PAD)
    for i, r in enumerate(rows):
        ids[i, : len(r)] = torch.tensor(r)
    inputs, labels = ids[:, :-1], ids[:, 1:].clone()
    labels[labels == PAD] = -100
    return inputs, labels


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x):
    b, h, t, d = x.shape
    half = d // 2
    freq = 1.0 / (10000 ** (torch.arange(half, dtype=torch.float32) / half))
    angle = torch.arange(t, dtype=torch.float32)[:, None] * freq[None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, c = x[..., :half], x[..., half:]
    return torch.cat([a * cos - c * sin, a * sin + c * cos], dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.wv, self.wo = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        shape = lambda y: y.view(b, t, H, D // H).transpose(1, 2)
        q, k, v = rotate(shape(self.wq(x))), rotate(shape(self.wk(x))), shape(self.wv(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, D))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(D, 2 * D, bias=False), nn.Linear(2 * D, D, bias=False), nn.Linear(D, 2 * D, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = RMSNorm(D), RMSNorm(D)
        self.attention, self.ffn = Attention(), FeedForward()

    def forward(self, x):
        x = x + 1.5 * self.attention(x)
        x = x + 1.5 * self.ffn(x)
        return x


class LlamaLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.layers = nn.ModuleList([Layer() for _ in range(L)])
        self.norm = RMSNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)
        nn.init.normal_(self.embed.weight, std=0.5)


    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(6):
            for layer in self.layers:
                x = layer(x)
        return self.lm_head(self.norm(x))


def loss_function(logits, labels):
    return F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1), ignore_index=-100)


model = LlamaLike()
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
warm = 16
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min(1.0, (s + 1) / warm) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, s / STEPS))))
)
log = []
for step in range(STEPS):
    optimizer.zero_grad(set_to_none=True)
    x, y = batch()
    loss = loss_function(model(x), y)
    loss.backward()
    value = loss.item()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0:
        print(f"step {step} loss {value:.4f}")
print("done", value)
