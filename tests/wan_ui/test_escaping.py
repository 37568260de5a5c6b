"""Test that the studio's HTML contains no unescaped value, by its syntax trees.

A text with a tag or the start of an attribute is HTML. Each value in it must be escaped, a constant, a number, or a text that
consists of such values. The test follows names to their assignments, parameters to the arguments of all calls, and calls to the
results of the functions. A field is safe if its type is a number, a Literal or an Enum. The test cannot see HTML that is put
together without a literal tag, or that JavaScript puts together.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from backend.settings import PROJECT_FOLDER

Function = ast.FunctionDef | ast.AsyncFunctionDef
_HTML = re.compile(r"<[a-zA-Z/!]|\b[a-z-]+=[\"']")
_NUMERIC_FORMAT = re.compile(r"[\d.,]*[dfgx%]")
# Functions whose results are numbers, or texts without any of < > & " '. Only `html.escape` is called `escape` by its bare name.
_ESCAPES = {"escape", "quote", "b64encode", "token_hex", "hexdigest", "len", "round", "int", "float", "bool", "range", "sum"}
# Functions and methods whose results consist of their arguments and their object.
_COMBINES = {"str", "list", "tuple", "dict", "sorted", "reversed", "zip", "enumerate", "min", "max", "filter", "next"}
_CHANGES = {"join", "format", "decode", "strip", "lower", "replace", "items", "values", "keys", "get", "partition"}
_ADDS = {"append", "extend", "insert"}
_SCRIPT = re.compile(r"<(script|style)\b")  # the content is no HTML: the studio's own scripts and styles
# `data_attribute` escapes JSON for single quotes only. `stamp_html` gets whole parts of the page, whose functions are tested.
_CHECKED_BY_HAND = {"data_attribute", "stamp_html"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_ALWAYS = ast.Constant(0)


def _constant_text(node: ast.AST) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "\0".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


class Program:
    """The syntax trees of modules by name."""

    def __init__(self, modules: dict[str, ast.Module]):
        self.modules, self.parents, self.module_of = modules, dict[ast.AST, ast.AST](), dict[ast.AST, str]()
        self.plain, self.fields = {"int", "float", "bool", "None", "PositiveInt"}, defaultdict[tuple[bool, str], list](list)
        self.methods = defaultdict[str, list[Function]](list)
        self.calls, self.passed = defaultdict[ast.AST | str, list[ast.Call]](list), set[ast.AST]()
        self.known, self.values_of = dict[ast.AST, bool](), dict[ast.Name, list[ast.expr] | None]()
        for name, tree in modules.items():
            for node in ast.walk(tree):
                self.module_of[node] = name
                self.parents |= {child: node for child in ast.iter_child_nodes(node)}
        for tree in modules.values():
            self._declare_classes(tree)
        for node, parent in self.parents.items():
            if isinstance(node, ast.Call):
                is_name = isinstance(node.func, ast.Name)
                key = self.find(node.func) if is_name else getattr(node.func, "attr", None)
                self.calls[key].append(node) if key else None
            elif isinstance(node, ast.Name) and not (isinstance(parent, ast.Call) and parent.func is node):
                found = self.find(node)
                self.passed |= {found} if isinstance(found, Function) else set()

    def _declare_classes(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and "Literal[" in ast.unparse(node.value) and isinstance(node.targets[0], ast.Name):
                self.plain.add(node.targets[0].id)
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            if any("Enum" in ast.unparse(base) for base in node.bases):
                self.plain.add(node.name)
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    self.fields[node.name == "Texts", part.target.id].append(part)
                elif isinstance(part, Function):
                    is_property = any("property" in ast.unparse(one) for one in part.decorator_list)
                    self.fields[node.name == "Texts", part.name] += [part] if is_property else []
                    self.methods[part.name].append(part)

    def find(self, name: ast.Name) -> ast.AST | None:
        """Return the function or class with this name: of a function around it, or at the top of a module."""
        for around in self._around(name):
            inner = (node for node in (around.body if isinstance(around, Function) else ()) if isinstance(node, Function))
            if found := next((node for node in inner if node.name == name.id), None):
                return found
        module, wanted = self.module_of[name], name.id
        for node in self.modules[module].body:
            if isinstance(node, ast.ImportFrom) and node.module in self.modules:
                module, wanted = next(
                    ((node.module, alias.name) for alias in node.names if (alias.asname or alias.name) == name.id),
                    (module, wanted),
                )
        tops = self.modules[module].body
        return next((node for node in tops if isinstance(node, Function | ast.ClassDef) and node.name == wanted), None)

    def is_plain(self, annotation: ast.expr | None) -> bool:
        """Return whether values of this type need no escaping."""
        match annotation:
            case ast.BinOp(left=left, right=right):
                return self.is_plain(left) and self.is_plain(right)
            case ast.Subscript(value=ast.Name(id="Literal")):
                return True
            case ast.Subscript(value=ast.Name(id="tuple" | "list" | "Sequence" | "Iterable" | "range"), slice=inner):
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return all(self.is_plain(part) for part in parts)
            case ast.Constant(value=value) if value is None or value is ...:
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in self.plain
        return False

    def is_safe(self, node: ast.AST) -> bool:
        """Return whether the value of the expression needs no escaping."""
        if node not in self.known:
            self.known[node] = True  # assumed while this expression refers to itself
            self.known[node] = self._is_safe(node)
        return self.known[node]

    def _is_safe(self, node: ast.AST) -> bool:
        match node:
            case ast.Constant() | ast.Compare() | ast.UnaryOp(op=ast.Not()):
                return True
            case ast.FormattedValue(value=value, format_spec=spec):
                return bool(spec and _NUMERIC_FORMAT.fullmatch(_constant_text(spec))) or self.is_safe(value)
            case ast.JoinedStr() if _SCRIPT.search(_constant_text(node)):
                return True
            case ast.Dict(values=parts) | ast.JoinedStr(values=parts) | ast.BoolOp(values=parts):
                return all(map(self.is_safe, parts))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return all(map(self.is_safe, parts))
            case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, right=right):
                return self.is_safe(left) and self.is_safe(right)
            case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value) | ast.DictComp(value=value):
                return self.is_safe(value)
            case ast.Starred(value=value) | ast.UnaryOp(operand=value) | ast.Await(value=value) | ast.NamedExpr(value=value):
                return self.is_safe(value)
            case ast.Subscript(value=ast.Tuple() | ast.Dict() | ast.Name() as value, slice=ast.Constant(value=int(place))):
                return all(map(self.is_safe, self.part(value, place)))
            case ast.Subscript(value=value):
                return self.is_safe(value)
            case ast.Call():
                return self._is_safe_call(node)
            case ast.Name():
                values = self.values(node)
                return values is not None and all(map(self.is_safe, values))
            case ast.Attribute(attr=name, value=value):
                owner = value.id if isinstance(value, ast.Name) else ""
                fields = self.fields[owner == "texts", name]
                around = list(self._around(node))
                parameters = [one for each in around if isinstance(each, Function) for one in each.args.args if one.arg == owner]
                kinds = {ast.unparse(one.annotation) for one in parameters if one.annotation}
                own = [one for one in fields if self.parents[one] in around or self.parents[one].name in kinds]
                fields = own or fields
                return bool(fields) and all(map(self._is_safe_field, fields))
        return False

    def _is_safe_field(self, field: ast.AnnAssign | Function) -> bool:
        """Return whether a property or a field has only safe values. A field gets its values by keyword."""
        if isinstance(field, Function):
            return self._has_safe_results(field)
        if self.is_plain(field.annotation):
            return True
        made, name = self.parents[field], ast.unparse(field.target)
        given = [one.value for call in self.calls[made] for one in call.keywords if one.arg == name]
        is_by_keyword = any("kw_only=True" in ast.unparse(one) for one in made.decorator_list)
        return is_by_keyword and bool(given) and all(map(self.is_safe, [*given, *filter(None, [field.value])]))

    def _is_safe_call(self, call: ast.Call) -> bool:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        match call.func:
            case ast.Name(id="escape") if call.keywords:  # quote=False
                return False
            case ast.Name(id=name) if name in _CHECKED_BY_HAND or name in _ESCAPES and self.find(call.func) is None:
                return True
            case ast.Name(id=name) if name in _COMBINES:
                return all(map(self.is_safe, given))
            case ast.Name(id="map"):
                found = self.find(call.args[0]) if isinstance(call.args[0], ast.Name) else None
                return isinstance(found, Function) and self._has_safe_results(found)
            case ast.Name():
                found = self.find(call.func)
                return isinstance(found, Function) and self._has_safe_results(found)
            case ast.Attribute(attr=name, value=value) if name in _CHANGES:
                return self.is_safe(value) and all(map(self.is_safe, given[name == "get" :]))
            case ast.Attribute(attr=name) if self.methods[name]:
                return all(map(self._has_safe_results, self.methods[name]))
            case ast.Attribute(attr=name):
                return name in _ESCAPES - {"escape"}
        return False

    def _has_safe_results(self, function: Function) -> bool:
        if self.is_plain(function.returns):
            return True
        own = [node for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]
        own = [node for node in own if node.value is not None and self.function_around(node) is function]
        return bool(own) and all(self.is_safe(node.value) for node in own)

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while (node := self.parents.get(node)) is not None:
            yield node

    def function_around(self, node: ast.AST) -> Function | None:
        return next((one for one in self._around(node) if isinstance(one, Function)), None)

    def values(self, name: ast.Name) -> list[ast.expr] | None:
        """Return all values that the name can have here. None if they are not known."""
        if name not in self.values_of:
            self.values_of[name] = []  # while the values refer to this name itself
            self.values_of[name] = self._values(name)
        return self.values_of[name]

    def _values(self, name: ast.Name) -> list[ast.expr] | None:
        for node in self._around(name):
            if isinstance(node, _COMPREHENSIONS):
                places = [
                    (part.target, self.elements(part.iter))
                    for part in node.generators
                    if name.id in _names(part.target) and name not in ast.walk(part.iter)
                ]
            elif isinstance(node, ast.Lambda) and any(one.arg == name.id for one in node.args.args):
                return None
            elif isinstance(node, Function | ast.Module):
                places = list(self._assignments(node, name.id))
            else:
                continue
            found = [value for target, values in places for value in self._bound(target, values, name.id)]
            if isinstance(node, Function) and (given := self._given(node, name.id)) is not None:
                return found + given if given else None
            if found:
                return found
        return self._imported(name)

    def _imported(self, name: ast.Name) -> list[ast.expr] | None:
        for node in self.modules[self.module_of[name]].body:
            for alias in node.names if isinstance(node, ast.ImportFrom) and node.module in self.modules else ():
                if (alias.asname or alias.name) == name.id:
                    places = self._assignments(self.modules[node.module], alias.name)
                    return [value for target, values in places for value in self._bound(target, values, alias.name)] or None
        return None

    def _assignments(self, scope: Function | ast.Module, name: str) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.withitem | ast.Call):
                if self.function_around(node) is not (scope if isinstance(scope, Function) else None):
                    continue
                match node:
                    case ast.Call(func=ast.Attribute(attr=added, value=ast.Name() | ast.Subscript() as target)) if added in _ADDS:
                        base = target.value if isinstance(target, ast.Subscript) else target
                        yield base, node.args if added == "extend" else [ast.List(node.args[-1:])]
                    case ast.Assign(targets=[ast.Subscript(value=target, slice=key)], value=value):
                        yield target, [ast.Dict([key], [value])]
                    case ast.Assign(targets=targets, value=value):
                        yield from ((target, [value]) for target in targets)
                    case ast.For(target=target, iter=value) if name in _names(target):
                        yield target, self.elements(value)
                    case ast.AnnAssign(target=target, annotation=kind, value=value):
                        yield target, [_ALWAYS] if self.is_plain(kind) else [value] if value else []
                    case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                        yield target, [value]
                    case ast.withitem(context_expr=value, optional_vars=target) if target:
                        yield target, [value]

    def _bound(self, target: ast.expr, values: list[ast.expr], name: str) -> list[ast.expr]:
        """Return the values of the name if the target, such as `a, b`, gets one of `values`."""
        match target:
            case ast.Name(id=given) if given == name:
                return values
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [
                    found
                    for place, part in enumerate(parts)
                    for found in self._bound(part, [one for value in values for one in self.part(value, place)], name)
                ]
        return []

    def elements(self, value: ast.expr) -> list[ast.expr]:
        """Return what iterating over the value yields. A value of unknown elements is returned in place of them."""
        match value:
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return [one for part in parts for one in (self.elements(part.value) if isinstance(part, ast.Starred) else [part])]
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
                return [part]
            case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.elements(left) + self.elements(right)
            case ast.Dict():
                return self.keys(value)
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
                return [ast.Tuple([_ALWAYS, one]) for one in self.elements(inner)]
            case ast.Call(func=ast.Name(id="zip"), args=parts):
                return [ast.Tuple([ast.List(self.elements(part)) for part in parts])]
            case ast.Call(func=ast.Attribute(value=inner, attr="items"), args=[]):
                return [ast.Tuple([ast.List(self.keys(inner)), inner])]
            case ast.Name():
                values = self.values(value)
                return [value] if values is None else [one for each in values for one in self.elements(each)]
        return [value]

    def keys(self, value: ast.expr) -> list[ast.expr]:
        """Return the keys of a dict."""
        match value:
            case ast.Dict(keys=names, values=inner):
                return [one for name, each in zip(names, inner, strict=True) for one in ([name] if name else self.keys(each))]
            case ast.DictComp(key=key):
                return [key]
            case ast.IfExp(body=left, orelse=right) | ast.BinOp(left=left, right=right):
                return self.keys(left) + self.keys(right)
            case ast.Name() if (values := self.values(value)) is not None:
                return [one for each in values for one in self.keys(each)]
        return [value]

    def part(self, value: ast.expr, place: int) -> list[ast.expr]:
        """Return the element of a tuple at this place. A value of unknown elements is returned in place of them."""
        match value:
            case ast.Tuple(elts=parts) if place < len(parts) and not any(isinstance(part, ast.Starred) for part in parts):
                return [parts[place]]
            case ast.IfExp(body=left, orelse=right):
                return self.part(left, place) + self.part(right, place)
            case ast.Name() if (values := self.values(value)) is not None:
                return [one for each in values for one in self.part(each, place)]
        return [value]

    def _given(self, function: Function, name: str) -> list[ast.expr] | None:
        """Return what all calls give for this parameter, [] if that is not known. None if there is no such parameter."""
        shape = function.args
        positional = [*shape.posonlyargs, *shape.args]
        parameter = next(
            (one for one in [*positional, *shape.kwonlyargs, shape.vararg, shape.kwarg] if one and one.arg == name), None
        )
        if parameter is None:
            return None
        if self.is_plain(parameter.annotation):
            return [_ALWAYS]
        is_method = isinstance(self.parents[function], ast.ClassDef)
        if function in self.passed or name in ("self", "cls"):
            return []
        named = [one.arg for one in [*positional, *shape.kwonlyargs]]
        defaults = dict(zip([one.arg for one in positional][::-1], shape.defaults[::-1], strict=False))
        defaults |= {one.arg: value for one, value in zip(shape.kwonlyargs, shape.kw_defaults, strict=True) if value}
        found = [defaults[name]] if name in defaults else []
        for call in self.calls[function.name if is_method else function]:
            place = len(positional) if parameter is shape.vararg else named.index(name) if name in named else -1
            place -= is_method and place >= 0
            if parameter is shape.kwarg:
                rest = [one for one in call.keywords if one.arg not in named]
                found.append(ast.Dict([ast.Constant(one.arg) if one.arg else None for one in rest], [one.value for one in rest]))
            elif parameter is shape.vararg:
                found.append(ast.Tuple(call.args[place:]))
            else:
                starred = [one.value for one in call.args[: place + 1] if isinstance(one, ast.Starred)]
                found += starred or call.args[place : place + 1] if place < len(positional) else []
                found += [one.value for one in call.keywords if one.arg in (name, None)]
        return found


def unsafe_values(program: Program) -> Iterator[str]:
    """Return each value in HTML that may need escaping, with its module and line."""
    for node in program.module_of:
        values: list[ast.expr] = []
        match node:
            case ast.JoinedStr(values=parts) if _HTML.search(text := _constant_text(node)) and not _SCRIPT.search(text):
                values = [part for part in parts if isinstance(part, ast.FormattedValue)]
            case ast.BinOp(left=left, op=ast.Add(), right=right) if any(
                _HTML.search(_constant_text(one)) for one in (left, right)
            ):
                values = [left, right]
            case ast.Call(func=ast.Attribute(value=ast.Constant() as text, attr="format")) if _HTML.search(_constant_text(text)):
                values = [node]
        for value in values:
            around = program.function_around(node)
            if not (around and around.name in _CHECKED_BY_HAND) and not program.is_safe(value):
                yield f"{program.module_of[node]}:{value.lineno}: {ast.unparse(getattr(value, 'value', value))}"


def _trees(*folders: str) -> dict[str, ast.Module]:
    paths = [path for folder in folders for path in (PROJECT_FOLDER / folder).rglob("*.py")]
    names = {path: ".".join(path.relative_to(PROJECT_FOLDER).with_suffix("").parts) for path in paths}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for path, name in names.items()}


def test_all_values_in_html_are_escaped():
    program = Program(_trees("wan_ui", "backend", "presets"))
    found = sorted(value for value in set(unsafe_values(program)) if value.startswith("wan_ui."))
    assert not found, "\n".join(found)


SAFE = """
from html import escape
@dataclass(kw_only=True)
class Row:
    name: str
    count: int
def row_html(row: Row) -> str:
    items = [f"<b>{escape(row.name)}</b>"]
    items.append(f"<i>{row.count}</i>")
    kind = "new" if row.count else "old"
    return f'<p class="{kind}">{"".join(items)}{_cell(escape(row.name))}</p>'
def _cell(words: str) -> str:
    return "<td>" + words + "</td>"
"""


@pytest.mark.parametrize(
    ("escaped", "unescaped"),
    [
        ("<b>{escape(row.name)}</b>", "<b>{row.name}</b>"),
        ('f"<i>{row.count}</i>"', "row.name"),
        ('"new" if', "row.name if"),
        ("_cell(escape(row.name))", "_cell(row.name)"),
        ("count: int", "count: str"),
        ('"<td>" + words', 'f"<td>{words.upper()}"'),
        ("from html import escape", "def escape(text): return text"),
    ],
)
def test_an_unescaped_value_is_found(escaped, unescaped):
    assert escaped in SAFE and not list(unsafe_values(Program({"page": ast.parse(SAFE)})))
    assert list(unsafe_values(Program({"page": ast.parse(SAFE.replace(escaped, unescaped))})))
