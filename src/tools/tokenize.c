/* tokenize.c: `penstock tokenize` and `penstock detokenize`: JSON lines in, JSON lines out, for scripts and tests that
 * compare with other implementations.  One line in, one line out, in order; a bad line ends the run and is named. */
#include "base/buf.h"
#include "tools/text.h"
#include "tools/tool.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 64 << 20, CHUNK = 65536, MESSAGES_MAX = 1024 };

static const char tokenize_help[] =
    "usage: penstock tokenize --model FILE < lines > lines\n"
    "\n"
    "Each input line is a JSON string or an object:\n"
    "  \"text\"                                  plain text\n"
    "  {\"text\": \"…\", \"special\": true}          special tokens spelled in it count as such\n"
    "  {\"messages\": [{\"role\", \"content\"}, …]}  rendered with the model's chat template first\n"
    "Each output line is {\"ids\": […]}.\n";

static const char detokenize_help[] =
    "usage: penstock detokenize --model FILE < lines > lines\n"
    "\n"
    "Each input line is a JSON array of ids or {\"ids\": […]}; each output line is {\"text\": \"…\"}.\n"
    "Control tokens give no text; bytes that are no UTF-8 become U+FFFD.\n";

/* Reads one line without its newline.  STATUS_OK, STATUS_GONE at the end of the input. */
static enum status read_line(FILE *stream, struct buf *line, struct error *error)
{
	char chunk[CHUNK];

	buf_clear(line);
	while (fgets(chunk, sizeof chunk, stream)) {
		size_t len = strlen(chunk);
		bool   end = len > 0 && chunk[len - 1] == '\n';

		if (buf_append(line, chunk, len - end))
			return error_set(error, STATUS_LIMIT, "the line is longer than %d bytes", LINE_MAX_BYTES);
		if (end)
			return STATUS_OK;
	}
	if (ferror(stream))
		return error_set(error, STATUS_IO, "cannot read the input");
	return line->len ? STATUS_OK : STATUS_GONE;
}

static enum status encode_messages(const struct tool_text *text, json_t *messages, struct token_list *ret, struct error *error)
{
	struct chat_message list[MESSAGES_MAX];
	size_t              i, count = json_array_size(messages);
	json_t             *message;

	if (!json_is_array(messages) || count == 0 || count > MESSAGES_MAX)
		return error_set(error, STATUS_INVALID, "messages: an array of 1 to %d messages is needed", MESSAGES_MAX);
	if (!text->chat)
		return error_set(error, STATUS_UNSUPPORTED, "messages: the model has no chat template that is known here");
	json_array_foreach(messages, i, message) {
		json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");

		if (!json_is_string(role) || !json_is_string(content))
			return error_set(error, STATUS_INVALID, "messages[%zu]: role and content must be strings", i);
		list[i] = (struct chat_message){ json_string_value(role), json_string_value(content), json_string_length(content) };
	}
	return tool_text_encode_chat(text, list, count, ret, error);
}

static enum status tokenize_line(const struct tool_text *text, json_t *in, json_t **ret, struct error *error)
{
	struct token_list list = { NULL, 0, 0 };
	json_t           *plain = json_is_string(in) ? in : json_object_get(in, "text");
	json_t           *ids;
	enum status       status;

	if (json_object_get(in, "messages"))
		status = encode_messages(text, json_object_get(in, "messages"), &list, error);
	else if (json_is_string(plain))
		status = tool_text_encode(text, json_string_value(plain), json_string_length(plain),
		    json_is_true(json_object_get(in, "special")), &list, error);
	else
		status = error_set(error, STATUS_INVALID, "a string, or an object with text or messages, is needed");
	if (status)
		return status;
	ids = json_array();
	for (size_t i = 0; i < list.count; i++)
		json_array_append_new(ids, json_integer(list.ids[i]));
	token_list_free(&list);
	*ret = json_pack("{s:o}", "ids", ids);
	return *ret ? STATUS_OK : error_set(error, STATUS_NOMEM, "out of memory");
}

static enum status detokenize_line(const struct tool_text *text, json_t *in, json_t **ret, struct error *error)
{
	struct detokenizer detokenizer;
	struct buf         out;
	json_t            *ids = json_is_array(in) ? in : json_object_get(in, "ids"), *id;
	size_t             i;
	enum status        status = STATUS_OK;

	if (!json_is_array(ids))
		return error_set(error, STATUS_INVALID, "an array of ids is needed");
	buf_init(&out, LINE_MAX_BYTES);
	detokenizer_init(&detokenizer, text->vocab);
	json_array_foreach(ids, i, id) {
		json_int_t value = json_integer_value(id);

		if (!json_is_integer(id) || value < 0 || value >= (json_int_t)vocab_size(text->vocab)) {
			status = error_set(error, STATUS_INVALID, "ids[%zu]: not an id in 0…%u", i, vocab_size(text->vocab) - 1);
			goto out;
		}
		status = detokenizer_push(&detokenizer, (int32_t)value, &out);
		if (status)
			break;
	}
	if (!status)
		status = detokenizer_finish(&detokenizer, &out);
	if (status) {
		error_set(error, status, "the text is longer than %d bytes", LINE_MAX_BYTES);
		goto out;
	}
	*ret = json_pack("{s:s%}", "text", out.len ? out.data : "", out.len);
	if (!*ret)
		status = error_set(error, STATUS_INTERNAL, "the text is not UTF-8");
out:
	buf_free(&out);
	return status;
}

typedef enum status line_function(const struct tool_text *text, json_t *in, json_t **ret, struct error *error);

static int run(const char *command, const char *help, bool with_chat, line_function *each, int argc, char **argv)
{
	static const struct option options[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char      *model = NULL;
	struct tool_text text;
	struct error     error, why;
	struct buf       line;
	enum status      status;
	int              c;

	while ((c = getopt_long(argc, argv, "m:h", options, NULL)) != -1) {
		switch (c) {
		case 'm':
			model = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		default:
			return tool_usage(command, "wrong option");
		}
	}
	if (optind < argc)
		return tool_usage(command, "unexpected argument %s", argv[optind]);
	if (!model)
		return tool_usage(command, "--model FILE is needed");
	/* A model without a known chat template still tokenizes plain text. */
	if ((!with_chat || tool_text_open(model, true, &text, &error)) && tool_text_open(model, false, &text, &error))
		return tool_fail(command, &error);
	buf_init(&line, LINE_MAX_BYTES);
	for (size_t number = 1;; number++) {
		json_error_t where;
		json_t      *in, *out = NULL;

		status = read_line(stdin, &line, &why);
		if (status) {
			error_set(&error, status, "line %zu: %.400s", number, status == STATUS_GONE ? "end" : why.message);
			break;
		}
		in = json_loadb(line.len ? line.data : "", line.len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);
		if (in)
			status = each(&text, in, &out, &why);
		else
			status = error_set(&why, STATUS_BAD_JSON, "column %d: %s", where.column, where.text);
		json_decref(in);
		if (status) {
			error_set(&error, status, "line %zu: %.400s", number, why.message);
			break;
		}
		json_dumpf(out, stdout, JSON_COMPACT);
		putchar('\n');
		json_decref(out);
	}
	buf_free(&line);
	tool_text_close(&text);
	if (status == STATUS_GONE)
		return TOOL_OK;
	return tool_fail(command, &error);
}

int tool_tokenize(int argc, char **argv) { return run("tokenize", tokenize_help, true, tokenize_line, argc, argv); }

int tool_detokenize(int argc, char **argv) { return run("detokenize", detokenize_help, false, detokenize_line, argc, argv); }
