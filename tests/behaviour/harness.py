"""harness.py: what the behaviour tests share: real processes, clients, and a tiny runner.  Standard library only.

A test is a script that defines functions test_* and ends with

    if __name__ == "__main__":
        harness.main(globals())

Every test function runs; the exit status is 0, 1 (a failure, with the logs of the stack it used) or 77 (skipped).  With
PENSTOCK_REQUIRE=1 in the environment a skip is a failure, so that continuous integration cannot lose a test silently.

Stack starts penstockd, penstock-front and, where asked, nginx in a directory of its own under /tmp, waits until the
service says it is ready, and stops what it started:

    with harness.Stack(script="...", conf={"front.streams_per_front": 4}) as stack:
        reply = stack.fcgi("GET", "/v1/models", headers={"Authorization": "Bearer " + stack.key})
        assert reply.status == 200

Nothing here sleeps for a fixed time: wait_until polls a condition up to a deadline, and the deadline only decides when a
hung test is given up, never whether a good one passes.
"""
import errno
import http.client
import json
import os
import pwd
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse

SOURCE = os.environ.get("abs_top_srcdir") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("abs_top_builddir") or os.path.join(SOURCE, "build")
# Sanitizers and loaded machines are slow; a deadline that is too short would make a test lie.
SLOW = 6.0 if os.environ.get("PENSTOCK_SANITIZER") else 1.0
DEADLINE = 60.0 * SLOW
TINY_MODEL = os.path.join(SOURCE, "tests", "data", "tiny.gguf")


class Skip(Exception):
    """Raised by skip(): the test cannot run here."""


def skip(reason):
    raise Skip(reason)


def require_tool(name, *more):
    """Path of a program, or a skip that names it."""
    for candidate in (name,) + more:
        path = shutil.which(candidate) or shutil.which(candidate, path="/usr/sbin:/sbin:/usr/local/sbin")
        if path:
            return path
    skip(f"{name} is not installed")


def wait_until(condition, what, deadline=None):
    """Polls CONDITION until it returns something true, which is returned."""
    end = time.monotonic() + (deadline or DEADLINE)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for: {what}")
        time.sleep(0.01)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def check(condition, *facts):
    """assert that survives python -O and says what it saw."""
    if not condition:
        raise AssertionError("; ".join(str(fact) for fact in facts) or "check failed")


def equal(got, wanted, what=""):
    if got != wanted:
        raise AssertionError(f"{f'{what}: ' if what else ''}got {got!r}, wanted {wanted!r}")


# ---- runner ---------------------------------------------------------------------------------------------------------

