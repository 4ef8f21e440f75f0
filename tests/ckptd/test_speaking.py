"""Each message to a coordinator is heard from whose business it is, and refused to all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.format.messages.asking import StepDown
from ckpt.format.messages.hello import Failed, Pong, Role
from ckpt.format.messages.sharing import NextReads
from ckpt.format.messages.speaking import TO_COORDINATOR, refusal
from ckpt.format.messages.targets import Attested
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.events import Send
from ckptd.catalog.sqlite import create_catalog
from tests.ckptd.any_field import Everything

PEERS = (Role.STAGER, Role.READER, Role.ADMIN, Role.DRAIN, Role.TARGET)
OTHERS = {NextReads, StepDown}
"""Who shares reads waits for the next; of one of several coordinators, see tests/ha."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    directory: Path = tmp_path_factory.mktemp("catalog")
    return Everything(create_catalog(directory, "c1", CatalogImage(0)))


def test_the_table_has_every_message_that_a_coordinator_hears(world: Everything) -> None:
    assert {type(one.message) for one in world.sayings()} | OTHERS == TO_COORDINATOR.keys()


def test_an_honest_peer_may_say_what_it_says(world: Everything) -> None:
    roles = world.bench.machine._roles
    said = world.sayings()
    assert [one for one in said if refusal(roles[one.session], one.message)] == []


@pytest.mark.parametrize("role", PEERS)
def test_a_peer_that_says_what_its_role_may_not_is_refused_and_changes_nothing(
    world: Everything, role: Role
) -> None:
    bench = world.bench
    wrong = [one for one in world.sayings() if role not in TO_COORDINATOR[type(one.message)]]
    assert wrong
    for saying in wrong:
        session, mark = bench.session(role), bench.mark()
        bench.tell(session, saying.message, saying.bulk)
        (answer,) = bench.log[mark:]
        assert isinstance(answer, Send)
        assert answer.session == session
        assert isinstance(answer.message, Failed)
        assert answer.message.code == "refused"
        assert f"is not said in the role {role.value}" in answer.message.message


@pytest.mark.parametrize("role", [role for role in PEERS if role is not Role.TARGET])
def test_an_answer_that_nobody_asked_for_is_refused(world: Everything, role: Role) -> None:
    for message in (Pong(), Attested(1, ())):
        (answer,) = world.bench.tell(world.bench.session(role), message)
        assert isinstance(answer, Failed)
        assert answer.code == "refused"
