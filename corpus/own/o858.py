import argparse
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=220)
parser.add_argument("--batch_size", type=int, default=24)
parser.add_argument("--block_size", type=int, default=40)
parser.add_argument("--learning_rate", type=float, default=2e-3)
parser.add_argument("--vocab", type=int, default=24)
args = parser.parse_args()

torch.manual_seed(11)
gen = torch.Generator().manual_seed(17)
table = torch.softmax(torch.randn(args.vocab, args.vocab, generator=gen) * 3.2, -1)


def write_corpus(n):
    stream = torch.zeros(n, 400, dtype=torch.long)
    stream[:, 0] = torch.randint(0, args.vocab, (n,), generator=gen)
    for t in range(1, 400):
        stream[:, t] = torch.multinomial(table[stream[:, t - 1]], 1, generator=gen)[:, 0]
    return stream.flatten()


class Blocks(Dataset):
    def __init__(self, tokens, block_size):
        self.tokens = tokens
        self.block = block_size

    def __len__(self):
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, i):
        chunk = self.tokens[i * self.block: (i + 1) * self.block + 1]
        return {"input_ids": chunk[:-1], "labels": chunk[:-1]}


train_set = Blocks(write_corpus(560), args.block_size)
valid_set = Blocks(write_corpus(20), args.block_size)
loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True,
                    generator=torch.Generator().manual_seed(2))

config = GPT2Config(vocab_size=args.vocab, n_positions=64, n_embd=64, n_layer=2, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
scheduler = get_cosine_schedule_with_warmup(optimizer, 20, args.steps)

model.train()
step = 0
while step < args.steps:
    for batch in loader:
        outputs = model(input_ids=batch["input_ids"], labels=batch["labels"])
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step:4d}  loss {outputs.loss.item():.4f}")
        step += 1
        if step >= args.steps:
            break

model.eval()
with torch.no_grad():
    nll = []
    for batch in DataLoader(valid_set, batch_size=50):
        logp = model(batch["input_ids"]).logits.log_softmax(-1)
        nll.append(-logp[:, :-1].gather(2, batch["input_ids"][:, 1:, None]).mean())
    print(f"validation perplexity {torch.stack(nll).mean().exp().item():.3f}")
    seed = torch.arange(args.vocab)[:, None]
    out = model.generate(seed, max_new_tokens=20, do_sample=True, top_k=0, pad_token_id=0,
                         attention_mask=torch.ones_like(seed), eos_token_id=None)
    quality = table[out[:, :-1], out[:, 1:]].clamp_min(1e-8).log().mean().item()
    print(f"mean log probability of generated text {quality:.3f}")
