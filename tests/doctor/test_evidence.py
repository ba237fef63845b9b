"""Small questions to what was observed."""

from __future__ import annotations

from kvbus.doctor.evidence import Contact, Knock
from tests.doctor.made import PUBLISHER, REFUSED, evidence, unreached


def test_the_kind_of_socket_is_known_where_it_was_said():
    assert ["PUB", "", ""] == [each.socket_type for each in (PUBLISHER, REFUSED, Knock(Contact.SILENT))]


def test_reached_means_that_a_peer_was_connected():
    assert (True, False) == (evidence().is_reached, unreached(REFUSED).is_reached)
