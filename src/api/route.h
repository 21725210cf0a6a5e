/* route.h: paths and methods, as routes.def lists them. */
#ifndef PENSTOCK_API_ROUTE_H
#define PENSTOCK_API_ROUTE_H

#include "api/api.h"

enum route_match { ROUTE_EXACT, ROUTE_PREFIX };
enum route_method { ROUTE_GET, ROUTE_POST };

struct route {
	const char       *path;
	enum route_match  match;
	enum route_method method;
	bool              key; /* needs an API key when keys are configured */
};

/* The route of PATH, API_ROUTE_NONE when there is none; *ret_rest is what follows the path of a PREFIX route. */
enum api_route route_find(const char *path, const char **ret_rest);

/* The row of a route other than NONE and OPTIONS; NULL for those. */
const struct route *route_row(enum api_route route);

/* Methods of a row as Allow and Access-Control-Allow-Methods spell them. */
const char *route_allow(const struct route *row);
bool        route_allows(const struct route *row, const char *method); /* OPTIONS is not asked here */

#endif
