import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)


class MixedAdam:
    def __init__(self, module, lr, betas=(0.9, 0.99), eps=1e-8):
        self.working = [p for p in module.parameters() if p.requires_grad]
        self.master = [nn.Parameter(p.detach().float().clone()) for p in self.working]
        self.inner = torch.optim.AdamW(self.master, lr=lr, betas=betas, eps=eps, weight_decay=0.0)

    def zero_grad(self):
        for p in self.working:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for m, p in zip(self.master, self.working):
            m.copy_(p)
            m.grad = p.grad.float()
        self.inner.step()
        for m, p in zip(self.master, self.working):
            p.copy_(m)
        self.inner.zero_grad()


class Net(nn.Module):
    def __init__(self, vocab, d=64, ctx=32, depth=2, heads=4):
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(ctx, d)
        self.qkv = nn.ModuleList([nn.Linear(d, 3 * d) for _ in range(depth)])
        self.out = nn.ModuleList([nn.Linear(d, d) for _ in range(depth)])
        self.fc1 = nn.ModuleList([nn.Linear(d, 4 * d) for _ in range(depth)])
        self.fc2 = nn.ModuleList([nn.Linear(4 * d, d) for _ in range(depth)])
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 * depth + 1)])
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        b, t = ids.shape
        x = self.emb(ids) + self.pos.weight[:t]
        for i in range(len(self.qkv)):
            q, k, v = self.qkv[i](self.ln[2 * i](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out[i](y.transpose(1, 2).reshape(b, t, -1))
            x = x + self.fc2[i](F.gelu(self.fc1[i](self.ln[2 * i + 1](x))))
        return self.head(self.ln[-1](x)).float()


def main():
    torch.manual_seed(50)
    text = "".join(topics[k] for k in sorted(topics))
    chars = sorted(set(text))
    lut = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([lut[c] for c in text])
    model = Net(len(chars)).to(torch.bfloat16)
    opt = MixedAdam(model, lr=1e-4)
    smooth = None
    for step in range(160):
        at = torch.randint(len(data) - 33, (12, 1)) + torch.arange(33)
        block = data[at]
        loss = F.cross_entropy(model(block[:, :-1]).flatten(0, 1), block[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if step % 20 == 0 or step == 159:
            print(f"step {step:3d} loss {smooth:.4f}")


if __name__ == "__main__":
    main()
