"""The fronts' master: signals, draining, taking over, executing anew, memory, options.  Needs penstockd for most."""
import os
import shutil
import signal
import subprocess
import tempfile

import harness
from front_common import can_read_smaps, drain, failed_stream, private_dirty_kb, reply_of, text_of, wait_idle
from harness import check, equal, script

CONF = {"front.children": 2, "front.streams_per_front": 8, "batcher.max_running": 8, "batcher.max_queued": 6,
        "batcher.kv_tokens": 65536}


def front(*arguments):
    return subprocess.run([harness.program("penstock-front"), *arguments], capture_output=True, text=True,
                          timeout=harness.DEADLINE)


def test_options():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "penstock.conf")
        with open(path, "w") as f:
            f.write(f"[service]\nrun_dir = {directory}\n[batcher]\nmax_running = 4\n")
        equal(front("--config", path, "--check-config").stdout, "")
        done = front("--config", path, "--set", "batcher.max_running=5", "--dump-config")
        check("max_running = 5\n" in done.stdout, done)
        check(front("--version").stdout.startswith("penstock-front "))
        check("--check-config" in front("--help").stdout)
        for wrong, says in ((["--set", "front.children=1"], "front.children = 1"), (["--nonsense"], "--help"),
                            (["--set", "nothing=1"], "unknown option"), (["word"], "unexpected argument word")):
            done = front("--config", path, "--check-config", *wrong)
            equal((done.returncode, done.stdout), (1, ""), wrong)
            check(says in done.stderr, done.stderr)
        equal(front("--config", path + ".none").returncode, 1)
        done = front("--config", path)
        equal(done.returncode, 1, "no model")
        check("model.path" in done.stderr, done.stderr)
        done = front("--config", path, "--set", f"model.path={path}")
        equal(done.returncode, 1, "not a model")
        check(path in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr)
        socket = os.path.join(directory, "front.sock")
        with open(socket, "w"):
            pass
        done = front("--config", path, "--set", f"model.path={harness.TINY_MODEL}")
        equal(done.returncode, 1, "a file where the socket goes")
        check(socket in done.stderr, done.stderr)
        check(os.path.isfile(socket), "the file was removed")


def test_keys_are_read_anew():
    with harness.Stack(script=script("hello"), conf=CONF) as stack:

        def status(key):
            return {stack.fcgi("GET", "/v1/models", {"Authorization": "Bearer " + key}).status for _ in range(8)}
        old, new = stack.key, stack.new_key("second")
        equal(status(old), {200})
        equal(status(new), {401}, "not read yet")
        stack.front.popen.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: stack.front.log_text().count("keys read: 2") == 2, "both children to read them")
        equal(status(new), {200})
        equal(status(old), {200})
        identity = stack.tool("key", "list", "--keys", stack.keys_file).stdout.splitlines()[0].split()[0]
        equal(stack.tool("key", "revoke", "--keys", stack.keys_file, identity).returncode, 0)
        stack.front.popen.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: stack.front.log_text().count("keys read: 1") == 2, "both children to read them")
        equal(status(old), {401})
        with open(stack.keys_file, "a") as f:
            f.write("damage\n")
        stack.front.popen.send_signal(signal.SIGHUP)
        harness.wait_until(lambda: stack.front.log_text().count("keys stay as they were") == 3, "all to refuse the damaged file")
        equal(status(new), {200}, "the keys stay as they were")
        os.kill(stack.front_children()[0], signal.SIGKILL)  # a new child has the master's keys
        harness.wait_until(lambda: len(stack.front_children()) == 2, "a new child")
        equal(status(new), {200})
        equal(status(old), {401})


def test_logs_are_opened_anew():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "log")
        with harness.Stack(script=script("hello"), conf=dict(CONF, **{"service.log_file": path})) as stack:
            equal(stack.chat().status, 200)
            os.rename(path, path + ".1")
            stack.front.popen.send_signal(signal.SIGUSR1)
            stack.daemon.popen.send_signal(signal.SIGUSR1)
            harness.wait_until(lambda: os.path.exists(path), "a new log")

            def logged():
                reply = stack.chat()
                with open(path) as f:
                    return reply.headers["x-request-id"] in f.read()
            for _ in range(8):  # whichever child serves
                harness.wait_until(logged, "the new log to be written")
            with open(path + ".1") as f:
                lines = [line for line in f if "/v1/chat/completions" in line]
            check(len(lines) >= 1 and "status 200" in lines[0] and "tokens" in lines[0], lines)
            with open(path) as f:
                check(stack.key not in f.read(), "a key is in the log")


