/* render.c: `penstock render`: a chat template applied to conversations, JSON lines in, JSON lines out.  Either messages reach the
 * template as they are written, for comparisons with other implementations; or the lines are bodies of chat requests, and what
 * comes out is the prompt that the server would make of them. */
#include "api/json_text.h"
#include "api/messages.h"
#include "text/chat_source.h"
#include "text/jinja.h"
#include "tools/lines.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: penstock render [--template FILE|MODEL] [--name NAME] [--spans] < lines > lines\n"
    "       penstock render --requests --template FILE|MODEL [--spans] < lines > lines\n"
    "       penstock render --traits --template FILE|MODEL\n"
    "\n"
    "FILE is a Jinja template; MODEL a directory with chat_template.jinja or tokenizer_config.json, or a GGUF file;\n"
    "builtin:NAME one of those for models that ship none (chatglm2, chatglm3, glm-4-9b-chat, glm-4-0414, glm-z1, glm-4.5,\n"
    "glm-4.7, glm-5.1, glm-5.2).\n"
    "Each input line is an object: {\"messages\": …, \"kwargs\": {…}, \"bos_token\": \"…\", \"eos_token\": \"…\"}; what it holds\n"
    "is what the template sees, kwargs member by member.  Each output line is {\"text\": \"…\"} or {\"error\": \"…\"}.\n"
    "Without --template every line holds its own as \"template\".\n"
    "\n"
    "  --name NAME   of several templates the one called NAME (default \"default\")\n"
    "  --spans       add \"spans\": [[bytes, literal], …]: which bytes the template wrote itself\n"
    "  --requests    each line is the body of a POST /v1/chat/completions (model may be left out); the output line has the\n"
    "                prompt as \"text\", as \"reasoning\" what its end leaves to the model (none, open, closed), and as\n"
    "                \"ignored\" fields without effect; or {\"error\": {\"message\", \"param\", \"code\"}}\n"
    "  --traits      what the template does with what it is given, one JSON object\n";

/* The variables of one line; both objects are new. */
static void split_line(json_t *line, bool own_template, json_t **ret_server, json_t **ret_data)
{
	const char *name;
	json_t     *value, *server = json_object(), *data = json_object();

	json_object_foreach(line, name, value) {
		if (strcmp(name, "kwargs") == 0 || (own_template && strcmp(name, "template") == 0))
			continue;
		json_object_set(strcmp(name, "bos_token") == 0 || strcmp(name, "eos_token") == 0 ? server : data, name, value);
	}
	json_object_foreach(json_object_get(line, "kwargs"), name, value)
		json_object_set(data, name, value);
	*ret_server = server;
	*ret_data = data;
}

static json_t *make_spans(const struct text_span *spans, size_t count)
{
	json_t *list = json_array();

	for (size_t i = 0; i < count; i++)
		json_array_append_new(list, json_pack("[I,b]", (json_int_t)spans[i].len, spans[i].literal));
	return list;
}

/* What the lines are applied to; with NEITHER, each has a template of its own. */
struct job {
	struct jinja_template *jinja; /* owned */
	struct chat_template  *chat;  /* owned; for requests and traits */
	bool                   spans;
};

static json_t *render_line(const struct job *job, json_t *line)
{
	struct jinja_variables variables = { .now = time(NULL) };
	struct jinja_result    result;
	struct error           error;
	json_t                *server, *data, *out;
	struct jinja_template *own = NULL;
	json_t                *source = json_object_get(line, "template");
	enum status            status;

	if (!job->jinja) {
		if (!json_is_string(source))
			return json_pack("{s:s}", "error", "there is no --template, and the line has no member template");
		status = jinja_compile(json_string_value(source), json_string_length(source), "template", &own, &error);
		if (status)
			return json_pack("{s:s}", "error", error.message);
	}
	split_line(line, own != NULL, &server, &data);
	variables.server = server;
	variables.data = data;
	status = jinja_render(own ? own : job->jinja, &variables, &result, &error);
	jinja_free(own);
	json_decref(server);
	json_decref(data);
	if (status)
		return json_pack("{s:s}", "error", error.message);
	out = json_pack("{s:s%}", "text", result.text, result.len);
	if (job->spans && out)
		json_object_set_new(out, "spans", make_spans(result.spans, result.span_count));
	jinja_result_free(&result);
	return out;
}

/* ---- requests ----------------------------------------------------------------- */

