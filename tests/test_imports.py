"""Which way imports run, and that light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "traindoctor"

# Each part may import the parts named beside it (and itself). Read by the test below, nowhere else.
ALLOWED = {
    "errors": set(),
    "plain_files": set(),
    "private_files": set(),
    "background": set(),
    "record": {"errors", "plain_files", "private_files", "background"},
    "events": {"errors"},
    "logs": {"record", "plain_files", "errors"},
    "checks": {"record", "errors"},
    "fixes": {"checks", "record", "plain_files", "errors"},
    "diagnosis": {"fixes", "checks", "logs", "record", "errors"},
    "report": {"diagnosis", "checks", "record", "errors"},
    "dashboard": {"compare", "report", "diagnosis", "checks", "record", "errors"},
    "compare": {"record", "diagnosis", "checks", "plain_files", "errors"},
    "agents": {
        "compare",
        "report",
        "diagnosis",
        "checks",
        "logs",
        "record",
        "plain_files",
        "errors",
    },
    "numerics": {"errors"},
    "kernels": {"numerics", "errors"},
    "lm": {"kernels", "numerics", "plain_files", "private_files", "errors"},
    "ground": {"errors"},
    "tape": {"ground", "events", "errors"},
    "graph": {"tape", "ground", "errors"},
    "experiment": {"graph", "tape", "ground", "events", "record", "errors"},
    "probes": {"experiment", "graph", "tape", "ground", "events", "record", "errors"},
    "exams": {
        "probes",
        "experiment",
        "graph",
        "tape",
        "ground",
        "events",
        "record",
        "numerics",
        "kernels",
        "errors",
    },
    "tracing": {"compare", "capture", "ground", "events", "errors"},
    "capture": {
        "exams",
        "probes",
        "experiment",
        "graph",
        "tape",
        "ground",
        "events",
        "record",
        "private_files",
        "errors",
    },
}
EVERYTHING = {"doctor", "checkup", "comparison", "cli", "integrations", "__init__", "__main__"}
JUDGING = [
    "errors",
    "plain_files",
    "private_files",
    "background",
    "record",
    "logs",
    "checks",
    "fixes",
    "diagnosis",
    "report",
    "compare",
]


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "traindoctor":
                names = [f"traindoctor.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("traindoctor.")}
    return found - {"__version__"}


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=str)
def test_imports_run_in_one_direction(file: Path) -> None:
    part = part_of(file)
    if part in EVERYTHING:
        return
    assert part in ALLOWED, f"{part} is a new part: say in ALLOWED what it may import"
    extra = imported_parts(file) - ALLOWED[part] - {part}
    assert not extra, f"{file.relative_to(ROOT)} imports {sorted(extra)}"


def module_of(file: Path) -> str:
    parts = ("traindoctor", *file.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def imported_files(file: Path, modules: Collection[str]) -> set[str]:
    """By whatever import: at the top, inside a function, for types alone."""
    package = module_of(file) if file.name == "__init__.py" else module_of(file).rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.add(inner if inner in modules else source)
    return (found & set(modules)) - {module_of(file)}


def circles(imports: Mapping[str, set[str]]) -> list[str]:
    """What is left when files that import none of the rest, or that none imports, are taken away again and again."""
    left = dict(imports)
    while True:
        used = {name for names in left.values() for name in names}
        free = [name for name in left if name not in used or not left[name] & left.keys()]
        if not free:
            return sorted(left)
        for name in free:
            del left[name]


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


def test_imports_inside_functions_and_relative_ones_are_seen(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    package = tmp_path / "part"
    package.mkdir()
    file = package / "one.py"
    file.write_text(
        "from . import two\n"
        "def late():\n    from .three import x\n    import traindoctor.part.four\n"
        "if TYPE_CHECKING:\n    from traindoctor.part import five\n"
        "from traindoctor.other import y\n"
    )
    names = ["part.two", "part.three", "part.four", "part.five", "other"]
    modules = {f"traindoctor.{name}" for name in names}
    assert imported_files(file, modules | {"traindoctor.part", "traindoctor.part.one"}) == modules


def test_no_circle_of_files() -> None:
    files = {module_of(file): file for file in SOURCE.rglob("*.py")}
    assert len(files) > 300
    assert circles({name: imported_files(file, files.keys()) for name, file in files.items()}) == []


@pytest.mark.parametrize("folder", ["checks", "probes", "exams"])
def test_siblings_do_not_import_each_other(folder: str) -> None:
    shared = {"base", "consequences", "course", "experiments", "wrong_gradients", "__init__"}
    for file in (SOURCE / folder).rglob("*.py"):
        if file.stem in shared:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = node.module.split(".")
                if parts[:2] == ["traindoctor", folder] and len(parts) > 2:
                    assert parts[-1] in shared, f"{file.relative_to(ROOT)} imports {node.module}"


def test_judging_never_imports_torch() -> None:
    modules = [
        ".".join(("traindoctor", *file.relative_to(SOURCE).with_suffix("").parts))
        for part in JUDGING
        for file in [SOURCE / f"{part}.py", *(SOURCE / part).rglob("*.py")]
        if file.exists() and file.name != "__init__.py"
    ]
    code = "import importlib, sys\n"
    code += "".join(f"importlib.import_module({name!r})\n" for name in modules)
    code += "assert 'torch' not in sys.modules, 'torch was imported'\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; sys.argv = ['traindoctor', '--help']\n"
        "from traindoctor.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# What click and the package itself stand on. Whatever is imported beyond it makes every command slower to start.
STARTS_WITH = {
    "traindoctor",
    "traindoctor.errors",
    "traindoctor.cli",
    "traindoctor.__main__",
    "click",
}


def loaded_by(code: str) -> set[str]:
    """Of our modules and of the packages that we need."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split()) & every_module()


def every_module() -> set[str]:
    """What may be imported: our modules, and the packages that we need."""
    ours = {module_of(file) for file in SOURCE.rglob("*.py")}
    return ours | {"click", "rich", "numpy", "torch", "starlette", "uvicorn", "pydantic", "anyio"}


def test_the_package_alone_imports_nothing() -> None:
    assert loaded_by("import traindoctor") == {"traindoctor"}


def test_help_imports_the_command_line_and_click_alone() -> None:
    code = (
        "from traindoctor.cli import cli\n"
        "try:\n    cli.main(['--help'], standalone_mode=True)\nexcept SystemExit:\n    pass\n"
    )
    assert loaded_by(code) <= STARTS_WITH
