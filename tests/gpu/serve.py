#!/usr/bin/env python3
"""serve.py: penstockd on the CUDA backend behind fronts: answers are the CPU backend's, alone and eight at a time.

    python3 tests/gpu/serve.py [MODEL]              the answers of MODEL; and a row that is not finite ends its request only
    python3 tests/gpu/serve.py --shape DIR [N,…]    N requests at a time through nginx to random weights of DIR/config.json

Wants penstock-cuda.so where penstockd looks for it (`make install`).  Finds programs as tests/behaviour does.  Exit status 77
where there is no device or no installed object, or no nginx.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "behaviour"))
import harness  # noqa: E402

PROMPTS = ["What is the capital of France?", "Name three rivers.", "Write one sentence about rain.", "Count to five.", "Who wrote Faust?",
           "What is 12 times 12?", "Say hello in German.", "Which is larger, 9.9 or 9.11?"]
MODEL = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] != "--shape" else harness.TINY_MODEL


def ask(stack, prompt, answers):
    body = json.dumps({"model": stack.model_name(), "messages": [{"role": "user", "content": prompt}], "max_tokens": 40,
                       "temperature": 0}).encode()
    reply = stack.fcgi("POST", "/v1/chat/completions", headers=stack.headers(), body=body)
    if reply.status == 200:
        answers[prompt] = reply.json()["choices"][0]["message"]["content"]
    else:
        print(f"{prompt}: {reply.status} {reply.body[:300]}")


def answers_of(conf, together):
    answers = {}
    with harness.Stack(model=MODEL, conf=conf) as stack:
        threads = [threading.Thread(target=ask, args=(stack, p, answers)) for p in PROMPTS]
        for thread in threads:
            thread.start()
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
        log = stack.daemon.log_text()
    return answers, log


def not_finite():
    """A model whose logits are NaN: 500 that names the step, a metric that counts it, and a server that goes on."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as broken:
        with open(harness.TINY_MODEL, "rb") as f:
            broken.write(f.read()[:-300] + b"\xff" * 300)  # NaN in the last tensor, whatever its format
        broken.flush()
        with harness.Stack(model=broken.name, conf={"batcher.backend": "cuda"}) as stack:
            replies = [stack.chat("hello", max_tokens=5, temperature=0) for _ in range(2)]
            counted = stack.metrics()["penstock_logits_not_finite_total"]
            ready = stack.fcgi("GET", "/readyz").status
    print(f"logits that are NaN: {[reply.status for reply in replies]} {replies[0].body[:200]} {counted} counted, then {ready}")
    return all(reply.status == 500 and b"step" in reply.body for reply in replies) and counted == 2 and ready == 200


def shape(directory, numbers):
    """Tokens per second through nginx, fronts, lanes and penstockd, of random weights."""
    with tempfile.TemporaryDirectory() as model:
        with open(os.path.join(directory, "config.json")) as f:
            config = f.read()
        with open(os.path.join(harness.SOURCE, "tests", "data", "tokenizers", "byte_level.json"), encoding="ascii") as f:
            tokenizer = json.load(f)["tokenizer"]
        template = {"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}
        for name, text in (("config.json", config), ("tokenizer.json", json.dumps(tokenizer)), ("tokenizer_config.json", json.dumps(template))):
            with open(os.path.join(model, name), "w") as f:
                f.write(text)
        most = max(numbers)
        conf = {"batcher.backend": "cuda", "model.load_format": "dummy", "batcher.max_running": most, "batcher.max_queued": 2 * most,
                "batcher.step_tokens": 2048, "batcher.kv_tokens": most * 2048, "service.log_level": "debug", "model.name": "shape"}
        with harness.Stack(model=model, conf=conf, nginx=True) as stack:
            last = ""
            for n in numbers:
                done = stack.tool("bench", "serve", "--base-url", stack.nginx.url, "--cacert", stack.nginx.certificate, "--api-key", stack.key,
                                  "--model", "shape", "--input-len", "40", "--output-len", "128", "--ignore-eos", "--num-prompts", str(3 * n),
                                  "--max-concurrency", str(n), "--num-warmups", "1")
                print(done.stdout, done.stderr)
                found = re.search(r"^Output token throughput.*?([\d.]+)", done.stdout, re.M)
                if done.returncode or not found:
                    print(f"{n} at a time: exit status {done.returncode}")
                    return 1
                last += f"{n} at a time {found.group(1)} tok/s; "
            ready = [line for line in stack.daemon.log_text().splitlines() if " ready: " in line or "memory:" in line]
    print("\n".join(ready))
    print(f"through nginx, {os.path.basename(directory)}: {last}{ready[-1].split('; ')[-1] if ready else ''}")
    return 0


def main():
    tried = subprocess.run([harness.program("penstock"), "generate", "--model", MODEL, "--prompt", "a", "--max-tokens", "1", "--quiet",
                            "--backend", "cuda"], capture_output=True, text=True)
    if tried.returncode:
        print("skipped: " + tried.stderr.strip())
        return 77
    if len(sys.argv) > 2 and sys.argv[1] == "--shape":
        return shape(sys.argv[2], [int(n) for n in (sys.argv[3] if len(sys.argv) > 3 else "1,16,64").split(",")])
    finite = not_finite()
    cpu, _ = answers_of({"batcher.threads": 0}, False)
    cuda = {"batcher.backend": "cuda", "batcher.dtype": "float32", "service.log_level": "debug"}
    alone, log = answers_of(cuda, False)
    among, _ = answers_of(cuda, True)
    half, _ = answers_of({"batcher.backend": "cuda"}, True)
    print(next((line for line in log.splitlines() if "cuda: device" in line), "no line of the device in the log"))
    print(next((line for line in log.splitlines() if "linear " in line), "no line of linear layers in the log"))
    if any(len(answers) < len(PROMPTS) for answers in (cpu, alone, among, half)):
        print("not every request was answered")
        return 1
    for prompt in PROMPTS:
        print(f"{prompt}\n  cpu {cpu[prompt]!r}\n  cuda {alone[prompt]!r}\n  among others {among[prompt]!r}\n  bfloat16 {half[prompt]!r}")
    same = sum(cpu[p] == alone[p] == among[p] and len(cpu[p]) > 0 for p in PROMPTS)
    print(f"float32: {same} of {len(PROMPTS)} answers are the CPU's, alone and together; "
          f"logits that are not finite {'end their request with 500' if finite else 'are NOT answered as they should be'}")
    return 0 if same == len(PROMPTS) and finite else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except harness.Skip as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
