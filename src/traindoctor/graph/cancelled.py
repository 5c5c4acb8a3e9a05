"""Which matrices get rounding for a gradient: what is made of them cancels before it reaches the loss's main term."""

import torch

from traindoctor.graph.terms import terms_of
from traindoctor.tape.execute import replay
from traindoctor.tape.tape import StepTape

# A gradient that is rounding shrinks with the unit in the last place, by 2e9 from float32 to float64: one that was divided
# by itself had 1e-9 of it left, and all others have 1 to four digits.
SHRINKS = 1e-6


def cancelled(tape: StepTape) -> list[str]:
    """A term beside it (a balance of experts) may give them a gradient of its own."""
    if not tape.roots or tape.roots[-1].ref is None:
        return []
    terms = terms_of(tape, tape.roots[-1].ref)
    values = replay(tape, want=terms)
    main = max(terms, key=lambda ref: abs(float(values[ref].detach().sum())))
    coarse, fine = (
        (made := replay(tape, dtype=dtype, gradients=True, want=[main])).gradients_of(
            made[main].sum()
        )
        for dtype in (None, torch.float64)
    )
    found = []
    for name, gradient in coarse.items():
        exact = fine[name]
        if gradient is None or exact is None or gradient.is_sparse or gradient.ndim < 2:
            continue
        size = float(gradient.double().norm())
        if size > 0 and float(exact.norm()) < SHRINKS * size:
            found.append(name)
    return found
