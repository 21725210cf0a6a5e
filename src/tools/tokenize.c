/* tokenize.c: `penstock tokenize` and `penstock detokenize`: JSON lines in, JSON lines out, for scripts and tests that
 * compare with other implementations.  One line in, one line out, in order; a bad line ends the run and is named. */
#include "tools/lines.h"
#include "tools/text.h"
#include "tools/tool.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES_MAX = 1024 };

static const char tokenize_help[] =
    "usage: penstock tokenize --tokenizer FILE|MODELDIR < lines > lines\n"
    "\n"
    "FILE is a tokenizer.json, a SentencePiece model or a GGUF file; --model says the same.\n"
    "Each input line is a JSON string or an object:\n"
    "  \"text\"                                  plain text: nothing in it is special\n"
    "  {\"text\": \"…\", \"add_special\": bool}      false: no tokens before and behind it (they stand there by default)\n"
    "  {\"text\": \"…\"}                          special tokens spelled in it count as such; \"special\": false: they do not\n"
    "  {\"messages\": [{\"role\", \"content\"}, …]}  rendered with the model's chat template first (GGUF)\n"
    "Each output line is {\"ids\": […]}.\n";

static const char detokenize_help[] =
    "usage: penstock detokenize --tokenizer FILE|MODELDIR < lines > lines\n"
    "\n"
    "Each input line is a JSON array of ids or {\"ids\": […], \"skip_special\": bool}; each output line is {\"text\": \"…\"}.\n"
    "Control tokens give no text unless skip_special is false; bytes that are no UTF-8 become U+FFFD.\n";

static enum status encode_messages(const struct tool_text *text, json_t *messages, struct token_list *ret, struct error *error)
{
	if (!text->chat)
		return error_set(error, STATUS_UNSUPPORTED, "messages: the model has no chat template that is known here");
	return tool_text_encode_chat(text, messages, ret, error);
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
		    json_is_object(in) && !json_is_false(json_object_get(in, "special")), !json_is_false(json_object_get(in,
		    "add_special")), &list, error);
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
	buf_init(&out, TOOL_LINE_MAX);
	detokenizer_init(&detokenizer, text->vocab);
	if (json_is_false(json_object_get(in, "skip_special")))
		detokenizer_show_special(&detokenizer);
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
		error_set(error, status, "the text is longer than %d bytes", TOOL_LINE_MAX);
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
		{ "tokenizer", required_argument, NULL, 'm' },
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
		return tool_usage(command, "--tokenizer FILE|MODELDIR is needed");
	/* A model without a known chat template still tokenizes plain text. */
	if ((!with_chat || tool_text_open(model, true, &text, &error)) && tool_text_open(model, false, &text, &error))
		return tool_fail(command, &error);
	buf_init(&line, TOOL_LINE_MAX);
	for (size_t number = 1;; number++) {
		json_error_t where;
		json_t      *in, *out = NULL;

		status = tool_read_line(stdin, &line, &why);
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
