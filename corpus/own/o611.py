import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

VOCAB, CTX, DIM, HEADS = 30, 26, 48, 4
SEP = VOCAB - 1


class LoRALinear(nn.Module):
    def __init__(self, base, r=8, alpha=16):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.h = nn.ModuleList([Block(), Block()])
        self.ln_f = nn.LayerNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, input_ids, labels):
        x = self.wte(input_ids) + self.wpe.weight[: input_ids.size(1)]
        for blk in self.h:
            x = blk(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1), ignore_index=-100)


class Stream(IterableDataset):
    def __init__(self, stage, seed, bs):
        self.stage, self.seed, self.bs = stage, seed, bs
        self.perm = torch.randperm(SEP, generator=torch.Generator().manual_seed(0))
        self.offset = 5

    def __iter__(self):
        info = get_worker_info()
        g = torch.Generator().manual_seed(self.seed * 1000 + (info.id if info else 0))
        while True:
            s = torch.randint(SEP, (self.bs, CTX), generator=g)
            keep = torch.rand(self.bs, CTX, generator=g) < 0.9
            for i in range(1, CTX):
                s[:, i] = torch.where(keep[:, i], self.perm[s[:, i - 1]], s[:, i])
            labels = s.clone()
            if self.stage == "sft":
                cut = CTX - 7
                s[:, cut] = SEP
                prev = s[:, cut - 1]
                for i in range(cut + 1, CTX):
                    prev = (self.perm[prev] + self.offset) % SEP
                    s[:, i] = prev
                labels = s.clone()
                labels[:, : cut + 1] = -100
            yield {"input_ids": s, "labels": labels}


def train(model, stage, steps, lr, wd, bs=16):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=wd)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10) * max(0.05, 1 - s / steps))
    loader = iter(DataLoader(Stream(stage, 1 if stage == "pretrain" else 2, bs), batch_size=None, num_workers=1))
    print(f"{stage}: {sum(p.numel() for p in params)} of {sum(p.numel() for p in model.parameters())} parameters")
    for step in range(steps):
        loss = model(**next(loader))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"{stage} {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")


def add_lora(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for blk in model.h:
        for name in ("qkv", "proj", "fc1", "fc2"):
            setattr(blk, name, LoRALinear(getattr(blk, name)))
    return model


def main():
    torch.manual_seed(55)
    model = LM()
    train(model, "pretrain", 130, 4e-3, 0.01)
    model = add_lora(model)
    train(model, "sft", 170, 8e-3, 0.0)


if __name__ == "__main__":
    main()
