"""What comes, or does not."""

from __future__ import annotations

import pytest

from kvbus.doctor.answers import Answers
from kvbus.doctor.findings import Cause, Severity
from kvbus.doctor.heard import Heard
from kvbus.doctor.listening import listening_findings
from tests.doctor.made import NOW_S, causes, evidence, heard, payload, stored, target


def found(seen):
    return list(listening_findings(seen))


def numbered(*seqs, **options):
    """A publisher heard with these numbers, every batch another."""
    return evidence(heard(*(payload(stored(place)) for place in range(len(seqs))), numbers=seqs), **options)


def answers(*, batches=0, has_ended=False):
    said = Answers()
    said.start_seq, said.batches, said.has_ended = 0, batches, has_ended
    return said


def test_what_comes_in_order_needs_no_word():
    assert [] == found(numbered(7, 8, 9))


@pytest.mark.parametrize(
    ("said", "expected", "severity"),
    [
        (answers(batches=3, has_ended=True), Cause.IDLE, Severity.NOTE),
        (answers(has_ended=True), Cause.EVENTS_DISABLED, Severity.PROBLEM),
        (answers(), Cause.NOTHING_PUBLISHED, Severity.PROBLEM),
        # Told to stop before replay was asked: nobody knows.
        (Answers(), Cause.NOTHING_PUBLISHED, Severity.WARNING),
    ],
)
def test_silence_is_told_by_what_replay_knows(said, expected, severity):
    """An idle engine has a past, one without events has none."""
    (finding,) = found(evidence(answers=said))
    assert (expected, severity) == (finding.cause, finding.severity)


@pytest.mark.parametrize(
    ("wanted", "topic", "advice"),
    [
        ("kv@b", b"kv@a", "--topic 'kv@a'"),
        ("kv@a", b"kv@a@m", "--topic 'kv@a*'"),
        ("kv@b*", b"kv@a", "--topic 'kv@a'"),
        ("kv", b"", "read with an empty topic for all"),
    ],
)
def test_another_topic(wanted, topic, advice):
    (finding,) = found(evidence(heard(payload(), topic=topic, wanted=wanted), target=target(topic=wanted)))
    assert Cause.WRONG_TOPIC is finding.cause
    assert advice in finding.do
    assert repr(topic.decode()) in finding.seen


def test_many_other_topics_are_not_all_shown():
    what = Heard("none")
    for number in range(9):
        what.take([b"t%d" % number, bytes(8), payload()], NOW_S)
    (finding,) = found(evidence(what, target=target(topic="none")))
    assert "and 4 more" in finding.seen


@pytest.mark.parametrize(("has_batches", "severity"), [(False, Severity.PROBLEM), (True, Severity.WARNING)])
def test_messages_that_are_no_batches(has_batches, severity):
    what = heard(payload()) if has_batches else Heard()
    what.take([b"load", b"1"], NOW_S)
    (finding,) = found(evidence(what))
    assert (Cause.FOREIGN_MESSAGES, severity) == (finding.cause, finding.severity)


@pytest.mark.parametrize(("replay", "severity"), [(True, Severity.WARNING), (False, Severity.PROBLEM)])
def test_a_gap_is_worse_without_replay(replay, severity):
    options = {} if replay else {"target": target(replay=None)}
    (finding,) = found(numbered(0, 1, 5, 6, 8, **options))
    assert (Cause.GAP, severity) == (finding.cause, finding.severity)
    assert "4 of 9 batches did not come: 2 to 4, 7" in finding.seen


def test_one_restart_is_a_warning_and_several_are_a_problem():
    (once,) = found(numbered(5, 6, 0, 1, disconnections=1))
    (again,) = found(numbered(5, 6, 0, 1, 0, 1))
    assert [Cause.RESTARTED] * 2 == causes([once, again])
    assert [Severity.WARNING, Severity.PROBLEM] == [once.severity, again.severity]
    assert "connections lost meanwhile: 1" in once.seen


def test_ranks_through_one_socket():
    batches = [payload(stored(number), rank=number % 2) for number in range(8)]
    (finding,) = found(evidence(heard(*batches, numbers=(0, 0, 1, 1, 2, 2, 3, 3))))
    assert Cause.RANKS_SHARE_A_STREAM is finding.cause


def test_ranks_of_one_publisher_are_nothing():
    """A broker's view has the batches of all ranks under one numbering."""
    assert [] == found(evidence(heard(*(payload(rank=number % 2) for number in range(8)))))


def test_a_gap_of_one_rank_is_found_among_others():
    batches = [payload(stored(number), rank=number % 2) for number in range(6)]
    findings = found(evidence(heard(*batches, numbers=(0, 0, 1, 1, 5, 2))))
    assert {Cause.RANKS_SHARE_A_STREAM, Cause.GAP} == set(causes(findings))


def test_publishers_of_one_rank_under_one_topic():
    (finding,) = found(numbered(0, 100, 1, 101, 2, 102))
    assert Cause.PUBLISHERS_SHARE_A_STREAM is finding.cause
    assert "2 runs of numbers go on in turns (at 102, at 2)" in finding.seen


def test_duplicates():
    same = payload(stored(1))
    (finding,) = found(evidence(heard(same, same, numbers=(3, 3))))
    assert Cause.DUPLICATES is finding.cause


@pytest.mark.parametrize(
    ("declared", "rank", "expected"),
    [(1, 0, [Cause.WRONG_RANK]), (0, 0, []), (None, 3, []), (1, None, [])],
)
def test_the_rank_of_a_port(declared, rank, expected):
    seen = evidence(heard(payload(rank=rank)), target=target(data_parallel_rank=declared))
    assert expected == causes(found(seen))
