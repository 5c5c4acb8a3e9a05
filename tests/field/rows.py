"""The programs of the field as a table: how each is started, how it ends, and where it can run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Programs that are about how Python starts or ends, of several launched processes, and two of the ordinary ones: they are
# started anew. The others are forked off a process that has imported torch already, where a test may.
FRESH = frozenset(
    "models/language_model optimizers/lookahead environment/as_main environment/look_up_first "
    "environment/settings_before_import environment/closed_stderr endings/leave package/sub/train "
    "processes/child_trains processes/child_does_not_train".split()
)


class Launch(Enum):
    """How a program is started; the attached run puts `traindoctor run` at the matching place."""

    SCRIPT = "python program.py"
    MODULE = "python -m program"
    RANKS = "torchrun with two ranks, each attached by itself"
    LAUNCHER = "traindoctor run -m torch.distributed.run with two ranks"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program of `programs/` and what is known about its run."""

    program: str
    arguments: tuple[str, ...] = ()
    launch: Launch = Launch.SCRIPT
    python_options: tuple[str, ...] = ()
    stdin: str = ""
    status: int = 0
    steps: int = 1
    """Optimizer steps that the record must hold at least: proof that the attached run was watched."""
    exams: bool = False
    """With exams after the end and the verdict on standard error; otherwise --after 0 --quiet."""
    verdicts: int = 1
    """Verdicts told by a run with exams: one, or none where the process is gone at once (os._exit)."""
    cpu: bool = True
    cuda: bool = True
    slow: bool = False
    several_writers: bool = False
    """Several processes write to the streams at once: their lines are compared in any order."""
    needs: tuple[str, ...] = ()
    """Packages beyond torch and numpy."""
    seconds: float = 240.0
    """A guard against hangs, wide enough for a busy machine."""

    @property
    def warm(self) -> bool:
        alone = self.launch in (Launch.SCRIPT, Launch.MODULE)
        return alone and not self.python_options and self.program not in FRESH

    @property
    def name(self) -> str:
        tail = ["launcher"] if self.launch is Launch.LAUNCHER else []
        return "-".join([self.program, *self.python_options, *self.arguments, *tail])


