/* component.c: owns the step from JSON values to typed ones with an error that names the place.  Invariant: outputs are
 * written only on success, and strings stay the tree's. */
#include "vocab/component.h"
#include "base/bytes.h"

#include <jansson.h>
#include <string.h>

const char *component_type(const json_t *component)
{
	const char *type = json_string_value(json_object_get(component, "type"));
	return type ? type : "";
}

enum status component_unknown(const json_t *component, const char *kind, struct error *error)
{
	char quoted[BYTES_QUOTE_MAX];

	bytes_quote(quoted, component_type(component), strlen(component_type(component)));
	return error_set(error, STATUS_UNSUPPORTED, "the %s %s is not known here", kind, quoted);
}

static enum status wrong(const json_t *component, const char *key, const char *need, struct error *error)
{
	char quoted[BYTES_QUOTE_MAX];

	return error_set(error, STATUS_INVALID, "%s.%s: %s is needed", bytes_quote(quoted, component_type(component),
	    strlen(component_type(component))), key, need);
}

enum status component_bool(const json_t *component, const char *key, bool fallback, bool *ret, struct error *error)
{
	json_t *value = json_object_get(component, key);

	if (value && !json_is_null(value) && !json_is_boolean(value))
		return wrong(component, key, "true or false", error);
	*ret = json_is_boolean(value) ? json_is_true(value) : fallback;
	return STATUS_OK;
}

enum status component_size(const json_t *component, const char *key, size_t max, size_t fallback, size_t *ret, struct error *error)
{
	json_t     *value = json_object_get(component, key);
	json_int_t  number = json_integer_value(value);

	if (!value || json_is_null(value)) {
		*ret = fallback;
		return STATUS_OK;
	}
	if (!json_is_integer(value) || number < 0 || (uintmax_t)number > max)
		return wrong(component, key, "a whole number in range", error);
	*ret = (size_t)number;
	return STATUS_OK;
}

enum status component_string(const json_t *component, const char *key, const char *fallback, const char **ret, size_t *ret_len,
    struct error *error)
{
	json_t *value = json_object_get(component, key);

	if ((!value || json_is_null(value)) && fallback) {
		*ret = fallback;
		*ret_len = strlen(fallback);
		return STATUS_OK;
	}
	if (!json_is_string(value) || json_string_length(value) > COMPONENT_TEXT_MAX)
		return wrong(component, key, "a string", error);
	*ret = json_string_value(value);
	*ret_len = json_string_length(value);
	return STATUS_OK;
}

enum status component_word(const json_t *component, const char *key, const char *const *words, unsigned fallback, unsigned *ret,
    struct error *error)
{
	json_t *value = json_object_get(component, key);

	if (!value || json_is_null(value)) {
		*ret = fallback;
		return STATUS_OK;
	}
	for (unsigned i = 0; json_is_string(value) && words[i]; i++)
		if (strcmp(json_string_value(value), words[i]) == 0) {
			*ret = i;
			return STATUS_OK;
		}
	return wrong(component, key, "one of the known words", error);
}

enum status component_pattern(const json_t *component, bool *ret_regex, const char **ret, size_t *ret_len, struct error *error)
{
	json_t *pattern = json_object_get(component, "pattern");
	json_t *string = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");

	if (json_object_size(pattern) != 1 || !(json_is_string(string) || json_is_string(regex)))
		return wrong(component, "pattern", "a String or a Regex", error);
	if (!string)
		string = regex;
	if (json_string_length(string) > COMPONENT_TEXT_MAX)
		return wrong(component, "pattern", "a shorter text", error);
	*ret = json_string_value(string);
	*ret_len = json_string_length(string);
	*ret_regex = *ret_len == 0 || (regex && (strlen(*ret) != *ret_len || strpbrk(*ret, "\\^$.|?*+()[]{}")));
	return STATUS_OK;
}

enum status component_steps(const json_t *component, const char *key, unsigned depth, size_t *ret_count, struct error *error)
{
	json_t *steps = json_object_get(component, key);

	if (!json_is_array(steps))
		return wrong(component, key, "a list", error);
	if (depth >= COMPONENT_DEPTH_MAX || json_array_size(steps) > COMPONENT_STEPS_MAX)
		return error_set(error, STATUS_LIMIT, "a Sequence has more than %d steps, or more than %d stand in each other",
		    COMPONENT_STEPS_MAX, COMPONENT_DEPTH_MAX);
	*ret_count = json_array_size(steps);
	return STATUS_OK;
}

const json_t *component_step(const json_t *component, const char *key, size_t index)
{
	return json_array_get(json_object_get(component, key), index);
}
