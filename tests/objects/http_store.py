"""A directory as an object store behind plain HTTP: ranges, listings, a count of bytes given."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from ckpt.objects.names import TREES

RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class HttpStore:
    """I serve `directory` read-only, and can make chunks wait."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.given_bytes = 0
        """Of all bodies so far."""
        self.asked: Counter[str] = Counter()
        """GETs so far: of chunks, indexes, listings, and documents by their names."""

        #: Guards all that counts, and tells who waits that it has changed.
        self._turn = threading.Condition()
        self._readers_missing = 0
        self._chunks_left: int | None = None
        self._waiting_count = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/store"

    def meet(self, reader_count: int) -> None:
        """Give no chunk before so many readers have the trees: none has begun then before the last
        one is there."""
        with self._turn:
            self._readers_missing = reader_count

    def pause(self, after_chunks: int) -> None:
        """Stand still once so many chunks were given, until `go_on`."""
        with self._turn:
            self._chunks_left = after_chunks

    def wait_paused(self, timeout_s: float) -> bool:
        """Until a chunk waits although all have met; False when that takes too long."""
        with self._turn:
            return self._turn.wait_for(self._stands_still, timeout_s)

    def go_on(self) -> None:
        """Give everything from now on."""
        with self._turn:
            self._readers_missing, self._chunks_left = 0, None
            self._turn.notify_all()

    def serve(self) -> None:
        """Until `stop`."""
        self._server.serve_forever()

    def stop(self) -> None:
        """Take no more requests, and end `serve`."""
        self.go_on()
        self._server.shutdown()
        self._server.server_close()

    def body(self, path: str, wanted: str | None) -> tuple[HTTPStatus, bytes]:
        """The answer to one GET."""
        place = self.directory / unquote(path).removeprefix("/store").strip("/")
        if place.is_dir():
            names = sorted(f"{e.name}/" if e.is_dir() else e.name for e in place.iterdir())
            listing = "".join(f'<a href="{name}">{name}</a>\n' for name in names)
            return HTTPStatus.OK, listing.encode()
        if not place.is_file():
            return HTTPStatus.NOT_FOUND, b""
        if wanted is None:
            self._note_reader(place.name)
            return HTTPStatus.OK, place.read_bytes()
        match = RANGE.fullmatch(wanted)
        assert match, wanted
        start, last = map(int, match.groups())
        self._wait_turn()
        with place.open("rb") as file:
            file.seek(start)
            return HTTPStatus.PARTIAL_CONTENT, file.read(last + 1 - start)

    def count(self, path: str, wanted: str | None, size: int) -> None:
        """A GET is answered with so many bytes."""
        kind = unquote(path).rpartition("/")[2] or "listing"
        if wanted is not None:
            kind = "index" if "/c/" in path and self._is_index(path, wanted) else "chunk"
        with self._turn:
            self.given_bytes += size
            self.asked[kind] += 1

    def _is_index(self, path: str, wanted: str) -> bool:
        """Whether a range reaches a shard's end, where its index lies."""
        place = self.directory / unquote(path).removeprefix("/store").strip("/")
        return int(wanted.rpartition("-")[2]) + 1 >= place.stat().st_size

    def _note_reader(self, document: str) -> None:
        with self._turn:
            self._readers_missing -= document == TREES
            self._turn.notify_all()

    def _wait_turn(self) -> None:
        with self._turn:
            self._waiting_count += 1
            self._turn.notify_all()
            self._turn.wait_for(self._may_give)
            self._waiting_count -= 1
            if self._chunks_left is not None:
                self._chunks_left -= 1

    def _may_give(self) -> bool:
        return self._readers_missing <= 0 and self._chunks_left != 0

    def _stands_still(self) -> bool:
        return self._waiting_count > 0 and self._readers_missing <= 0 and self._chunks_left == 0

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = store.body(self.path, self.headers.get("Range"))
                self._head(status, len(body))
                try:
                    self.wfile.write(body)
                except OSError:
                    return  # Who asked is dead.
                store.count(self.path, self.headers.get("Range"), len(body))

            def do_HEAD(self) -> None:
                status, body = store.body(self.path, None)
                self._head(status, len(body))

            def _head(self, status: HTTPStatus, size: int) -> None:
                self.send_response(status)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(size))
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        return Handler


@contextmanager
def served(directory: Path) -> Iterator[HttpStore]:
    """The directory, behind a server that ends with the block."""
    store = HttpStore(directory)
    thread = threading.Thread(target=store.serve, name="http-store")
    thread.start()
    try:
        yield store
    finally:
        store.stop()
        thread.join()
