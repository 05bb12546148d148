"""The follower's end of fetch sessions, as `seglog.replication.fetcher` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seglog.core.errors import LogClosedError, LogDirOfflineError, SeglogError
from seglog.replication.replica import Replica, ReplicaAnswer, ReplicaFetch
from tests.replication.sessions import FULL, Piece, Request, Response

if TYPE_CHECKING:
    from tests.replication.node import Node

_TIMEOUT_MS = 1_500
_LOOK_MS = 200
_ERROR_MS = 50


class Readers:
    """Of one node: a `Reader` for each leader that it follows."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._readers: dict[int, Reader] = {}

    def look(self) -> None:
        """See whether there is something to ask for."""
        for leader in sorted(
            {one.leader for one in self.node.partitions.values() if one.leader >= 0 and one.progress is None}
        ):
            if leader not in self._readers:
                self._readers[leader] = Reader(self.node, leader)
        for reader in self._readers.values():
            reader.look()

    def look_all(self) -> None:
        self.look()
        self.node.later(_LOOK_MS, self.look_all)


class Reader:
    """``asked`` is what the leader knows to be wanted, ``told`` what it said last. ``ticket`` is that of the request
    that is under way."""

    def __init__(self, node: Node, leader: int) -> None:
        self.node = node
        self.leader = leader
        self.session = (0, FULL)
        self.asked: dict[int, ReplicaFetch] = {}
        self.told: dict[int, tuple[int, int]] = {}
        self.ticket: int | None = None
        self._max_bytes = node.world.rng.choice((1, 300, 4_000))
        self._doubted: set[int] = set()
        self._waits: dict[int, int] = {}

    def restart(self) -> None:
        self.session = (0, FULL)

    def look(self) -> None:
        node = self.node
        if self.ticket is not None or node.me is None or node.has_resigned:
            return
        followed = {number: one for number, one in node.partitions.items() if self._follows(number, one)}
        for number in [number for number, one in followed.items() if self._has_to_flush(one)]:
            node.flush_later(followed.pop(number))
        if not followed:
            self.restart()
            return
        if self.session[1] == FULL:
            self.asked.clear()
            self.told.clear()
            self._doubted.clear()
        wanted = []
        for number, replica in followed.items():
            one = replica.ask(node.me, self._max_bytes)
            if self.asked.get(number) != one or number in self._doubted:
                self._doubted.discard(number)
                self.asked[number] = one
                wanted.append((number, one))
        forgotten = [number for number in self.asked if number not in followed]
        for number in forgotten:
            del self.asked[number]
            self.told.pop(number, None)
        self._send(Request(node.me, self.session, wanted, forgotten))

    def _follows(self, number: int, replica: Replica) -> bool:
        waits = self._waits.get(number, 0) > self.node.world.now
        return replica.progress is None and replica.leader == self.leader and not waits

    def _has_to_flush(self, replica: Replica) -> bool:
        return replica.log.needs_flush

    def _send(self, request: Request) -> None:
        node, world = self.node, self.node.world
        world.history.fetches(node.node_id, node.life, request.follower.epoch)
        ticket = self.ticket = world.rng.randrange(1 << 60)
        life = node.life

        def timed_out() -> None:
            if self.ticket == ticket:
                self.ticket = None
                self.restart()
                self.look()

        def reply(response: Response) -> None:
            world.send(
                self.leader,
                node.node_id,
                lambda: self._answered(ticket, request, response) if node.life == life else None,
            )

        node.later(_TIMEOUT_MS, timed_out)
        other = world.nodes[self.leader]
        world.send(node.node_id, self.leader, lambda: other.sessions.serve(request, reply))

    def _answered(self, ticket: int, request: Request, response: Response) -> None:
        """Answers of earlier connections may still come, as from a socket that was not closed in time."""
        is_ours = self.ticket == ticket
        for piece in response.pieces:
            self._take(piece, is_ours=is_ours)
        if not is_ours:
            return
        self.ticket = None
        if response.session == 0:
            self.restart()
        else:
            self.session = (response.session, request.session[1] + 1)
            answered = {piece.number for piece in response.pieces}
            for number, _ in request.wanted:
                if number not in answered and number in self.told:
                    asked, told = self.asked[number], self.told[number]
                    self._take(Piece(number, asked, ReplicaAnswer(None, None, *told)), is_ours=False)
        self.node.later(self.node.world.rng.choice((0, 0, 20)), self.look)

    def _take(self, piece: Piece, *, is_ours: bool) -> None:
        number, asked, answer, data, outside = piece
        replica = self.node.partitions.get(number)
        if is_ours and answer is not None:
            self.told[number] = (answer.high_watermark, answer.log_start_offset)
        if replica is None:
            self._doubted.add(number)
            return
        try:
            if outside is not None:
                if is_ours and replica.leader_epoch == asked.leader_epoch and replica.progress is None:
                    replica.out_of_range(*outside)
                self._doubted.add(number)
            elif answer is not None and answer.diverging is not None and not is_ours:
                return  # no connection that is over cuts a log: it may have grown again to where it was
            elif answer is None:
                self._doubted.add(number)
                self._waits[number] = self.node.world.now + _ERROR_MS
            else:
                self._take_answer(number, replica, asked, answer, data)
        except (LogDirOfflineError, LogClosedError):
            return  # the node is told of it by its directories
        except SeglogError:
            self._doubted.add(number)
            self._waits[number] = self.node.world.now + _ERROR_MS

    def _take_answer(
        self, number: int, replica: Replica, asked: ReplicaFetch, answer: ReplicaAnswer, data: bytes
    ) -> None:
        is_current = asked.leader_epoch == replica.leader_epoch and asked.offset == replica.log.log_end_offset
        if answer.diverging is None and is_current and replica.progress is None:
            self.node.agreeing[number] = replica.leader_epoch
        committed = replica.log.high_watermark
        replica.take(asked, answer, data)
        is_cut = answer.diverging is None or replica.log.high_watermark <= committed
        assert is_cut, f"B-7: {self.node.node_id} commits {number} up to {replica.log.high_watermark} and cuts it"
