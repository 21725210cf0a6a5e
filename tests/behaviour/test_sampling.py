"""Penalties, biases, bans, stop ids and log probabilities through nginx, with the official openai package.

On a script, whose log probabilities are known to the digit, and on the tiny model, whose draws must obey the fields.  With
PENSTOCK_TEST_MODEL set to the default model's file the second part runs on that as well."""
import math
import os

import harness
from harness import check, equal
from test_openai import client, openai, raises

HELLO = [{"role": "user", "content": "hello"}]
TEXT = "The wheel: \u4f60 \U0001f600 done."


def scripted(ids):
    """A script of IDS; the k-th has the log probability −k / 8, and two others are as likely."""
    lines = ["script s", "pace 500"]
    for k, token in enumerate(ids):
        lines += [f"likely {k * 125} 3 {k * 125} 5 {k * 125 + 4000}", f"ids {token}"]
    return "\n".join(lines) + "\n"


def script_stack():
    if not openai:
        harness.skip("the openai package is not installed")
    with harness.Stack(script=harness.script(TEXT), start=False) as bare:
        ids = bare.ids(TEXT)
    return ids, harness.Stack(script=scripted(ids), nginx=True)


def model_stack(model=None, **options):
    if not openai:
        harness.skip("the openai package is not installed")
    return harness.Stack(model=model, nginx=True, **options)


def entries(chunks, index=0):
    return [e for c in chunks for choice in c.choices if choice.index == index and choice.logprobs
            for e in choice.logprobs.content]


def check_script_entries(got, tops):
    for k, entry in enumerate(got):
        check(abs(entry.logprob + k / 8) < 1e-6, k, entry.logprob)
        equal(len(entry.top_logprobs), min(tops, 3))
        values = [t.logprob for t in entry.top_logprobs]
        equal(values, sorted(values, reverse=True))


def test_script_logprobs():
    ids, made = script_stack()
    with made as s:
        create = client(s).chat.completions.create
        options = {"model": s.model_name(), "messages": HELLO, "logprobs": True, "top_logprobs": 2, "n": 2}
        whole = create(**options)
        chunks = list(create(**options, stream=True, stream_options={"include_usage": True}))
        equal(whole.usage.completion_tokens, 2 * len(ids))
        for index in range(2):
            got = whole.choices[index].logprobs.content
            equal(len(got), len(ids))
            check_script_entries(got, 2)
            equal(b"".join(bytes(e.bytes) for e in got).decode(), TEXT, "exact bytes, though characters span tokens")
            equal([e.model_dump() for e in entries(chunks, index)], [e.model_dump() for e in got])
        plain = create(model=s.model_name(), messages=HELLO)
        equal(plain.choices[0].logprobs, None)
        # Cut by a stop string: the entries of the tokens that usage counts.
        for stream in (False, True):
            answer = create(**{**options, "n": 1}, stop="l: ", stream=stream,
                            **({"stream_options": {"include_usage": True}} if stream else {}))
            chunks = list(answer) if stream else [answer]
            usage = next(c.usage for c in chunks if c.usage)
            got = entries(chunks)
            equal(len(got), usage.completion_tokens)
            check("The whee" in b"".join(bytes(e.bytes) for e in got).decode(), got)
            check_script_entries(got, 2)
        # A stop id ends the answer and is no part of it.
        at = len(ids) // 2
        answer = create(model=s.model_name(), messages=HELLO, logprobs=True, extra_body={"stop_token_ids": [ids[at]]})
        equal((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("stop", ids.index(ids[at])))


def test_errors_name_the_field():
    ids, made = script_stack()
    with made as s:
        create = client(s).chat.completions.create
        for options, param, words in (
                ({"logit_bias": {"99999999": 1}}, "logit_bias", "\"99999999\" is not a token id"),
                ({"logit_bias": {"5": 101}}, "logit_bias", "101"),
                ({"presence_penalty": 3}, "presence_penalty", "-2\u20262"),
                ({"frequency_penalty": -3}, "frequency_penalty", "-2\u20262"),
                ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "0\u202620"),
                ({"top_logprobs": 2}, "top_logprobs", "logprobs = true"),
                ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty", "0.01"),
                ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids", "= -1"),
                ({"extra_body": {"allowed_token_ids": []}}, "allowed_token_ids", "0 ids"),
                ({"extra_body": {"min_tokens": 9}, "max_tokens": 5}, "min_tokens", "= 9")):
            error = raises(openai.BadRequestError, create, model=s.model_name(), messages=HELLO, **options)
            equal(error.param, param)
            check(words in str(error), words, str(error))
        equal(s.metrics()["penstock_requests_total"], 0, "nothing reached the batcher")


