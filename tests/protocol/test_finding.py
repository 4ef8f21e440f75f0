"""Which coordinator is tried when: the search for the one that leads, without a socket."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.base.errors import CkptError, Refused, Unauthorized, Unavailable
from ckpt.base.ids import BootId, Epoch
from ckpt.format.messages.hello import CoordinatorsNamed, Failed, Pong, Role
from ckpt.protocol.events import Ticked
from ckpt.protocol.finding import (
    KNOWN_MAX,
    REDIRECTS_MAX,
    REST_S,
    STAGGER_US,
    AddressFailed,
    AddressProved,
    DropAddress,
    LeaderFound,
    Roster,
    Search,
    SearchAction,
    SearchEvent,
    SearchFailed,
    TryAddress,
)
from ckpt.protocol.handshake import Caller, Elsewhere, Established, OtherCluster
from tests.landing import examples

A, B, C, D = (f"10.0.0.{number}:7070" for number in range(1, 5))
LEADER = Established(Role.COORDINATOR, "", "c1", BootId(1), Epoch(0), 2)
GONE = Unavailable("cannot connect: Connection refused")
STANDS_BY = Unavailable("stands by, and nobody leads")
CALLER = Caller(b"x" * 32, Role.TARGET, "t0")


def leader(*coordinators: str, cluster: str = "c1") -> Established:
    return replace(LEADER, coordinators=coordinators, cluster=cluster)


def elsewhere(address: str) -> Elsewhere:
    return Elsewhere(Failed(Unavailable.code, f"{address} leads", leader=address))


@dataclass
class Hunt:
    """One search with its clock."""

    roster: Roster
    now_us: int = 0
    search: Search = field(init=False)

    def __post_init__(self) -> None:
        self.search = Search(self.roster, lambda: 1.0)

    def tick(self, after_us: int = 0) -> list[SearchAction]:
        self.now_us += after_us
        return self.search.handle(Ticked(self.now_us))

    def fail(self, address: str, error: CkptError = GONE) -> list[SearchAction]:
        return self.search.handle(AddressFailed(self.now_us, address, error))

    def prove(self, address: str, peer: Established = LEADER) -> list[SearchAction]:
        return self.search.handle(AddressProved(self.now_us, address, peer))


def begin(*listed: str) -> Hunt:
    hunt = Hunt(Roster(listed))
    assert hunt.tick() == [TryAddress(listed[0])]
    return hunt


def test_a_silent_address_costs_its_stagger_and_not_its_timeout() -> None:
    hunt = begin(A, B, C)
    assert hunt.tick(STAGGER_US - 1) == []
    assert hunt.search.wake_us == STAGGER_US
    assert hunt.tick(1) == [TryAddress(B)]
    assert hunt.prove(B) == [DropAddress(A), LeaderFound(B, LEADER), TryAddress(A), TryAddress(C)]


def test_the_next_one_is_tried_at_once_when_one_fails() -> None:
    hunt = begin(A, B, C)
    assert hunt.fail(A) == [TryAddress(B)]
    assert hunt.fail(B) == [TryAddress(C)]
    (end,) = hunt.fail(C)
    assert isinstance(end, SearchFailed)
    assert isinstance(end.error, Unavailable)
    for address in (A, B, C):
        assert f"{address}: {GONE.message}" in end.error.message
    assert hunt.search.is_over


def test_one_address_alone_fails_with_its_own_error() -> None:
    for error in (GONE, Unauthorized("no"), Refused("never")):
        assert begin(A).fail(A, error) == [SearchFailed(error)]


def test_whom_a_standby_names_is_tried_at_once_before_all_others() -> None:
    hunt = begin(A, B, C)
    assert hunt.fail(A, elsewhere(C)) == [TryAddress(C)]
    assert hunt.prove(C, leader(A, B, C)) == [LeaderFound(C, leader(A, B, C))]


def test_a_leader_that_is_in_no_list_is_tried_and_remembered() -> None:
    hunt = begin(A)
    assert hunt.fail(A, elsewhere(D)) == [TryAddress(D)]
    assert hunt.prove(D, leader(C, D)) == [LeaderFound(D, leader(C, D))]
    assert hunt.roster.addresses == (D, A, C)
    assert Hunt(hunt.roster).tick() == [TryAddress(D)]


def test_two_standbys_that_name_each_other_are_asked_once_each() -> None:
    hunt = begin(A, B)
    assert hunt.fail(A, elsewhere(B)) == [TryAddress(B)]
    (end,) = hunt.fail(B, elsewhere(A))
    assert isinstance(end, SearchFailed)
    assert end.error.retryable


def test_addresses_that_only_standbys_know_are_bounded() -> None:
    hunt = begin(A)
    asked, actions = A, [TryAddress("x")]
    for number in range(2 * REDIRECTS_MAX):
        actions = hunt.fail(asked, elsewhere(f"10.1.0.{number}:1"))  # type: ignore[assignment]
        if not isinstance(actions[0], TryAddress):
            break
        asked = actions[0].address
    assert isinstance(actions[0], SearchFailed)
    assert number == REDIRECTS_MAX


def test_standbys_are_asked_again_while_the_one_that_led_is_silent() -> None:
    hunt = begin(A, B)
    assert hunt.tick(STAGGER_US) == [TryAddress(B)]
    assert hunt.fail(B, STANDS_BY) == []
    assert hunt.search.wake_us == STAGGER_US + int(REST_S[0] * 1e6)
    assert hunt.tick(int(REST_S[0] * 1e6) - 1) == []
    assert hunt.tick(1) == [TryAddress(B)]
    assert hunt.fail(B, STANDS_BY) == []
    assert hunt.fail(A) != [], "it was silent, and has failed: nobody else can answer"
    assert hunt.search.is_over


def test_what_comes_of_a_connection_that_was_dropped_changes_nothing() -> None:
    hunt = begin(A, B)
    hunt.tick(STAGGER_US)
    hunt.prove(B, leader(A, B))
    assert hunt.prove(A) == []
    assert hunt.fail(A) == []
    assert hunt.tick(10 * STAGGER_US) == []


def test_only_what_all_refuse_is_final() -> None:
    hunt = begin(A, B)
    hunt.fail(A, Unauthorized("not its secret", hint="compare"))
    (end,) = hunt.fail(B)
    assert isinstance(end, SearchFailed)
    assert type(end.error) is Unavailable
    hunt = begin(A, B)
    hunt.fail(A, Unauthorized("not its secret", hint="compare"))
    (end,) = hunt.fail(B, Refused("not this one"))
    assert isinstance(end, SearchFailed)
    assert type(end.error) is Unauthorized
    assert end.error.hint == "compare"


def test_the_next_search_begins_with_who_led_last_and_ends_with_who_failed_last() -> None:
    hunt = begin(A, B, C)
    hunt.fail(A)
    hunt.prove(B, leader(A, B, C))
    assert hunt.roster.addresses == (B, C, A)


def test_replaced_coordinators_are_followed_and_the_list_is_kept() -> None:
    roster = Roster((A, B))
    hunt = Hunt(roster)
    hunt.tick()
    hunt.prove(A, leader(A, C))
    assert set(roster.addresses) == {A, B, C}
    hunt = Hunt(roster)
    assert hunt.tick() == [TryAddress(A)]
    assert hunt.fail(A, elsewhere(C)) == [TryAddress(C)]
    hunt.prove(C, leader(C, D))
    assert set(roster.addresses) == {A, B, C, D}
    roster.led_by(D, leader(D))
    assert set(roster.addresses) == {A, B, D}, "what nobody names any more is forgotten"


def test_coordinators_that_come_while_a_session_stands_are_known_when_it_ends() -> None:
    roster = Roster((A, B))
    hunt = Hunt(roster)
    hunt.tick()
    hunt.prove(A, leader(A, B))
    assert not roster.heard(Pong())
    assert roster.heard(CoordinatorsNamed((A, C)))
    assert roster.addresses == (A, B, C)
    assert roster.heard(CoordinatorsNamed((A, C, D)))
    hunt = Hunt(roster)
    assert hunt.tick() == [TryAddress(A)]
    assert hunt.fail(A) == [TryAddress(B)]
    assert hunt.fail(B) == [TryAddress(C)]
    hunt.prove(C, leader(C, D))
    assert roster.addresses[0] == C


def test_a_leader_cannot_make_the_list_grow_without_bound() -> None:
    roster = Roster((A,))
    roster.led_by(A, leader(*(f"10.2.0.{number}:1" for number in range(200))))
    assert len(roster.addresses) == KNOWN_MAX


def test_a_list_with_members_of_two_clusters_is_refused_by_name() -> None:
    hunt = begin(A, B)
    assert hunt.prove(A)[1:] == [TryAddress(B)], "the leader did not name it: it is asked, aside"
    refused = hunt.fail(B, OtherCluster("this is c2", "c2"))
    assert [type(action) for action in refused] == [SearchFailed]
    (end,) = refused
    assert isinstance(end, SearchFailed)
    assert isinstance(end.error, Refused)
    for text in (A, B, "c1", "c2"):
        assert text in end.error.message
    again = Hunt(hunt.roster)
    assert again.tick() == [SearchFailed(end.error)], "the list is of no use any more"
    assert again.search.is_over


def test_a_member_that_goes_to_another_cluster_later_ends_one_search_and_not_the_next() -> None:
    roster = Roster((A, B))
    hunt = Hunt(roster)
    hunt.tick()
    hunt.prove(A, leader(A, B))
    hunt = Hunt(roster)
    hunt.tick()
    assert hunt.fail(A) == [TryAddress(B)]
    (end,) = hunt.prove(B, leader(B, cluster="c2"))[-1:]
    assert isinstance(end, SearchFailed)
    assert type(end.error) is Refused
    for text in (A, B, "c1", "c2"):
        assert text in end.error.message
    hunt = Hunt(roster)
    assert hunt.tick() == [TryAddress(A)]
    assert hunt.prove(A, leader(A, B)) == [LeaderFound(A, leader(A, B))]


def test_an_address_of_no_list_that_went_to_another_cluster_is_passed_by() -> None:
    roster = Roster((A,))
    roster.met(A, "c1")
    roster.led_by(A, leader(A, B, C))
    hunt = Hunt(roster)
    hunt.tick()
    assert hunt.fail(A) == [TryAddress(B)]
    assert hunt.prove(B, leader(cluster="c2")) == [DropAddress(B), TryAddress(C)]
    assert hunt.prove(C, leader(A, C)) == [LeaderFound(C, leader(A, C))]


def test_whom_a_standby_wrongly_names_does_not_spoil_the_list() -> None:
    hunt = begin(A, B)
    assert hunt.fail(A, elsewhere(D)) == [TryAddress(D)]
    assert hunt.fail(D, OtherCluster("this is c2", "c2")) == [TryAddress(B)]
    assert hunt.prove(B, leader(A, B)) == [LeaderFound(B, leader(A, B))]


def test_one_whose_only_coordinator_was_made_again_goes_there() -> None:
    roster = Roster((A,))
    for cluster in ("c1", "c2"):
        hunt = Hunt(roster)
        hunt.tick()
        assert hunt.prove(A, leader(cluster=cluster)) == [LeaderFound(A, leader(cluster=cluster))]
        assert roster.for_cluster(CALLER) == CALLER


def test_members_of_the_list_are_asked_for_the_known_cluster_once_only() -> None:
    roster = Roster((A, B))
    hunt = Hunt(roster)
    hunt.tick()
    assert hunt.prove(A) == [LeaderFound(A, LEADER), TryAddress(B)]
    assert roster.for_cluster(CALLER).cluster == "c1"
    assert not hunt.search.is_over
    assert hunt.fail(B, elsewhere(A)) == []
    assert hunt.search.is_over
    hunt = Hunt(roster)
    hunt.tick()
    assert hunt.prove(A) == [LeaderFound(A, LEADER)]


def test_a_second_name_of_the_leader_is_let_go() -> None:
    hunt = begin(A, B)
    hunt.prove(A)
    assert hunt.prove(B) == [DropAddress(B)]
    assert hunt.search.is_over


# --------------------------------------------------------------------------- any order of events

LISTS = st.lists(st.sampled_from((A, B, C, D)), min_size=1, max_size=4, unique=True)
FATES = st.sampled_from(("gone", "silent", "standby", "points", "stranger", "leads", "refuses"))
TIMEOUT_US = 3_000_000


@dataclass
class World:
    """What each address does, and what was done to it."""

    fates: dict[str, tuple[str, int]]
    open: dict[str, int] = field(default_factory=dict)
    """Address -> when its connection's end comes."""
    tried_us: list[int] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    failed: list[CkptError] = field(default_factory=list)

    def perform(self, now_us: int, actions: list[SearchAction]) -> None:
        for action in actions:
            match action:
                case TryAddress(address):
                    assert address not in self.open, "one connection for each"
                    self.tried_us.append(now_us)
                    fate, after_us = self.fates.get(address, ("gone", 1))
                    self.open[address] = now_us + (TIMEOUT_US if fate == "silent" else after_us)
                case DropAddress(address):
                    del self.open[address]
                case LeaderFound(address):
                    self.found.append(address)
                    del self.open[address]
                case SearchFailed(error):
                    self.failed.append(error)

    def outcome(self, now_us: int, address: str) -> SearchEvent:
        match self.fates.get(address, ("gone", 1))[0]:
            case "leads":
                return AddressProved(now_us, address, LEADER)
            case "standby":
                return AddressFailed(now_us, address, STANDS_BY)
            case "points":
                return AddressFailed(now_us, address, elsewhere(B))
            case "stranger":
                return AddressFailed(now_us, address, elsewhere(f"10.9.0.{now_us % 200}:1"))
            case "refuses":
                return AddressFailed(now_us, address, Refused("never"))
        return AddressFailed(now_us, address, GONE)


