import torch
from transformers import AlbertConfig, AlbertForMaskedLM
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(50)
PAD, MASK, OFFSET, LENGTH = 0, 1, 2, 24

SYMBOLS = 30
palettes = torch.stack([torch.randperm(SYMBOLS)[:4] for _ in range(10)])


def draw(n):
    which = torch.randint(len(palettes), (n, 1))
    rows = palettes[which, torch.arange(LENGTH) % 4]
    return torch.where(torch.rand(rows.shape) < 0.05, torch.randint(SYMBOLS, rows.shape), rows) + OFFSET


config = AlbertConfig(
    vocab_size=SYMBOLS + OFFSET, embedding_size=32, hidden_size=64, num_hidden_layers=3, num_hidden_groups=1,
    num_attention_heads=4, intermediate_size=128, max_position_embeddings=LENGTH, initializer_range=0.08, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0, pad_token_id=PAD, bos_token_id=None, eos_token_id=None)
model = AlbertForMaskedLM(config)
model.train()


def corrupt(rows):
    chosen = torch.rand(rows.shape) < 0.15
    labels = rows.masked_fill(~chosen, -100)
    inputs = torch.where(chosen & (torch.rand(rows.shape) < 0.9), torch.full_like(rows, MASK), rows)
    return inputs, labels


optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 20, (160 - s) / 140))
average = None
for step in range(160):
    inputs, labels = corrupt(draw(24))
    loss = model(input_ids=inputs, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    average = loss.item() if average is None else 0.9 * average + 0.1 * loss.item()
    if step % 20 == 0 or step == 159:
        print(f"step {step} loss {average:.4f} masked {(labels != -100).float().mean().item():.2f}")
