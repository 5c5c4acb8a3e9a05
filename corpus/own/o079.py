import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)

N_KEYS, N_VALS, PAIRS, D, H = 24, 24, 10, 64, 4
TAU = 12.0


def make_params():
    def w(*shape):
        return torch.nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)

    p = {"key_emb": w(N_KEYS, D), "val_emb": w(N_VALS + 1, D)}
    for layer in range(2):
        p[f"qkv{layer}"] = w(3 * D, D)
        p[f"out{layer}"] = w(D, D)
        p[f"up{layer}"] = w(2 * D, D)
        p[f"down{layer}"] = w(D, 2 * D)
    p["head"] = w(N_VALS, D)
    return p


def cosine_attention(x, wqkv, wout):
    b, t, _ = x.shape
    q, k, v = F.linear(x, wqkv).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    att = torch.softmax(q @ k.mT / TAU, dim=-1)
    return F.linear((att @ v).transpose(1, 2).reshape(b, t, D), wout)


def apply(p, keys, vals):
    x = F.embedding(keys, p["key_emb"]) * 4 + F.embedding(vals, p["val_emb"]) * 4
    for layer in range(2):
        x = x + cosine_attention(F.layer_norm(x, (D,)), p[f"qkv{layer}"], p[f"out{layer}"])
        h = F.linear(F.layer_norm(x, (D,)), p[f"up{layer}"])
        x = x + F.linear(F.gelu(h), p[f"down{layer}"])
    return F.linear(F.layer_norm(x[:, -1], (D,)), p["head"])


def episode(n):
    keys = torch.rand(n, N_KEYS).argsort(1)[:, :PAIRS]
    vals = torch.randint(N_VALS, (n, PAIRS))
    ask = torch.randint(PAIRS, (n, 1))
    target = vals.gather(1, ask).squeeze(1)
    keys = torch.cat([keys, keys.gather(1, ask)], 1)
    vals = torch.cat([vals, torch.full((n, 1), N_VALS)], 1)
    return keys, vals, target


params = make_params()
opt = torch.optim.Adam(params.values(), lr=2e-3)
seen = []
for it in range(250):
    keys, vals, target = episode(96)
    logits = apply(params, keys, vals)
    loss = F.cross_entropy(logits, target)
    grads = torch.autograd.grad(loss, list(params.values()))
    for p, g in zip(params.values(), grads):
        p.grad = g
    opt.step()
    seen.append((logits.argmax(-1) == target).float().mean().item())
    if it % 25 == 0 or it == 249:
        print(f"iter {it:03d}  loss {loss.item():.4f}  recall {sum(seen[-25:]) / len(seen[-25:]):.3f}")
