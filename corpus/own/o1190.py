import time
import torch
import torch.nn.functional as F

torch.manual_seed(11)
V, D, H, LAYERS, MAXLEN = (400, 64, 4, 1, 26)
BATCH, CHUNK, STEPS, TAU = (128, 32, 200, 0.07)
TOPICS, PER_TOPIC = (60, 12)
PAD = 0
g = torch.Generator().manual_seed(5)
q_words = torch.stack([torch.randperm(180, generator=g)[:PER_TOPIC] + 1 for _ in range(TOPICS)])
d_words = torch.stack([torch.randperm(180, generator=g)[:PER_TOPIC] + 200 for _ in range(TOPICS)])


def one_text(table, topics, lo, hi, noise_lo, g):
    n = int(torch.randint(lo, hi, (1,), generator=g))
    pick = topics[torch.randint(len(topics), (n,), generator=g)]
    words = table[pick, torch.randint(PER_TOPIC, (n,), generator=g)]
    noise = torch.rand(n, generator=g) < 0.1
    words[noise] = torch.randint(noise_lo, noise_lo + 180, (int(noise.sum()),), generator=g)
    return words


def sample_pairs(n, g):
    qs, ds = ([], [])
    for _ in range(n):
        topics = torch.randperm(TOPICS, generator=g)[:2]
        qs.append(one_text(q_words, topics, 5, 14, 1, g))
        ds.append(one_text(d_words, topics, 8, MAXLEN, 200, g))
    return (qs, ds)


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.emb = nn.Embedding(V, D, padding_idx=PAD)
        self.blocks = nn.ModuleList()
        for _ in range(LAYERS):
            self.blocks.append(
                nn.ModuleDict(
                    dict(
                        n1=nn.LayerNorm(D),
                        qkv=nn.Linear(D, 3 * D),
                        proj=nn.Linear(D, D),
                        n2=nn.LayerNorm(D),
                        mlp=nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)),
                    )
                )
            )
        self.out = nn.Linear(D, D)

    def forward(self, ids):
        B, T = ids.shape
        keep = ids != PAD
        x = self.emb(ids)
        for b in self.blocks:
            q, k, v = b["qkv"](b["n1"](x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
            x = x + b["proj"](a.transpose(1, 2).reshape(B, T, D))
            x = x + b["mlp"](b["n2"](x))
        pooled = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
        return F.normalize(self.out(pooled), dim=-1)


def pad(texts):
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)


def by_length(texts):
    return torch.tensor([len(t) for t in texts]).argsort(stable=True)


@torch.no_grad()
def embed(tower, texts):
    order = by_length(texts)
    parts = [tower(pad([texts[i] for i in idx])) for idx in order.split(CHUNK)]
    return torch.cat(parts)[order.argsort()]


def push_back(tower, texts, grads):
    order = by_length(texts)
    for idx, g in zip(order.split(CHUNK), grads.split(CHUNK)):
        e = tower(pad([texts[i] for i in idx]))
        torch.dot(e.flatten(), g.flatten()).backward()


def info_nce(eq, ed):
    scores = eq @ ed.T / TAU
    target = torch.arange(len(eq))
    return 0.5 * (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target))


def train_step(q_tower, d_tower, opt, qs, ds):
    eq = embed(q_tower, qs).requires_grad_()
    ed = embed(d_tower, ds).requires_grad_()
    loss = info_nce(eq, ed)
    gq, gd = torch.autograd.grad(loss, [eq, ed])
    opt.zero_grad()
    push_back(q_tower, qs, gq)
    push_back(d_tower, ds, gd)
    opt.step()
    return loss.item()


def recall_at_5(q_tower, d_tower):
    qs, ds = sample_pairs(300, torch.Generator().manual_seed(1234))
    scores = embed(q_tower, qs) @ embed(d_tower, ds).T
    top = scores.topk(5, dim=1).indices
    return (top == torch.arange(300)[:, None]).any(1).float().mean().item()


q_tower, d_tower = (Tower(), Tower())
opt = torch.optim.AdamW(
    list(q_tower.parameters()) + list(d_tower.parameters()), lr=0.002, weight_decay=0.01
)
data = torch.Generator().manual_seed(77)
start = time.time()
print(f"recall@5 before training {recall_at_5(q_tower, d_tower):.3f}")
for step in range(STEPS):
    qs, ds = sample_pairs(BATCH, data)
    loss = train_step(q_tower, d_tower, opt, qs, ds)
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d}  info-nce {loss:.4f}  ({time.time() - start:.1f}s)")
print(f"recall@5 over 300 unseen pairs {recall_at_5(q_tower, d_tower):.3f}  (chance {5 / 300:.3f})")
