"""Mutants of a source text: each is one small edit, found in the syntax tree.

Annotations, decorators, docstrings, messages, f-strings and assertions are not changed: an edit there changes no
behaviour, or only the wording. The text outside the edit is not changed either, so that a report shows real lines.
"""

from __future__ import annotations

import ast
import copy
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

OTHER_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
}
CODE = re.compile(r"[A-Za-z0-9_.:/-]{2,40}")
"""A string that is a key, a code or a name. Any other string counts as a message."""
ENCODINGS = frozenset(("ascii", "latin-1", "utf-8", "utf-8-sig"))
"""Names that Python reads as the same encoding with an underscore at the end."""
UNTOUCHED = ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal
NO_EXPRESSIONS = frozenset(
    ("body", "orelse", "finalbody", "handlers", "cases", "annotation", "targets", "target")
)
"""Fields of statements that are blocks, types or targets of assignments."""
DECLARATIONS = frozenset(("TypeVar", "ParamSpec", "NewType", "cast"))
SKIPPED_NAMES = frozenset(("__all__", "__slots__", "__match_args__"))


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes `start` to `end` of a file replaced."""

    path: str
    line: int
    lines: tuple[int, int]
    """First and last line of the statement that a test must execute to detect it."""
    function: str
    """Qualified name of the function around it; empty at the level of the module or of a class."""
    kind: str
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with this change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def compiles(self, source: bytes) -> bool:
        """Tell whether the changed source is a program, and another one."""
        try:
            changed = ast.parse(self.applied(source))
        except SyntaxError:
            return False
        return ast.dump(changed) != ast.dump(ast.parse(source))

    @property
    def change(self) -> str:
        return f"{' '.join(self.before.split())} -> {' '.join(self.after.split())}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function or '(module)'} [{self.kind}] {self.change}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of one file, in the order of the text; a few of them do not compile."""
    return sorted(set(_Finder(path, source).found()), key=lambda one: (one.start, one.end, one.after))


def sample(sources: Mapping[str, bytes], count: int, draw: random.Random) -> list[Mutant]:
    """Return `count` mutants of some files, each at a line of its own that was drawn first: every line counts once."""
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path, source in sorted(sources.items()):
        for mutant in mutants_of(path, source):
            by_line[mutant.path, mutant.line].append(mutant)
    places = sorted(by_line)
    draw.shuffle(places)
    chosen: list[Mutant] = []
    for place in places:
        if len(chosen) == count:
            break
        there = by_line[place]
        draw.shuffle(there)
        chosen += itertools.islice((one for one in there if one.compiles(sources[one.path])), 1)
    return chosen