def test_drain():
    """TERM: what runs is finished, nothing new is taken; the exit status is 0."""
    words = "one two three four five " * 20
    with harness.Stack(script=script(words, pace=1000), conf=CONF) as stack:
        calls = [stack.open_chat(stream=n % 2 == 0) for n in range(8)]
        for call in calls[::2]:
            call.read_until(b"data: ")
        harness.wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 8, "all to run")
        stack.front.popen.send_signal(signal.SIGTERM)
        drain(calls)
        for call in calls[::2]:
            equal(text_of(reply_of(call)), words)
        for call in calls[1::2]:
            equal(reply_of(call).json()["choices"][0]["message"]["content"], words)
        equal(stack.front.popen.wait(harness.DEADLINE), 0)


def test_a_draining_front_refuses_at_once():
    """Nobody accepts any more: a connection in the backlog would wait for the end of the longest stream, and then fail."""
    with harness.Stack(script=script("word ", 1000, 0), conf=CONF) as stack:
        stream = stack.open_chat(stream=True)
        stream.read_until(b"data: ")
        stack.front.popen.send_signal(signal.SIGTERM)

        def refused():
            with harness.socket.socket(harness.socket.AF_UNIX) as probe:
                return probe.connect_ex(stack.front_socket) == harness.errno.ECONNREFUSED
        harness.wait_until(refused, "the socket to refuse")
        check(stack.front.running(), "the front has ended")
        before = stream.stdout.count(b"data: ")
        while stream.stdout.count(b"data: ") < before + 5:
            check(stream.read(), "the stream ended")
        stream.close()
        equal(stack.front.popen.wait(harness.DEADLINE), 0)


def test_drain_is_bounded():
    with harness.Stack(script=script("word ", 1000, 0), conf=dict(CONF, **{"front.drain_timeout_ms": 200})) as stack:
        stream, whole, idle = stack.open_chat(stream=True), stack.open_chat(), harness.socket.socket(harness.socket.AF_UNIX)
        stream.read_until(b"data: ")
        idle.connect(stack.front_socket)
        stack.front.popen.send_signal(signal.SIGTERM)
        drain([stream, whole])
        check(failed_stream(reply_of(stream)) and stream.ended, reply_of(stream))
        equal(reply_of(whole).status, 503)
        equal(stack.front.popen.wait(harness.DEADLINE), 0)
        idle.close()


def test_taking_over():
    """A new master on the same path, then TERM for the old one: no request fails, and the socket stays the successor's."""
    words = "one two three " * 20
    with harness.Stack(script=script(words, pace=500), conf=CONF) as stack:
        old = stack.front
        running = [stack.open_chat(stream=True) for _ in range(4)]
        for call in running:
            call.read_until(b"data: ")
        before = os.stat(stack.front_socket).st_ino
        stack.front = stack.spawn("penstock-front")
        harness.wait_until(lambda: os.stat(stack.front_socket).st_ino != before, "the socket to change hands")
        check("another process listens on" in stack.front.log_text(), "a second front says that it takes the first one's place")
        old.popen.send_signal(signal.SIGTERM)
        for _ in range(50):
            equal(stack.fcgi("GET", "/v1/models", stack.headers()).status, 200)
        drain(running)
        for call in running:
            equal(text_of(reply_of(call)), words)
        while old.running():
            equal(stack.fcgi("GET", "/v1/models", stack.headers()).status, 200)
        equal(old.popen.returncode, 0)
        check(os.path.exists(stack.front_socket), "the old master removed the new one's socket")
        stack.wait_attached()
        equal(text_of(stack.chat(stream=True)), words)


def test_killed_master():
    """Children of a dead master finish what they have and end; nobody is left behind."""
    words = "one two three " * 20
    with harness.Stack(script=script(words, pace=1000), conf=CONF) as stack:
        children = stack.front_children()
        call = stack.open_chat(stream=True)
        call.read_until(b"data: ")
        stack.front.kill()
        drain([call])
        equal(text_of(reply_of(call)), words)

        def gone(pid):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    return f.read().rpartition(")")[2].split()[0] == "Z"
            except FileNotFoundError:
                return True
        for pid in children:
            harness.wait_until(lambda: gone(pid), "the children to end")
        stack.start_front()
        stack.wait_ready()
        stack.wait_attached()
        equal(text_of(stack.chat(stream=True)), words)


