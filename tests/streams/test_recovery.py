"""With a replay endpoint: every way in which a replay can go wrong, and every way in which a restart can hide."""

import pytest

from kvbus.streams.asking import EXCESS_BATCHES
from kvbus.streams.outputs import AskReplay, CancelReplay
from tests.streams.playbook import MS, Play, batch


def gap(**limits: int) -> Play:
    """Return a stream after 0, 1, 2 and a live 5: `[3, 5)` is missing and has been asked for."""
    play = Play(limits=limits)
    play.live(0, 1, 2)
    assert ["ask 2"] == play.live(5)
    return play


def test_one_request_brings_all_holes() -> None:
    """Live goes on with more gaps while the first is being filled: nothing is asked hole by hole."""
    play = gap()
    assert [] == play.live(7, 9)
    lines = play.replay(2, *range(3, 9), end=True)
    assert [f"deliver {seq}" for seq in range(3, 10)] == [said for said in lines if "deliver" in said]
    assert ["drop 2 duplicate", "drop 5 duplicate", "drop 7 duplicate"] == [said for said in lines if "drop" in said]
    assert (10, 0, False) == (play.receiver.position, play.receiver.held_count, play.receiver.is_asking)


def test_old_and_new_framing_are_alike() -> None:
    """The receiver sees numbers and payloads; which frames they came in is read before (wire.frames)."""
    play = gap()
    assert ["deliver 3", "deliver 4", "deliver 5"] == play.replay(3, 4)[-3:]


def test_number_left_out_is_looked_for_once_more_before_it_is_given_up() -> None:
    """A ROUTER at its mark thins an answer out in silence; a publisher that skipped a number leaves the same picture."""
    play = gap()
    assert ["drop 2 duplicate", "deliver 3", "drop 5 duplicate", "ask 3"] == play.replay(2, 3, 5, end=True)
    assert ["drop 3 duplicate", "deliver 4", "deliver 5"] == play.replay(3, 4)
    play = gap()
    play.replay(2, 3, 5, end=True)
    assert ["drop 3 duplicate", "drop 5 duplicate", "lost 4-5 absent", "deliver 5"] == play.replay(3, 5, end=True)


def test_several_skipped_numbers_cost_one_more_look_together() -> None:
    """Not one request a hole."""
    play = Play()
    play.live(0)
    play.live(9)
    assert "ask 0" in play.replay(0, 2, 4, 6, 8, end=True)
    ended = play.replay(0, 2, 4, 6, 8, end=True)
    assert [f"lost {seq}-{seq + 1} absent" for seq in (1, 3, 5, 7)] == [said for said in ended if "lost" in said]
    assert 10 == play.receiver.position


def test_missing_end_mark_is_no_obstacle() -> None:
    """Contiguity lets live flow at once; the idle time-out ends the request, and one more look finds nothing new."""
    play = gap()
    assert "deliver 5" in play.replay(2, 3, 4)
    assert ["deliver 6"] == play.live(6)
    assert ["cancel", "ask 6"] == play.wait(1000)
    assert ["drop 6 duplicate"] == play.replay(6)
    assert ["cancel"] == play.wait(1000)


def test_tail_lost_together_with_the_end_mark_is_asked_for_again() -> None:
    """Half of 5 000 and no end mark: ask on from there, as long as that brings something."""
    play = Play()
    play.up()
    play.replay(*range(10))
    assert ["cancel", "ask 9"] == play.wait(1000)
    play.replay(9, *range(10, 20))
    assert ["cancel", "ask 19"] == play.wait(1000)
    play.replay(19, end=True)
    assert (20, None) == (play.receiver.position, play.receiver.silent_since_ns)


def test_what_is_still_to_come_live_is_not_given_up_with_an_evicted_hole() -> None:
    """The live socket is further behind than the publisher remembers: only the hole is lost, and what it has queued is not."""
    play = gap()
    assert ["lost 3-5 evicted", "deliver 5", "drop 90 stale_replay", "cancel"] == play.replay(90)
    assert ["deliver 6", "deliver 7"] == play.live(6, 7)
    assert "ask 7" in play.live(9)


