"""The controller's office: one node of a simulated world holds it, or believes that it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seglog.cluster.controller_decisions import PartitionDecision, balance, decide
from seglog.cluster.model import partition_name
from tests.replication.simulator import view_of
from tests.replication.store import RefusedError

if TYPE_CHECKING:
    from tests.replication.node import Node


class Office:
    """``epoch`` is the controller's, None while this node is not the controller."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.epoch: int | None = None

    def resign(self) -> None:
        self.epoch = None

    def look(self) -> None:
        """Take it if the store says so, or if nobody has it; the answer to an earlier claim may have been lost."""
        node = self.node
        me, session, store = node.me, node.session, node.world.store
        if me is None or node.has_resigned or node.in_doubt:
            return
        if "controller" in node.values:
            (node_id, epoch, life), _ = node.values["controller"]
            if (node_id, life) != me:
                self.epoch = None
            elif self.epoch is None:
                self.epoch = epoch
                node.world.note("controller", node.node_id, epoch)
                self.act()
            return

        def claim() -> None:
            store.create("controller", (me.node_id, store.next_number(), me.epoch), session)

        node.world.ask_store(node.node_id, claim, lambda _: node.later(300, self.look))

    def act(self) -> None:
        """Write what is to be written, as far as we see."""
        if self.epoch is not None:
            for decision in decide(view_of(self.node.values)):
                self._write(decision, self.epoch)

    def balance(self) -> None:
        """Back to the preferred leaders, at once."""
        if self.epoch is not None:
            for decision in balance(view_of(self.node.values), 0.0):
                self._write(decision, self.epoch)

    def _write(self, decision: PartitionDecision, epoch: int) -> None:
        node, store = self.node, self.node.world.store
        name = partition_name(decision.topic_id, decision.number)
        state = decision.state
        assert state is not None

        def write() -> None:
            if store.values.get("controller", ((0, 0, 0), 0))[0][:2] != (node.node_id, epoch):
                raise RefusedError("controller")
            if decision.version is None:
                store.create(name, state)
            else:
                store.cas(name, state, decision.version)

        def written(found: Any) -> None:
            if found is None and self.epoch == epoch:
                node.later(200, self.act)

        node.world.ask_store(node.node_id, write, written)
