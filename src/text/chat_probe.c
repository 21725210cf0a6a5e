/* chat_probe.c: owns how a template's wishes are found out: small conversations with unmistakable words in them are rendered when
 * it is loaded, and what of them comes out says which shapes it takes.  Does not own what is done with that (api/messages.c).
 *
 * Invariant: probing never fails for a template that compiles; one that rejects everything gets the plainest traits: strings,
 * arguments as objects. */
#include "text/chat_parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Words that no template has of its own. */
#define NEEDLE "zqneedle"
#define TOOL "zqtool"
#define KEY "zqkey"
#define VALUE "zqvalue"
#define RESULT "zqresult"
#define NO_LEVEL "zqlevel"

struct probe {
	const struct jinja_template *jinja;
	const json_t                *server;
	bool                         spent; /* it ran out of its budget with a small conversation: no more is asked of it */
};

/* The prompt of MESSAGES (JSON) with KWARGS and TOOLS (JSON, or NULL); NULL when it does not render. */
static char *render(struct probe *probe, const char *messages, const char *kwargs, const char *tools)
{
	struct chat_conversation conversation = { .messages = json_loads(messages, 0, NULL), .add_generation_prompt = true };
	struct jinja_variables   variables = { .server = probe->server, .now = 1000000000 };
	struct jinja_result      result = { .text = NULL };
	struct error             error;
	json_t                  *data;
	enum status              status;

	conversation.kwargs = kwargs ? json_loads(kwargs, 0, NULL) : NULL;
	conversation.tools = tools ? json_loads(tools, 0, NULL) : NULL;
	variables.data = data = probe->spent ? NULL : chat_variables(&conversation);
	status = data ? jinja_render(probe->jinja, &variables, &result, &error) : STATUS_NOMEM;
	if (!status)
		free(result.spans);
	probe->spent = probe->spent || status == STATUS_LIMIT;
	json_decref(data);
	json_decref(conversation.messages);
	json_decref(conversation.kwargs);
	json_decref(conversation.tools);
	return result.text;
}

static bool shows(struct probe *probe, const char *messages, const char *tools, const char *needle)
{
	char *text = render(probe, messages, NULL, tools);
	bool  found = text && strstr(text, needle);

	free(text);
	return found;
}

/* ---- contents ------------------------------------------------------------------------------------------------------------- */

#define USER "{\"role\": \"user\", \"content\": \"x\"}"
#define STRING "\"" NEEDLE "\""
#define PARTS "[{\"type\": \"text\", \"text\": \"" NEEDLE "\"}]"
#define USER_PARTS "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"x\"}]}"

#define RESULT_OF(content) "{\"role\": \"tool\", \"name\": \"f\", \"tool_call_id\": \"a1b2c3d4e\", \"content\": " content "}"