def obey_the_fields(s):
    create = client(s).chat.completions.create
    base = {"model": s.model_name(), "messages": HELLO, "max_tokens": 24, "temperature": 0, "logprobs": True, "top_logprobs": 5}

    def ask(extra=None, **options):
        return create(**{**base, **options}, extra_body={"ignore_eos": True, **(extra or {})})

    greedy = ask()
    for entry in greedy.choices[0].logprobs.content:
        equal(entry.top_logprobs[0].bytes, entry.bytes, "the most likely one was drawn")
        equal(entry.top_logprobs[0].logprob, entry.logprob)
        check(sum(math.exp(t.logprob) for t in entry.top_logprobs) <= 1 + 1e-4, entry)
    ids = s.ids("hello")
    # A bias that nothing can beat; it does not show in the log probabilities, which are the model's own.
    biased = ask(logit_bias={str(ids[0]): 100})
    first = biased.choices[0].logprobs.content
    equal(len({bytes(e.bytes) for e in first}), 1)
    equal(first[0].top_logprobs[0].model_dump(), greedy.choices[0].logprobs.content[0].top_logprobs[0].model_dump())
    check(first[0].logprob <= first[0].top_logprobs[0].logprob, first[0])
    # Only what is allowed; a banned one of the two is never drawn.
    allowed = ask({"allowed_token_ids": [ids[0], 20, 21]}, temperature=1, seed=3)
    check(len({bytes(e.bytes) for e in allowed.choices[0].logprobs.content}) <= 3)
    # min_tokens holds a stop id back until then.
    held = ask({"allowed_token_ids": [20, 21], "stop_token_ids": [21], "min_tokens": 7}, logit_bias={"21": 50})
    equal((held.usage.completion_tokens, held.choices[0].finish_reason), (7, "stop"))
    # Penalties: no token twice as long as there are others; the same through either route, and with a seed at any temperature.
    distinct = ask({"allowed_token_ids": list(range(20, 50))}, presence_penalty=2, logit_bias={str(i): 0.0 for i in range(20, 50)})
    again = [c for c in create(**base, presence_penalty=2, stream=True, logit_bias={str(i): 0.0 for i in range(20, 50)},
                               extra_body={"ignore_eos": True, "allowed_token_ids": list(range(20, 50))})]
    equal([e.model_dump() for e in entries(again)], [e.model_dump() for e in distinct.choices[0].logprobs.content])
    counts = {}
    for penalty in (0, 2):
        answer = ask({"allowed_token_ids": list(range(20, 50))}, frequency_penalty=penalty, temperature=0.1, seed=1)
        counts[penalty] = len({bytes(e.bytes) for e in answer.choices[0].logprobs.content})
    check(counts[2] >= counts[0], counts)
    seeded = [ask({"repetition_penalty": 1.3}, frequency_penalty=0.5, temperature=1, seed=9, n=2) for _ in range(2)]
    equal([c.logprobs.model_dump() for c in seeded[0].choices], [c.logprobs.model_dump() for c in seeded[1].choices])


def test_draws_obey_the_fields():
    with model_stack() as s:
        obey_the_fields(s)


def test_draws_of_the_default_model():
    model = os.environ.get("PENSTOCK_TEST_MODEL")
    if not model:
        harness.skip("PENSTOCK_TEST_MODEL is not set")
    with model_stack(model) as s:
        obey_the_fields(s)


if __name__ == "__main__":
    harness.main(globals())
