import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

VOCAB, CTX, DIM = 32, 32, 48


def get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, min_ratio=0.0):
    def lr_lambda(current_step):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        progress = (current_step - num_warmup_steps) / max(1, num_training_steps - num_warmup_steps)
        return min_ratio + (1 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))

    return LambdaLR(optimizer, lr_lambda)


class PackedTokens(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        table = torch.randint(VOCAB, (VOCAB, VOCAB // 4), generator=torch.Generator().manual_seed(0))
        s = torch.randint(VOCAB, (n, CTX + 1), generator=g)
        noise = torch.rand(n, CTX + 1, generator=g) < 0.1
        for i in range(2, CTX + 1):
            s[:, i] = torch.where(noise[:, i], s[:, i], table[s[:, i - 1], s[:, i - 2] // 4])
        self.data = s

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i, :-1], "labels": self.data[i, 1:]}


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.ff(self.n2(x))


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.layers = nn.Sequential(Layer(DIM, 4), Layer(DIM, 4))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, input_ids, labels):
        x = self.tok(input_ids) + self.pos.weight[: input_ids.size(1)]
        logits = self.head(self.norm(self.layers(x)))
        return F.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1))


def main():
    torch.manual_seed(123)
    accum, micro_bs, epochs = 4, 6, 2
    train_loader = DataLoader(
        PackedTokens(1800, 1), batch_size=micro_bs, shuffle=True, drop_last=True, num_workers=1,
        persistent_workers=True,
    )
    eval_loader = DataLoader(PackedTokens(96, 2), batch_size=48)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    num_update_steps_per_epoch = len(train_loader) // accum
    max_train_steps = epochs * num_update_steps_per_epoch
    lr_scheduler = get_cosine_schedule_with_warmup(optimizer, int(0.06 * max_train_steps), max_train_steps)

    completed_steps = 0
    for epoch in range(epochs):
        model.train()
        for step, batch in enumerate(train_loader):
            loss = model(**batch)
            (loss / accum).backward()
            if (step + 1) % accum == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                completed_steps += 1
                if completed_steps % 15 == 0:
                    print(f"step {completed_steps}/{max_train_steps} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.2e}")
            lr_scheduler.step()
        model.eval()
        with torch.no_grad():
            ev = sum(model(**b).item() for b in eval_loader) / len(eval_loader)
        print(f"epoch {epoch}: eval_loss {ev:.4f} perplexity {math.exp(ev):.2f}")


if __name__ == "__main__":
    main()
