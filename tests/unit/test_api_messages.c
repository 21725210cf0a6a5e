/* Requests → prompts: every shape of message, tools, reasoning, the end of the prompt, what is refused and in which words, and
 * that nothing of a request is more than data.  Tests named rN are the bugs of that number in the log that this project keeps of
 * what went wrong in others. */
#include "api/json_text.h"
#include "api/messages.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A rendered request, or its error. */
struct answer {
	enum status        status;
	struct chat_prompt prompt;
	struct error       error;
	char               ignored[PARAMS_IGNORED_BYTES];
};

/* SOURCE is a template, or builtin:NAME. */
static struct chat_template *open_template(const char *source)
{
	char                  path[] = "/tmp/penstock-test-messages-XXXXXX";
	struct chat_template *chat = NULL;
	struct error          error = { .message = "" };
	enum status           status;
	bool                  builtin = strncmp(source, "builtin:", 8) == 0;

	if (!builtin) {
		int fd = mkstemp(path);

		ck_assert_int_eq(write(fd, source, strlen(source)), (ssize_t)strlen(source));
		close(fd);
	}
	status = chat_template_from_source(builtin ? source : path, &chat, &error);
	if (!builtin)
		unlink(path);
	ck_assert_msg(!status, "%s: %s", source, error.message);
	return chat;
}

/* FIELDS are the members of the body, ' stands for ". */
static struct answer ask_with(const char *template, const char *fields, bool strict)
{
	struct chat_template    *chat = template ? open_template(template) : NULL;
	struct answer            answer = { .error.message = "" };
	struct params            params;
	struct params_ignored    ignored = { 0 };
	struct chat_conversation conversation = { 0 };
	char                    *body;
	json_t                  *json = NULL;
	int                      len = asprintf(&body, "{'model':'m',%s}", fields);

	for (int i = 0; i < len; i++)
		body[i] = body[i] == '\'' ? '"' : body[i];
	answer.status = json_text_load(body, (size_t)len, JSON_TEXT_DEPTH_MAX, &json, &answer.error);
	if (!answer.status)
		answer.status = params_parse(json, PARAMS_CHAT, strict, &params, &ignored, &answer.error);
	if (!answer.status)
		answer.status = messages_read(chat, &params, 64, strict, &conversation, &ignored, &answer.error);
	json_decref(json); /* the conversation has what it needs */
	if (!answer.status && chat)
		answer.status = chat_render(chat, &conversation, &answer.prompt, &answer.error);
	messages_free(&conversation);
	params_ignored_text(&ignored, answer.ignored);
	chat_template_free(chat);
	free(body);
	return answer;
}

static struct answer ask(const char *template, const char *fields) { return ask_with(template, fields, false); }

static void expect(const char *template, const char *fields, const char *text)
{
	struct answer answer = ask(template, fields);

	ck_assert_msg(!answer.status, "%s\n%s\n%s", template, fields, answer.error.message);
	ck_assert_msg(strcmp(answer.prompt.text, text) == 0, "%s\n%s\n got %s\nwant %s", template, fields, answer.prompt.text, text);
	chat_prompt_free(&answer.prompt);
}

static void expect_error(const char *template, const char *fields, const char *param, const char *words)
{
	struct answer answer = ask(template, fields);

	ck_assert_msg(answer.status, "%s\n%s\nis taken: %s", template, fields, answer.prompt.text);
	ck_assert_msg(status_http(answer.status) == 400, "%s: %d", fields, status_http(answer.status));
	ck_assert_msg(strcmp(answer.error.param, param) == 0 && strstr(answer.error.message, words), "%s\n got [%s] %s\nwant [%s] %s",
	    fields, answer.error.param, answer.error.message, param, words);
}

#define STRINGS "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
#define PARTS "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}<a>"
#define USER "{'role':'user','content':'Q'}"
#define CALL(arguments) \
	"{'role':'assistant','content':null,'tool_calls':[{'id':'call_0123456789','type':'function'," \
	"'function':{'name':'f','arguments':" arguments "}}]}"
#define RESULT "{'role':'tool','tool_call_id':'call_0123456789','content':'R'}"
#define MESSAGES(list) "'messages':[" list "]"
#define TOOLS(list) MESSAGES(USER) ",'tools':[" list "]"
#define TOOL "{'type':'function','function':{'name':'f'}}"

