import math
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(314)

docs = [
    torch.tensor(list(topics[k].encode("utf-8"))) for k in sorted(topics) if len(topics[k]) > 400
]
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)
model = LlamaForCausalLM(config)
model.train()

steps, warmup, peak = 250, 150, 2.5e-3
optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.99), weight_decay=0.1)


def factor(step):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for step in range(steps):
    doc = docs[torch.randint(len(docs), (1,)).item()]
    rows = []
    for _ in range(2):
        s = torch.randint(len(doc) - 65, (1,)).item()
        rows.append(doc[s : s + 64])
    ids = torch.stack(rows)
    out = model(input_ids=ids, labels=ids)
    optimizer.zero_grad(set_to_none=True)
    out.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 10 == 0 or step == steps - 1:
        print(
            f"step {step} loss {out.loss.item():.4f} norm {norm.item():.2f} lr {scheduler.get_last_lr()[0]:.2e}"
        )
