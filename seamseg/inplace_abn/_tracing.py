"""The calls in each `forward` of a network, found by symbolic tracing (torch.fx), and their rewriting."""

from __future__ import annotations

import inspect
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from seamseg.ops.norm import ABN, has_hooks

IN_PLACE_OPERATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
"""In-place operators of Python, as `x += y`, and what computes the same as a new tensor."""


class Network:
    """A network whose modules can be replaced, also the network itself (name "")."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root

    def slots(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module; a module that is registered twice comes under both names."""
        return self.root.named_modules(remove_duplicate=False)

    def replace(self, name: str, module: nn.Module) -> None:
        """Put a module in the place of another."""
        parent, _, child = name.rpartition(".")
        if name:
            setattr(self.root.get_submodule(parent), child, module)
        else:
            self.root = module


class Forwards:
    """The graph of each `forward` of a network, in which every module is one call.

    modules : by name
    calls : calls of a module by its name; their `meta` has the names of the called `module` and of the `owner`
    fixed : reason by name of the module whose forward must not be rewritten; its graph shows who reads what, if there
        is one
    """

    def __init__(self, network: Network) -> None:
        self.modules = dict(network.slots())
        self.calls: dict[str, list[fx.Node]] = defaultdict(list)
        self.fixed: dict[str, str] = {}
        self._network = network
        self._graphs: dict[str, fx.Graph] = {}
        self._changed: set[str] = set()
        self._registered = Counter(id(module) for module in self.modules.values())
        for name, module in self.modules.items():
            # a module that nothing calls may still be called by a forward around it whose calls are not all known
            used = name == "" or name in self.calls or self.fixed_around(name) is not None
            if used and not fx.Tracer().is_leaf_module(module, name) and not isinstance(module, ABN):
                self._trace(name, module)

    def _trace(self, name: str, module: nn.Module) -> None:
        try:
            graphs = _traced(module)
        except Exception as error:
            problem: str | None = " ".join(str(error).split())[:120] or type(error).__name__
        else:
            twice = "is registered under two names" if self._registered[id(module)] > 1 else None
            problem = twice or _obstacle(module) or ("depends on the training mode" if len(graphs) > 1 else None)
            self._graphs[name] = graphs[0]
            self._add_calls(name, graphs)
        if problem is not None:
            self.fixed[name] = f"the forward of {name or 'the network'} ({type(module).__name__}) {problem}"

    def _add_calls(self, owner: str, graphs: list[fx.Graph]) -> None:
        """Add the calls in the graph of a `forward`, and further ones in its other mode."""
        found: Counter[str] = Counter()
        for graph in graphs:
            left, found = found, Counter()
            for node in graph.nodes:
                called = f"{owner}.{node.target}".lstrip(".") if node.op == "call_module" else None
                node.meta["owner"], node.meta["module"] = owner, called
                if called is not None:
                    found[called] += 1
                    if found[called] > left[called]:
                        self.calls[called].append(node)

    def fixed_around(self, name: str) -> str | None:
        """Return the reason of the innermost module around another that must not be rewritten; None without one."""
        outer = name.split(".")[:-1]
        names = (".".join(outer[:length]) for length in range(len(outer), -1, -1))
        return next((self.fixed[name] for name in names if name in self.fixed), None)

    def nodes(self) -> Iterator[fx.Node]:
        """Yield the nodes of all graphs."""
        for graph in self._graphs.values():
            yield from graph.nodes

    def readers(self, node: fx.Node, always: bool = False) -> dict[fx.Node, fx.Node]:
        """Return the nodes that read a result, and by which node, beyond `nn.Identity` and the end of a `forward`.

        With `always`, not beyond a forward in :attr:`fixed`, whose other calls may read something else.
        """
        found: dict[fx.Node, fx.Node] = {}
        for user in node.users:
            further = user if self._is_identity(user) else None
            if user.op == "output" and user.args[0] is node and len(self.calls[user.meta["owner"]]) == 1:
                (call,) = self.calls[user.meta["owner"]]
                further = None if always and call.meta["owner"] in self.fixed else call
            found |= {user: node} if further is None else self.readers(further, always)
        return found

    def _is_identity(self, node: fx.Node) -> bool:
        return node.op == "call_module" and type(self.modules[node.meta["module"]]) is nn.Identity

    def overwriting(self, node: fx.Node) -> list[fx.Node]:
        """Return the functions and methods that overwrite the result of a call; not layers, see :func:`convert`."""
        return [user for user, read in self.readers(node).items() if _overwrites(user, read)]

    def remove(self, node: fx.Node) -> None:
        """Replace the result of a call by its input."""
        self._replace(node, node.all_input_nodes[0])

    def call(self, node: fx.Node, function: Callable[..., Any], *arguments: Any) -> None:
        """Replace a call by another with the same first input, and these arguments after it."""
        with node.graph.inserting_before(node):
            self._replace(node, node.graph.call_function(function, (node.all_input_nodes[0], *arguments)))

    def add_to_norm(self, norm: fx.Node, total: fx.Node) -> None:
        """Replace `norm(x) + y` by `norm(x, y)`."""
        (other,) = (argument for argument in total.args if argument is not norm)
        with total.graph.inserting_before(total):
            new = total.graph.call_module(str(norm.target), (*norm.args, other), norm.kwargs)
        self._replace(total, new)
        norm.graph.erase_node(norm)

    def out_of_place(self, node: fx.Node) -> None:
        """Make an operator as `x += y` return a new tensor."""
        self._changed.add(node.meta["owner"])
        node.target = IN_PLACE_OPERATORS[node.target]  # type: ignore[index]

    def _replace(self, node: fx.Node, new: fx.Node) -> None:
        self._changed.add(node.meta["owner"])
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)

    def apply(self) -> None:
        """Make `torch.fx.GraphModule` of the modules whose calls were changed, with the same state."""
        # inner ones first
        for name in sorted(self._changed, key=len, reverse=True):
            owner = self._network.root.get_submodule(name)
            self._network.replace(name, _with_graph(owner, self._graphs[name]))


