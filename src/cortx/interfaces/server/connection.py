"""Connections that do not wait for ever: for a request's headers, or for a body that nobody reads any more."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cortx.interfaces.server.http import SLOW, error_body

HEADER_BYTES = 64 * 1_024


class Connection(HttpToolsProtocol):
    """uvicorn's connection with bounds on how long and how large the part before a body may be."""

    seconds = 10.0
    """In which a request must have come whole, counted from its first byte, or from the connection itself."""
    unread = 64 * 2**20
    """Bytes of a body that are thrown away at most after its request was refused."""

    _timer: Any = None
    _in_body = False
    _bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        super().data_received(data)
        if not self._bytes:  # the usual case: a whole request came
            return
        if self._timer is None and not self.transport.is_closing():
            self._start_timer()
        if not self._in_body and self._bytes > HEADER_BYTES:
            self._refuse(431, "the headers are too large")
        elif self._in_body and self.cycle.response_complete and self._bytes > self.unread:
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body, self._bytes = False, 0
        self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body:
            # Refused before its body was whole: the rest may come, so that the client reads the answer. The timer
            # that is running ends it, and the one that waits for a next request must not.
            self._unset_keepalive_if_required()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not an HTTP request that can be read")

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self._bytes:
            self.transport.close()
        elif not self._in_body:
            self._refuse(408, f"the request did not arrive within {self.seconds:g} seconds")
        elif self.cycle.response_complete:
            self.transport.close()
        else:  # its handler waits for more: it is woken, and answers
            self.scope[SLOW] = True  # type: ignore[literal-required]
            self.cycle.message_event.set()
            self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _refuse(self, status: int, text: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False  # an answer is on its way, and must not be taken for this one
            return
        body = error_body(text)
        reasons = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}
        head = (
            f"HTTP/1.1 {status} {reasons[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