class _Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def found(self) -> Iterator[Mutant]:
        yield from self._block(ast.parse(self._source).body, "", in_function=False)

    # ---- statements ----

    def _block(self, body: Sequence[ast.stmt], name: str, *, in_function: bool) -> Iterator[Mutant]:
        for statement in body:
            yield from self._statement(statement, name, in_function=in_function)

    def _statement(self, node: ast.stmt, name: str, *, in_function: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{node.name}" if name else node.name
            yield from self._block(node.body, inner, in_function=not isinstance(node, ast.ClassDef))
            return
        if _is_left_alone(node):
            return
        place = name if in_function else ""
        for before, after, kind in (*_statement_changes(node), *_header_changes(node)):
            executed = before if isinstance(before, ast.stmt) else node
            lines = executed.lineno, _header_end(executed)
            start, end = self._span(before)
            text = self._source[start:end].decode()
            yield Mutant(self._path, before.lineno, lines, place, kind, start, end, text, after)
        for inner_body in _bodies(node):
            yield from self._block(inner_body, name, in_function=in_function)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first, last = self._starts[node.lineno - 1], self._starts[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset


def _is_left_alone(node: ast.stmt) -> bool:
    if isinstance(node, UNTOUCHED):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if any(isinstance(one, ast.Name) and one.id in SKIPPED_NAMES for one in targets):
        return True
    if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
        return True
    return "assert_never" in ast.unparse(node) if isinstance(node, ast.Expr) else False


def _header_end(node: ast.stmt) -> int:
    """Return the last line of a statement that is not in one of its blocks."""
    inner = [statement.lineno for body in _bodies(node) for statement in body]
    end = node.end_lineno or node.lineno
    return max(node.lineno, min(inner) - 1) if inner else end


def _bodies(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        yield getattr(node, field, ())
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


# ---- changes of one statement ----

Change = tuple[ast.expr | ast.stmt, str, str]
"""The replaced node, the new text and the kind of the change."""


def _statement_changes(node: ast.stmt) -> Iterator[Change]:
    """Yield the changes of a statement as a whole."""
    match node:
        case ast.Delete(targets=targets) if all(isinstance(one, ast.Name) for one in targets):
            return  # it says that an argument is not used, or releases a value
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield node, "pass", "statement"
        case ast.Continue() | ast.Break():
            yield node, "pass", "statement"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass", "statement"
        case ast.Return(value=ast.expr() as value) if not _is_falsy(value):
            yield node, "return None", "return"
        case ast.Try(handlers=handlers):
            for handler in handlers:
                if not isinstance(handler.body[-1], ast.Raise):
                    yield handler.body[0], "raise", "except"


def _is_falsy(node: ast.expr) -> bool:
    """Tell whether a value is None, or a constant that callers cannot tell from None by its truth."""
    return isinstance(node, ast.Constant) and not node.value


def _header_changes(node: ast.stmt) -> Iterator[Change]:
    """Yield the changes of the expressions of a statement, those in its blocks excepted."""
    if isinstance(node, ast.If | ast.While):
        yield node.test, f"not ({ast.unparse(node.test)})", "branch"
    for case in getattr(node, "cases", ()):
        if case.guard is not None:
            yield case.guard, f"not ({ast.unparse(case.guard)})", "branch"
            yield from _expression(case.guard)
    for field, value in ast.iter_fields(node):
        if field not in NO_EXPRESSIONS:
            yield from _field_changes(value if isinstance(value, list) else [value])


def _field_changes(values: Sequence[object]) -> Iterator[Change]:
    for one in values:
        if isinstance(one, ast.withitem):
            yield from _with_item(one)
        elif isinstance(one, ast.expr):
            yield from _expression(one)


def _with_item(item: ast.withitem) -> Iterator[Change]:
    yield from _expression(item.context_expr)
    match item.context_expr:
        case ast.Call(func=ast.Attribute(attr="suppress") | ast.Name(id="suppress"), args=[_, *_]) as call:
            yield call, f"{ast.unparse(call.func)}()", "except"


def _expression(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func) in DECLARATIONS:
        return
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        return
    for after, kind in _replacements(node):
        yield node, after, kind
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _expression(child)
        elif isinstance(child, ast.keyword) and child.arg != "repr":  # how a value is printed is wording
            yield from _expression(child.value)
        elif isinstance(child, ast.comprehension):
            yield from _comprehension(child)


def _comprehension(node: ast.comprehension) -> Iterator[Change]:
    yield from _expression(node.iter)
    for condition in node.ifs:
        yield condition, f"not ({ast.unparse(condition)})", "branch"
        yield from _expression(condition)


def _replacements(node: ast.expr) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare() | ast.BoolOp() | ast.BinOp():
            yield from _with_operator(node)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})", "boolean"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield f"({ast.unparse(ast.IfExp(test, orelse, body))})", "branch"
        case ast.Await(value=value):
            yield f"({ast.unparse(value)})", "await"
        case ast.Constant():
            yield from _constant(node)


def _with_operator(node: ast.Compare | ast.BoolOp | ast.BinOp) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in OTHER_OPERATORS.get(type(operator), ()):
                changed = copy.deepcopy(node)
                changed.ops[place] = other()  # type: ignore[call-overload]
                yield f"({ast.unparse(changed)})", "compare"
        return
    kind = "boolean" if isinstance(node, ast.BoolOp) else "arithmetic"
    for other in OTHER_OPERATORS.get(type(node.op), ()):
        changed_operator = copy.deepcopy(node)
        changed_operator.op = other()  # type: ignore[assignment]
        yield f"({ast.unparse(changed_operator)})", kind
    for place in range(len(node.values) if isinstance(node, ast.BoolOp) else 0):
        rest = [value for number, value in enumerate(node.values) if number != place]  # type: ignore[union-attr]
        kept = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)  # type: ignore[arg-type]
        yield f"({ast.unparse(kept)})", kind


def _constant(node: ast.Constant) -> Iterator[tuple[str, str]]:
    match node.value:
        case bool() as value:
            yield repr(not value), "constant"
        case int() | float() as value:
            yield repr(value + 1), "constant"
            if value not in {0, 1}:
                yield repr(value * 2), "constant"
        case str() as value if CODE.fullmatch(value) and value not in ENCODINGS:
            yield repr(f"{value}_"), "code"