@settings(max_examples=examples(300), deadline=None)
@given(
    LISTS,
    st.fixed_dictionaries(
        {one: st.tuples(FATES, st.integers(1, 1_500_000)) for one in (A, B, C, D)}
    ),
)
def test_whatever_answers_when_one_is_found_at_most_and_the_search_ends(
    listed: list[str], fates: dict[str, tuple[str, int]]
) -> None:
    world, search, now_us = World(fates), Search(Roster(tuple(listed)), lambda: 1.0), 0
    world.perform(now_us, search.handle(Ticked(now_us)))
    while not search.is_over:
        assert world.open, "nothing is under way, and it is not over"
        wake_us = search.wake_us
        address = min(world.open, key=lambda one: world.open[one])
        if wake_us is not None and wake_us <= world.open[address]:
            now_us = max(now_us, wake_us)
            world.perform(now_us, search.handle(Ticked(now_us)))
        else:
            now_us = world.open[address]
            event = world.outcome(now_us, address)
            if isinstance(event, AddressFailed):
                del world.open[address]
            world.perform(now_us, search.handle(event))
    assert len(world.found) + len(world.failed) == 1
    known = len(listed) + REDIRECTS_MAX
    assert now_us <= known * STAGGER_US + (known + 1) * TIMEOUT_US
    # Each address once for its turn, and again after a rest of 0.1 s or more while one is silent;
    # the members of a list once more, to be checked.
    again = known * (1 + now_us // int(REST_S[0] * 1e6))
    assert len(world.tried_us) <= 2 * known + again
    leads = [one for one in listed if fates[one][0] == "leads"]
    if leads:
        assert world.found, "one leads"
        assert now_us <= len(listed) * STAGGER_US + 2 * TIMEOUT_US
    assert world.open == {}


@pytest.mark.parametrize("silent", [(A,), (A, B)])
def test_a_leader_is_found_past_addresses_that_never_answer(silent: tuple[str, ...]) -> None:
    listed = (*silent, C)
    hunt = begin(*listed)
    for address in listed[1:]:
        assert hunt.tick(STAGGER_US) == [TryAddress(address)]
    assert LeaderFound(C, leader(*listed)) in hunt.prove(C, leader(*listed))
    assert hunt.now_us <= 500_000
