"""What models write, read by the official openai package through nginx: reasoning, tool calls, stop strings, finish reasons,
streamed and not, whatever the tokens; the model is a script.  Tests are named after reports of what went wrong elsewhere."""
import json
import os
import subprocess
import tempfile

import harness
from harness import check, equal

try:
    import httpx
    import openai
except ImportError:
    openai = None

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ tools }}<|im_start|>assistant\n"
GLM = TURNS + "{# <arg_key> #}"
GLM_THINKS = GLM + "<think>"
GLM_CLOSED = GLM + "<think></think>"
HERMES = TURNS + "{# <tool_call> #}"
MISTRAL = TURNS + "{# [TOOL_CALLS] #}"
LLAMA = TURNS + "{# <|python_tag|> #}"
GLM4 = TURNS + "{# <|observation|> #}"


def model(template):
    """The tests' model with another chat template of the same length, which is filled up with blanks in a comment."""
    with open(harness.TINY_MODEL, "rb") as f:
        data = f.read()
    begin = data.index(b"{% for message in messages %}")
    end = data.index(b"{% endif %}", data.index(b"add_generation_prompt")) + len(b"{% endif %}")
    room = end - begin - len(template.encode()) - 4
    check(room >= 0, "the template is too long")
    handle, path = tempfile.mkstemp(suffix=".gguf", prefix="penstock-test-")
    with os.fdopen(handle, "wb") as f:
        f.write(data[:begin] + b"{#" + b" " * room + b"#}" + template.encode() + data[end:])
    return path


class Said:
    """An answer as a client has it: whole, or put together from chunks, with the shape of every chunk checked."""

    def __init__(self, stack, n=1, **options):
        context = harness.ssl.create_default_context(cafile=stack.nginx.certificate)
        self.client = openai.OpenAI(base_url=stack.nginx.url + "/v1", api_key=stack.key, max_retries=0, timeout=harness.DEADLINE,
                                    http_client=httpx.Client(verify=context, trust_env=False))
        self.content, self.reasoning, self.calls, self.finish = [""] * n, [""] * n, [[] for _ in range(n)], [None] * n
        self.usage, self.deltas = None, []
        values = {"model": stack.model_name(), "messages": HELLO, "n": n}
        values.update(options)
        if values.get("stream"):
            self.read_stream(self.client.chat.completions.create(stream_options={"include_usage": True}, **values))
        else:
            self.read_whole(self.client.chat.completions.create(**values))

    def read_whole(self, answer):
        self.usage = answer.usage
        for choice in answer.choices:
            at, message = choice.index, choice.message
            extra = message.model_extra or {}
            equal(extra.get("reasoning"), extra.get("reasoning_content"))
            self.content[at], self.reasoning[at] = message.content or "", extra.get("reasoning") or ""
            check(message.content is not None or message.tool_calls, "content is null without calls")
            self.calls[at] = [(c.id, c.type, c.function.name, c.function.arguments) for c in message.tool_calls or []]
            self.finish[at] = choice.finish_reason

    def read_stream(self, stream):
        for chunk in stream:
            if not chunk.choices:
                check(self.usage is None and all(self.finish), "usage comes last")
                self.usage = chunk.usage
                continue
            choice = chunk.choices[0]
            at, delta = choice.index, choice.delta
            check(self.finish[at] is None, "a chunk behind the finish_reason")
            extra = delta.model_extra or {}
            equal(extra.get("reasoning"), extra.get("reasoning_content"))
            self.content[at] += delta.content or ""
            self.reasoning[at] += extra.get("reasoning") or ""
            for call in delta.tool_calls or []:
                if call.id:
                    equal(call.index, len(self.calls[at]))
                    self.calls[at].append((call.id, call.type, call.function.name, call.function.arguments))
                else:
                    equal(call.index, len(self.calls[at]) - 1)
                    id, kind, name, arguments = self.calls[at][-1]
                    self.calls[at][-1] = (id, kind, name, arguments + call.function.arguments)
            self.deltas.append(delta)
            self.finish[at] = choice.finish_reason

    def functions(self, at=0):
        return [(name, json.loads(arguments)) for _, _, name, arguments in self.calls[at]]


def letters(text, first=""):
    """A script that says TEXT byte by byte (the vocabulary has all bytes), behind FIRST in the tokenizer's own tokens."""
    lines = "".join(json.dumps(c) + "\n" for c in [first, *text])
    done = subprocess.run([harness.program("penstock"), "tokenize", "--model", harness.TINY_MODEL], input=lines, capture_output=True,
                          text=True, check=True)
    ids = [str(i) for line in done.stdout.splitlines() for i in json.loads(line)["ids"]]
    return "script letters\npace 100\nids " + " ".join(ids) + "\n"


