"""A random state that comes back is the same number again, whichever generator the script draws from."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from traindoctor.probes.random_state import state_crc

SEEDS = {"torch": torch.manual_seed, "python": random.seed, "numpy": np.random.seed}
DRAWS = {
    "torch": lambda: torch.rand(3),
    "python": random.random,
    "numpy": lambda: np.random.rand(3),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_seeded_again_is_the_same_and_drawn_from_is_another(kind: str) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        SEEDS[kind](7)
        first = state_crc()
        DRAWS[kind]()
        assert state_crc() != first
        SEEDS[kind](7)
        assert state_crc() == first
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])
