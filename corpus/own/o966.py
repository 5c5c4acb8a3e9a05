import time

import numpy as np
import torch
import torch.nn.functional as F

rng = np.random.default_rng(5)
g = torch.Generator().manual_seed(5)
D, H, L, T, K = 64, 4, 2, 48, 3
B, STEPS, LR = 16, 300, 3e-3

names = ["anna", "bert", "carla", "dirk", "eva", "frank", "gina", "hugo", "ines", "jan"]
things = {"apple": "fruit", "carrot": "vegetable", "hammer": "tool", "violin": "instrument", "saw": "tool",
          "pear": "fruit", "drum": "instrument", "leek": "vegetable", "lamp": "furniture", "chair": "furniture"}
verbs = ["buys", "sells", "finds", "paints", "drops"]
places = ["market", "station", "harbour", "school", "garden"]


def sentence():
    n, v, p = rng.choice(names), rng.choice(verbs), rng.choice(places)
    t = rng.choice(list(things))
    kind = rng.integers(3)
    if kind == 0:
        return f"in the morning {n} {v} the {t} at the {p} because every {things[t]} is cheap there ."
    if kind == 1:
        return f"later {n} takes the {t} from the {p} and says that a good {things[t]} like the {t} is rare ."
    return f"nobody at the {p} knows why {n} {v} a {things[t]} called {t} , not even {n} ."


words = " ".join(sentence() for _ in range(6000)).split()
itos = sorted(set(words))
stoi = {w: i for i, w in enumerate(itos)}
data = torch.tensor([stoi[w] for w in words])
V = len(itos)
train, held = data[:-8000], data[-8000:]
print(f"{len(train)} train tokens, {len(held)} held-out tokens, vocab {V}")


def w(*shape, std):
    return (torch.randn(*shape, generator=g) * std).requires_grad_()


P = {"wte": w(V, D, std=0.05), "wpe": w(T, D, std=0.02), "unembed": w(D, V, std=0.02)}
for l in range(L):
    P[f"{l}.q"], P[f"{l}.k"], P[f"{l}.v"] = (w(H, D, D // H, std=D**-0.5) for _ in range(3))
    P[f"{l}.o"] = w(H, D // H, D, std=(2 * L * D) ** -0.5)
    P[f"{l}.up"], P[f"{l}.down"] = w(D, 4 * D, std=D**-0.5), w(4 * D, D, std=(8 * L * D) ** -0.5)
for k in range(K):
    P[f"draft{k}.w"], P[f"draft{k}.out"] = w(D, D, std=D**-0.5), w(D, V, std=0.02)
mask = torch.full((T, T), float("-inf")).triu(1)


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def trunk(ids):
    n = ids.shape[1]
    x = P["wte"][ids] + P["wpe"][:n]
    for l in range(L):
        h = rms(x)
        q, k, v = (torch.einsum("btd,hde->bhte", h, P[f"{l}.{c}"]) for c in "qkv")
        att = torch.einsum("bhqe,bhke->bhqk", q, k) * (D // H) ** -0.5 + mask[:n, :n]
        x = x + torch.einsum("bhqk,bhke,hed->bqd", att.softmax(-1), v, P[f"{l}.o"])
        x = x + F.silu(rms(x) @ P[f"{l}.up"]) @ P[f"{l}.down"]
    return rms(x)


def heads(h):
    base = h @ P["unembed"]
    drafts = [rms(h + F.silu(h @ P[f"draft{k}.w"])) @ P[f"draft{k}.out"] for k in range(K)]
    return base, drafts


def ce(logits, target):
    return F.cross_entropy(logits.reshape(-1, V), target.reshape(-1))


def loss_fn(ids):
    base, drafts = heads(trunk(ids))
    base_loss = ce(base[:, :-1], ids[:, 1:])
    draft_losses = []
    for k, d in enumerate(drafts):
        shift = 1 + k
        draft_losses.append(ce(d[:, :-shift], ids[:, shift:]))
    return base_loss, draft_losses


def batch(src):
    i = torch.randint(len(src) - T, (B,), generator=g)
    return torch.stack([src[j : j + T] for j in i])


@torch.no_grad()
def speculate(prompt, new=60):
    """greedy decoding; the drafts are kept as long as the base model agrees with them"""
    ids, calls = prompt.tolist(), 0
    target = len(ids) + new
    while len(ids) < target:
        window = torch.tensor([ids[-(T - K - 1):]])
        base, drafts = heads(trunk(window))
        first = base[0, -1].argmax().item()
        guess = [d[0, -1].argmax().item() for d in drafts]
        check = torch.cat([window, torch.tensor([[first] + guess])], 1)
        verdict = heads(trunk(check))[0][0, -(K + 1):].argmax(-1).tolist()
        ids.append(first)
        for gk, vk in zip(guess, verdict):
            if gk != vk:
                break
            ids.append(gk)
        calls += 1
    return (len(ids) - len(prompt)) / calls


opt = torch.optim.AdamW(P.values(), lr=LR, betas=(0.9, 0.95), weight_decay=0.01)
t0 = time.time()
for step in range(STEPS):
    for gr in opt.param_groups:
        gr["lr"] = LR * min(1, (step + 1) / 20) * (1 - 0.9 * step / STEPS)
    base_loss, draft_losses = loss_fn(batch(train))
    loss = base_loss + 0.5 * sum(draft_losses) / K
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(P.values(), 1.0)
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f} base {base_loss.item():.4f} draft "
              + " ".join(f"{d.item():.3f}" for d in draft_losses))

with torch.no_grad():
    b, d = loss_fn(batch(held))
rate = np.mean([speculate(held[s : s + 24]) for s in (0, 1500, 3000, 4500)])
print(f"held-out base loss {b.item():.4f}, tokens per verification call {rate:.2f} of at most {K + 1}, {time.time()-t0:.0f}s")
