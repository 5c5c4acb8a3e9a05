"""Cuts single calls of modules out of a tape: what goes in, what comes out, and the call as a function of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.graph.structure import meant_to_move
from traindoctor.tape.execute import part, replay
from traindoctor.tape.ops import PARAMETER, Op, Ref, is_foreign, refs_in
from traindoctor.tape.tape import StepTape

# All modules together, what is computed after the last of them, and what is computed between them.
MODEL, LOSS, SCRIPT = "(model)", "(loss)", "(script)"


@dataclass(frozen=True)
class Section:
    """The ops of one call of a module, what goes in and what comes out."""

    module: str
    ops: tuple[Op, ...]
    entries: tuple[Ref, ...]
    parameters: tuple[str, ...]
    exits: tuple[Ref, ...]

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Which ops of the tape it is: a section lies inside another whose numbers hold all of its own."""
        return frozenset(op.number for op in self.ops)

    @cached_property
    def hand_written(self) -> list[str]:
        """Functions and registered operators in it: their backward passes are not torch's."""
        names = {op.users_function.name for op in self.ops if op.users_function is not None}
        return sorted(names | {op.name for op in self.ops if is_foreign(op)})


def first_calls(tape: StepTape) -> list[Section]:
    """One per module of the first forward pass, the smallest first, and the loss."""
    ops = first_pass(tape)
    homes = homes_of(ops)
    owned = [op for op, home in zip(ops, homes) if home is not None]
    found = [cut(tape, name, calls_of(name, ops, homes)[0], ops) for name in names_in(homes)]
    if owned:
        found.append(cut(tape, MODEL, owned, ops))
        found.append(cut(tape, LOSS, after(ops, owned[-1]), ops))
    made = [section for section in found if section is not None]
    return sorted(made, key=lambda section: len(section.ops))


def all_calls(tape: StepTape) -> list[Section]:
    """Every call of every module of the first forward pass and what lies between them, the largest first.

    Where a module only passes on to another one, the inner one stands for both.
    """
    ops = first_pass(tape)
    homes = homes_of(ops)
    owned = [op for op, home in zip(ops, homes) if home is not None]
    pieces = [(name, call) for name in names_in(homes) for call in calls_of(name, ops, homes)]
    pieces.sort(key=lambda piece: piece[0].count("."), reverse=True)
    pieces += [(SCRIPT, run) for run in runs(ops, [home is None for home in homes])]
    if owned:
        pieces.append((LOSS, after(ops, owned[-1])))
        pieces.append((MODEL, owned))
    named: dict[frozenset[int], Section] = {}
    for name, chosen in pieces:
        section = cut(tape, name, chosen, ops)
        if section is not None:
            # The loss has a name of its own: it is no work between modules.
            if name == LOSS or section.numbers not in named:
                named[section.numbers] = section
    return sorted(named.values(), key=lambda section: len(section.ops), reverse=True)


def first_pass(tape: StepTape) -> list[Op]:
    """What the first root depends on, up to the first backward pass."""
    roots = [root.ref for root in tape.roots[:1] if root.ref is not None]
    return [op for op in tape.needed(roots) if op.segment == 0]


def homes_of(ops: Sequence[Op]) -> list[str | None]:
    """The module that each op runs in; a view that only ties an alias to its memory stays where it comes up."""
    homes: list[str | None] = []
    for op in ops:
        stays = op.module is None and op.synthetic and homes
        homes.append(homes[-1] if stays else op.module)
    return homes


def names_in(homes: Sequence[str | None]) -> list[str]:
    """Modules that run ops of their own or hold others that do, in the order in which they are met."""
    names: dict[str, None] = {}
    for home in homes:
        path = home or ""
        while path:
            names[path] = None
            path = path.rpartition(".")[0]
    return list(names)


def calls_of(name: str, ops: Sequence[Op], homes: Sequence[str | None]) -> list[list[Op]]:
    """Each call is the module's ops up to the first one of somebody else."""
    inner = name + "."
    return runs(ops, [h is not None and (h == name or h.startswith(inner)) for h in homes])