def test_what_is_not_to_come_live_is_given_up() -> None:
    """A probe of an idle stream finds that the publisher has let go what the socket never brought."""
    play = Play()
    play.live(0, 1, 2)
    while not play.receiver.is_asking:
        play.wait(1000)
    assert ["lost 3-90 evicted", "deliver 90"] == play.replay(90)


def test_evicted_hole_is_given_up_at_once() -> None:
    """The replay begins above it: what went before has been let go, and asking again brings nothing."""
    play = gap()
    assert ["lost 3-4 evicted", "deliver 4", "deliver 5"] == play.replay(4)


def test_silent_endpoint_is_asked_again_with_growing_waits_then_given_up() -> None:
    """Bounded wait; since when it has been silent is known; the next gap is tried again."""
    play = gap(attempts_max=4)
    asked = [0]
    lines: list[str] = []
    while "deliver 5" not in lines:
        assert play.receiver.deadline_ns is not None
        play.now = play.receiver.deadline_ns
        said = play.told(play.receiver.on_time(play.now))
        lines += said
        asked += [play.now] if "ask 2" in said else []
    assert ["cancel", "ask 2"] * 3 + ["cancel", "lost 3-5 silent", "deliver 5"] == lines
    waits = [(asked[index + 1] - asked[index]) / MS - 1000 for index in range(3)]
    assert [True] * 3 == [low <= wait <= 2 * low for wait, low in zip(waits, (25, 50, 100), strict=True)]
    assert 0 == play.receiver.silent_since_ns
    assert ["deliver 6", "ask 6"] == play.live(6, 8)
    play.replay(6)
    assert play.receiver.silent_since_ns is None


def test_batches_are_held_no_longer_than_the_bound() -> None:
    """Even while a replay trickles on and on."""
    play = gap(hold_ns=3000 * MS)
    lines: list[str] = []
    for _ in range(8):
        lines += [*play.wait(400), *play.replay(2)]
    assert ["lost 3-5 hold_time", "deliver 5"] == [said for said in lines if said.startswith(("lost", "deliver"))]


def test_request_that_never_comes_to_an_end_is_cut() -> None:
    """An endless answer must not keep the stream from being probed."""
    play = Play(limits={"request_ns": 3000 * MS})
    play.live(0)
    play.up()
    lines: list[str] = []
    for _ in range(8):
        lines += [*play.replay(0), *play.wait(500)]
    assert "cancel" in lines


@pytest.mark.parametrize("limits", [{"hold_batches": 3}, {"hold_bytes": 11}])
def test_full_hold_drops_the_newest_and_fetches_it_later(limits: dict[str, int]) -> None:
    """A bound costs a second request, never a batch."""
    play = gap(**limits)
    assert ["drop 8 hold_full", "drop 9 hold_full"] == play.live(6, 7, 8, 9)
    assert 3 == play.receiver.held_count
    lines = play.replay(2, 3, 4, end=True)
    assert ["deliver 6", "deliver 7", "ask 7"] == lines[-3:]
    assert ["drop 7 duplicate", "deliver 8", "deliver 9"] == play.replay(7, 8, 9, end=True)


def test_what_a_full_hold_refused_is_not_absent() -> None:
    """Both looks brought 8, there was only no room: only 3 has really been left out."""
    play = Play(limits={"hold_batches": 2})
    play.live(0, 1, 2)
    play.live(9)
    lines = [*play.replay(2, *range(4, 10), end=True), *play.replay(2, *range(4, 10), end=True)]
    assert ["lost 3-4 absent"] == [said for said in lines if said.startswith("lost")]
    play.replay(4, *range(5, 10), end=True)
    assert 10 == play.receiver.position


def test_idle_stream_is_probed_and_a_lost_tail_found() -> None:
    """S3: within a bounded time, and again and again; the end mark behind the last batch says that nothing was lost."""
    play = Play(limits={"idle_ns": 5000 * MS})
    play.live(0, 1)
    assert ["ask 1"] == play.wait(5500)
    assert ["drop 1 duplicate"] == play.replay(1, end=True)
    assert ["ask 1"] == play.wait(5500)
    assert ["drop 1 duplicate", "deliver 2", "deliver 3"] == play.replay(1, 2, 3, end=True)


