"""Every walk over a tape ends, whatever functions return: themselves, what was there before, what they wrote to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.errors import ReplayError
from traindoctor.exams.attention_scores import scale_of
from traindoctor.exams.first_nonfinite import chain
from traindoctor.exams.gradient_flow import fed_on
from traindoctor.exams.printed_loss import terms_of
from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import depends_on, walk_back
from traindoctor.graph.sections import all_calls, first_calls
from traindoctor.graph.structure import Structure
from traindoctor.graph.unit_norms import gain_after
from traindoctor.ground.names import Names
from traindoctor.ground.nested import replace, tensors_in
from traindoctor.tape.faithful import distance_from_step
from traindoctor.tape.ops import DATA, PARAMETER, Geometry, Leaf, Op, Ref, Root, refs_in
from traindoctor.tape.tape import StepTape

NUM_REFS = 7
NAMES = "to view detach add add_ mul mul_ normalize softmax matmul log clone sum gather __rdiv__".split()
refs = st.integers(0, NUM_REFS - 1).map(Ref)


@st.composite
def made_up_tapes(draw: st.DrawFn) -> StepTape:
    """Ops that may give back any Ref: their own input, a parameter, a constant, what a later op takes first."""
    ops = []
    for number in range(draw(st.integers(1, 12))):
        inputs = tuple(dict.fromkeys(draw(st.lists(refs, max_size=3))))
        written = tuple(dict.fromkeys(draw(st.lists(refs, max_size=2))))
        ops.append(
            Op(
                number=number,
                name=draw(st.sampled_from(NAMES)),
                func=torch.add,
                args=inputs,
                kwargs={},
                inputs=inputs,
                outputs=tuple(draw(st.lists(st.none() | refs, max_size=2))),
                writes=written,
                depends_on=draw(st.integers(0, PARAMETER | DATA)),
                module=draw(st.sampled_from([None, "a", "a.b", "a.b.c"])),
                index=draw(st.sampled_from([None, torch.zeros(1, 1, dtype=torch.long)])),
            )
        )
    geometry = [Geometry(draw(st.integers(0, 3)), (1, 1), (1, 1), 0) for _ in range(NUM_REFS)]
    return StepTape(
        step=0,
        ops=ops,
        geometry=geometry,
        parameters={"w": Leaf(Ref(0), torch.ones(1, 1))},
        constants={Ref(1): torch.ones(1, 1)},
        data=[Ref(1)],
        roots=[Root(draw(refs), 1.0)],
        given={},
        fresh={},
        added={},
    )


@settings(max_examples=300, deadline=None)
@given(made_up_tapes())
def test_makers_stand_before_what_they_make_of(tape: StepTape) -> None:
    for ref, op in tape.producer.items():
        assert ref not in op.inputs
        above = [tape.producer[r].number for r in op.inputs if r in tape.producer]
        assert all(number < op.number for number in above)


@pytest.mark.timeout(300)
@settings(max_examples=300, deadline=None)
@given(made_up_tapes())
def test_walks_end(tape: StepTape) -> None:
    structure = Structure(tape)
    for ref in map(Ref, range(NUM_REFS)):
        walked = [op.number for _, op in walk_back(tape, ref) if op is not None]
        assert walked == sorted(set(walked), reverse=True)
        assert len(list(structure.up(ref))) <= len(tape.ops)
        assert len(terms_of(tape, ref)) <= NUM_REFS
        scale_of(structure, ref)
        structure.bypass(ref)
        depends_on(tape, ref)
    for op in tape.ops:
        gain_after(structure, op)
        fed_on(structure, op, [root.ref for root in tape.roots if root.ref is not None])
        chain(tape, op)
    assert structure.attentions is not None
    assert structure.weighted_sums is not None
    all_calls(tape)
    first_calls(tape)


class GivesBack(nn.Module):
    """`.to()`, `.float()` and `.contiguous()` that change nothing, on parameters and on what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens.to(torch.long)).float().contiguous()
        x = F.normalize(x, dim=-1).to(torch.float32)
        x = self.scale.to(torch.float32).float() * x.float()
        return self.head(x.contiguous())


@pytest.mark.timeout(300)
def test_functions_that_give_back_what_they_were_given() -> None:
    torch.manual_seed(0)
    model = GivesBack()
    tokens = torch.randint(0, 11, (4, 6))

    def step() -> Tensor:
        logits = model(tokens[:, :-1])
        weights = F.one_hot(tokens[:, 1:].reshape(-1), 11) * logits.reshape(-1, 11).log_softmax(-1)
        return -weights.sum() / weights.shape[0]

    tape = tape_step(step, model)
    itself = [op for op in tape.ops if op.name == "to" and set(op.outputs) & set(op.inputs)]
    assert itself, "no function on the tape gave back its own input"
    for op in itself:
        assert all(len(list(walk_back(tape, ref))) <= len(tape.ops) for ref in op.inputs)
    assert [site.weight for site in input_sites(tape)] == ["table.weight"]
    assert loss_sites(tape)[0].num_classes == 11
    assert {section.module for section in all_calls(tape)} >= {"(model)", "head"}
    assert distance_from_step(tape) < 1e-6


def test_a_long_chain_is_no_deep_recursion() -> None:
    """Ten thousand sums one after the other, behind a pick: as a recursion it would overflow the stack."""
    ops = [
        Op(n, "add", torch.add, (Ref(n),), {}, (Ref(n),), (Ref(n + 1),), depends_on=3)
        for n in range(10_000)
    ]
    last = len(ops)
    index = torch.zeros(1, 1, dtype=torch.long)
    picked = (Ref(last), -1, Ref(last + 1))
    pick = Op(last, "gather", torch.gather, picked, {}, (picked[0], picked[2]), (Ref(last + 2),))
    pick.index = index
    tape = StepTape(
        step=0,
        ops=[*ops, pick],
        geometry=[Geometry(n, (1, 1), (1, 1), 0) for n in range(last + 3)],
        parameters={},
        constants={Ref(last + 1): index},
        data=[Ref(last + 1)],
        roots=[],
        given={},
        fresh={},
        added={},
    )
    assert loss_sites(tape) == []


def endless() -> list[Any]:
    made: list[Any] = []
    made += [made, made]
    return made


def test_arguments_that_hold_themselves_are_refused() -> None:
    for walk in (tensors_in, refs_in):
        with pytest.raises(ReplayError, match="holds itself"):
            list(walk((1, endless())))
    nested: Any = 1
    for _ in range(5_000):
        nested = [nested]
    assert list(tensors_in(nested)) == []
    with pytest.raises(ReplayError, match="holds itself"):
        replace(nested, Tensor, lambda tensor: tensor)


def test_leaves_come_in_order() -> None:
    one, two, three, four = (torch.tensor(float(n)) for n in range(4))
    tree = (one, {"a": [two, 5], "b": slice(three, None, "x")}, (), [[four]], one)
    assert list(map(id, tensors_in(tree))) == list(map(id, (one, two, three, four, one)))


def test_a_name_met_ten_thousand_times_stays_short() -> None:
    """Scripts that make the model anew for each task: names must not grow with their number."""
    names, alive = Names(), []
    for _ in range(10_000):
        parameter = nn.Parameter(torch.zeros(1))
        alive.append(parameter)
        names._put(parameter, "w", "parameter")
    given = [names.of(parameter) for parameter in alive]
    assert given[:4] == ["w", "w'", "w'2", "w'3"]
    assert len(set(given)) == len(given)
    assert max(map(len, given)) < 10
