import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)
CONCEPTS, SURFACE, LEN, DIM = 80, 3, 8, 64
VOCAB = CONCEPTS * SURFACE


def pairs(n):
    meaning = torch.randint(0, CONCEPTS, (n, LEN))
    q = meaning * SURFACE + torch.randint(0, SURFACE, (n, LEN))
    order = torch.rand(n, LEN).argsort(1)
    d = meaning.gather(1, order) * SURFACE + torch.randint(0, SURFACE, (n, LEN))
    return q, d


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.proj = nn.Linear(DIM, 48)

    def forward(self, x):
        return F.normalize(self.proj(self.enc(self.emb(x)).mean(1)), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        tower = Tower()
        self.query_tower = tower
        self.doc_tower = tower
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, q, d):
        return self.logit_scale.exp() * self.query_tower(q) @ self.doc_tower(d).t()


@torch.no_grad()
def recall_at_1(model, q, d):
    model.eval()
    hit = (model(q, d).argmax(1) == torch.arange(len(q))).float().mean().item()
    model.train()
    return hit


model = DualEncoder()
opt = torch.optim.AdamW([{"params": [p for n, p in model.named_parameters() if n != "logit_scale"], "weight_decay": 0.01},
                         {"params": [model.logit_scale], "weight_decay": 0.0}], lr=1e-3)
test_q, test_d = pairs(300)
print(f"recall@1 before {recall_at_1(model, test_q, test_d):.3f}")
for step in range(200):
    q, d = pairs(64)
    logits = model(q, d)
    labels = torch.arange(len(q))
    loss = 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))
    if step % 20 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f} scale {model.logit_scale.exp().item():.2f}")
print(f"recall@1 after {recall_at_1(model, test_q, test_d):.3f}")