def test_executing_anew():
    """USR2: the same process with new children; the socket goes along and no request is lost."""
    words = "one two three " * 20
    with harness.Stack(script=script(words, pace=500), conf=CONF) as stack:
        for _ in range(2):
            old = stack.front_children()
            call = stack.open_chat(stream=True)
            call.read_until(b"data: ")
            stack.front.popen.send_signal(signal.SIGUSR2)
            harness.wait_until(lambda: len(set(stack.front_children()) - set(old)) == 2, "new children")
            for _ in range(20):
                equal(stack.fcgi("GET", "/livez").status, 200)
            drain([call])
            equal(text_of(reply_of(call)), words)
            harness.wait_until(lambda: not set(stack.front_children()) & set(old), "the old children to end")
            stack.wait_attached()
            equal(text_of(stack.chat(stream=True)), words)
        check(stack.front.running())


def test_another_vocabulary():
    """penstockd comes back with another model file: the fronts refuse it with both fingerprints, load anew and serve."""
    with tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "tiny.gguf")
        shutil.copy(harness.TINY_MODEL, model)
        with harness.Stack(script=script("hello"), conf=CONF, model=model) as stack:
            old = stack.front_children()
            with open(model, "rb") as f:
                data = f.read()
            equal(data.count(b"</think>"), 1)

            def replace(content):
                with open(model + ".new", "wb") as f:
                    f.write(content)
                os.rename(model + ".new", model)
            replace(data.replace(b"</think>", b"</thonk>"))
            stack.daemon.stop()
            stack.start_daemon()
            harness.wait_until(lambda: stack.daemon.log_text().count(" ready: ") == 2, "penstockd to load the other file")
            replace(b"damaged")  # what is there now cannot be loaded: the fronts stay as they are
            harness.wait_until(lambda: "cannot be executed anew" in stack.front.log_text(), "the damaged file to be refused")
            equal(sorted(stack.front_children()), sorted(old))
            equal(stack.chat().status, 503)
            replace(data.replace(b"</think>", b"</thonk>"))
            harness.wait_until(lambda: len(set(stack.front_children()) - set(old)) == 2, "new children")
            stack.wait_ready()
            stack.wait_attached()
            equal(stack.chat().status, 200)
            log = stack.front.log_text()
            check("fingerprint" in log and "executing" in log, log)


def test_dying_children_are_replaced_more_and_more_seldom():
    with harness.Stack(script=script("hello"), conf=CONF) as stack:
        first = stack.front_children()
        for round in range(4):
            victim = harness.wait_until(lambda: [p for p in stack.front_children() if p != first[1]], "a child to kill")[0]
            os.kill(victim, signal.SIGKILL)
            harness.wait_until(lambda: victim not in stack.front_children(), "it to be reaped")
            equal(stack.fcgi("GET", "/livez").status, 200, "the other serves meanwhile")
        harness.wait_until(lambda: len(stack.front_children()) == 2, "the last one to be replaced")
        equal(stack.metrics()["penstock_front_respawns_total"], 4)
        check(first[1] in stack.front_children())


def test_the_service_manager_is_told():
    """READY once the children run, WATCHDOG while the master lives, STOPPING at TERM."""
    import socket
    with harness.Stack(conf=CONF, start=False) as stack:
        path = os.path.join(stack.dir, "notify.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(harness.DEADLINE)
            stack.env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
            stack.start_front()
            first = manager.recv(4096).decode()
            if not stack.front.running():
                harness.skip("built without sd_notify")
            check("READY=1" in first, first)
            equal(len(stack.front_children()), 2)
            for _ in range(3):
                equal(manager.recv(4096), b"WATCHDOG=1")
            stack.front.popen.send_signal(signal.SIGTERM)
            while b"STOPPING=1" not in manager.recv(4096):
                pass
            equal(stack.front.popen.wait(harness.DEADLINE), 0)


def test_memory_and_hardening():
    with harness.Stack(script=script("hello"), conf=CONF) as stack:
        for _ in range(50):
            equal(stack.chat("water " * 100).status, 200)
        for pid in [stack.front.pid, *stack.front_children()]:
            with open(f"/proc/{pid}/limits") as f:
                core = next(line for line in f if line.startswith("Max core file size"))
            equal(core.split()[4:6], ["0", "0"], "core limit")
            if can_read_smaps(pid) and not os.environ.get("PENSTOCK_SANITIZER"):
                kb = private_dirty_kb(pid)
                print(f"private memory of {'master' if pid == stack.front.pid else 'child'}: {kb} KB")
                check(kb <= 1024, f"{kb} KB private")
        equal(os.stat(stack.front_socket).st_mode & 0o777, 0o660)
        wait_idle(stack)


if __name__ == "__main__":
    harness.main(globals())
