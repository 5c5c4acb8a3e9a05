import torch
torch.set_num_threads(1)
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel
from pydoc_data.topics import topics

set_seed(1)
SEQ, MICRO, ACCUM = 32, 2, 16

raw = "".join(topics[k] for k in sorted(topics)).encode("ascii", "ignore")
ids = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
ids = ids[: len(ids) // SEQ * SEQ].view(-1, SEQ)
ids = ids[torch.randperm(len(ids))][: MICRO * ACCUM * 60]

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUM)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=SEQ, n_embd=64, n_layer=1, n_head=2,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                   bos_token_id=0, eos_token_id=0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)
loader = DataLoader(TensorDataset(ids), batch_size=MICRO, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

running, updates = 0.0, 0
for (batch,) in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        running += loss.item() / ACCUM
        accelerator.backward(loss / ACCUM)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        if updates % 10 == 0 or updates == 59:
            accelerator.print(f"update {updates:3d} | loss {running:.4f}")
        running = 0.0
        updates += 1
