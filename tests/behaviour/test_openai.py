"""The official openai package through nginx, with verification of the generated certificate.

With PENSTOCK_TEST_MODEL set to the default model's file, also: greedy answers are the same alone and among eight."""
import concurrent.futures
import json
import os
import tempfile

import harness
from harness import check, equal

try:
    import httpx
    import openai
except ImportError:
    openai = None

TEXT = "The water runs down to the wheel: \u4f60\u597d, caf\u00e9, \U0001f600 done."
HELLO = [{"role": "user", "content": "hello"}]


def client(stack, **options):
    if not openai:
        harness.skip("the openai package is not installed")
    context = harness.ssl.create_default_context(cafile=stack.nginx.certificate)
    values = {"base_url": stack.nginx.url + "/v1", "api_key": stack.key, "max_retries": 0, "timeout": harness.DEADLINE,
              "http_client": httpx.Client(verify=context, trust_env=False)}
    values.update(options)
    return openai.OpenAI(**values)


def stack(text=TEXT, conf=None, **options):
    if not openai:
        harness.skip("the openai package is not installed")
    return harness.Stack(script=harness.script(text, **options), nginx=True, conf=conf)


def raises(kind, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def test_whole():
    with stack() as s:
        answer = client(s).chat.completions.create(model=s.model_name(), messages=HELLO, temperature=0)
        equal(answer.choices[0].message.content, TEXT)
        equal(answer.choices[0].message.role, "assistant")
        equal(answer.choices[0].finish_reason, "stop")
        equal(answer.usage.completion_tokens, len(s.ids(TEXT)))
        equal(answer.usage.total_tokens, answer.usage.completion_tokens + answer.usage.prompt_tokens)
        answer = client(s).chat.completions.create(model=s.model_name(), messages=HELLO, max_tokens=3)
        equal((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 3))
        answer = client(s).chat.completions.create(model=s.model_name(), messages=HELLO, stop=["wheel", "nothing"])
        equal((answer.choices[0].message.content, answer.choices[0].finish_reason), (TEXT.split("wheel")[0], "stop"))


def test_streamed():
    with stack() as s:
        chunks = list(client(s).chat.completions.create(model=s.model_name(), messages=HELLO, stream=True,
                                                        stream_options={"include_usage": True}))
        equal("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), TEXT)
        equal([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["stop"])
        equal([c.usage.completion_tokens for c in chunks if c.usage], [len(s.ids(TEXT))])
        equal(len({c.id for c in chunks}), 1)
        check(len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 5, "it came in pieces")
        with client(s).chat.completions.create(model=s.model_name(), messages=HELLO, stream=True) as stream:
            for _ in stream:
                break  # leaves in the middle
        harness.wait_until(lambda: s.metrics()["penstock_slots_in_use"] == 0, "the slot is free")


def test_models():
    with stack() as s:
        equal([m.id for m in client(s).models.list()], [s.model_name()])
        equal(client(s).models.retrieve(s.model_name()).id, s.model_name())
        error = raises(openai.NotFoundError, client(s).models.retrieve, "other")
        equal(error.code, "model_not_found")


def test_errors():
    with stack() as s:
        create = client(s).chat.completions.create
        for options, kind, code, param in (
                ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
                ({"temperature": 9}, openai.BadRequestError, None, "temperature"),
                ({"messages": []}, openai.BadRequestError, None, "messages"),
                ({"n": 17}, openai.BadRequestError, None, "n"),
                ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, openai.BadRequestError, "invalid_value",
                 "tools[0].function.name"),
                ({"messages": [{"role": "user", "content": "water " * 4000}]}, openai.BadRequestError, "context_length_exceeded",
                 "messages")):
            for stream in (False, True):
                error = raises(kind, create, **{"model": s.model_name(), "messages": HELLO, "stream": stream, **options})
                equal(error.param, param, str(options))
                if code:
                    equal(error.code, code, str(options))
        raises(openai.AuthenticationError, client(s, api_key="sk-wrong").chat.completions.create, model=s.model_name(), messages=HELLO)
        equal(s.metrics()["penstock_requests_total"], 0, "nothing reached the batcher")


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
CALLED = [{"role": "user", "content": "weather?"},
          {"role": "assistant", "content": None, "tool_calls": [
              {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Ulm\"}"}}]},
          {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]


def prompt_of(s, template, body):
    """What `penstock render` says the server makes of a request."""
    done = s.tool("render", "--requests", "--template", template, input=json.dumps(body) + "\n")
    return json.loads(done.stdout)


def test_chat_requests():
    """Tools, tool messages, parts, reasoning_effort, continuation: taken as the package sends them, and they are in the prompt."""
    glm = "builtin:glm-5.2"
    with stack(conf={"model.chat_template": glm, "batcher.kv_tokens": 16384}) as s:
        create = client(s).chat.completions.create

        def tokens(messages, **options):
            answer = create(model=s.model_name(), messages=messages, max_tokens=1, **options)
            return answer.usage.prompt_tokens

        plain = tokens(HELLO)
        parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
        equal(tokens(parts), plain)
        check(tokens(HELLO, tools=[WEATHER]) > plain + 100, "the prompt shows tools")
        equal(tokens(HELLO, tools=[WEATHER], tool_choice="none"), plain)
        check(tokens(CALLED, tools=[WEATHER], parallel_tool_calls=False) > tokens(CALLED[:1], tools=[WEATHER]), "calls and results")
        text = prompt_of(s, glm, {"messages": CALLED})["text"]
        check("<arg_key>city</arg_key><arg_value>Ulm</arg_value>" in text and "<tool_response>sunny</tool_response>" in text, text)
        check(tokens(HELLO, reasoning_effort="none") < plain - 5, "no line for the effort")
        equal(tokens(HELLO, extra_body={"reasoning_effort": "xhigh"}), plain)
        equal(tokens(HELLO, extra_body={"chat_template_kwargs": {"enable_thinking": False}}), tokens(HELLO, reasoning_effort="none"))
        talk = HELLO + [{"role": "assistant", "content": "The water"}]
        more = tokens(talk, extra_body={"continue_final_message": True})
        check(plain < more < tokens(talk), more, "no new turn")
        equal(tokens(talk, extra_body={"continue_final_message": True, "add_generation_prompt": False}), more)
        with client(s).chat.completions.with_streaming_response.create(model=s.model_name(), messages=HELLO, max_tokens=1,
                                                                       extra_body={"documents": [{"text": "t"}]}) as raw:
            equal(raw.headers["x-penstock-ignored"], "documents")


def test_chat_requests_that_are_refused():
    function = WEATHER["function"]
    late = HELLO + [{"role": "assistant", "content": "a"}, {"role": "system", "content": "late"}, HELLO[0]]
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('The system comes first.') }}"
                   "{% endif %}{{ m.content }}{% endfor %}{{ tools }}")
        file.flush()
        with stack(conf={"model.chat_template": file.name}) as s:
            create = client(s).chat.completions.create
            for options, param, words in (
                    ({"messages": late}, "messages", "The system comes first."),
                    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                     "messages[0].content[0]", "image_url"),
                    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role", "function"),
                    ({"tools": [{"type": "custom"}]}, "tools[0].type", "custom"),
                    ({"tools": [{"type": "function", "function": dict(function, name="a b")}]}, "tools[0].function.name", "a b"),
                    ({"tools": [{"type": "function", "function": dict(function, parameters=[])}]}, "tools[0].function.parameters", "object"),
                    ({"tools": [WEATHER] * 129}, "tools", "at most 128"),
                    ({"tools": [WEATHER] * 2}, "tools[1].function.name", "two tools"),
                    ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice", "auto and none"),
                    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, "tool_choice", "auto"),
                    ({"functions": [function]}, "functions", "tools"),
                    ({"reasoning_effort": "much"}, "reasoning_effort", "xhigh"),
                    ({"extra_body": {"continue_final_message": True}}, "continue_final_message", "assistant"),
                    ({"messages": HELLO + [{"role": "assistant", "content": "a"}],
                      "extra_body": {"continue_final_message": True, "add_generation_prompt": True}}, "continue_final_message", "together"),
                    ({"extra_body": {"chat_template": "x"}}, "chat_template", "model file"),
                    ({"extra_body": {"chat_template_kwargs": {"tokenize": True}}}, "chat_template_kwargs.tokenize", "may not"),
                    ({"extra_body": {"documents": "x"}}, "documents", "array")):
                error = raises(openai.BadRequestError, create, **{"model": s.model_name(), "messages": HELLO, **options})
                equal((error.status_code, error.param), (400, param), str(options)[:200])
                check(words in error.message, error.message, options)
            equal(s.metrics()["penstock_requests_total"], 0, "nothing reached the batcher")


