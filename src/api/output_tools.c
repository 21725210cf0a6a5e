/* output_tools.c: owns what the reading of calls needs to know of the request's tools: names, and the JSON types of parameters.
 * Does not validate arguments.  Invariant: nothing refers to the request's JSON, which is gone when answers come. */
#include "api/output.h"

#include <stdlib.h>
#include <string.h>

struct parameter {
	char    *name;
	size_t   len;
	unsigned types;
};

struct tool {
	char             *name;
	size_t            len, count;
	struct parameter *parameters;
};

struct output_tools {
	size_t      count;
	struct tool tools[];
};

/* ---- types of a schema ----------------------------------------------------------------------------------------------- */

static unsigned type_named(const char *name)
{
	static const struct {
		const char *name;
		unsigned    type;
	} types[] = { { "string", OUTPUT_TYPE_STRING }, { "number", OUTPUT_TYPE_NUMBER }, { "integer", OUTPUT_TYPE_NUMBER },
		{ "boolean", OUTPUT_TYPE_BOOLEAN }, { "null", OUTPUT_TYPE_NULL }, { "array", OUTPUT_TYPE_ARRAY },
		{ "object", OUTPUT_TYPE_OBJECT } };

	for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
		if (!strcmp(types[i].name, name))
			return types[i].type;
	return 0;
}

static unsigned type_of_value(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_STRING:
		return OUTPUT_TYPE_STRING;
	case JSON_INTEGER:
	case JSON_REAL:
		return OUTPUT_TYPE_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return OUTPUT_TYPE_BOOLEAN;
	case JSON_NULL:
		return OUTPUT_TYPE_NULL;
	case JSON_ARRAY:
		return OUTPUT_TYPE_ARRAY;
	default:
		return OUTPUT_TYPE_OBJECT;
	}
}

/* "#/a/b" within ROOT; NULL where it leads nowhere. */
static const json_t *resolve(const json_t *root, const char *reference)
{
	char segment[128];

	if (!reference || *reference++ != '#')
		return NULL;
	while (root && *reference == '/') {
		size_t len = strcspn(++reference, "/");

		if (len >= sizeof segment)
			return NULL;
		memcpy(segment, reference, len);
		segment[len] = '\0';
		root = json_object_get(root, segment);
		reference += len;
	}
	return root;
}

static unsigned schema_types(const json_t *root, const json_t *schema, unsigned depth)
{
	static const char *const unions[] = { "anyOf", "oneOf", "allOf" };
	const json_t            *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
	unsigned                 types = 0;

	if (!json_is_object(schema) || depth == OUTPUT_SCHEMA_DEPTH)
		return 0;
	if (json_is_string(type))
		return type_named(json_string_value(type));
	for (size_t i = 0; i < json_array_size(type); i++)
		types |= type_named(json_string_value(json_array_get(type, i)));
	if (types)
		return types;
	for (size_t i = 0; i < json_array_size(values); i++)
		types |= type_of_value(json_array_get(values, i));
	if (json_object_get(schema, "const"))
		types |= type_of_value(json_object_get(schema, "const"));
	for (size_t u = 0; u < sizeof unions / sizeof *unions && !types; u++) {
		const json_t *list = json_object_get(schema, unions[u]);

		for (size_t i = 0; i < json_array_size(list) && i < 64; i++)
			types |= schema_types(root, json_array_get(list, i), depth + 1);
	}
	if (!types && json_object_get(schema, "$ref"))
		types = schema_types(root, resolve(root, json_string_value(json_object_get(schema, "$ref"))), depth + 1);
	if (!types && json_object_get(schema, "properties"))
		types = OUTPUT_TYPE_OBJECT;
	if (!types && json_object_get(schema, "items"))
		types = OUTPUT_TYPE_ARRAY;
	return types;
}

/* ---- building ---------------------------------------------------------------------------------------------------------- */

static char *copy(const char *bytes, size_t len)
{
	char *copied = malloc(len + 1);

	if (copied) {
		memcpy(copied, bytes, len);
		copied[len] = '\0';
	}
	return copied;
}

static enum status add_tool(struct tool *tool, const json_t *function)
{
	const json_t *name = json_object_get(function, "name"), *schema = json_object_get(function, "parameters");
	json_t       *properties = json_object_get(schema, "properties"), *property;
	const char   *key;
	size_t        count = json_object_size(properties);

	tool->len = json_string_length(name);
	tool->name = copy(json_is_string(name) ? json_string_value(name) : "", tool->len);
	tool->parameters = calloc(count ? count : 1, sizeof *tool->parameters);
	if (!tool->name || !tool->parameters)
		return STATUS_NOMEM;
	json_object_foreach(properties, key, property) {
		struct parameter *p = &tool->parameters[tool->count];

		*p = (struct parameter){ copy(key, strlen(key)), strlen(key), schema_types(schema, property, 0) };
		if (!p->name)
			return STATUS_NOMEM;
		tool->count++;
	}
	return STATUS_OK;
}

enum status output_tools_create(const json_t *list, struct output_tools **ret)
{
	size_t               count = json_array_size(list);
	struct output_tools *tools = calloc(1, sizeof *tools + count * sizeof *tools->tools);
	enum status          status = tools ? STATUS_OK : STATUS_NOMEM;

	for (size_t i = 0; i < count && !status; i++) {
		const json_t *item = json_array_get(list, i), *function = json_object_get(item, "function");

		tools->count++;
		status = add_tool(&tools->tools[i], function ? function : item);
	}
	if (status) {
		output_tools_free(tools);
		return status;
	}
	*ret = tools;
	return STATUS_OK;
}

void output_tools_free(struct output_tools *tools)
{
	if (!tools)
		return;
	for (size_t i = 0; i < tools->count; i++) {
		for (size_t p = 0; p < tools->tools[i].count; p++)
			free(tools->tools[i].parameters[p].name);
		free(tools->tools[i].parameters);
		free(tools->tools[i].name);
	}
	free(tools);
}

/* ---- asking ------------------------------------------------------------------------------------------------------------ */

static const struct tool *find(const struct output_tools *tools, const char *name, size_t len)
{
	for (size_t i = 0; tools && i < tools->count; i++)
		if (tools->tools[i].len == len && !memcmp(tools->tools[i].name, name, len))
			return &tools->tools[i];
	return NULL;
}

bool output_tools_has(const struct output_tools *tools, const char *name, size_t len) { return find(tools, name, len) != NULL; }

bool output_tools_begin(const struct output_tools *tools, const char *prefix, size_t len)
{
	for (size_t i = 0; tools && i < tools->count; i++)
		if (tools->tools[i].len >= len && !memcmp(tools->tools[i].name, prefix, len))
			return true;
	return false;
}

unsigned output_tools_type(const struct output_tools *tools, const char *name, size_t len, const char *key, size_t key_len)
{
	const struct tool *tool = find(tools, name, len);

	for (size_t i = 0; tool && i < tool->count; i++)
		if (tool->parameters[i].len == key_len && !memcmp(tool->parameters[i].name, key, key_len))
			return tool->parameters[i].types;
	return 0;
}
