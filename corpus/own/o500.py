import torch
from torch import nn
import torch.nn.functional as F

T, A = 12, 3


def rollout(n, skill, policy=None, target=None):
    pos = torch.randint(-6, 7, (n,)).float()
    goal = torch.randint(-6, 7, (n,)).float()
    S, Ac, R = [], [], []
    for t in range(T):
        S.append(torch.stack([pos / 6, goal / 6], 1))
        if policy is None:
            best = torch.sign(goal - pos).long() + 1
            rnd = torch.randint(0, A, (n,))
            a = torch.where(torch.rand(n) < skill, best, rnd)
        else:
            a = policy(S, Ac, R, target)
        pos = (pos + a.float() - 1).clamp(-6, 6)
        Ac.append(a)
        R.append(-(goal - pos).abs() / 6)
    return torch.stack(S, 1), torch.stack(Ac, 1), torch.stack(R, 1)


class DT(nn.Module):
    def __init__(self, d=48, heads=3, layers=2):
        super().__init__()
        self.rtg, self.st, self.ac = nn.Linear(1, d), nn.Linear(2, d), nn.Embedding(A, d)
        self.time = nn.Embedding(T, d)
        block = nn.TransformerEncoderLayer(d, heads, 3 * d, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.tr = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, A)

    def forward(self, rtg, s, a):
        b, t = rtg.shape
        te = self.time(torch.arange(t))
        tok = torch.stack([self.rtg(rtg[..., None]) + te, self.st(s) + te, self.ac(a) + te], 2).flatten(1, 2)
        mask = nn.Transformer.generate_square_subsequent_mask(3 * t)
        h = self.tr(tok, mask=mask, is_causal=True)
        return self.head(self.ln(h))[:, 1::3]


def act(model):
    @torch.no_grad()
    def policy(S, Ac, R, target):
        s = torch.stack(S, 1)
        n, t = s.shape[:2]
        a = torch.stack(Ac + [torch.zeros(n, dtype=torch.long)], 1)
        spent = torch.stack([torch.zeros(n)] + R, 1).cumsum(1)
        return model(target[:, None] - spent, s, a)[:, -1].argmax(-1)
    return policy


def main():
    torch.manual_seed(23)
    parts = [rollout(600, sk) for sk in (0.0, 0.3, 0.6, 0.9)]
    s, a, r = (torch.cat(q) for q in zip(*parts))
    rtg = r.flip(1).cumsum(1).flip(1)
    print("behaviour return %.3f, best policy %.3f" % (r.sum(1).mean(), rollout(2000, 1.0)[2].sum(1).mean()))
    model = DT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    for step in range(221):
        i = torch.randint(0, len(s), (48,))
        loss = F.cross_entropy(model(rtg[i], s[i], a[i]).flatten(0, 1), a[i].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        opt.step()
        if step % 20 == 0:
            msg = f"step {step:3d} action ce {loss.item():.4f}"
            if step % 60 == 0 or step == 220:
                model.eval()
                tgt = torch.full((200,), -3.0)
                msg += f" return when conditioned on -3: {rollout(200, 0, act(model), tgt)[2].sum(1).mean().item():.3f}"
                model.train()
            print(msg)


if __name__ == "__main__":
    main()