/* ---- contents ---------------------------------------------------------------------------------------------------- */

START_TEST(contents)
{
	static const char two[] =
	    MESSAGES("{'role':'system','content':'S'},{'role':'user','content':[{'type':'text','text':'a '},{'type':'text',"
	    "'text':'b'}]}");

	expect(STRINGS, two, "<system>S<user>a b<a>");
	expect(PARTS, two, "<system>[S]<user>[a ][b]<a>");
	expect("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]"
	       "{% endfor %}{% endif %}{% endfor %}",
	    two, "Sa b");
	expect(STRINGS, MESSAGES(USER ",{'role':'assistant'},{'role':'assistant','content':null}," USER),
	    "<user>Q<assistant><assistant><user>Q<a>");
	expect(STRINGS, MESSAGES("{'role':'user','content':'a\\u0000b'}") ",'add_generation_prompt':false",
	    "<user>a"); /* as strcmp sees it */
	expect("{% for m in messages %}{{ m.name }}:{{ m.content }} {% endfor %}",
	    MESSAGES("{'role':'user','name':'Ann','content':'x'},{'role':'user','content':'y','name':null,'refusal':null}"),
	    "Ann:x :y ");
	expect_error(STRINGS, MESSAGES("{'role':'user','content':[{'type':'image_url','image_url':{'url':'x'}}]}"),
	    "messages[0].content[0]", "type image_url is not supported");
	expect_error(STRINGS, MESSAGES("{'role':'tool','content':{}}"), "messages[0].content", "not an object");
}
END_TEST

START_TEST(roles)
{
	expect(STRINGS, MESSAGES("{'role':'developer','content':'D'}," USER), "<system>D<user>Q<a>");
	expect("{#- knows developer -#}" STRINGS, MESSAGES("{'role':'developer','content':'D'}," USER), "<developer>D<user>Q<a>");
	expect_error(STRINGS, MESSAGES("{'role':'function','name':'f','content':'x'}"), "messages[0].role", "its newer form is tool");
	expect_error(STRINGS, MESSAGES(USER ",{'role':'assistant','function_call':{'name':'f'}}"), "messages[1].function_call",
	    "its newer form is tool_calls");
	expect_error(STRINGS, MESSAGES("{'role':'user','content':'x','tool_calls':[{}]}"), "messages[0].tool_calls",
	    "only an assistant");
}
END_TEST

START_TEST(r37_a_late_system_message)
{
	static const char late[] = MESSAGES(USER ",{'role':'assistant','content':'A'},{'role':'system','content':'S'}," USER);

	expect("builtin:glm-4.7", late, "[gMASK]<sop><|user|>Q<|assistant|></think>A<|system|>S<|user|>Q<|assistant|><think>");
	expect_error("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must "
	    "be at the "
	             "beginning.') }}{% endif %}{{ m.content }}{% endfor %}",
	    late, "", "System message must be at the beginning.");
}
END_TEST

START_TEST(what_a_template_rejects_or_cannot_do_is_a_400)
{
	expect_error("{{ messages[7].content.x }}", MESSAGES(USER), "", "");
	expect_error("{{ messages[0].content + 5 }}", MESSAGES(USER), "", "");
	expect_error("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", MESSAGES(USER), "", "");
	expect_error("{{ raise_exception(messages[0].content) }}", MESSAGES("{'role':'user','content':'no \\u4f60'}"), "",
	    "no \xe4\xbd\xa0");
}
END_TEST

/* ---- tool calls and results ------------------------------------------------------------------------------------- */

START_TEST(r29_no_content_beside_a_call_is_no_word)
{
	expect("builtin:glm-4.7", MESSAGES(USER "," CALL("'{}'")),
	    "[gMASK]<sop><|user|>Q<|assistant|></think><tool_call>f</tool_call><|assistant|><think>");
	/* a template that shows calls only where the content is none */
	expect("{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}{{ m.tool_calls[0].function.name }}"
	       "{{ m.tool_calls[0].function.arguments }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
	    MESSAGES(USER "," CALL("'{\\'a\\': 1}'") "," RESULT), "Qf{\"a\": 1}R");
}
END_TEST

