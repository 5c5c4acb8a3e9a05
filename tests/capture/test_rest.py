"""Where listening alone is too dear, the dear listeners rest; the first steps are heard in full."""

from __future__ import annotations

from traindoctor.capture.rest import FIRST_STEPS, LONGEST, NEVER, Rest


def run(
    costs: dict[str, float], *, budget: float = 0.02, step: float = 0.05, steps: int = 400
) -> Rest:
    rest = Rest(budget)
    for number in range(steps):
        for name, seconds in costs.items():
            if rest.attentive(number) or name not in rest.resting:
                rest.always(name, seconds)
        rest.end_step(number, step)
        if number < FIRST_STEPS - 1:
            assert rest.stride == 1
    return rest


def test_cheap_listeners_never_rest() -> None:
    rest = run({"loss": 5e-5, "batches": 2e-4})
    assert rest.stride == 1
    assert not rest.resting


def test_the_dearest_rest_until_the_others_fit() -> None:
    rest = run({"loss": 5e-5, "batches": 9e-4, "targets": 6e-4, "modes": 1e-5})
    assert rest.resting == {"batches", "targets"}
    cost = 6e-5 + 1.5e-3 / rest.stride
    assert cost <= 0.5 * 0.02 * 0.05
    assert rest.stride in (4, 8)


def test_what_a_curve_needs_is_always_heard() -> None:
    rest = run(dict.fromkeys(NEVER, 0.001) | {"batches": 1e-3})
    assert rest.resting == {"batches"}
    assert rest.stride == LONGEST


def test_ranks_share_steps_whatever_their_strides() -> None:
    quick, slow = run({"batches": 6e-4, "targets": 3e-4}), run({"batches": 5e-3})
    common = [n for n in range(1000, 1100) if quick.attentive(n) and slow.attentive(n)]
    assert len(common) >= 100 // LONGEST