def main(namespace):
    tests = [(n, f) for n, f in namespace.items() if n.startswith("test_") and callable(f)]
    wanted = sys.argv[1:]
    failed = skipped = passed = 0
    for name, function in tests:
        if wanted and name not in wanted:
            continue
        began = time.monotonic()
        try:
            function()
        except Skip as why:
            skipped += 1
            print(f"SKIP {name}: {why}", flush=True)
        except BaseException as error:  # also KeyboardInterrupt: say which test it was
            failed += 1
            print(f"FAIL {name} ({time.monotonic() - began:.2f} s)", flush=True)
            traceback.print_exc()
            if isinstance(error, KeyboardInterrupt):
                break
        else:
            passed += 1
            print(f"PASS {name} ({time.monotonic() - began:.2f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    if skipped and os.environ.get("PENSTOCK_REQUIRE") == "1":
        failed += skipped
    if failed:
        sys.exit(1)
    sys.exit(77 if skipped and not passed else 0)


# ---- FastCGI client -------------------------------------------------------------------------------------------------

FCGI_BEGIN, FCGI_ABORT, FCGI_END, FCGI_PARAMS, FCGI_STDIN, FCGI_STDOUT, FCGI_STDERR = 1, 2, 3, 4, 5, 6, 7


def fcgi_record(kind, content=b"", padding=0):
    return struct.pack(">BBHHBB", 1, kind, 1, len(content), padding, 0) + content + b"\0" * padding


def fcgi_pair(name, value):
    out = b""
    for text in (name, value):
        out += bytes([len(text)]) if len(text) < 128 else struct.pack(">I", len(text) | 0x80000000)
    return out + name + value


class Reply:
    """A response: status, headers (lower-case names), body bytes; and for FastCGI whether END_REQUEST came."""

    def __init__(self, status=0, headers=None, body=b"", ended=False):
        self.status, self.headers, self.body, self.ended = status, headers or {}, body, ended

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of each SSE event, in order; comments are left out."""
        return [line[6:].decode() for line in self.body.split(b"\n") if line.startswith(b"data: ")]

    def __repr__(self):
        return f"Reply({self.status}, {self.headers}, {self.body[:400]!r})"


def parse_cgi(raw, ended):
    head, _, body = raw.partition(b"\r\n\r\n")
    headers = {}
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name:
            headers[name.decode().strip().lower()] = value.decode().strip()
    status = int(headers.pop("status", "200").split()[0])
    return Reply(status, headers, body, ended)


class FcgiCall:
    """One request to a front over its socket, as nginx sends it.  read() takes bytes of STDOUT as they come; reply()
    reads to the end.  Closing before the end is what a client that leaves looks like to the front."""

    def __init__(self, path, method, uri, headers=None, body=b"", params=None, timeout=None):
        self.stdout, self.pending, self.ended = b"", b"", False
        if isinstance(body, str):
            body = body.encode()
        values = {"REQUEST_METHOD": method, "DOCUMENT_URI": urllib.parse.unquote(uri.split("?")[0]), "REMOTE_ADDR": "127.0.0.1",
                  "CONTENT_LENGTH": str(len(body)) if body else ""}
        for name, value in (headers or {}).items():
            key = name.upper().replace("-", "_")
            values[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else "HTTP_" + key] = value
        values.update(params or {})
        pairs = b"".join(fcgi_pair(n.encode(), v.encode()) for n, v in values.items() if v is not None)
        out = [fcgi_record(FCGI_BEGIN, struct.pack(">HB5x", 1, 0))]
        out += [fcgi_record(FCGI_PARAMS, pairs[at:at + 32768]) for at in range(0, len(pairs), 32768)]
        out += [fcgi_record(FCGI_PARAMS)]
        out += [fcgi_record(FCGI_STDIN, body[at:at + 32768]) for at in range(0, len(body), 32768)]
        out = b"".join(out) + fcgi_record(FCGI_STDIN)
        # Connected only now: a front gives the parameters 10 s, and 16 MB take their time here on a loaded machine.
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout or DEADLINE)
        self.sock.connect(path)
        self.sock.sendall(out)

    def read(self):
        """More bytes of STDOUT; b"" at the end of the request or of the connection."""
        while not self.ended:
            if len(self.pending) >= 8:
                _, kind, _, length, padding, _ = struct.unpack(">BBHHBB", self.pending[:8])
                if len(self.pending) >= 8 + length + padding:
                    content = self.pending[8:8 + length]
                    self.pending = self.pending[8 + length + padding:]
                    if kind == FCGI_END:
                        self.ended = True
                    elif kind == FCGI_STDOUT and content:
                        self.stdout += content
                        return content
                    continue
            try:
                more = self.sock.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                return b""
            self.pending += more
        return b""

    def read_until(self, text):
        """Reads until TEXT has come."""
        while text not in self.stdout:
            if not self.read():
                raise AssertionError(f"the reply ended before {text!r}: {self.stdout[-400:]!r}")
        return self.stdout

    def reply(self):
        while self.read():
            pass
        self.close()
        return parse_cgi(self.stdout, self.ended)

    def close(self):
        self.sock.close()


# ---- processes ------------------------------------------------------------------------------------------------------

class Process:
    """A child process whose standard error goes to a file."""

    def __init__(self, name, command, directory, env=None):
        self.name, self.log = name, os.path.join(directory, name + ".log")
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
                                          env=dict(os.environ, **(env or {})), start_new_session=True)

    @property
    def pid(self):
        return self.popen.pid

    def running(self):
        return self.popen.poll() is None

    def stop(self, sig=signal.SIGTERM, deadline=20.0):
        """Asks, waits, and in the end kills; returns the exit status."""
        if self.running():
            self.popen.send_signal(sig)
            try:
                self.popen.wait(deadline * SLOW)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        try:  # children that outlived it (it leads its session and process group)
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        return self.popen.returncode

    def kill(self):
        """kill -9, as the tests of faults do."""
        self.popen.kill()
        self.popen.wait()

    def log_text(self):
        with open(self.log, errors="replace") as f:
            return f.read()


def program(name):
    path = os.path.join(BUILD, name)
    if not os.access(path, os.X_OK):
        skip(f"{name} is not built")
    return path


def script(text, pace=1000, repeat=1, model=TINY_MODEL, name="s"):
    """A token script (backend = script) that says TEXT, REPEAT times (0 = for ever), one token per PACE microseconds."""
    done = subprocess.run([program("penstock"), "tokenize", "--model", model], input=json.dumps(text) + "\n",
                          capture_output=True, text=True, check=True)
    ids = " ".join(map(str, json.loads(done.stdout)["ids"]))
    return f"script {name}\npace {pace}\nids {ids}\nrepeat {repeat}\n"


class Nginx:
    """nginx with the shipped site, rendered for CONF_PATH, as an instance of its own in DIRECTORY; and TLS clients for it.
    The certificate is made here and verified by every client."""

    def __init__(self, directory, conf_path, options=(), allow="127.0.0.0/8"):
        binary = require_tool("nginx")
        self.dir = directory
        self.certificate, key = os.path.join(directory, "tls.crt"), os.path.join(directory, "tls.key")
        subprocess.run([require_tool("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                        "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", self.certificate],
                       check=True, capture_output=True)
        who = ("--user", pwd.getpwuid(0).pw_name) if os.geteuid() == 0 else ()
        for _ in range(5):  # somebody else may take the port between choosing and listening
            self.port = free_port()
            site = subprocess.run(
                [os.path.join(SOURCE, "nginx", "penstock-site"), "--penstock", program("penstock"), "--config", conf_path,
                 "--listen", f"127.0.0.1:{self.port}", "--certificate", self.certificate, "--key", key,
                 "--instance", directory, "--allow", allow, *who, *options], capture_output=True, text=True)
            equal(site.returncode, 0, site.stderr)
            path = os.path.join(directory, "nginx.conf")
            with open(path, "w") as f:
                f.write(site.stdout)
            self.process = Process("nginx", [binary, "-e", os.path.join(directory, "nginx-error.log"), "-p", directory,
                                             "-c", path, "-g", "daemon off;"], directory)
            if wait_until(self.listening, "nginx") == "up":
                return
            if "Address already in use" not in self.process.log_text():
                break
        raise AssertionError("nginx does not start: " + self.process.log_text())

    def listening(self):
        if not self.process.running():
            return "ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return "up"
        except OSError:
            return None

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    def tls(self, timeout=None, alpn=("http/1.1",)):
        """A verified TLS connection."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.set_alpn_protocols(list(alpn))
        raw = socket.create_connection(("127.0.0.1", self.port), timeout or DEADLINE)
        return context.wrap_socket(raw, server_hostname="localhost")

    def raw(self, data, timeout=None):
        """Sends bytes, reads to the end of the connection; the parsed first response."""
        with self.tls(timeout) as s:
            s.sendall(data)
            return self.read_response(s)

    def read_response(self, s):
        response = http.client.HTTPResponse(s)
        response.begin()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read(), True)

    def https(self, method, path, body=None, headers=None, timeout=None):
        """One request with the standard library's client."""
        connection = http.client.HTTPConnection("localhost", self.port, timeout=timeout or DEADLINE)
        connection.sock = self.tls(timeout)
        connection.request(method, path, body=body.encode() if isinstance(body, str) else body, headers=headers or {})
        response = connection.getresponse()
        reply = Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read(), True)
        connection.close()
        return reply


