import torch, math
from torch.nn.functional import layer_norm, gelu, binary_cross_entropy_with_logits as bce

rng = torch.Generator().manual_seed(0)
N, NUM, CARD = 12000, 6, [7, 5, 9, 4, 6]
num = torch.randn(N, NUM, generator=rng)
cat = torch.stack([torch.randint(c, (N,), generator=rng) for c in CARD], 1)
tabs = [torch.randn(c, generator=rng) for c in CARD]
z = num[:, 0] * tabs[0][cat[:, 0]] + num[:, 1] * num[:, 2] + 1.5 * tabs[2][cat[:, 2]] + tabs[3][cat[:, 3]] * tabs[1][cat[:, 1]]
lab = (2.5 * z + 0.3 * torch.randn(N, generator=rng) > 0).float()
trn, val = torch.arange(0, 10000), torch.arange(10000, N)

D, H, LAYERS, FF = 48, 4, 2, 96
C = 1 + NUM + len(CARD)


def make():
    P = {"cls": torch.zeros(1, 1, D), "num_w": torch.randn(NUM, D, generator=rng) * .5,
         "num_b": torch.randn(NUM, D, generator=rng) * .5,
         "emb": torch.randn(sum(CARD), D, generator=rng) * .5,
         "head": torch.randn(D, generator=rng) * .1, "head_b": torch.zeros(())}
    for i in range(LAYERS):
        for n, (a, b) in dict(wq=(D, D), wk=(D, D), wv=(D, D), wo=(D, D), up=(D, FF), dn=(FF, D)).items():
            P[f"{i}.{n}"] = torch.randn(a, b, generator=rng) / math.sqrt(a)
        for n in ("g1", "g2"):
            P[f"{i}.{n}"] = torch.ones(D)
    return {k: v.requires_grad_() for k, v in P.items()}


offset = torch.tensor([0] + CARD[:-1]).cumsum(0)


def predict(P, xn, xc):
    tok = torch.cat([P["cls"].expand(len(xn), 1, D),
                     xn[:, :, None] * P["num_w"] + P["num_b"],
                     P["emb"][xc + offset]], 1)
    for i in range(LAYERS):
        h = layer_norm(tok, (D,), P[f"{i}.g1"])
        q, k, v = ((h @ P[f"{i}.{w}"]).unflatten(-1, (H, D // H)) for w in ("wq", "wk", "wv"))
        att = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(D // H)).softmax(-1)
        tok = tok + torch.einsum("bhqk,bkhd->bqhd", att, v).flatten(2) @ P[f"{i}.wo"]
        tok = tok + gelu(layer_norm(tok, (D,), P[f"{i}.g2"]) @ P[f"{i}.up"]) @ P[f"{i}.dn"]
    return layer_norm(tok[:, 0], (D,)) @ P["head"] + P["head_b"]


def clear(store):
    store = {k: torch.zeros_like(v) for k, v in store.items()}
    return store


P = make()
acc = {k: torch.zeros_like(v) for k, v in P.items()}
m1 = {k: torch.zeros_like(v) for k, v in P.items()}
m2 = {k: torch.zeros_like(v) for k, v in P.items()}
MICRO, SIZE, UPDATES, LR, B1, B2 = 4, 32, 240, 2e-3, .9, .99

for u in range(1, UPDATES + 1):
    running = 0.
    for _ in range(MICRO):
        rows = trn[torch.randint(len(trn), (SIZE,), generator=rng)]
        loss = bce(predict(P, num[rows], cat[rows]), lab[rows]) / MICRO
        for (k, _), g in zip(P.items(), torch.autograd.grad(loss, list(P.values()))):
            acc[k] += g
        running += loss.item()
    with torch.no_grad():
        for k, p in P.items():
            m1[k].lerp_(acc[k], 1 - B1)
            m2[k].lerp_(acc[k] ** 2, 1 - B2)
            p -= LR * min(1, u / 15) * (m1[k] / (1 - B1 ** u)) / ((m2[k] / (1 - B2 ** u)).sqrt() + 1e-8)
    acc = clear(acc)
    if u % 20 == 0 or u == 1:
        print(f"update {u:3d}  bce {running:.4f}", flush=True)

with torch.no_grad():
    out = predict(P, num[val], cat[val])
    print(f"held-out bce {bce(out, lab[val]).item():.4f}  accuracy {((out > 0) == lab[val].bool()).float().mean().item():.3f}")
