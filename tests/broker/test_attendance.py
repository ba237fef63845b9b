"""Workers that are late, depart and come back (A6), by what a whole node does about it."""

from __future__ import annotations

import pytest

from kvbus.config import GroupConfig
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.broker.playbook import Playbook

ONE, TWO, THREE = (BlockStored([number], None, [], 0, medium="CPU") for number in (1, 2, 3))
GONE = BlockRemoved([1], "CPU")
CLEAR = AllBlocksCleared()


def connected(workers="ab", **config):
    """A node with everybody connected, and one event released."""
    book = Playbook(workers, **{"worker_timeout_s": 10.0, "age_s": 1000.0, **config})
    for index in range(len(workers)):
        book.node.connected(index, book.now_ns)
    for worker in workers:
        book.send(worker, ONE)
    assert [ONE] == book.events()
    book.notices()
    return book


def states(book):
    return {row.worker_id: row.state for row in book.node.status({}).workers}


def told(book):
    return [(notice.name, notice.fields.get("reason")) for notice in book.node.take_notices()]


def adds_up(book):
    for row in book.node.status({}).workers:
        assert row.received == row.released + row.pending + row.void + row.given_up + row.rejected


class TestDeparture:
    def test_clear_withdraws_and_the_others_go_on(self):
        book = connected()
        book.send("a", TWO)
        book.node.disconnected(1, book.now_ns)
        assert {"a": "live", "b": "down"} == states(book)
        assert [] == book.wait(9)
        assert [CLEAR] == book.wait(2)
        assert {"a": "live", "b": "departed"} == states(book)
        assert ("worker_departed", "connection") in told(book)
        assert [THREE] == book.send("a", THREE)
        adds_up(book)

    def test_shrink_releases_what_only_it_had_not_said(self):
        book = connected(on_departure="shrink")
        book.send("a", TWO)
        book.node.disconnected(1, book.now_ns)
        assert [TWO] == book.wait(11)
        assert [THREE] == book.send("a", THREE)
        adds_up(book)

    def test_hold_lets_nothing_out_until_it_is_back(self):
        book = connected(on_departure="hold")
        book.node.disconnected(1, book.now_ns)
        assert [] == book.wait(11)
        assert {"a": "live", "b": "departed"} == states(book)
        assert [] == book.send("a", TWO, THREE)
        book.node.connected(1, book.now_ns)
        assert [TWO, THREE] == book.send("b", TWO, THREE)
        adds_up(book)

    def test_a_connection_that_is_back_in_time_is_no_departure(self):
        book = connected()
        book.node.disconnected(1, book.now_ns)
        book.wait(9)
        book.node.connected(1, book.now_ns)
        assert [] == book.wait(20)
        assert {"a": "live", "b": "live"} == states(book)

    def test_silence_alone_is_none(self):
        """Idle engines are silent."""
        book = connected()
        assert [] == book.wait(3600)
        assert {"a": "live", "b": "live"} == states(book)

    def test_a_returning_worker_joins_again(self):
        """S5's clear, and the larger quorum: what it holds is not known."""
        book = connected()
        book.node.disconnected(1, book.now_ns)
        book.wait(11)
        book.send("a", TWO)
        book.node.connected(1, book.now_ns)
        assert [CLEAR] == book.settle()
        assert "worker_returned" in book.notices()
        assert [] == book.send("a", THREE)
        assert [THREE] == book.send("b", THREE)
        adds_up(book)

    def test_the_last_one_leaves_a_clear_and_comes_back_to_one(self):
        book = connected("a")
        book.node.disconnected(0, book.now_ns)
        assert [CLEAR] == book.wait(11)
        assert [] == book.wait(60)
        book.node.connected(0, book.now_ns)
        assert [CLEAR, TWO] == [*book.settle(), *book.send("a", TWO)]
        adds_up(book)

    def test_each_group_has_its_own_policy_and_time(self):
        book = connected(groups=(GroupConfig(name="", worker_timeout_s=2.0, on_departure="shrink"),))
        book.send("a", TWO)
        book.node.disconnected(1, book.now_ns)
        assert [TWO] == book.wait(3)

    def test_a_departed_worker_is_not_in_a_rank_that_shows_up_later(self):
        book = connected()
        book.node.disconnected(1, book.now_ns)
        book.wait(11)
        assert [TWO] == book.send("a", TWO, rank=5)

    def test_a_held_worker_is_waited_for_in_a_rank_that_shows_up_later(self):
        book = Playbook("ab", worker_timeout_s=10.0, on_departure="hold", age_s=1000.0)
        for index in range(2):
            book.node.connected(index, book.now_ns)
        book.node.disconnected(1, book.now_ns)
        book.wait(11)
        assert [] == book.send("a", TWO, rank=5)

    def test_a_worker_that_goes_before_its_first_word_is_not_waited_for(self):
        book = Playbook("ab", worker_timeout_s=10.0)
        for index in range(2):
            book.node.connected(index, book.now_ns)
        book.node.disconnected(1, book.now_ns)
        book.wait(11)
        assert [TWO] == book.send("a", TWO)


