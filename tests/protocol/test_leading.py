"""The machine by which coordinators agree who leads: its table, and three of them at one store.

The model has what decides: one key with a revision, leases that may end at any moment, actions that
take effect late or never, processes that are stopped for as long as one likes. Clocks stand still
in it but for the leases: nothing may depend on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.protocol.coordinator.leading import (
    AFTER_YOU_US,
    RETRY_US,
    Campaign,
    CampaignEnded,
    EndTerm,
    HolderGone,
    HolderSeen,
    ImageLoaded,
    KeyHolder,
    Lead,
    LeadingAction,
    LeadingEvent,
    LeadingMachine,
    LeadingState,
    Load,
    StepDownAsked,
    TermEnded,
    TermKept,
    TermLost,
    Unseat,
)
from ckpt.protocol.events import Ticked
from tests.landing import examples

LEASE_US = 2_000_000
NOW_US = 10_000_000
MINE, OTHER = KeyHolder(7, "me", "a", "h:1", 3), KeyHolder(9, "you", "b", "h:2", 4)

EVENTS: dict[str, LeadingEvent] = {
    "the key is free": HolderSeen(NOW_US, None),
    "the key is another's": HolderSeen(NOW_US, OTHER),
    "the key is mine, of a term that I gave up": HolderSeen(NOW_US, MINE),
    "the process of who has the key is gone": HolderGone(NOW_US, OTHER),
    "it is mine": CampaignEnded(NOW_US, MINE, LEASE_US),
    "it is not": CampaignEnded(NOW_US, None),
    "the image is there": ImageLoaded(NOW_US),
    "the key is not mine any more": HolderSeen(NOW_US, OTHER),
    "the store refuses the term": TermLost(NOW_US, "it says so"),
    "the lease was not kept for its length": Ticked(NOW_US + LEASE_US),
    "asked to step down": StepDownAsked(NOW_US),
    "the term has ended": TermEnded(NOW_US),
}
ACTIONS: dict[str, Callable[[LeadingAction], bool]] = {
    "-": lambda action: False,
    "take it": lambda action: isinstance(action, Campaign),
    "free it": lambda action: isinstance(action, Unseat),
    "load": lambda action: isinstance(action, Load),
    "open the door": lambda action: isinstance(action, Lead),
    "end the term": lambda action: isinstance(action, EndTerm),
    "finish and end the term": lambda action: isinstance(action, EndTerm) and action.finish,
}


def machine_in(state: LeadingState) -> LeadingMachine:
    """By the shortest way there."""
    machine = LeadingMachine("me")
    way: list[LeadingEvent] = [
        HolderSeen(NOW_US, None), CampaignEnded(NOW_US, MINE, LEASE_US), ImageLoaded(NOW_US),
        TermLost(NOW_US, "it was taken over"),
    ]  # fmt: skip
    order = [
        LeadingState.FOLLOWING, LeadingState.CAMPAIGNING, LeadingState.LOADING,
        LeadingState.LEADING, LeadingState.DEPOSED,
    ]  # fmt: skip
    for event in way[: order.index(state)]:
        machine.handle(event)
    assert machine.state is state
    if state is LeadingState.FOLLOWING:
        machine.handle(HolderSeen(NOW_US, OTHER))
    return machine


def documented() -> dict[tuple[str, str], tuple[str, str]]:
    """(state, event) -> (state, actions), of docs/protocol.md."""
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    section = page[page.index("## 6. Which coordinator leads") :]
    rows = re.findall(r"^\| (\w+) \| (.+?) \| (\w+) \| (.+?) \|$", section, re.MULTILINE)
    return {(state, event): (then, actions) for state, event, then, actions in rows[1:]}


@pytest.mark.parametrize(("state", "event"), documented())
def test_a_row_of_the_table(state: str, event: str) -> None:
    then, actions = documented()[(state, event)]
    machine = machine_in(LeadingState(state))
    done = machine.handle(EVENTS[event])
    assert machine.state.value == then
    assert len(done) == (actions != "-")
    assert all(ACTIONS[actions](action) for action in done)


def rest() -> list[tuple[LeadingState, str]]:
    """What has no row, under any name. A campaign ends once, in the state that it began in."""
    rows = [(of, EVENTS[event]) for of, event in documented()]
    return [
        (state, name)
        for state in LeadingState
        for name, event in EVENTS.items()
        if (state.value, event) not in rows and not isinstance(event, CampaignEnded)
    ]


@pytest.mark.parametrize(("state", "event"), rest())
def test_what_has_no_row_changes_nothing(state: LeadingState, event: str) -> None:
    machine = machine_in(state)
    assert machine.handle(EVENTS[event]) == []
    assert machine.state is state


def test_a_lease_that_is_kept_keeps_the_term() -> None:
    machine = machine_in(LeadingState.LEADING)
    machine.handle(TermKept(NOW_US + LEASE_US - 1))
    assert machine.handle(Ticked(NOW_US + LEASE_US)) == []
    (end,) = machine.handle(Ticked(NOW_US + 2 * LEASE_US))
    assert isinstance(end, EndTerm)
    assert "was not kept for 2.0 s" in end.why


def test_a_key_of_another_process_at_my_revision_is_not_mine() -> None:
    """etcd was put back to a snapshot, and counts once more."""
    machine = machine_in(LeadingState.LEADING)
    (end,) = machine.handle(HolderSeen(NOW_US, replace(OTHER, revision=MINE.revision)))
    assert isinstance(end, EndTerm)
    assert "b leads in term 4" in end.why


def test_who_stepped_down_lets_the_others_go_first() -> None:
    machine = machine_in(LeadingState.LEADING)
    machine.handle(StepDownAsked(NOW_US))
    machine.handle(TermEnded(NOW_US))
    assert machine.handle(HolderSeen(NOW_US + AFTER_YOU_US - 1, None)) == []
    assert machine.handle(HolderSeen(NOW_US + AFTER_YOU_US, None)) == [Campaign()]


def test_a_campaign_and_an_unseating_that_failed_are_tried_again_later() -> None:
    machine = LeadingMachine("me")
    assert machine.handle(HolderSeen(NOW_US, None)) == [Campaign()]
    machine.handle(CampaignEnded(NOW_US, None))
    assert machine.handle(HolderSeen(NOW_US + RETRY_US - 1, None)) == []
    assert machine.handle(HolderSeen(NOW_US + RETRY_US, None)) == [Campaign()]
    machine.handle(CampaignEnded(NOW_US, None))
    assert machine.handle(HolderSeen(NOW_US, MINE)) == [Unseat(MINE.revision)]
    assert machine.handle(HolderSeen(NOW_US + RETRY_US - 1, MINE)) == []
    assert machine.handle(HolderSeen(NOW_US + RETRY_US, MINE)) == [Unseat(MINE.revision)]


def test_only_the_leader_that_is_known_is_unseated() -> None:
    machine = LeadingMachine("me")
    machine.handle(HolderSeen(NOW_US, OTHER))
    assert machine.handle(HolderGone(NOW_US, replace(OTHER, revision=1))) == []
    assert machine.leader == OTHER
    assert machine.handle(HolderGone(NOW_US, OTHER)) == [Unseat(OTHER.revision)]
    assert machine.leader is None


def test_who_has_a_key_of_the_revision_of_one_that_is_gone_leads() -> None:
    """etcd was put back to a snapshot, and counts once more."""
    machine = LeadingMachine("me")
    machine.handle(HolderSeen(NOW_US, OTHER))
    machine.handle(HolderGone(NOW_US, OTHER))
    after = KeyHolder(OTHER.revision, "third", "c", "h:3", OTHER.term)
    assert machine.handle(HolderSeen(NOW_US, after)) == []
    assert machine.leader == after
    assert machine.handle(HolderGone(NOW_US, OTHER)) == []
    assert machine.leader == after


@pytest.mark.parametrize(
    "state", [state for state in LeadingState if state is not LeadingState.FOLLOWING]
)
def test_nobody_is_sent_on_by_who_does_not_follow(state: LeadingState) -> None:
    assert machine_in(state).leader is None


# --------------------------------------------------------------------------- several of them


@dataclass(slots=True)
class Store:
    """The key, and the term, of etcd."""

    holder: KeyHolder | None = None
    revision: int = 0
    term: int = 0

    def take(self, process: str) -> KeyHolder | None:
        if self.holder is not None:
            return None
        self.revision += 1
        self.term += 1
        self.holder = KeyHolder(self.revision, process, term=self.term)
        return self.holder

    def unseat(self, revision: int) -> None:
        if self.holder is not None and self.holder.revision == revision:
            self.holder = None


class Party:
    """A machine, its process, and what of its actions has not happened yet."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.machine = LeadingMachine(name)
        self.store = store
        self.pending: list[LeadingAction] = []
        self.written: list[int] = []
        """Terms in which the store took what it wrote."""

    def feed(self, event: LeadingEvent) -> None:
        self.pending += self.machine.handle(event)

    def act(self) -> None:
        """The oldest action takes effect."""
        if not self.pending:
            return
        match self.pending.pop(0):
            case Campaign():
                self.feed(CampaignEnded(NOW_US, self.store.take(self.name), LEASE_US))
            case Unseat(revision):
                self.store.unseat(revision)
            case Load():
                self.feed(ImageLoaded(NOW_US))
            case EndTerm():
                self.feed(TermEnded(NOW_US))
            case Lead():
                assert self.machine.state is not LeadingState.FOLLOWING

    def write(self) -> None:
        """Past the fence, as a leader does at any time; refused, it hears so."""
        if self.machine.state is not LeadingState.LEADING or self.machine.holder is None:
            return
        if self.store.holder == self.machine.holder:
            self.written.append(self.machine.holder.term)
        else:
            self.feed(TermLost(NOW_US, "another one has it"))

    def look(self) -> None:
        """Never while an action of its own is on its way to the store."""
        if not self.pending:
            self.feed(HolderSeen(NOW_US + len(self.written), self.store.holder))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["look", "act", "write", "lease ends", "down", "gone", "silent"]),
    ),
    max_size=120,
)


