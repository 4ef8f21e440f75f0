"""RpcClient: blocking calls that survive a lost session."""

from __future__ import annotations

import os
import random
import socket
import stat
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import NoSpace, Refused, Unauthorized, Unavailable
from ckpt.base.ids import BootId, RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask, DeleteStep
from ckpt.format.messages.drains import ForgetStore
from ckpt.format.messages.hello import PROTOCOL_VERSION, Failed, Role
from ckpt.format.messages.loading import ReleasePin
from ckpt.format.messages.repairs import SetRepair
from ckpt.format.messages.upgrading import FinishUpgrade
from ckpt.format.messages.writing import CreditGranted
from ckpt.protocol import handshake
from ckpt.protocol.handshake import Caller, Established, Identity
from ckpt.testing.network import Heard
from tests.aio.netkit import PATIENCE_S, SECRET, ServerThread, serving

COORDINATOR = Identity("cluster-a", Role.COORDINATOR, "", BootId(5))


def client(
    port: int,
    *,
    secret: bytes = SECRET,
    on_push: Callable[[int, Message, memoryview], None] | None = None,
    on_opened: Callable[[Established], None] | None = None,
    locate: Callable[[], str] | None = None,
) -> RpcClient:
    return RpcClient(
        f"127.0.0.1:{port}",
        Caller(secret, Role.READER, "host:1", cluster="cluster-a"),
        on_push=on_push,
        on_opened=on_opened,
        locate=locate,
    )


def echo(running: ServerThread) -> None:
    """Answer every question with its own words."""

    def answer(heard: Heard) -> None:
        if isinstance(heard.message, Ask):
            words = heard.message.what.encode()
            running.server.send(heard.session, heard.request, Answer(), words + heard.bulk)

    running.handler.answer = answer


def test_a_call_returns_the_reply_and_its_bulk() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        echo(running)
        reply, bulk = rpc.call(Ask("status"), b" and more", timeout_s=PATIENCE_S)
        assert (reply, bytes(bulk)) == (Answer(), b"status and more")
        assert rpc.peer is not None
        assert rpc.peer.boot == 5


def test_a_client_that_has_met_its_cluster_wants_no_other_in_its_place() -> None:
    """With the same secret: an operator has made the cluster again, and its launches are new."""
    opened: list[str] = []
    anyone = Caller(SECRET, Role.READER, "host:1")
    with ExitStack() as stack:
        with serving(identity=COORDINATOR) as first:
            echo(first)
            port = first.server.port
            told = lambda peer: opened.append(peer.cluster)  # noqa: E731
            rpc = stack.enter_context(RpcClient(f"127.0.0.1:{port}", anyone, on_opened=told))
            rpc.call(Ask("status"), timeout_s=PATIENCE_S)
        with serving(identity=replace(COORDINATOR, cluster="cluster-b"), port=port) as second:
            echo(second)
            with pytest.raises(Refused, match=r"cluster-b.*not.*cluster-a"):
                rpc.call(Ask("status"), timeout_s=PATIENCE_S)
            assert second.handler.received_ == []
    assert opened == ["cluster-a"]


def test_calls_of_many_threads_get_their_own_replies() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        echo(running)
        wrong: list[str] = []

        def work(thread: int) -> None:
            for number in range(20):
                words = f"{thread}/{number}"
                if bytes(rpc.call(Ask(words), timeout_s=PATIENCE_S)[1]) != words.encode():
                    wrong.append(words)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(running.handler.received_) == 160