class TestUnanswered:
    def probe(self, book, seconds):
        """Let probes go unanswered, and return what goes out."""
        return book.wait(seconds)

    def book(self, **config):
        book = Playbook("a", replay=True, worker_timeout_s=10.0, probe_s=1.0, **config)
        book.node.connected(0, book.now_ns)
        book.settle()
        book.send("a", ONE)
        for request in book.node.take_requests():
            if request.frames:
                book.node.receive_replay(request.key, [b"", b"", b"\xff" * 8, b""], book.now_ns)
        book.settle()
        return book

    def test_probes_that_stay_unanswered_are_a_departure(self):
        book = self.book()
        assert [ONE] == book.events()
        assert CLEAR in self.probe(book, 15)
        assert "departed" == states(book)["a"]
        assert ("worker_departed", "unanswered") in told(book)

    def test_a_live_batch_brings_it_back(self):
        book = self.book()
        self.probe(book, 15)
        assert [CLEAR, TWO] == book.send("a", TWO)
        assert "live" == states(book)["a"]

    def test_an_answer_brings_it_back(self):
        book = self.book()
        self.probe(book, 15)
        open_requests = {}
        for request in book.node.take_requests():
            if request.frames:
                open_requests[request.key] = request
            else:
                open_requests.pop(request.key, None)
        while not open_requests:
            book.wait(0.5)
            open_requests = {request.key: request for request in book.node.take_requests() if request.frames}
        (key,) = open_requests
        book.node.receive_replay(key, [b"", b"", b"\xff" * 8, b""], book.now_ns)
        assert CLEAR in book.settle()
        assert "live" == states(book)["a"]

    def test_a_worker_that_publishes_is_there_though_its_replay_endpoint_is_not(self):
        """A replay port that was mistyped must not cost anybody its seat as long as batches come."""
        book = self.book()
        for number in range(60):
            book.wait(1.5)
            book.send("a", BlockRemoved([number]))
        assert "live" == states(book)["a"]
        assert CLEAR not in book.events()


class TestLate:
    def test_g17_a_worker_that_nothing_connects_to_is_told_within_seconds(self):
        """Both ends connecting, and nobody bound: everything looks healthy, and nothing ever comes."""
        book = Playbook("ab")
        book.wait(4)
        assert 2 == book.notices().count("no_peer_yet")
        assert {"a": "no_peer", "b": "no_peer"} == states(book)

    def test_it_is_told_again_at_growing_intervals(self):
        book = Playbook("a")
        book.wait(3600)
        assert 10 <= book.notices().count("no_peer_yet") <= 16

    def test_one_that_was_never_there_counts_and_has_not_departed(self):
        """A group of two is two: what one of them holds is not what the group holds."""
        book = Playbook("ab", age_s=10_000.0, worker_timeout_s=5.0)
        book.node.connected(0, book.now_ns)
        book.send("a", ONE)
        assert [] == book.wait(3600)
        assert [ONE] == book.send("b", ONE)

    def test_an_idle_group_is_not_worth_a_line(self):
        book = Playbook("ab")
        for index in range(2):
            book.node.connected(index, book.now_ns)
        book.wait(3600)
        assert ["worker_connected"] * 2 == book.notices()
        assert {"a": "quiet", "b": "quiet"} == states(book)

    def test_a_worker_that_says_nothing_while_others_do_is(self):
        book = Playbook("ab")
        for index in range(2):
            book.node.connected(index, book.now_ns)
        book.send("a", ONE)
        book.wait(5)
        assert "worker_not_seen_yet" in book.notices()
        book.send("b", ONE)
        book.node.take_notices()
        book.wait(3600)
        assert [] == book.notices()

    def test_free_seats_are_told_until_they_are_taken(self):
        book = Playbook.ingest(2)
        book.wait(4)
        assert "no_peer_yet" in book.notices()
        book.node.connected(0, book.now_ns)
        book.send("x", ONE)
        book.wait(10)
        (notice,) = [notice for notice in book.node.take_notices() if notice.name == "workers_not_seen_yet"]
        assert (2, 1, 1) == tuple(notice.fields[name] for name in ("seats", "free", "connections"))
        assert {"x": "live", "seat-1": "no_peer"} == states(book)
        book.send("y", ONE)
        book.notices()
        book.wait(3600)
        assert [] == book.notices()


