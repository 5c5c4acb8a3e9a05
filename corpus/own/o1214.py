import argparse
import inspect
import random
import torch
from torch import nn
import torch.nn.functional as F
import ast, calendar, collections, configparser, csv, datetime, decimal, difflib, email.message
import fractions, gzip, heapq, http.client, imaplib, json, logging, mailbox, pathlib, pickle, shutil
import smtplib, socket, statistics, string, subprocess, tarfile, textwrap, threading, typing, unittest, zipfile


def signatures():
    mods = [
        argparse,
        ast,
        calendar,
        collections,
        configparser,
        csv,
        datetime,
        decimal,
        difflib,
        email.message,
        fractions,
        gzip,
        heapq,
        http.client,
        imaplib,
        json,
        logging,
        mailbox,
        pathlib,
        pickle,
        random,
        shutil,
        smtplib,
        socket,
        statistics,
        string,
        subprocess,
        tarfile,
        textwrap,
        threading,
        typing,
        unittest,
        zipfile,
    ]
    found = set()
    for m in mods:
        for name, obj in inspect.getmembers(m):
            members = inspect.getmembers(obj) if inspect.isclass(obj) else [(name, obj)]
            for n, f in members:
                try:
                    s = f"def {n}{inspect.signature(f)}"
                except (TypeError, ValueError):
                    continue
                if inspect.isroutine(f) and len(s) <= 63 and ("0x" not in s) and s.isascii():
                    found.add(s)
    return sorted(found)


class Vocab:
    pad, bos, eos = (0, 1, 2)

    def __init__(self, lines):
        self.chars = sorted(set("".join(lines)))
        self.code = {c: i + 3 for i, c in enumerate(self.chars)}

    def __len__(self):
        return len(self.chars) + 3

    def rows(self, lines):
        enc = [[self.bos] + [self.code[c] for c in l] + [self.eos] for l in lines]
        n = max(map(len, enc))
        return torch.tensor([e + [self.pad] * (n - len(e)) for e in enc])


class Core(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_f = (nn.LayerNorm(d), nn.LayerNorm(d))
        self.qkv, self.proj = (nn.Linear(d, 3 * d), nn.Linear(d, d))
        self.fc, self.fo = (nn.Linear(d, 3 * d), nn.Linear(3 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_a(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fo(F.relu(self.fc(self.norm_f(x))).square())


class LoopedLM(nn.Module):
    def __init__(self, n, d=64, heads=4, loops=3, maxlen=66):
        super().__init__()
        self.loops = loops
        self.emb, self.pos = (nn.Embedding(n, d), nn.Embedding(maxlen, d))
        self.core = Core(d, heads)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, n)
        self.mark = nn.Parameter(torch.randn(loops, d) * 0.1, requires_grad=False)

    def forward(self, ids):
        x = self.emb(ids) + self.pos(torch.arange(ids.size(1)))
        for i in range(self.loops):
            x = self.core(x + self.mark[i])
        return self.head(self.norm(x))


def nll(model, rows):
    return F.cross_entropy(
        model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), ignore_index=Vocab.pad
    )


@torch.no_grad()
def sample(model, vocab, temperature=0.7):
    ids = [vocab.bos]
    while len(ids) < 64:
        p = (model(torch.tensor([ids]))[0, -1] / temperature).softmax(-1)
        nxt = torch.multinomial(torch.nan_to_num(p, nan=1.0) + 1e-09, 1).item()
        if nxt == vocab.eos:
            break
        ids.append(nxt)
    return "".join((vocab.chars[i - 3] for i in ids if i > 2))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.8)
    ap.add_argument("--momentum", type=float, default=0.9)
    ap.add_argument("--clip", type=float, default=0.5)
    ap.add_argument("--steps", type=int, default=320)
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()
    torch.manual_seed(21)
    random.seed(21)
    torch.set_num_threads(1)
    lines = signatures()
    random.shuffle(lines)
    vocab = Vocab(lines)
    held, lines = (lines[:120], lines[120:])
    print(f"{len(lines)} signatures for training, {len(held)} held out, {len(vocab)} characters")
    model = LoopedLM(len(vocab))
    trainable = filter(lambda p: p.requires_grad, model.parameters())
    optim = torch.optim.SGD(trainable, lr=args.lr, momentum=args.momentum, nesterov=True)
    sched = torch.optim.lr_scheduler.SequentialLR(
        optim,
        [
            torch.optim.lr_scheduler.LinearLR(optim, 0.1, 1.0, 20),
            torch.optim.lr_scheduler.CosineAnnealingLR(optim, args.steps - 20, args.lr * 0.05),
        ],
        [20],
    )
    epoch, queue = (0, [])
    for step in range(args.steps):
        if len(queue) < args.batch:
            queue = random.sample(lines, len(lines))
            epoch += 1
        chunk, queue = (queue[: args.batch], queue[args.batch :])
        loss = nll(model, vocab.rows(chunk))
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, args.clip)
        optim.step()
        sched.step()
        if step % 40 == 0 or step == args.steps - 1:
            print(
                f"epoch {epoch} step {step} loss {loss.item():.4f} lr {optim.param_groups[0]['lr']:.4f}"
            )
    model.eval()
    with torch.no_grad():
        print(f"held-out loss per character {nll(model, vocab.rows(held)).item():.4f}")
    for _ in range(3):
        print("   ", sample(model, vocab))


if __name__ == "__main__":
    main()
