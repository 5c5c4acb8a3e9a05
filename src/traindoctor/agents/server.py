"""`traindoctor mcp`: the tools, on the official SDK of the Model Context Protocol."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from traindoctor.agents import answers, child
from traindoctor.agents.folder import Folder
from traindoctor.checks import CHECKS
from traindoctor.compare.runs import compare_runs
from traindoctor.diagnosis import diagnose, find_check
from traindoctor.diagnosis import explain as page_of
from traindoctor.errors import TraindoctorError
from traindoctor.logs import read_log
from traindoctor.record import Record, open_record
from traindoctor.record.runs import find_runs
from traindoctor.record.stored_ranks import record_files
from traindoctor.report.json import as_dict

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

INSTRUCTIONS = """\
traindoctor finds out why a PyTorch transformer does not learn. Start with run_script (or check_script, which stops after
the first steps). A sick verdict names the cause, its line and what to change; where the change is mechanical, `fix` is a
unified diff: hand it to run_script as `verify_fix`, which runs a patched copy and says in `verified` whether the broken law
now holds and what the loss gained. All paths are relative to the folder that the server was started with."""
RUNS = "runs"
MOST_RUNS = 100


def told(tool: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A mistake is told in its sentence."""

    @functools.wraps(tool)
    def call(*args: Given.args, **given: Given.kwargs) -> Answer:
        try:
            return tool(*args, **given)
        except TraindoctorError as error:
            raise ToolError(str(error)) from None

    return call


def serve(root: Path) -> None:
    """Until standard input ends."""
    child.end_with_the_server()
    made_server(Folder(root)).run("stdio")


def made_server(folder: Folder) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(
        "traindoctor", instructions=INSTRUCTIONS, log_level="WARNING"
    )
    add_running(server, folder)
    add_reading(server, folder)
    return server


def add_running(server: MCPServer[Any], folder: Folder) -> None:
    """The tools that run a script: minutes, with progress, in a process of their own."""
    script_named = told(folder.script)

    async def judged(
        context: Context[Any, Any], arguments: list[str], run: Path | None
    ) -> dict[str, Any]:
        async def report(seconds: float, message: str) -> None:
            await context.report_progress(seconds, message=message)

        record = None if run is None else child.record_file(run)
        try:
            ended = await child.judge(arguments, folder=folder.root, record=record, report=report)
        except TraindoctorError as error:
            raise ToolError(str(error)) from None
        small = answers.verdict(ended.verdict)
        if run is None:
            return small
        kept = {"run": folder.shown(run), "exit_status": ended.status, "output": ended.output}
        return {**small, **kept}

    @server.tool()
    async def run_script(
        script: str,
        ctx: Context[Any, Any],
        arguments: list[str] | None = None,
        verify_fix: str | None = None,
        after_seconds: float = 30.0,
        stop_when_sick: bool = False,
    ) -> dict[str, Any]:
        """Run a training script unchanged to its end, watch it, and say why it does not learn.

        script: its path in the folder. arguments: those of the script. verify_fix: a unified diff of the script; a patched
        copy runs instead, and `verified` says whether what was broken now holds. after_seconds: time for tests when the script
        has ended. stop_when_sick: end the script once a cause is confirmed. The record stays in `run`; `output` has the last lines
        that the script printed.
        """
        name = script_named(script)
        stamp = f"{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1000:03d}"
        out = folder.root / RUNS / stamp
        # What is left of the output is the script's own.
        options = ["--quiet", "--out", folder.shown(out), "--after", str(after_seconds)]
        if stop_when_sick:
            options.append("--stop-when-sick")
        if verify_fix is not None:
            patch = out.with_name(f"{stamp}.diff")
            if not folder.holds(patch):
                raise ToolError(f"{RUNS} leads outside of {folder.root}")
            patch.parent.mkdir(exist_ok=True)
            patch.write_text(verify_fix, encoding="utf-8")
            options += ["--verify-fix", folder.shown(patch)]
        return await judged(ctx, ["run", *options, name, *(arguments or [])], out)

    @server.tool()
    async def check_script(
        script: str,
        ctx: Context[Any, Any],
        arguments: list[str] | None = None,
        seconds: float = 40.0,
    ) -> dict[str, Any]:
        """Examine model, loss, data and optimizer on the first steps of a training script, then stop it.

        Quicker than run_script, and nothing is kept. seconds: time for the tests.
        """
        name = script_named(script)
        return await judged(
            ctx, ["check", "--seconds", str(seconds), name, *(arguments or [])], None
        )


def add_reading(server: MCPServer[Any], folder: Folder) -> None:
    """The tools that read what is recorded."""

    def read(run: str) -> Record:
        path = folder.inside(run)
        if not path.exists():
            raise TraindoctorError(f"there is nothing at {run}; list_runs names the runs")
        if path.suffix == ".sqlite" or (path.is_dir() and record_files(path)):
            return open_record(path)
        return read_log(path)

    @server.tool()
    @told
    def diagnose_run(run: str) -> dict[str, Any]:
        """Judge a recorded run, or a log of another tool (CSV, JSON, TensorBoard, ...), with all tests of today."""
        return answers.verdict(as_dict(diagnose(read(run))))

    @server.tool()
    @told
    def explain_cause(cause: str) -> dict[str, Any]:
        """What a cause means, how it is proven and how to fix it. A slug (missing-zero-grad) or a code (GRD001)."""
        check = find_check(cause)
        return {
            "cause": check.slug,
            "code": check.code,
            "title": check.title,
            "page": page_of(cause),
        }

    @server.tool()
    @told
    def list_causes() -> dict[str, str]:
        """Every cause that can be told apart, with its title."""
        return {check.slug: check.title for check in CHECKS}

    @server.tool()
    @told
    def compare_two_runs(before: str, after: str) -> dict[str, Any]:
        """Two recorded runs side by side: did the change help? Verdicts, losses, settings and the lines of the scripts that differ."""
        return answers.comparison(compare_runs(read(before), read(after), titles=(before, after)))

    @server.tool()
    @told
    def list_runs(under: str = ".", most: int = 20) -> dict[str, Any]:
        """The recorded runs in the folder, newest first: steps, last loss, how they ended, the verdict."""
        home = folder.root / under
        if not folder.holds(home):
            folder.inside(under)  # says that it leads outside
        runs = find_runs(home, allowed=folder.holds)
        shown = runs[: max(1, min(most, MOST_RUNS))]
        rows = [answers.run(one, folder.shown(one.path)) for one in shown]
        return {"runs": rows, "left_out": len(runs) - len(shown)}

    @server.tool()
    @told
    def read_series(
        run: str,
        name: str | None = None,
        points: int = answers.USUAL_POINTS,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> dict[str, Any]:
        """A recorded series (loss.root, grad.norm, ...) in about `points` points, at most 500; without a name, the names there are.

        Each stretch is shown by its lowest and its highest value; what is not finite is null, and told in not_finite.
        """
        record = read(run)
        if name is None:
            return {"names": answers.names_of(record)}
        found = answers.series(record, name, points=points, start=first_step, stop=last_step)
        if found is None:
            raise TraindoctorError(
                f"{run} has no series {name!r}; call read_series without a name for the names there are"
            )
        return found