START_TEST(r31_empty_arguments_are_an_empty_object)
{
	static const char *const empty[] = { CALL("''"), CALL("'null'"), CALL("' '"), CALL("null"), CALL("{}"), CALL("'{}'") };
	char                     fields[1024];

	for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
		snprintf(fields, sizeof fields, "'messages':[%s,%s]", USER, empty[i]);
		expect("builtin:glm-4.7", fields,
		    "[gMASK]<sop><|user|>Q<|assistant|></think><tool_call>f</tool_call><|assistant|><think>");
	}
}
END_TEST

/* What penstock itself wrote came back to it as a 400, and an agent's conversation was at its end. */
START_TEST(a_key_that_the_model_wrote_twice_has_its_last_value)
{
	expect("builtin:glm-4.7", MESSAGES(USER "," CALL("'{\\'n\\': 1, \\'n\\': 2}'")),
	    "[gMASK]<sop><|user|>Q<|assistant|></think><tool_call>f<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>"
	    "<|assistant|><think>");
}
END_TEST

START_TEST(r32_arguments_reach_items_as_an_object)
{
	expect("builtin:glm-4.7", MESSAGES(USER "," CALL("'{\\'city\\': \\'X\\', \\'n\\': [1, 2.5]}'")),
	    "[gMASK]<sop><|user|>Q<|assistant|></think><tool_call>f<arg_key>city</arg_key><arg_value>X</arg_value><arg_key>n</arg_key>"
	    "<arg_value>[1, 2.5]</arg_value></tool_call><|assistant|><think>");
	expect_error("builtin:glm-4.7", MESSAGES(USER "," CALL("'[1]'")), "messages[1].tool_calls[0].function.arguments",
	    "no JSON object");
	expect_error("builtin:glm-4.7", MESSAGES(USER "," CALL("'{\\'a\\': \\'\\\\ud83d\\'}'")),
	    "messages[1].tool_calls[0].function.arguments", "at byte"); /* R92: half a character */
	expect_error("builtin:glm-4.7", MESSAGES(USER "," CALL("7")), "messages[1].tool_calls[0]", "not an integer");
}
END_TEST

#define TEXT_ARGUMENTS \
	"{% for m in messages %}{% for c in m.tool_calls %}{{ 'a' + c.function.arguments }}{% endfor %}{{ m.content }}{% endfor %}"

START_TEST(r34_a_template_that_adds_to_a_string_gets_one)
{
	expect(TEXT_ARGUMENTS, MESSAGES(USER "," CALL("'{\\'x\\':1.50}'")), "Qa{\"x\":1.50}"); /* as it was written */
	expect(TEXT_ARGUMENTS, MESSAGES(USER "," CALL("{'x':0.1,'y':['\xc3\xa9',null]}")), "Qa{\"x\": 0.1, \"y\": [\"\xc3\xa9\", "
	    "null]}");
	expect(TEXT_ARGUMENTS, MESSAGES(USER "," CALL("''")), "Qa{}");
	expect(TEXT_ARGUMENTS, MESSAGES(USER "," CALL("'no json'")), "Qano json");
}
END_TEST

START_TEST(r35_the_turn_of_a_call_is_kept)
{
	expect("builtin:glm-4.7", MESSAGES(USER "," CALL("'{}'") "," RESULT),
	    "[gMASK]<sop><|user|>Q<|assistant|></think><tool_call>f</tool_call><|observation|><tool_response>R</tool_response>"
	    "<|assistant|><think>");
	expect(STRINGS, MESSAGES(USER "," CALL("'{}'") "," RESULT), "<user>Q<assistant><tool>R<a>");
}
END_TEST

START_TEST(results)
{
	expect("builtin:glm-4.5", MESSAGES(USER "," CALL("'{}'") ",{'role':'tool','content':[{'type':'text','text':'1'},"
	    "{'type':'text','text':'2'}]}"),
	    "[gMASK]<sop><|user|>\nQ<|assistant|>\n<think></think>\n<tool_call>f\n</tool_call><|observation|>\n<tool_response>\n12\n"
	    "</tool_response><|assistant|>");
	/* a template that wants ids of nine characters, and the names of results */
	expect("{% for m in messages %}{% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}"
	    "{{ c|tojson }}"
	       "{% endfor %}{% if m.role == 'tool' and m.name is not defined %}{{ raise_exception('name') }}{% endif %}"
	       "{{ m.name }}{{ m.tool_call_id }}{{ m.content }}{% endfor %}",
	    MESSAGES(USER "," CALL("{}") "," RESULT),
	    "Q{\"id\": \"123456789\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}f123456789R");
	/* a template that shows ids instead of names: names are for others */
	expect("{% for m in messages %}{% for c in m.tool_calls %}{{ c.id ~ c.function.arguments|tojson }}{% endfor %}{{ m.name or "
	    "m.role }}"
	       "{{ m.content }}{% endfor %}",
	    MESSAGES(USER "," CALL("{}") "," RESULT), "userQcall_0123456789{}assistanttoolR");
	expect(PARTS, MESSAGES(USER "," CALL("{}") "," RESULT), "<user>[Q]<assistant>[]<tool>[R]<a>");
	expect_error(STRINGS, MESSAGES("{'role':'tool','tool_call_id':5,'content':'x'}"), "messages[0].tool_call_id", "256 bytes");
}
END_TEST

