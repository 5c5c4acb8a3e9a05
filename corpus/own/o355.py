import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

random.seed(14)
torch.manual_seed(14)
PROMPT, REPLY, VOCAB = 6, 8, 32


def make_preferences(n):
    rows = []
    for _ in range(n):
        prompt = [random.randrange(VOCAB) for _ in range(PROMPT)]
        good = [prompt[i % PROMPT] if random.random() < 0.8 else random.randrange(VOCAB) for i in range(REPLY)]
        bad = [random.randrange(VOCAB) for _ in range(REPLY)]
        rows.append((torch.tensor(prompt + good), torch.tensor(prompt + bad)))
    return rows


class Policy(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(PROMPT + REPLY, d) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.full((t, t), float("-inf")).triu(1)
        h = self.tok(ids) + self.pos[:t]
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))


def reply_logprob(model, ids):
    logp = model(ids[:, :-1]).log_softmax(-1)
    picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return picked[:, PROMPT - 1:].sum(-1)


class DPOTrainer:
    def __init__(self, policy, data, beta=0.2, lr=2e-3, batch_size=16, grad_accum=8, epochs=60):
        self.policy = policy
        self.reference = copy.deepcopy(policy).eval().requires_grad_(False)
        self.loader = DataLoader(data, batch_size=batch_size, shuffle=True)
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
        self.beta, self.grad_accum, self.epochs = beta, grad_accum, epochs

    def loss(self, chosen, rejected):
        with torch.no_grad():
            ref = reply_logprob(self.reference, chosen) - reply_logprob(self.reference, rejected)
        pol = reply_logprob(self.policy, chosen) - reply_logprob(self.policy, rejected)
        margin = self.beta * (pol - ref)
        return -F.logsigmoid(margin).mean(), margin

    def train(self):
        self.policy.train()
        for epoch in range(self.epochs):
            self.optimizer.zero_grad()
            total = margins = 0.0
            for i, (chosen, rejected) in enumerate(self.loader):
                loss, margin = self.loss(chosen, rejected)
                (loss / self.grad_accum).backward()
                total += loss.item()
                margins += margin.mean().item()
                if (i + 1) % self.grad_accum == 0:
                    nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            if epoch % 5 == 0 or epoch == self.epochs - 1:
                n = len(self.loader)
                print(f"epoch {epoch} dpo_loss {total / n:.4f} margin {margins / n:.4f}")


DPOTrainer(Policy(), make_preferences(80)).train()
