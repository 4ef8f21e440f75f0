"""What stands in the way of a drain or a fetch of ckptbench is named by message and exit code, and
the bucket is left empty.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.base.errors import CkptError, NotFound, Unauthorized, Unavailable
from tests.landing import at_turn, in_turn
from tests.stores.benchkit import assert_nothing_left, ckptbench
from tests.stores.gateway import S3, free_port
from tests.stores.proxy import Fault, Proxy, Request

HARMS = (
    ("bucket", NotFound, "there is no such bucket; create it, or see the store's URL"),
    ("secret", Unauthorized, "SignatureDoesNotMatch; see the store's credentials"),
    ("down", Unavailable, "see whether the store answers"),
)
JOBS = ("drain.fio", "fetch.fio")


@pytest.mark.parametrize(
    ("harm", "error", "text", "job"),
    # Each landing has all harms, and both jobs.
    in_turn([(*harm, JOBS[(n + turn) % 2]) for n, harm in enumerate(HARMS) for turn in (0, 1)], 2),
)
def test_a_store_that_cannot_be_used_is_named_before_anything_is_started(
    s3: S3, bucket: str, place: Path, harm: str, error: type[CkptError], text: str, job: str
) -> None:
    reached = {"secret": S3(s3.port, s3.access_key, "wrong"), "down": s3.at(free_port())}
    durable = f"s3://{'nowhere' if harm == 'bucket' else bucket}/bench"
    ran = ckptbench(job, durable, place, reached.get(harm, s3))
    assert (ran.returncode, ran.stdout) == (error.exit_code, "")
    assert ran.stderr.startswith("ckptbench: ")
    assert len(ran.stderr.splitlines()) == 1, "no traceback"
    assert text in ran.stderr
    assert list(place.iterdir()) == []
    assert_nothing_left(s3, bucket)


@at_turn(0, every=2)
def test_a_drain_that_fails_in_the_middle_is_an_error_and_leaves_no_part(
    s3: S3, bucket: str, place: Path
) -> None:
    proxy = Proxy(s3.port)

    def decide(request: Request) -> Fault:
        return Fault.FORBIDDEN if "partNumber" in request.path else Fault.NONE

    proxy.decide = decide
    try:
        # Larger than one part.
        large = ("--tensor_size=32Mi", "--verify=0")
        reached = s3.at(proxy.port)
        ran = ckptbench("drain.fio", f"s3://{bucket}/bench", place, reached, *large, size="32Mi")
    finally:
        proxy.close()
    assert any(fault is Fault.FORBIDDEN for _, fault in proxy.log), "parts were under way"
    assert ran.returncode == Unavailable.exit_code, ran.stderr
    for text in ("cannot be drained", "AccessDenied", "see the store's credentials"):
        assert text in ran.stdout
    assert_nothing_left(s3, bucket)
