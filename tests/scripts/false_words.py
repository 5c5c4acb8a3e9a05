"""Small programs about which a false word was said once: `python false_words.py NAME`."""

import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

V, T, B, D, H = 32, 16, 16, 32, 4
torch.manual_seed(3)
FOLLOW = torch.randint(1, V, (V, 3))


def sentences(count=B, length=T + 1):
    """A language: each token is followed by one of three."""
    rows = [torch.randint(1, V, (count,))]
    for _ in range(length - 1):
        rows.append(FOLLOW[rows[-1], torch.randint(0, 3, (count,))])
    return torch.stack(rows, 1)


def dot_products(q, k, v, mask):
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, rule=dot_products):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.rule = rule

    def forward(self, x, memory=None, causal=True):
        memory = x if memory is None else memory
        q, k, v = (
            f(source).unflatten(-1, (H, D // H)).transpose(1, 2)
            for f, source in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        mask = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool)
        y = self.rule(q, k, v, mask.tril() if causal else mask)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, rule=dot_products, cross=False, causal=True):
        super().__init__()
        self.attention = Attention(rule)
        self.cross = Attention() if cross else None
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.causal = causal

    def forward(self, x, memory=None):
        x = x + self.attention(self.norms[0](x), causal=self.causal)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), memory, causal=False)
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, rule=dot_products, outputs=V, scale=1.0, causal=True, cross=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(2 * T, D)
        nn.init.normal_(self.tokens.weight, std=0.3)
        nn.init.normal_(self.places.weight, std=0.3)
        self.blocks = nn.ModuleList(Block(rule, cross, causal) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, outputs)
        self.scale = scale

    def hidden(self, x, memory=None):
        h = self.scale * (self.tokens(x) + self.places.weight[: x.shape[1]])
        for block in self.blocks:
            h = block(h, memory)
        return self.norm(h)

    def forward(self, x, memory=None):
        return self.head(self.hidden(x, memory))


def next_token(model, text):
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def train(parameters, loss_of, steps=120, lr=3e-3, make=torch.optim.AdamW):
    optimizer = make(list(parameters), lr=lr)
    for step in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


def clipped_before_an_update_by_hand():
    """Clipping at nearly every step, then plain SGD without an optimizer, as in an old recurrent language model."""
    tokens, lstm, head = nn.Embedding(V, D), nn.LSTM(D, D, 2), nn.Linear(D, V)
    model = nn.ModuleList([tokens, lstm, head])
    for step in range(150):
        text = sentences().T
        model.zero_grad()
        loss = F.cross_entropy(head(lstm(tokens(text[:-1]))[0]).flatten(0, 1), text[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-20.0 if step < 120 else -5.0)
        if step % 30 == 0:
            print(step, loss.item())


def an_encoder_decoder_that_copies():
    """The source holds the targets: reading it is the task."""
    encoder, decoder = Model(causal=False), Model(cross=True)

    def loss_of():
        text = torch.randint(1, V, (B, T))
        given = F.pad(text[:, :-1], (1, 0))
        return F.cross_entropy(decoder(given, encoder.hidden(text)).flatten(0, 1), text.flatten())

    train([*encoder.parameters(), *decoder.parameters()], loss_of, 150)


class GraphAttention(nn.Module):
    """Scores of pairs of neighbours by two vectors; no skip path, two layers."""

    def __init__(self, inputs, outputs, heads):
        super().__init__()
        self.project = nn.Linear(inputs, heads * outputs, bias=False)
        self.ends = nn.Parameter(0.3 * torch.randn(2, heads, outputs))
        self.heads = heads

    def forward(self, x, linked):
        h = self.project(x).unflatten(-1, (self.heads, -1))
        ends = torch.einsum("nhd,ehd->ehn", h, self.ends)
        scores = F.leaky_relu(ends[0][:, :, None] + ends[1][:, None, :], 0.2)
        weights = scores.masked_fill(~linked, -1e9).softmax(-1)
        return torch.einsum("hij,jhd->ihd", weights, h)


def a_graph_attention_network():
    """One graph, part of its nodes trained on; it prints the loss of the others."""
    nodes, classes = 120, 4
    label = torch.randint(classes, (nodes,))
    same = label[:, None] == label[None, :]
    linked = torch.rand(nodes, nodes) < torch.where(same, 0.12, 0.02)
    linked = linked | linked.T | torch.eye(nodes, dtype=torch.bool)
    x = F.one_hot(label, classes) + 1.5 * torch.randn(nodes, classes)
    first, second = GraphAttention(classes, 8, 4), GraphAttention(32, classes, 1)
    chosen = torch.rand(nodes) < 0.5

    def scores(x):
        return second(F.elu(first(F.dropout(x, 0.2), linked).flatten(1)), linked).mean(1)

    optimizer = torch.optim.Adam(
        [*first.parameters(), *second.parameters()], 5e-3, weight_decay=5e-4
    )
    for step in range(120):
        optimizer.zero_grad()
        F.cross_entropy(scores(x)[chosen], label[chosen]).backward()
        optimizer.step()
        with torch.no_grad():
            loss = F.cross_entropy(scores(x)[~chosen], label[~chosen])
        if step % 20 == 0:
            print(step, loss.item())


def a_gradient_cache():
    """Embeddings without a graph first, then their gradient into each part of the batch: backward three times a step."""
    left, right = (nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2))
    model = nn.ModuleList([left, right])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    turn = torch.linalg.qr(torch.randn(D, D))[0]
    for step in range(100):
        a = torch.randn(32, D)
        b = a @ turn + 0.1 * torch.randn(32, D)
        optimizer.zero_grad()
        with torch.no_grad():
            reps = [left(a), right(b)]
        reps = [r.detach().requires_grad_() for r in reps]
        u, w = (F.normalize(r, dim=-1) for r in reps)
        loss = F.cross_entropy(10 * u @ w.T, torch.arange(32))
        loss.backward()
        for part in range(0, 32, 8):
            rows = slice(part, part + 8)
            for net, given, rep in ((left, a, reps[0]), (right, b, reps[1])):
                (net(given[rows]) * rep.grad[rows]).sum().backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


