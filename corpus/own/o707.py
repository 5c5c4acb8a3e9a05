import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def build_pairs(n, vocab, length, gen):
    hidden = torch.Generator().manual_seed(1234)
    value = torch.randn(vocab, generator=hidden)
    x = torch.randint(1, vocab, (n, 2, length), generator=gen)
    score = value[x].mean(-1) * 3.0 + 0.5 * (value[x[..., :-1]] * value[x[..., 1:]]).mean(-1)
    p = torch.sigmoid(2.0 * (score[:, 0] - score[:, 1]))
    first = torch.rand(n, generator=gen) < p
    chosen = torch.where(first[:, None], x[:, 0], x[:, 1])
    rejected = torch.where(first[:, None], x[:, 1], x[:, 0])
    return chosen, rejected


class RewardModel(nn.Module):
    def __init__(self, vocab, length, dim=64, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.05)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, ids):
        h = self.body(self.emb(ids) + self.pos)
        return self.score(self.norm(h.mean(1))).squeeze(-1)


class PreferenceTrainer:
    def __init__(self, model, train, held, args):
        self.model, self.args = model, args
        self.train_pairs, self.held_pairs = train, held
        self.opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    def pair_loss(self, chosen, rejected):
        r = self.model(torch.cat([chosen, rejected]))
        gap = r[: len(chosen)] - r[len(chosen) :]
        return -F.logsigmoid(gap).mean(), (gap > 0).float().mean()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        loss, acc = self.pair_loss(*self.held_pairs)
        self.model.train()
        return loss.item(), acc.item()

    def run(self):
        chosen, rejected = self.train_pairs
        print("training pairs:", len(chosen))
        gen = torch.Generator().manual_seed(5)
        step = 0
        while step < self.args.steps:
            for ix in torch.randperm(len(chosen), generator=gen).split(self.args.batch):
                loss, acc = self.pair_loss(chosen[ix], rejected[ix])
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                if step % self.args.log_every == 0:
                    vl, va = self.evaluate()
                    print(f"step {step:4d} loss {loss.item():.4f} acc {acc.item():.2f} | held-out {vl:.4f} acc {va:.3f}")
                step += 1
                if step >= self.args.steps:
                    break
        vl, va = self.evaluate()
        print(f"end: train loss {loss.item():.4f} held-out loss {vl:.4f} accuracy {va:.3f}")


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--pairs", type=int, default=6000)
    p.add_argument("--eval-pairs", type=int, default=400)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--vocab", type=int, default=60)
    p.add_argument("--length", type=int, default=16)
    p.add_argument("--log-every", type=int, default=30)
    return p.parse_args([])


def main():
    args = get_args()
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    chosen, rejected = build_pairs(args.pairs, args.vocab, args.length, gen)
    n_eval = args.eval_pairs
    held = chosen[:n_eval], rejected[:n_eval]
    n_train = args.pairs // args.batch
    train = chosen[n_eval : n_eval + n_train], rejected[n_eval : n_eval + n_train]
    model = RewardModel(args.vocab, args.length)
    PreferenceTrainer(model, train, held, args).run()


if __name__ == "__main__":
    main()