/* Strings wherever they are shown; parts only where a template shows nothing else. */
static void probe_parts(struct probe *probe, struct chat_traits *traits)
{
	static const struct {
		enum chat_role role;
		const char    *string, *parts, *all_parts; /* the last: the messages around it are parts too */
	} rows[] = {
		{ CHAT_ROLE_USER, "[{\"role\": \"user\", \"content\": " STRING "}]", "[{\"role\": \"user\", \"content\": " PARTS "}]",
			"[{\"role\": \"user\", \"content\": " PARTS "}]" },
		{ CHAT_ROLE_SYSTEM, "[{\"role\": \"system\", \"content\": " STRING "}, " USER "]",
			"[{\"role\": \"system\", \"content\": " PARTS "}, " USER "]",
			"[{\"role\": \"system\", \"content\": " PARTS "}, " USER_PARTS "]" },
		{ CHAT_ROLE_ASSISTANT, "[" USER ", {\"role\": \"assistant\", \"content\": " STRING "}, " USER "]",
			"[" USER ", {\"role\": \"assistant\", \"content\": " PARTS "}, " USER "]",
			"[" USER_PARTS ", {\"role\": \"assistant\", \"content\": " PARTS "}, " USER_PARTS "]" },
		{ CHAT_ROLE_TOOL, "[" USER ", {\"role\": \"assistant\", \"content\": \"x\"}, " RESULT_OF(STRING) "]",
			"[" USER ", {\"role\": \"assistant\", \"content\": \"x\"}, " RESULT_OF(PARTS) "]",
			"[" USER_PARTS ", {\"role\": \"assistant\", \"content\": []}, " RESULT_OF(PARTS) "]" },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		traits->parts[rows[i].role] = !shows(probe, rows[i].string, NULL, NEEDLE) &&
		    (shows(probe, rows[i].parts, NULL, NEEDLE) || shows(probe, rows[i].all_parts, NULL, NEEDLE));
	traits->developer = jinja_mentions(probe->jinja, "developer") &&
	    shows(probe, "[{\"role\": \"developer\", \"content\": " STRING "}, " USER "]", NULL, NEEDLE);
}

/* ---- tools ---------------------------------------------------------------------------------------------------------------- */

#define PROPERTIES "\"properties\": {\"" KEY "\": {\"type\": \"string\", \"description\": \"d\"}}, \"required\": []"
#define TOOLS \
	"[{\"type\": \"function\", \"function\": {\"name\": \"" TOOL "\", \"description\": \"d\"," \
	"\"parameters\": {\"type\": \"object\", " PROPERTIES "}}}]"

/* One shape of a call with its result. */
struct shape {
	bool            arguments_text, short_ids, result_names, result_parts;
	enum chat_empty empty;
};

/* How much of a call is asked for: some templates show little, and want a shape all the same. */
enum demand { DEMAND_RESULT, DEMAND_CALL, DEMAND_ARGUMENTS, DEMAND_NO_ERROR, DEMAND_COUNT };

/* Does the template write call and result as they should be?  Python's notation of an object and JSON inside of JSON are not. */
static bool call_shown(struct probe *probe, const struct shape *shape, enum demand demand)
{
	static const char *const contents[] = { "\"content\": \"\", ", "", "\"content\": null, " };
	static const char *const bad[] = { "'" KEY "'", "\\\"" KEY };
	const char              *id = shape->short_ids ? "a1b2c3d4e" : "call_0123456789abcdef";
	char                     messages[1024], result[256] = "", *text;
	bool                     good;

	if (demand == DEMAND_RESULT)
		snprintf(result, sizeof result, ", {\"role\": \"tool\", \"tool_call_id\": \"%s\", %s\"content\": %s}", id,
		    shape->result_names ? "\"name\": \"" TOOL "\", " : "",
		    shape->result_parts ? "[{\"type\": \"text\", \"text\": \"" RESULT "\"}]" : "\"" RESULT "\"");
	snprintf(messages, sizeof messages,
	    "[%s, {\"role\": \"assistant\", %s\"tool_calls\": [{\"id\": \"%s\", \"type\": \"function\", "
	    "\"function\": {\"name\": \"" TOOL "\", \"arguments\": %s}}]}%s]",
	    USER, contents[shape->empty], id,
	    shape->arguments_text ? "\"{\\\"" KEY "\\\": \\\"" VALUE "\\\"}\"" : "{\"" KEY "\": \"" VALUE "\"}", result);
	text = render(probe, messages, NULL, NULL);
	if (!text) /* some want to know the tools of which they see calls */
		text = render(probe, messages, NULL, TOOLS);
	good = text && (demand > DEMAND_RESULT || strstr(text, RESULT)) &&
	    (demand > DEMAND_CALL || strstr(text, TOOL) || strstr(text, id)) &&
	    (demand > DEMAND_ARGUMENTS || (strstr(text, KEY) && strstr(text, VALUE)));
	for (size_t i = 0; good && i < sizeof bad / sizeof *bad; i++)
		good = !strstr(text, bad[i]);
	if (shape->empty == CHAT_EMPTY_NULL)
		good = good && !strstr(text, "None");
	free(text);
	return good;
}

/* The plainest shape that is shown well enough, tried in this order: what clients send as it is, before what must be made up. */
static bool find_shape(struct probe *probe, enum demand demand, struct shape *ret)
{
	for (unsigned i = 0; i < 2 * 2 * 2 * 2 * 3; i++) {
		struct shape shape = { .empty = i % 3, .arguments_text = i / 3 % 2, .result_parts = i / 6 % 2, .result_names = i / 12 % 2,
			.short_ids = i / 24 % 2 };

		if (demand > DEMAND_RESULT && (shape.result_parts || shape.result_names))
			continue;
		if (call_shown(probe, &shape, demand)) {
			*ret = shape;
			return true;
		}
	}
	return false;
}

static void probe_tools(struct probe *probe, struct chat_traits *traits)
{
	struct shape shape = { .arguments_text = false };

	traits->tools = shows(probe, "[" USER "]", TOOLS, TOOL) ||
	    shows(probe, "[{\"role\": \"system\", \"content\": \"x\"}, " USER "]", TOOLS, TOOL) ||
	    shows(probe, "[" USER_PARTS "]", TOOLS, TOOL);
	traits->tool_calls = find_shape(probe, DEMAND_RESULT, &shape);
	for (enum demand demand = DEMAND_CALL; !traits->tool_calls && demand < DEMAND_COUNT; demand++)
		if (find_shape(probe, demand, &shape))
			break;
	traits->arguments_text = shape.arguments_text;
	traits->short_ids = shape.short_ids;
	traits->result_names = shape.result_names;
	if (traits->tool_calls)
		traits->parts[CHAT_ROLE_TOOL] = shape.result_parts;
	traits->empty = shape.empty;
}

/* ---- reasoning ------------------------------------------------------------------------------------------------------------- */

static const char *const effort_names[CHAT_EFFORT_COUNT] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };

