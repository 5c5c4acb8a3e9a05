import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

N_NUM, CARDS, N_TIER, N_SEG = 10, (5, 7, 4, 6), 6, 8


def make_table(n, gen):
    centers = torch.randn(N_SEG, N_NUM, generator=torch.Generator().manual_seed(1)) * 1.3
    probs = [torch.softmax(2 * torch.randn(N_SEG, c, generator=torch.Generator().manual_seed(2 + c)), -1)
             for c in CARDS]
    seg = torch.randint(0, N_SEG, (n,), generator=gen)
    num = centers[seg] + 0.7 * torch.randn(n, N_NUM, generator=gen)
    cat = torch.stack([torch.multinomial(p[seg], 1, generator=gen).squeeze(1) for p in probs], 1)
    tier = (seg + 3 * (num[:, 0] > 0).long() + (cat[:, 2] > 1).long()) % N_TIER
    return num, cat, tier


class Tokenizer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.randn(N_NUM, d) * 0.3)
        self.b = nn.Parameter(torch.zeros(N_NUM, d))
        self.emb = nn.ModuleList(nn.Embedding(c, d) for c in CARDS)
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.mask = nn.Parameter(torch.zeros(d))

    def forward(self, num, cat, hidden=None):
        t = num.unsqueeze(-1) * self.w + self.b
        c = torch.stack([e(cat[:, i]) for i, e in enumerate(self.emb)], 1)
        t = torch.cat([t, c], 1)
        if hidden is not None:
            t = torch.where(hidden.unsqueeze(-1), self.mask.expand_as(t) + torch.cat([self.b, c.new_zeros(
                len(CARDS), t.size(-1))]), t)
        return torch.cat([self.cls.expand(len(t), -1, -1), t], 1)


class FTTransformer(nn.Module):
    def __init__(self, d=32, layers=2, out=1):
        super().__init__()
        self.tokenizer = Tokenizer(d)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(
            d, 4, 64, 0.0, activation="gelu", batch_first=True, norm_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, out)

    def backbone(self, num, cat, hidden=None):
        x = self.tokenizer(num, cat, hidden)
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)

    def forward(self, num, cat):
        return self.head(self.backbone(num, cat)[:, 0])


def param_groups(model, lr_body, lr_head):
    head = list(model.head.parameters())
    ids = {id(p) for p in head}
    return [{"params": [p for p in model.parameters() if id(p) not in ids], "lr": lr_body},
            {"params": head, "lr": lr_head}]


def pretrain(model, num, cat, steps=160, bs=128):
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for step in range(steps):
        i = torch.randint(0, len(num), (bs,))
        hidden = torch.rand(bs, N_NUM + len(CARDS)) < 0.3
        z = model.backbone(num[i], cat[i], hidden)[:, 1:1 + N_NUM]
        pred = model.head(z).squeeze(-1)
        h = hidden[:, :N_NUM]
        loss = F.mse_loss(pred[h], num[i][h])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 or step == steps - 1:
            print(f"[pretrain] step {step:3d} masked mse {loss.item():.4f}")


def finetune(model, train, valid, steps=240, bs=128):
    num, cat, y = train
    opt = torch.optim.AdamW(param_groups(model, 1e-4, 3e-3), weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    model.head = nn.Linear(model.head.in_features, N_TIER)
    for step in range(steps):
        i = torch.randint(0, len(num), (bs,))
        loss = F.cross_entropy(model(num[i], cat[i]), y[i])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 40 == 0 or step == steps - 1:
            with torch.no_grad():
                acc = (model(*valid[:2]).argmax(-1) == valid[2]).float().mean().item()
            print(f"[finetune] step {step:3d} ce {loss.item():.4f} valid acc {acc:.3f} "
                  f"lr {[round(g['lr'], 6) for g in opt.param_groups]}")


if __name__ == "__main__":
    gen = torch.Generator().manual_seed(100)
    table = make_table(6000, gen)
    train, valid = [c[:5000] for c in table], [c[5000:] for c in table]
    net = FTTransformer()
    print("parameters", sum(p.numel() for p in net.parameters()))
    pretrain(net, train[0], train[1])
    finetune(net, train, valid)
