import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

set_seed(44)
torch.set_num_threads(1)
OLD, NEW, T = 24, 24, 16


def corpus(n, gen, vocab, succ):
    x = torch.empty(n, T, dtype=torch.long)
    x[:, 0] = torch.randint(0, vocab, (n,), generator=gen)
    for t in range(1, T):
        pick = (torch.rand(n, generator=gen) < 0.2).long()
        x[:, t] = succ[x[:, t - 1], pick]
    return x


gen = torch.Generator().manual_seed(3)
succ_old = torch.stack([torch.randperm(OLD, generator=gen)[:2] for _ in range(OLD)])
succ_all = torch.stack([torch.randperm(OLD + NEW, generator=gen)[:2] for _ in range(OLD + NEW)])

model = GPT2LMHeadModel(GPT2Config(vocab_size=OLD, n_positions=T, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
                                   embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def grow_vocab(m, size):
    old = m.get_input_embeddings().weight.data
    emb = nn.Embedding(size, old.size(1))
    nn.init.normal_(emb.weight, std=m.config.initializer_range)
    emb.weight.data[:len(old)] = old
    m.set_input_embeddings(emb)
    head = nn.Linear(old.size(1), size, bias=False)
    head.weight = emb.weight
    m.set_output_embeddings(head)
    m.config.vocab_size = size


def make_optimizer(m, lr):
    decay = [p for p in m.parameters() if p.dim() > 1]
    rest = [p for p in m.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=lr)


def fit(opt, steps, vocab, succ, tag):
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 15)
    for i in range(steps):
        x = corpus(32, gen, vocab, succ)
        loss = model(input_ids=x, labels=x).loss
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if i % 20 == 0 or i == steps - 1:
            print(f"[{tag}] step {i:3d} loss {loss.item():.4f}")


@torch.no_grad()
def accuracy(vocab, succ):
    x = corpus(300, torch.Generator().manual_seed(8), vocab, succ)
    p = model(input_ids=x).logits[:, :-1].argmax(-1)
    return (p == x[:, 1:]).float().mean().item()


fit(make_optimizer(model, 4e-3), 120, OLD, succ_old, "base")
print(f"next-token acc on the base domain {accuracy(OLD, succ_old):.3f}")
optimizer = make_optimizer(model, 4e-3)
grow_vocab(model, OLD + NEW)
fit(optimizer, 180, OLD + NEW, succ_all, "extend")
print(f"next-token acc on the extended domain {accuracy(OLD + NEW, succ_all):.3f} (ceiling about 0.80)")
