import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
SIZE, PATCH, LATENT = 16, 4, 8


def ellipses(n, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:SIZE, 0:SIZE] + 0.5
    cx, cy = rng.uniform(5, 11, (2, n, 1, 1))
    a, b = rng.uniform(2, 5, (2, n, 1, 1))
    th = rng.uniform(0, np.pi, (n, 1, 1))
    u = (xx - cx) * np.cos(th) + (yy - cy) * np.sin(th)
    v = -(xx - cx) * np.sin(th) + (yy - cy) * np.cos(th)
    return torch.tensor(((u / a) ** 2 + (v / b) ** 2 < 1).astype(np.float32))


def patchify(img):
    g = SIZE // PATCH
    return img.view(-1, g, PATCH, g, PATCH).permute(0, 1, 3, 2, 4).reshape(len(img), g * g, PATCH * PATCH)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        tokens = (SIZE // PATCH) ** 2
        self.lift = nn.Linear(PATCH * PATCH, dim)
        self.pos = nn.Parameter(torch.randn(tokens, dim) * 0.1)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.stats = nn.Linear(tokens * dim, 2 * LATENT)

    def forward(self, img):
        h = self.body(self.lift(patchify(img)) + self.pos)
        mu, logvar = self.stats(h.flatten(1)).chunk(2, dim=-1)
        return mu, logvar.clamp(-12, 6)


class VAE(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.enc = Encoder(dim)
        self.dec = nn.Sequential(nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                                 nn.Linear(128, SIZE * SIZE))

    def forward(self, img):
        mu, logvar = self.enc(img)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z).view_as(img), mu, logvar


@torch.no_grad()
def latent_summary(mu, logvar):
    kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp())
    return {"kl": kl.sum(-1).mean(), "active": (mu.var(0) > 0.05).sum(), "sigma": (0.5 * logvar).exp().mean()}


def elbo_terms(out, img, mu, logvar):
    recon = F.binary_cross_entropy_with_logits(out, img, reduction="none").sum((1, 2)).mean()
    info = latent_summary(mu, logvar)
    info["recon"] = recon.detach()
    return recon + info["kl"], info


def main(steps=300, batch=48):
    train, test = ellipses(4000, 1), ellipses(500, 2)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    gen = torch.Generator().manual_seed(2)
    for step in range(steps):
        img = train[torch.randint(0, len(train), (batch,), generator=gen)]
        out, mu, logvar = model(img)
        loss, info = elbo_terms(out, img, mu, logvar)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step:4d}  -elbo {loss.item():8.3f}  recon {info['recon'].item():8.3f}  kl {info['kl'].item():7.3f}"
                  f"  active {int(info['active'])}")
    model.eval()
    with torch.no_grad():
        out, mu, logvar = model(test)
        loss, info = elbo_terms(out, test, mu, logvar)
        prior = torch.sigmoid(model.dec(torch.randn(500, LATENT))).view(-1, SIZE, SIZE)
    print(f"test -elbo {loss.item():.3f}  prior-sample mean area {prior.sum((1, 2)).mean():.1f} (data {test.sum((1, 2)).mean():.1f})")


if __name__ == "__main__":
    main()