def test_probe_lets_live_flow_and_makes_room_for_a_gap() -> None:
    """Nothing is in doubt, so nothing waits; a gap is asked for at once, and one request is open at a time."""
    play = Play()
    play.live(0, 1)
    play.wait(5500)
    assert (2).to_bytes(8, "big") == play.receiver.expected
    assert ["deliver 2", "cancel", "ask 2"] == play.live(2, 4)


def test_busy_stream_is_not_probed() -> None:
    """A live batch shows a lost tail by itself."""
    play = Play(limits={"idle_ns": 1000 * MS})
    for seq in range(20):
        assert [f"deliver {seq}"] == [*play.wait(800), *play.live(seq)]


def test_silent_probe_loses_nothing() -> None:
    """Silence is retried; whether the worker is gone is for the caller to say, who is told since when."""
    play = Play()
    play.live(0, 1)
    lines = play.wait(60_000)
    assert {"ask 1", "cancel"} == set(lines)
    assert play.receiver.silent_since_ns is not None
    assert ["deliver 2"] == play.live(2)


def test_restart_is_noticed_although_its_first_numbers_were_lost() -> None:
    """S4: the new life has counted past the position; only the witness tells."""
    play = Play()
    play.live(0, 1, 2)
    play.down()
    assert ["ask 2"] == play.up()
    assert [] == play.live(3, life=1)
    assert ["epoch after 3 changed", "drop 3 unproven", "cancel", "ask 0"] == play.replay(2, life=1)
    assert [f"deliver {seq} of life 1" for seq in range(4)] == play.replay(*range(4), life=1, end=True)
    assert ["drop 3 duplicate", "deliver 4 of life 1"] == play.live(3, 4, life=1)


def test_all_that_came_live_meanwhile_is_used_once_an_answer_has_reached_it() -> None:
    """A worker that sends faster than it answers would else be asked again and again, and never catch up with itself."""
    play = Play()
    play.live(0, 1, 2)
    play.down()
    play.up()
    play.live(3, 4, life=1)
    assert "ask 0" in play.replay(2, life=1)
    play.live(*range(5, 1000), life=1)
    assert [f"deliver {seq} of life 1" for seq in range(4)] == play.replay(0, 1, 2, 3, life=1)
    lines = play.end()
    assert [f"deliver {seq} of life 1" for seq in range(4, 1000)] == lines
    assert not play.receiver.is_asking
    assert ["deliver 1000 of life 1"] == play.live(1000, life=1)


def test_no_more_is_kept_for_proof_than_may_be_held_and_then_the_rest_stays_in_the_socket() -> None:
    """What there is no room for is asked for again; `is_sated` says in time that there will be none."""
    play = Play(limits={"hold_batches": 8})
    play.live(0)
    play.up()
    play.replay(life=1, end=True)
    sated = []
    for seq in range(5, 20):
        sated.append(play.receiver.is_sated)
        play.live(seq, life=1)
    assert [False] * 4 + [True] * 11 == sated
    lines = play.replay(*range(8), life=1, end=True)
    assert [*(f"deliver {seq} of life 1" for seq in range(8)), "ask 7"] == lines
    assert play.receiver.is_sated
    lines = play.replay(7, *range(8, 13), life=1)
    assert [f"deliver {seq} of life 1" for seq in range(8, 20)] == [
        said for said in lines if said.startswith("deliver")
    ]
    assert not play.receiver.is_sated


def test_a_live_socket_far_behind_the_answers_is_read_until_it_is_level_and_not_asked_about() -> None:
    """Each further answer would bring the stream still further ahead of it."""
    play = Play()
    play.live(0)
    play.up()
    play.replay(0, life=1)
    lines = play.replay(*range(500, 900), life=1, end=True)
    assert "lost 0-500 evicted before first" in lines
    assert [f"drop {seq} unproven" for seq in range(100, 836)] == play.live(*range(100, 836), life=1)
    assert not play.receiver.is_asking
    assert ["drop 836 duplicate", *(f"drop {seq} duplicate" for seq in range(837, 900))] == play.live(
        *range(836, 900), life=1
    )
    assert ["deliver 900 of life 1"] == play.live(900, life=1)


