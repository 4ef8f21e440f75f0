"""Bring a checkpoint back from an object store into the cluster, before the ranks start again.

RUN@STEP is looked for in $CKPT_DURABLE and in the stores that this cluster drains to; a URL names
the store. A step that is lost in the tier is replaced, and gives its names and its pin to what is
fetched; a step that can be read there stays.

--lost fetches all that the tier has lost and a store has (`stored` in `ckpt ls`), of all runs or of
RUN alone, the newest step first. Names, pins and metrics come with it; a fetch that was killed
before it gave them is named, with the commands. A run whose trainer is connected is left for later,
since a fetch would end its launch; steps that a rollback has set aside stay where they are.

A step that was written as files is fetched as files. Otherwise every rank's tree is read from the
store, verified, and saved as that rank of a new launch; when all are committed, RUN@STEP is in the
tier as its ranks left it. One rank's tree is in memory at a time, and the staging memory holds all
of them until the commit. A launch that still saves this run is shut out: fetch after it has ended.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from msgspec import Struct

from ckpt.base.errors import Busy, CkptError, NotFound, Refused
from ckpt.base.ids import Generation, RunName, Step, check_run_name
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.format.members import NO_LAUNCH
from ckpt.objects.reader import StoredCheckpoint, open_stored
from ckpt.objects.sinks.stores import open_sink
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client import labels
from ckpt_client.cli.cluster import Conversation, conversation, parse_checkpoint
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.meant import no_run
from ckpt_client.cli.output import Output, show_error
from ckpt_client.load.from_store import open_url
from ckpt_client.save.again import save_again
from ckpt_client.store import Store
from ckpt_client.store import open as open_store
from ckpt_client.url import LocalUrl, RemoteUrl

EXAMPLE = (
    "ckpt fetch llama/7b@12500 --dry-run\nckpt fetch llama/7b@12500\n"
    "ckpt fetch --lost --dry-run\nckpt fetch --lost llama/7b"
)
COMMIT_TIMEOUT_S = 3600.0
IS_OPEN = "a launch of it is there, which a fetch would end"
IS_ASIDE = "a rollback has set it aside"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        metavar="RUN@STEP",
        nargs="?",
        help="which one, or its URL STORE/RUN@STEP (without @STEP the newest); with --lost: RUN",
    )
    parser.add_argument(
        "--lost", action="store_true", help="fetch all that the tier has lost and a store has"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be fetched, and from where"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.lost:
        return _fetch_lost(arguments, output)
    if arguments.checkpoint is None:
        raise Refused("fetch what?", hint="ckpt fetch RUN@STEP, or ckpt fetch --lost")
    return _fetch_one(arguments, output)


def _fetch_one(arguments: argparse.Namespace, output: Output) -> int:
    begun_s = time.monotonic()
    with conversation(arguments, output) as talk:
        stored = _opened(arguments.checkpoint, talk)
    try:
        header = stored.header
        name, step, _ = header.key
        with conversation(arguments, output) as talk:
            under_way = [one for one in talk.status().attempts if one.run == name]
            known = [one for one in talk.steps(name) if one.step == step]
            held = [one for one in known if one.readable]
        if under_way:
            raise Busy(f"{name} is being saved at this moment", hint="fetch when it has ended")
        if not held and not arguments.dry_run:
            launch = f"fetch {header} at {time.time_ns()}"
            with (
                output.waiting(f"fetching {name}@{step}"),
                open_store(arguments.store, launch=launch) as store,
            ):
                generation = _save(stored, store, talk.url)
            with conversation(arguments, output) as talk:
                for view in known:
                    if view.generation == header.generation:
                        _label(talk, view, generation)
        found = _One(
            name, step, header.world_size, not held and not arguments.dry_run,
            arguments.dry_run, bool(held), stored.url, stored.manifest.stored_bytes,
        )  # fmt: skip
    finally:
        stored.close()
    output.document(found)
    _tell_one(found, output, time.monotonic() - begun_s)
    return ExitCode.OK


class _One(Struct, frozen=True):
    """What came of a fetch of one checkpoint, or would come."""

    run: str
    step: int
    ranks: int
    fetched: bool
    dry_run: bool
    in_tier: bool
    """It was in the tier already: nothing is fetched."""
    store: str
    """URL of the checkpoint in its object store."""
    stored_bytes: int
    """Bytes of its objects there, as they are packed."""


def _tell_one(one: _One, output: Output, seconds: float) -> None:
    name = f"{one.run}@{one.step}"
    ranks, size = counted(one.ranks, "rank"), format_bytes(one.stored_bytes)
    if one.in_tier:
        output.line(f"{name} of {ranks} is in the tier already: nothing is to be fetched")
    elif one.dry_run:
        output.line(f"{name} of {ranks} would be fetched: {size} from {one.store}")
        output.line("nothing was changed")
    else:
        output.line(f"{name} of {ranks} is in the tier, after {format_seconds(seconds)}")


def _opened(text: str, talk: Conversation) -> StoredCheckpoint:
    """Raises NotFound when no store has it, Refused, Corrupt, Unavailable."""
    if "://" in text:
        return open_url(text)
    run_name, step = parse_checkpoint(text)
    stores = [os.environ.get("CKPT_DURABLE", ""), *(store.url for store in talk.status().stores)]
    for url in filter(None, dict.fromkeys(stores)):
        with suppress(NotFound):
            return open_stored(open_sink(url), run_name, step)
    named = ", ".join(filter(None, stores)) or "no object store is known here"
    raise NotFound(f"{text} is in no object store: {named}", hint="ckpt fetch URL/RUN@STEP")


def _save(stored: StoredCheckpoint, store: Store, url: LocalUrl | RemoteUrl) -> Generation:
    """Which generation its step is from now on."""
    if stored.header.launch == NO_LAUNCH:
        # fsspec takes a while to load, which most fetches do without.
        from ckpt_client.fs.again import is_of_files, write_again

        if is_of_files(stored):
            return write_again(stored, url)
    commits = [save.wait(COMMIT_TIMEOUT_S) for save in save_again(stored, store)]
    return commits[-1].generation


# --------------------------------------------------------------------------- all that is lost


@dataclass(slots=True)
class _Done:
    """What came of it."""

    fetched: list[dict[str, object]] = field(default_factory=list)
    left: list[dict[str, object]] = field(default_factory=list)
    """What is still in a store alone, and why."""
    code: int = ExitCode.OK

    def leave(self, view: StepView, why: str) -> None:
        self.left.append({**_named(view), "reason": why})


def _named(view: StepView) -> dict[str, object]:
    """`from`: the generation that is lost; what is fetched is another one."""
    return {
        "run": view.run,
        "step": view.step,
        "from": view.generation,
        "bytes": view.bytes,
        "ranks": view.world_size,
        "store": view.stored[0] if view.stored else "",
    }


def _fetch_lost(arguments: argparse.Namespace, output: Output) -> int:
    wanted = None if arguments.checkpoint is None else check_run_name(arguments.checkpoint)
    begun_s, done = time.monotonic(), _Done()
    with conversation(arguments, output) as talk:
        known = talk.runs()
        runs = [RunName(view.run) for view in known]
        if wanted is not None and wanted not in runs:
            raise no_run(wanted, known)
        for name in runs if wanted is None else [wanted]:
            lost = list(_lost(talk, name, done))
            if arguments.dry_run:
                done.fetched += map(_named, lost)
            elif lost:
                _fetch_run(talk, arguments, output, lost, done)
    output.document({"dry_run": arguments.dry_run, "fetched": done.fetched, "left": done.left})
    _tell(done, arguments, output, time.monotonic() - begun_s)
    return done.code


def _lost(talk: Conversation, name: RunName, done: _Done) -> Iterator[StepView]:
    """Of a run, the newest step first: what was saved again since is not lost."""
    is_open = any(view.is_open for view in talk.runs() if view.run == name)
    views = talk.steps(name)
    for view, reason in left_unnamed(views):
        done.leave(view, reason)
    newest = {view.step: view for view in views}  # Ascending.
    for _, view in sorted(newest.items(), reverse=True):
        if not view.stored:
            continue
        if view.aside:
            done.leave(view, IS_ASIDE)
        elif is_open:
            done.leave(view, IS_OPEN)
            done.code = done.code or ExitCode.BUSY
        else:
            yield view


def _fetch_run(
    talk: Conversation,
    arguments: argparse.Namespace,
    output: Output,
    lost: list[StepView],
    done: _Done,
) -> None:
    """All of them as one launch; one that fails leaves the others to be tried."""
    launch = f"fetch --lost {lost[0].run} at {time.time_ns()}"
    with open_store(arguments.store, launch=launch) as store:
        for number, view in enumerate(lost, start=1):
            what = f"fetching {view.run}@{view.step}, {number} of {len(lost)}"
            output.record("progress", {**_named(view), "number": number, "of": len(lost)})
            try:
                with output.waiting(what), closing(_stored(view)) as stored:
                    generation = _save(stored, store, talk.url)
                    _label(talk, view, generation)
            except CkptError as error:
                done.leave(view, error.message)
                done.code = done.code or show_error(output, error)
            else:
                done.fetched.append({**_named(view), "generation": str(generation)})


def _stored(view: StepView) -> StoredCheckpoint:
    """Exactly this generation. Raises NotFound when no store has it any more."""
    run_name, step = RunName(view.run), Step(view.step)
    stores = [os.environ.get("CKPT_DURABLE", ""), *view.stored]
    for url in filter(None, dict.fromkeys(stores)):
        with suppress(NotFound):
            generation = Generation.parse(view.generation)
            return StoredCheckpoint.open(open_sink(url), run_name, step, generation)
    raise NotFound(f"{view.run}@{view.step} is not in {', '.join(view.stored)} any more")


def _label(talk: Conversation, view: StepView, generation: Generation) -> None:
    """It is called what the lost one was called, and stays as that did. A lost one that has a name
    or is pinned holds its step until then."""
    run_name, step = RunName(view.run), Step(view.step)
    if view.pinned:
        labels.pin(talk.control, run_name, step, generation)
    if view.names:
        labels.tag(talk.control, run_name, step, view.names, generation)
    if view.pinned:
        with suppress(NotFound):
            before = Generation.parse(view.generation)
            labels.unpin(talk.control, run_name, step, before)


def left_unnamed(views: Sequence[StepView]) -> Iterator[tuple[StepView, str]]:
    """Lost generations of a run that still have a name or a pin, though their step was saved again,
    and what to do: a fetch that was killed before it gave them to the one that it had saved. Or
    somebody trained the step again: so people decide.
    """
    readable = {view.step: view for view in views if view.readable}  # Ascending.
    for view in views:
        now = readable.get(view.step)
        if view.readable or view.aside or now is None or not (view.names or view.pinned):
            continue
        what = f"{view.run}@{view.step}"
        word = shlex.quote(what)
        commands = [f"ckpt tag {word} {shlex.join(view.names)}"] * bool(view.names)
        commands += [f"ckpt unpin {word} && ckpt pin {word}"] * view.pinned
        labels_of = ", ".join([*view.names, *["a pin"] * view.pinned])
        yield (
            view,
            f"#{view.generation} is lost and still has {labels_of}; the step was saved again as "
            f"#{now.generation}, to which this gives them: {' && '.join(commands)}",
        )


def _tell(done: _Done, arguments: argparse.Namespace, output: Output, seconds: float) -> None:
    for one in done.left:
        where = f" stays in {one['store']}" if one["store"] else ""
        output.line(f"{one['run']}@{one['step']}{where}: {one['reason']}")
    count = counted(len(done.fetched), "checkpoint")
    if arguments.dry_run:
        rows = [
            (str(one["run"]), str(one["step"]), _size(one), str(one["store"]))
            for one in done.fetched
        ]
        if rows:
            output.table(("run", ">step", ">size", "from"), rows)
        output.line(f"{count} would be fetched; nothing was changed")
    else:
        output.line(f"{count} fetched, after {format_seconds(seconds)}")


def _size(one: dict[str, object]) -> str:
    size = one["bytes"]
    assert isinstance(size, int)
    return format_bytes(size)