OPTIMIZERS = (
    Row(program="optimizers/lookahead", exams=True),
    Row(program="optimizers/sam"),
    Row(program="optimizers/lion", exams=True),
    Row(program="optimizers/muon"),
    Row(program="optimizers/shampoo"),
    Row(program="optimizers/eight_bit", exams=True),
    Row(program="optimizers/schedule_free"),
    Row(program="optimizers/sgld", arguments=("global",)),
    Row(program="optimizers/sgld", arguments=("generator",), exams=True, slow=True),
    Row(program="optimizers/sgld", arguments=("stdlib",), exams=True),
    Row(program="optimizers/keeps_books", exams=True),
    Row(program="optimizers/master_weights", exams=True, slow=True),
    Row(program="optimizers/lbfgs"),
    Row(program="optimizers/of_torch", slow=True),
    Row(program="optimizers/of_torch", arguments=("adafactor",), exams=True, slow=True),
    Row(program="optimizers/hand_written_sgd", exams=True),
    Row(program="optimizers/raw_tensors", exams=True, steps=60),
    Row(program="optimizers/in_backward", slow=True),
    Row(program="optimizers/sparse_adam", slow=True),
    Row(program="optimizers/ema"),
    Row(program="optimizers/container", exams=True),
)
MODELS = (
    Row(program="models/language_model", exams=True, steps=60),
    Row(program="models/maml"),
    Row(program="models/dcgan"),
    Row(program="models/vae", exams=True),
    Row(program="models/siamese"),
    Row(program="models/reinforce"),
    Row(program="models/dqn", slow=True),
    Row(program="models/gat"),
    Row(program="models/wgan_gp", slow=True),
    Row(program="models/distillation", slow=True),
    Row(program="models/copy_task", exams=True, slow=True),
    Row(program="models/fast_paths", exams=True),
    Row(program="models/accumulation", exams=True, slow=True),
    Row(program="models/gradient_cache", slow=True),
    Row(program="models/several_losses", slow=True),
    Row(program="models/own_containers", exams=True),
    Row(program="models/recurrent", slow=True),
)
NUMERICS = (
    Row(program="numerics/autocast_nested", exams=True),
    Row(program="numerics/grad_scaler", exams=True),
    Row(program="numerics/default_dtype", arguments=("float64",), slow=True),
    Row(program="numerics/default_dtype", arguments=("bfloat16",), exams=True),
    Row(program="numerics/default_device", exams=True),
    Row(program="numerics/bf16_parameters", exams=True, slow=True),
    Row(program="numerics/complex_parameters", exams=True),
    Row(program="numerics/nested_tensors", slow=True),
    Row(program="numerics/without_data", exams=True, steps=12),
    Row(program="numerics/deterministic", exams=True),
    Row(program="numerics/inference_mode", slow=True),
)
COMPILERS = (
    Row(program="compilers/jit_script"),
    Row(program="compilers/jit_losses"),
    Row(program="compilers/jit_trace", slow=True),
    Row(program="compilers/export", exams=True),
    Row(program="compilers/compile_breaks", arguments=("eager",), slow=True),
    Row(program="compilers/compile_breaks", arguments=("aot_eager",), exams=True),
    Row(program="compilers/compile_inside", arguments=("module",), slow=True),
    Row(program="compilers/compile_inside", arguments=("function",)),
    Row(program="compilers/compile_whole", arguments=("aot_eager",), slow=True),
    Row(program="compilers/compile_whole", arguments=("inductor",), slow=True),
    Row(program="compilers/compile_whole", arguments=("inductor", "reduce-overhead"), cpu=False),
)
AUTOGRAD = (
    Row(program="autograd/drawing_operators", cuda=False, exams=True),
    Row(program="autograd/functorch"),
    Row(program="autograd/custom_function", exams=True),
    Row(program="autograd/by_address", exams=True),
    Row(program="autograd/checkpointing"),
    Row(program="autograd/parametrizations", exams=True, slow=True),
    Row(program="autograd/own_modes"),
    Row(program="autograd/tensor_subclass", slow=True),
    Row(program="autograd/second_order", slow=True),
    Row(program="hooks/of_modules", exams=True),
    Row(program="hooks/of_tensors", exams=True),
    Row(program="hooks/of_everything"),
    Row(program="hooks/numbered"),
    Row(program="hooks/in_torchs_place", exams=True),
)
SAVING = (
    Row(program="saving/pickles"),
    Row(program="saving/resume", exams=True),
    Row(program="saving/deepcopies", slow=True),
    Row(program="saving/inspect_torch"),
)
PROCESSES = (
    Row(program="processes/workers", arguments=("fork",), exams=True),
    Row(program="processes/workers", arguments=("spawn",)),
    Row(program="processes/workers", arguments=("forkserver",), slow=True),
    Row(program="processes/workers_late"),
    # A child that was forked from a process with CUDA cannot use CUDA.
    Row(program="processes/hogwild", arguments=("fork", "spawn"), cuda=False),
    Row(program="processes/child_trains", exams=True),
    Row(program="processes/child_does_not_train"),
    Row(program="processes/fork", exams=True, cuda=False),
    Row(program="processes/pools", slow=True),
    Row(program="processes/threads", steps=0, exams=True),
    Row(program="processes/coroutines", slow=True),
)
ENVIRONMENT = (
    Row(program="environment/look_up_first", exams=True),
    Row(program="environment/settings_before_import", slow=True),
    Row(program="environment/as_main", arguments=("--out", "x", "--quiet"), stdin="one\ntwo\n"),
    Row(program="environment/closed_stderr", slow=True),
    Row(program="environment/signals", status=7),
    Row(program="environment/tracing", slow=True),
    Row(program="environment/profiler"),
    Row(program="environment/joined_batches", exams=True),
    Row(program="environment/warnings_counted"),
    Row(program="environment/warnings_counted", python_options=("-W", "always"), slow=True),
    Row(program="environment/warnings_are_errors", exams=True),
    Row(program="environment/live_tensors"),
    Row(program="environment/weak_references"),
    Row(program="environment/swapped_tensors", exams=True),
    Row(program="environment/threads_and_globals"),
    Row(program="environment/side_effects", exams=True),
    Row(
        program="package/sub/train",
        arguments=("--lr", "0.001", "--out", "y", "-m", "--quiet", "--after", "3"),
        launch=Launch.MODULE,
    ),
)
# Places where a program can fail, with whether the message is the same on a GPU (a bad token is not:
# the kernel only stops).
PLACES = {
    "forward": True,
    "token": False,
    "shape": True,
    "loss": True,
    "hook": True,
    "backward": True,
    "step": True,
    "between": True,
    "memory": True,
}
FAST_PLACES = ("hook", "step")
ENDINGS = (
    *(
        Row(
            program="endings/error",
            arguments=(place,),
            status=1,
            exams=place in ("hook", "between", "token"),
            slow=place not in FAST_PLACES,
            cuda=on_gpu,
        )
        for place, on_gpu in PLACES.items()
    ),
    Row(program="endings/caught_errors"),
    Row(program="endings/leave", arguments=("status",), status=3, exams=True),
    Row(program="endings/leave", arguments=("message",), status=1, slow=True),
    Row(program="endings/leave", arguments=("os-exit",), status=4, verdicts=0, exams=True),
    Row(program="endings/leave", arguments=("interrupt",), status=-2),
    Row(program="endings/leave", arguments=("sigint",), status=-2, slow=True),
    Row(program="endings/leave", arguments=("sigterm",), status=-15, slow=True),
    Row(program="endings/leave", arguments=("kill",), status=-9, slow=True),
    Row(program="endings/leave", arguments=("exit-handler-fails",), slow=True),
)
DISTRIBUTED = tuple(
    Row(program=program, launch=launch, cuda=False, several_writers=True, slow=slow, exams=exams)
    for program, launch, slow, exams in (
        ("distributed/ddp", Launch.RANKS, False, True),
        ("distributed/ddp", Launch.LAUNCHER, True, True),
        ("distributed/fsdp", Launch.RANKS, True, False),
        ("distributed/fsdp", Launch.LAUNCHER, True, False),
        ("distributed/tensor_parallel", Launch.RANKS, False, True),
        ("distributed/tensor_parallel", Launch.LAUNCHER, True, False),
    )
)
LIBRARIES = (
    Row(program="libraries/hugging_face", needs=("transformers", "accelerate"), slow=True),
    Row(program="libraries/lightning_trainer", needs=("lightning",), slow=True),
)
GPU = (
    Row(program="gpu/streams", cpu=False, exams=True),
    Row(program="gpu/cuda_graph", cpu=False),
    Row(program="gpu/workers", cpu=False, exams=True),
    Row(program="gpu/amp_recipe", cpu=False, exams=True),
    Row(program="gpu/recurrent_dropout", cpu=False, exams=True),
)
ROWS: tuple[Row, ...] = (
    *OPTIMIZERS,
    *MODELS,
    *NUMERICS,
    *COMPILERS,
    *AUTOGRAD,
    *SAVING,
    *PROCESSES,
    *ENVIRONMENT,
    *ENDINGS,
    *DISTRIBUTED,
    *LIBRARIES,
    *GPU,
)
