import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import AlbertConfig, AlbertForMaskedLM

set_seed(8)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
SYMBOLS, WIDTH = 20, 24
MASK = SYMBOLS
after = torch.randperm(SYMBOLS)
walk = [torch.randint(SYMBOLS, (6000,))]
for _ in range(WIDTH - 1):
    jump = torch.rand(6000) < 0.08
    walk.append(torch.where(jump, torch.randint(SYMBOLS, (6000,)), after[walk[-1]]))
rows = torch.stack(walk, 1)


def mask_rows(items):
    x = torch.stack(items)
    labels = x.clone()
    chosen = torch.rand(x.shape) < 0.2
    labels[~chosen] = -100
    u = torch.rand(x.shape)
    x = x.clone()
    x[chosen & (u < 0.8)] = MASK
    noise = chosen & (u > 0.9)
    x[noise] = torch.randint(SYMBOLS, (int(noise.sum()),))
    return {"input_ids": x, "labels": labels}


config = AlbertConfig(vocab_size=SYMBOLS + 1, embedding_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                      intermediate_size=128, max_position_embeddings=WIDTH, hidden_dropout_prob=0.0, initializer_range=0.1, attention_probs_dropout_prob=0.0)
model = AlbertForMaskedLM(config)
loader = DataLoader(rows, batch_size=16, shuffle=True, collate_fn=mask_rows, drop_last=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 20))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

updates, window = 0, []
while updates < 140:
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        window.append(loss.item())
        if accelerator.sync_gradients:
            updates += 1
            if updates == 1 or updates % 14 == 0:
                accelerator.print(f"update {updates} mlm loss {sum(window) / len(window):.4f}")
                window = []
            if updates == 140:
                break
