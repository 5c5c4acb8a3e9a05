import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
torch.manual_seed(41)

N = 20
facts = torch.randint(0, N, (N, N))
pairs = torch.cartesian_prod(torch.arange(N), torch.arange(N))
answers = facts[pairs[:, 0], pairs[:, 1]]
rows = torch.stack([pairs[:, 0], N + pairs[:, 1], answers], 1)
labels = rows.clone()
labels[:, :2] = -100

config = LlamaConfig(
    vocab_size=2 * N,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=4,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
    initializer_range=0.1,
)
model = LlamaForCausalLM(config)
print("parameters:", sum(p.numel() for p in model.parameters()))

STEPS, LR = 240, 6e-3
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LR, total_steps=STEPS, pct_start=0.15)
model.train()
for step in range(STEPS):
    take = torch.randperm(len(rows))[:200]
    out = model(input_ids=rows[take], labels=labels[take])
    optimizer.zero_grad()
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 24 == 0 or step == STEPS - 1:
        acc = (out.logits[:, 1].argmax(-1) == answers[take]).float().mean().item()
        print(f"step {step:4d} loss {out.loss.item():.4f} recall {acc:.3f}")