def _traced(module: nn.Module) -> list[fx.Graph]:
    """Return the graph of a `forward` in training mode, and in evaluation mode if it is another one; or an error."""
    graphs = []
    for training in (True, False):
        with _mode(module, training):
            graphs.append(_Tracer().trace(module))
    return graphs[: 1 if str(graphs[0]) == str(graphs[1]) else 2]


def _obstacle(module: nn.Module) -> str | None:
    """Return why a `forward` with a graph must not be rewritten; None if it may."""
    if has_hooks(module):
        return "has hooks"
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.default is not parameter.empty or parameter.kind.name.startswith("VAR"):
            return f"has the optional argument {parameter.name!r}"
    return None


def _recorded(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


class _Proxy(fx.Proxy):
    """Records `x += y` as what it is: torch.fx would record `x = x + y`."""

    __iadd__, __isub__, __imul__, __itruediv__ = map(_recorded, IN_PLACE_OPERATORS)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def name_of(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _overwrites(user: fx.Node, node: fx.Node) -> bool:
    if user.op not in ("call_function", "call_method"):
        return False
    if user.kwargs.get("out") is node:
        return True
    if node not in (user.args[:1] or tuple(user.kwargs.values())[:1]):
        return False
    name = name_of(user)
    if user.target in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")) or name == "setitem":
        return True
    return user.op == "call_function" and bool(argument(user, "inplace", None, False))


def argument(call: fx.Node, name: str, position: int | None, default: Any) -> Any:
    """Return an argument of a call; `position` is for functions without a signature that Python can read."""
    try:
        bound = inspect.signature(call.target).bind(*call.args, **call.kwargs)  # type: ignore[arg-type]
        value = bound.arguments.get(name)
    except (TypeError, ValueError):
        value = call.kwargs.get(name)
    if value is None and position is not None and len(call.args) > position:
        value = call.args[position]
    return default if value is None else value


def _with_graph(owner: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Return a module that runs a graph, with all state and attributes of another."""
    made = fx.GraphModule(owner, graph, type(owner).__name__)
    made.__dict__.update({k: v for k, v in owner.__dict__.items() if k not in made.__dict__})
    made._modules = dict(owner._modules)
    made._parameters, made._buffers = dict(owner._parameters), dict(owner._buffers)
    made.training = owner.training
    return made


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Set the mode of all modules inside a module, and restore it."""
    before = [(m, m.training) for m in module.modules()]
    try:
        for m, _ in before:
            m.training = training
        yield
    finally:
        for m, value in before:
            m.training = value
