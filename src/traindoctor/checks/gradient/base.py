"""What the checks of this family share: clipping that meets gradients before the scaler's factor is taken out."""

from dataclasses import dataclass

from traindoctor.checks.optimizer.base import groups_of
from traindoctor.record import Record

NO_CURE = "no single change was found that fixes it"
# A clip call in the wrong place is there at every step.
SHARE = 0.9
# Norm over limit, in the middle of the run. Healthy runs have 0.4 to 2.4, one with a bad start 40; the sick
# one 2550. That every step is clipped says nothing: healthy warm-ups have that.
RATIO = 30.0


@dataclass(frozen=True)
class ClippedScaled:
    """Clip calls between a scaled backward pass and `unscale_`."""

    calls: int
    factor: float
    since: int
    ratio: float
    """Norm of the scaled gradients over the limit."""
    undone: bool
    """The optimizer divides by the gradients' own size, as Adam does."""

    @property
    def acts(self) -> bool:
        return self.ratio >= RATIO and not self.undone


def clipped_while_scaled(record: Record) -> ClippedScaled | None:
    """None where gradients are unscaled first, or the scaler's factor is 1."""
    scale, scaled = record.get("scaler.scale"), record.get("clip.scaled")
    if scale is None or scaled is None or not len(scale.finite()) or not len(scaled):
        return None
    factor = scale.finite().median()
    wrong = scaled.where(lambda values: values > 0)
    if factor <= 1 or len(wrong) < SHARE * len(scaled):
        return None
    norms, limits = record.get("grad.norm"), record.get("clip.limit")
    ratio = 0.0
    if norms is not None and limits is not None and len(norms.finite()) and len(limits.finite()):
        ratio = norms.finite().median() / max(limits.finite().median(), 1e-30)
    return ClippedScaled(
        calls=len(wrong),
        factor=factor,
        since=int(wrong.steps[0]),
        ratio=ratio,
        undone=any(group.get("betas") is not None for group in groups_of(record)),
    )
