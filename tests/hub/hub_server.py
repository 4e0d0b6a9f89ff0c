"""A local HTTP server that speaks as much of the hub's protocol as a download needs, with faults on demand.

``/ORG/REPO/resolve/REVISION/FILE`` answers HEAD and GET with the hub's headers and a redirect to ``/content/SHA256`` on
the same port under another host name, as the hub redirects to its storage; there, ranges are served.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Request:
    """What a client asked for."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    host: str


@dataclass
class Faults:
    """What goes wrong; each counter or flag applies to the storage part."""

    drop: list[int] = field(default_factory=list)  # bytes to send before the connection breaks, one request each
    stall: int | None = None  # bytes to send before nothing more comes
    ignore_range: bool = False
    corrupt: bool = False  # flip a bit in the first byte served
    status: int | None = None  # answer every request for a file with this status


class HubServer:
    """Files by (repo, revision, name); `requests` lists every request in order."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}
        self.requests: list[Request] = []
        self.faults = Faults()
        self.token: str | None = None
        self.etag: str | None = None
        self.stalled = threading.Event()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def content_requests(self) -> list[Request]:
        """The requests for bytes, in order."""
        return [r for r in self.requests if r.path.startswith("/content/") and r.method == "GET"]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_args: object) -> None:
        """A client that hangs up is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.hub
        hub.requests.append(
            Request(
                self.command,
                self.path,
                self.headers.get("Range"),
                self.headers.get("Authorization"),
                self.headers.get("Host", ""),
            )
        )
        if self.path.startswith("/content/"):
            self._content(self.path.rsplit("/", 1)[1])
            return
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        if hub.faults.status is not None:
            self._error(hub.faults.status, None)
        elif hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._error(401, "GatedRepo")
        elif match is None or not any(repo == match[1] for repo, _, _ in hub.files):
            self._error(401, "RepoNotFound")
        elif not any((repo, revision) == (match[1], match[2]) for repo, revision, _ in hub.files):
            self._error(404, "RevisionNotFound")
        elif (match[1], match[2], match[3]) not in hub.files:
            self._error(404, "EntryNotFound")
        else:
            content = hub.files[match[1], match[2], match[3]]
            digest = sha256(content).hexdigest()
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{hub.port}/content/{digest}")
            self.send_header("X-Repo-Commit", match[2])
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Linked-Etag", f'"{hub.etag or digest}"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _content(self, digest: str) -> None:
        faults = self.hub.faults
        content = next(c for c in self.hub.files.values() if sha256(c).hexdigest() == digest)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked and not faults.ignore_range:
            start, end = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
            body = content[start : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        else:
            body = content
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if faults.corrupt:
            body = bytes([body[0] ^ 1]) + body[1:]
        try:
            if faults.drop:
                self.wfile.write(body[: faults.drop.pop(0)])
                self.close_connection = True
            elif faults.stall is not None:
                self.wfile.write(body[: faults.stall])
                self.wfile.flush()
                self.hub.stalled.set()
                self.hub.closing.wait(60)
            else:
                self.wfile.write(body)
        except OSError:  # the client has gone
            self.close_connection = True

    def _error(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
