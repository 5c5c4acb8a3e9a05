import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 24


def scene(n, gen):
    g = torch.arange(SIZE).float()
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    img = 0.5 * torch.randn(n, SIZE, SIZE, generator=gen)
    mask = torch.zeros(n, SIZE, SIZE)
    stripes = torch.sin(xx * 0.9 + yy * 0.4)
    for i in range(n):
        c = torch.rand(2, 2, generator=gen) * (SIZE - 8) + 4
        r = torch.rand(2, generator=gen) * 3 + 2
        for (cy, cx), rad in zip(c, r):
            mask[i] = torch.maximum(mask[i], ((yy - cy) ** 2 + (xx - cx) ** 2 < rad ** 2).float())
    img = img + torch.where(mask > 0, stripes.roll(3, 1), stripes) + 0.5 * mask
    return img.unsqueeze(1), mask.unsqueeze(1)


def double(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.SiLU(),
                         nn.Conv2d(cout, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.SiLU())


class MiniUNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.d1, self.d2 = double(1, w), double(w, 2 * w)
        self.u1 = double(3 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        up = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(self.u1(torch.cat([a, up], 1)))


class WeightAverage:
    def __init__(self, net, decay=0.998):
        self.decay = decay
        self.avg = {k: v.detach().clone() for k, v in net.state_dict().items()}

    @torch.no_grad()
    def update(self, net):
        for k, v in net.state_dict().items():
            self.avg[k].lerp_(v, 1 - self.decay)

    def load_into(self, net):
        net.load_state_dict(self.avg)
        return net


def dice_bce(logit, mask):
    p = logit.sigmoid()
    dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
    return F.binary_cross_entropy_with_logits(logit, mask) + 0.5 * dice


@torch.no_grad()
def iou(net, x, m):
    p = net(x) > 0
    t = m > 0
    return ((p & t).sum() / (p | t).sum()).item()


def main(seed=14, steps=260, bs=16):
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    x, m = scene(400, gen)
    xv, mv = scene(80, gen)
    net = MiniUNet()
    mean = WeightAverage(net)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(1, steps + 1):
        i = torch.randint(0, len(x), (bs,))
        loss = dice_bce(net(x[i]), m[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean.update(net)
        if step % 13 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 26 == 0:
            smooth = mean.load_into(copy.deepcopy(net))
            print(f"   averaged-weights IoU {iou(smooth, xv[:40], mv[:40]):.4f}", flush=True)
    print(f"final IoU {iou(net, xv, mv):.4f}")


if __name__ == "__main__":
    main()
