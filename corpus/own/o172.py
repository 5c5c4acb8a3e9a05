import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(19)

conf = dict(d_model=48, heads=4, layers=4, ff=96, ctx=10, batch=24, steps=150, lr=0.05, warmup=0)
mix = torch.randn(6, 6)


def trajectories(n):
    x = torch.randn(n, conf["ctx"], 6)
    order = torch.arange(conf["ctx"]) / conf["ctx"]
    y = torch.tanh((x * order[None, :, None]).sum(1) @ mix * 0.3)
    return x, 3 * y


class StateEstimator(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.inp = nn.Linear(6, c["d_model"])
        self.pos = nn.Parameter(torch.randn(c["ctx"], c["d_model"]) * 0.5)
        layer = nn.TransformerEncoderLayer(c["d_model"], c["heads"], c["ff"], dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.stack = nn.TransformerEncoder(layer, c["layers"], enable_nested_tensor=False)
        self.out = nn.Linear(c["d_model"], 6)

    def forward(self, x):
        return self.out(self.stack(self.inp(x) + self.pos).mean(1))


model = StateEstimator(conf)
opt = torch.optim.SGD(model.parameters(), lr=conf["lr"], momentum=0.9)
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min(1.0, (s + 1) / max(1, conf["warmup"])))
for step in range(conf["steps"]):
    x, y = trajectories(conf["batch"])
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 15 == 0 or step == conf["steps"] - 1:
        print(f"step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f}")