/* ---- tools ------------------------------------------------------------------------------------------------------- */

#define SHOWS_TOOLS "{% if tools %}{{ tools|tojson }}{% endif %}{{ messages[0].content }}"

START_TEST(tools)
{
	expect(SHOWS_TOOLS, TOOLS("{'type':'function','function':{'name':'f','x':1,'description':'d'}}"),
	    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"x\": 1, \"description\": \"d\"}}]Q");
	expect(SHOWS_TOOLS, TOOLS(TOOL) ",'tool_choice':'auto'", "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]Q");
	expect(SHOWS_TOOLS, TOOLS(TOOL) ",'tool_choice':'none'", "Q");
	expect(SHOWS_TOOLS, TOOLS(""), "Q");
	expect("{{ tools is defined and tools is none and documents is none }}", MESSAGES(USER), "True"); /* as the reference has it */
}
END_TEST

static const struct {
	const char *fields, *param, *words;
} bad_fields[] = {
	{ MESSAGES(USER) ",'tools':{}", "tools", "an array is expected" },
	{ TOOLS("5"), "tools[0]", "an object is expected" },
	{ TOOLS("{}"), "tools[0].type", "required" },
	{ TOOLS("{'type':'web_search'}"), "tools[0].type", "= web_search: only function" },
	{ TOOLS("{'type':'function'}"), "tools[0].function", "required" },
	{ TOOLS("{'type':'function','function':{}}"), "tools[0].function.name", "1…64 letters" },
	{ TOOLS("{'type':'function','function':{'name':'a b'}}"), "tools[0].function.name", "= a b: 1…64 letters" },
	{ TOOLS("{'type':'function','function':{'name':'a\\u0000'}}"), "tools[0].function.name", "1…64 letters" },
	{ TOOLS("{'type':'function','function':{'name':'"
	        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}}"), "tools[0].function.name", "1…64 letters" },
	{ TOOLS("{'type':'function','function':{'name':'f','description':1}}"), "tools[0].function.description", "a string" },
	{ TOOLS("{'type':'function','function':{'name':'f','parameters':[]}}"), "tools[0].function.parameters", "an object" },
	{ TOOLS("{'type':'function','function':{'name':'f','strict':'x'}}"), "tools[0].function.strict", "a boolean" },
	{ TOOLS(TOOL "," TOOL), "tools[1].function.name", "two tools of this name" },
	{ TOOLS(TOOL) ",'tool_choice':'required'", "tool_choice", "supported are auto and none" },
	{ TOOLS(TOOL) ",'tool_choice':{'type':'function','function':{'name':'f'}}", "tool_choice", "a named tool: not supported" },
	{ TOOLS(TOOL) ",'tool_choice':'some'", "tool_choice", "not some" },
	{ MESSAGES(USER) ",'functions':[{'name':'f'}]", "functions", "The older form of `tools`" },
	{ MESSAGES(USER) ",'function_call':{'name':'f'}", "function_call", "The older form of `tool_choice`" },
	{ MESSAGES(USER) ",'documents':'x'", "documents", "an array" },
	{ MESSAGES(USER) ",'documents':['x']", "documents", "documents[0]: an object" },
	{ MESSAGES(USER) ",'chat_template_kwargs':[]", "chat_template_kwargs", "an object is expected" },
	{ MESSAGES(USER) ",'chat_template_kwargs':{'tokenize':true}", "chat_template_kwargs.tokenize", "may not set this variable" },
	{ MESSAGES(USER) ",'chat_template_kwargs':{'messages':[]}", "chat_template_kwargs.messages", "may not set this variable" },
	{ MESSAGES(USER) ",'chat_template_kwargs':{'bos_token':'x'}", "chat_template_kwargs.bos_token", "may not set" },
	{ MESSAGES(USER) ",'chat_template_kwargs':{'enable_thinking':'x'}", "chat_template_kwargs.enable_thinking", "a boolean" },
	{ MESSAGES(USER) ",'chat_template_kwargs':{'thinking_budget':-1}", "chat_template_kwargs.thinking_budget", "in 0…1048576" },
	{ MESSAGES(USER) ",'chat_template_kwargs':{'builtin_tools':[1]}", "chat_template_kwargs.builtin_tools", "at most 16 strings" },
	{ MESSAGES(USER) ",'chat_template':'x'", "chat_template", "from the model file only" },
	{ MESSAGES(USER) ",'reasoning_effort':'much'", "reasoning_effort", "none, minimal, low, medium, high, xhigh or max" },
	{ MESSAGES(USER) ",'thinking':{'type':'on'}", "thinking", "enabled or disabled" },
	{ MESSAGES(USER) ",'thinking':true", "thinking", "enabled or disabled" },
	{ MESSAGES(USER) ",'continue_final_message':true", "continue_final_message", "not the assistant's" },
	{ MESSAGES(USER ",{'role':'assistant','content':'A','reasoning':1}"), "messages[1].reasoning", "a string" },
	{ MESSAGES(USER ",{'role':'assistant','tool_calls':{}}"), "messages[1].tool_calls", "an array" },
	{ MESSAGES(USER ",{'role':'assistant','tool_calls':[5]}"), "messages[1].tool_calls[0]", "an object" },
	{ MESSAGES(USER ",{'role':'assistant','tool_calls':[{'type':'custom'}]}"), "messages[1].tool_calls[0]", "type custom" },
	{ MESSAGES(USER ",{'role':'assistant','tool_calls':[{'function':{'name':''}}]}"), "messages[1].tool_calls[0]", "1…256 bytes" },
	{ MESSAGES(USER ",{'role':'assistant','tool_calls':[{'id':[],'function':{'name':'f'}}]}"), "messages[1].tool_calls[0]", ".id" },
};

