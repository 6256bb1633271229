"""Which operation follows which in a network of any kind, by symbolic tracing (torch.fx); rewriting of its calls.

Nothing is computed: the graphs show the calls of layers and functions of one forward pass in training mode and of one
in evaluation mode. A module whose `forward` cannot be traced, as it decides by values of tensors, is a single call; the
modules inside it are traced one by one.
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from seamseg.ops.norm import ABN, has_hooks

_CALLS = ("call_module", "call_function", "call_method")
_VIEWS = {"view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "squeeze", "unsqueeze", "chunk",
          "split", "unbind", "narrow", "select", "expand", "contiguous", "to", "detach", "dropout", "getitem", "t",
          "alias_copy", "movedim", "swapaxes"}  # fmt: skip
"""Functions and methods whose result may share the memory of their first argument."""
_VIEW_LAYERS = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
IN_PLACE_OPERATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
"""In-place operators of Python, as `x += y`, and what computes the same as a new tensor."""


@dataclass(frozen=True)
class Site:
    """A call in the `forward` of a module.

    owner : name of that module in the network, "" for the network itself
    kind : kind of the node in the graph
    target : function, name of the method, or name of the called module in the network
    ordinal : number of earlier calls of the target in that `forward`
    """

    owner: str
    kind: str
    target: Any
    ordinal: int


class TracedNetwork:
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

    def graphs(self, training: bool) -> list[fx.Graph]:
        """Trace the network; calls have `meta["site"]`, those of modules `meta["module"]`, a name in the network."""
        opaque: set[nn.Module] = set()
        pending: list[tuple[str, nn.Module]] = [("", self.root)]
        made: list[fx.Graph] = []
        while pending:
            name, module = pending.pop()
            if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
                pending += [(join(name, n), m) for n, m in module.named_children()]
                continue
            tracer = _Tracer(name, opaque)
            if tracer.is_leaf_module(module, name):
                continue
            try:
                with _mode(module, training):
                    made.append(tracer.trace(module))
            except Exception:
                # the innermost forward is the one that cannot be traced
                culprit = tracer.running[-1]
                opaque.add(self.root.get_submodule(culprit))
                pending += [(join(culprit, n), m) for n, m in self.root.get_submodule(culprit).named_children()]
                if culprit != name:
                    pending.append((name, module))
        return made


class Rewriter:
    """Changes calls in the `forward` of modules, which become `torch.fx.GraphModule` with the same state."""

    def __init__(self, network: TracedNetwork) -> None:
        self._network = network
        self._graphs: dict[str, fx.Graph] = {}

    def check(self, site: Site) -> None:
        """Raise a ValueError, with the reason, if a call cannot be changed."""
        self._node(site)

    def remove(self, site: Site) -> None:
        """Replace the result of a call by its input."""
        node = self._node(site)
        node.replace_all_uses_with(node.all_input_nodes[0])
        node.graph.erase_node(node)

    def call(self, site: Site, function: Callable[..., Any], *arguments: Any) -> None:
        """Replace a call by another with the same first input, and these arguments after it."""
        node = self._node(site)
        first = node.args[0] if node.args else node.all_input_nodes[0]
        with node.graph.inserting_before(node):
            new = node.graph.call_function(function, (first, *arguments))
        new.meta["was"] = node.meta["was"]
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)

    def add_to_norm(self, norm: Site, total: Site) -> None:
        """Replace `norm(x) + y` by `norm(x, y)`."""
        inner, outer = self._node(norm), self._node(total)
        (other,) = (argument for argument in outer.args if argument is not inner)
        with outer.graph.inserting_before(outer):
            new = outer.graph.call_module(str(inner.target), (*inner.args, other), inner.kwargs)
        new.meta["was"] = inner.meta["was"]
        outer.replace_all_uses_with(new)
        outer.graph.erase_node(outer)
        inner.graph.erase_node(inner)

    def out_of_place(self, site: Site) -> None:
        """Replace `x += y` by `x + y`, and the other operators of this kind."""
        node = self._node(site)
        node.target = IN_PLACE_OPERATORS[site.target]

    def apply(self) -> None:
        """Replace the modules whose calls were changed."""
        for name in sorted(self._graphs, key=lambda name: -name.count(".") if name else 1):
            owner = self._network.root.get_submodule(name)
            self._network.replace(name, _with_graph(owner, self._graphs[name]))

    def _node(self, site: Site) -> fx.Node:
        graph = self._graphs.get(site.owner)
        if graph is None:
            graph = self._trace(site.owner)
        local = site.target
        if site.kind == "call_module":
            local = site.target.removeprefix(site.owner + ".") if site.owner else site.target
        for node in graph.nodes:
            if node.meta.get("was") == (site.kind, local, site.ordinal):
                self._graphs[site.owner] = graph
                return node
        raise ValueError(f"the call in the forward of {site.owner or 'the network'} cannot be located")

    def _trace(self, name: str) -> fx.Graph:
        owner = self._network.root.get_submodule(name)
        label = f"the forward of {name or 'the network'} ({type(owner).__name__})"
        if sum(module is owner for _, module in self._network.slots()) > 1:
            raise ValueError(f"{label} would have to be rewritten, but the module is registered twice")
        if has_hooks(owner):
            raise ValueError(f"{label} would have to be rewritten, but the module has hooks")
        options = [p for p in inspect.signature(owner.forward).parameters.values() if _optional(p)]
        if options and not isinstance(owner, fx.GraphModule):
            raise ValueError(f"{label} would have to be rewritten, but has the optional argument {options[0].name!r}")
        graphs = []
        for training in (False, True):
            try:
                with _mode(owner, training):
                    graphs.append(_ShallowTracer().trace(owner))
            except Exception as error:
                raise ValueError(f"{label} would have to be rewritten, but cannot be traced ({_line(error)})") from None
        if str(graphs[0]) != str(graphs[1]):
            raise ValueError(f"{label} would have to be rewritten, but depends on the training mode")
        counts: Counter[tuple[Any, ...]] = Counter()
        for node in graphs[1].nodes:
            if node.op in _CALLS:
                node.meta["was"] = (node.op, node.target, counts[node.op, node.target])
                counts[node.op, node.target] += 1
        return graphs[1]


class _Proxy(fx.Proxy):
    """Records `x += y` as what it is: torch.fx would record `x = x + y`."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __isub__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.isub, (self, other), {})

    def __imul__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, other), {})


