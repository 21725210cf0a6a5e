"""64 streams of three classes and several lengths through nginx, all waiting at once: in which order are they admitted?  The
black box says it, so nothing here depends on time."""
import json
import re
import threading

import harness
from harness import check, equal, wait_until
from test_nginx_stack import Stream

ENDLESS = "script e\npace 1000\nids 30 31 32\nrepeat 0\n"
SHORT = "script s\npace 200\nids 40 41\n"
CLASSES = (-5, 0, 5)
WORDS = (3, 40, 90, 200)


def admitted(stack):
    """Ids of requests in the order of their (first) admission."""
    done = stack.tool("blackbox", "--config", stack.conf_path, "--json", "--last", "4096")
    equal(done.returncode, 0, done.stderr)
    order = []
    for plan in json.loads(done.stdout)["plans"]:
        order += [item["request"] for item in plan["items"] if item["admitted"] and item["request"] not in order]
    return order


def jobs(stack):
    """{request id: penstockd's id} from the fronts' log."""
    return dict(re.findall(r"request (\S+) key .* job ([0-9a-f]+)", stack.front.log_text()))


def run(policy):
    """[(class, words)] in the order of admission."""
    mixed = [(CLASSES[i % 3], WORDS[(i // 3 + i) % 4]) for i in range(64)]
    conf = {"batcher.max_running": 2, "batcher.max_queued": 64, "batcher.policy": policy, "batcher.long_prompt_tokens": 8192,
            "batcher.kv_tokens": 32768, "batcher.max_queue_wait_ms": 86400000}
    with harness.Stack(script=ENDLESS + SHORT, conf=conf, nginx=True,
                       nginx_options=["--rate", "1000", "--burst", "1000"]) as stack:
        equal(stack.tool("key", "set", "--config", stack.conf_path, "test", "--ceiling", "-100").returncode, 0)
        stack.front.stop()
        stack.start_front()
        stack.wait_ready()
        # They hold both places until all others wait; nobody may take those from them.
        plugs = [Stream(stack, seed=0, priority=-100, max_tokens=None) for _ in range(2)]
        for plug in plugs:
            plug.read_until(b"data: ")
        replies = {}

        def client(index, priority, words):
            body = json.dumps({"model": stack.model_name(), "stream": True, "seed": 1, "max_tokens": 20, "priority": priority,
                               "messages": [{"role": "user", "content": "water " * words}]})
            replies[index] = stack.nginx.https("POST", "/v1/chat/completions", body, stack.headers({"X-Request-Id": f"r{index}"}))

        threads = [threading.Thread(target=client, args=(i, *what)) for i, what in enumerate(mixed)]
        for thread in threads:
            thread.start()
        wait_until(lambda: stack.metrics()["penstock_sequences_waiting"] == 64, "all wait")
        for plug in plugs:
            plug.close()
        for thread in threads:
            thread.join()
        equal({reply.status for reply in replies.values()}, {200})
        check(all(reply.events()[-1] == "[DONE]" for reply in replies.values()))
        # A front logs a request after its last byte, so the line may come after the answer.
        named = wait_until(lambda: (found := [item for item in jobs(stack).items() if re.fullmatch(r"r\d+", item[0])]) and
                           len(found) == 64 and found, "all requests in the log")
        ids = {job: mixed[int(name[1:])] for name, job in named}
        order = [ids[request] for request in admitted(stack) if request in ids]
        equal(len(order), 64)
        return order


def test_priority():
    order = run("priority")
    equal(order, sorted(order), "classes first, and inside a class the shortest first")


def test_fair():
    """One key alone is served as by priority."""
    order = run("fair")
    equal([priority for priority, _ in order], sorted(priority for priority, _ in order))
    equal(order, sorted(order))


def test_fcfs():
    """Neither class nor length says anything."""
    order = run("fcfs")
    check([priority for priority, _ in order] != sorted(priority for priority, _ in order), order)


if __name__ == "__main__":
    harness.main(globals())
