"""Every fault in every phase of a checkpoint's life, and the tests that try it.

A cell is proved only by a test that would fail if a promise broke there. What nobody tries is open,
and stands in docs/failure_model.md; a test holds that table to this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

PHASES: Final[Mapping[str, str]] = {
    "R": "reserve", "S": "stream", "L": "seal", "C": "commit", "A": "at rest", "D": "drain",
    "E": "evict", "X": "load", "B": "rebuild", "M": "move", "Z": "scrub",
}  # fmt: skip
"""A move is what a worker does for a target that is emptied, or for balance: what befalls its own
machine, and crowds beside it, are tried in a rebuild.
"""
CAMPAIGN: Final = (
    "tests/sim/test_simulation.py"
    "::test_no_seed_breaks_a_promise_and_every_cell_of_the_matrix_is_hit"
)
DRAINS: Final = "tests/sim/test_drains.py::test_no_drain_breaks_a_promise"
MID_DRAIN: Final = (
    "tests/sim/test_drain_faults.py::test_a_fault_in_the_middle_of_a_drain_breaks_no_promise"
)
MID_EVICTION: Final = (
    "tests/sim/test_drain_faults.py::test_a_fault_in_the_middle_of_an_eviction_breaks_no_promise"
)
BESIDE: Final = (
    "tests/sim/test_drain_beside_bursts.py::test_a_burst_beside_a_drain_is_hardly_slower"
)
STARVED_REPAIR: Final = "tests/e2e_remote/test_starved_repair.py::test_a_worker_"
STARVED: Final = "tests/objects/test_starved_worker.py::test_a_"
SCRUBBED_DRAINS: Final = (
    "tests/sim/test_drains.py::test_a_scrub_beside_drains_and_evictions_alarms_nobody"
)
REPAIRS: Final = (
    "tests/sim/test_repairs.py::test_what_is_lost_is_made_again_and_nothing_is_lost_meanwhile"
)
MEMBERS: Final = "tests/sim/test_members.py::test_targets_go_and_nothing_of_what_they_had_is_lost"
BALANCES: Final = (
    "tests/sim/test_balancing.py::test_an_empty_target_gets_its_share_and_nothing_is_lost_meanwhile"
)
REMADE: Final = "tests/e2e_remote/test_repair.py::test_"
REBUILT_CATALOGS: Final = (
    "tests/sim/test_rebuilt_catalogs.py"
    "::test_what_is_lost_is_made_again_though_the_catalog_was_lost_as_well"
)
MENDED: Final = (
    "tests/sim/test_rot_in_place.py::test_each_column_is_mended_where_it_lies_and_never_gone"
)
SCRUBS: Final = "tests/sim/test_scrub.py::test_what_is_found_is_what_was_harmed_in_any_history"
CATALOGS: Final = (
    "tests/sim/test_catalogs.py"
    "::test_an_old_catalog_is_never_served_and_all_comes_back_from_the_targets"
)
TWO_COORDINATORS: Final = (
    "tests/sim/test_two_coordinators.py"
    "::test_whoever_of_two_coordinators_acknowledged_it_it_is_there_once"
)
TWO_REBUILDING: Final = (
    "tests/sim/test_two_coordinators.py"
    "::test_columns_that_either_of_two_coordinators_has_made_again_are_there_once"
)
LEADING: Final = "tests/sim/test_leading.py::test_whoever_leads_what_was_acknowledged_is_there_once"
LEADING_DRAINS: Final = (
    "tests/sim/test_leading_drains.py"
    "::test_whoever_leads_what_is_drained_is_there_once_and_nothing_goes_before"
)
TAKEOVERS: Final = (
    "tests/sim/test_takeovers.py::test_a_burst_takes_a_takeover_longer_and_nothing_is_sent_again"
)
CROWDS: Final = "tests/sim/test_crowds.py::test_load_alone_moves_no_column_and_loses_none"
CROWDED_REPAIR: Final = (
    "tests/sim/test_crowds.py"
    "::test_a_crowd_that_saves_while_columns_are_made_again_loses_none_and_these_are_made"
)
CROWDED_SCRUB: Final = (
    "tests/sim/test_crowds.py"
    "::test_a_scrub_beside_a_crowd_that_saves_costs_no_column_and_alarms_nobody"
)
KILLS: Final = "tests/soak/test_kill_at_random.py::test_a_short_campaign_loses_nothing"
MACHINES: Final = "tests/machines/"
STORE_FAULTS: Final = "tests/stores/test_store_faults.py::test_"
LOSSES: Final = "tests/e2e/test_losses.py::test_"
BURSTS: Final = "tests/e2e/test_bursts.py::test_"
FULL: Final = "tests/e2e/test_full_disk.py::test_a_full_disk_ends_saves_honestly_and_loses_nothing"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row."""

    name: str
    phases: str
    """In which it can strike, of PHASES."""
    in_campaign: str = ""
    """In these the simulator's campaign strikes with it, and counts that it did."""
    proofs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Phases -> further tests."""
    waits_for: str = ""
    """What has to be built before its open cells can be tried."""

    @property
    def tests(self) -> dict[str, list[str]]:
        """By phase; none for an open cell."""
        found: dict[str, list[str]] = {phase: [] for phase in self.phases}
        for phase in self.in_campaign:
            found[phase].append(CAMPAIGN)
        for phases, tests in self.proofs.items():
            for phase in phases:
                found[phase] += tests
        return found


MATRIX: Final[tuple[Fault, ...]] = (
    Fault("F1 target killed", "RSLCADEXBMZ", "RSLCAXBM", {
        "B": (REPAIRS,), "Z": (SCRUBS,),
        "DE": (DRAINS,), "SLC": (KILLS,),
        "S": (BURSTS + "a_target_killed_in_mid_stream_loses_its_column_to_the_spare",),
    }),
    Fault("F2 target hangs", "RSLCADXBMZ", "RSLCAXBM", {
        "B": (REPAIRS,), "Z": (SCRUBS,),
        "D": (DRAINS,), "S": (BURSTS + "a_target_that_hangs_in_mid_burst_does_not_hold_the_commit_up",),
    }),
    Fault("F3 target slow", "RSLCADXBMZ", "RSLCAXBM", {
        "B": (REPAIRS,), "Z": (SCRUBS,),
        "S": (
            "tests/e2e_remote/test_slow_target.py"
            "::test_a_target_that_slows_in_mid_stream_loses_its_column_to_the_spare",
        ),
        "D": (MID_DRAIN, BESIDE),
    }),
    Fault("F4 EIO, short write", "RSLCXBMZ", "RSLCXBM", {"B": (REPAIRS,), "Z": (SCRUBS,)}),
    Fault("F5 no space", "RSLDBM", "RSLBM", {
        "B": (REPAIRS,),
        "SL": (FULL,), "D": (STARVED + "store_without_room_is_told_and_filled_when_there_is_some",),
    }),
    Fault("F6 bit flip on the wire", "SLCDXBM", "SLCXBM", {
        "B": (REPAIRS,),
        "D": (STORE_FAULTS + "bits_that_rot_on_the_way_are_found_before_the_commit",),
        "S": (
            "tests/e2e/test_wrong_machine.py"
            "::test_a_save_whose_stager_computes_wrong_parity_is_refused_before_a_byte_is_stored",
            "tests/aio/test_wire.py"
            "::test_what_was_changed_on_the_way_to_a_server_is_never_heard",
            "tests/aio/test_encrypted.py"
            "::test_a_changed_bit_ends_the_session_and_is_never_heard",
        ),
        "X": ("tests/aio/test_wire.py::test_what_was_changed_on_the_way_back_is_never_returned",),
    }),
    Fault("F7 bit flip at rest", "ADEXBMZ", "AXBM", {
        "B": (REPAIRS, MENDED), "Z": (SCRUBS,),
        "X": (LOSSES + "rot_in_one_column_is_repaired_and_counted",),
        "D": (STORE_FAULTS + "bits_that_rot_while_reading_are_told_by_name",),
        "E": (MID_EVICTION,),
    }),
    Fault("F8 misplaced valid page", "LCADXBMZ", "LCAXBM", {
        "Z": (SCRUBS,), "D": (MID_DRAIN,)}),
    Fault("F9 torn write", "SLCABMZ", "SLCABM", {"B": (REPAIRS,), "Z": (SCRUBS,)}),
    Fault("F10 power loss", "RSLCADEBM", "RSLCABM", {
        "B": (REPAIRS,),
        "SLCA": (
            MACHINES + "test_power_loss.py"
            "::test_when_everything_loses_power_all_that_was_acknowledged_is_there",
        ),
        "D": (MID_DRAIN,), "E": (MID_EVICTION,),
    }),
    Fault("F11 fsync fails once", "LCBM", "LCBM", {"B": (REPAIRS,)}),
    Fault("F12 coordinator crash", "RSLCADEXBMZ", "RSLCAXBM", {
        "B": (REPAIRS, REBUILT_CATALOGS), "Z": (SCRUBS,),
        "DE": (DRAINS, LEADING_DRAINS), "A": (CATALOGS,), "RSLCAX": (LEADING,),
        "RSLC": (TAKEOVERS,),
        "C": (BURSTS + "a_coordinator_killed_in_mid_save_only_delays_the_commit",),
    }),
    Fault("F13 old coordinator alive", "RSLCADEXBM", "", {
        "RSLCADEX": (TWO_COORDINATORS,), "RSLCAX": (LEADING,), "B": (TWO_REBUILDING,),
        "M": ("tests/sim/test_two_coordinators.py"
              "::test_columns_that_move_while_two_coordinators_live_are_there_once",),
    }),
    Fault("F14 client crash", "RSLCADM", "RSLCAM", {
        "D": ("tests/stores/test_drain_kills.py::test_killed_anywhere_once_and_whole",),
        "C": (BURSTS + "trainers_killed_after_save_returned_still_commit",),
    }),
    Fault("F15 answer lost", "RSLCDEXBM", "RSLCXBM", {
        "RSLCX": (
            MACHINES + "test_lost_answers.py"
            "::test_every_answer_is_lost_in_its_turn_and_nothing_else",
        ),
        "D": (DRAINS, STORE_FAULTS + "the_markers_lost_answer_is_looked_up"),
        "E": (MID_EVICTION,),
    }),
    Fault("F16 twice, late, reordered", "RSLCADXBM", "RSLCAXBM", {
        "B": (REPAIRS,), "D": (MID_DRAIN,)}),
    Fault("F17 asymmetric partition", "RSLCADXBM", "RSLCAXBM", {
        "B": (REPAIRS,), "D": (DRAINS,)}),
    Fault("F18 half open, no descriptors", "RSDXB", "", {
        "RSX": (
            "tests/ckptd/test_descriptors.py"
            "::test_a_daemon_full_of_sessions_says_so_to_tools_and_trainers_and_recovers",
        ),
        "B": (STARVED_REPAIR + "without_descriptors_makes_all_when_it_has_some",),
        "D": (MID_DRAIN, STARVED + "worker_without_descriptors_says_so_and_goes_on_when_it_has_some"),
    }),
    Fault("F19 crowd of ranks", "RSLCDBZ", "", {
        "RSLC": (CROWDS, "tests/e2e/test_crowds.py"
                 "::test_a_dozen_ranks_on_seven_targets_lack_no_column_and_send_none_twice"),
        "D": (BESIDE,), "B": (CROWDED_REPAIR,), "Z": (CROWDED_SCRUB,),
    }),
    Fault("F20 incast on restore", "RXB", "", {
        "X": ("tests/sim/test_incast.py"
              "::test_a_crowd_of_readers_is_served_from_bounded_memory",),
        "B": ("tests/sim/test_incast.py"
              "::test_a_crowd_of_readers_is_served_while_columns_are_made_again_and_these_are",),
        "R": ("tests/sim/test_restore_crowd.py"
              "::test_a_crowd_that_restores_and_reserves_at_once_is_held_within_bounds",),
    }),
    Fault("F21 m targets lost, then one more", "RSLCADXBM", "RSLCAXBM", {
        "B": (REPAIRS,),
        "AX": (
            LOSSES + "any_two_targets_may_be_lost_after_the_commit",
            LOSSES + "one_loss_too_many_is_unavailable_and_never_an_older_step",
        ),
        "D": ("tests/objects/test_lost_while_draining.py",),
    }),
    Fault("F22 a failure domain lost", "RSLCADXBM", "RSLCAXBM", {
        "AX": (
            "tests/e2e_remote/test_remote_cluster.py"
            "::test_a_lost_host_costs_nothing_but_redundancy",
        ),
        "D": (MID_DRAIN,),
    }),
    Fault("F23 another loss during a rebuild", "AXBM", "BM", {"AXB": (REPAIRS,)}),
    Fault("F24 targets added, removed in a burst", "RSLCADEXBM", "M", {
        "B": (MEMBERS,), "M": (MEMBERS, BALANCES),
        "RSLCA": ("tests/sim/test_growing.py"
                  "::test_a_cluster_that_grows_and_shrinks_keeps_its_promises",),
        "D": (MID_DRAIN,), "E": (MID_EVICTION,),
        "X": ("tests/sim/test_growing.py"
              "::test_loads_get_what_was_saved_while_targets_come_and_leave",),
    }),
    Fault("F25 mixed versions", "RSLCADXBZ", "", {
        "AX": (
            "tests/versions/test_cluster.py"
            "::test_all_that_the_first_version_kept_is_read_bit_by_bit",
        ),
        "RSLC": (
            "tests/versions/test_messages.py"
            "::test_every_message_of_the_first_version_is_read_and_said_as_ever",
        ),
        # A worker waits in the middle of the upgrade, and makes what is lost again when it is over.
        "B": ("tests/wheel/test_upgrade.py::test_an_upgrade_under_saves_loads_and_a_loss",),
        "Z": (
            "tests/wheel/test_upgrade.py"
            "::test_rot_that_is_found_under_an_older_coordinator_is_mended_after_the_upgrade",
        ),
        "D": ("tests/versions/test_drains.py"
              "::test_workers_of_the_first_version_drain_once_and_whole",),
    }),
    Fault("F26 clock jumps", "RSLCADEXBMZ", "RSLCAXBM", {
        "B": (REPAIRS,), "Z": (SCRUBS,),
        "SCAX": (
            MACHINES + "test_clock_jumps.py::test_a_clock_that_jumps_in_mid_save_changes_nothing",
        ),
        "D": (MID_DRAIN,), "E": (MID_EVICTION,),
    }),
    Fault("F27 object store fails, throttles", "ADEX", "", {
        "D": (STORE_FAULTS + "a_store_that_fails_often_holds_the_checkpoint_once_and_whole", DRAINS),
        "AE": (DRAINS,),
        "X": (STORE_FAULTS + "a_store_that_never_answers_ends_at_the_deadline",),
    }),
    Fault("F28 timeout behind success; 409, 412", "DE", "", {
        "D": (
            STORE_FAULTS + "the_markers_lost_answer_is_looked_up",
            STORE_FAULTS + "a_marker_that_another_wrote_first_is_not_overwritten",
        ),
        "E": (MID_EVICTION,),
    }),
    Fault("F29 orphan uploads", "D", "", {
        "D": ("tests/objects/test_leftovers.py::test_it_goes_when_nothing_changed_for_long",),
    }),
    Fault("F30 memory cap of a process", "RSLCADXB", "", {
        "RSLCX": (
            "tests/e2e_remote/test_memory_caps.py"
            "::test_targets_stay_within_their_pools_however_much_is_sent",
        ),
        "A": (
            "tests/e2e_remote/test_memory_caps.py"
            "::test_a_target_that_gets_too_little_memory_costs_its_columns_and_nothing_else",
        ),
        "B": (STARVED_REPAIR + "keeps_to_the_memory_that_it_needs",),
        "D": (
            STARVED + "worker_keeps_the_memory_that_it_was_told",
            STARVED + "worker_that_gets_too_little_memory_goes_on_when_it_gets_enough",
        ),
    }),
    Fault("F31 wrong decode, dirty buffer", "SXBZ", "", {
        "X": (
            "tests/e2e/test_wrong_machine.py"
            "::test_a_reader_whose_erasure_code_is_wrong_refuses_to_decode",
        ),
        "B": (
            "tests/e2e/test_wrong_machine.py"
            "::test_a_repair_worker_on_a_wrong_machine_does_not_start",
        ),
        "Z": (
            "tests/e2e/test_wrong_machine.py::test_a_target_on_a_wrong_machine_does_not_start",
        ),
        "S": (
            "tests/e2e/test_wrong_machine.py"
            "::test_a_save_whose_stager_computes_wrong_parity_is_refused_before_a_byte_is_stored",
        ),
    }),
    Fault("F32 scrub beside the rest", "ADEXBZ", "", {
        "AEXZ": (SCRUBS,), "D": (SCRUBBED_DRAINS,), "B": (REMADE + "a_column_that_has_rotted_is_made_again_elsewhere",),
    }),
)  # fmt: skip


def open_cells() -> Iterator[tuple[Fault, list[str]]]:
    """What nobody tries, by fault."""
    for fault in MATRIX:
        phases = [phase for phase, tests in fault.tests.items() if not tests]
        if phases:
            yield fault, phases


def open_table() -> str:
    """As docs/failure_model.md shows it."""
    cells = sum(len(fault.phases) for fault in MATRIX)
    left = sum(len(phases) for _, phases in open_cells())
    if not left:
        return f"Each of the {cells} cells of faults and phases has a test.\n"
    rows = [
        f"Of {cells} cells of faults and phases {left} have no test yet:",
        "",
        "| fault | phases | waits for |",
        "|---|---|---|",
    ]
    for fault, phases in open_cells():
        names = ", ".join(PHASES[phase] for phase in phases)
        rows.append(f"| {fault.name} | {names} | {fault.waits_for or 'a test'} |")
    return "\n".join(rows) + "\n"
