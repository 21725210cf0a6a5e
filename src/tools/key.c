/* key.c: `penstock key`: the operator's side of the key file.  File format, generation and digests are api/keys.h's; the
 * text of a key passes through here once, to standard output, and is kept nowhere. */
#include "api/keys.h"
#include "base/conf.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: penstock key new [NAME]      make a key; it is printed once and never again\n"
    "       penstock key list            ids, times and names; never the keys\n"
    "       penstock key revoke ID       remove one\n"
    "\n"
    "  -c, --config FILE   where front.keys_file is taken from (default " PENSTOCK_CONF ")\n"
    "  -k, --keys FILE     the key file itself\n"
    "\n"
    "penstock-front reads the file again on SIGHUP.\n";

int tool_key(int argc, char **argv)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "keys", required_argument, NULL, 'k' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char  *path = NULL, *keys = NULL;
	struct conf  conf;
	struct error error;
	char         key[KEY_TEXT_MAX], id[KEY_ID_MAX + 1];
	int          c;

	while ((c = getopt_long(argc, argv, "c:k:h", options, NULL)) != -1) {
		switch (c) {
		case 'c':
			path = optarg;
			break;
		case 'k':
			keys = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		default:
			return tool_usage("key", "wrong option");
		}
	}
	if (optind == argc)
		return tool_usage("key", "an action is needed: new, list or revoke");
	const char *action = argv[optind], *argument = optind + 1 < argc ? argv[optind + 1] : NULL;
	if (optind + 2 < argc)
		return tool_usage("key", "too many arguments");
	if (strcmp(action, "new") && strcmp(action, "list") && strcmp(action, "revoke"))
		return tool_usage("key", "unknown action %s", action);
	if (!strcmp(action, "revoke") && !argument)
		return tool_usage("key", "revoke needs the id of a key");
	if (!strcmp(action, "list") && argument)
		return tool_usage("key", "list takes no argument");
	if (!keys) {
		if (!tool_load_conf("key", path, &conf))
			return TOOL_FAILED;
		if (!*conf.front_keys_file) {
			error_set(&error, STATUS_INVALID, "front.keys_file is empty in %s: set it, or give --keys FILE",
			    path ? path : PENSTOCK_CONF);
			return tool_fail("key", &error);
		}
		keys = conf.front_keys_file;
	}
	if (!strcmp(action, "list"))
		return keys_list(keys, stdout, &error) ? tool_fail("key", &error) : TOOL_OK;
	if (!strcmp(action, "revoke"))
		return keys_revoke(keys, argument, &error) ? tool_fail("key", &error) : TOOL_OK;
	if (keys_new(keys, argument ? argument : "", key, id, &error))
		return tool_fail("key", &error);
	puts(key);
	fprintf(stderr, "penstock key: %s is the id of the new key in %s\n", id, keys);
	return TOOL_OK;
}
