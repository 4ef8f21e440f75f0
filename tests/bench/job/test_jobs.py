"""Sections and flags become jobs; what does not fit together is refused before anything starts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Refused
from ckpt.base.units import GiB, MiB
from ckptbench.job import fio
from ckptbench.job.flags import parse_flags
from ckptbench.job.grammar import Section, Setting, Words, parse_file
from ckptbench.job.guide import command_help, help_text
from ckptbench.job.jobs import JobList, build_jobs, show_command
from ckptbench.job.options import DEFAULTS, NAMES, TABLE, JobOptions

WORDS = Words({}, {"ncpus": "2", "mb_memory": "1000", "pagesize": "4096"})


def jobs(text: str, *flags: str, chosen: Sequence[str] = ()) -> JobList:
    line = parse_flags(flags, WORDS)
    files = [parse_file("job", lambda path: text, WORDS)] if text else []
    return build_jobs(
        [*files, *([line.sections] if line.sections else [])], line.everywhere, chosen
    )


def test_globals_affect_what_stands_below_and_the_job_overrides_them() -> None:
    found = jobs(
        "[global]\nsize=1m\nloops=3\n[a]\n[global]\nloops=4\n[b]\nsize=2m\n[c]\nloops=5\n"
    ).jobs
    assert [(one.name, one.options.size, one.options.loops) for one in found] == [
        ("a", MiB, 3), ("b", 2 * MiB, 4), ("c", MiB, 5),
    ]  # fmt: skip
    assert found[1].given == {"size": "2m"}


def test_a_stonewall_and_another_file_begin_a_group() -> None:
    text = "[global]\nsize=1m\n[a]\n[b]\n[c]\nstonewall\n[d]\n"
    sections = parse_file("job", lambda path: text, WORDS)
    assert [one.group for one in build_jobs([sections, sections], []).jobs] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert [[one.name for one in group] for group in jobs(text).groups] == [["a", "b"], ["c", "d"]]


def test_flags_before_a_name_stand_above_the_file_and_behind_it_make_a_job() -> None:
    found = jobs("[a]\nsize=1m\n", "--size=2m", "--name=b", "--loops", "7", "--stonewall")
    assert [(one.name, one.options.size, one.options.loops, one.group) for one in found.jobs] == [
        ("a", 2 * MiB, 1, 0), ("b", 2 * MiB, 7, 1),
    ]  # fmt: skip


def test_a_verb_is_a_job_of_its_name() -> None:
    (job,) = jobs("", "load", "--size=1Gi", "--readers=3").jobs
    assert (job.name, job.options.rw, job.options.size, job.options.readers) == (
        "load",
        "load",
        GiB,
        3,
    )
    assert job.loads
    assert not job.saves


def test_words_of_fio_mean_what_they_mean_there() -> None:
    (job,) = jobs("[a]\nrw=write\nsize=1m\nblocksize=64k\nwait_for_previous\nverify=crc32c\n").jobs
    assert (job.options.rw, job.options.bs, job.options.stonewall) == ("save", 65536, True)
    assert job.options.verify == "bytes"


def test_ranks_think_beside_a_save_in_place_of_resting() -> None:
    (job,) = jobs("", "save", "--size=1m", "--think=matmul:2s").jobs
    assert (job.options.think, job.options.thinktime) == (2.0, 0.0)
    (job,) = jobs("", "save", "--size=1m", "--pace=2s").jobs
    assert job.options.think == 2.0
    assert "matmul:TIME" in command_help("think")


def test_chosen_sections_keep_their_globals() -> None:
    text = "[global]\nsize=1m\n[a]\n[b]\nloops=2\n"
    (job,) = jobs(text, chosen=["b"]).jobs
    assert (job.name, job.options.size) == ("b", MiB)
    with pytest.raises(Refused, match="no section is called 'x'; there are: a, b"):
        jobs(text, chosen=["x"])


def test_the_mlperf_preset_is_ten_writes_then_ten_reads_on_another_host() -> None:
    write, read = jobs("[m]\npreset=mlperf\nmodel=llama3-8b\nscale=1/1000\n").jobs
    assert (write.name, write.options.rw, write.options.loops, write.options.thinktime) == (
        "m-write", "save", 10, 5.0,
    )  # fmt: skip
    assert (read.options.rw, read.options.loops, read.options.reader) == ("load", 10, "rotate")
    assert read.options.stonewall
    assert (read.options.ranks, read.options.end_fsync, write.group, read.group) == (8, True, 0, 1)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("size=1m\nfoo=1", "job:3: no option is called 'foo'"),
        ("size=1m\nnumjob=1", "did you mean numjobs"),
        ("size=1m\nfilename=/dev/sda", "filename= of fio has no meaning"),
        ("size=1m\niodept=4", "did you mean iodepth"),
        ("size=1x", "job:2: size=1x: suffix 'x'"),
        ("size", "job:2: size needs a value"),
        ("loops=1", "no size"),
        ("size=1m\nmodel=llama3-8b", "both given"),
        ("size=5000", "whole pages"),
        ("size=1m\npreset=mlperf", "needs model="),
        ("size=1m\ntime_based", "needs runtime="),
        ("model=llama3-8b\nnumjobs=9", "has 8 ranks"),
        ("size=1m\ntargets=5", "needs 6 targets"),
        ("size=1m\nrw=degraded\nioengine=posix", "no parity"),
        ("size=1m\nrw=load\nsink=null", "keeps no bytes"),
        ("size=1m\nrw=drain\nsink=null", "keeps no bytes"),
        ("size=1m\nrw=drain\nioengine=posix", "the cluster of ioengine=ckpt that the run itself"),
        ("size=1m\nrw=fetch\nurl=ckpt://a:1", "the cluster of ioengine=ckpt that the run itself"),
        ("size=1m\nrw=rebuild", "lost columns are not rebuilt yet"),
        ("size=1m\nioengine=posix\nfault=kill:target=1", "needs the targets"),
        ("size=1m\nfault=explode:target=1", "not understood"),
        ("size=1m\nfault=kill:target=6", "6 targets, t0 to t5"),
        ("size=1m\nioengine=torch_save\ndirect", "torch_save cannot write past the page cache"),
        ("size=1m\nioengine=posix\ndirect\nrw=reshard", "which O_DIRECT cannot read"),
        ("size=1m\nthink=conv:1s", "job:3: think=conv:1s: 'conv' is nothing that ranks compute"),
        ("size=1m\nthink", "job:3: think needs a value: matmul:TIME"),
        ("size=1m\nbuffer_compress_percentage=101", "more than 100"),
        ("size=1m\nnumjobs=0", "job:3: numjobs=0: 0 is less than 1"),
        ("size=1m\nloops=1.5", "job:3: loops=1.5: not a whole number"),
    ],
)
def test_what_cannot_be_is_refused_by_place_and_cause(text: str, cause: str) -> None:
    with pytest.raises(Refused, match=cause):
        jobs(f"[a]\n{text}\n")


def test_words_of_fio_without_meaning_are_named_and_passed_over() -> None:
    text = "[global]\nthread\nsize=1m\n[a]\niodepth=4\nloops=2\nthread\n[b]\nfallocate=none\n"
    found = jobs(text, "--norandommap", "--iodepth", "8", chosen=["a"])
    assert found.passed_over == ("thread", "iodepth", "norandommap")
    assert [(one.name, one.options.loops) for one in found.jobs] == [("a", 2)]
    assert "in flight" in command_help("iodepth")
    assert not set(fio.PASSED_OVER) & set(NAMES)
    assert set(fio.PASSED_OVER) >= fio.SWITCHES


@pytest.mark.parametrize("engine", sorted(fio.ENGINES))
def test_an_engine_of_fio_is_the_one_that_writes_files(engine: str) -> None:
    (job,) = jobs(f"[a]\nsize=1m\nioengine={engine}\ndirect=1\n").jobs
    assert job.options.ioengine == "posix"


def test_no_job_is_an_error_too() -> None:
    with pytest.raises(Refused, match="no job is defined"):
        jobs("[global]\nsize=1m\n")
    with pytest.raises(Refused, match="--size needs a value"):
        parse_flags(["--size"], WORDS)
    with pytest.raises(Refused, match="no option is called"):
        parse_flags(["--sizes=1"], WORDS)


SETTINGS = st.lists(
    st.sampled_from(
        ["size=1m", "size=2Gi", "stonewall", "loops=3", "percentile_list=50:99", "rw=read",
         "description=a 'quoted' $word", "thinktime=5s", "scale=1/7", "group_reporting=0"]
    ),
    max_size=5,
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["global", "a", "b"]), SETTINGS), max_size=5))
def test_the_shown_command_means_the_same_as_the_file(parts: list[tuple[str, list[str]]]) -> None:
    text = "".join(f"[{name}]\n" + "".join(f"{one}\n" for one in lines) for name, lines in parts)
    text += "[last]\nsize=1m\nrw=save\n"
    sections = parse_file("job", lambda path: text, WORDS)
    (shown,) = show_command([sections], [])
    again = parse_flags(shlex.split(shown)[1:], WORDS)
    plain = [[(one.key, one.value) for one in section.settings] for section in sections]
    assert [
        [(one.key, one.value) for one in section.settings] for section in again.sections
    ] == plain
    assert _built([again.sections]) == _built([sections])


def _built(files: list[list[Section]]) -> JobList | str:
    """The jobs, or why there are none, without the place, which differs."""
    try:
        return build_jobs(files, [])
    except Refused as error:
        return error.message.partition(": ")[2]


def test_every_option_is_explained_and_every_default_is_a_value_of_its_kind() -> None:
    listed = command_help("all").splitlines()
    assert listed.index("") == len(TABLE) == len(DEFAULTS)
    assert "iodepth, " in listed[len(TABLE) + 1]
    for name, one in TABLE.items():
        assert one.help
        explained = command_help(name)
        assert "type:" in explained
        assert "default:" in explained
        if one.kind.choices and DEFAULTS[name]:
            assert str(DEFAULTS[name]) in one.kind.choices
    for name in ("numjobs", "size"):
        assert "default: no default" in command_help(name), "it takes no 0"
    assert "alias: blocksize" in command_help("bs")
    assert command_help("wait_for_previous") == command_help("stonewall")
    assert "binary" in help_text()


def test_defaults_alone_are_options() -> None:
    assert JobOptions().ranks == 1
    assert set(NAMES.values()) == set(TABLE)
    section = Section("a", (Setting("size", "", "x"),), "x")
    with pytest.raises(Refused, match="no size"):
        build_jobs([[section]], [])
