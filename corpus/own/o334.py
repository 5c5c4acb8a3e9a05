import inspect
import textwrap
import numpy as np
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

torch.manual_seed(28)
np.random.seed(28)
raw = inspect.getsource(textwrap).encode() + inspect.getsource(inspect).encode()
data = np.frombuffer(raw, dtype=np.uint8)
BLOCK, BATCH, STEPS = 56, 12, 180


class ByteBlocks(torch.utils.data.IterableDataset):
    def __init__(self, data, block):
        self.data, self.block = data, block

    def __iter__(self):
        while True:
            i = np.random.randint(len(self.data) - self.block - 1)
            x = torch.from_numpy(self.data[i:i + self.block].astype(np.int64))
            y = torch.from_numpy(self.data[i + 1:i + 1 + self.block].astype(np.int64))
            yield {"input_ids": x, "labels": y}


config = GPTNeoXConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                       intermediate_size=192, max_position_embeddings=BLOCK, use_cache=False,
                       hidden_dropout=0.0, attention_dropout=0.0)
model = GPTNeoXForCausalLM(config)
model.train()
loader = torch.utils.data.DataLoader(ByteBlocks(data, BLOCK), batch_size=BATCH)
decay, plain = [], []
for name, p in model.named_parameters():
    (decay if p.dim() > 1 else plain).append(p)
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                              lr=3e-3, betas=(0.9, 0.95))
batches = iter(loader)
ema = None
for step in range(STEPS):
    lr = 3e-3 * min(1.0, (step + 1) / 15)
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = model(**next(batches)).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
    if step % 15 == 0 or step == STEPS - 1:
        print(f"step {step}: train loss {ema:.4f}")