START_TEST(bad_fields_are_refused_by_name)
{
	expect_error("builtin:glm-5.2", bad_fields[_i].fields, bad_fields[_i].param, bad_fields[_i].words);
	expect_error(NULL, bad_fields[_i].fields, bad_fields[_i].param, bad_fields[_i].words);
}
END_TEST

START_TEST(limits_of_tools_are_named)
{
	struct buf fields;

	buf_init(&fields, 4 << 20);
	for (int round = 0; round < 3; round++) {
		buf_clear(&fields);
		buf_append_string(&fields, "'messages':[" USER "],'tools':[" TOOL);
		for (int i = 1; i < MESSAGES_TOOLS_MAX + (round == 1); i++)
			buf_append_format(&fields, ",{'type':'function','function':{'name':'f%d','description':'%*s'}}", i,
			    round == 2 ? 9000 : 1,
			    "d");
		buf_append_string(&fields, "]");
		if (round == 0)
			expect("{{ tools|length }}", fields.data, "128");
		else
			expect_error(STRINGS, fields.data, "tools", round == 1 ? "129 tools, at most 128" : "bytes of definitions, at most "
			    "1048576");
	}
	buf_free(&fields);
}
END_TEST

/* ---- reasoning ----------------------------------------------------------------------------------------------------- */

