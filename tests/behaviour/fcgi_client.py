"""fcgi_client.py: FastCGI records put together by hand, for tests that send what no web server would.

A Raw connection sends bytes exactly as given and reads records until END_REQUEST, the end of the connection, or a
deadline.  harness.FcgiCall is the polite client; this is the other one.
"""
import socket
import struct

import harness

BEGIN, ABORT, END, PARAMS, STDIN, STDOUT, STDERR, DATA, GET_VALUES = range(1, 10)
RESPONDER, AUTHORIZER, FILTER = 1, 2, 3
KEEP_CONN = 1


def record(kind, content=b"", padding=0, request=1, version=1, length=None):
    """A record; LENGTH is what its header claims when that is not the truth."""
    return struct.pack(">BBHHBB", version, kind, request, len(content) if length is None else length, padding, 0) \
        + content + b"\xaa" * padding


def begin(role=RESPONDER, flags=0, request=1, **how):
    return record(BEGIN, struct.pack(">HB5x", role, flags), request=request, **how)


def length(n, long=False):
    return struct.pack(">I", n | 0x80000000) if long or n > 127 else bytes([n])


def pair(name, value, long=False):
    name, value = (t.encode() if isinstance(t, str) else t for t in (name, value))
    return length(len(name), long) + length(len(value), long) + name + value


def pairs(values):
    return b"".join(pair(n, v) for n, v in (values.items() if isinstance(values, dict) else values))


def params(values, piece=65535, padding=0, request=1):
    """PARAMS records of at most PIECE bytes, with the empty one at the end."""
    content = pairs(values)
    return b"".join(record(PARAMS, content[at:at + piece], padding, request) for at in range(0, len(content), piece)) \
        + record(PARAMS, b"", padding, request)


def stdin(body=b"", piece=65535, padding=0, request=1):
    """STDIN records of at most PIECE bytes, with the empty one at the end."""
    return b"".join(record(STDIN, body[at:at + piece], padding, request) for at in range(0, len(body), piece)) \
        + record(STDIN, b"", padding, request)


def get(path, **more):
    return dict({"REQUEST_METHOD": "GET", "DOCUMENT_URI": path, "CONTENT_LENGTH": ""}, **more)


def post(path, size, **more):
    return dict({"REQUEST_METHOD": "POST", "DOCUMENT_URI": path, "CONTENT_LENGTH": str(size),
                 "CONTENT_TYPE": "application/json"}, **more)


def request(path, **more):
    """All bytes of a small request."""
    return begin() + params(get(path, **more)) + stdin()


class Raw:
    """A connection to a front.  After read(): stdout, stderr, ended (END_REQUEST came), closed (the front closed)."""

    def __init__(self, path, data=b"", timeout=None):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout or harness.DEADLINE)
        self.sock.connect(path)
        self.stdout = self.stderr = self.pending = b""
        self.ended = self.closed = False
        self.requests = set()  # ids the answer carried
        if data:
            self.send(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        """Sends all of it; False when the front closed meanwhile."""
        try:
            self.sock.sendall(data)
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def take(self):
        """Takes whole records out of what has come."""
        while len(self.pending) >= 8:
            _, kind, number, size, padding, _ = struct.unpack(">BBHHBB", self.pending[:8])
            if len(self.pending) < 8 + size + padding:
                return
            content = self.pending[8:8 + size]
            self.pending = self.pending[8 + size + padding:]
            self.requests.add(number)
            if kind == STDOUT:
                self.stdout += content
            elif kind == STDERR:
                self.stderr += content
            elif kind == END:
                self.ended = True

    def read_some(self):
        """One read; False at the end of the connection."""
        try:
            more = self.sock.recv(65536)
        except ConnectionResetError:
            more = b""
        if not more:
            self.closed = True
            return False
        self.pending += more
        self.take()
        return True

    def read(self, until=None):
        """Reads until the text UNTIL is in stdout, or to the end of the request or connection."""
        while not self.ended and not self.closed and (until is None or until not in self.stdout):
            self.read_some()
        return self

    def read_close(self):
        """Reads until the front closes."""
        while not self.closed:
            self.read_some()
        return self

    def reply(self):
        self.read()
        return harness.parse_cgi(self.stdout, self.ended)

    def close(self):
        self.sock.close()
