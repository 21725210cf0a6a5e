/* route.c: owns the table made from routes.def.  Does not answer anything.  Invariant: a path that no row names has no route
 * (default deny). */
#include "api/route.h"

#include <string.h>

enum need { OPEN, KEY };

static const struct route rows[API_ROUTE_COUNT] = {
#define ROUTE(NAME, match, path, method, key) [API_ROUTE_##NAME] = { path, ROUTE_##match, ROUTE_##method, key },
#include "api/routes.def"
#undef ROUTE
};

const struct route *route_row(enum api_route route)
{
	return (unsigned)route < API_ROUTE_COUNT && rows[route].path ? &rows[route] : NULL;
}

enum api_route route_find(const char *path, const char **ret_rest)
{
	for (unsigned i = 0; i < API_ROUTE_COUNT; i++) {
		const struct route *row = route_row((enum api_route)i);
		size_t              len = row ? strlen(row->path) : 0;

		if (!row || strncmp(path, row->path, len))
			continue;
		if ((row->match == ROUTE_EXACT) != (path[len] == '\0'))
			continue;
		*ret_rest = path + len;
		return (enum api_route)i;
	}
	return API_ROUTE_NONE;
}

const char *route_allow(const struct route *row) { return row->method == ROUTE_GET ? "GET, HEAD, OPTIONS" : "POST, OPTIONS"; }

bool route_allows(const struct route *row, const char *method)
{
	if (row->method == ROUTE_GET)
		return !strcmp(method, "GET") || !strcmp(method, "HEAD");
	return !strcmp(method, "POST");
}