class TestSeats:
    def book(self, seats=2, **config):
        book = Playbook.ingest(seats, **{"worker_timeout_s": 10.0, "age_s": 1000.0, **config})
        for _ in range(seats):
            book.node.connected(0, book.now_ns)
        for topic in "xyz"[:seats]:
            book.send(topic, ONE)
        book.notices()
        return book

    def test_a_departed_workers_seat_is_free_for_the_next(self):
        book = self.book()
        book.node.disconnected(0, book.now_ns)
        assert {"x": "unclear", "y": "unclear"} == states(book)
        book.wait(5)
        book.send("x", TWO)
        assert {"x": "live", "y": "down"} == states(book)
        assert [CLEAR] == book.wait(6)
        assert ("worker_departed", "connection") in told(book)
        assert [THREE] == book.send("x", THREE)
        book.node.connected(0, book.now_ns)
        assert [CLEAR] == book.send("y-2", GONE)
        assert [GONE] == book.send("x", GONE)
        assert {"x": "live", "y-2": "live"} == states(book)
        adds_up(book)

    def test_a_replaced_pod_gets_in_though_all_seats_look_taken(self):
        book = self.book()
        book.node.disconnected(0, book.now_ns)
        book.node.connected(0, book.now_ns)
        book.wait(1)
        book.send("y-2", ONE)
        assert 1 == book.node.refusals.counts["no_seat"]
        book.send("x", TWO)
        assert [CLEAR] == book.wait(11)
        book.send("y-2", THREE)
        assert [THREE] == book.send("x", THREE)
        adds_up(book)

    def test_the_next_worker_of_a_seat_does_not_take_over_the_account_of_the_last(self):
        """Votes are added up per worker, and a seat is none."""
        book = self.book()
        book.node.disconnected(0, book.now_ns)
        book.wait(5)
        book.send("x", TWO)
        book.wait(6)
        book.node.connected(0, book.now_ns)
        book.send("y-2", GONE)
        received = {worker.worker_id: worker.received for worker in book.node.status({}).workers}
        assert {"x": 2, "y-2": 1} == received
        adds_up(book)

    def test_the_next_worker_of_a_seat_may_serve_another_rank(self):
        """Its predecessor's rank must not wait for it."""
        book = self.book()
        book.node.disconnected(0, book.now_ns)
        book.wait(1)
        book.send("x", TWO)
        book.wait(10)
        book.send("y-2", ONE, rank=1)
        assert [THREE] == book.send("x", THREE)

    def test_when_all_have_gone_all_seats_are_free(self):
        book = self.book()
        for _ in range(2):
            book.node.disconnected(0, book.now_ns)
        assert CLEAR in book.wait(11)
        assert {"departed"} == set(states(book).values())

    def test_hold_keeps_the_seat(self):
        book = self.book(on_departure="hold")
        book.node.disconnected(0, book.now_ns)
        book.wait(1)
        book.send("x", TWO)
        book.wait(11)
        assert {"x": "live", "y": "departed"} == states(book)
        assert [] == book.send("x", THREE)
        book.node.connected(0, book.now_ns)
        assert [TWO, THREE] == book.send("y", TWO, THREE)
        book.wait(1)
        assert {"x": "live", "y": "live"} == states(book)
        assert "worker_returned" in book.notices()


class TestOnLoss:
    def test_ignore_tells_and_counts_and_goes_on(self):
        book = Playbook("a", on_loss="ignore")
        book.send("a", ONE)
        assert [GONE] == book.send("a", GONE, seq=5)
        assert "batches_lost" in book.notices()
        assert 1 == book.node.status({}).workers[0].losses

    @pytest.mark.parametrize("policy", ["clear", "ignore"])
    def test_a_restart_counts_as_a_loss(self, policy):
        book = Playbook("a", on_loss=policy)
        book.send("a", ONE)
        book.send("a", TWO)
        book.wait(2)
        book.send("a", THREE, seq=0)
        book.wait(2)
        assert (CLEAR in book.events()) == (policy == "clear")
        assert "worker_restarted" in book.notices()

    def test_a_worker_with_too_many_losses_is_set_aside_and_shows_as_such(self):
        book = Playbook("ab", losses_per_minute=2)
        for worker in "ab":
            book.send(worker, ONE)
        for number in range(3):
            book.wait(2)
            book.send("a", ONE, seq=10 * (number + 1))
        assert "worker_set_aside" in book.notices()
        assert "set_aside" == states(book)["a"]
        book.wait(2)
        assert [TWO] == book.send("b", TWO)
        assert CLEAR in book.wait(61)
        assert "set_aside" != states(book)["a"]


def test_losses_of_a_departed_worker_touch_nobody():
    """What it held in doubt is given up while it is away; the others have long gone on without it."""
    book = Playbook("ab", replay=True, worker_timeout_s=2.0, probe_s=1.0, age_s=1000.0)
    for worker in "ab":
        book.send(worker, ONE)
    book.send("a", BlockRemoved([9]), seq=5)
    book.node.disconnected(0, book.now_ns)
    assert [CLEAR] == book.wait(3)
    for number in range(60):
        assert [BlockRemoved([number])] == book.send("b", BlockRemoved([number]))
        assert [] == book.wait(1)
