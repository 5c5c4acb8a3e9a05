"""What is read from a tape without running it, and a tape without its dropout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.events import BackwardBegin, BackwardEnd
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.structure import Structure
from traindoctor.ground.names import Names
from traindoctor.tape.execute import replay
from traindoctor.tape.recorder import StepRecorder
from traindoctor.tape.tape import StepTape

D = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(D, D), nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(D, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.drop(F.gelu(self.inner(x)))
        scores = x @ x.transpose(1, 2)
        scores *= 0.25
        return (scores / 2.0).softmax(-1) @ x


@pytest.fixture
def tape() -> StepTape:
    torch.manual_seed(0)
    model = Block()
    names = Names(model)
    x = torch.randn(3, 5, D)
    recorder = StepRecorder(0, names)
    recorder.start()
    loss = model(x).square().mean()
    recorder.on(BackwardBegin([loss], True, 1.0))
    loss.backward()
    recorder.on(BackwardEnd([loss], 0.0))
    found = recorder.finish()
    recorder.close()
    return found


def test_attention_by_torch_and_by_hand_is_found(tape: StepTape) -> None:
    kinds = [a.kind for a in Structure(tape).attentions]
    assert kinds == ["multi_head_attention_forward", "softmax"]


def test_sums_around_a_part_are_told_from_parts_without_one(tape: StepTape) -> None:
    structure = Structure(tape)
    built_in, by_hand = structure.attentions
    around = structure.bypass(built_in.output)
    assert around is not None
    assert structure.depends(around[1], built_in.output)
    assert not structure.depends(around[2], built_in.output)
    assert structure.bypass(by_hand.output) is None
    assert len(structure.additions) == 2


class Parallel(nn.Module):
    """Attention and MLP beside each other, with the input added to them or not."""

    def __init__(self, around: bool) -> None:
        super().__init__()
        self.around = around
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.up, self.down = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(x, x, x, need_weights=False)[0]
        inner = self.down(F.gelu(self.up(x)))
        return x + mixed + inner if self.around else mixed + inner


@pytest.mark.parametrize("around", [True, False])
def test_an_mlp_beside_the_attention_is_no_way_around_it(around: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(D, D), Parallel(around)), torch.randn(3, 5, D)
    tape = tape_step(lambda: model(x).square().mean(), model)
    structure = Structure(tape)
    activation = next(op.outputs[0] for op in tape.ops if op.name == "gelu")
    for inside in (structure.attentions[0].output, activation):
        assert (structure.bypass(inside) is not None) == around


class Carried(nn.Module):
    """A memory that goes from segment to segment: what is added to it depends on other data than it does."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.carry, self.read = nn.Embedding(5, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        memory = torch.zeros(len(x), D)
        for place in range(x.shape[1]):
            memory = self.carry(memory) + self.read(self.token(x[:, place])).tanh()
        return memory


def test_a_memory_that_is_carried_along_leads_around() -> None:
    torch.manual_seed(0)
    model, x = Carried(), torch.randint(5, (3, 4))
    tape = tape_step(lambda: model(x).square().mean(), model)
    structure = Structure(tape)
    written = [op.outputs[0] for op in tape.ops if op.name == "tanh"]
    assert all(structure.bypass(ref) is not None for ref in written[1:])


def test_numbers_that_multiply_are_read_also_in_place(tape: StepTape) -> None:
    structure = Structure(tape)
    division = next(op for op in tape.ops if op.name in ("div", "__truediv__"))
    assert structure.scalar_factor(division) == 0.5
    assert structure.factor_in_place(division.inputs[0]) == 0.25


def test_a_tape_without_dropout_gives_the_evaluation_loss(tape: StepTape) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    expected = model(torch.randn(3, 5, D)).square().mean().detach()
    bare = without_dropout(tape)
    assert float(replay(bare).loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(replay(tape).loss) != pytest.approx(float(expected), rel=1e-3)