static json_t *render_request(const struct job *job, json_t *body)
{
	static const char *const reasoning[] = { "none", "open", "closed" };
	struct params            params;
	struct params_ignored    ignored = { 0 };
	struct chat_conversation conversation = { 0 };
	struct chat_prompt       prompt = { 0 };
	struct error             error = { .message = "" };
	char                     names[PARAMS_IGNORED_BYTES];
	json_t                  *out;
	enum status              status;

	if (!json_object_get(body, "model"))
		json_object_set_new(body, "model", json_string(""));
	status = params_parse(body, PARAMS_CHAT, false, &params, &ignored, &error);
	if (!status)
		status = messages_read(job->chat, &params, JSON_TEXT_DEPTH_MAX, false, &conversation, &ignored, &error);
	if (!status)
		status = chat_render(job->chat, &conversation, &prompt, &error);
	messages_free(&conversation);
	if (status)
		return json_pack("{s:{s:s, s:s, s:s}}", "error", "message", error.message, "param", error.param, "code",
		    status_api_code(status));
	params_ignored_text(&ignored, names);
	out = json_pack("{s:s%, s:s, s:s}", "text", prompt.text, prompt.len, "reasoning", reasoning[prompt.reasoning], "ignored",
	    names);
	if (job->spans && out)
		json_object_set_new(out, "spans", make_spans(prompt.spans, prompt.span_count));
	chat_prompt_free(&prompt);
	return out;
}

static json_t *describe_traits(const struct chat_traits *traits)
{
	static const char *const roles[] = { "system", "user", "assistant", "tool" }, *const empty[] = { "text", "absent", "null" };
	json_t                  *parts = json_array(), *efforts = json_object();

	for (int i = 0; i < CHAT_ROLE_COUNT; i++)
		if (traits->parts[i])
			json_array_append_new(parts, json_string(roles[i]));
	for (int i = 0; i < CHAT_EFFORT_COUNT; i++)
		if (traits->efforts[i])
			json_object_set_new(efforts, chat_effort_name(i), json_string(traits->efforts[i]));
	return json_pack("{s:o, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:s?, s:o}", "parts", parts, "arguments",
	    traits->arguments_text ? "text" : "object", "empty", empty[traits->empty], "tools", traits->tools, "tool_calls",
	    traits->tool_calls, "short_ids", traits->short_ids, "result_names", traits->result_names, "developer",
	    traits->developer, "thinking", traits->thinking, "efforts", efforts);
}

/* ---- lines ----------------------------------------------------------------- */

static enum status print(json_t *out, struct error *error)
{
	if (!out)
		return error_set(error, STATUS_NOMEM, "no memory for a result");
	json_dumpf(out, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
	putchar('\n');
	json_decref(out);
	return STATUS_OK;
}

static enum status render_all(const struct job *job, struct error *error)
{
	struct buf  line;
	enum status status;

	buf_init(&line, TOOL_LINE_MAX);
	while (!(status = tool_read_line(stdin, &line, error))) {
		json_error_t json_error;
		json_t      *in = json_loadb(line.data, line.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &json_error);

		if (!json_is_object(in)) {
			status = in ? error_set(error, STATUS_INVALID, "a line is no JSON object")
			            : error_set(error, STATUS_INVALID, "a line is no JSON: %s", json_error.text);
			json_decref(in);
			break;
		}
		status = print(job->chat ? render_request(job, in) : render_line(job, in), error);
		json_decref(in);
		if (status)
			break;
	}
	buf_free(&line);
	return status == STATUS_GONE ? STATUS_OK : status;
}

int tool_render(int argc, char **argv)
{
	static const struct option options[] = { { "template", required_argument, NULL, 't' }, { "name", required_argument, NULL, 'n' },
		{ "spans", no_argument, NULL, 's' }, { "requests", no_argument, NULL, 'r' }, { "traits", no_argument, NULL, 'a' },
		{ "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };
	const char  *path = NULL, *name = NULL;
	bool         requests = false, traits = false;
	struct job   job = { NULL, NULL, false };
	struct error error;
	enum status  status = STATUS_OK;
	int          option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 't': path = optarg; break;
		case 'n': name = optarg; break;
		case 's': job.spans = true; break;
		case 'r': requests = true; break;
		case 'a': traits = true; break;
		case 'h': fputs(help, stdout); return TOOL_OK;
		default: return tool_usage("render", "unknown option");
		}
	}
	if (optind != argc)
		return tool_usage("render", "unexpected argument %s", argv[optind]);
	if ((requests || traits) && (!path || name))
		return tool_usage("render", "--requests and --traits need a --template, and no --name");
	if (requests || traits)
		status = chat_template_from_source(path, &job.chat, &error);
	else if (path)
		status = chat_source_open(path, name, &job.jinja, &error);
	if (!status && traits)
		status = print(describe_traits(chat_template_traits(job.chat, false)), &error);
	else if (!status)
		status = render_all(&job, &error);
	jinja_free(job.jinja);
	chat_template_free(job.chat);
	return status ? tool_fail("render", &error) : TOOL_OK;
}
