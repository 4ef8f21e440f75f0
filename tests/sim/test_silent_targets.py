"""P3, P4: a save whose targets all fall silent ends in a bounded time, and its error names them."""

from __future__ import annotations

import pytest

from ckpt.base.limits import LEASE_US
from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.protocol.coordinator.saving.stranded import STRANDED_US
from ckpt.protocol.stager.events import SaveCommitted, SaveFailed
from tests.sim.crowd import DAEMONS, Crowd
from tests.sim.harms import stop

FIRST, SECOND = 10, 11
GAP_US = 3 * US_PER_S
TARGETS, SILENT = 7, (3, 7)
"""All but k of a code with a floor of k + 1, and all."""
ENDS_US = 2 * LEASE_US + STRANDED_US
"""After they were heard last. Nobody ticks more often than each SLACK_US."""
SLACK_US = US_PER_S // 2


def second_save(silent: int, after_us: int) -> Crowd:
    """These fall silent so long after the first rank has the plan of its second save, or right
    before that: it begins on space that stands for it. Asks nobody, who would be found silent.
    """
    crowd = Crowd(
        1, 4, [20] * TARGETS, Code(4, 2), 8, (FIRST, SECOND), ticks=DAEMONS, gap_us=GAP_US
    )
    crowd.start()
    assert crowd.clock.run(lambda: all(node.outcomes for node in crowd.ranks), 60 * US_PER_S)
    if after_us:
        assert crowd.clock.run(lambda: any(node.writers for node in crowd.ranks), 2 * GAP_US)
        crowd.clock.pass_time(after_us)
    else:
        crowd.clock.pass_time(GAP_US // 3)
    for target in list(crowd.targets.values())[:silent]:
        stop(target)
    return crowd


@pytest.mark.parametrize("silent", SILENT)
@pytest.mark.parametrize("after_us", [0, 50_000])
def test_a_save_whose_targets_fall_silent_ends_and_names_them(silent: int, after_us: int) -> None:
    crowd = second_save(silent, after_us)
    begun_us = crowd.clock.now_us
    ended = crowd.clock.run(lambda: all(len(node.outcomes) == 2 for node in crowd.ranks), ENDS_US)
    ended = ended or crowd.clock.run(
        lambda: all(len(node.outcomes) == 2 for node in crowd.ranks), SLACK_US
    )
    assert ended, f"{(crowd.clock.now_us - begun_us) / US_PER_S:.1f} s"
    for node in crowd.ranks:
        end = node.outcomes[SECOND]
        assert isinstance(end, SaveFailed)
        assert (end.code, "save again" in end.hint) == ("unavailable", True)
        for target in list(crowd.targets)[:silent]:
            assert target in end.message


@pytest.mark.parametrize("silent", SILENT)
@pytest.mark.parametrize("silent_s", [2, 5, 9])
def test_a_save_whose_targets_speak_again_in_time_goes_on(silent: int, silent_s: int) -> None:
    crowd = second_save(silent, 50_000)
    crowd.clock.pass_time(silent_s * US_PER_S)
    for target in crowd.targets.values():
        target.stopped = False
    assert crowd.clock.run(
        lambda: all(len(node.outcomes) == 2 for node in crowd.ranks), 60 * US_PER_S
    )
    assert all(isinstance(node.outcomes[SECOND], SaveCommitted) for node in crowd.ranks)
