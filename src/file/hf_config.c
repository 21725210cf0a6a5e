/* hf_config.c: owns the reading of single values out of JSON model configurations, and their ranges' messages.  Which keys
 * an architecture needs, and their ranges, are the architecture's.  What several keys say together is in hf_model.c.
 *
 * Invariant: a view's label and path are single lines of printable text, whatever the keys of the document are.
 */
#include "file/hf_config.h"
#include "base/bytes.h"
#include "file/jsonfile.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { VALUE_TEXT_MAX = BYTES_QUOTE_MAX };

/* ---- documents and views ------------------------------------------------------------------------------------------ */

static void printable(char *text)
{
	for (; *text; text++)
		if (*text < 0x20 || *text > 0x7e)
			*text = '?';
}

/* Of a long name the end is kept: it says which file. */
static void set_label(struct hf_config *config, const char *label)
{
	size_t len = strlen(label);
	bool   cut = len >= sizeof config->label;

	snprintf(config->label, sizeof config->label, "%s%s", cut ? "..." : "",
	    cut ? label + len - (sizeof config->label - 4) : label);
	printable(config->label);
}

enum status hf_config_parse(const void *bytes, size_t size, const char *label, struct hf_config *ret, struct error *error)
{
	struct hf_config config = { .owner = true };
	enum status      status = jsonfile_parse(label, bytes, size, &config.object, error);

	if (status)
		return status;
	set_label(&config, label);
	*ret = config;
	return STATUS_OK;
}

enum status hf_config_open(const char *path, struct hf_config *ret, struct error *error)
{
	struct hf_config config = { .owner = true };
	enum status      status = jsonfile_open(path, &config.object, error);

	if (status)
		return status;
	set_label(&config, path);
	*ret = config;
	return STATUS_OK;
}

void hf_config_close(struct hf_config *config)
{
	if (!config || !config->owner)
		return;
	json_decref(config->object);
	config->object = NULL;
	config->owner = false;
}

/* NULL when absent or null. */
static json_t *get(const struct hf_config *config, const char *key)
{
	json_t *value = json_object_get(config->object, key);
	return json_is_null(value) ? NULL : value;
}

enum hf_kind hf_config_kind(const struct hf_config *config, const char *key)
{
	const json_t *value = get(config, key);

	if (!value)
		return HF_ABSENT;
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return HF_OBJECT;
	case JSON_ARRAY:
		return HF_LIST;
	case JSON_STRING:
		return HF_STRING;
	case JSON_INTEGER:
	case JSON_REAL:
		return HF_NUMBER;
	default:
		return HF_BOOL;
	}
}

/* ---- messages ----------------------------------------------------------------------------------------------------- */

static const char *value_text(char ret_text[VALUE_TEXT_MAX], const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_STRING:
		return bytes_quote(ret_text, json_string_value(value), json_string_length(value));
	case JSON_INTEGER:
		snprintf(ret_text, VALUE_TEXT_MAX, "%lld", (long long)json_integer_value(value));
		break;
	case JSON_REAL:
		snprintf(ret_text, VALUE_TEXT_MAX, "%.12g", json_real_value(value));
		break;
	case JSON_ARRAY:
		snprintf(ret_text, VALUE_TEXT_MAX, "a list of %zu", json_array_size(value));
		break;
	case JSON_OBJECT:
		return "an object";
	case JSON_TRUE:
		return "true";
	case JSON_FALSE:
		return "false";
	case JSON_NULL:
		return "null";
	}
	return ret_text;
}

/* "LABEL: path.key = value: WORDS"; for an absent value "LABEL: path.key is missing: WORDS". */
static enum status refuse(const struct hf_config *config, const char *key, const json_t *value, struct error *error,
    const char *format, ...) __attribute__((format(printf, 5, 6)));