def runs(ops: Sequence[Op], inside: Sequence[bool]) -> list[list[Op]]:
    found: list[list[Op]] = []
    before = False
    for op, here in zip(ops, inside):
        if here and not before:
            found.append([])
        if here:
            found[-1].append(op)
        before = here
    return found


def after(ops: Sequence[Op], last: Op) -> list[Op]:
    return [op for op in ops if op.number > last.number]


def cut(tape: StepTape, name: str, chosen: list[Op], ops: Sequence[Op]) -> Section | None:
    """None where nothing of it depends on a parameter, or where it shares memory with what is around it."""
    made: set[Ref] = set()
    entries: dict[Ref, None] = {}
    parameters: dict[str, None] = {}
    for op in chosen:
        call = op.users_function
        outside = () if call is None else refs_in((call.args, call.kwargs))
        for ref in (*op.inputs, *outside):
            leaf = tape.name_of(ref)
            if leaf is not None:
                parameters[leaf] = None
            elif ref not in made and ref in tape.producer:
                entries[ref] = None
        made.update(ref for ref in op.outputs if ref is not None)
    numbers = {op.number for op in chosen}
    used = {ref for op in ops if op.number not in numbers for ref in op.inputs}
    used.update(root.ref for root in tape.roots if root.ref is not None)
    exits = [ref for ref in made if ref in used and made_of_parameters(tape, ref)]
    written = {ref for op in chosen for ref in op.writes if ref not in made}
    if not exits or written or not (entries or parameters):
        return None
    exits.sort(key=lambda ref: ref.index)
    return Section(name, tuple(chosen), tuple(entries), tuple(parameters), tuple(exits))


def made_of_parameters(tape: StepTape, ref: Ref) -> bool:
    """A function may also give back what it was given, a parameter itself: that is no result."""
    maker = tape.producer.get(ref)
    return maker is not None and bool(maker.depends_on & PARAMETER)


def as_function(tape: StepTape, section: Section) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """<fixed random cotangent, outputs> as a function of inputs and parameters in float64, and their values.

    Raises ReplayError where values pass that carry no gradient: differences would see what autograd is told not to.
    """
    if any(map(hides_a_path, section.ops)):
        raise ReplayError("it detaches values inside")
    given = replay(tape, want=section.entries) if section.entries else None
    live = [ref for ref in section.entries if given and given[ref].is_floating_point()]
    fixed = {ref: given[ref] for ref in section.entries if given and ref not in live}
    values = [given[ref].double() for ref in live] if given else []
    values += [tape.parameters[name].value.double() for name in section.parameters]
    return outputs_of(tape, section, live, fixed, values), values


def hides_a_path(op: Op) -> bool:
    """What it gives on moves with its inputs, and its gradient does not; inside of a Function that is its affair."""
    if op.kind == "detach":
        return op.users_function is None
    return not op.grad_enabled and op.function is None and bool(op.depends_on & PARAMETER)


def outputs_of(
    tape: StepTape,
    section: Section,
    live: Sequence[Ref],
    fixed: Mapping[Ref, Tensor],
    base: Sequence[Tensor],
) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)
    cotangents: dict[Ref, Tensor] = {}
    masks = [*(None for _ in live), *(meant_to_move(tape, name) for name in section.parameters)]

    def function(*values: Tensor) -> Tensor:
        moved = [
            value if mask is None else here + mask * (value - here)
            for value, here, mask in zip(values, base, masks)
        ]
        inputs = {**fixed, **dict(zip(live, moved))}
        weights = dict(zip(section.parameters, moved[len(live) :]))
        made = part(tape, section.ops, inputs, weights, section.exits, dtype=torch.float64)
        total = torch.zeros((), dtype=torch.float64)
        for ref in section.exits:
            out = made[ref]
            if out.is_floating_point():
                if ref not in cotangents:
                    cotangents[ref] = torch.randn(
                        out.shape, generator=generator, dtype=torch.float64
                    )
                total = total + (out * cotangents[ref].to(out.device)).sum()
        return total

    return function
