import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)

STATE, ACT, K, HORIZON = 4, 2, 8, 24


class PointMass:
    def __init__(self, n, g=None):
        self.pos = torch.rand(n, 2, generator=g) * 4 - 2
        self.vel = torch.zeros(n, 2)

    def state(self):
        return torch.cat([self.pos, self.vel], dim=1)

    def step(self, a):
        a = a.clamp(-1.5, 1.5)
        self.vel = 0.8 * self.vel + 0.2 * a
        self.pos = self.pos + 0.5 * self.vel
        return self.state(), -self.pos.norm(dim=1)


def collect(n):
    env = PointMass(n)
    skill = torch.rand(n, 1)
    S, A, Rw = [], [], []
    s = env.state()
    for _ in range(HORIZON):
        expert = -1.2 * s[:, :2] - 0.8 * s[:, 2:]
        a = skill * expert + 0.4 * torch.randn(n, 2)
        S.append(s)
        A.append(a)
        s, r = env.step(a)
        Rw.append(r)
    S, A, Rw = torch.stack(S, 1), torch.stack(A, 1), torch.stack(Rw, 1)
    rtg = Rw.flip(1).cumsum(1).flip(1)
    return S, A, rtg


class CausalBlock(nn.Module):
    def __init__(self, h, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln1, self.ln2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv = nn.Linear(h, 3 * h)
        self.proj = nn.Linear(h, h)
        self.mlp = nn.Sequential(nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h))

    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    def __init__(self, hidden_size=64, n_layer=2, n_head=2):
        super().__init__()
        self.hidden_size = hidden_size
        self.embed_timestep = nn.Embedding(HORIZON, hidden_size)
        self.embed_return = nn.Linear(1, hidden_size)
        self.embed_state = nn.Linear(STATE, hidden_size)
        self.embed_action = nn.Linear(ACT, hidden_size)
        self.embed_ln = nn.LayerNorm(hidden_size)
        self.blocks = nn.ModuleList([CausalBlock(hidden_size, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(hidden_size)
        self.predict_action = nn.Linear(hidden_size, ACT)

    def forward(self, states, actions, returns_to_go, timesteps):
        B, T = states.shape[:2]
        time = self.embed_timestep(timesteps)
        r = self.embed_return(returns_to_go.unsqueeze(-1)) + time
        s = self.embed_state(states) + time
        a = self.embed_action(actions) + time
        x = torch.stack((r, s, a), dim=1).permute(0, 2, 1, 3).reshape(B, 3 * T, self.hidden_size)
        x = self.embed_ln(x)
        mask = torch.ones(3 * T, 3 * T).tril().bool()
        for blk in self.blocks:
            x = blk(x, mask)
        x = self.ln_f(x).reshape(B, T, 3, self.hidden_size).permute(0, 2, 1, 3)
        return self.predict_action(x[:, 1])


states, actions, rtg = collect(800)
RTG_SCALE = 30.0


def get_batch(n):
    i = torch.randint(0, len(states), (n,))
    t0 = torch.randint(0, HORIZON - K + 1, (n,))
    t = t0[:, None] + torch.arange(K)
    return states[i[:, None], t], actions[i[:, None], t], rtg[i[:, None], t] / RTG_SCALE, t


@torch.no_grad()
def rollout(model, target_return, n=64):
    model.eval()
    env = PointMass(n, torch.Generator().manual_seed(99))
    S = env.state().unsqueeze(1)
    A = torch.zeros(n, 0, ACT)
    R = torch.full((n, 1), target_return)
    total = torch.zeros(n)
    for t in range(HORIZON):
        A = torch.cat([A, torch.zeros(n, 1, ACT)], dim=1)
        lo = max(0, t + 1 - K)
        ts = torch.arange(lo, t + 1).expand(n, -1)
        act = model(S[:, lo:], A[:, lo:], R[:, lo:] / RTG_SCALE, ts)[:, -1]
        A[:, -1] = act
        s, r = env.step(act)
        total += r
        S = torch.cat([S, s.unsqueeze(1)], dim=1)
        R = torch.cat([R, R[:, -1:] - r.unsqueeze(1)], dim=1)
    model.train()
    return total.mean().item()


model = DecisionTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 30, 1))
print(f"dataset return mean {rtg[:, 0].mean().item():.2f} best {rtg[:, 0].quantile(0.95).item():.2f}")
for it in range(320):
    s, a, r, t = get_batch(32)
    action_target = a.clone()
    action_preds = model(s, a, r, t)
    loss = F.mse_loss(action_preds.reshape(-1, ACT), action_target.reshape(-1, ACT))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    scheduler.step()
    if it % 40 == 0 or it == 319:
        print(f"iter {it} action mse {loss.item():.4f}")
print(f"rollout return {rollout(model, -8.0):.2f}")
