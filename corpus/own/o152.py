import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
torch.manual_seed(90)

V, T = 16, 16
table = torch.randint(0, V, (V, V))


def batch(n):
    s = torch.randint(0, V, (n, T))
    for j in range(2, T):
        s[:, j] = torch.where(torch.rand(n) < 0.1, s[:, j], table[s[:, j - 2], s[:, j - 1]])
    return s


def build(width, layers, drop):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=V, n_positions=T, n_embd=width, n_layer=layers, n_head=4,
        resid_pdrop=drop, embd_pdrop=drop, attn_pdrop=drop, bos_token_id=0, eos_token_id=0,
    ))


def fit_teacher(model, steps):
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    model.train()
    for i in range(steps):
        x = batch(24)
        loss = model(input_ids=x, labels=x).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 40 == 0 or i == steps - 1:
            print(f"teacher {i} loss {loss.item():.4f}")
    return model


def distill(teacher, student, steps, tau=1.0):
    for p in teacher.parameters():
        p.requires_grad_(False)
    opt = torch.optim.AdamW(student.parameters(), lr=4e-3, weight_decay=0.0)
    student.train()
    for i in range(steps):
        x = batch(24)
        with torch.no_grad():
            soft = F.softmax(teacher(input_ids=x).logits / tau, -1)
        logp = F.log_softmax(student(input_ids=x).logits / tau, -1)
        loss = F.kl_div(logp, soft, reduction="none").sum(-1)[:, 1:].mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0 or i == steps - 1:
            print(f"distill {i} kl {loss.item():.4f}")


teacher = fit_teacher(build(64, 2, 0.25), 110)
distill(teacher, build(48, 2, 0.0), 130)
