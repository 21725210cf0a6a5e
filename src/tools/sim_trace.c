/* sim_trace.c: owns the CSV format of traces, in both directions, and the tables of names.  Does not own what a trace means.
 *
 * The file is a stranger's: it is read through one buffer of fixed size, every line has a maximum, every value a range.
 * Invariant: what sim_trace_read accepts keeps every limit of sim_trace.h; what sim_trace_write wrote reads back equal. */
#include "tools/sim_trace.h"

#include "base/bytes.h"
#include "base/hash.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------------------------- */

static enum status names_rehash(struct sim_names *names, uint32_t slot_count)
{
	uint32_t *slots = calloc(slot_count, sizeof *slots);

	if (!slots)
		return STATUS_NOMEM;
	for (uint32_t i = 0; i < names->count; i++) {
		uint64_t slot = hash_fnv1a(HASH_FNV1A_START, names->names[i], strlen(names->names[i]));
		while (slots[slot & (slot_count - 1)])
			slot++;
		slots[slot & (slot_count - 1)] = i + 1;
	}
	free(names->slots);
	names->slots = slots;
	names->slot_count = slot_count;
	return STATUS_OK;
}

static enum status names_append(struct sim_names *names, const char *name, size_t len)
{
	if (names->count == SIM_NAMES_MAX)
		return STATUS_LIMIT;
	if (names->count == names->capacity) {
		uint32_t capacity = names->capacity ? 2 * names->capacity : 16;
		char   **grown = realloc(names->names, capacity * sizeof *grown);

		if (!grown)
			return STATUS_NOMEM;
		names->names = grown;
		names->capacity = capacity;
	}
	names->names[names->count] = strndup(name, len);
	if (!names->names[names->count])
		return STATUS_NOMEM;
	names->count++;
	return STATUS_OK;
}

enum status sim_names_number(struct sim_names *names, const char *name, size_t len, uint32_t *ret)
{
	uint64_t    slot = hash_fnv1a(HASH_FNV1A_START, name, len);
	enum status status;

	if (2 * names->count >= names->slot_count) {
		status = names_rehash(names, names->slot_count ? 2 * names->slot_count : 64);
		if (status)
			return status;
	}
	for (;; slot++) {
		uint32_t entry = names->slots[slot & (names->slot_count - 1)];

		if (!entry)
			break;
		if (strncmp(names->names[entry - 1], name, len) == 0 && names->names[entry - 1][len] == '\0') {
			*ret = entry - 1;
			return STATUS_OK;
		}
	}
	status = names_append(names, name, len);
	if (status)
		return status;
	names->slots[slot & (names->slot_count - 1)] = names->count;
	*ret = names->count - 1;
	return STATUS_OK;
}

static void names_free(struct sim_names *names)
{
	for (uint32_t i = 0; i < names->count; i++)
		free(names->names[i]);
	free(names->names);
	free(names->slots);
}

/* ---- the trace in memory ------------------------------------------------------------------------------------------- */

enum status sim_trace_init(struct sim_trace *trace)
{
	uint32_t    number;
	enum status status;

	*trace = (struct sim_trace){ .requests = NULL };
	status = sim_names_number(&trace->keys, "", 0, &number);
	if (!status)
		status = sim_names_number(&trace->prefixes, "", 0, &number);
	return status;
}

void sim_trace_free(struct sim_trace *trace)
{
	free(trace->requests);
	names_free(&trace->keys);
	names_free(&trace->prefixes);
	*trace = (struct sim_trace){ .requests = NULL };
}

enum status sim_trace_append(struct sim_trace *trace, const struct sim_request *request)
{
	if (trace->count == SIM_REQUESTS_MAX)
		return STATUS_LIMIT;
	if (trace->count == trace->capacity) {
		uint32_t            capacity = trace->capacity ? 2 * trace->capacity : 1024;
		struct sim_request *grown = realloc(trace->requests, capacity * sizeof *grown);

		if (!grown)
			return STATUS_NOMEM;
		trace->requests = grown;
		trace->capacity = capacity;
	}
	trace->requests[trace->count] = *request;
	trace->requests[trace->count].number = trace->count;
	trace->count++;
	return STATUS_OK;
}

