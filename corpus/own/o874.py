import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2Model

torch.manual_seed(2)
DIM, HORIZON, N_ACT, D = 4, 10, 4, 48


class Keypad:
    def __init__(self, n, g):
        self.n, self.g = n, g
        self.w = torch.randn(DIM, N_ACT, generator=torch.Generator().manual_seed(40))

    def reset(self):
        self.s = torch.randn(self.n, DIM, generator=self.g)
        return self.s

    def best(self, s):
        return (s @ self.w).argmax(-1)

    def step(self, a):
        r = (a == self.best(self.s)).float()
        self.s = 0.5 * self.s + 0.87 * torch.randn(self.n, DIM, generator=self.g)
        return self.s, r


def collect(n, g):
    env = Keypad(n, g)
    skill = torch.rand(n, generator=g)
    S, A, R = [], [], []
    s = env.reset()
    for _ in range(HORIZON):
        expert = torch.rand(n, generator=g) < skill
        a = torch.where(expert, env.best(s), torch.randint(0, N_ACT, (n,), generator=g))
        S.append(s)
        A.append(a)
        s, r = env.step(a)
        R.append(r)
    S, A, R = torch.stack(S, 1), torch.stack(A, 1), torch.stack(R, 1)
    rtg = R.flip(1).cumsum(1).flip(1)
    return S, A, rtg


class DecisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = GPT2Config(vocab_size=1, bos_token_id=0, eos_token_id=0, n_embd=D, n_layer=2, n_head=4, n_positions=3 * HORIZON, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.transformer = GPT2Model(cfg)
        self.embed_timestep = nn.Embedding(HORIZON, D)
        self.embed_return = nn.Linear(1, D)
        self.embed_state = nn.Linear(DIM, D)
        self.embed_action = nn.Embedding(N_ACT, D)
        self.embed_ln = nn.LayerNorm(D)
        self.predict_action = nn.Linear(D, N_ACT)

    def forward(self, states, actions, rtg):
        b, t = actions.shape
        time = self.embed_timestep(torch.arange(t))
        s = self.embed_state(states) + time
        a = self.embed_action(actions) + time
        r = self.embed_return(rtg[..., None] / HORIZON) + time
        tokens = torch.stack((r, s, a), dim=2).reshape(b, 3 * t, D)
        h = self.transformer(inputs_embeds=self.embed_ln(tokens)).last_hidden_state
        h = h.reshape(b, t, 3, D)
        return self.predict_action(h[:, :, 1])


@torch.no_grad()
def rollout(model, n=200, target=float(HORIZON)):
    env = Keypad(n, torch.Generator().manual_seed(77))
    s = env.reset()
    S = s[:, None]
    A = torch.zeros(n, 1, dtype=torch.long)
    G = torch.full((n, 1), target)
    total = torch.zeros(n)
    for t in range(HORIZON):
        act = model(S, A, G)[:, -1].argmax(-1)
        A[:, -1] = act
        s, r = env.step(act)
        total += r
        S = torch.cat([S, s[:, None]], 1)
        A = torch.cat([A, torch.zeros(n, 1, dtype=torch.long)], 1)
        G = torch.cat([G, (G[:, -1] - r)[:, None]], 1)
    return total.mean().item()


g = torch.Generator().manual_seed(6)
S, A, G = collect(3000, g)
model = DecisionTransformer()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min((k + 1) / 20, 1))
model.train()
for it in range(300):
    pick = torch.randint(0, len(S), (64,), generator=g)
    logits = model(S[pick], A[pick], G[pick])
    loss = F.cross_entropy(logits.reshape(-1, N_ACT), A[pick].reshape(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
    sched.step()
    if it % 30 == 0:
        print(f"iter {it} action loss {loss.item():.4f}")
model.eval()
print(f"rollout return {rollout(model):.2f} of {HORIZON}, data mean {G[:, 0].mean():.2f}")