class _ShallowTracer(fx.Tracer):
    """Traces one `forward`, in which every module is one call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


class _Tracer(_ShallowTracer):
    """Traces through all modules but those of torch, in-place ABN, and opaque ones; records the owner of each call."""

    def __init__(self, prefix: str, opaque: set[nn.Module]) -> None:
        super().__init__()
        self._prefix = prefix
        self._opaque = opaque
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self.running = [prefix]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = m in self._opaque or isinstance(m, ABN)
        return own or fx.Tracer.is_leaf_module(self, m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return super().call_module(m, forward, args, kwargs)
        self.running.append(join(self._prefix, name))
        result = super().call_module(m, forward, args, kwargs)
        self.running.pop()
        return result

    def create_node(self, kind: str, target: Any, *arguments: Any, **options: Any) -> fx.Node:
        node = super().create_node(kind, target, *arguments, **options)
        if kind in _CALLS:
            name = join(self._prefix, target) if kind == "call_module" else target
            key = (self.running[-1], kind, name)
            node.meta["site"] = Site(*key, self._counts[key])
            node.meta["module"] = name if kind == "call_module" else None
            self._counts[key] += 1
        return node


def join(prefix: str, name: str) -> str:
    """Return the name of a module inside another."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def in_place_users(node: fx.Node, root: nn.Module) -> list[fx.Node]:
    """Return the calls that overwrite the result of a node, or a view of it."""
    found = []
    for user in node.users:
        if user.op in _CALLS and _overwrites(user, node, root):
            found.append(user)
        if _may_be_view(user, root):
            found += in_place_users(user, root)
    return found


def _overwrites(user: fx.Node, node: fx.Node, root: nn.Module) -> bool:
    if user.kwargs.get("out") is node:
        return True
    if node not in (user.args[:1] or tuple(user.kwargs.values())[:1]):
        return False
    if user.op == "call_module":
        return bool(getattr(root.get_submodule(user.meta["module"]), "inplace", False))
    name = user.target if isinstance(user.target, str) else user.target.__name__
    if user.target in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")) or name == "setitem":
        return True
    return user.op == "call_function" and bool(_argument(user, "inplace"))


def _argument(call: fx.Node, name: str, default: Any = None) -> Any:
    """Return an argument of a call of a function, given by name or by position."""
    try:
        bound = inspect.signature(call.target).bind(*call.args, **call.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return call.kwargs.get(name, default)
    return bound.arguments.get(name, default)


def argument(call: fx.Node, name: str, position: int, default: Any) -> Any:
    """Return an argument of a call of a function without a signature that Python can read."""
    value = _argument(call, name)
    if value is None and len(call.args) > position:
        value = call.args[position]
    return default if value is None else value


def _may_be_view(user: fx.Node, root: nn.Module) -> bool:
    """Return whether the result may be the first argument itself, or a view; true for all that is not of torch."""
    if user.op == "call_module":
        layer = root.get_submodule(user.meta["module"])
        known = type(layer).__module__.startswith("torch.nn.") or isinstance(layer, ABN)
        return isinstance(layer, _VIEW_LAYERS) or not known
    name = user.target if isinstance(user.target, str) else getattr(user.target, "__name__", "")
    module = "torch" if isinstance(user.target, str) else str(getattr(user.target, "__module__", None))
    foreign = module.partition(".")[0] not in ("torch", "_operator", "None")
    return user.op in _CALLS and (foreign or name.rstrip("_") in _VIEWS)


def _optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty or parameter.kind in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