static int by_arrival(const void *left, const void *right)
{
	const struct sim_request *a = left, *b = right;

	if (a->arrival_ns != b->arrival_ns)
		return a->arrival_ns < b->arrival_ns ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

void sim_trace_sort(struct sim_trace *trace)
{
	for (uint32_t i = 1; i < trace->count; i++)
		if (by_arrival(&trace->requests[i - 1], &trace->requests[i]) > 0) {
			qsort(trace->requests, trace->count, sizeof *trace->requests, by_arrival);
			return;
		}
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

enum column {
	COLUMN_ARRIVAL,
	COLUMN_KEY,
	COLUMN_CLASS,
	COLUMN_PROMPT,
	COLUMN_PREFIX,
	COLUMN_PREFIX_TOKENS,
	COLUMN_OUTPUT,
	COLUMN_CANCEL,
	COLUMN_COUNT
};

/* In the order in which they are written. */
static const struct {
	const char *name;
	bool        required;
} columns[COLUMN_COUNT] = {
	[COLUMN_ARRIVAL] = { "arrival_s", true },
	[COLUMN_KEY] = { "key", false },
	[COLUMN_CLASS] = { "class", false },
	[COLUMN_PROMPT] = { "prompt_tokens", true },
	[COLUMN_PREFIX] = { "shared_prefix_id", false },
	[COLUMN_PREFIX_TOKENS] = { "shared_prefix_tokens", false },
	[COLUMN_OUTPUT] = { "output_tokens", true },
	[COLUMN_CANCEL] = { "cancel_after_s", false },
};

struct field {
	const char *bytes;
	size_t      len;
};

struct reader {
	FILE            *stream;
	const char      *name;
	struct error    *error;
	struct sim_trace *trace;
	uint64_t         line;                      /* of the file, from 1 */
	char             text[SIM_LINE_MAX + 1];    /* of the line, terminated */
	size_t           len;
	unsigned         order[COLUMN_COUNT];       /* column at each place of a line */
	unsigned         count;                     /* places */
	char             buffer[1 << 16];
	size_t           begin, end;                /* unread bytes of the buffer */
};

static enum status bad(struct reader *r, enum status status, const char *what)
{
	return error_set(r->error, status, "%.160s: line %llu: %s", r->name, (unsigned long long)r->line, what);
}

static enum status bad_value(struct reader *r, enum column column, struct field field, const char *limit)
{
	char quoted[BYTES_QUOTE_MAX];

	return error_set(r->error, STATUS_INVALID, "%.160s: line %llu, column %s: %s is not %s", r->name,
	    (unsigned long long)r->line, columns[column].name, bytes_quote(quoted, field.bytes, field.len), limit);
}

/* The next line without its end.  STATUS_AGAIN at the end of the file. */
static enum status next_line(struct reader *r)
{
	bool ended = false, any = false;

	r->len = 0;
	r->line++;
	while (!ended) {
		const char *found;
		size_t      size;

		if (r->begin == r->end) {
			r->begin = 0;
			r->end = fread(r->buffer, 1, sizeof r->buffer, r->stream);
			if (r->end == 0 && ferror(r->stream))
				return error_set(r->error, STATUS_IO, "%.160s: cannot read: %s", r->name, strerror(errno));
			if (r->end == 0)
				break;
		}
		any = true;
		found = memchr(r->buffer + r->begin, '\n', r->end - r->begin);
		size = (found ? (size_t)(found - r->buffer) : r->end) - r->begin;
		if (size > SIM_LINE_MAX - r->len)
			return error_set(r->error, STATUS_LIMIT, "%.160s: line %llu has more than %d bytes", r->name,
			    (unsigned long long)r->line, SIM_LINE_MAX);
		memcpy(r->text + r->len, r->buffer + r->begin, size);
		r->len += size;
		r->begin += size + (found != NULL);
		ended = found != NULL;
	}
	if (!any)
		return STATUS_AGAIN;
	if (r->len && r->text[r->len - 1] == '\r')
		r->len--;
	r->text[r->len] = '\0';
	if (memchr(r->text, '\0', r->len))
		return bad(r, STATUS_INVALID, "a NUL byte");
	return STATUS_OK;
}

/* Splits the line, taking quotes away in place.  *RET_COUNT is COLUMN_COUNT + 1 when there are more. */
static enum status split(struct reader *r, struct field ret[COLUMN_COUNT + 1], unsigned *ret_count)
{
	char    *at = r->text, *end = r->text + r->len;
	unsigned count = 0;

	for (;; at++) {
		char *begin = at, *to;

		if (*at == '"') {
			begin = to = ++at;
			while (at < end && (*at != '"' || at[1] == '"')) {
				at += *at == '"';
				*to++ = *at++;
			}
			if (at == end)
				return bad(r, STATUS_INVALID, "a quoted field has no end");
			at++;
		} else {
			while (at < end && *at != ',')
				at++;
			to = at;
		}
		if (at < end && *at != ',')
			return bad(r, STATUS_INVALID, "text after a quoted field");
		if (count <= COLUMN_COUNT)
			ret[count++] = (struct field){ begin, (size_t)(to - begin) };
		if (at == end)
			break;
	}
	*ret_count = count;
	return STATUS_OK;
}

/* Without blanks around it. */
static struct field trim(struct field field)
{
	while (field.len && (*field.bytes == ' ' || *field.bytes == '\t'))
		field.bytes++, field.len--;
	while (field.len && (field.bytes[field.len - 1] == ' ' || field.bytes[field.len - 1] == '\t'))
		field.len--;
	return field;
}

static enum status read_header(struct reader *r)
{
	struct field fields[COLUMN_COUNT + 1];
	bool         seen[COLUMN_COUNT] = { false };
	enum status  status = next_line(r);

	if (status == STATUS_AGAIN)
		return error_set(r->error, STATUS_INVALID, "%.160s: the file is empty; a header line with arrival_s, prompt_tokens and "
		    "output_tokens is needed", r->name);
	if (!status && r->len >= 3 && memcmp(r->text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
		r->len -= 3;
		memmove(r->text, r->text + 3, r->len + 1);
	}
	if (!status)
		status = split(r, fields, &r->count);
	if (status)
		return status;
	if (r->count > COLUMN_COUNT)
		return error_set(r->error, STATUS_INVALID, "%.160s: line 1 has more than the %d columns there are", r->name, COLUMN_COUNT);
	for (unsigned i = 0; i < r->count; i++) {
		struct field field = trim(fields[i]);
		unsigned     c = 0;
		char         quoted[BYTES_QUOTE_MAX];

		while (c < COLUMN_COUNT && (strlen(columns[c].name) != field.len || memcmp(columns[c].name, field.bytes, field.len)))
			c++;
		if (c == COLUMN_COUNT || seen[c])
			return error_set(r->error, STATUS_INVALID, "%.160s: line 1, column %u: %s is %s; columns are arrival_s, key, class, "
			    "prompt_tokens, shared_prefix_id, shared_prefix_tokens, output_tokens and cancel_after_s", r->name, i + 1,
			    bytes_quote(quoted, field.bytes, field.len), c == COLUMN_COUNT ? "no column of a trace" : "there twice");
		seen[c] = true;
		r->order[i] = c;
	}
	for (unsigned c = 0; c < COLUMN_COUNT; c++)
		if (columns[c].required && !seen[c])
			return error_set(r->error, STATUS_INVALID, "%.160s: line 1: column %s is missing", r->name, columns[c].name);
	return STATUS_OK;
}

static bool parse_whole(struct field field, int64_t min, int64_t max, int64_t *ret)
{
	bool    negative = field.len && *field.bytes == '-';
	int64_t value = 0;

	if (field.len == (size_t)negative || field.len > 18)
		return false;
	for (size_t i = negative; i < field.len; i++) {
		if (field.bytes[i] < '0' || field.bytes[i] > '9')
			return false;
		value = value * 10 + (field.bytes[i] - '0');
	}
	value = negative ? -value : value;
	if (value < min || value > max)
		return false;
	*ret = value;
	return true;
}

static bool parse_seconds(struct field field, uint64_t *ret_ns)
{
	char   text[64], *end;
	double value;

	if (field.len == 0 || field.len >= sizeof text || strspn(field.bytes, "0123456789.eE+-") < field.len)
		return false;
	memcpy(text, field.bytes, field.len);
	text[field.len] = '\0';
	value = strtod(text, &end);
	if (*end || !(value >= 0 && value <= SIM_SECONDS_MAX))
		return false;
	*ret_ns = (uint64_t)llround(value * 1e9);
	return true;
}

static enum status parse_name(struct reader *r, enum column column, struct field field, struct sim_names *names, uint32_t *ret)
{
	enum status status;

	if (field.len > SIM_NAME_MAX)
		return bad_value(r, column, field, "at most 64 bytes long");
	status = sim_names_number(names, field.bytes, field.len, ret);
	if (status == STATUS_LIMIT)
		return bad_value(r, column, field, "among the first 65,536 different names, which is the limit");
	return status ? bad(r, status, "out of memory") : STATUS_OK;
}

static enum status parse_field(struct reader *r, enum column column, struct field field, struct sim_request *request)
{
	int64_t value = 0;

	field = trim(field);
	if (field.len == 0 && !columns[column].required)
		return STATUS_OK;
	switch (column) {
	case COLUMN_ARRIVAL:
	case COLUMN_CANCEL:
		if (!parse_seconds(field, column == COLUMN_ARRIVAL ? &request->arrival_ns : &request->cancel_ns))
			return bad_value(r, column, field, "a number of seconds in 0…1e9");
		return STATUS_OK;
	case COLUMN_KEY:
		return parse_name(r, column, field, &r->trace->keys, &request->key);
	case COLUMN_PREFIX:
		return parse_name(r, column, field, &r->trace->prefixes, &request->prefix);
	case COLUMN_CLASS:
		if (!parse_whole(field, INT32_MIN, INT32_MAX, &value))
			return bad_value(r, column, field, "a whole number in -2147483648…2147483647");
		request->class = (int32_t)value;
		return STATUS_OK;
	default:
		if (!parse_whole(field, column == COLUMN_PREFIX_TOKENS ? 0 : 1, SIM_TOKENS_MAX, &value))
			return bad_value(r, column, field,
			    column == COLUMN_PREFIX_TOKENS ? "a whole number in 0…16777216" : "a whole number in 1…16777216");
		*(column == COLUMN_PROMPT       ? &request->prompt_tokens
		    : column == COLUMN_OUTPUT ? &request->output_tokens
		                              : &request->prefix_tokens) = (uint32_t)value;
		return STATUS_OK;
	}
}

static enum status read_line(struct reader *r)
{
	struct field       fields[COLUMN_COUNT + 1];
	struct sim_request request = { .cancel_ns = SIM_NEVER };
	unsigned           count;
	enum status        status = split(r, fields, &count);

	if (status)
		return status;
	if (count != r->count)
		return error_set(r->error, STATUS_INVALID, "%.160s: line %llu has %s%u fields, the header has %u", r->name,
		    (unsigned long long)r->line, count > COLUMN_COUNT ? "more than " : "", count > COLUMN_COUNT ? COLUMN_COUNT : count,
		    r->count);
	for (unsigned i = 0; i < count && !status; i++)
		status = parse_field(r, (enum column)r->order[i], fields[i], &request);
	if (status)
		return status;
	if (request.prefix_tokens > request.prompt_tokens)
		return error_set(r->error, STATUS_INVALID, "%.160s: line %llu, column shared_prefix_tokens: %u is more than prompt_tokens "
		    "= %u", r->name, (unsigned long long)r->line, request.prefix_tokens, request.prompt_tokens);
	status = sim_trace_append(r->trace, &request);
	if (status == STATUS_LIMIT)
		return error_set(r->error, STATUS_LIMIT, "%.160s: line %llu: more than %d requests", r->name, (unsigned long long)r->line,
		    SIM_REQUESTS_MAX);
	return status ? bad(r, status, "out of memory") : STATUS_OK;
}

enum status sim_trace_read(FILE *stream, const char *name, struct sim_trace *ret, struct error *error)
{
	struct reader *r = calloc(1, sizeof *r);
	enum status    status;

	if (!r)
		return error_set(error, STATUS_NOMEM, "%.160s: no memory to read it", name);
	r->stream = stream;
	r->name = name;
	r->error = error;
	r->trace = ret;
	status = read_header(r);
	while (!status) {
		status = next_line(r);
		if (!status && trim((struct field){ r->text, r->len }).len)
			status = read_line(r);
	}
	free(r);
	if (status != STATUS_AGAIN)
		return status;
	sim_trace_sort(ret);
	return STATUS_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void write_name(FILE *stream, const char *name)
{
	/* Blanks at an end would be trimmed; the reader cannot have let a line break in. */
	if (!strpbrk(name, "\","))  {
		fputs(name, stream);
		return;
	}
	putc('"', stream);
	for (; *name; name++) {
		if (*name == '"')
			putc('"', stream);
		putc(*name, stream);
	}
	putc('"', stream);
}

static void write_seconds(FILE *stream, uint64_t ns)
{
	fprintf(stream, "%llu.%09llu", (unsigned long long)(ns / 1000000000), (unsigned long long)(ns % 1000000000));
}

enum status sim_trace_write(const struct sim_trace *trace, FILE *stream)
{
	for (unsigned c = 0; c < COLUMN_COUNT; c++)
		fprintf(stream, "%s%c", columns[c].name, c + 1 < COLUMN_COUNT ? ',' : '\n');
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct sim_request *request = &trace->requests[i];

		write_seconds(stream, request->arrival_ns);
		putc(',', stream);
		write_name(stream, trace->keys.names[request->key]);
		fprintf(stream, ",%d,%u,", request->class, request->prompt_tokens);
		write_name(stream, trace->prefixes.names[request->prefix]);
		fprintf(stream, ",%u,%u,", request->prefix_tokens, request->output_tokens);
		if (request->cancel_ns != SIM_NEVER)
			write_seconds(stream, request->cancel_ns);
		putc('\n', stream);
	}
	return ferror(stream) ? STATUS_IO : STATUS_OK;
}
