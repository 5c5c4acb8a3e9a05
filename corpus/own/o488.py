import torch, torch.nn as nn, torch.optim as optim

torch.manual_seed(42)


def rectangles(n):
    img = torch.full((n, 1, 8, 8), -1.0)
    x0 = torch.randint(0, 5, (n,)); y0 = torch.randint(0, 5, (n,))
    w = torch.randint(2, 5, (n,)); h = torch.randint(2, 5, (n,))
    r = torch.arange(8)
    mx = (r[None] >= x0[:, None]) & (r[None] < (x0 + w)[:, None])
    my = (r[None] >= y0[:, None]) & (r[None] < (y0 + h)[:, None])
    img[(my[:, :, None] & mx[:, None, :]).unsqueeze(1)] = 1.0
    return img

gen = nn.Sequential(
    nn.Linear(16, 48 * 4), nn.ReLU(), nn.Unflatten(1, (48, 2, 2)),
    nn.ConvTranspose2d(48, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 1, 3, 1, 1), nn.Tanh())
critic = nn.Sequential(
    nn.Conv2d(1, 16, 3, 1, 1), nn.LeakyReLU(0.2),
    nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Conv2d(32, 48, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Flatten(), nn.Linear(192, 1))

opt_g = optim.Adam(gen.parameters(), lr=8e-4, betas=(0.0, 0.9))
opt_c = optim.Adam(critic.parameters(), lr=8e-4, betas=(0.0, 0.9))
LAMBDA, N_CRITIC, BS = 10.0, 3, 32

def gradient_penalty(real, fake):
    a = torch.rand(real.size(0), 1, 1, 1)
    mix = (a * real + (1 - a) * fake).requires_grad_(True)
    out = critic(mix)
    g = torch.autograd.grad(out, mix, grad_outputs=torch.ones_like(out), create_graph=True)[0]
    return ((g.flatten(1).norm(2, dim=1) - 1) ** 2).mean()

def moments(x):
    f = x.flatten(1)
    return f.mean(0), torch.cov(f.T)

ref_m, ref_c = moments(rectangles(5000))

for it in range(150):
    for _ in range(N_CRITIC):
        real = rectangles(BS)
        with torch.no_grad():
            fake = gen(torch.randn(BS, 16))
        w_dist = critic(real).mean() - critic(fake).mean()
        gp = gradient_penalty(real, fake)
        c_loss = -w_dist + LAMBDA * gp
        opt_c.zero_grad()
        c_loss.backward()
        opt_c.step()
    for p in critic.parameters():
        p.requires_grad = False
    g_loss = -critic(gen(torch.randn(BS, 16))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    for p in critic.parameters():
        p.requires_grad = True
    if it % 10 == 0 or it == 149:
        gen.eval()
        with torch.no_grad():
            m, c = moments(gen(torch.randn(1000, 16)))
        gen.train()
        print(f"iter {it} critic {c_loss.item():.3f} W {w_dist.item():.3f} gp {gp.item():.4f} gen {g_loss.item():.3f} "
              f"| mean err {(m - ref_m).norm().item():.3f} cov err {(c - ref_c).norm().item():.3f}")
