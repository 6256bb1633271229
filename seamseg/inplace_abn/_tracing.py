"""The calls in each `forward` of a network, found by symbolic tracing (torch.fx), and their rewriting."""

from __future__ import annotations

import inspect
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
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
    """The graph of each `forward` of a network that can be rewritten, in which every module is one call.

    modules : by name; `registered` counts the names of each by its id
    calls : calls of a module by its name; their `meta` has the names of the called `module` and of the `owner`
    fixed : reason by name of the module whose forward cannot be rewritten; its calls are not known
    """

    def __init__(self, network: Network) -> None:
        self.modules = dict(network.slots())
        self.registered = Counter(id(module) for module in self.modules.values())
        self.calls: dict[str, list[fx.Node]] = defaultdict(list)
        self.fixed: dict[str, str] = {}
        self._network = network
        self._graphs: dict[str, fx.Graph] = {}
        self._changed: set[str] = set()
        for name, module in self.modules.items():
            # a module that nothing calls may still be called by a forward around it whose calls are not known
            used = name == "" or name in self.calls or self.fixed_around(name) is not None
            if used and not fx.Tracer().is_leaf_module(module, name) and not isinstance(module, ABN):
                self._trace(name, module)

    def _trace(self, name: str, module: nn.Module) -> None:
        problem = None
        try:
            graph = _traced(module)
            if self.registered[id(module)] > 1:
                problem = "is registered under two names"
            elif has_hooks(module):
                problem = "has hooks"
            for parameter in inspect.signature(module.forward).parameters.values():
                if parameter.default is not parameter.empty or parameter.kind.name.startswith("VAR"):
                    problem = problem or f"has the optional argument {parameter.name!r}"
        except Exception as error:
            problem = " ".join(str(error).split())[:120] or type(error).__name__
        if problem is not None:
            self.fixed[name] = f"the forward of {name or 'the network'} ({type(module).__name__}) {problem}"
            return
        self._graphs[name] = graph
        for node in graph.nodes:
            called = f"{name}.{node.target}".lstrip(".") if node.op == "call_module" else None
            node.meta["owner"], node.meta["module"] = name, called
            if called is not None:
                self.calls[called].append(node)

    def fixed_around(self, name: str) -> str | None:
        """Return the reason of the innermost module around another that cannot be rewritten; None without one."""
        outer = name.split(".")[:-1]
        names = (".".join(outer[:length]) for length in range(len(outer), -1, -1))
        return next((self.fixed[name] for name in names if name in self.fixed), None)

    def nodes(self) -> list[fx.Node]:
        """Return the nodes of all graphs."""
        return [node for graph in self._graphs.values() for node in graph.nodes]

    def readers(self, node: fx.Node) -> dict[fx.Node, fx.Node]:
        """Return the nodes that read a result, and by which node, beyond `nn.Identity` and the end of a `forward`."""
        found: dict[fx.Node, fx.Node] = {}
        for user in node.users:
            called = user.meta.get("module")
            further = [user] if called is not None and type(self.modules[called]) is nn.Identity else []
            if user.op == "output" and user.args[0] is node and len(self.calls[user.meta["owner"]]) == 1:
                further = self.calls[user.meta["owner"]]
            found |= self.readers(further[0]) if further else {user: node}
        return found

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
        new.meta = norm.meta
        self._replace(total, new)
        norm.graph.erase_node(norm)

    def out_of_place(self, node: fx.Node) -> None:
        """Make an operator as `y += x` return a new tensor, if it alone reads the result of a call, `y`."""
        found = self.readers(node)
        for user, read in found.items():
            if len(found) == 1 and user.target in IN_PLACE_OPERATORS and user.args[0] is read:
                self._changed.add(user.meta["owner"])
                user.target = IN_PLACE_OPERATORS[user.target]  # type: ignore[index]

    def _replace(self, node: fx.Node, new: fx.Node) -> None:
        self._changed.add(node.meta["owner"])
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)

    def apply(self) -> None:
        """Make `torch.fx.GraphModule` of the modules whose calls were changed, with the same state."""
        # inner ones first
        for name in sorted(self._changed, key=len, reverse=True):
            owner = self._network.root.get_submodule(name)
            made = fx.GraphModule(owner, self._graphs[name], type(owner).__name__)
            made.__dict__.update({k: v for k, v in owner.__dict__.items() if k not in made.__dict__})
            made._modules = dict(owner._modules)
            made._parameters, made._buffers = dict(owner._parameters), dict(owner._buffers)
            made.training = owner.training
            self._network.replace(name, made)


def _traced(module: nn.Module) -> fx.Graph:
    """Return the graph of a `forward`; an error if it is another one in the other mode."""
    modes, graphs = [(m, m.training) for m in module.modules()], []
    try:
        for training in (True, False):
            for m, _ in modes:
                m.training = training
            graphs.append(_Tracer().trace(module))
    finally:
        for m, value in modes:
            m.training = value
    if str(graphs[0]) != str(graphs[1]):
        raise ValueError("depends on the training mode")
    return graphs[0]


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
    """Return the name of the function or method that a node calls; empty for other nodes."""
    called = node.target if node.op in ("call_function", "call_method") else ""
    return called if isinstance(called, str) else getattr(called, "__name__", "")
