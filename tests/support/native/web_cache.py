"""A web server on the loopback address that keeps what it is given, and fails on demand."""

import contextlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock


class WebCache:
    """`entries` by path; `requests` as they came; `fault(handler)` may answer in their place."""

    def __init__(self):
        self.entries = {}
        self.requests = []
        self.headers = []
        self.fault = None
        self.released = threading.Event()
        self.url = ""

    def methods(self):
        return [method for method, _ in self.requests]


def hang(handler):
    """Accept, and never answer."""
    handler.server.cache.released.wait(30)
    handler.close_connection = True


def trickle(handler):
    """Send byte by byte."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.cache.released.wait(0.01):
        handler.wfile.write(b"x")


def status(code, *methods):
    """Answer with a status, to these methods or all."""

    def fault(handler):
        if methods and handler.command not in methods:
            return handler.serve()
        return handler.answer(code)

    return fault


def body(change):
    """Change what is sent for an entry."""

    def fault(handler):
        if handler.command != "GET" or handler.path not in handler.server.cache.entries:
            return handler.serve()
        return handler.answer(200, change(handler.server.cache.entries[handler.path]))

    return fault


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        cache = self.server.cache
        # Read first: a request that is not read is a connection that is reset.
        self.content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        cache.requests.append((self.command, self.path))
        cache.headers.append(self.headers)
        (cache.fault or _Handler.serve)(self)

    do_PUT = do_GET  # noqa: N815  # http.server's name

    def serve(self):
        entries = self.server.cache.entries
        if self.command == "PUT":
            entries[self.path] = self.content
            self.answer(201)
        elif self.path in entries:
            self.answer(200, entries[self.path])
        else:
            self.answer(404)

    def answer(self, code, content=b""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """A client that went away is part of the tests."""


@contextlib.contextmanager
def web_cache():
    """A running `WebCache`."""
    cache = WebCache()
    # A machine may reach all others through a proxy.
    direct = mock.patch.dict(os.environ, {"no_proxy": "127.0.0.1"})
    with direct, _Server(("127.0.0.1", 0), _Handler) as server:
        server.cache = cache
        cache.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield cache
        finally:
            cache.released.set()
            server.shutdown()
            thread.join()
