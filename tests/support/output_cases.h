/* output_cases.h: what models write, good and bad, and what it means: one table for the unit tests, the property test and the
 * benchmark.  Texts are whole; every test cuts them as it likes.
 *
 * CALLS is what the answer's calls are, one a line: name, blank, arguments as they are delivered. */
#ifndef PENSTOCK_TESTS_OUTPUT_CASES_H
#define PENSTOCK_TESTS_OUTPUT_CASES_H

#include "api/output.h"

#define C_GLM4 OUTPUT_CALLS_GLM4
#define C_GLM45 OUTPUT_CALLS_GLM45
#define C_HERMES OUTPUT_CALLS_HERMES
#define C_LLAMA3 OUTPUT_CALLS_LLAMA3
#define C_MISTRAL OUTPUT_CALLS_MISTRAL
#define C_DEEPSEEK OUTPUT_CALLS_DEEPSEEK
#define C_MAGISTRAL OUTPUT_THOUGHT_MISTRAL
#define C_THINK OUTPUT_THOUGHT_THINK
#define C_NONE  OUTPUT_THOUGHT_NONE
#define C_OPEN  CHAT_REASONING_OPEN
#define C_CLOSED CHAT_REASONING_CLOSED
#define C_START CHAT_REASONING_NONE
#define DS(words) "<\xef\xbd\x9ctool\xe2\x96\x81" words "\xef\xbd\x9c>"
#define DS_BEGIN DS("calls\xe2\x96\x81" "begin")
#define DS_END   DS("calls\xe2\x96\x81" "end")
#define DS_CALL  DS("call\xe2\x96\x81" "begin")
#define DS_DONE  DS("call\xe2\x96\x81" "end")
#define DS_SEP   DS("sep")

struct output_case {
	const char                *name;
	enum output_call_format    calls;
	enum output_thought_format thought;
	enum chat_reasoning        start;
	bool                       cut; /* the answer ended by its length */
	const char                *text;
	const char                *want_thought, *want_content, *want_calls;
};

/* Of every case. */
#define OUTPUT_CASE_TOOLS \
	"[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{" \
	"\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"metric\":{\"type\":\"boolean\"}," \
	"\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"options\":{\"type\":\"object\"}," \
	"\"note\":{\"type\":[\"string\",\"null\"]},\"limit\":{\"anyOf\":[{\"type\":\"number\"},{\"type\":\"null\"}]}," \
	"\"unit\":{\"enum\":[\"C\",\"F\"]},\"place\":{\"$ref\":\"#/$defs/place\"}}," \
	"\"$defs\":{\"place\":{\"type\":\"string\"}}}}}," \
	"{\"type\":\"function\",\"function\":{\"name\":\"get_weather_now\"}}," \
	"{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}," \
	"{\"type\":\"function\",\"function\":{\"name\":\"fx\",\"parameters\":{\"type\":\"object\",\"properties\":{" \
	"\"a\":{},\"b\":{\"type\":\"integer\"},\"path\":{\"type\":\"string\"}}}}}]"

