import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
VOCAB, PROMPT, ANSWER = 48, 8, 10
BETA = 0.1


class Policy(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(PROMPT + ANSWER, d)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.1, batch_first=True, norm_first=True) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.lm = nn.Linear(d, VOCAB, bias=False)
        nn.init.normal_(self.lm.weight, std=0.02)

    def forward(self, ids):
        t = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.tok(ids) + self.pos.weight[:t]
        for b in self.blocks:
            h = b(h, src_mask=mask, is_causal=True)
        return self.lm(self.norm(h))


def answer_logp(model, ids):
    logp = model(ids[:, :-1]).log_softmax(-1)
    picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return picked[:, PROMPT - 1:].sum(-1)


def pairs(n):
    prompt = torch.randint(0, VOCAB, (n, PROMPT))
    key = prompt[:, :1] % 4
    good = torch.randint(0, VOCAB // 4, (n, ANSWER)) * 4 + key
    bad = torch.randint(0, VOCAB // 4, (n, ANSWER)) * 4 + (key + 1 + torch.randint(0, 3, (n, 1))) % 4
    mixed = torch.rand(n, ANSWER) < 0.3
    good = torch.where(mixed, torch.randint(0, VOCAB, (n, ANSWER)), good)
    return torch.cat((prompt, good), 1), torch.cat((prompt, bad), 1)


policy = Policy()
reference = copy.deepcopy(policy).requires_grad_(False)
policy.eval()
reference.eval()
opt = torch.optim.RMSprop(policy.parameters(), lr=4e-4)

for step in range(110):
    chosen, rejected = pairs(24)
    both = torch.cat((chosen, rejected))
    pi_w, pi_l = answer_logp(policy, both).chunk(2)
    with torch.no_grad():
        ref_w, ref_l = answer_logp(reference, both).chunk(2)
    margin = BETA * ((pi_w - ref_w) - (pi_l - ref_l))
    loss = -F.logsigmoid(margin).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0 or step == 109:
        print(f"{step:4d} loss {loss.item():.4f} acc {(margin > 0).float().mean():.2f} "
              f"chosen {BETA * (pi_w - ref_w).mean().item():+.3f} rejected {BETA * (pi_l - ref_l).mean().item():+.3f}")
