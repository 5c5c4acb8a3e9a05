import copy
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(64)
torch.manual_seed(64)
VOCAB, PROMPT, REPLY = 48, 6, 8
BETA, ACCUM, EPOCHS = 0.2, 8, 60


def preference():
    prompt = [random.randrange(VOCAB) for _ in range(PROMPT)]
    good = [prompt[random.randrange(PROMPT)] if random.random() < 0.7 else random.randrange(VOCAB) for _ in range(REPLY)]
    bad = [random.randrange(VOCAB) for _ in range(REPLY)]
    return prompt + good, prompt + bad


def collate(items):
    return torch.tensor([i[0] for i in items]), torch.tensor([i[1] for i in items])


def reply_logprob(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    logp = F.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return logp[:, PROMPT - 1:].sum(-1)


policy = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
                                    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None))
reference = copy.deepcopy(policy).eval().requires_grad_(False)
data = [preference() for _ in range(64)]
loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=0.0)

for epoch in range(EPOCHS):
    optimizer.zero_grad()
    total = margin = 0.0
    for i, (chosen, rejected) in enumerate(loader):
        ids = torch.cat([chosen, rejected])
        with torch.no_grad():
            ref = reply_logprob(reference, ids)
        gain = (reply_logprob(policy, ids) - ref).chunk(2)
        reward = BETA * (gain[0] - gain[1])
        loss = -F.logsigmoid(reward).mean()
        (loss / ACCUM).backward()
        total += loss.item()
        margin += reward.mean().item()
        if (i + 1) % ACCUM == 0:
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if epoch % 4 == 0 or epoch == EPOCHS - 1:
        print(f"epoch {epoch} loss {total / len(loader):.4f} margin {margin / len(loader):.4f}")