def test_a_further_restart_is_found_although_its_numbers_are_far_below() -> None:
    """By the probe of a stream that brings nothing."""
    play = Play()
    play.live(0)
    play.up()
    play.replay(0, life=1)
    play.replay(*range(500), life=1, end=True)
    play.live(*range(5), life=2)
    while not play.receiver.is_asking:
        play.wait(1000)
    assert "epoch after 500 changed" in play.replay(499, life=2)


@pytest.mark.parametrize("answer", [[], [5]])
def test_end_mark_or_later_number_in_place_of_the_witness_is_a_restart(answer: list[int]) -> None:
    """The new life has fewer batches, or no longer has that one."""
    play = Play()
    play.live(0, 1, 2)
    play.up()
    assert "epoch after 3 missing" in play.replay(*answer, life=1, end=True)


def test_same_witness_after_a_reconnect_is_the_same_life() -> None:
    """A network blip: what was held flows, what was missed is brought, nothing is declared."""
    play = Play()
    play.live(0, 1)
    play.down()
    assert [] == play.live(2)
    assert ["ask 1"] == play.up()
    assert ["deliver 2", "drop 1 duplicate"] == play.replay(1)
    assert ["drop 2 duplicate", "deliver 3"] == play.replay(2, 3, end=True)


def test_unanswered_comparison_is_retried_and_then_a_loss() -> None:
    """S4: silence proves nothing, so something may be lost; the next answer is still compared."""
    play = Play()
    play.live(0, 1)
    play.down()
    play.up()
    play.live(2)
    lines = play.wait(20_000)
    assert ["lost 2-2 unverified", "deliver 2"] == [said for said in lines if said.startswith(("lost", "deliver"))]
    while not play.receiver.is_asking:
        play.wait(100)
    assert "epoch after 3 missing" in play.end()


def test_restart_hidden_behind_a_gap_is_noticed_by_the_request_for_it() -> None:
    """No reconnect was reported: the answer begins with the witness, and its bytes are another life's."""
    play = Play()
    play.live(0, 1, 2)
    assert ["ask 2"] == play.live(5, life=1)
    assert ["epoch after 3 changed", "drop 5 unproven", "cancel", "ask 0"] == play.replay(2, life=1)


def test_old_life_still_readable_on_the_live_socket_is_not_taken_for_the_new_one() -> None:
    """The replay found the restart first; two lives are queued on the live socket, and neither passes for the third."""
    play = Play()
    play.live(0, 1, 2)
    play.up()
    play.replay(2, life=2)
    play.replay(0, 1, 2, life=2, end=True)
    assert ["drop 3 unproven", "ask 2"] == play.live(3)
    assert ["drop 2 duplicate"] == play.replay(2, life=2, end=True)
    assert ["drop 0 unproven", "ask 2"] == play.live(0, life=1)
    play.replay(2, life=2, end=True)
    assert ["drop 3 unproven", "ask 2"] == play.live(3, life=2)
    assert ["drop 2 duplicate", "deliver 3 of life 2"] == play.replay(2, 3, life=2, end=True)
    assert ["deliver 4 of life 2"] == play.live(4, life=2)


def test_second_publisher_is_refused_and_told() -> None:
    """The witness is the same, so the number that went back is somebody else's: an alarm, and no loss."""
    play = Play()
    play.live(0, 1, 2)
    assert ["drop 1 unproven", "ask 2"] == play.live(1, life=7)
    assert [] == play.live(3)
    assert ["conflict 1", "deliver 3", "drop 2 duplicate"] == play.replay(2)
    assert ["drop 1 conflict"] == play.live(1, life=7)
    play.replay(3, end=True)
    play.wait(1001)
    assert ["drop 1 unproven", "ask 3"] == play.live(1, life=7)


def test_replay_that_contradicts_the_live_socket_is_a_new_epoch() -> None:
    """Same number, other bytes, one of them held: they cannot both be this life."""
    play = gap()
    play.replay(2)
    assert ["epoch after 3 changed", "drop 5 unproven", "cancel", "ask 0"] == play.replay(5, life=9)


def test_replay_that_contradicts_itself_is_not_asked_in_a_tight_loop() -> None:
    """Each contradiction is a declared loss; the requests after the first wait longer and longer."""
    play = Play()
    play.live(0)
    play.up()
    at: list[int] = []
    for life in range(1, 6):
        play.replay(0, life=life)
        if play.receiver.is_asking:
            at.append(play.now)
            play.replay(0, life=life)
            play.told(play.receiver.receive_replay(0, batch(0, 90 + life), play.now, play.request))
        while not play.receiver.is_asking:
            assert play.receiver.deadline_ns is not None
            play.now = play.receiver.deadline_ns
            play.told(play.receiver.on_time(play.now))
    assert play.now > 100 * MS


