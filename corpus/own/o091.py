import argparse
from pydoc_data.topics import topics

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=2)
parser.add_argument("--ffn", type=int, default=160)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--heads", type=int, default=1)
parser.add_argument("--block", type=int, default=32)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--max_steps", type=int, default=160)
parser.add_argument("--learning_rate", type=float, default=5e-3)
parser.add_argument("--seed", type=int, default=99)
args = parser.parse_args()
torch.manual_seed(args.seed)

text = " ".join(" ".join(topics[k].lower().split()) for k in sorted(topics))[20000:320000]
letters = sorted(set(text))
stream = torch.tensor([letters.index(c) for c in text])

model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(letters), hidden_size=args.hidden, intermediate_size=args.ffn, num_hidden_layers=args.layers,
    num_attention_heads=args.heads, num_key_value_heads=args.heads, max_position_embeddings=args.block,
    initializer_range=0.1, use_cache=False, bos_token_id=0, eos_token_id=1, pad_token_id=None))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=15)

print(sum(p.numel() for p in model.parameters()), "parameters")
for step in range(1, args.max_steps + 1):
    start = torch.randint(len(stream) - args.block, (args.batch_size,))
    batch = torch.stack([stream[s:s + args.block] for s in start])
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warm.step()
    optimizer.zero_grad()
    if step == 1 or step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
