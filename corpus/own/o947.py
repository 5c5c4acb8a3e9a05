import random
import torch
import torch.nn as nn

random.seed(5)
torch.manual_seed(5)

EVENTS = ["PAD", "syn", "synack", "ack", "data", "fin", "rst", "dns_q", "dns_r", "tls_hello",
          "tls_done", "http_get", "http_200", "http_404", "login", "login_fail", "sudo", "scan"]
ID = {e: i for i, e in enumerate(EVENTS)}
LEN = 20


def normal_session():
    seq = ["dns_q", "dns_r", "syn", "synack", "ack"]
    if random.random() < 0.5:
        seq += ["tls_hello", "tls_done"]
    while len(seq) < LEN - 1:
        r = random.random()
        if r < 0.3:
            seq += ["http_get", "http_200"]
        elif r < 0.4:
            seq += ["http_get", "http_404"]
        elif r < 0.5:
            seq += ["login_fail", "login"]
        elif r < 0.6:
            seq += ["login", "sudo"]
        elif r < 0.7:
            seq += ["dns_q", "dns_r"]
        else:
            seq += ["data"]
    return seq[:LEN - 1] + ["fin"]


def anomalous_session():
    seq = normal_session()
    body = seq[10:-1][::-1]
    return seq[:10] + body + seq[-1:]


def build(n):
    xs, ys = [], []
    for _ in range(n):
        bad = random.random() < 0.5
        s = anomalous_session() if bad else normal_session()
        xs.append([ID[e] for e in s])
        ys.append(float(bad))
    return torch.tensor(xs), torch.tensor(ys)


class LogTransformer(nn.Module):
    def __init__(self, vocab, d_model=48, nhead=4, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.pos = nn.Embedding(LEN, d_model)
        encoder_layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward=96, dropout=0.0, norm_first=True, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Sequential(nn.Linear(d_model, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, tokens):
        pos = torch.arange(tokens.size(1))
        h = self.embed(tokens) + self.pos(pos)
        h = self.encoder(h)
        return self.classifier(h.mean(dim=1)).squeeze(-1)


X, Y = build(6000)
XV, YV = build(640)
net = LogTransformer(len(EVENTS))
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
bce = nn.BCEWithLogitsLoss()
BATCH, STEPS = 40, 450
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 40)

for step in range(1, STEPS + 1):
    net.train()
    idx = torch.randint(0, len(X), (BATCH,))
    loss = bce(net(X[idx]), Y[idx])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    warm.step()
    if step % 50 == 0:
        net.eval()
        with torch.no_grad():
            out = torch.cat([net(c) for c in XV.split(BATCH)])
        acc = ((out > 0).float() == YV).float().mean().item()
        print(f"step {step:4d} loss {loss.item():.4f} val_loss {bce(out, YV).item():.4f} val_acc {acc:.4f}")

print("final val accuracy", round(acc, 4))
