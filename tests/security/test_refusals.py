"""A refusal is told once, and again at growing intervals while it goes on."""

from __future__ import annotations

from kvbus.security.refusals import PEER_REFUSALS, RefusalTeller, meaning_of

MINUTE = 60 * 10**9


def test_the_first_is_told_at_once_and_a_flood_is_not() -> None:
    teller = RefusalTeller()
    assert [("mechanism", 1)] == teller.take_news({"mechanism": 1}, 0)
    for second in range(1, 60):
        assert [] == teller.take_news({"mechanism": 1000 * second}, second * 10**9)
    assert [("mechanism", 60_000)] == teller.take_news({"mechanism": 60_001}, MINUTE)


def test_the_pauses_grow_up_to_an_hour() -> None:
    """Somebody who reads the log after a week finds it readable."""
    teller = RefusalTeller()
    told = [minute for minute in range(600) if teller.take_news({"handshake": minute + 1}, minute * MINUTE)]
    assert [0, 1, 3, 7, 15, 31, 63, 123, 183, 243] == told[:10]


def test_reasons_do_not_silence_each_other_and_silence_is_no_news() -> None:
    teller = RefusalTeller()
    teller.take_news({"mechanism": 5}, 0)
    assert [("unknown_key", 2)] == teller.take_news({"mechanism": 6, "unknown_key": 2}, 1)
    assert [("mechanism", 1)] == teller.take_news({"mechanism": 6, "unknown_key": 2}, 2 * MINUTE)
    assert [] == teller.take_news({"mechanism": 6, "unknown_key": 2}, 9 * MINUTE)


def test_every_reason_has_words_for_both_sides() -> None:
    for reason in PEER_REFUSALS:
        for binds in (True, False):
            assert len(meaning_of(reason, binds=binds)) > 10
