/* params.c: owns the table made from params.def and every rule that one row can express.  Does not know what fields are for,
 * nor rules across fields (request.c).  Invariant: a struct params that left params_parse satisfies every range of
 * params.def. */
#include "api/params.h"

#include "api/json_text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum need { OPTIONAL, REQUIRED };

static const struct param rows[] = {
#define PARAM_TEXT(e, n, need, hi, d) \
	{ #n, PARAM_KIND_TEXT, PARAMS_##e, need, offsetof(struct params, n), 0, 0, hi, 0, 0, 0, "", d },
#define PARAM_INT(e, n, v, lo, hi, d) \
	{ #n, PARAM_KIND_INT, PARAMS_##e, false, offsetof(struct params, n), v, lo, hi, 0, 0, 0, "", d },
#define PARAM_REAL(e, n, v, lo, hi, d) \
	{ #n, PARAM_KIND_REAL, PARAMS_##e, false, offsetof(struct params, n), 0, 0, 0, v, lo, hi, "", d },
#define PARAM_BOOL(e, n, v, d) \
	{ #n, PARAM_KIND_BOOL, PARAMS_##e, false, offsetof(struct params, n), v, 0, 1, 0, 0, 0, "", d },
#define PARAM_JSON(e, n, need, shape, d) \
	{ #n, PARAM_KIND_JSON, PARAMS_##e, need, offsetof(struct params, n), 0, 0, 0, 0, 0, 0, shape, d },
#define PARAM_NEUTRAL(e, n, values, d) { #n, PARAM_KIND_NEUTRAL, PARAMS_##e, false, 0, 0, 0, 0, 0, 0, 0, values, d },
#include "api/params.def"
#undef PARAM_TEXT
#undef PARAM_INT
#undef PARAM_REAL
#undef PARAM_BOOL
#undef PARAM_JSON
#undef PARAM_NEUTRAL
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

const struct param *params_table(size_t *ret_count)
{
	*ret_count = ROW_COUNT;
	return rows;
}

const struct param *params_find(const char *name)
{
	for (size_t i = 0; i < ROW_COUNT; i++)
		if (!strcmp(rows[i].name, name))
			return &rows[i];
	return NULL;
}

static void *member(struct params *params, const struct param *row) { return (char *)params + row->offset; }

static const struct param *find(const char *name, unsigned endpoint)
{
	for (size_t i = 0; i < ROW_COUNT; i++)
		if ((rows[i].endpoints & endpoint) && !strcmp(rows[i].name, name))
			return &rows[i];
	return NULL;
}

static enum status wrong_type(const struct param *row, const char *wanted, const json_t *value, struct error *error)
{
	return error_set_param(error, STATUS_INVALID, row->name, "%s: %s is expected, not %s", row->name, wanted,
	    json_text_type(value));
}

/* JSON knows no integers: 5.0 is the number 5.  Reals are taken where a double holds every whole number. */
static bool whole_number(const json_t *value, int64_t *ret)
{
	double real;

	if (json_is_integer(value)) {
		*ret = json_integer_value(value);
		return true;
	}
	if (!json_is_real(value))
		return false;
	real = json_real_value(value);
	if (real != floor(real) || fabs(real) > 9007199254740992.0)
		return false;
	*ret = (int64_t)real;
	return true;
}

static enum status set_int(const struct param *row, const json_t *value, struct param_int *target, struct error *error)
{
	int64_t number;

	if (!whole_number(value, &number))
		return wrong_type(row, "a whole number", value, error);
	if (number < row->int_min || number > row->int_max)
		return error_set_param(error, STATUS_INVALID, row->name, "%s = %" PRId64 ": outside the allowed range %" PRId64 "…%" PRId64,
		    row->name, number, row->int_min, row->int_max);
	*target = (struct param_int){ true, number };
	return STATUS_OK;
}

static enum status set_real(const struct param *row, const json_t *value, struct param_real *target, struct error *error)
{
	double number = json_number_value(value);

	if (!json_is_number(value))
		return wrong_type(row, "a number", value, error);
	if (!(number >= row->real_min && number <= row->real_max))
		return error_set_param(error, STATUS_INVALID, row->name, "%s = %.10g: outside the allowed range %g…%g", row->name,
		    number, row->real_min, row->real_max);
	*target = (struct param_real){ true, number };
	return STATUS_OK;
}

/* Equal as JSON values; numbers by value, so that 0 and 0.0 are the same. */
static bool same_value(const json_t *a, const json_t *b)
{
	if (json_is_number(a) && json_is_number(b))
		return json_number_value(a) == json_number_value(b);
	return json_equal(a, b);
}

static enum status check_neutral(const struct param *row, const json_t *value, struct error *error)
{
	json_t *allowed = json_loads(row->shape, 0, NULL);
	bool    found = false;
	size_t  count, len = strlen(row->shape);

	if (!allowed)
		return error_set(error, STATUS_NOMEM, "out of memory");
	count = json_array_size(allowed);
	for (size_t i = 0; i < count && !found; i++)
		found = same_value(json_array_get(allowed, i), value);
	json_decref(allowed);
	if (found)
		return STATUS_OK;
	if (count == 0)
		return error_set_param(error, STATUS_UNSUPPORTED, row->name, "%s: not supported; leave it out%s%s", row->name,
		    *row->doc ? ". " : "", row->doc);
	return error_set_param(error, STATUS_UNSUPPORTED, row->name, "%s: not supported; leave it out or send %.*s%s%s%s", row->name,
	    (int)len - 2, row->shape + 1, count > 1 ? " (one of them)" : "", *row->doc ? ". " : "", row->doc);
}

static enum status set_param(struct params *params, const struct param *row, const json_t *value, struct error *error)
{
	switch (row->kind) {
	case PARAM_KIND_TEXT:
		if (!json_is_string(value))
			return wrong_type(row, "a string", value, error);
		if (json_string_length(value) > (size_t)row->int_max)
			return error_set_param(error, STATUS_INVALID, row->name, "%s: %zu bytes, at most %" PRId64 " are allowed",
			    row->name, json_string_length(value), row->int_max);
		*(struct param_text *)member(params, row) =
		    (struct param_text){ true, json_string_value(value), json_string_length(value) };
		return STATUS_OK;
	case PARAM_KIND_INT:
		return set_int(row, value, member(params, row), error);
	case PARAM_KIND_REAL:
		return set_real(row, value, member(params, row), error);
	case PARAM_KIND_BOOL:
		if (!json_is_boolean(value))
			return wrong_type(row, "a boolean", value, error);
		*(struct param_bool *)member(params, row) = (struct param_bool){ true, json_is_true(value) };
		return STATUS_OK;
	case PARAM_KIND_JSON:
		*(const json_t **)member(params, row) = value;
		return STATUS_OK;
	case PARAM_KIND_NEUTRAL:
		return check_neutral(row, value, error);
	}
	return STATUS_INTERNAL;
}

static void set_defaults(struct params *params)
{
	memset(params, 0, sizeof *params);
	for (size_t i = 0; i < ROW_COUNT; i++) {
		const struct param *row = &rows[i];

		if (row->kind == PARAM_KIND_INT)
			((struct param_int *)member(params, row))->value = row->int_initial;
		else if (row->kind == PARAM_KIND_REAL)
			((struct param_real *)member(params, row))->value = row->real_initial;
		else if (row->kind == PARAM_KIND_BOOL)
			((struct param_bool *)member(params, row))->value = row->int_initial != 0;
	}
}

/* Names travel in a header line: only those that cannot break one are repeated. */
static bool name_repeatable(const char *name)
{
	size_t len = strlen(name);

	return len > 0 && len <= PARAMS_NAME_MAX &&
	    strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == len;
}

void params_ignore(struct params_ignored *ignored, const char *name)
{
	for (unsigned i = 0; i < ignored->named; i++)
		if (strcmp(ignored->names[i], name) == 0)
			return;
	if (ignored->named < PARAMS_IGNORED_MAX && name_repeatable(name))
		memcpy(ignored->names[ignored->named++], name, strlen(name) + 1);
	else
		ignored->rest++;
}

enum status params_error_item(struct error *error, enum status status, const char *list, size_t index, const char *rest,
    const char *format, ...)
{
	char    path[ERROR_PARAM_MAX], fact[ERROR_MESSAGE_MAX - ERROR_PARAM_MAX];
	va_list args;

	snprintf(path, sizeof path, "%s[%zu]%s", list, index, rest);
	va_start(args, format);
	vsnprintf(fact, sizeof fact, format, args);
	va_end(args);
	return error_set_param(error, status, path, "%s%s", path, fact);
}

void params_ignored_text(const struct params_ignored *ignored, char ret[PARAMS_IGNORED_BYTES])
{
	size_t len = 0;

	ret[0] = '\0';
	for (unsigned i = 0; i < ignored->named; i++)
		len += (size_t)snprintf(ret + len, PARAMS_IGNORED_BYTES - len, "%s%s", i ? "," : "", ignored->names[i]);
	if (ignored->rest)
		snprintf(ret + len, PARAMS_IGNORED_BYTES - len, "%s+%u", len ? "," : "", ignored->rest);
}

void params_forget(struct params *params)
{
	for (size_t i = 0; i < ROW_COUNT; i++) {
		if (rows[i].kind == PARAM_KIND_TEXT)
			*(struct param_text *)member(params, &rows[i]) = (struct param_text){ 0 };
		else if (rows[i].kind == PARAM_KIND_JSON)
			*(const json_t **)member(params, &rows[i]) = NULL;
	}
}

static bool absent(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);
	return !value || json_is_null(value);
}

enum status params_parse(const json_t *object, enum params_endpoint endpoint, bool strict, struct params *ret,
    struct params_ignored *ret_ignored, struct error *error)
{
	struct params         params;
	struct params_ignored ignored = { 0 };
	const char           *name;
	json_t               *value;

	set_defaults(&params);
	json_object_foreach((json_t *)(uintptr_t)object, name, value) {
		const struct param *row = find(name, endpoint);
		enum status         status;

		if (!row && strict)
			return error_set_param(error, STATUS_INVALID, name_repeatable(name) ? name : "",
			    "%.80s: unknown field (front.strict_fields is on)", name);
		if (!row) {
			params_ignore(&ignored, name);
			continue;
		}
		if (json_is_null(value))
			continue;
		status = set_param(&params, row, value, error);
		if (status)
			return status;
	}
	for (size_t i = 0; i < ROW_COUNT; i++) {
		const struct param *row = &rows[i];

		if ((row->endpoints & endpoint) && row->required && absent(object, row->name))
			return error_set_param(error, STATUS_INVALID, row->name, "%s: this field is required", row->name);
	}
	*ret = params;
	*ret_ignored = ignored;
	return STATUS_OK;
}

/* ---- documentation ------------------------------------------------------------------------------------------------ */

static void document_row(const struct param *row, FILE *stream)
{
	const char *needed = row->required ? "required" : "–";

	fprintf(stream, "| `%s` | ", row->name);
	switch (row->kind) {
	case PARAM_KIND_TEXT:
		fprintf(stream, "string | %s | at most %" PRId64 " bytes", needed, row->int_max);
		break;
	case PARAM_KIND_INT:
		fputs("whole number | ", stream);
		if (row->int_initial >= row->int_min && row->int_min != INT64_MIN)
			fprintf(stream, "%" PRId64, row->int_initial);
		else
			fputs("–", stream);
		if (row->int_min == INT64_MIN)
			fputs(" | any 64-bit", stream);
		else
			fprintf(stream, " | %" PRId64 "…%" PRId64, row->int_min, row->int_max);
		break;
	case PARAM_KIND_REAL:
		fputs("number | ", stream);
		if (row->real_initial >= row->real_min)
			fprintf(stream, "%g", row->real_initial);
		else
			fputs("–", stream);
		fprintf(stream, " | %g…%g", row->real_min, row->real_max);
		break;
	case PARAM_KIND_BOOL:
		fprintf(stream, "boolean | %s | –", row->int_initial ? "true" : "false");
		break;
	case PARAM_KIND_JSON:
		fprintf(stream, "%s | %s | –", row->shape, needed);
		break;
	case PARAM_KIND_NEUTRAL:
		break;
	}
	fprintf(stream, " | %s |\n", row->doc);
}

void params_document(FILE *stream)
{
	fputs("| field | type | default | range | meaning |\n|---|---|---|---|---|\n", stream);
	for (size_t i = 0; i < ROW_COUNT; i++)
		if (rows[i].kind != PARAM_KIND_NEUTRAL)
			document_row(&rows[i], stream);
	fputs("\nKnown fields that are not supported: absent, null and the value shown are accepted, anything else is a 400 that\n"
	      "names the field.\n\n| field | accepted | note |\n|---|---|---|\n",
	    stream);
	for (size_t i = 0; i < ROW_COUNT; i++) {
		size_t len = strlen(rows[i].shape);

		if (rows[i].kind != PARAM_KIND_NEUTRAL)
			continue;
		if (len > 2)
			fprintf(stream, "| `%s` | `%.*s` | %s |\n", rows[i].name, (int)len - 2, rows[i].shape + 1, rows[i].doc);
		else
			fprintf(stream, "| `%s` | – | %s |\n", rows[i].name, rows[i].doc);
	}
}