def test_a_client_whose_start_was_interrupted_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever presses Ctrl-C gets a KeyboardInterrupt, whatever is closed on its way."""

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), client(1) as rpc:
        rpc.call(Ask("status"), timeout_s=PATIENCE_S)


def test_a_failed_request_raises_its_error() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        failed = Failed("no_space", "no room", "wait", 2_000_000)
        running.handler.answer = lambda heard: running.server.send(
            heard.session, heard.request, failed
        )
        with pytest.raises(NoSpace) as caught:
            rpc.call(Ask("x"), timeout_s=PATIENCE_S)
        error = caught.value
        assert (error.message, error.hint, error.retry_after_s) == ("no room", "wait", 2.0)


def test_a_request_without_an_answer_is_repeated_on_the_next_session() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:

        def answer(heard: Heard) -> None:
            if len(running.handler.received_) == 1:
                running.server.close_session(heard.session, "for a test")
            else:
                running.server.send(heard.session, heard.request, Answer(), b"second")

        running.handler.answer = answer
        assert bytes(rpc.call(Ask("x"), timeout_s=PATIENCE_S)[1]) == b"second"
        assert [heard.message for heard in running.handler.received_] == [Ask("x"), Ask("x")]


def test_what_ends_something_says_that_it_is_asked_again() -> None:
    """The first question may have ended it already."""
    deletion, forgetting = DeleteStep(RunName("run"), Step(1)), ForgetStore("s3://b")
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:

        def answer(heard: Heard) -> None:
            if len(running.handler.received_) % 2:
                running.server.close_session(heard.session, "for a test")
            else:
                running.server.send(heard.session, heard.request, Answer())

        running.handler.answer = answer
        for question in (deletion, forgetting):
            assert rpc.call(question, timeout_s=PATIENCE_S)[0] == Answer()
        first, second, third, fourth = (heard.message for heard in running.handler.received_)
    assert (first, third) == (deletion, forgetting)
    assert second == DeleteStep(RunName("run"), Step(1), repeated=True)
    assert fourth == ForgetStore("s3://b", repeated=True)


def test_a_call_outlives_a_restart_of_the_server() -> None:
    with serving(identity=COORDINATOR) as first:
        port = first.server.port
        rpc = client(port)
        echo(first)
        rpc.call(Ask("before"), timeout_s=PATIENCE_S)
    with rpc:
        answers: list[bytes] = []
        caller = threading.Thread(
            target=lambda: answers.append(bytes(rpc.call(Ask("after"), timeout_s=PATIENCE_S)[1]))
        )
        caller.start()
        with serving(identity=COORDINATOR, port=port) as second:
            echo(second)
            caller.join()
        assert answers == [b"after"]


def test_a_call_finds_the_server_where_it_is_started_again() -> None:
    """Who waits starts it: at another address."""
    addresses: list[str] = []

    def locate() -> str:
        if not addresses:
            raise Unavailable("it is not running")
        return addresses[-1]

    with ExitStack() as stack:

        def start() -> None:
            if not addresses:
                running = stack.enter_context(serving(identity=COORDINATOR))
                echo(running)
                addresses.append(f"127.0.0.1:{running.server.port}")

        with client(1, locate=locate) as rpc:
            _, answer = rpc.call(Ask("where"), timeout_s=PATIENCE_S, look=start)
            assert (bytes(answer), rpc.address) == (b"where", addresses[0])
            addresses.clear()
            stack.close()
            with pytest.raises(Unavailable, match="it is not running"):
                rpc.call(Ask("gone"), timeout_s=0.1)
            assert bytes(rpc.call(Ask("again"), timeout_s=PATIENCE_S, look=start)[1]) == b"again"


def test_what_a_look_raises_ends_the_call() -> None:
    def look() -> None:
        raise Refused("it belongs to another host")

    with client(1) as rpc, pytest.raises(Refused, match="another host"):
        rpc.call(Ask("where"), timeout_s=PATIENCE_S, look=look)


def test_no_answer_in_time_is_unavailable_and_names_the_reason() -> None:
    with serving(identity=COORDINATOR) as running:
        port = running.server.port
        with client(port) as rpc, pytest.raises(Unavailable, match=r"^no answer from"):
            rpc.call(Ask("x"), timeout_s=0.05)
    refused = "Connection refused; see whether the coordinator runs there"
    with client(port) as rpc, pytest.raises(Unavailable, match=refused):
        rpc.call(Ask("x"), timeout_s=0.3)


def test_redialing_takes_no_number_from_the_process_s_random_sequence() -> None:
    """A trainer's sequence is part of what a resumed run repeats."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    before = random.getstate()
    caller = client(port)
    try:
        with pytest.raises(Unavailable):
            caller.call(Ask("x"), timeout_s=0.3)
    finally:
        caller.close()
    assert random.getstate() == before


def test_another_secret_fails_the_call_at_once() -> None:
    with (
        serving(identity=COORDINATOR) as running,
        client(running.server.port, secret=b"another secret, long enough") as rpc,
        pytest.raises(Unauthorized),
    ):
        rpc.call(Ask("x"), timeout_s=PATIENCE_S)


def test_pushes_and_questions_reach_the_callback_and_can_be_answered() -> None:
    pushed: list[tuple[int, Message, bytes]] = []
    arrived = threading.Event()

    def on_push(request: int, message: Message, bulk: memoryview) -> None:
        pushed.append((request, message, bytes(bulk)))
        rpc.tell(Answer(), b"to a question", request=request)
        arrived.set()

    with serving(identity=COORDINATOR) as running:
        with client(running.server.port, on_push=on_push) as rpc:
            echo(running)
            rpc.call(Ask("open"), timeout_s=PATIENCE_S)
            session = running.handler.opened_[0][0]
            running.do(lambda: running.server.send(session, 1 << 32, CreditGranted(3)))
            assert arrived.wait(PATIENCE_S)
            running.wait_until(lambda: len(running.handler.received_) == 2)
        assert pushed == [(1 << 32, CreditGranted(3), b"")]
        told = running.handler.received_[1]
        assert (told.request, told.message, told.bulk) == (1 << 32, Answer(), b"to a question")


