"""What a name surely is, and where the tree stops being sure; edits that keep the rest as it is."""

from __future__ import annotations

import ast

import pytest

from traindoctor.fixes.slices import linear, moved
from traindoctor.fixes.source import Edit, Source


def last_read(source: Source, name: str) -> ast.Name:
    found = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return max(found, key=lambda node: (node.lineno, node.col_offset))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x = 1\nuse(x)", "1"),
        ("x = 1\nx = 2\nuse(x)", "2"),
        ("y, x = 1, 2\nuse(x)", "2"),
        ("x: int = 3\nuse(x)", "3"),
        ("x = 1\nif a:\n    use(x)", "1"),
        ("x = 1\ndef f():\n    use(x)", "1"),
        ("if __name__ == '__main__':\n    x = 1\n    use(x)", "1"),
        ("y = 1\nx = y\nuse(x)", "1"),
        ("def f(x):\n    x = 1\n    use(x)", "1"),
        # What is not certain.
        ("x = 1\nif a:\n    x = 2\nuse(x)", None),
        ("x = 1\nfor _ in r:\n    use(x)\n    x = 2", None),
        ("x = 1\nwhile True:\n    if a:\n        use(x)\n    x = 2", None),
        ("x = 1\nx += 1\nuse(x)", None),
        ("def f(x):\n    use(x)", None),
        ("x = 1\ndef f():\n    global x\n    x = 2\nuse(x)\ndef g():\n    use(x)", "1"),
        ("def f():\n    x = 2\n    def g():\n        use(x)", None),
        ("x = 1\nx = 2\ndef f():\n    use(x)", None),
        ("for x in r:\n    use(x)", None),
        ("y, *x = 1, 2\nuse(x)", None),
        ("x, y = f()\nuse(x)", None),
        ("try:\n    x = 1\nexcept E:\n    x = 2\nuse(x)", None),
    ],
)
def test_what_a_name_is(text: str, value: str | None) -> None:
    source = Source(text)
    found = source.value(last_read(source, "x"))
    assert (ast.unparse(found) if value else isinstance(found, ast.Name)) == (value or True)


def test_an_attribute_is_what_its_class_sets_it_to_once() -> None:
    text = (
        "class A:\n"
        "    def __init__(self):\n"
        "        self.a, self.b = 1, 2\n"
        "        self.register_buffer('c', 3, persistent=False)\n"
        "        self.d = 4\n"
        "    def f(self):\n"
        "        self.d = 5\n"
        "        use(self.b, self.c, self.d)\n"
        "class B:\n"
        "    def __init__(self):\n"
        "        self.b = 9\n"
    )
    source = Source(text)
    call = next(call for call in source.calls() if ast.unparse(call.func) == "use")
    assert [ast.unparse(source.value(one)) for one in call.args] == ["2", "3", "self.d"]


def test_edits_know_characters_from_bytes_and_lines_from_form_feeds() -> None:
    source = Source("größe = 'ä\x0c'; x = f(größe)\n")
    call = next(source.calls())
    assert source.code(call) == "f(größe)"
    assert source.edited([source.replace(call.args[0], "1")]) == "größe = 'ä\x0c'; x = f(1)\n"
    assert source.edited([Edit(0, 5, "a"), Edit(3, 6, "b")]) is None


def test_a_line_is_put_beside_a_statement_that_stands_alone() -> None:
    source = Source("if a:\n\tb()  # why\n\tc(); d()\ne()")
    (if_,) = [one for one in source.tree.body if isinstance(one, ast.If)]
    alone, sharing, _ = if_.body
    edit = source.insert_after(alone, "x()")
    assert edit is not None
    assert source.edited([edit]) == "if a:\n\tb()  # why\n\tx()\n\tc(); d()\ne()"
    assert source.insert_before(sharing, "x()") is None
    last = source.insert_after(source.tree.body[-1], "x()")
    assert last is not None
    assert source.edited([last]) == "if a:\n\tb()  # why\n\tc(); d()\ne()\nx()"


@pytest.mark.parametrize(
    ("bound", "by", "said"),
    [("i", 1, "i + 1"), ("i + 2", -1, "i + 1"), ("i + 1", -1, "i"), ("i + T", 1, "i + T + 1"),
     ("i + T + 1", -1, "i + T"), ("-1", 1, ""), ("3", 1, "4"), ("i - 1", 1, "i")],
)  # fmt: skip
def test_a_bound_is_moved_as_a_person_writes_it(bound: str, by: int, said: str) -> None:
    source = Source(bound)
    (line,) = source.tree.body
    assert isinstance(line, ast.Expr)
    assert moved(source, line.value, by) == said


def test_sums_of_terms() -> None:
    source = Source("T = 4\nuse(2 * (i + T) - i - len(x), i * i)")
    call = next(source.calls())
    assert linear(source, call.args[0]) == {"i": 1, "": 8, "len(x)": -1}
    assert linear(source, call.args[1]) is None
