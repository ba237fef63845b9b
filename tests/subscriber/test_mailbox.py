"""The handover between the socket thread and readers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kvbus.subscriber.mailbox import Mailbox


class Owner:
    """Counts how often it was told that there is room."""

    def __init__(self, items_max: int = 4, bytes_max: int = 100) -> None:
        self.wakes = 0
        self.mailbox: Mailbox[str] = Mailbox(items_max, bytes_max, self._on_room)

    def _on_room(self) -> None:
        self.wakes += 1


def test_items_come_out_in_order_and_once() -> None:
    box = Owner().mailbox
    box.put([("a", 1), ("b", 1)])
    box.put([("c", 1)])
    assert ["a", "b", "c", None] == [box.take(0) for _ in range(4)]


def test_what_was_put_before_the_end_can_still_be_taken() -> None:
    box = Owner().mailbox
    box.put([("a", 1)])
    box.end()
    assert box.is_ended
    assert ["a", None, None] == [box.take() for _ in range(3)]


def test_what_is_discarded_is_gone_and_the_end_has_come() -> None:
    box = Owner().mailbox
    box.put([("a", 1)])
    box.discard()
    assert box.is_ended
    assert box.take() is None


def test_a_fault_reaches_every_reader_after_the_items() -> None:
    box = Owner().mailbox
    box.put([("a", 1)])
    box.end(ValueError("boom"))
    box.end()
    assert box.take() == "a"
    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            box.take()


@pytest.mark.parametrize(
    ("sizes", "has_room"), [([1, 1, 1], True), ([1, 1, 1, 1], False), ([99], True), ([60, 40], False)]
)
def test_room_is_bounded_by_count_and_by_bytes(sizes: list[int], has_room: bool) -> None:
    box = Owner().mailbox
    box.put([("item", size) for size in sizes])
    assert has_room == box.has_room


def test_the_owner_is_told_once_when_half_is_free_again() -> None:
    """At every item it would be woken for nothing; only when empty, the reader would wait for the sockets."""
    owner = Owner()
    owner.mailbox.put([("item", 10)] * 4)
    assert not owner.mailbox.has_room
    wakes = []
    for _ in range(4):
        owner.mailbox.take(0)
        wakes.append(owner.wakes)
    assert [0, 1, 1, 1] == wakes


def test_an_owner_that_never_met_a_full_mailbox_is_not_told() -> None:
    owner = Owner()
    owner.mailbox.put([("item", 1)] * 4)
    for _ in range(4):
        owner.mailbox.take(0)
    assert owner.wakes == 0


def test_waiting_ends_when_the_time_is_out() -> None:
    box = Owner().mailbox
    assert box.take(0.001) is None
    assert not box.wait(0.001)
    box.put([("a", 1)])
    assert box.wait(0)


@pytest.mark.parametrize("how", ["put", "end"])
def test_a_blocked_reader_is_woken(how: str) -> None:
    box = Owner().mailbox
    taken: list[str | None] = []
    reader = threading.Thread(target=lambda: taken.append(box.take()))
    reader.start()
    if how == "put":
        box.put([("a", 1)])
    else:
        box.end()
    reader.join(60)
    assert ["a" if how == "put" else None] == taken


def test_an_event_loop_takes_items_and_the_end() -> None:
    async def read() -> list[str | None]:
        box = Owner().mailbox
        first = asyncio.ensure_future(box.take_async())
        await asyncio.sleep(0)
        threading.Thread(target=box.put, args=([("a", 1), ("b", 1)],)).start()
        taken = [await first, await box.take_async()]
        last = asyncio.ensure_future(box.take_async())
        await asyncio.sleep(0)
        threading.Thread(target=box.end).start()
        return [*taken, await last]

    assert ["a", "b", None] == asyncio.run(asyncio.wait_for(read(), 60))


def test_a_cancelled_reader_takes_nothing_with_it() -> None:
    async def read() -> str | None:
        box = Owner().mailbox
        impatient = asyncio.ensure_future(box.take_async())
        patient = asyncio.ensure_future(box.take_async())
        await asyncio.sleep(0)
        box.put([("a", 1)])
        impatient.cancel()
        return await asyncio.wait_for(patient, 60)

    assert asyncio.run(read()) == "a"


def test_a_loop_that_was_closed_with_a_reader_in_it_is_forgotten() -> None:
    box = Owner().mailbox
    loop = asyncio.new_event_loop()
    reader = loop.create_task(box.take_async())
    loop.run_until_complete(asyncio.sleep(0))
    loop.stop()
    loop.close()
    box.put([("a", 1)])
    assert box.take(0) == "a"
    reader._log_destroy_pending = False  # type: ignore[attr-defined]
    del reader