def test_on_opened_hears_of_every_session() -> None:
    openings: list[Established] = []
    with serving(identity=COORDINATOR) as running:
        with client(running.server.port, on_opened=openings.append) as rpc:
            echo(running)
            rpc.call(Ask("a"), timeout_s=PATIENCE_S)
            session = running.handler.opened_[0][0]
            running.do(lambda: running.server.close_session(session, "for a test"))
            rpc.call(Ask("b"), timeout_s=PATIENCE_S)
            running.wait_until(lambda: len(running.handler.opened_) == 2)
        assert [peer.boot for peer in openings] == [5, 5]


def test_what_was_told_leaves_before_the_client_closes() -> None:
    with serving(identity=COORDINATOR) as running:
        echo(running)
        with client(running.server.port) as rpc:
            rpc.call(Ask("open"), timeout_s=PATIENCE_S)
            rpc.tell(ReleasePin(4))
        running.wait_until(lambda: len(running.handler.received_) == 2)
        assert running.handler.received_[1].message == ReleasePin(4)


def test_a_closed_client_refuses_and_its_calls_in_progress_end() -> None:
    with serving(identity=COORDINATOR) as running:
        rpc = client(running.server.port)
        errors: list[Exception] = []

        def call() -> None:
            try:
                rpc.call(Ask("x"), timeout_s=PATIENCE_S)
            except Unavailable as error:
                errors.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        running.wait_until(lambda: len(running.handler.received_) == 1)
        rpc.close()
        rpc.close()
        caller.join()
        assert len(errors) == 1
        with pytest.raises(Refused):
            rpc.call(Ask("x"))


def test_a_client_that_never_called_closes_too() -> None:
    rpc = client(1)
    rpc.close()
    with pytest.raises(Refused):
        rpc.call(Ask("x"))


def test_a_request_too_long_for_a_frame_is_refused() -> None:
    with (
        serving(identity=COORDINATOR) as running,
        client(running.server.port) as rpc,
        pytest.raises(Refused, match="one frame"),
    ):
        rpc.call(Ask("x" * 100_000), timeout_s=PATIENCE_S)


def test_what_an_older_server_does_not_know_is_refused_before_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", PROTOCOL_VERSION - 1)
    monkeypatch.setattr(handshake, "MOVES_VERSION", PROTOCOL_VERSION + 1)
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        echo(running)
        with pytest.raises(Refused, match="speaks protocol 2, which has no FinishUpgrade"):
            rpc.call(FinishUpgrade(), timeout_s=PATIENCE_S)
        assert bytes(rpc.call(Ask("x"), timeout_s=PATIENCE_S)[1]) == b"x", "the session stands"
        assert [heard.message for heard in running.handler.received_] == [Ask("x")]


def test_text_that_is_not_unicode_is_refused_and_the_client_goes_on() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        echo(running)
        with pytest.raises(Refused, match="not valid Unicode"):
            rpc.call(Ask(b"\xff".decode(errors="surrogateescape")), timeout_s=PATIENCE_S)
        assert rpc.call(Ask("status"), timeout_s=PATIENCE_S)


def test_a_number_that_no_frame_holds_is_refused_and_the_client_goes_on() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        echo(running)
        with pytest.raises(Refused, match="SetRepair has more than 64 bits"):
            rpc.call(SetRepair(cap_bytes=1 << 64), timeout_s=PATIENCE_S)
        assert rpc.call(Ask("status"), timeout_s=PATIENCE_S)


def in_a_forked_child(work: Callable[[], bool]) -> bool:
    """Whether `work` said True in a child; whatever else happens there is False here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Threads live on here: the point.
        child = os.fork()
    if child == 0:
        right = False
        try:
            right = work()
        finally:
            os._exit(0 if right else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_child_is_refused_and_leaves_its_parents_session_alone() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        echo(running)
        rpc.call(Ask("before"), timeout_s=PATIENCE_S)

        def refused() -> bool:
            for ask in (lambda: rpc.call(Ask("child")), lambda: rpc.tell(ReleasePin(1))):
                with pytest.raises(Refused, match="forked child"):
                    ask()
            rpc.close()
            with client(running.server.port) as own:
                return bytes(own.call(Ask("own"), timeout_s=PATIENCE_S)[1]) == b"own"

        assert in_a_forked_child(refused)
        assert bytes(rpc.call(Ask("after"), timeout_s=PATIENCE_S)[1]) == b"after"


def connections_to(port: int) -> int:
    """How many sockets of this process lead to that port."""
    count = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                count += copy.getpeername()[1] == port
        except (OSError, IndexError, TypeError):
            continue  # The listing's own; no connection, or no TCP.
    return count


def test_a_forked_child_does_not_keep_its_parents_session_open() -> None:
    with serving(identity=COORDINATOR) as running, client(running.server.port) as rpc:
        echo(running)
        rpc.call(Ask("before"), timeout_s=PATIENCE_S)
        port = running.server.port
        assert connections_to(port) == 1
        assert in_a_forked_child(lambda: connections_to(port) == 0)
        assert connections_to(port) == 1
