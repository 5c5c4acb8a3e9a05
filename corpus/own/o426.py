import torch
import torch.nn as nn
import torch.nn.functional as F

V, T, D, K = 32, 10, 64, 3


class MoS(nn.Module):
    """p(y|h) = sum_k pi_k softmax(W tanh(U_k h)); returns probabilities"""

    def __init__(self):
        super().__init__()
        self.prior = nn.Linear(D, K)
        self.lift = nn.Linear(D, K * D)
        self.vocab = nn.Linear(D, V)

    def forward(self, h):
        pi = torch.softmax(self.prior(h), -1)
        z = torch.tanh(self.lift(h)).unflatten(-1, (K, D))
        comp = torch.softmax(self.vocab(z), -1)
        return torch.einsum("btk,btkv->btv", pi, comp)


class Mapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.5)
        self.enc = nn.ModuleList(nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, batch_first=True, norm_first=True)
                                 for _ in range(2))
        self.norm = nn.LayerNorm(D)
        self.mos = MoS()

    def forward(self, x):
        h = self.emb(x) + self.pos
        for e in self.enc:
            h = e(h)
        return self.mos(self.norm(h))


def pairs(n, gen):
    """target is the larger of the token and its right neighbour; two synonyms are equally good"""
    x = torch.randint(0, V, (n, T), generator=gen)
    y = torch.maximum(x, x.roll(-1, 1))
    synonym = torch.rand(n, T, generator=gen) < 0.3
    return x, torch.where(synonym, (y + 1) % V, y)


def main(steps=330):
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(12)
    net = Mapper()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, eps=1e-6)
    for step in range(steps):
        x, y = pairs(48, gen)
        prob = net(x)
        loss = F.nll_loss(torch.log(prob + 1e-9).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step} nll {loss.item():.4f}", flush=True)
    with torch.no_grad():
        x, y = pairs(400, gen)
        p = net(x).gather(-1, y.unsqueeze(-1))
    print(f"held-out nll {-p.log().mean().item():.4f} (floor 0.611)")


if __name__ == "__main__":
    main()
