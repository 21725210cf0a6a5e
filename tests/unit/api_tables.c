/* Prints the tables of docs/api.md from the tables of the code; tests/scripts/check_api_doc.sh compares the two. */
#include "api/messages.h"
#include "api/params.h"
#include "api/route.h"

#include <string.h>

static void print_routes(void)
{
	puts("| path | methods | key |\n|---|---|---|");
	for (unsigned i = 0; i < API_ROUTE_COUNT; i++) {
		const struct route *row = route_row((enum api_route)i);

		if (row)
			printf("| `%s%s` | %s | %s |\n", row->path, row->match == ROUTE_PREFIX ? "{name}" : "", route_allow(row),
			    row->key ? "when keys are configured" : "never");
	}
}

static void print_errors(void)
{
	puts("| status | type | code | meaning |\n|---|---|---|---|");
	for (int i = 1; i < STATUS_COUNT; i++)
		printf("| %d | `%s` | `%s` | %s |\n", status_http((enum status)i), status_api_type((enum status)i),
		    status_api_code((enum status)i), status_text((enum status)i));
}

int main(int argc, char **argv)
{
	const char *table = argc == 2 ? argv[1] : "";

	if (!strcmp(table, "routes"))
		print_routes();
	else if (!strcmp(table, "fields"))
		params_document(stdout);
	else if (!strcmp(table, "kwargs"))
		messages_document(stdout);
	else if (!strcmp(table, "errors"))
		print_errors();
	else
		return 2;
	return 0;
}
