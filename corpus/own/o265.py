import torch
import torch.nn as nn
import torch.nn.functional as F


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), wd=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, wd=wd))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                update = (b1 * m + (1 - b1) * p.grad).sign_()
                p.mul_(1 - group["lr"] * group["wd"]).add_(update, alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Albert(nn.Module):
    def __init__(self, vocab, length, e=24, d=64, repeats=3):
        super().__init__()
        self.vocab = vocab
        self.word = nn.Embedding(vocab + 1, e)
        nn.init.normal_(self.word.weight, std=0.1)
        self.up = nn.Linear(e, d)
        self.pos = nn.Parameter(torch.randn(length, d) * 0.4)
        self.shared = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = [self.shared] * repeats
        self.down = nn.Linear(d, e)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids):
        x = self.up(self.word(ids)) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.down(F.gelu(x)) @ self.word.weight[:self.vocab].T + self.bias


def corpus(n, length, vocab, g):
    motif = torch.randint(vocab, (n, 5), generator=g)
    return motif.repeat(1, length // 5)


if __name__ == "__main__":
    torch.manual_seed(19)
    g = torch.Generator().manual_seed(190)
    VOCAB, LENGTH = 20, 20
    model = Albert(VOCAB, LENGTH)
    opt = Lion(model.parameters(), lr=7e-4, wd=0.1)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 30, (261 - s) / 120))
    recent = []
    for step in range(260):
        ids = corpus(24, LENGTH, VOCAB, g)
        hide = torch.rand(ids.shape, generator=g) < 0.15
        logits = model(ids.masked_fill(hide, VOCAB))
        loss = F.cross_entropy(logits[hide], ids[hide])
        for p in model.parameters():
            p.grad = None
        loss.backward()
        opt.step()
        plan.step()
        recent = (recent + [loss.item()])[-20:]
        if step % 20 == 0 or step == 259:
            print(f"step {step} masked loss {sum(recent) / len(recent):.4f} lr {plan.get_last_lr()[0]:.1e}")
