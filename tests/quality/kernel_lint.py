"""The allow-list of the decision kernel: which Python its functions may be written in.

The proofs run the very functions that ship on symbolic integers and booleans that fork at each branch. `is`,
`isinstance`, hashing and formatting would look at the proxy instead of the number and be silently wrong;
floats, loops without a bound and recursion would leave the total functions over integers. So what is allowed
is listed, and everything else is refused.
"""

import ast
from collections.abc import Iterator

ALLOWED_IMPORTS = {"__future__", "enum", "typing"}
ALLOWED_BASES = {"NamedTuple", "IntEnum"}
ALLOWED_BUILTINS = {
    "abs",
    "all",
    "any",
    "enumerate",
    "len",
    "max",
    "min",
    "range",
    "reversed",
    "sum",
    "tuple",
    "zip",
}
ALLOWED_METHODS = {"_replace"}
ALLOWED_TYPES = {"bool", "int", "tuple"}

ALLOWED_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)

ALLOWED_NODES = (
    ast.Module, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.ClassDef, ast.Return,
    ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.Break, ast.Continue, ast.Assert,
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.IfExp, ast.Compare, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.BinOp, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Store,
    ast.Constant, ast.Attribute, ast.Tuple, ast.Starred, ast.Subscript, ast.Slice, ast.GeneratorExp,
    ast.comprehension,
)  # fmt: skip


def findings(source: str) -> list[str]:
    """What a kernel module holds that the list does not name, as `line N: what`; empty if all is well."""
    tree = ast.parse(source)
    found = [
        *_unknown_nodes(tree),
        *_constants(tree),
        *_classes(tree),
        *_calls(tree),
        *_annotations(tree),
        *_module_state(tree),
    ]
    return [f"line {line}: {what}" for line, what in sorted(found)]


Finding = tuple[int, str]


def _unknown_nodes(tree: ast.Module) -> Iterator[Finding]:
    exempt = _inside(_annotation_roots(tree)) | _inside(_number_constants(tree))
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops
        ):
            yield line, "identity or membership test"
        elif isinstance(node, ast.ImportFrom) and (node.module not in ALLOWED_IMPORTS or node.level):
            yield line, f"import from {node.module}"
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            yield line, "decorator"
        elif isinstance(node, ast.cmpop | ast.operator) or id(node) in exempt:
            continue
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, ALLOWED_OPERATORS):
            yield line, type(node.op).__name__
        elif not isinstance(node, ALLOWED_NODES):
            yield line, type(node).__name__


def _constants(tree: ast.Module) -> Iterator[Finding]:
    """Only ints, bools and None have values; a string may only stand alone, as documentation."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    annotations = _inside(_annotation_roots(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or node.value is None or type(node.value) in (int, bool):
            continue
        if node.value is ... and id(node) in annotations:
            continue
        if not (isinstance(node.value, str) and id(node) in documentation):
            yield node.lineno, f"constant {node.value!r}"


def _classes(tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {base.id if isinstance(base, ast.Name) else "?" for base in node.bases}
            if not bases or not bases <= ALLOWED_BASES or node.keywords or node.decorator_list:
                yield node.lineno, f"class {node.name} is neither a NamedTuple nor an IntEnum"


def _calls(tree: ast.Module) -> Iterator[Finding]:
    """Calls go to listed builtins or to what stands above in the module: no recursion, so every call ends."""
    defined_at = {
        node.name: node.end_lineno or 0
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            name = node.func.id
            if name in defined_at:
                if defined_at[name] >= node.lineno:
                    yield node.lineno, f"call of {name}, which does not stand above"
            elif name not in ALLOWED_BUILTINS:
                yield node.lineno, f"call of {name}"
        elif not (isinstance(node.func, ast.Attribute) and node.func.attr in ALLOWED_METHODS):
            yield node.lineno, f"call of {ast.unparse(node.func)}"


def _annotation_roots(tree: ast.Module) -> Iterator[ast.expr]:
    """Every type expression: of parameters, results and fields, and type aliases of the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.returns
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            yield node.value


def _number_constants(tree: ast.Module) -> Iterator[ast.expr]:
    """Values of module constants made of literal ints, such as `2**31 - 1`: Python computes them once."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            parts = [part for part in ast.walk(node.value) if isinstance(part, ast.expr)]
            if all(isinstance(part, ast.BinOp | ast.Constant) for part in parts):
                yield node.value


def _inside(roots: Iterator[ast.expr]) -> set[int]:
    return {id(node) for root in roots for node in ast.walk(root)}


def _annotations(tree: ast.Module) -> Iterator[Finding]:
    """Types are ints, bools, tuples of them and the module's own; every parameter and result has one."""
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    own |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for annotation in _annotation_roots(tree):
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name) and node.id not in ALLOWED_TYPES | own:
                yield node.lineno, f"type {node.id}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if node.args.vararg or node.args.kwarg or node.args.defaults or any(node.args.kw_defaults):
                yield node.lineno, f"{node.name} has optional or collected parameters"
            if node.returns is None or any(argument.annotation is None for argument in arguments):
                yield node.lineno, f"{node.name} is not fully annotated"


def _module_state(tree: ast.Module) -> Iterator[Finding]:
    """A module holds constants, records and functions; functions change nothing but their own names."""
    for node in tree.body:
        if isinstance(node, ast.If | ast.For | ast.AugAssign | ast.Assert):
            yield node.lineno, f"{type(node).__name__} outside a function"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node.lineno, "assignment to a part of a value"
