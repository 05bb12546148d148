"""The leader's end of fetch sessions, as `seglog.broker.follower_fetch` has it: only what was touched is looked at, and
a follower that asks for anything is there for all that it follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from seglog.cluster.model import Member
from seglog.core.errors import OffsetOutOfRangeError, SeglogError
from seglog.replication.progress import UNKNOWN, FetchTimes
from seglog.replication.replica import Replica, ReplicaAnswer, ReplicaFetch

if TYPE_CHECKING:
    from tests.replication.node import Node

FULL = 0
_WAITS_MS = (10, 30, 60)


class Request(NamedTuple):
    """``session`` is (its number, its epoch); epoch `FULL` begins another."""

    follower: Member
    session: tuple[int, int]
    wanted: Sequence[tuple[int, ReplicaFetch]]
    forgotten: Sequence[int]


class Piece(NamedTuple):
    """What an answer says of one partition. ``outside``: where the leader's log begins and ends, if it does not have
    what was asked; ``answer`` is None after an error."""

    number: int
    asked: ReplicaFetch
    answer: ReplicaAnswer | None
    data: bytes = b""
    outside: tuple[int, int] | None = None


class Response(NamedTuple):
    """``session`` is its number, 0 if there is none of that number and epoch."""

    session: int
    pieces: Sequence[Piece]


class Session:
    """What one broker follows here. ``touched`` is to be looked at with its next request."""

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.number = number
        self.epoch = 1
        self.answered_ms = UNKNOWN
        self.heard = FetchTimes(node.world.now)
        self.wanted: dict[int, ReplicaFetch] = {}
        self.told: dict[int, tuple[int, int]] = {}
        self.touched: dict[int, None] = {}
        self._watched: dict[int, _Watched] = {}

    def update(self, request: Request) -> None:
        for number, one in request.wanted:
            self.wanted[number] = one
            self.touched[number] = None
            self._watch(number)
        for number in request.forgotten:
            self.wanted.pop(number, None)
            self.told.pop(number, None)
            self.touched.pop(number, None)
            self._unwatch(number)
        for number, watched in self._watched.items():
            told = self.told.get(number)
            if told is not None and told[1] != watched.replica.log.log_start_offset:
                self.touched[number] = None

    def _watch(self, number: int) -> None:
        self._unwatch(number)
        replica = self.node.partitions.get(number)
        if replica is not None:
            watched = self._watched[number] = _Watched(self, number, replica)
            replica.followers[watched] = None

    def _unwatch(self, number: int) -> None:
        watched = self._watched.pop(number, None)
        if watched is not None:
            watched.replica.followers.pop(watched, None)
            watched.replica.unfollowed(self.heard)

    def close(self) -> None:
        """A request that still waits learns nothing more: what it asked is older than what the next session asks."""
        for number in list(self._watched):
            self._unwatch(number)
        self.wanted.clear()
        self.touched.clear()


class _Watched:
    """A partition of a session, among the followers of its replica."""

    def __init__(self, session: Session, number: int, replica: Replica) -> None:
        self.session = session
        self.number = number
        self.replica = replica

    def grown(self, size: int) -> None:
        del size
        self.session.touched[self.number] = None


class Sessions:
    """One for each broker that follows something here."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._by_node: dict[int, Session] = {}

    def serve(self, request: Request, reply: Callable[[Response], None]) -> None:
        """Answer now if there is something to say, else a little later."""
        node, world = self.node, self.node.world
        node_id = request.follower.node_id
        session = self._by_node.get(node_id)
        number, epoch = request.session
        if epoch == FULL:
            if session is not None:
                session.close()
            session = self._by_node[node_id] = Session(node, world.rng.randrange(1, 1 << 30))
        elif session is None or (session.number, session.epoch) != (number, epoch):
            reply(Response(0, ()))
            return
        else:
            session.epoch += 1
        session.heard.note(world.now)
        session.update(request)
        session.heard.note_following(session.answered_ms)
        found = self._read(session, request.follower, is_full=epoch == FULL)
        if any(piece.data or piece.answer is None or piece.answer.diverging for piece in found.values()):
            session.answered_ms = world.now
            reply(Response(session.number, [*found.values()]))
            return

        def answer() -> None:
            found.update(self._read(session, request.follower, is_full=epoch == FULL))
            session.answered_ms = node.world.now
            reply(Response(session.number, [*found.values()]))

        node.later(world.rng.choice(_WAITS_MS), answer)

    def _read(self, session: Session, follower: Member, *, is_full: bool) -> dict[int, Piece]:
        touched, session.touched = session.touched, {}
        found = {}
        for number in touched:
            asked = session.wanted[number]
            piece = self._piece(
                number, asked._replace(node_id=follower.node_id, broker_epoch=follower.epoch, heard=session.heard)
            )
            answer = piece.answer
            told = (-1, -1) if answer is None else (answer.high_watermark, answer.log_start_offset)
            is_news = answer is None or piece.data or answer.diverging is not None
            if is_news or is_full or session.told.get(number) != told:
                session.told[number] = told
                found[number] = piece._replace(asked=asked)
        return found

    def _piece(self, number: int, asked: ReplicaFetch) -> Piece:
        node = self.node
        replica = node.partitions.get(number)
        broker = node.brokers.get(asked.node_id)
        if replica is None or (broker is not None and broker.epoch > asked.broker_epoch):
            return Piece(number, asked, None)
        try:
            answer = replica.serve_replica(asked, node.brokers, node.world.now)
        except OffsetOutOfRangeError:
            return Piece(number, asked, None, outside=(replica.log.log_start_offset, replica.log.log_end_offset))
        except SeglogError:
            return Piece(number, asked, None)
        data = b"" if answer.records is None else answer.records.read()
        node.leadership.advanced(number)
        return Piece(number, asked, answer._replace(records=None, high_watermark=replica.log.high_watermark), data)