const char *chat_effort_name(enum chat_effort effort) { return effort_names[effort]; }

/* WORD in TEXT, whatever its case, with no letter beside it. */
static bool has_word(const char *text, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = text; (at = strcasestr(at, word)); at++)
		if (!isalpha((unsigned char)at[len]) && (at == text || !isalpha((unsigned char)at[-1])))
			return true;
	return false;
}

static char *render_level(struct probe *probe, const char *level)
{
	char kwargs[64];

	snprintf(kwargs, sizeof kwargs, "{\"reasoning_effort\": \"%s\"}", level);
	return render(probe, "[" USER "]", kwargs, NULL);
}

/* Which levels does it tell apart?  A level is known when it makes a difference to a word that is none, or when it is named by what
 * such a word gets.  A template that writes any word it is given was trained with low, medium and high. */
static void find_levels(struct probe *probe, bool known[CHAT_EFFORT_COUNT])
{
	char *other = render_level(probe, NO_LEVEL);
	bool  any = other && strstr(other, NO_LEVEL);

	for (int i = CHAT_EFFORT_NONE; i < CHAT_EFFORT_COUNT; i++) {
		char *text = any ? NULL : render_level(probe, effort_names[i]);

		known[i] = any ? i >= CHAT_EFFORT_LOW && i <= CHAT_EFFORT_HIGH
		               : text && (!other || strcmp(text, other) || has_word(text, effort_names[i]));
		free(text);
	}
	free(other);
}

static bool switches(struct probe *probe, const char *variable)
{
	char  on[64], off[64], *with, *without;
	bool  differ;

	snprintf(on, sizeof on, "{\"%s\": true}", variable);
	snprintf(off, sizeof off, "{\"%s\": false}", variable);
	with = render(probe, "[" USER "]", on, NULL);
	without = render(probe, "[" USER "]", off, NULL);
	differ = with && without && strcmp(with, without);
	free(with);
	free(without);
	return differ;
}

/* A level that is not known becomes the next one above it, or else the next below; no reasoning is said by the switch where there
 * is one. */
static void probe_reasoning(struct probe *probe, struct chat_traits *traits)
{
	bool known[CHAT_EFFORT_COUNT] = { false }, some = false;

	traits->thinking = switches(probe, "enable_thinking") ? "enable_thinking" : switches(probe, "thinking") ? "thinking" : NULL;
	if (!jinja_reads(probe->jinja, "reasoning_effort"))
		return;
	find_levels(probe, known);
	for (int i = 0; i < CHAT_EFFORT_COUNT; i++)
		some = some || known[i];
	traits->effort = some;
	for (int i = 0; some && i < CHAT_EFFORT_COUNT; i++) {
		int at = i;

		while (at < CHAT_EFFORT_COUNT && !known[at])
			at++;
		if (at == CHAT_EFFORT_COUNT)
			for (at = i; !known[at];)
				at--;
		if (i > CHAT_EFFORT_MINIMAL || !traits->thinking)
			traits->efforts[i] = effort_names[at];
	}
}

enum status chat_probe(struct chat_variant *variant, const json_t *server, struct error *error)
{
	struct probe probe = { variant->jinja, server, false };
	json_t      *check = json_loads(TOOLS, 0, NULL);

	if (!check)
		return error_set(error, STATUS_NOMEM, "no memory for the chat template");
	json_decref(check);
	probe_parts(&probe, &variant->traits);
	probe_tools(&probe, &variant->traits);
	probe_reasoning(&probe, &variant->traits);
	return STATUS_OK;
}