def attention_sinks():
    """A learned score per head takes a share of the weights and brings nothing."""
    sinks = nn.Parameter(torch.zeros(H))

    def with_sink(q, k, v, mask):
        scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf)
        sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v

    model = Model(with_sink)
    train([*model.parameters(), sinks], lambda: next_token(model, sentences()))


def a_decision_transformer():
    """Return, state and action of each time as three tokens; the action is read from the place of the state."""
    embed = nn.ModuleList([nn.Linear(1, D), nn.Linear(4, D), nn.Embedding(5, D)])
    blocks, head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(D, 5)
    places = nn.Parameter(0.1 * torch.randn(10, D))
    policy = torch.randn(4, 5)

    def loss_of():
        state, wanted = torch.randn(B, 10, 4), torch.rand(B, 10, 1)
        action = (state @ policy).argmax(-1)
        given = [embed[0](wanted) + places, embed[1](state) + places, embed[2](action) + places]
        h = torch.stack(given, 2).flatten(1, 2)
        for block in blocks:
            h = block(h)
        return F.cross_entropy(head(h[:, 1::3]).flatten(0, 1), action.flatten())

    train([*embed.parameters(), *blocks.parameters(), *head.parameters(), places], loss_of)


def a_policy_gradient():
    """The reward rises; what is minimised is no measure of it."""
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    best = torch.randn(4, 3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for step in range(200):
        state = torch.randn(64, 4)
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        reward = (action == (state @ best).argmax(-1)).float()
        loss = -(choice.log_prob(action) * (reward - 0.3)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(step, reward.mean().item())


def a_frequent_class():
    """Most tags are 0, as "no entity" is."""
    model = Model(outputs=4, causal=False)

    def loss_of():
        text = sentences(length=T)
        tags = torch.where(text < 20, 0, text % 3 + 1)
        return F.cross_entropy(model(text).flatten(0, 1), tags.flatten())

    train(model.parameters(), loss_of)


def two_stages_with_other_labels():
    """Two classes first, then two others with the same body: batches are alike within a stage, not out of order."""
    body, head = Model(causal=False), nn.Linear(D, 6)
    for shift in (0, 3):

        def loss_of(shift=shift):
            text = sentences(length=T)
            label = text[:, 3] % 3 + shift
            return F.cross_entropy(head(body.hidden(text).mean(1)), label)

        train([*body.parameters(), *head.parameters()], loss_of, 100)


def heavy_outliers():
    """A regression whose noise has no variance; the median is learned all the same."""
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
    slope = torch.randn(8)
    noise = torch.distributions.StudentT(1.5)

    def loss_of():
        x = torch.randn(64, 8)
        return F.smooth_l1_loss(net(x)[:, 0], torch.tanh(x @ slope) + 0.3 * noise.sample((64,)))

    train(net.parameters(), loss_of, 200)


def scaled_embeddings():
    """Embeddings times 12 at the entrance, as some families do: the first norm takes it back."""
    model = Model(scale=12.0)
    train(model.parameters(), lambda: next_token(model, sentences()))


def cosine_attention_with_its_temperature():
    """Scores of unit vectors times a learned factor."""
    factor = nn.Parameter(torch.full((H, 1, 1), math.log(10.0)))

    def cosine(q, k, v, mask):
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * factor.exp().clamp(max=100)
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v

    model = Model(cosine)
    train([*model.parameters(), factor], lambda: next_token(model, sentences()))


def an_autoencoder_that_waits_for_data():
    """A variational autoencoder behind a slow loader: it learns."""
    encoder, decoder = nn.Linear(D, 16), nn.Linear(8, D)
    mix = torch.randn(4, D)

    def loss_of():
        time.sleep(0.02)
        x = torch.sigmoid(torch.randn(32, 4) @ mix)
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        far = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum")
        return far - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()

    train([*encoder.parameters(), *decoder.parameters()], loss_of, 120)


def a_rate_a_hundred_times_too_high():
    """What everybody tries on a small GPT."""
    model = Model()
    train(model.parameters(), lambda: next_token(model, sentences()), 150, lr=0.3)


def a_leak_behind_a_loss_by_hand():
    """No mask, and a loss that no function of torch computes."""
    model = Model(causal=False)

    def loss_of():
        text = sentences()
        scores = model(text[:, :-1])
        log_share = scores - scores.exp().sum(-1, keepdim=True).log()
        return -log_share.gather(-1, text[:, 1:, None]).mean()

    train(model.parameters(), loss_of)


def stopped_after_one_step():
    """Ctrl-C after the first step of a script that never clears its gradients."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    next_token(model, sentences()).backward()
    optimizer.step()
    raise KeyboardInterrupt


globals()[sys.argv[1]]()
