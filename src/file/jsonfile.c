/* jsonfile.c: owns the step from bytes to a JSON object.  Does not know what the object says.  Invariant: what it
 * returns is an object in which every key is unique at every level. */
#include "file/jsonfile.h"
#include "file/map.h"

#include <jansson.h>

enum status jsonfile_parse(const char *label, const void *bytes, size_t size, struct json_t **ret, struct error *error)
{
	json_error_t why;
	json_t      *root = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &why);

	if (!root && !*why.text) /* jansson has no words for it */
		return error_set(error, STATUS_NOMEM, "%.160s: no memory for %zu bytes of JSON", label, size);
	if (!root) {
		for (char *c = why.text; *c; c++) /* it repeats what stands in the file: keep the message one line */
			if (*c < 0x20 || *c > 0x7e)
				*c = '?';
		return error_set(error, STATUS_INVALID, "%.160s: line %d, column %d: %s", label, why.line, why.column, why.text);
	}
	if (!json_is_object(root)) {
		json_decref(root);
		return error_set(error, STATUS_INVALID, "%.160s: a JSON list stands where an object is needed", label);
	}
	*ret = root;
	return STATUS_OK;
}

enum status jsonfile_open(const char *path, struct json_t **ret, struct error *error)
{
	struct map  map;
	enum status status = map_open(path, JSONFILE_MAX, &map, error);

	if (status)
		return status;
	status = jsonfile_parse(path, map.bytes, map.size, ret, error);
	map_close(&map);
	return status;
}
