import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import DistilBertConfig, DistilBertForSequenceClassification

torch.manual_seed(64)
WORDS, LEN, LABELS = 120, 16, 10
rule = torch.randn(WORDS, LABELS)


def sentences(n, gen):
    ids = torch.randint(2, WORDS, (n, LEN), generator=gen)
    return ids, rule[ids].mean(1) * 6


def build(dim, layers):
    cfg = DistilBertConfig(vocab_size=WORDS, dim=dim, hidden_dim=2 * dim, n_layers=layers, n_heads=4, num_labels=LABELS,
                           max_position_embeddings=LEN, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0)
    return DistilBertForSequenceClassification(cfg)


class Teacher(nn.Module):
    def forward(self, ids):
        return rule[ids].mean(1) * 6


TEMPERATURE, ALPHA = 2.0, 0.1
gen = torch.Generator().manual_seed(65)
teacher = Teacher().eval()
student = build(48, 2)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.01)
log = []
for step in range(260):
    ids, score = sentences(48, gen)
    labels = score.argmax(-1)
    noisy = torch.rand(len(labels), generator=gen) < 0.6
    labels = torch.where(noisy, torch.randint(LABELS, labels.shape, generator=gen), labels)
    logits = student(input_ids=ids).logits
    ce = F.cross_entropy(logits, labels)
    with torch.no_grad():
        soft = F.softmax(teacher(ids) / TEMPERATURE, dim=-1)
        kd = F.kl_div(F.log_softmax(logits / TEMPERATURE, dim=-1), soft, reduction="batchmean") * TEMPERATURE ** 2
    loss = ALPHA * ce + (1 - ALPHA) * kd
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    log.append(loss.item())
    if step % 20 == 0 or step == 259:
        agree = (logits.argmax(-1) == soft.argmax(-1)).float().mean().item()
        print({"step": step, "loss": round(sum(log[-10:]) / len(log[-10:]), 4), "agreement": round(agree, 3)})