def do(parties: list[Party], index: int, step: str) -> None:
    party, store = parties[index], parties[index].store
    match step:
        case "look":
            party.look()
        case "act":
            party.act()
        case "write":
            party.write()
        case "lease ends":
            store.holder = None
        case "down":
            party.feed(StepDownAsked(NOW_US - AFTER_YOU_US))
        case "gone" if store.holder is not None and store.holder.process != party.name:
            party.feed(HolderGone(NOW_US, store.holder))
        case "silent":
            party.feed(Ticked(NOW_US + LEASE_US))


@settings(max_examples=examples(400), deadline=None)
@given(STEPS)
def test_no_term_is_two_parties_and_in_the_end_one_leads(steps: list[tuple[int, str]]) -> None:
    store = Store()
    parties = [Party(name, store) for name in "abc"]
    for index, step in steps:
        do(parties, index, step)
    written = [set(party.written) for party in parties]
    assert sum(map(len, written)) == len(set[int]().union(*written)), "a term is one party's"
    # Nothing more happens to them: looks and actions alone bring one to lead, and the others to
    # follow it, also past a key that its own process has forgotten.
    for round in range(12):
        for party in parties:
            later = NOW_US + round * RETRY_US
            if not party.pending:
                party.feed(HolderSeen(later, store.holder))
            party.act()
    leading = [party for party in parties if party.machine.state is LeadingState.LEADING]
    assert [party.machine.holder for party in leading] == [store.holder]
    others = [party.machine for party in parties if party not in leading]
    assert all(each.state is LeadingState.FOLLOWING for each in others)
    assert all(each.holder == store.holder for each in others)


def test_the_model_finds_a_machine_that_never_gives_up_its_own_key() -> None:
    """Without that rule nobody leads again."""
    store = Store()
    party = Party("a", store)
    for _ in range(3):
        party.look()
        party.act()
        party.act()
    assert party.machine.state is LeadingState.LEADING
    party.feed(Ticked(NOW_US + LEASE_US))
    party.act()
    assert store.holder is not None
    assert store.holder.process == "a"
    stubborn = replace(store.holder, process="somebody else")
    party.feed(HolderSeen(NOW_US, stubborn))
    assert party.pending == []
    party.feed(HolderSeen(NOW_US, store.holder))
    assert party.pending == [Unseat(store.holder.revision)]
