import math
import torch
from torch import nn


def build_series(n_series, T, g):
    t = torch.arange(T).float()
    period = torch.randint(12, 40, (n_series, 1), generator=g).float()
    phase = torch.rand(n_series, 1, generator=g) * 2 * math.pi
    season = torch.sin(2 * math.pi * t / period + phase)
    slow = 0.5 * torch.sin(2 * math.pi * t / 350 + phase * 3)
    noise = torch.randn(n_series, T, generator=g) * 0.1
    level = torch.rand(n_series, 1, generator=g) * 100 + 20
    return level * (1 + 0.4 * season + 0.2 * slow + 0.2 * noise)


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, batch_first=True)
        with torch.no_grad():
            self.rnn.bias_ih_l0[hidden:2 * hidden].fill_(1.0)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x, state=None):
        h, state = self.rnn(x.unsqueeze(-1), state)

        return x + self.out(h).squeeze(-1), state


def run():
    torch.manual_seed(8)
    g = torch.Generator().manual_seed(8)
    data = build_series(64, 1400, g)
    split = 1000
    m, s = data[:, :split].mean(1, keepdim=True), data[:, :split].std(1, keepdim=True)
    z = (data - m) / s
    train, test = z[:, :split + 1], z[:, split:]
    naive = (test[:, 1:] - test[:, :-1]).pow(2).mean().item()
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    chunk = 50
    for epoch in range(14):
        state, losses = None, []
        for a in range(0, split, chunk):
            x, y = train[:, a:a + chunk], train[:, a + 1:a + chunk + 1]
            if state is not None:
                state = tuple(q.detach() for q in state)
            pred, state = model(x, state)

            sl = slice(10, None) if a == 0 else slice(None)
            loss = nn.functional.mse_loss(pred[:, sl], y[:, sl])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            _, st = model(train[:, :-1])
            pt, _ = model(test[:, :-1], st)
            te = (pt - test[:, 1:]).pow(2).mean().item()
        model.train()
        print(f"epoch {epoch:2d} train mse {sum(losses) / len(losses):.4f} test mse {te:.4f} (naive {naive:.4f})")


if __name__ == "__main__":
    run()
