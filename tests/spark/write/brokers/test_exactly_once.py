"""Each batch is in the topics once, though drivers and tasks die, come back late, and overlap at any of their requests.

`sink_runs` says how. A replay is another run with other processes, as after the death of a driver.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import BrokerConnection
from seglog.client.produce.group_mark import GroupMark
from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import end_transactions
from seglog.core.errors import ProducerFencedError, SeglogError
from seglog.spark.write.brokers.batch_mark import BatchMarkError
from seglog.testing import Broker, Cluster
from tests.cases import is_long
from tests.client.produce.written import config
from tests.spark.write.brokers.sink_runs import (
    ALL,
    NEXT,
    TASKS,
    SinkRun,
    check_deaths,
    check_returns,
    check_twins,
    check_versions,
    left_open,
    threads_as_processes,
    written,
)

_queries = itertools.count()
_BATCHES = 12 if is_long() else 2
_MOST_RUNS = 10
_EVERY = 1 if is_long() else 6
"""At each how many-th request a driver dies or stands still: `make test-long` takes all."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker, threads_as_processes():
        yield broker


@pytest.fixture(params=[2, 1], ids=["implicit", "explicit"])
def broker(shared: Broker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A new topic ``t`` of two partitions; clients of transaction version 2, and of 1."""
    monkeypatch.setattr(BrokerConnection, "feature", lambda *_: request.param)
    shared.reset()
    shared.create_topic("t", 2)
    return shared


def new_topic(broker: Broker) -> Callable[[], str]:
    def make() -> str:
        broker.reset()
        broker.create_topic("t", 2)
        return "t"

    return make


@pytest.fixture
def query() -> str:
    return f"q{next(_queries)}"


def test_batches_one_after_the_other(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query)
    run.batch(0, TASKS)
    assert written(broker.bootstrap, "t") == [1, 2, 3, 4, 5]
    run.batch(1, NEXT)
    run.batch(2, ([], []))
    run.batch(3, ([10],))
    assert written(broker.bootstrap, "t") == [*ALL, 10]
    assert left_open(broker.bootstrap, query) == []


def test_a_driver_that_dies_at_a_request(broker: Broker, query: str) -> None:
    check_deaths(broker.bootstrap, new_topic(broker), query, sent=False, chosen=slice(0, None, _EVERY))


def test_a_driver_that_dies_before_an_answer(broker: Broker, query: str) -> None:
    check_deaths(broker.bootstrap, new_topic(broker), query, sent=True, chosen=slice(3 % _EVERY, None, _EVERY))


def test_a_job_with_a_version_that_dies_and_is_repeated_when_its_mark_has_expired(broker: Broker, query: str) -> None:
    check_versions(broker.bootstrap, new_topic(broker), query, chosen=slice(5 % _EVERY, None, _EVERY))


def test_a_driver_that_comes_back_at_any_request(broker: Broker, query: str) -> None:
    """The two protocols share the requests: the numbers of their queries are odd and even."""
    chosen = slice(int(query[1:]) % 2 * 3 % _EVERY, None, _EVERY)
    check_returns(broker.bootstrap, new_topic(broker), query, chosen=chosen)


def test_a_task_that_fails_behind_its_last_row_is_repeated(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query)
    job = uuid.uuid4().hex
    run.task(0, job, 0, [1, 2])  # its result is lost, and its transaction stays open
    results = [run.task(0, job, 0, [1, 2]), run.task(0, job, 1, [3])]
    run.end(0, job).commit(results)
    assert written(broker.bootstrap, "t") == [1, 2, 3]
    assert left_open(broker.bootstrap, query) == []


def test_a_task_that_fails_leaves_nothing_open(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query)
    broker.fail("Produce", error="UNKNOWN_PRODUCER_ID")
    with pytest.raises(SeglogError, match="UNKNOWN_PRODUCER_ID"):
        run.task(0, "job", 0, [1, 2])
    assert left_open(broker.bootstrap, query) == []
    run.batch(0, ([1, 2],))
    assert written(broker.bootstrap, "t") == [1, 2]


def test_a_twin_that_goes_on_after_the_next_batch(broker: Broker, query: str) -> None:
    check_twins(broker.bootstrap, new_topic(broker), query)


def test_a_commit_that_is_called_again_changes_nothing(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query)
    results = [run.task(0, "job", 0, [1]), run.task(0, "job", 1, [2])]
    for _ in range(3):
        run.end(0, "job").commit(results)
    assert written(broker.bootstrap, "t") == [1, 2]


def test_an_abort_leaves_nothing_and_the_batch_can_be_repeated(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query)
    results = [run.task(0, "job", 0, [1]), run.task(0, "job", 1, [2])]
    run.end(0, "job").abort(results)
    assert left_open(broker.bootstrap, query) == []
    with pytest.raises(SeglogError):
        run.end(0, "job").commit(results)
    SinkRun(broker.bootstrap, query).batch(0, ([1, 2],))
    assert written(broker.bootstrap, "t") == [1, 2]


def test_an_abort_after_the_decision_takes_nothing_back(broker: Broker, query: str) -> None:
    """Spark aborts a batch whose commit has failed, and the decision may be durable."""
    run = SinkRun(broker.bootstrap, query)
    results = [run.task(0, "job", 0, [1]), run.task(0, "job", 1, [2])]
    broker.fail("EndTxn", error="UNKNOWN_SERVER_ERROR", transactional_id=f"seglog-{query}-0", times=None)
    run.end(0, "job").commit(results)
    run.end(0, "job").abort(results)
    broker.faults.clear()
    SinkRun(broker.bootstrap, query).batch(0, ([1, 2],))
    assert written(broker.bootstrap, "t") == [1, 2]


def test_an_older_batch_is_an_error(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query)
    run.batch(0, ([1],))
    run.batch(1, ([2],))
    with pytest.raises(BatchMarkError, match="batch 0 is over: the mark is of batch 1"):
        SinkRun(broker.bootstrap, query).batch(0, ([1],))
    assert written(broker.bootstrap, "t") == [1, 2]


def test_a_missing_mark_stops_the_query_unless_it_is_told(broker: Broker, query: str) -> None:
    with pytest.raises(BatchMarkError, match="the mark must be of batch 4, and there is none"):
        SinkRun(broker.bootstrap, query).batch(5, ([1],))
    assert written(broker.bootstrap, "t") == []
    SinkRun(broker.bootstrap, query, failOnDataLoss="false").batch(5, ([1],))
    SinkRun(broker.bootstrap, query).batch(6, ([2],))
    with pytest.raises(BatchMarkError, match="the mark must be of batch 8, and it is of batch 6"):
        SinkRun(broker.bootstrap, query).batch(9, ([3],))
    assert written(broker.bootstrap, "t") == [1, 2]


def test_a_transaction_that_was_aborted_before_the_decision_is_no_hole(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query)
    results = [run.task(0, "job", 0, [1]), run.task(0, "job", 1, [2])]
    assert results[1].transaction is not None
    with ClusterConnections(config(broker.bootstrap)) as cluster:
        end_transactions(cluster, [results[1].transaction.handle(run.names, 0)], commit=False)
    with pytest.raises(ProducerFencedError, match=r"cannot be committed: .*kafka\.transaction\.timeout\.ms=900000"):
        run.end(0, "job").commit(results)
    assert written(broker.bootstrap, "t") == []


def test_a_decided_transaction_that_was_aborted_is_named_and_never_forgotten(
    broker: Broker, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SinkRun(broker.bootstrap, query)
    results = [run.task(0, "job", 0, [1]), run.task(0, "job", 1, [2, 3])]
    commit = run.end(0, "job")
    transaction = results[1].transaction
    assert transaction is not None
    change = GroupMark.change

    def change_and_time_out(mark: GroupMark, choose: Callable[[MarkValue | None], MarkValue | None]) -> Any:
        changed = change(mark, choose)
        with ClusterConnections(config(broker.bootstrap)) as cluster:
            end_transactions(cluster, [transaction.handle(run.names, 0)], commit=False)
        return changed

    message = r"batch 0 was decided, and 1 of its 2 transactions cannot be committed.*2 records of task 1"
    with monkeypatch.context() as patch:
        patch.setattr(GroupMark, "change", change_and_time_out)
        with pytest.raises(BatchMarkError, match=message):
            commit.commit(results)
    for _ in range(2):
        with pytest.raises(BatchMarkError, match=message):
            SinkRun(broker.bootstrap, query).batch(0, ([1], [2, 3]))
    SinkRun(broker.bootstrap, query, failOnDataLoss="false").batch(0, ([1], [2, 3]))
    SinkRun(broker.bootstrap, query).batch(1, ([4],))
    assert written(broker.bootstrap, "t") == [1, 4]


def test_a_timeout_in_a_task_names_the_setting(broker: Broker, query: str) -> None:
    run = SinkRun(broker.bootstrap, query, kafka__transaction__timeout__ms="1")
    broker.fail("Produce", error="INVALID_PRODUCER_EPOCH")
    with pytest.raises(ProducerFencedError, match=r"after kafka\.transaction\.timeout\.ms=1: use smaller batches"):
        run.task(0, "job", 0, [1])


def test_a_decision_with_many_tasks(broker: Broker, query: str) -> None:
    """Its mark takes several groups."""
    tasks = [[number] for number in range(150)]
    SinkRun(broker.bootstrap, query).batch(0, tasks)
    SinkRun(broker.bootstrap, query).batch(0, tasks)
    SinkRun(broker.bootstrap, query).batch(1, ([150],))
    assert written(broker.bootstrap, "t") == list(range(151))


def test_brokers_and_coordinators_die_in_every_batch(query: str) -> None:
    """One of three, behind the tasks and before the commit, or in between them. A batch that fails is repeated by the
    next run, as by Spark."""
    with threads_as_processes(), Cluster({"t": 2}) as cluster:
        run = SinkRun(cluster.bootstrap, query)
        for batch in range(_BATCHES):
            victim, tasks = cluster[1 + batch % 3], [[batch * 10 + one] for one in range(4)]
            for _ in range(_MOST_RUNS):
                job, results = uuid.uuid4().hex, []
                try:
                    for number, values in enumerate(tasks):
                        results.append(run.task(batch, job, number, values))
                        if number == 1 + batch % 2 * 2 and victim.is_running:
                            victim.kill()
                    run.end(batch, job).commit(results)
                    break
                except SeglogError:
                    run = SinkRun(cluster.bootstrap, query)
            cluster.heal()
        assert written(cluster.bootstrap, "t") == [batch * 10 + one for batch in range(_BATCHES) for one in range(4)]
