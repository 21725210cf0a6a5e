/* bench_dataset_file.c: owns reading datasets from files: JSON lines here, traces by the simulator's reader.  Nothing in them
 * is trusted: every value has a range, every message names file, line and what was wrong.  Invariant: rows read keep the
 * limits of bench_dataset.h; those of a trace are sorted by arrival, equal ones in the order of the file. */
#include "tools/bench_dataset_file.h"

#include "api/json_text.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place { /* where a message points */
	const char *name;
	size_t      line;
};

static enum status add_row(struct bench_dataset *dataset, const struct bench_item *row, const struct place *place,
    struct error *error)
{
	if (dataset->row_count == BENCH_REQUESTS_MAX)
		return error_set(error, STATUS_LIMIT, "%s:%zu: more than %d requests", place->name, place->line, BENCH_REQUESTS_MAX);
	if (dataset->row_count == dataset->row_capacity) {
		size_t             capacity = dataset->row_capacity ? dataset->row_capacity * 2 : 64;
		struct bench_item *grown = realloc(dataset->rows, capacity * sizeof *grown);
		if (!grown)
			return error_set(error, STATUS_NOMEM, "out of memory");
		dataset->rows = grown;
		dataset->row_capacity = capacity;
	}
	dataset->rows[dataset->row_count++] = *row;
	return STATUS_OK;
}

/* ---- JSON lines ---------------------------------------------------------------------------------------------------- */

/* Is it what the API calls messages?  Contents are the server's to judge. */
static bool is_messages(const json_t *messages)
{
	for (size_t i = 0; i < json_array_size(messages); i++)
		if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
			return false;
	return json_array_size(messages) > 0;
}

static enum status take_output(const json_t *line, uint32_t fallback, uint32_t *ret, const struct place *place,
    struct error *error)
{
	static const char *const names[] = { "max_tokens", "output_tokens" };

	*ret = fallback;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		const json_t *value = json_object_get(line, names[i]);
		if (!value || json_is_null(value))
			continue;
		if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > BENCH_OUTPUT_MAX)
			return error_set(error, STATUS_INVALID, "%s:%zu: %s is not a whole number in 1…%d", place->name, place->line, names[i],
			    BENCH_OUTPUT_MAX);
		*ret = (uint32_t)json_integer_value(value);
		return STATUS_OK;
	}
	return STATUS_OK;
}

static uint32_t count_words(const char *text, size_t len)
{
	uint32_t count = 0;

	for (size_t i = 0; i < len; i++)
		count += text[i] != ' ' && (i == 0 || text[i - 1] == ' ');
	return count;
}

static enum status take_line(struct bench_dataset *dataset, const json_t *line, const struct place *place, struct error *error)
{
	const json_t     *prompt = json_object_get(line, "prompt"), *messages = json_object_get(line, "messages");
	struct bench_item row = { .cancel_after_s = -1 };
	enum status       status = take_output(line, dataset->options.output_tokens, &row.output_tokens, place, error);

	if (status)
		return status;
	if (!prompt == !messages)
		return error_set(error, STATUS_INVALID, "%s:%zu: a line holds either prompt or messages", place->name, place->line);
	if (prompt && !json_is_string(prompt))
		return error_set(error, STATUS_INVALID, "%s:%zu: prompt is %s, not a string", place->name, place->line,
		    json_text_type(prompt));
	if (messages && !is_messages(messages))
		return error_set(error, STATUS_INVALID, "%s:%zu: messages is not an array of objects with a role", place->name,
		    place->line);
	if (messages && !dataset->options.chat)
		return error_set(error, STATUS_INVALID, "%s:%zu: messages need --backend openai-chat", place->name, place->line);
	if (prompt)
		row.input_tokens = count_words(json_string_value(prompt), json_string_length(prompt));
	if (messages)
		row.content = json_deep_copy(messages);
	else if (dataset->options.chat)
		row.content = json_pack("[{s:s, s:o}]", "role", "user", "content", json_deep_copy(prompt));
	else
		row.content = json_deep_copy(prompt);
	if (!row.content)
		return error_set(error, STATUS_NOMEM, "out of memory");
	status = add_row(dataset, &row, place, error);
	if (status)
		json_decref((json_t *)row.content);
	return status;
}

static bool blank(const char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!memchr(" \t\r", bytes[i], 3))
			return false;
	return true;
}

/* One line from *AT on, without its end; false at the end of the bytes. */
static bool next_line(const char *bytes, size_t len, size_t *at, const char **ret_line, size_t *ret_len)
{
	const char *line, *end;

	if (*at >= len)
		return false;
	line = bytes + *at;
	end = memchr(line, '\n', len - *at);
	*ret_len = end ? (size_t)(end - line) : len - *at;
	*at += *ret_len + (end != NULL);
	*ret_len -= *ret_len && line[*ret_len - 1] == '\r';
	*ret_line = line;
	return true;
}