static enum status refuse(const struct hf_config *config, const char *key, const json_t *value, struct error *error,
    const char *format, ...)
{
	char        text[VALUE_TEXT_MAX], words[128], name[ERROR_PARAM_MAX];
	enum status status = value ? STATUS_INVALID : STATUS_NOT_FOUND;
	va_list     args;

	va_start(args, format);
	vsnprintf(words, sizeof words, format, args);
	va_end(args);
	snprintf(name, sizeof name, "%s", key);
	printable(name);
	return error_set_param(error, status, name, "%s: %s%s%s%s: %s", config->label, config->path, name,
	    value ? " = " : " is missing", value ? value_text(text, value) : "", words);
}

/* ---- single values ------------------------------------------------------------------------------------------------ */

static enum status read_i64(const struct hf_config *config, const char *key, const json_t *value, int64_t min, int64_t max,
    int64_t *ret, struct error *error)
{
	int64_t number = 0;
	double  real = json_real_value(value); /* 0 when it is none */
	bool    whole = json_is_integer(value);

	if (whole)
		number = json_integer_value(value);
	else if (json_is_real(value) && fabs(real) <= 9007199254740992.0 && real == floor(real)) { /* 2^53 */
		whole = true;
		number = (int64_t)real;
	}
	if (!whole || number < min || number > max)
		return refuse(config, key, value, error, "a whole number in %lld…%lld is needed", (long long)min, (long long)max);
	*ret = number;
	return STATUS_OK;
}

enum status hf_config_i64(const struct hf_config *config, const char *key, int64_t min, int64_t max, int64_t *ret,
    struct error *error)
{
	return read_i64(config, key, get(config, key), min, max, ret, error);
}

enum status hf_config_i64_or(const struct hf_config *config, const char *key, int64_t min, int64_t max, int64_t fallback,
    int64_t *ret, struct error *error)
{
	if (get(config, key))
		return hf_config_i64(config, key, min, max, ret, error);
	*ret = fallback;
	return STATUS_OK;
}

enum status hf_config_u32(const struct hf_config *config, const char *key, uint32_t min, uint32_t max, uint32_t *ret,
    struct error *error)
{
	int64_t     number;
	enum status status = hf_config_i64(config, key, min, max, &number, error);

	if (!status)
		*ret = (uint32_t)number;
	return status;
}

enum status hf_config_u32_or(const struct hf_config *config, const char *key, uint32_t min, uint32_t max, uint32_t fallback,
    uint32_t *ret, struct error *error)
{
	if (get(config, key))
		return hf_config_u32(config, key, min, max, ret, error);
	*ret = fallback;
	return STATUS_OK;
}

enum status hf_config_f64(const struct hf_config *config, const char *key, double min, double max, double *ret,
    struct error *error)
{
	const json_t *value = get(config, key);
	double        number = json_number_value(value); /* 0 when it is none */

	if (!json_is_number(value) || !(number >= min && number <= max))
		return refuse(config, key, value, error, "a number in %g…%g is needed", min, max);
	*ret = number;
	return STATUS_OK;
}

enum status hf_config_f64_or(const struct hf_config *config, const char *key, double min, double max, double fallback,
    double *ret, struct error *error)
{
	if (get(config, key))
		return hf_config_f64(config, key, min, max, ret, error);
	*ret = fallback;
	return STATUS_OK;
}

enum status hf_config_bool(const struct hf_config *config, const char *key, bool *ret, struct error *error)
{
	const json_t *value = get(config, key);

	if (!json_is_boolean(value))
		return refuse(config, key, value, error, "true or false is needed");
	*ret = json_is_true(value);
	return STATUS_OK;
}

enum status hf_config_bool_or(const struct hf_config *config, const char *key, bool fallback, bool *ret, struct error *error)
{
	if (get(config, key))
		return hf_config_bool(config, key, ret, error);
	*ret = fallback;
	return STATUS_OK;
}

enum status hf_config_string(const struct hf_config *config, const char *key, const char **ret, struct error *error)
{
	const json_t *value = get(config, key);

	if (!json_is_string(value))
		return refuse(config, key, value, error, "a string is needed");
	*ret = json_string_value(value);
	return STATUS_OK;
}