def both(template, script, conf=None, **options):
    """The same request, whole and streamed: must say the same.  The two."""
    if not openai:
        harness.skip("the openai package is not installed")
    path = model(template)
    try:
        with harness.Stack(script=script, model=path, nginx=True, conf=conf) as s:
            whole, stream = Said(s, **options), Said(s, stream=True, **options)
            for part in ("content", "reasoning", "finish"):
                equal(getattr(stream, part), getattr(whole, part), part)
            equal([[c[1:] for c in calls] for calls in stream.calls], [[c[1:] for c in calls] for calls in whole.calls], "calls")
            equal(stream.usage.completion_tokens, whole.usage.completion_tokens)
            equal(stream.usage.completion_tokens_details, whole.usage.completion_tokens_details)
            ids = [c[0] for calls in whole.calls + stream.calls for c in calls]
            equal(len(set(ids)), len(ids), "ids are unique")
            return whole, stream
    finally:
        os.unlink(path)


def test_r25_the_start_is_read_from_the_prompt():
    text = "I think.</think>\n\nYes."
    for script in (harness.script(text), letters(text)):
        whole, _ = both(GLM_THINKS, script)
        equal((whole.reasoning, whole.content, whole.finish), (["I think."], ["Yes."], ["stop"]))
        check(whole.usage.completion_tokens_details.reasoning_tokens >= 2)
    whole, _ = both(GLM_CLOSED, harness.script("\nYes, I think."))
    equal((whole.reasoning, whole.content), ([""], ["Yes, I think."]))


def test_the_model_opens_its_thought():
    whole, stream = both(HERMES, harness.script("<think>\nHm.\n</think>\n\nYes."), n=2)
    equal((whole.reasoning, whole.content), (["Hm."] * 2, ["Yes."] * 2))
    check(len([d for d in stream.deltas if (d.model_extra or {}).get("reasoning")]) >= 2, "the thought is streamed")


def test_a_thought_that_is_not_closed():
    whole, _ = both(GLM_THINKS, harness.script("I think and think", repeat=0), max_tokens=20)
    equal((whole.content, whole.finish), ([""], ["length"]))
    check(whole.reasoning[0].startswith("I think and thinkI think"))


def test_include_reasoning():
    whole, _ = both(GLM_THINKS, harness.script("Hm</think>Yes"), extra_body={"include_reasoning": False})
    equal((whole.reasoning, whole.content), ([""], ["Yes"]))
    check(whole.usage.completion_tokens_details.reasoning_tokens > 0)


def test_thinking_token_budget():
    text = "one two three four five six seven"
    whole, _ = both(GLM_THINKS, letters(text), extra_body={"thinking_token_budget": 7})
    equal((whole.reasoning, whole.content), (["one two"], ["three four five six seven"]))
    equal(whole.usage.completion_tokens_details.reasoning_tokens, 7)
    whole, _ = both(HERMES, letters(text, first="<think>"), extra_body={"thinking_token_budget": 7})
    equal(whole.reasoning, ["one two"])
    whole, _ = both(GLM_THINKS, letters(text), extra_body={"thinking_token_budget": 0})
    equal(whole.reasoning, [""])
    whole, _ = both(GLM_THINKS, letters("ab</think>cd"), extra_body={"thinking_token_budget": 100})
    equal((whole.reasoning, whole.content), (["ab"], ["cd"]))


def test_r13_stop_strings_and_reasoning():
    whole, _ = both(GLM_THINKS, harness.script("a b,c d</think>x b,c y"), stop=["b,c"])
    equal((whole.reasoning, whole.content, whole.finish), (["a b,c d"], ["x "], ["stop"]))


def test_r10_r11_stop_strings():
    text = "alpha beta gamma delta"
    for script in (harness.script(text), letters(text)):
        for stop, wanted in ((["beta gamma"], "alpha "), (["ta g"], "alpha be"), (["a", "lpha"], ""), (["zz", "delta"], "alpha beta gamma "),
                             (["nothing"], text)):
            whole, _ = both(HERMES, script, stop=stop)
            equal(whole.content, [wanted], str(stop))
    whole, _ = both(HERMES, letters(text), stop=["ta g"], extra_body={"include_stop_str_in_output": True})
    equal((whole.content, whole.usage.completion_tokens), (["alpha beta g"], len("alpha beta g")))
    whole, _ = both(HERMES, letters(text), stop=["ta g"])
    equal(whole.usage.completion_tokens, len("alpha be"))


def test_r14_an_empty_stop_string_is_refused():
    if not openai:
        harness.skip("the openai package is not installed")
    with harness.Stack(script=harness.script("Hello"), nginx=True) as s:
        for stop in ("", ["x", ""], ["x"] * 17, ["y" * 257]):
            try:
                Said(s, stop=stop)
            except openai.BadRequestError as error:
                equal(error.param, "stop")
                continue
            raise AssertionError(f"{stop!r} was taken")