START_TEST(efforts)
{
	static const struct {
		const char *effort, *glm52, *glm45, *open, *picky;
	} rows[] = {
		{ "none", "off", "off", "low", "LOW" }, { "minimal", "off", "off", "low", "LOW" }, { "low", "High", "on", "low", "LOW" },
		{ "medium", "High", "on", "medium", "XHIGH" }, { "high", "High", "on", "high", "XHIGH" },
		{ "xhigh", "Max", "on", "high", "XHIGH" }, { "max", "Max", "on", "high", "XHIGH" },
	};
	char fields[256], text[256];

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		bool off = strcmp(rows[i].glm52, "off") == 0;

		snprintf(fields, sizeof fields, "%s,'reasoning_effort':'%s'", MESSAGES(USER), rows[i].effort);
		snprintf(text, sizeof text, off ? "[gMASK]<sop><|user|>Q<|assistant|><think></think>%s"
		                                : "[gMASK]<sop><|system|>Reasoning Effort: %s<|user|>Q<|assistant|><think>",
		    off ? "" : rows[i].glm52);
		expect("builtin:glm-5.2", fields, text);
		expect("builtin:glm-4.5", fields, off ? "[gMASK]<sop><|user|>\nQ/nothink<|assistant|>\n<think></think>"
		                                      : "[gMASK]<sop><|user|>\nQ<|assistant|>");
		expect("{{ reasoning_effort }}", fields, rows[i].open);
		expect("{% if reasoning_effort in ['low', 'xhigh'] %}{{ reasoning_effort|upper }}{% else %}{{ raise_exception('level') }"
		    "}{% endif %}",
		    fields, rows[i].picky);
	}
	expect("builtin:glm-5.2", MESSAGES(USER), "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Q<|assistant|><think>");
}
END_TEST

START_TEST(switches)
{
	static const char off[] = "[gMASK]<sop><|user|>Q<|assistant|></think>";
	static const char talk[] =
	    MESSAGES(USER ",{'role':'assistant','content':'A','reasoning':'T'}," USER);

	expect("builtin:glm-4.7", MESSAGES(USER) ",'enable_thinking':false", off);
	expect("builtin:glm-4.7", MESSAGES(USER) ",'chat_template_kwargs':{'enable_thinking':false}", off);
	expect("builtin:glm-4.7", MESSAGES(USER) ",'thinking':{'type':'disabled'}", off);
	expect("builtin:glm-4.7", MESSAGES(USER) ",'reasoning_effort':'none'", off);
	/* what is said closest to the template wins */
	expect("builtin:glm-4.7", MESSAGES(USER) ",'reasoning_effort':'high','enable_thinking':false", off);
	expect("builtin:glm-4.7", MESSAGES(USER) ",'enable_thinking':true,'chat_template_kwargs':{'enable_thinking':false}", off);
	expect("{{ thinking }}", MESSAGES(USER) ",'enable_thinking':false", "False");
	expect("builtin:glm-4.7", talk, "[gMASK]<sop><|user|>Q<|assistant|></think>A<|user|>Q<|assistant|><think>");
	expect("builtin:glm-4.7", "'clear_thinking':false," MESSAGES(USER ",{'role':'assistant','content':'A',"
	    "'reasoning_content':'T'}," USER),
	    "[gMASK]<sop><|user|>Q<|assistant|><think>T</think>A<|user|>Q<|assistant|><think>");
	expect("builtin:glm-4.7", "'thinking':{'type':'enabled','clear_thinking':false}," MESSAGES(USER
	       ",{'role':'assistant','content':'A','reasoning':'T'}," USER),
	    "[gMASK]<sop><|user|>Q<|assistant|><think>T</think>A<|user|>Q<|assistant|><think>");
}
END_TEST

