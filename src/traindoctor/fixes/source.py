"""A script's text as data: its syntax tree, where a name was last given a value, and edits of single places.

The text is parsed, never executed. Whatever is not certain (a name bound in two branches, a value carried round a
loop) is None: a fix is then not offered.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from traindoctor.fixes.nodes import (
    Binding,
    Function,
    assigns,
    body_of,
    bound_by,
    constant,
    given_by,
    in_target,
    is_attribute,
    names_in,
    pairs_of,
    parameters,
)

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
# Steps from name to name that are followed.
MOST_NAMES = 12


@dataclass(frozen=True)
class Edit:
    """The characters from `start` to `end` become `text`."""

    start: int
    end: int
    text: str


class Source:
    """`Source(text)` raises SyntaxError, ValueError or RecursionError for text that is not valid Python."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    @cached_property
    def _lines(self) -> list[str]:
        # As Python counts lines: form feeds and the like end none.
        return self.text.split("\n")

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self._lines:
            starts.append(starts[-1] + len(line) + 1)
        return starts

    # -- places ------------------------------------------------------------------------------------

    def offset(self, line: int, column: int) -> int:
        """The tree counts columns in UTF-8 bytes."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def code(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What the node stands in, from the inside out."""
        outer = self._parents.get(node)
        while outer is not None:
            yield outer
            outer = self._parents.get(outer)

    def statement(self, node: ast.AST) -> ast.stmt:
        if isinstance(node, ast.stmt):
            return node
        return next(one for one in self.above(node) if isinstance(one, ast.stmt))

    def scope(self, node: ast.AST) -> ast.AST:
        return next(one for one in self.above(node) if isinstance(one, SCOPES))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that this one is in."""
        outer = self._parents[statement]
        for _, value in ast.iter_fields(outer):
            if isinstance(value, list) and statement in value:
                return value
        raise AssertionError("a statement stands in a block")

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        return next((one for one in self.above(node) if isinstance(one, ast.ClassDef)), None)

    def calls(self, root: ast.AST | None = None) -> Iterator[ast.Call]:
        for node in ast.walk(root or self.tree):
            if isinstance(node, ast.Call):
                yield node

    def at_line(self, line: int) -> list[ast.stmt]:
        """The simple statements and headers that cover a line, the innermost first."""
        found = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        return sorted(found, key=lambda node: (node.end_lineno or 0) - node.lineno)

    def alone(self, statement: ast.stmt) -> bool:
        """Whether its lines hold nothing but the statement, and a comment behind it."""
        assert statement.end_lineno is not None
        start, end = self.span(statement)
        before = self.text[self._starts[statement.lineno - 1] : start]
        behind = self.text[end : self._starts[statement.end_lineno] - 1].strip()
        return not before.strip() and (not behind or behind.startswith("#"))

    # -- edits -------------------------------------------------------------------------------------

    def replace(self, node: ast.expr | ast.stmt | ast.keyword, text: str) -> Edit:
        return Edit(*self.span(node), text)

    def insert_before(self, statement: ast.stmt, text: str) -> Edit | None:
        """A line of its own above the statement, as far to the right; None where the statement shares its line."""
        if not self.alone(statement):
            return None
        start = self._starts[statement.lineno - 1]
        indent = self.text[start : self.span(statement)[0]]
        return Edit(start, start, f"{indent}{text}\n")

    def insert_after(self, statement: ast.stmt, text: str) -> Edit | None:
        if not self.alone(statement):
            return None
        assert statement.end_lineno is not None
        indent = self.text[self._starts[statement.lineno - 1] : self.span(statement)[0]]
        end = self._starts[statement.end_lineno]
        if end > len(self.text):  # the last line has no newline
            return Edit(len(self.text), len(self.text), f"\n{indent}{text}")
        return Edit(end, end, f"{indent}{text}\n")

    def without(self, statement: ast.stmt) -> Edit:
        """The lines of a statement that stands alone on them, taken out."""
        assert statement.end_lineno is not None
        end = min(self._starts[statement.end_lineno], len(self.text))
        return Edit(self._starts[statement.lineno - 1], end, "")

    def edited(self, edits: list[Edit]) -> str | None:
        """The text with all edits made; None where two of them touch the same place."""
        text, before = self.text, len(self.text) + 1
        for edit in sorted(edits, key=lambda one: (one.start, one.end), reverse=True):
            if edit.end > before:
                return None
            text, before = text[: edit.start] + edit.text + text[edit.end :], edit.start
        return text

    # -- values ------------------------------------------------------------------------------------

    def binding(self, name: ast.Name) -> Binding | None:
        """The one assignment whose value this use of the name has; None where it is not certain."""
        here: ast.AST = self.statement(name)
        while True:
            if isinstance(here, ast.stmt):
                block = self.block(here)
                for earlier in reversed(block[: block.index(here)]):
                    if (found := bound_by(earlier, name.id)) is not None:
                        return found
                    if assigns(earlier, name.id):
                        return None
            outer = self._parents.get(here)
            if outer is None or isinstance(outer, (*SCOPES, ast.ExceptHandler)):
                return self._of_module(name.id) if self._is_global(outer, name.id) else None
            if isinstance(outer, LOOPS):
                if not isinstance(outer, ast.While) and name.id in names_in(outer.target):
                    return in_target(outer, given_by(outer), None, name.id)
                if assigns(outer, name.id):
                    return None  # perhaps carried over from the pass before
            here = outer

    def _is_global(self, scope: ast.AST | None, name: str) -> bool:
        """No argument and nothing assigned in any function around."""
        scopes = [scope, *self.above(scope)] if scope is not None else []
        for one in scopes:
            if isinstance(one, Function | ast.Lambda):
                if name in parameters(one) or any(assigns(s, name) for s in body_of(one)):
                    return False
        return True

    def _of_module(self, name: str) -> Binding | None:
        """The only assignment of a name at the top of the script, or of a branch there."""
        found = [one for one in self.tree.body if assigns(one, name)]
        if len(found) != 1:
            return None
        inner: ast.stmt = found[0]
        # if __name__ == "__main__": ...
        while isinstance(inner, ast.If | ast.With) and not bound_by(inner, name):
            deeper = [one for one in inner.body if assigns(one, name)]
            if len(deeper) != 1 or any(assigns(one, name) for one in getattr(inner, "orelse", [])):
                return None
            inner = deeper[0]
        return bound_by(inner, name)

    def attribute_values(self, attribute: ast.Attribute) -> list[ast.expr]:
        """What `self.x` is ever set to in its class, buffers included."""
        home = self.class_of(attribute)
        if home is None or not isinstance(attribute.value, ast.Name):
            return []
        own, found = attribute.value.id, []
        for node in ast.walk(home):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                given = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target, value in pairs_of(list(given), node.value):
                    if is_attribute(target, own, attribute.attr):
                        found.append(value)
            if isinstance(node, ast.Call) and is_attribute(node.func, own, "register_buffer"):
                given = [*node.args, *(one.value for one in node.keywords if one.arg == "tensor")]
                if len(given) >= 2 and constant(given[0]) == attribute.attr:
                    found.append(given[1])
        return found

    def value(self, node: ast.expr) -> ast.expr:
        """What stands behind a name or an attribute of self, as far as it is certain; else the node itself."""
        for _ in range(MOST_NAMES):
            behind: ast.expr | None = None
            if isinstance(node, ast.Name):
                found = self.binding(node)
                behind = found.value if found is not None else None
            elif isinstance(node, ast.Attribute):
                values = self.attribute_values(node)
                behind = values[0] if len(values) == 1 else None
            if behind is None:
                return node
            node = behind
        return node

    def uses(self, name: ast.Name | ast.Attribute) -> list[ast.expr]:
        """Every reading of a name in its scope (of the module: everywhere), or of an attribute in its class."""
        if isinstance(name, ast.Attribute):
            root: ast.AST = self.class_of(name) or self.tree
            return [
                node
                for node in ast.walk(root)
                if isinstance(node, ast.Attribute)
                and node.attr == name.attr
                and isinstance(node.ctx, ast.Load)
            ]
        scope = self.scope(name)
        if not any(assigns(one, name.id) for one in body_of(scope)):
            scope = self.tree
        return [
            node
            for node in ast.walk(scope)
            if isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Load)
        ]
