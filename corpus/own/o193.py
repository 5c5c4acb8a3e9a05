import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
torch.manual_seed(15)

V, P, R = 40, 6, 8


def logprob(model, prompt, reply):
    ids = torch.cat([prompt, reply], 1)
    lp = model(input_ids=ids).logits[:, P - 1:-1].log_softmax(-1)
    return lp.gather(-1, reply.unsqueeze(-1)).squeeze(-1).sum(-1)


def pairs(n):
    prompt = torch.randint(0, V, (n, P))
    good = torch.randint(0, V // 2, (n, R)) * 2
    bad = torch.randint(0, V // 2, (n, R)) * 2 + 1
    mixed = torch.rand(n, R) < 0.3
    return prompt, torch.where(mixed, bad, good), torch.where(mixed, good, bad)


policy = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=P + R, n_embd=64, n_layer=2, n_head=4,
                                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
reference = copy.deepcopy(policy).eval()
for p in reference.parameters():
    p.requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.0)
beta = 0.1
for step in range(140):
    prompt, win, lose = pairs(16)
    with torch.no_grad():
        rw, rl = logprob(reference, prompt, win), logprob(reference, prompt, lose)
    margin = (logprob(policy, prompt, win) - rw) - (logprob(policy, prompt, lose) - rl)
    loss = -F.logsigmoid(beta * margin).mean()
    opt.zero_grad()
    loss.backward()
    gn = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    if step % 14 == 0 or step == 139:
        print(f"dpo {step} loss {loss.item():.4f} acc {(margin > 0).float().mean().item():.2f} gnorm {gn.item():.3f}")