class Stack:
    """penstockd + penstock-front (+ nginx) on a private configuration.

    script   text of a token script: backend = script; None: the CPU backend
    model    model file; default: the tiny one of the tests
    conf     {"section.option": value} over the defaults below
    keys     make a key file with one key (stack.key); False: no keys are asked for
    nginx    start nginx with the shipped site in front (stack.nginx)
    """

    def __init__(self, script=None, model=None, conf=None, keys=True, nginx=False, nginx_options=(), start=True, env=None):
        self.model = model or TINY_MODEL
        if not os.path.exists(self.model):
            skip(f"no model {self.model}")
        self.dir = tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp")
        self.conf_path = os.path.join(self.dir, "penstock.conf")
        self.front_socket = os.path.join(self.dir, "front.sock")
        self.processes, self.daemon, self.front, self.nginx = [], None, None, None
        self.env = env or {}
        self.key, self.keys_file = "", os.path.join(self.dir, "keys")
        values = {
            "service.instance": "test-" + os.path.basename(self.dir).rsplit("-", 1)[1].replace("_", "x"),
            "service.run_dir": self.dir,
            "model.path": self.model,
            "batcher.threads": 1,
            "batcher.max_running": 8,
            "batcher.max_queued": 24,
            "batcher.kv_tokens": 16384,
            "front.streams_per_front": 16,
        }
        if script is not None:
            path = os.path.join(self.dir, "tokens.script")
            with open(path, "w") as f:
                f.write(script)
            values.update({"batcher.backend": "script", "batcher.script_file": path})
        if keys:
            values["front.keys_file"] = self.keys_file
        values.update(conf or {})
        self.values = values
        self.instance = values["service.instance"]
        try:
            self.write_conf()
            if keys:
                self.key = self.new_key("test")
            self.want_nginx, self.nginx_options = nginx, list(nginx_options)
            if start:
                self.start()
        except BaseException:
            self.dump()
            self.close()
            raise

    def write_conf(self):
        sections = {}
        for name, value in self.values.items():
            section, option = name.split(".")
            value = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
            sections.setdefault(section, []).append(f"{option} = {value}\n")
        with open(self.conf_path, "w") as f:
            for section, lines in sections.items():
                f.write(f"[{section}]\n" + "".join(lines))

    def tool(self, *arguments, **options):
        """Runs `penstock`; the completed process with text output."""
        return subprocess.run([program("penstock"), *arguments], capture_output=True, text=True, timeout=DEADLINE, **options)

    def new_key(self, name):
        done = self.tool("key", "new", "--config", self.conf_path, name)
        equal(done.returncode, 0, f"penstock key new: {done.stderr}")
        return done.stdout.strip()

    # -- life

    def spawn(self, name, *arguments):
        process = Process(name, [program(name), "--config", self.conf_path, *arguments], self.dir, self.env)
        self.processes.append(process)
        return process

    def start_daemon(self):
        self.daemon = self.spawn("penstockd")
        return self.daemon

    def start_front(self):
        self.front = self.spawn("penstock-front")
        return self.front

    def start(self):
        self.start_daemon()
        self.start_front()
        self.wait_attached()
        if self.want_nginx:
            self.start_nginx()

    def ready(self):
        for process in (self.daemon, self.front):
            if process and not process.running():
                raise AssertionError(f"{process.name} ended with {process.popen.returncode}")
        try:
            return self.fcgi("GET", "/readyz").status == 200
        except OSError:
            return False

    def wait_ready(self):
        wait_until(self.ready, "readiness")

    def wait_attached(self, children=None):
        """Until every child has its lane: the first one makes the service ready, and one without a lane answers 503."""
        derived = self.tool("config", "derived", self.conf_path).stdout
        wanted = children or int(re.search(r"^children=(\d+)$", derived, re.M)[1])

        def attached():
            if len(self.front_children()) != wanted:
                return False
            m = self.metrics()
            return m["penstock_front_children_attached"] == wanted == m["penstock_lanes_attached"]
        self.wait_ready()
        wait_until(attached, "all children to attach")

    def start_nginx(self):
        self.nginx = Nginx(self.dir, self.conf_path, self.nginx_options)
        self.processes.append(self.nginx.process)

    def close(self):
        for process in reversed(self.processes):
            process.stop(signal.SIGQUIT if process.name == "nginx" and process.running() else signal.SIGTERM)
        shutil.rmtree(self.dir, ignore_errors=True)
        for name in os.listdir("/dev/shm"):  # left by a kill -9
            if name.startswith(f"penstock.{self.instance}."):
                os.unlink(os.path.join("/dev/shm", name))

    def dump(self):
        for name in sorted(os.listdir(self.dir)):
            if name.endswith(".log"):
                with open(os.path.join(self.dir, name), errors="replace") as f:
                    text = f.read()
                if text:
                    print(f"---- {name} ----\n{text[-6000:]}", flush=True)

    def __enter__(self):
        return self

    def sanitizer_reports(self):
        """What sanitizers wrote: a child that reports and goes on, or dies unseen, fails its test all the same."""
        marks = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:")
        found = []
        for name in os.listdir(self.dir):
            if name.endswith(".log"):
                with open(os.path.join(self.dir, name), errors="replace") as f:
                    found += [f"{name}: {line.strip()}" for line in f if any(mark in line for mark in marks)]
        return found

    def __exit__(self, kind, *_):
        if kind is None and os.environ.get("PENSTOCK_SANITIZER"):
            for process in reversed(self.processes):  # what they say at their end counts too
                if process.name != "nginx":
                    process.stop()
            reports = self.sanitizer_reports()
            if reports:
                self.dump()
                self.close()
                raise AssertionError("; ".join(reports[:5]))
        if kind is not None and kind is not Skip:
            self.dump()
        self.close()

    # -- clients

    def headers(self, more=None):
        values = {"Content-Type": "application/json"}
        if self.key:
            values["Authorization"] = "Bearer " + self.key
        values.update(more or {})
        return values

    def open_fcgi(self, method, uri, headers=None, body=b"", params=None):
        """A request straight to the fronts' socket, not yet read."""
        return FcgiCall(self.front_socket, method, uri, headers, body, params)

    def fcgi(self, method, uri, headers=None, body=b"", params=None):
        return self.open_fcgi(method, uri, headers, body, params).reply()

    def chat(self, content="hello", **fields):
        """A chat completion straight from the fronts, whole."""
        return self.open_chat(content, **fields).reply()

    def open_chat(self, content="hello", **fields):
        body = {"model": fields.pop("model", None) or self.model_name(), "messages": [{"role": "user", "content": content}]}
        body.update(fields)
        return self.open_fcgi("POST", "/v1/chat/completions", self.headers(), json.dumps(body))

    def ids(self, text):
        """Token ids of TEXT in the stack's model."""
        done = self.tool("tokenize", "--model", self.model, input=json.dumps(text) + "\n")
        equal(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["ids"]

    def model_name(self):
        return os.path.basename(self.model).removesuffix(".gguf")

    def metrics(self):
        """{name: value} of /metrics, asked on the fronts' socket."""
        reply = self.fcgi("GET", "/metrics", self.headers())
        equal(reply.status, 200, "metrics")
        values = {}
        for line in reply.body.decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def front_children(self):
        """Process ids of the front's children."""
        with open(f"/proc/{self.front.pid}/task/{self.front.pid}/children") as f:
            return [int(pid) for pid in f.read().split()]
