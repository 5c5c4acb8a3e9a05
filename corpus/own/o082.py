from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
torch.manual_seed(1234)

text = " ".join(" ".join(topics[k].lower().split()) for k in sorted(topics))[:350000]
table = {c: i for i, c in enumerate(sorted(set(text)))}
stream = torch.tensor([table[c] for c in text])

cfg = GPT2Config(vocab_size=len(table), n_positions=32, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.08, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(cfg)
model.config.use_cache = False

matrices, rest = [], []
for name, p in model.named_parameters():
    (matrices if p.ndim == 2 and "transformer.h." in name else rest).append(p)

hidden_opt = torch.optim.AdamW(matrices, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
other_opt = torch.optim.Adam(rest, lr=3e-3, betas=(0.9, 0.95))


def get_batch(b=16, t=32):
    i = torch.randint(len(stream) - t - 1, (b, 1)) + torch.arange(t + 1)
    w = stream[i]
    return w[:, :-1], w[:, 1:]


ema = None
for step in range(200):
    x, y = get_batch()
    logits = model(input_ids=x).logits
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    other_opt.zero_grad(set_to_none=True)
    loss.backward()
    hidden_opt.step()
    other_opt.step()
    ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
    if step % 20 == 0 or step == 199:
        print(f"{step:03d} loss {loss.item():.4f} ema {ema:.4f}")
