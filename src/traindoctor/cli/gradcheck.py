"""traindoctor gradcheck module:function"""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import click

from traindoctor.cli.completion import files, json_option
from traindoctor.errors import TraindoctorError


@click.command("gradcheck")
@click.argument("target", metavar="MODULE:FUNCTION", shell_complete=files)
@json_option(
    "Also write the answer as JSON; - for standard output (what the module prints goes to standard error)."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random directions.")
def command(target: str, json_file: str | None, seed: int) -> int:
    """Test a hand-written gradient against its forward.

    MODULE is a module or a file, FUNCTION a function without arguments in it that returns what is to be tested:
    `(fn, inputs)`, or `(fn, inputs, reference)`. fn is a function, an nn.Module, an autograd.Function's apply or a
    traindoctor Adapter around C code. Exit status: 0 all pass, 1 something is wrong, 3 it cannot be decided.
    """
    from traindoctor.cli.compare import write_json
    from traindoctor.cli.stdout_alone import stdout_for_json

    json_to = stdout_for_json() if json_file == "-" else json_file
    module, _, name = target.rpartition(":")
    if not module or not name:
        raise TraindoctorError(f"expected MODULE:FUNCTION (my_kernels:case), got {target!r}")
    case = getattr(_load(module), name, None)
    if case is None:
        raise TraindoctorError(f"{module} has no function {name!r}")
    made = case() if callable(case) else case
    if not isinstance(made, tuple | list) or not 2 <= len(made) <= 3:
        raise TraindoctorError(
            f"{target} must give (fn, inputs) or (fn, inputs, reference), got {type(made).__name__}"
        )
    from traindoctor.exams.gradcheck import gradcheck

    result = gradcheck(*made, seed=seed)
    if json_to is not None:
        write_json({"target": target, **result.as_dict()}, json_to)
    if json_file != "-":
        click.echo(str(result))
    return 0 if result else {"wrong": 1, "undecided": 3}[result.outcome]


def _load(name: str) -> Any:
    """A file, or a module on the path; the working directory is on it, as for `python -m`."""
    sys.path.insert(0, str(Path.cwd()))
    if name.endswith(".py"):
        path = Path(name)
        if not path.exists():
            raise TraindoctorError(f"there is no file {name}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TraindoctorError(
            f"there is no module {error.name!r}; write path/to/file.py:function for a file"
        ) from error