enum status bench_dataset_read_custom(struct bench_dataset *dataset, const char *name, const char *bytes, size_t len,
    struct error *error)
{
	struct place place = { name, 0 };
	const char  *line;
	size_t       at = 0, line_len;

	while (next_line(bytes, len, &at, &line, &line_len)) {
		struct error why;
		json_t      *root;
		enum status  status;

		place.line++;
		if (blank(line, line_len))
			continue;
		status = json_text_load(line, line_len, BENCH_LINE_DEPTH_MAX, &root, &why);
		if (status)
			return error_set(error, status, "%s:%zu: %.400s", place.name, place.line, why.message);
		status = take_line(dataset, root, &place, error);
		json_decref(root);
		if (status)
			return status;
	}
	return STATUS_OK;
}

/* ---- traces -------------------------------------------------------------------------------------------------------- */

static enum status take_request(struct bench_dataset *dataset, const struct sim_request *request, const char *name,
    struct error *error)
{
	struct place      place = { name, request->number + 2 }; /* in a file without empty lines */
	struct bench_item row = { .cancel_after_s = -1, .key = request->key, .input_tokens = request->prompt_tokens,
		.output_tokens = request->output_tokens, .arrival_s = (double)request->arrival_ns / (double)CLOCK_NS_PER_S };

	if (request->prompt_tokens > BENCH_WORDS_MAX || request->output_tokens > BENCH_OUTPUT_MAX)
		return error_set(error, STATUS_LIMIT, "%s: request %u: prompt_tokens = %u and output_tokens = %u may be %d and %d at most",
		    name, request->number + 1, request->prompt_tokens, request->output_tokens, BENCH_WORDS_MAX, BENCH_OUTPUT_MAX);
	if (request->cancel_ns != SIM_NEVER)
		row.cancel_after_s = (double)request->cancel_ns / (double)CLOCK_NS_PER_S;
	if (request->prefix) { /* else its beginning is shared with nobody */
		row.prefix_tokens = request->prefix_tokens;
		row.prefix_stream = request->prefix;
	}
	row.has_priority = dataset->options.classes;
	row.priority = request->class;
	return add_row(dataset, &row, &place, error);
}

enum status bench_dataset_read_trace(struct bench_dataset *dataset, const char *name, FILE *stream, struct error *error)
{
	enum status status = sim_trace_init(&dataset->trace);

	if (status)
		return error_set(error, status, "out of memory");
	status = sim_trace_read(stream, name, &dataset->trace, error);
	for (uint32_t i = 0; i < dataset->trace.count && !status; i++)
		status = take_request(dataset, &dataset->trace.requests[i], name, error);
	return status;
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

static enum status read_file(FILE *file, const char *path, struct buf *ret, struct error *error)
{
	enum status status = STATUS_OK;
	char        piece[65536];
	size_t      n;

	while (!status && (n = fread(piece, 1, sizeof piece, file)) > 0)
		status = buf_append(ret, piece, n);
	if (status == STATUS_LIMIT)
		return error_set(error, status, "%s has more than %d bytes", path, BENCH_FILE_MAX);
	if (status)
		return error_set(error, status, "out of memory while reading %s", path);
	return ferror(file) ? error_set(error, STATUS_IO, "cannot read %s: %s", path, strerror(errno)) : STATUS_OK;
}

enum status bench_dataset_open(const struct bench_dataset_options *options, struct bench_dataset *ret, struct error *error)
{
	struct bench_dataset dataset = { .options = *options };
	struct buf           bytes;
	enum status          status;
	FILE                *file;

	if (options->kind != BENCH_DATASET_CUSTOM && options->kind != BENCH_DATASET_TRACE) {
		*ret = dataset;
		return STATUS_OK;
	}
	file = fopen(options->path, "rb");
	if (!file)
		return error_set(error, STATUS_IO, "cannot open %s: %s", options->path, strerror(errno));
	buf_init(&bytes, BENCH_FILE_MAX);
	if (options->kind == BENCH_DATASET_TRACE) {
		status = bench_dataset_read_trace(&dataset, options->path, file, error);
	} else {
		status = read_file(file, options->path, &bytes, error);
		if (!status)
			status = bench_dataset_read_custom(&dataset, options->path, bytes.data, bytes.len, error);
	}
	fclose(file);
	buf_free(&bytes);
	if (!status && !dataset.row_count)
		status = error_set(error, STATUS_INVALID, "%s holds no request", options->path);
	if (status)
		bench_dataset_close(&dataset);
	else
		*ret = dataset;
	return status;
}

void bench_dataset_close(struct bench_dataset *dataset)
{
	if (!dataset)
		return;
	for (size_t i = 0; i < dataset->row_count; i++)
		json_decref((json_t *)dataset->rows[i].content);
	free(dataset->rows);
	sim_trace_free(&dataset->trace);
	memset(dataset, 0, sizeof *dataset);
}