CALL = ("<tool_call>get_weather<arg_key>city</arg_key><arg_value>C:\\w\\a\\a\\b.js</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call>")
CALLED = ("get_weather", {"city": "C:\\w\\a\\a\\b.js", "days": 3})


def test_r16_r19_r23_calls_of_glm():
    text = "I think.</think>I look.\n" + CALL + "\n<tool_call>now</tool_call>"
    for script in (harness.script(text), letters(text)):
        whole, stream = both(GLM_THINKS, script, tools=TOOLS, n=2)
        equal((whole.reasoning, whole.content, whole.finish), (["I think."] * 2, ["I look."] * 2, ["tool_calls"] * 2))
        for at in (0, 1):
            equal(whole.functions(at), [CALLED, ("now", {})])
            equal([c[1] for c in whole.calls[at]], ["function"] * 2)
    check(len([d for d in stream.deltas if d.tool_calls]) > 10, "arguments are streamed")


def test_r17_types_come_from_the_schema():
    whole, _ = both(GLM, harness.script("<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>123</arg_value>\n<arg_key>days</arg_key>\n"
                                        "<arg_value>1.50</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[\"a\", 1]</arg_value>\n</tool_call>"),
                    tools=TOOLS)
    equal(whole.calls[0][0][2:], ("get_weather", '{"city": "123", "days": 1.50, "tags": ["a", 1]}'))
    check(whole.finish == ["tool_calls"] and whole.content == [""])


def test_r22_a_malformed_call_is_content():
    text = "<tool_call>fx</arg_key><arg_value>1</arg_value></tool_call>"
    whole, _ = both(GLM, letters(text), tools=TOOLS)
    equal((whole.content, whole.calls, whole.finish), ([text], [[]], ["stop"]))


def test_r26_tools_or_not_the_tags_are_never_seen():
    for options in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
        whole, _ = both(GLM_THINKS, harness.script("Hm</think>Yes"), **options)
        equal((whole.reasoning, whole.content), (["Hm"], ["Yes"]))
    whole, _ = both(GLM, harness.script(CALL), tools=TOOLS, tool_choice="none")
    equal((whole.content, whole.calls), ([CALL], [[]]))


def test_one_call_at_a_time():
    whole, _ = both(GLM, letters(CALL + CALL), tools=TOOLS, parallel_tool_calls=False)
    equal((whole.functions(), whole.finish), ([CALLED], ["tool_calls"]))
    equal(whole.usage.completion_tokens, len(CALL))


def test_the_content_before_the_only_call_ends_in_no_blank():
    """An answer that its first call ends says the same whole as streamed, where white space before a call is not sent."""
    for template, text in ((GLM4, "text\nnow\n{}"), (GLM, "text \n" + CALL)):
        whole, _ = both(template, letters(text), tools=TOOLS, parallel_tool_calls=False)
        equal((whole.content, len(whole.calls[0]), whole.finish), (["text"], 1, ["tool_calls"]), text)


def test_a_call_that_is_cut():
    whole, _ = both(GLM, letters(CALL), tools=TOOLS, max_tokens=70)
    equal((whole.finish, whole.content), (["length"], [""]))
    equal(whole.calls[0][0][2], "get_weather")


def test_other_formats():
    arguments = '{"city": "Ulm", "days": 2}'
    wanted = [("get_weather", {"city": "Ulm", "days": 2})]
    for template, text in ((HERMES, '<tool_call>\n{"name": "get_weather", "arguments": ' + arguments + "}\n</tool_call>"),
                           (LLAMA, '{"name": "get_weather", "parameters": ' + arguments + "}"),
                           (MISTRAL, '[TOOL_CALLS][{"name": "get_weather", "arguments": ' + arguments + "}]"),
                           (GLM4, "get_weather\n" + arguments)):
        whole, stream = both(template, harness.script(text), tools=TOOLS)
        equal((whole.functions(), whole.content, whole.finish), (wanted, [""], ["tool_calls"]), text)
        if template == MISTRAL:
            check(len(whole.calls[0][0][0]) == 9 and whole.calls[0][0][0].isalnum(), "Mistral's templates want such ids")


def test_the_parsers_can_be_named():
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    whole, _ = both(MISTRAL, harness.script(text), tools=TOOLS, conf={"front.tool_parser": "hermes"})
    equal(whole.functions(), [("now", {})])
    whole, _ = both(HERMES, harness.script("<think>Hm</think>" + text), tools=TOOLS,
                    conf={"front.tool_parser": "none", "front.reasoning_parser": "none"})
    equal((whole.content, whole.reasoning, whole.calls), (["<think>Hm</think>" + text], [""], [[]]))


if __name__ == "__main__":
    harness.main(globals())
