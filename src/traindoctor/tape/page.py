"""A draft and all who write on it: one step, or what follows in it when its weights have changed."""

from __future__ import annotations

from traindoctor.ground.names import Names
from traindoctor.tape.draft import Draft
from traindoctor.tape.op_writer import OpWriter
from traindoctor.tape.running_functions import RunningFunctions
from traindoctor.tape.step_gradients import StepGradients
from traindoctor.tape.tensors import TensorTable


class Page:
    """What begins anew where a script changes weights between two backward passes."""

    def __init__(self, step: int, names: Names, max_bytes: int) -> None:
        self.draft = Draft(step, names, max_bytes)
        self.functions = RunningFunctions(names)
        self.tensors = TensorTable(self.draft, self.functions)
        self.gradients = StepGradients(self.draft, self.tensors)
        self.writer = OpWriter(self.draft, self.tensors, self.functions)

    def clear(self) -> None:
        """From then on it holds no tensor of the script's, and no hook of ours is on one."""
        self.functions.clear()
        self.tensors.clear()
        self.gradients.close()
