import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)

V, P, R = 24, 6, 6
SEP, EOS = 22, 23


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class PolicyLM(nn.Module):
    def __init__(self, n_embd=64, n_layer=2, n_head=4, block_size=16):
        super().__init__()
        self.wte = nn.Embedding(V, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, V, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    @torch.no_grad()
    def generate(self, idx, n):
        for _ in range(n):
            nxt = self(idx)[:, -1].argmax(-1, keepdim=True)
            idx = torch.cat([idx, nxt], dim=1)
        return idx


def responses(prompt):
    plain = prompt
    bumped = (prompt + 1) % 22
    return plain, bumped


def pack(prompt, response):
    B = prompt.shape[0]
    ids = torch.cat([prompt, torch.full((B, 1), SEP), response, torch.full((B, 1), EOS)], dim=1)
    labels = ids.clone()
    labels[:, : P + 1] = -100
    return ids, labels


def get_batch_logps(logits, labels):
    labels = labels.clone()
    loss_mask = labels != -100
    labels[labels == -100] = 0
    per_token_logps = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    return (per_token_logps * loss_mask).sum(-1)


def concatenated_forward(model, batch):
    ids = torch.cat([batch["chosen_input_ids"], batch["rejected_input_ids"]])
    labels = torch.cat([batch["chosen_labels"], batch["rejected_labels"]])
    logps = get_batch_logps(model(ids), labels)
    return logps.chunk(2)


def dpo_loss(pi_chosen, pi_rejected, ref_chosen, ref_rejected, beta):
    logits = (pi_chosen - pi_rejected) - (ref_chosen - ref_rejected)
    losses = -F.logsigmoid(beta * logits)
    chosen_rewards = beta * (pi_chosen - ref_chosen).detach()
    rejected_rewards = beta * (pi_rejected - ref_rejected).detach()
    return losses.mean(), chosen_rewards, rejected_rewards


@torch.no_grad()
def follow_rate(model):
    gen = torch.Generator().manual_seed(5)
    prompt = torch.randint(0, 22, (256, P), generator=gen)
    out = model.generate(torch.cat([prompt, torch.full((256, 1), SEP)], 1), R)[:, P + 1:]
    plain, bumped = responses(prompt)
    return (out == bumped).float().mean().item(), (out == plain).float().mean().item()


policy = PolicyLM()
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
sft_steps = 240
sched = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=sft_steps, pct_start=0.1)
for step in range(sft_steps):
    prompt = torch.randint(0, 22, (40, P))
    plain, bumped = responses(prompt)
    pick = torch.rand(40, 1) < 0.3
    ids, labels = pack(prompt, torch.where(pick, bumped, plain))
    logits = policy(ids)
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1), ignore_index=-100)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    sched.step()
    if step % 30 == 0:
        print(f"sft {step} loss {loss.item():.4f}")
print("after sft bumped/plain %.3f %.3f" % follow_rate(policy))

reference = copy.deepcopy(policy).eval()
for p in reference.parameters():
    p.requires_grad_(False)

optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-4, weight_decay=0.0)
for step in range(120):
    prompt = torch.randint(0, 22, (24, P))
    plain, bumped = responses(prompt)
    batch = {}
    batch["chosen_input_ids"], batch["chosen_labels"] = pack(prompt, bumped)
    batch["rejected_input_ids"], batch["rejected_labels"] = pack(prompt, plain)
    pi_c, pi_r = concatenated_forward(policy, batch)
    with torch.no_grad():
        ref_c, ref_r = concatenated_forward(reference, batch)
    loss, rc, rr = dpo_loss(pi_c, pi_r, ref_c, ref_r, beta=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if step % 15 == 0 or step == 119:
        print(f"dpo {step} loss {loss.item():.4f} margin {(rc - rr).mean().item():.3f} acc {(rc > rr).float().mean().item():.3f}")
print("after dpo bumped/plain %.3f %.3f" % follow_rate(policy))