def test_restart_before_anything_was_delivered_begins_anew() -> None:
    """What was held is of the older life."""
    play = Play()
    assert ["ask 0"] == play.live(100)
    lines = play.live(0, life=1)
    assert "epoch after 0 went_back" in lines
    assert "drop 100 unproven" in lines
    assert ["deliver 0 of life 1"] == play.replay(0, life=1, end=True)


def test_position_without_a_witness_starts_over_after_a_reconnect() -> None:
    """Numbers up to 100 were given up before anything was delivered: another life may begin below them."""
    play = Play(limits={"hold_batches": 1, "hold_bytes": 1})
    play.live(100)
    play.wait(20_000)
    assert (101, 0) == (play.receiver.position, play.receiver.held_count)
    play.down()
    assert ["epoch after 101 missing", "ask 0"] == play.up()


def test_joined_live_between_two_connections_is_verified_before_it_goes_on() -> None:
    """The first batch may still be of the life before the connection broke."""
    play = Play(first_contact="live")
    play.up()
    play.down()
    play.up()
    assert ["deliver 7", "ask 7"] == play.live(7)
    assert [] == play.live(8, life=1)
    assert "epoch after 8 changed" in play.replay(7, life=1)


def test_restart_given_up_by_a_silent_endpoint_is_still_a_restart() -> None:
    """A number went back and nobody answers: a new epoch is the safe reading."""
    play = Play()
    play.live(0, 1)
    play.live(0, life=1)
    assert "epoch after 2 went_back" in play.wait(20_000)


def test_requests_are_numbered_and_never_two_open() -> None:
    """A cancel comes before the next ask, and a number is not used twice."""
    play = gap()
    seen: list[int] = []
    for life in range(3):
        for output in play.receiver.reconnected(life):
            if isinstance(output, CancelReplay):
                assert seen == [] or output.request == seen[-1]
            if isinstance(output, AskReplay):
                seen.append(output.request)
    assert sorted(set(seen)) == seen
    assert 3 == len(seen)


def test_jitter_comes_from_the_given_source_only() -> None:
    """The same seed gives the same times."""
    deadlines = []
    for _ in range(2):
        play = gap()
        play.wait(1000)
        deadlines.append(play.receiver.deadline_ns)
    assert deadlines[0] == deadlines[1]


def test_first_replay_wins_over_what_is_held() -> None:
    """It may be a snapshot, whose numbers once were other batches: nothing was delivered, so nothing has begun anew."""
    play = Play()
    assert ["ask 0"] == play.live(5)
    assert ["deliver 0 of life 9"] == play.replay(0, life=9)
    assert [f"deliver {seq} of life 9" for seq in range(1, 5)] == play.replay(1, 2, 3, 4, life=9)
    assert ["drop 5 unproven", "deliver 5 of life 9"] == play.replay(5, life=9)
    assert ["deliver 6"] == play.replay(6, end=True)
    assert ["drop 6 duplicate", "deliver 7"] == play.live(6, 7)


def test_first_replay_may_be_faster_than_the_live_socket() -> None:
    """What the live socket still brings of the numbers in front is neither a second publisher nor a restart."""
    play = Play()
    play.up()
    play.replay(0, 1, 2, life=9)
    play.replay(3, end=True)
    assert ["drop 1 unproven", "drop 2 unproven", "drop 3 duplicate", "deliver 4"] == play.live(1, 2, 3, 4)
    assert "ask 4" in play.live(2)


def test_busy_live_socket_is_proven_although_something_newer_always_comes() -> None:
    """The newest batch is never in the answer to a request that was made before it came."""
    play = Play()
    play.live(0)
    play.up()
    play.replay(0, life=1)
    assert ["deliver 0 of life 1"] == play.replay(0, life=1, end=True)
    assert ["drop 1 unproven", "ask 0"] == play.live(1, life=1)
    assert ["drop 2 unproven"] == play.live(2, life=1)
    assert ["drop 0 duplicate", "deliver 1 of life 1", "deliver 2 of life 1"] == play.replay(0, 1, life=1)
    assert (3).to_bytes(8, "big") == play.receiver.expected