static const struct output_case output_cases[] = {

	/* ---- text and reasoning ---- */
	{ "plain text", C_HERMES, C_NONE, C_START, false,
	    "Hello <b>world</b>, 1 < 2 and [x].",
	    "",
	    "Hello <b>world</b>, 1 < 2 and [x].",
	    "" },
	{ "beginnings of markers are text", C_HERMES, C_THINK, C_START, false,
	    "<thin <tool_cal <<tool_call",
	    "",
	    "<thin <tool_cal <<tool_call",
	    "" },
	{ "R25: the prompt opened the thought", C_GLM45, C_THINK, C_OPEN, false,
	    "\nI think so.\n</think>\n\nYes.",
	    "I think so.",
	    "Yes.",
	    "" },
	{ "R25: the prompt closed it", C_GLM45, C_THINK, C_CLOSED, false,
	    "\nYes </think",
	    "",
	    "Yes </think",
	    "" },
	{ "the model opens its thought", C_HERMES, C_THINK, C_START, false,
	    "<think>\nHm.\n</think>\n\nYes.",
	    "Hm.",
	    "Yes.",
	    "" },
	{ "the model opens it behind a newline", C_HERMES, C_THINK, C_START, false,
	    "\n<think>Hm</think>Yes",
	    "Hm",
	    "Yes",
	    "" },
	{ "opened twice", C_HERMES, C_THINK, C_OPEN, false,
	    "<think>Hm</think>Yes",
	    "Hm",
	    "Yes",
	    "" },
	{ "an empty thought", C_HERMES, C_THINK, C_START, false,
	    "<think>\n\n</think>\n\nYes",
	    "",
	    "Yes",
	    "" },
	{ "a tag in the middle of text is text", C_HERMES, C_THINK, C_START, false,
	    "The tag <think> opens, </think> closes.",
	    "",
	    "The tag <think> opens, </think> closes.",
	    "" },
	{ "a thought that is not closed", C_GLM45, C_THINK, C_OPEN, true,
	    "So, first I </thin",
	    "So, first I </thin",
	    "",
	    "" },
	{ "a thought with markup", C_GLM45, C_THINK, C_OPEN, false,
	    "a<b, <tool_call>x</tool_call> </thinking></think>c",
	    "a<b, <tool_call>x</tool_call> </thinking>",
	    "c",
	    "" },
	{ "without a reasoning parser tags are text", C_HERMES, C_NONE, C_START, false,
	    "<think>a</think>b",
	    "",
	    "<think>a</think>b",
	    "" },
	{ "Magistral", C_MISTRAL, C_MAGISTRAL, C_START, false,
	    "[THINK]a[b][/THINK]c",
	    "a[b]",
	    "c",
	    "" },
	/* ---- GLM-4 ---- */
	{ "GLM-4: a call", C_GLM4, C_NONE, C_START, false,
	    "get_weather\n{\"city\": \"\xe4\xb8\x8a\xe6\xb5\xb7\", \"days\": 2}",
	    "",
	    "",
	    "get_weather {\"city\": \"\xe4\xb8\x8a\xe6\xb5\xb7\", \"days\": 2}\n" },
	{ "GLM-4: a call behind a newline", C_GLM4, C_NONE, C_START, false,
	    "\nget_weather_now\n{}",
	    "",
	    "",
	    "get_weather_now {}\n" },
	{ "GLM-4: text, then two calls", C_GLM4, C_NONE, C_START, false,
	    "Let me see.\nget_weather\n{\"city\": \"Ulm\"}\nget_weather_now\n{\"a\": [1, {\"b\": null}]}",
	    "",
	    "Let me see.",
	    "get_weather {\"city\": \"Ulm\"}\nget_weather_now {\"a\": [1, {\"b\": null}]}\n" },
	{ "GLM-4: a name in text is no call", C_GLM4, C_NONE, C_START, false,
	    "now\nget_weather is a function\nget_weather",
	    "",
	    "now\nget_weather is a function\nget_weather",
	    "" },
	{ "GLM-4: JSON that is none", C_GLM4, C_NONE, C_START, false,
	    "get_weather\n{city: 1}\nEnd",
	    "",
	    "get_weather\n{city: 1}\nEnd",
	    "" },
	{ "GLM-4: Z1 thinks first", C_GLM4, C_THINK, C_OPEN, false,
	    "now\n{}\n</think>\nnow\n{}",
	    "now\n{}",
	    "",
	    "now {}\n" },
	/* ---- GLM-4.5 and later ---- */
	{ "GLM-4.5: with newlines", C_GLM45, C_THINK, C_START, false,
	    "\n<think>Ulm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_val"
	    "ue>\n<arg_key>days</arg_key>\n" "<arg_value>3</arg_value>\n</tool_call>",
	    "Ulm.",
	    "I look.",
	    "get_weather {\"city\": \"Ulm\", \"days\": 3}\n" },
	{ "GLM-4.7: without newlines", C_GLM45, C_THINK, C_OPEN, false,
	    "Hm</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Ulm</arg_value><arg_key>metric</arg_ke"
	    "y><arg_value>true" "</arg_value></tool_call>",
	    "Hm",
	    "",
	    "get_weather {\"city\": \"Ulm\", \"metric\": true}\n" },
	{ "R16: no arguments", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>now</tool_call>",
	    "",
	    "",
	    "now {}\n" },
	{ "R16: no arguments, with newlines", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>\nnow\n</tool_call>\n",
	    "",
	    "",
	    "now {}\n" },
	{ "R17: types", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>a</arg_key><arg_value>123</arg_value><arg_key>b</arg_key><arg_value>123abc</arg_va"
	    "lue><arg_key>c</arg_key>" "<arg_value>{\"k\":1}</arg_value></tool_call>",
	    "",
	    "",
	    "fx {\"a\": 123, \"b\": \"123abc\", \"c\": {\"k\":1}}\n" },
	{ "R17: a string stays a string", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>123</arg_value><arg_key>unit</arg_key><arg_value"
	    ">null</arg_value>" "<arg_key>place</arg_key><arg_value>{\"x\": 1}</arg_value></tool_call>",
	    "",
	    "",
	    "get_weather {\"city\": \"123\", \"unit\": \"null\", \"place\": \"{\\\"x\\\": 1}\"}\n" },
	{ "numbers as written, no NaN, no hex", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>b</arg_key><arg_value>1.50e+03</arg_value><arg_key>c</arg_key><arg_value>NaN</arg_"
	    "value><arg_key>d</arg_key>"
	    "<arg_value>0x10</arg_value><arg_key>e</arg_key><arg_value>-0</arg_value><arg_key>f</arg_key><arg_value>1"
	    "2345678901234567890123" "</arg_value><arg_key>g</arg_key><arg_value>01</arg_value></tool_call>",
	    "",
	    "",
	    "fx {\"b\": 1.50e+03, \"c\": \"NaN\", \"d\": \"0x10\", \"e\": -0, \"f\": 12345678901234567890123, \"g\": "
	    "\"01\"}\n" },
	{ "values of more than one type", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>get_weather<arg_key>note</arg_key><arg_value>null</arg_value><arg_key>limit</arg_key><arg_val"
	    "ue>None</arg_value>"
	    "<arg_key>metric</arg_key><arg_value>False</arg_value><arg_key>tags</arg_key><arg_value>[\"a\", \"b\"]</a"
	    "rg_value>" "<arg_key>options</arg_key><arg_value> {\"a\": [1]} </arg_value></tool_call>",
	    "",
	    "",
	    "get_weather {\"note\": null, \"limit\": null, \"metric\": false, \"tags\": [\"a\", \"b\"], \"options\": "
	    "{\"a\": [1]}}\n" },
	{ "R19: the value, no piece of it twice", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>path</arg_key><arg_value>C:\\w\\a\\a\\b.js</arg_value></tool_call>",
	    "",
	    "",
	    "fx {\"path\": \"C:\\\\w\\\\a\\\\a\\\\b.js\"}\n" },
	{ "markup in a value", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>path</arg_key><arg_value>if (a < b && c </arg_) {\n\t\"x\" }\x01</arg_value></tool"
	    "_call>",
	    "",
	    "",
	    "fx {\"path\": \"if (a < b && c </arg_) {\\n\\t\\\"x\\\" }\\u0001\"}\n" },
	{ "empty values", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>path</arg_key><arg_value></arg_value><arg_key>b</arg_key><arg_value></arg_value></"
	    "tool_call>",
	    "",
	    "",
	    "fx {\"path\": \"\", \"b\": \"\"}\n" },
	{ "several calls, text between", C_GLM45, C_NONE, C_START, false,
	    "One\n<tool_call>now</tool_call>\ntwo\n<tool_call>fx<arg_key>b</arg_key><arg_value>2</arg_value></tool_ca"
	    "ll><tool_call>now</tool_call>" "\n",
	    "",
	    "One\n\ntwo",
	    "now {}\nfx {\"b\": 2}\nnow {}\n" },
	{ "R22: no <arg_key>", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx</arg_key><arg_value>1</arg_value></tool_call>",
	    "",
	    "<tool_call>fx</arg_key><arg_value>1</arg_value></tool_call>",
	    "" },
	{ "no <arg_value>", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>b</arg_key>7</arg_value><arg_key>path</arg_key>\nx</arg_value></tool_call>",
	    "",
	    "",
	    "fx {\"b\": 7, \"path\": \"x\"}\n" },
	{ "no </arg_key>", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>b<arg_value>7</arg_value></tool_call>",
	    "",
	    "",
	    "fx {\"b\": 7}\n" },
	{ "no </arg_value>", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>path</arg_key><arg_value>x<arg_key>b</arg_key><arg_value>7</tool_call>",
	    "",
	    "",
	    "fx {\"path\": \"x\", \"b\": 7}\n" },
	{ "no </tool_call>, the answer ends", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>b</arg_key><arg_value>7</arg_value>",
	    "",
	    "",
	    "fx {\"b\": 7}\n" },
	{ "no </tool_call>, another call", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>b</arg_key><arg_value>7</arg_value><tool_call>now</tool_call>",
	    "",
	    "",
	    "fx {\"b\": 7}\nnow {}\n" },
	{ "the answer ends in a string", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>path</arg_key><arg_value>a\nb",
	    "",
	    "",
	    "fx {\"path\": \"a\\nb\"}\n" },
	{ "the answer is cut in a string", C_GLM45, C_NONE, C_START, true,
	    "<tool_call>fx<arg_key>path</arg_key><arg_value>a\nb",
	    "",
	    "",
	    "fx {\"path\": \"a\\nb\n" },
	{ "the answer is cut before it is a call", C_GLM45, C_NONE, C_START, true,
	    "Hm <tool_call>fx<arg_key>pa",
	    "",
	    "Hm <tool_call>fx<arg_key>pa",
	    "" },
	{ "text behind a value", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>fx<arg_key>b</arg_key><arg_value>7</arg_value> oops</tool_call> end",
	    "",
	    "oops</tool_call> end",
	    "fx {\"b\": 7}\n" },
	{ "an empty call", C_GLM45, C_NONE, C_START, false,
	    "a <tool_call></tool_call> b",
	    "",
	    "a <tool_call></tool_call> b",
	    "" },
	{ "a call of words", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>not a call</tool_call>",
	    "",
	    "<tool_call>not a call</tool_call>",
	    "" },
	{ "a call in a call", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>x y<tool_call>now</tool_call>",
	    "",
	    "<tool_call>x y",
	    "now {}\n" },
	{ "JSON where tags are usual", C_GLM45, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"fx\", \"arguments\": {\"b\": 1}}</tool_call><tool_call>fx\n{\"b\": 2}\n</tool_ca" "ll>",
	    "",
	    "",
	    "fx {\"b\": 1}\nfx {\"b\": 2}\n" },
	/* ---- Hermes, Qwen ---- */
	{ "Hermes", C_HERMES, C_THINK, C_START, false,
	    "<think>\nHm\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\", \"d"
	    "ays\": 3}}\n</tool_call>",
	    "Hm",
	    "",
	    "get_weather {\"city\": \"Ulm\", \"days\": 3}\n" },
	{ "Hermes: two calls, text around", C_HERMES, C_NONE, C_START, false,
	    "I ask.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>{\"name\":\"fx\","
	    "\"arguments\":{\"a\":[1,2.50," "\"</tool_call>\"],\"b\":-1e5}}</tool_call>",
	    "",
	    "I ask.",
	    "now {}\nfx {\"a\":[1,2.50,\"</tool_call>\"],\"b\":-1e5}\n" },
	{ "Hermes: arguments first, other members", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"id\": 12, \"arguments\": {\"b\": 1}, \"type\": [\"x\", {}], \"name\": \"fx\"}</tool_call>",
	    "",
	    "",
	    "fx {\"b\": 1}\n" },
	{ "Hermes: no arguments", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call" ">",
	    "",
	    "",
	    "now {}\nnow {}\n" },
	{ "Hermes: arguments in a string", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"fx\", \"arguments\": \"{\\\"path\\\": \\\"\\u00e9\\\\n\\\", \\\"b\\\": 1}\"}</to"
	    "ol_call>",
	    "",
	    "",
	    "fx {\"path\": \"\xc3\xa9\\n\", \"b\": 1}\n" },
	{ "Hermes: a newline in a string", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"fx\", \"arguments\": {\"path\": \"a\nb\"}}</tool_call>",
	    "",
	    "",
	    "fx {\"path\": \"a\\nb\"}\n" },
	{ "Hermes: no JSON", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>not json</tool_call> x",
	    "",
	    "<tool_call>not json</tool_call> x",
	    "" },
	{ "Hermes: single quotes", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{'name': 'fx'}</tool_call>",
	    "",
	    "<tool_call>{'name': 'fx'}</tool_call>",
	    "" },
	{ "Hermes: a value that is none", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"fx\", \"arguments\": {\"a\": }}</tool_call>",
	    "",
	    "<tool_call>{\"name\": \"fx\", \"arguments\": {\"a\": }}</tool_call>",
	    "" },
	{ "Hermes: no name", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>",
	    "",
	    "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>",
	    "" },
	{ "Hermes: breaks off behind a value", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"fx\", \"arguments\": {\"a\": \"x\", \"b\": nothing}}</tool_call>",
	    "",
	    ", \"b\": nothing}}</tool_call>",
	    "fx {\"a\": \"x\"}\n" },
	{ "Hermes: the answer ends inside", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"fx\", \"arguments\": {\"a\": {\"x\": [1, 2",
	    "",
	    "",
	    "fx {\"a\": {\"x\": [1, 2]}}\n" },
	{ "Hermes: the answer is cut inside", C_HERMES, C_NONE, C_START, true,
	    "<tool_call>{\"name\": \"fx\", \"arguments\": {\"path\": \"abc",
	    "",
	    "",
	    "fx {\"path\": \"abc\n" },
	{ "Hermes: no end tag, two objects", C_HERMES, C_NONE, C_START, false,
	    "<tool_call>{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"fx\", \"arguments\": {\"b\": 1}}",
	    "",
	    "",
	    "now {}\nfx {\"b\": 1}\n" },
	/* ---- Llama 3 ---- */
	{ "Llama", C_LLAMA3, C_NONE, C_START, false,
	    "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Ulm\"}}",
	    "",
	    "",
	    "get_weather {\"city\": \"Ulm\"}\n" },
	{ "Llama: behind the tag, two of them", C_LLAMA3, C_NONE, C_START, false,
	    "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"type\": \"function\", \"name\": \"fx\", \"para"
	    "meters\": {\"b\": 1}}",
	    "",
	    "",
	    "now {}\nfx {\"b\": 1}\n" },
	{ "Llama: an object that is no call", C_LLAMA3, C_NONE, C_START, false,
	    "{\"name\": \"Bob\", \"age\": 3}",
	    "",
	    "{\"name\": \"Bob\", \"age\": 3}",
	    "" },
	{ "Llama: an object in text", C_LLAMA3, C_NONE, C_START, false,
	    "Use {\"name\": \"now\", \"parameters\": {}}",
	    "",
	    "Use {\"name\": \"now\", \"parameters\": {}}",
	    "" },
	{ "Llama: code behind the tag", C_LLAMA3, C_NONE, C_START, false,
	    "<|python_tag|>print(1)",
	    "",
	    "<|python_tag|>print(1)",
	    "" },
	/* ---- Mistral ---- */
	{ "Mistral: a list", C_MISTRAL, C_NONE, C_START, false,
	    "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\"}, \"id\": \"abc123def\"}, {\""
	    "name\": \"now\", \"arguments\": {}}]",
	    "",
	    "",
	    "get_weather {\"city\": \"Ulm\"}\nnow {}\n" },
	{ "Mistral: names and arguments", C_MISTRAL, C_NONE, C_START, false,
	    "Hm [1][TOOL_CALLS]get_weather[ARGS]{\"city\": \"Ulm\"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}[TOOL_CAL"
	    "LS]fx{\"b\": 1}",
	    "",
	    "Hm [1]",
	    "get_weather {\"city\": \"Ulm\"}\nnow {}\nfx {\"b\": 1}\n" },
	{ "Mistral: no call", C_MISTRAL, C_NONE, C_START, false,
	    "[TOOL_CALLS] [1, 2]",
	    "",
	    "[TOOL_CALLS] [1, 2]",
	    "" },
	/* ---- DeepSeek ---- */
	{ "DeepSeek V3", C_DEEPSEEK, C_THINK, C_START, false,
	    "I ask." DS_BEGIN DS_CALL "function" DS_SEP "get_weather\n```json\n{\"city\": \"Ulm\"}\n```" DS_DONE "\n"
	    DS_CALL "function" DS_SEP "now\n```json\n{}\n```" DS_DONE DS_END,
	    "",
	    "I ask.",
	    "get_weather {\"city\": \"Ulm\"}\nnow {}\n" },
	{ "DeepSeek V3.1", C_DEEPSEEK, C_THINK, C_OPEN, false,
	    "Hm</think>" DS_BEGIN DS_CALL "get_weather" DS_SEP "{\"city\": \"Ulm\"}" DS_DONE DS_CALL "now" DS_SEP "{}"
	    DS_DONE DS_END,
	    "Hm",
	    "",
	    "get_weather {\"city\": \"Ulm\"}\nnow {}\n" },
	{ "DeepSeek: no JSON", C_DEEPSEEK, C_NONE, C_START, false,
	    DS_BEGIN DS_CALL "function" DS_SEP "now\n```json\nnone\n```" DS_DONE DS_END,
	    "",
	    DS_BEGIN DS_CALL "function" DS_SEP "now\n```json\nnone\n```" DS_DONE DS_END,
	    "" },
};
enum { OUTPUT_CASES = sizeof output_cases / sizeof output_cases[0] };

#endif