def test_the_certificate_is_verified():
    with stack() as s:
        plain = client(s, http_client=httpx.Client(trust_env=False))
        raises(openai.APIConnectionError, plain.models.list)


def test_overload_is_a_rate_limit_error():
    with stack(pace=20000, repeat=0, conf={"batcher.max_running": 1, "batcher.max_queued": 1}) as s:
        c = client(s)
        with c.chat.completions.create(model=s.model_name(), messages=HELLO, stream=True) as first:
            next(iter(first))
            with concurrent.futures.ThreadPoolExecutor() as pool:
                second = pool.submit(c.chat.completions.create, model=s.model_name(), messages=HELLO, max_tokens=2)
                harness.wait_until(lambda: s.metrics()["penstock_sequences_waiting"] == 1, "a waiting request")
                error = raises(openai.RateLimitError, c.chat.completions.create, model=s.model_name(), messages=HELLO)
                equal((error.status_code, error.code, error.response.headers["retry-after"]), (429, "overloaded", "1"))
                first.close()
                equal(second.result().usage.completion_tokens, 2)


def test_greedy_is_the_same_alone_and_among_eight():
    model = os.environ.get("PENSTOCK_TEST_MODEL")
    if not model:
        harness.skip("PENSTOCK_TEST_MODEL is not set")
    if not openai:
        harness.skip("the openai package is not installed")
    questions = ["What is a turbine?", "Write the numbers from 1 to 20.", "\u4f60\u597d\uff0c\u8bf7\u95ee\u4f60\u662f\u8c01\uff1f",
                 "def fib(n):", "Why is the sky blue?", "\U0001f600 \U0001f680 \U0001f30d: what are these?", "Tell me about rivers.",
                 "12345 * 6789 = ?"]
    with harness.Stack(model=model, nginx=True, conf={"batcher.threads": 0, "batcher.kv_tokens": 8192}) as s:
        c = client(s, timeout=600)

        def ask(question):
            stream = c.chat.completions.create(model=s.model_name(), messages=[{"role": "user", "content": question}], temperature=0,
                                               max_tokens=48, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        alone = [ask(question) for question in questions]
        check(all(alone), alone)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(ask, questions))
        equal(together, alone)
        print("\n".join(f"  {q!r}: {a[:60]!r}" for q, a in zip(questions, alone)))


if __name__ == "__main__":
    harness.main(globals())
