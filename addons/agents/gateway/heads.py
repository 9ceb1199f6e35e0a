"""uvicorn's fast parser with a limit on a request's line and headers, which it lacks: a caller needs no key to send them."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 65_536  # bytes of a request's line and headers


class LimitedProtocol(HttpToolsProtocol):
    """Answers 400 and closes the connection where the head of a request is larger than LARGEST_HEAD."""

    is_in_head = False
    size = 0  # bytes of the head so far: of its headers, or of packets that are of it alone

    def data_received(self, data: bytes) -> None:
        began_before = self.is_in_head
        super().data_received(data)
        if self.is_in_head and began_before and not self.transport.is_closing():
            self.size += len(data)  # of a header that is not whole, too, which the parser keeps
            if self.size > LARGEST_HEAD:
                self.send_400_response(f"The headers are larger than {LARGEST_HEAD} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.is_in_head, self.size = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.size += len(name) + len(value)
        if self.size > 2 * LARGEST_HEAD:  # many in one packet; the parser makes status 400 of the error
            raise ValueError("the headers are too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> Any:
        self.is_in_head = False
        return super().on_headers_complete()
