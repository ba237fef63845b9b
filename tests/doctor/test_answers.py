"""What a replay endpoint answers."""

from __future__ import annotations

import pytest

from kvbus.doctor.answers import ANSWERS_MAX, Answers
from kvbus.doctor.heard import Heard
from kvbus.wire.frames import replay_end, replay_reply
from tests.doctor.made import heard, payload, stored


def test_it_asks_a_little_behind_the_newest():
    """Enough to compare, and no burden for the engine, which answers between two steps."""
    assert 92 == Answers().ask(heard(*(payload(stored(n)) for n in range(50)), numbers=range(50, 100)))
    assert 98 == Answers().ask(heard(payload(), payload(stored(1)), numbers=(98, 99)))


def test_where_nothing_was_heard_it_asks_for_everything():
    assert 0 == Answers().ask(Heard())


@pytest.mark.parametrize("old_form", [False, True])
def test_its_form_and_its_end(old_form):
    live = heard(payload(stored(0)), payload(stored(1)))
    answers = Answers()
    answers.ask(live)
    answers.take(replay_reply(b"kv", 1, payload(stored(1)), old_form), live)
    assert (old_form, False, 1, 1) == (answers.is_old_form, answers.is_complete, answers.first_seq, answers.same)
    answers.take(replay_end(old_form), live)
    assert answers.is_complete


def test_an_end_mark_alone_has_a_form_too():
    answers = Answers()
    answers.take(replay_end(True), Heard())
    assert answers.is_old_form


def test_other_bytes_under_a_number_are_anothers():
    live = heard(payload(stored(0)), payload(stored(1)))
    answers = Answers()
    for seq, block in ((0, 0), (1, 7), (2, 2)):
        answers.take(replay_reply(b"kv", seq, payload(stored(block))), live)
    assert (1, 1, 3) == (answers.same, answers.other, answers.batches)


def test_what_was_not_heard_is_read():
    live = Heard()
    Answers().take(replay_reply(b"kv", 0, payload(stored(0))), live)
    assert {"BlockStored": 1} == live.contents.events


def test_silence_is_no_answer():
    answers = Answers()
    assert not answers.is_silent
    answers.ask(Heard())
    assert answers.is_silent
    answers.take([b""], Heard())
    assert (False, 1) == (answers.is_silent, answers.malformed)


def test_it_reads_so_much_and_no_more():
    answers = Answers()
    for seq in range(ANSWERS_MAX):
        assert not answers.is_complete
        answers.take(replay_reply(b"kv", seq, payload()), Heard())
    assert answers.is_complete
