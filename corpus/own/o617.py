import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)

VOCAB, MAXLEN, DIM, HEADS = 32, 28, 48, 4
IGNORE = -100


class NesterovSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["buf"] = torch.zeros_like(p)
                st["buf"].mul_(group["momentum"]).add_(p.grad)
                upd = p.grad + group["momentum"] * st["buf"]
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(upd, alpha=-group["lr"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class CausalLM(nn.Module):
    def __init__(self, n_layer=2):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, DIM)
        self.wpe = nn.Embedding(MAXLEN, DIM)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, input_ids, labels, num_items_in_batch=None):
        x = self.wte(input_ids) + self.wpe.weight[: input_ids.size(1)]
        for blk in self.h:
            x = blk(x)
        logits = self.lm_head(self.ln_f(x))[:, :-1]
        reduction = "sum" if num_items_in_batch is not None else "mean"
        loss = F.cross_entropy(
            logits.reshape(-1, VOCAB), labels[:, 1:].reshape(-1), ignore_index=IGNORE, reduction=reduction
        )
        if num_items_in_batch is not None:
            loss = loss / num_items_in_batch
        return loss


gen = torch.Generator().manual_seed(1)
succ = torch.stack([torch.randperm(VOCAB - 1, generator=gen)[:3] + 1 for _ in range(VOCAB)])


def make_example():
    n = int(torch.randint(10, MAXLEN + 1, (1,), generator=gen))
    pick = torch.randint(3, (n,), generator=gen).tolist()
    ids = [int(torch.randint(1, VOCAB, (1,), generator=gen))]
    for c in pick[1:]:
        ids.append(int(succ[ids[-1], c]))
    return ids


def collate(examples):
    ids = torch.zeros(len(examples), MAXLEN, dtype=torch.long)
    labels = torch.full_like(ids, IGNORE)
    for i, e in enumerate(examples):
        ids[i, : len(e)] = torch.tensor(e)
        labels[i, : len(e)] = torch.tensor(e)
    return {"input_ids": ids, "labels": labels}


dataset = [make_example() for _ in range(2000)]
gradient_accumulation_steps, per_device_batch, max_steps = 8, 3, 130
model = CausalLM()
optimizer = NesterovSGD(model.parameters(), lr=0.13, momentum=0.9, weight_decay=1e-4)


def batches():
    while True:
        order = torch.randperm(len(dataset), generator=gen).tolist()
        for i in range(0, len(order) - per_device_batch + 1, per_device_batch):
            yield collate([dataset[j] for j in order[i : i + per_device_batch]])


it = batches()
for step in range(max_steps):
    for group in optimizer.param_groups:
        group["lr"] = 0.13 * min(1.0, (step + 1) / 15) * (1 - 0.9 * step / max_steps)
    batch_samples = [next(it) for _ in range(gradient_accumulation_steps)]
    tr_loss = 0.0
    for inputs in batch_samples:
        num_items_in_batch = (inputs["labels"][:, 1:] != IGNORE).sum()
        loss = model(**inputs, num_items_in_batch=num_items_in_batch)
        loss.backward()
        tr_loss += loss.item() / gradient_accumulation_steps
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0 or step == max_steps - 1:
        print(f"step {step} loss {tr_loss:.4f} lr {optimizer.param_groups[0]['lr']:.4f}")
