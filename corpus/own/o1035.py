import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

TOPICS, PER, COMMON, LEN, DIM = 8, 24, 24, 16, 48
VOCAB = TOPICS * PER + COMMON
FINE_TAGS = 2 * TOPICS


def make_world(seed):
    g = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(VOCAB, generator=g)
    return shuffled[:TOPICS * PER].view(TOPICS, PER), shuffled[TOPICS * PER:]


def sentences(n, members, common, g):
    first = torch.randint(TOPICS, (n, 1), generator=g)
    second = torch.randint(TOPICS, (n, 1), generator=g)
    turn = torch.randint(5, 12, (n, 1), generator=g)
    topic = torch.where(torch.arange(LEN) < turn, first, second)
    ids = members[topic, torch.randint(PER, (n, LEN), generator=g)]
    filler = common[torch.randint(COMMON, (n, LEN), generator=g)]
    return torch.where(torch.rand(n, LEN, generator=g) < 0.25, filler, ids), topic


class Encoder(nn.Module):
    def __init__(self, layers=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(LEN, DIM)
        blk = nn.TransformerEncoderLayer(DIM, heads, 4 * DIM, dropout=0.0, activation="gelu",
                                         batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(blk, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        return self.norm(self.stack(h))


class NewsTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.tag_head = nn.Linear(DIM, TOPICS)

    def forward(self, ids):
        return self.tag_head(self.encoder(ids))


class LoRA(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Encoder()
        self.classifier = nn.Linear(DIM, FINE_TAGS)

    def add_lora(self):
        for p in self.backbone.parameters():
            p.requires_grad_(False)
        for layer in self.backbone.stack.layers:
            layer.linear1 = LoRA(layer.linear1)
            layer.linear2 = LoRA(layer.linear2)
        return [p for p in self.parameters() if p.requires_grad]

    def forward(self, ids):
        return self.classifier(self.backbone(ids))


def to_bio(topic):
    start = torch.ones_like(topic, dtype=torch.bool)
    start[:, 1:] = topic[:, 1:] != topic[:, :-1]
    return (topic * 5 % TOPICS) * 2 + start.long()


def pretrain(path, world, steps=160, bs=48):
    g = torch.Generator().manual_seed(5)
    net = NewsTagger()
    nn.init.normal_(net.encoder.tok.weight, std=0.1)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps)
    for i in range(steps):
        ids, topic = sentences(bs, *world, g)
        loss = F.cross_entropy(net(ids).flatten(0, 1), topic.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if (i + 1) % 20 == 0:
            print(f"[news] {i + 1:4d} loss {loss.item():.4f}")
    torch.save({"model": net.state_dict(), "step": steps}, path)


def finetune(path, world, steps=120, bs=12):
    tagger = Tagger()
    nn.init.normal_(tagger.backbone.tok.weight, std=0.1)
    ckpt = torch.load(path)
    state = {k.replace("module.", "", 1): v for k, v in ckpt["model"].items()}
    tagger.load_state_dict(state, strict=False)
    print(f"[medical] restored weights of step {ckpt['step']}")
    params = tagger.add_lora()
    print(f"[medical] trainable: {sum(p.numel() for p in params)}")
    ids, topic = sentences(24, *world, torch.Generator().manual_seed(21))
    test_ids, test_topic = sentences(300, *world, torch.Generator().manual_seed(22))
    tags, test_tags = to_bio(topic), to_bio(test_topic)
    opt = torch.optim.AdamW(params, lr=4e-3)
    for i in range(steps):
        pick = torch.randint(len(ids), (bs,))
        logits = tagger(ids[pick])
        loss = F.cross_entropy(logits.flatten(0, 1), tags[pick].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 15 == 0 or i == steps - 1:
            with torch.no_grad():
                acc = (tagger(test_ids).argmax(-1) == test_tags).float().mean().item()
            print(f"[medical] {i:4d} loss {loss.item():.4f} test acc {acc:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    world = make_world(1)
    with tempfile.TemporaryDirectory() as d:
        file = os.path.join(d, "news.pt")
        pretrain(file, world)
        finetune(file, world)
