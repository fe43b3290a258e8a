"""A planted pass: the real one, which in one match also does something wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults import Fault
from torch.fx import Node

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, Contract, Pass, Stage

EDITS = ("insert", "replace", "update", "respell", "move", "erase")


class Planted(Pass):
    """A pass with the name, the contract and the condition of the real one, and a fault."""

    def __init__(
        self, real: Pass, stage: Stage, fault: Fault, home: str = "", contract: Contract | None = None
    ) -> None:
        self.fault = fault
        self.fired: list[str] = []
        """The match of each run in which the fault was committed."""

        def planted(graph: GraphView, rewriter: Rewriter, context: Context) -> None:
            _Run(real, fault, graph, rewriter, context, self.fired).run()

        # Where a reproducer finds the pass, if it stands at the top level of that module.
        planted.__module__ = home or __name__
        super().__init__(
            planted,
            stages=(stage,),
            contract=contract or real.contract,
            name=real.name,
            on=real.on,
            when=real.when,
            version=f"{real.version} with {fault.name}",
        )


class _Run:
    """One run of a planted pass, which watches its edits and commits the fault once, at the first match with a victim."""

    def __init__(
        self, real: Pass, fault: Fault, view: GraphView, rewriter: Rewriter, context: Context, fired: list[str]
    ) -> None:
        self.real, self.fault, self.view, self.rewriter, self.context = real, fault, view, rewriter, context
        self.fired = fired
        self._editing = self._done = False
        self._nearby: dict[Node, None] = {}

    def run(self) -> None:
        for name in EDITS:
            setattr(self.rewriter, name, self._watched(getattr(self.rewriter, name)))
        self.real.run(self.view, self.rewriter, self.context)
        # Edits outside of a candidate are one match, which is open until here: a pass that walks the graph by itself
        # must not find it changed on its way.
        if self.rewriter._match is not None:
            self._commit()

    def _watched(self, edit: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._editing or self._done:
                return edit(*args, **kwargs)
            self._editing = True
            try:
                near = _near(edit.__name__, args)
                result = edit(*args, **kwargs)
                self._nearby |= dict.fromkeys([result] if isinstance(result, Node) else near)
                if self.rewriter._depth:
                    self._commit()
            finally:
                self._editing = False
            return result

        return watched

    def _commit(self) -> None:
        nearby, self._nearby = self._nearby, {}
        for node in nearby:
            if not self._done and not node._erased and self.fault.plant(self.view, self.rewriter, node):
                self._done = True
                self.fired.append(self.rewriter._match.address)


def _near(edit: str, args: tuple[Any, ...]) -> list[Node]:
    """Where an edit happens: at the node, or, if that is going to be gone, at what it was computed from."""
    node = args[0] if args and isinstance(args[0], Node) else None
    if node is None:
        return []
    return list(node.all_input_nodes) if edit == "erase" else [node]
