import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
V, LEN, GROUP, PROMPTS = 12, 6, 16, 12


class Policy(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(V + 1, d)
        self.cond = nn.Embedding(V, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, V)

    def logp(self, cond, seq):
        inp = F.pad(seq, (1, 0), value=V)[:, :-1]
        h, _ = self.rnn(self.emb(inp) + self.cond(cond)[:, None])
        return self.out(h).log_softmax(-1).gather(2, seq[..., None])[..., 0]

    @torch.no_grad()
    def sample(self, cond):
        tok = torch.full((len(cond), 1), V)
        h, out = None, []
        for _ in range(LEN):
            y, h = self.rnn(self.emb(tok) + self.cond(cond)[:, None], h)
            tok = torch.multinomial(self.out(y[:, 0]).softmax(-1), 1)
            out.append(tok)
        return torch.cat(out, 1)


def reward(cond, seq):
    want = (cond[:, None] + torch.arange(LEN)) % V
    return (seq == want).float().mean(1)


policy = Policy()
opt = torch.optim.Adam(policy.parameters(), lr=4e-3)
for it in range(400):
    cond = torch.randint(0, V, (PROMPTS,)).repeat_interleave(GROUP)
    seq = policy.sample(cond)
    r = reward(cond, seq)
    g = r.view(PROMPTS, GROUP)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).flatten()
    lp = policy.logp(cond, seq)
    ratio = torch.exp(lp - lp.detach())
    loss = -(ratio * adv[:, None]).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    if it % 40 == 0:
        print(f"iter {it} loss {loss.item():+.6f} reward {r.mean().item():.4f}")
cond = torch.arange(V).repeat(40)
print(f"final mean reward over all prompts {reward(cond, policy.sample(cond)).mean().item():.4f}")
