import inspect
import tarfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(4)
source = inspect.getsource(tarfile)
letters = sorted(set(source))
number = {c: i for i, c in enumerate(letters)}
tokens = torch.tensor([number[c] for c in source])
seq, batch = 48, 12

config = LlamaConfig(vocab_size=len(letters), hidden_size=64, intermediate_size=160, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=seq,
                     bos_token_id=None, eos_token_id=None, tie_word_embeddings=False)
model = LlamaForCausalLM(config)
print(sum(p.numel() for p in model.parameters()), "parameters")
optimizer = torch.optim.AdamW(model.parameters(), 3e-3, (0.9, 0.95), 0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=100, pct_start=0.1, cycle_momentum=False)

model.train()
for step in range(100):
    at = torch.randint(len(tokens) - seq, (batch,)).tolist()
    ids = torch.stack([tokens[a:a + seq] for a in at])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step % 10 == 0 or step == 99:
        print(f"{step:3d} loss {loss.item():.4f}")