enum status hf_config_string_or(const struct hf_config *config, const char *key, const char *fallback, const char **ret,
    struct error *error)
{
	if (get(config, key))
		return hf_config_string(config, key, ret, error);
	*ret = fallback;
	return STATUS_OK;
}

enum status hf_config_word(const struct hf_config *config, const char *key, const char *const *words, unsigned *ret,
    struct error *error)
{
	const json_t *value = get(config, key);
	const char   *string = json_string_value(value);
	char          all[96] = "";
	size_t        at = 0;

	for (unsigned i = 0; words[i]; i++) {
		if (string && strcmp(string, words[i]) == 0) {
			*ret = i;
			return STATUS_OK;
		}
		if (at < sizeof all)
			at += (size_t)snprintf(all + at, sizeof all - at, i ? ", %s" : "%s", words[i]);
	}
	return refuse(config, key, value, error, "supported: %s", all);
}

enum status hf_config_word_or(const struct hf_config *config, const char *key, const char *const *words, unsigned fallback,
    unsigned *ret, struct error *error)
{
	if (get(config, key))
		return hf_config_word(config, key, words, ret, error);
	*ret = fallback;
	return STATUS_OK;
}

/* ---- lists and objects -------------------------------------------------------------------------------------------- */

enum status hf_config_u32_list(const struct hf_config *config, const char *key, uint32_t min, uint32_t max, uint32_t *ret_items,
    size_t capacity, size_t *ret_count, struct error *error)
{
	const json_t *value = get(config, key);
	size_t        count = json_is_array(value) ? json_array_size(value) : value != NULL;
	int64_t       number;
	enum status   status;

	if (count > capacity)
		return refuse(config, key, value, error, "at most %zu are allowed", capacity);
	for (int pass = 0; pass < 2; pass++) /* check all before the first is stored */
		for (size_t i = 0; i < count; i++) {
			char item[ERROR_PARAM_MAX];
			snprintf(item, sizeof item, json_is_array(value) ? "%.40s[%zu]" : "%.40s", key, i);
			status = read_i64(config, item, json_is_array(value) ? json_array_get(value, i) : value, min, max, &number, error);
			if (status)
				return status;
			if (pass)
				ret_items[i] = (uint32_t)number;
		}
	*ret_count = count;
	return STATUS_OK;
}

enum status hf_config_string_count(const struct hf_config *config, const char *key, size_t max, size_t *ret, struct error *error)
{
	const json_t *value = get(config, key);
	size_t        count = json_is_array(value) ? json_array_size(value) : value != NULL;

	if (value && !json_is_array(value) && !json_is_string(value))
		return refuse(config, key, value, error, "a list of strings is needed");
	if (count > max)
		return refuse(config, key, value, error, "at most %zu are allowed", max);
	*ret = count;
	return STATUS_OK;
}

enum status hf_config_string_at(const struct hf_config *config, const char *key, size_t index, const char **ret,
    struct error *error)
{
	const json_t *value = get(config, key), *at = json_is_array(value) ? json_array_get(value, index) : value;
	char          item[ERROR_PARAM_MAX];

	if (!json_is_string(at)) {
		snprintf(item, sizeof item, "%.40s[%zu]", key, index);
		return refuse(config, item, at, error, "a string is needed");
	}
	*ret = json_string_value(at);
	return STATUS_OK;
}

enum status hf_config_object(const struct hf_config *config, const char *key, struct hf_config *ret, struct error *error)
{
	json_t          *value = get(config, key);
	struct hf_config view = *config; /* the label */

	if (value && !json_is_object(value))
		return refuse(config, key, value, error, "an object is needed");
	view.object = value;
	view.owner = false;
	snprintf(view.path, sizeof view.path, "%.64s%.60s.", config->path, key);
	printable(view.path);
	*ret = view;
	return STATUS_OK;
}

const char *hf_config_next_key(const struct hf_config *config, const char *key)
{
	json_t *object = config->object;
	void   *at = key ? json_object_iter_next(object, json_object_iter_at(object, key)) : json_object_iter(object);
	return json_object_iter_key(at);
}
