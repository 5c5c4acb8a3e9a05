import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

set_seed(33)
V, D, PROMPT = 20, 64, 8
TASK_TOKENS = 4


def rows(n, task):
    x = torch.randint(0, 16, (n, 6))
    return torch.cat([task[:, None], x, (x + torch.tensor([0, 1, 3, 5])[task - 16][:, None]) % 16], 1)


lm = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=32, n_embd=D, n_layer=2, n_head=4, resid_pdrop=0.0,
                                embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
opt = torch.optim.AdamW(lm.parameters(), lr=3e-3, weight_decay=0.01)
STEPS = 420
for step in range(STEPS):
    for g in opt.param_groups:
        g["lr"] = 3e-3 * min(1, (step + 1) / 40) * (1 - 0.9 * step / STEPS)
    ids = rows(32, torch.randint(16, 20, (32,)))
    k = int(torch.randint(0, PROMPT, (1,)))
    ids = torch.cat([ids[:, :1].repeat(1, k), ids], 1)
    lg = lm(ids).logits[:, k + 6:-1]
    loss = F.cross_entropy(lg.flatten(0, 1), ids[:, k + 7:].flatten())
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
    opt.step()
    if step % 70 == 0:
        print(f"pretrain {step} loss {loss.item():.4f}")

lm.requires_grad_(False)
lm.eval()
soft = nn.Parameter(torch.randn(PROMPT, D) * 0.02)
opt = torch.optim.Adam([soft], lr=0.03)


def answer_logits(ids):
    e = lm.transformer.wte(ids[:, 1:])
    e = torch.cat([soft.expand(len(ids), -1, -1), e], 1)
    return lm(inputs_embeds=e).logits[:, PROMPT + 5:-1]


test = rows(200, torch.full((200,), 18))
for step in range(201):
    ids = rows(24, torch.full((24,), 18))
    loss = F.cross_entropy(answer_logits(ids).flatten(0, 1), ids[:, 7:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        with torch.no_grad():
            acc = (answer_logits(test).argmax(-1) == test[:, 7:]).float().mean()
        print(f"prompt {step} loss {loss.item():.4f} accuracy {acc.item():.3f}")