START_TEST(what_a_template_does_not_look_at_is_said)
{
	static const struct {
		const char *fields, *names;
	} rows[] = {
		{ MESSAGES(USER), "" }, { TOOLS(TOOL), "tools" }, { TOOLS(TOOL) ",'tool_choice':'none'", "" },
		{ MESSAGES(USER) ",'documents':[{'text':'t'}]", "documents" }, { MESSAGES(USER) ",'reasoning_effort':'high'",
		    "reasoning_effort" },
		{ MESSAGES(USER) ",'reasoning_effort':'none'", "" }, { MESSAGES(USER) ",'enable_thinking':true", "enable_thinking" },
		{ MESSAGES(USER) ",'clear_thinking':true", "clear_thinking" },
		{ MESSAGES(USER) ",'chat_template_kwargs':{'enable_thinking':true,'today':'x'}", "enable_thinking,today" },
		{ MESSAGES(USER "," CALL("'{}'") "," RESULT), "tool_calls" }, { MESSAGES(USER) ",'zzz':1", "zzz" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct answer answer = ask(STRINGS, rows[i].fields);

		ck_assert_msg(!answer.status, "%s", answer.error.message);
		ck_assert_msg(!strcmp(answer.ignored, rows[i].names), "%s: %s", rows[i].fields, answer.ignored);
		chat_prompt_free(&answer.prompt);
		answer = ask_with(STRINGS, rows[i].fields, true);
		ck_assert_msg(!answer.status == !*rows[i].names, "%s, strict: %s", rows[i].fields, answer.error.message);
		ck_assert_msg(!answer.status || status_http(answer.status) == 400, "%s", rows[i].fields);
		chat_prompt_free(&answer.prompt);
	}
}
END_TEST

/* ---- the end of the prompt -------------------------------------------------------------------------------------------- */

#define LAST(text) MESSAGES(USER ",{'role':'assistant','content':" text "}")

START_TEST(r38_continue_the_final_message)
{
	expect("builtin:glm-4-9b-chat", LAST("'1, 2,'") ",'continue_final_message':true", "[gMASK]<sop><|user|>\nQ<|assistant|>\n1, "
	    "2,");
	expect("builtin:glm-4-9b-chat", LAST("'1, 2,'") ",'continue_final_message':true,'add_generation_prompt':false",
	    "[gMASK]<sop><|user|>\nQ<|assistant|>\n1, 2,");
	expect_error("builtin:glm-4-9b-chat", LAST("'1, 2,'") ",'continue_final_message':true,'add_generation_prompt':true",
	    "continue_final_message", "not together with add_generation_prompt");
	expect("builtin:glm-4-9b-chat", LAST("'1, 2,'") ",'continue_final_message':false,'add_generation_prompt':false",
	    "[gMASK]<sop><|user|>\nQ<|assistant|>\n1, 2,");
	expect("{{ messages[-1].content }}<end>", LAST("'a \\n'") ",'continue_final_message':true", "a \n");
	expect("{{ messages[-1].content|trim }}<end>", LAST("'a \\n'") ",'continue_final_message':true", "a");
	expect("[{{ messages[-1].content }}]", LAST("''") ",'continue_final_message':true", "[");
	expect(STRINGS "<end>", LAST("[{'type':'text','text':'x'},{'type':'text','text':'y'}]") ",'continue_final_message':true",
	    "<user>Q<assistant>xy");
	expect(PARTS, LAST("[{'type':'text','text':'x'},{'type':'text','text':'y'}]") ",'continue_final_message':true",
	    "<user>[Q]<assistant>[x][y");
	expect_error("{{ messages[0].content }}", LAST("'x'") ",'continue_final_message':true", "continue_final_message",
	    "does not show the text");
	expect_error("builtin:glm-4.7", MESSAGES(USER "," CALL("'{}'")) ",'continue_final_message':true", "continue_final_message",
	    "tool calls");
}
END_TEST

START_TEST(r40_a_trailing_assistant_message_is_a_finished_turn)
{
	expect("builtin:glm-4-9b-chat", LAST("'A'"), "[gMASK]<sop><|user|>\nQ<|assistant|>\nA<|assistant|>");
}
END_TEST

START_TEST(r25_the_end_says_where_reasoning_stands)
{
	static const struct {
		const char         *template, *fields;
		enum chat_reasoning right;
	} rows[] = {
		{ "builtin:glm-4.7", MESSAGES(USER), CHAT_REASONING_OPEN },
		{ "builtin:glm-4.7", MESSAGES(USER) ",'reasoning_effort':'none'", CHAT_REASONING_CLOSED },
		{ "builtin:glm-5.2", MESSAGES(USER) ",'enable_thinking':false", CHAT_REASONING_CLOSED },
		{ "builtin:glm-4.5", MESSAGES(USER), CHAT_REASONING_NONE },
		{ "builtin:glm-z1", MESSAGES(USER), CHAT_REASONING_OPEN },
		{ STRINGS, MESSAGES("{'role':'user','content':'<think>'}") ",'add_generation_prompt':false", CHAT_REASONING_NONE },
		{ STRINGS, LAST("'<think>hm'") ",'continue_final_message':true", CHAT_REASONING_OPEN },
		{ STRINGS, LAST("'<think>hm</think>so'") ",'continue_final_message':true", CHAT_REASONING_NONE },
		{ "{{ messages[-1].reasoning_content }}</think>{{ messages[-1].content }}",
		    MESSAGES(USER ",{'role':'assistant','reasoning':'hm'}") ",'continue_final_message':true", CHAT_REASONING_OPEN },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct answer answer = ask(rows[i].template, rows[i].fields);

		ck_assert_msg(!answer.status, "%zu: %s", i, answer.error.message);
		ck_assert_msg(answer.prompt.reasoning == rows[i].right, "%zu: %d after %s", i, answer.prompt.reasoning, answer.prompt.text);
		chat_prompt_free(&answer.prompt);
	}
}
END_TEST

START_TEST(r95_the_last_byte_of_a_template_counts)
{
	char source[64], text[64];

	for (int len = 1; len < 40; len++) {
		memset(source, 'x', sizeof source);
		source[len - 1] = '!';
		source[len] = '\0';
		snprintf(text, sizeof text, "%s", source);
		expect(source, MESSAGES(USER), text);
	}
}
END_TEST

/* ---- provenance ------------------------------------------------------------------------------------------------------- */

/* "zap" marks everything that a request may hold; no byte of it may be literal. */
START_TEST(all_of_a_request_is_data)
{
	static const char *const templates[] = { "builtin:glm-4-9b-chat", "builtin:glm-4-0414", "builtin:glm-4.5", "builtin:glm-4.7",
		"builtin:glm-5.1", "builtin:glm-5.2", "builtin:chatglm3", STRINGS, PARTS, TEXT_ARGUMENTS };
	static const char fields[] = "'messages':[{'role':'system','content':'zap'},{'role':'user','name':'zap','content':'zap'},"
		"{'role':'assistant','content':'zap','reasoning_content':'zap','tool_calls':[{'id':'zap','type':'function','function':{"
		"'name':'zap','arguments':'{\\'zap\\': [\\'zap\\', {\\'zap\\': null}]}'}}]},"
		"{'role':'tool','tool_call_id':'zap','name':'zap','content':'zap'},{'role':'user','content':[{'type':'text',"
		    "'text':'zap'}]}],"
		"'tools':[{'type':'function','zap':1,'function':{'name':'zap','description':'zap','parameters':{'type':'object',"
		    "'properties':{"
		"'zap':{'type':'string','enum':['zap'],'role':'zap'}}}}}],'documents':[{'title':'zap','text':'zap'}]";

	for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
		struct answer answer = ask(templates[i], fields);
		size_t        data = 0;

		ck_assert_msg(!answer.status, "%s: %s", templates[i], answer.error.message);
		for (size_t k = 0; k < answer.prompt.span_count; k++) {
			const struct text_span *span = &answer.prompt.spans[k];

			ck_assert_msg(!span->literal || !memmem(span->bytes, span->len, "zap", 3), "%s: literal \"%.*s\"", templates[i],
			    (int)span->len, span->bytes);
			data += span->literal ? 0 : span->len;
		}
		ck_assert_uint_gt(data, 10);
		chat_prompt_free(&answer.prompt);
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("messages");
	TCase   *tcase = tcase_create("messages");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, contents);
	tcase_add_test(tcase, roles);
	tcase_add_test(tcase, r37_a_late_system_message);
	tcase_add_test(tcase, what_a_template_rejects_or_cannot_do_is_a_400);
	tcase_add_test(tcase, r29_no_content_beside_a_call_is_no_word);
	tcase_add_test(tcase, r31_empty_arguments_are_an_empty_object);
	tcase_add_test(tcase, a_key_that_the_model_wrote_twice_has_its_last_value);
	tcase_add_test(tcase, r32_arguments_reach_items_as_an_object);
	tcase_add_test(tcase, r34_a_template_that_adds_to_a_string_gets_one);
	tcase_add_test(tcase, r35_the_turn_of_a_call_is_kept);
	tcase_add_test(tcase, results);
	tcase_add_test(tcase, tools);
	tcase_add_loop_test(tcase, bad_fields_are_refused_by_name, 0, sizeof bad_fields / sizeof *bad_fields);
	tcase_add_test(tcase, limits_of_tools_are_named);
	tcase_add_test(tcase, efforts);
	tcase_add_test(tcase, switches);
	tcase_add_test(tcase, what_a_template_does_not_look_at_is_said);
	tcase_add_test(tcase, r38_continue_the_final_message);
	tcase_add_test(tcase, r40_a_trailing_assistant_message_is_a_finished_turn);
	tcase_add_test(tcase, r25_the_end_says_where_reasoning_stands);
	tcase_add_test(tcase, r95_the_last_byte_of_a_template_counts);
	tcase_add_test(tcase, all_of_a_request_is_data);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
