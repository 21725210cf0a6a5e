"""Speculation by n-grams through penstockd and the fronts: greedy and sampled requests get the answers that they get without,
whole and streamed, alone and together, and what was guessed is counted.

On the tiny model, and with PENSTOCK_TEST_MODEL set to the default model's file on that as well.  Standard library only."""
import os

import harness
from front_common import text_of, wait_idle
from harness import check, equal

LIST = "Repeat this line three times: the red wheel turns the blue wheel, the blue wheel turns the red wheel."
REQUESTS = [
    (LIST, dict(temperature=0)),
    ("Write the numbers from 1 to 30.", dict(temperature=0)),
    (LIST, dict(temperature=0.7, seed=11)),
    ("a b c a b c a b", dict(temperature=1, top_p=0.9, seed=5)),
    ("Tell me about rivers.", dict(temperature=0.9, top_k=20, seed=77)),
    (LIST, dict(temperature=0, frequency_penalty=0.6, presence_penalty=0.2)),
    ("Say it again and again and again.", dict(temperature=0.5, seed=3, n=2)),
]


def answers(speculation, model, tokens):
    """Every answer, whole: with its end and the number of tokens; text, streamed together; steps of the first; /metrics."""
    conf = {"batcher.speculation": speculation, "batcher.draft_tokens": 4}
    with harness.Stack(model=model, conf=conf) as s:
        whole, streamed = [], []
        for content, fields in REQUESTS:
            reply = s.chat(content, max_tokens=tokens, **fields)
            equal(reply.status, 200, reply)
            answer = reply.json()
            whole.append(([(c["message"]["content"], c["finish_reason"]) for c in answer["choices"]],
                          answer["usage"]["completion_tokens"]))
        steps = s.metrics()["penstock_steps_total"]
        calls = [s.open_chat(content, max_tokens=tokens, stream=True, **fields)
                 for content, fields in REQUESTS if "n" not in fields]
        for call in calls:
            streamed.append(text_of(call.reply()))
        wait_idle(s)
        return whole, streamed, steps, s.metrics()


def compare(model, tokens):
    drafts = 'penstock_draft_tokens_total{kind="ngram"}'
    right = 'penstock_draft_tokens_accepted_total{kind="ngram",position="%d"}'
    plain, plain_streamed, plain_steps, before = answers("off", model, tokens)
    guessed, guessed_streamed, guessed_steps, after = answers("ngram", model, tokens)
    equal(guessed, plain, "whole")
    equal(guessed_streamed, plain_streamed, "streamed")
    equal(plain_streamed, [choices[0][0] for choices, _ in plain if len(choices) == 1], "streamed and whole")
    equal(before[drafts], 0, "nothing is guessed")
    accepted = [after[right % position] for position in range(1, 5)]
    equal(accepted, sorted(accepted, reverse=True), "a guess counts only behind right ones")
    check(after[drafts] >= sum(accepted) > 0, after[drafts], accepted)
    check(after['penstock_drafts_total{kind="ngram"}'] >= accepted[0], accepted)
    equal(after['penstock_draft_tokens_total{kind="mtp"}'], 0)
    name = "penstock_generated_tokens_total"
    equal(after[name], before[name], "a wrong guess is no token")
    # One entry for every token but the first of each answer, wherever several came with one step.
    count = len(plain_streamed) + sum(len(choices) for choices, _ in plain)
    for metrics in (before, after):
        equal(metrics["penstock_inter_token_latency_seconds_count"], metrics[name] - count)
    check(guessed_steps < plain_steps, "fewer steps", guessed_steps, plain_steps)
    print(f"  {int(after[drafts])} guesses, right by position: {accepted}; "
          f"{int(plain_steps)} steps became {int(guessed_steps)}")


def test_answers_are_the_same():
    compare(None, 80)


def test_answers_are_the_same_on_the_default_model():
    model = os.environ.get("PENSTOCK_TEST_MODEL")
    if not model:
        harness.skip("PENSTOCK_TEST_MODEL is not set")
    compare(model, 64)


if __name__ == "__main__":
    harness.main(globals())