def test_any_live_batch_may_be_vouched_for() -> None:
    """Where little is kept and answers are slow, the newest one at the time of asking has long been let go."""
    play = Play()
    play.live(0)
    play.up()
    play.replay(0, life=1)
    play.replay(0, life=1, end=True)
    for seq in range(1, 9):
        play.live(seq, life=1)
    assert ["lost 1-6 evicted", "deliver 6 of life 1", "deliver 7 of life 1", "deliver 8 of life 1"] == play.replay(
        6, life=1
    )
    assert ["deliver 9 of life 1"] == play.live(9, life=1)


def test_first_replay_that_is_cut_off_goes_on_with_the_next_request() -> None:
    """It may be a snapshot: live batches under numbers that it has yet to rewrite must not be mixed with it."""
    play = Play()
    play.up()
    play.live(3, 4)
    assert ["deliver 0 of life 7", "deliver 1 of life 7"] == play.replay(0, 1, life=7)
    play.down()
    assert ["ask 1"] == play.up()
    assert ["drop 1 duplicate", "deliver 2 of life 7"] == play.replay(1, 2, life=7)
    assert ["drop 3 unproven", "drop 4 unproven", "deliver 3 of life 7"] == play.replay(3, life=7)
    assert ["deliver 4", "deliver 5"] == play.replay(4, 5, end=True)


def test_first_replay_that_falls_silent_goes_on_with_the_next_request() -> None:
    """Until one of them brings nothing more; then that was all."""
    play = Play()
    play.up()
    play.live(2)
    play.replay(0, life=7)
    assert ["cancel", "ask 0"] == play.wait(1100)
    assert ["drop 0 duplicate", "deliver 1 of life 7"] == play.replay(0, 1, life=7)
    assert ["cancel", "ask 1"] == play.wait(1100)
    assert ["drop 1 duplicate"] == play.replay(1, life=7)
    assert ["cancel", "deliver 2"] == play.wait(1100)


def test_what_the_live_socket_brings_too_is_not_taken_from_a_long_answer() -> None:
    """Where the live socket is far behind, an answer would bring everything first, and then it would come again."""
    play = gap()
    last = 5 + EXCESS_BATCHES
    said = play.replay(*range(2, last + 1))
    assert [f"deliver {last}", "cancel"] == said[-2:]
    assert not play.receiver.is_asking
    assert ["drop 7 stale_replay"] == play.replay(7)
    assert ["drop 6 duplicate"] == play.live(6)
    assert [f"deliver {last + 1}"] == play.live(last + 1)


def test_an_answer_is_heard_to_its_end_where_nothing_comes_live() -> None:
    """What was missed while the connection was down is in the answer alone."""
    play = Play()
    play.live(0)
    play.replay(0, end=True)
    play.down()
    play.wait(1)
    play.up()
    assert play.receiver.is_asking
    last = 2 * EXCESS_BATCHES
    assert f"deliver {last}" == play.replay(*range(last + 1))[-1]
    assert play.receiver.is_asking
    assert [] == play.replay(end=True)
    assert last + 1 == play.receiver.position


@pytest.mark.parametrize("behind", [10, 63, 64, 65, 200, 1000])
def test_a_restarted_publisher_is_trusted_however_far_its_answers_are_behind_its_live_batches(behind: int) -> None:
    """While an answer is on its way, more comes live than is remembered; the answer still brings what it was asked about."""
    play = Play()
    play.live(0, 1)
    play.replay(0, end=True)
    play.down()
    play.wait(1)
    play.up()
    play.replay(1, life=1)
    newest = 500
    for _ in range(5):
        if not play.receiver.is_asking:
            break
        stop, start = newest + 1, max(0, (play.receiver.position or 0) - 1)
        play.live(*range(stop, stop + behind), life=1)
        newest += behind
        play.replay(*range(start, stop), life=1, end=True)
    assert not play.receiver.is_asking
    assert newest + 1 == play.receiver.position
    assert [f"deliver {newest + 1} of life 1"] == play.live(newest + 1, life=1)
