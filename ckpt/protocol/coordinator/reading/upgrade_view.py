"""What people see of an upgrade."""

from __future__ import annotations

from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.cluster.upgrading import Upgrading
from ckpt.protocol.coordinator.reading.answers import UpgradeMember, UpgradeView


def upgrade_view(upgrading: Upgrading, members: Membership, needs: int) -> UpgradeView:
    """Coordinators first, then targets, then whoever else has a session."""
    coordinators = [UpgradeMember("coordinator", "", PROTOCOL_VERSION, "leads")]
    coordinators += [
        UpgradeMember("coordinator", id, version, "stands by")
        for id, version in sorted(upgrading.colleagues().items())
    ]
    targets = [
        UpgradeMember("target", target.id, upgrading.spoke.get(target.id), target.state.value)
        for target in members.all()
    ]
    # A process has several sessions, such as one for each payload that a worker repairs.
    others = sorted(
        {
            (peer.kind, peer.name, peer.version)
            for peer in upgrading.peers.values()
            if peer.kind != "target"
        }
    )
    return UpgradeView(
        protocol=PROTOCOL_VERSION,
        needs=needs,
        finished=upgrading.is_finished,
        members=(*coordinators, *targets, *(UpgradeMember(*one, "here") for one in others)),
        against=tuple(upgrading.against()),
        away=tuple(upgrading.away()),
    )
