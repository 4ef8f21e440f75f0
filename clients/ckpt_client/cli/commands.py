"""Which commands `ckpt` has: a line for each, in the order of `ckpt --help`."""

from __future__ import annotations

from typing import Final

VERBS: Final = {
    "demo": (
        "ckpt_client.cli.verbs.demo",
        "train a small model on a cluster that loses targets and trainers",
    ),
    "doctor": (
        "ckpt_client.cli.verbs.doctor",
        "check what would fail on this host before a training starts",
    ),
    "status": (
        "ckpt_client.cli.verbs.status",
        "the cluster on one screen: health, targets, runs, saves under way",
    ),
    "ls": (
        "ckpt_client.cli.verbs.ls",
        "checkpoints: state, size, redundancy now, time to commit",
    ),
    "show": (
        "ckpt_client.cli.verbs.show",
        "everything about one checkpoint, column by column",
    ),
    "cat": (
        "ckpt_client.cli.verbs.cat",
        "print the values of one tensor, or statistics of them",
    ),
    "diff": (
        "ckpt_client.cli.verbs.diff",
        "how two checkpoints differ, and where values moved",
    ),
    "verify": (
        "ckpt_client.cli.verbs.verify",
        "read every byte of a checkpoint and compare",
    ),
    "scrub": (
        "ckpt_client.cli.upkeep.scrub",
        "make targets read all that they keep now, and compare",
    ),
    "tag": (
        "ckpt_client.cli.verbs.tag",
        "give a checkpoint a name, or list the names of a run",
    ),
    "rollback": (
        "ckpt_client.cli.verbs.rollback",
        "make a step the newest of its run again, and set later ones aside",
    ),
    "pin": (
        "ckpt_client.cli.verbs.pin",
        "keep a checkpoint until it is unpinned",
    ),
    "unpin": (
        "ckpt_client.cli.verbs.pin",
        "unpin a checkpoint",
    ),
    "keep": (
        "ckpt_client.cli.verbs.keep",
        "set or show which steps of a run stay",
    ),
    "rm": (
        "ckpt_client.cli.verbs.rm",
        "delete a checkpoint",
    ),
    "export": (
        "ckpt_client.cli.verbs.export",
        "write a checkpoint as safetensors, npz, DCP or Zarr, without a GPU",
    ),
    "import": (
        "ckpt_client.cli.verbs.import_",
        "take in safetensors, npz, DCP or Zarr, without a GPU",
    ),
    "fetch": (
        "ckpt_client.cli.verbs.fetch",
        "bring a checkpoint back from an object store",
    ),
    "drill": (
        "ckpt_client.cli.upkeep.drill",
        "read checkpoints without targets, a domain or the tier, and compare",
    ),
    "durability": (
        "ckpt_client.cli.upkeep.durability",
        "estimate how likely checkpoints are lost within a year",
    ),
    "drain": (
        "ckpt_client.cli.upkeep.drain",
        "wait: until object stores have all; forget: one that is gone",
    ),
    "gc": (
        "ckpt_client.cli.upkeep.gc",
        "show which steps go, and why; end uploads to an object store that never ended",
    ),
    "catalog": (
        "ckpt_client.cli.upkeep.catalog",
        "rebuild, restore: make a lost catalog again from the targets; backup: copy it",
    ),
    "coordinator": (
        "ckpt_client.cli.upkeep.coordinator",
        "ls: which coordinators run, and who leads; step-down: let another one lead",
    ),
    "repair": (
        "ckpt_client.cli.upkeep.repair",
        "show lost columns and who makes them again; pause, resume, set the pace",
    ),
    "upgrade": (
        "ckpt_client.cli.upkeep.upgrade",
        "status: protocol versions of all members; finish: end an upgrade",
    ),
    "local": (
        "ckpt_client.cli.upkeep.local",
        "stop: end the cluster that runs in a directory",
    ),
    "target": (
        "ckpt_client.cli.upkeep.target",
        "ls, drain, out, remove, balance, add, replace, hold: targets come and go",
    ),
    "init": (
        "ckpt_client.cli.upkeep.init",
        "write a configuration file for each daemon, with every key explained",
    ),
    "completion": (
        "ckpt_client.cli.verbs.completion",
        "print a completion script for bash, zsh or fish",
    ),
}
"""Verb -> its module, and what it does."""
