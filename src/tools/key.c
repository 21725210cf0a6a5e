/* key.c: `penstock key`: the operator's side of the key file.  File format, generation and digests are api/keys.h's; the
 * text of a key passes through here once, to standard output, and is kept nowhere. */
#include "api/keys.h"
#include "base/conf.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

enum { SETTING = 0x100 }; /* value of the first setting's option */

static const char help[] =
    "usage: penstock key new [NAME] [SETTING…]    make a key; it is printed once and never again\n"
    "       penstock key set ID|NAME SETTING…     change what it may do\n"
    "       penstock key list                     ids, times, names and settings; never the keys\n"
    "       penstock key revoke ID                remove one\n"
    "\n"
    "  -c, --config FILE   where front.keys_file is taken from (default " PENSTOCK_CONF ")\n"
    "  -k, --keys FILE     the key file itself\n"
    "\n"
    "Settings:\n";

static void print_help(void)
{
	const struct key_setting *s;

	fputs(help, stdout);
	for (unsigned i = 0; (s = keys_setting(i)); i++) {
		char option[40];

		snprintf(option, sizeof option, "--%s N", s->option);
		printf("  %-22s %s (%lld…%lld)\n", option, s->doc, (long long)s->min, (long long)s->max);
	}
	fputs("\nThe fronts read the file again on SIGHUP (systemctl reload penstock-front).\n", stdout);
}

/* Carries out ACTION on the file. */
static int act(const char *keys, const char *action, const char *argument, const struct key_changes *changes)
{
	struct error error;
	char         key[KEY_TEXT_MAX], id[KEY_ID_MAX + 1];
	enum status  status;

	if (!strcmp(action, "list"))
		status = keys_list(keys, stdout, &error);
	else if (!strcmp(action, "revoke"))
		status = keys_revoke(keys, argument, &error);
	else if (!strcmp(action, "set"))
		status = keys_set(keys, argument, changes, &error);
	else
		status = keys_new(keys, argument ? argument : "", changes, key, id, &error);
	if (status)
		return tool_fail("key", &error);
	if (!strcmp(action, "new")) {
		puts(key);
		fprintf(stderr, "penstock key: %s is the id of the new key in %s\n", id, keys);
	}
	return TOOL_OK;
}

/* The options: three of the tool's and one per setting. */
static void make_options(struct option options[KEY_SETTING_COUNT + 4])
{
	static const struct option fixed[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "keys", required_argument, NULL, 'k' },
		{ "help", no_argument, NULL, 'h' },
	};

	memset(options, 0, (KEY_SETTING_COUNT + 4) * sizeof *options);
	memcpy(options, fixed, sizeof fixed);
	for (int i = 0; i < KEY_SETTING_COUNT; i++)
		options[3 + i] = (struct option){ keys_setting((unsigned)i)->option, required_argument, NULL, SETTING + i };
}

int tool_key(int argc, char **argv)
{
	struct option      options[KEY_SETTING_COUNT + 4];
	struct key_changes changes = { .set = { false } };
	const char        *path = NULL, *keys = NULL;
	struct conf        conf;
	struct error       error;
	bool               settings = false;
	int                c;

	make_options(options);
	while ((c = getopt_long(argc, argv, "c:k:h", options, NULL)) != -1) {
		if (c == 'c') {
			path = optarg;
		} else if (c == 'k') {
			keys = optarg;
		} else if (c == 'h') {
			print_help();
			return TOOL_OK;
		} else if (c >= SETTING && c < SETTING + KEY_SETTING_COUNT) {
			const struct key_setting *s = keys_setting((unsigned)(c - SETTING));
			char                      option[40];

			snprintf(option, sizeof option, "--%s", s->option);
			if (!tool_int("key", option, optarg, s->min, s->max, &changes.value[c - SETTING]))
				return TOOL_USAGE;
			changes.set[c - SETTING] = settings = true;
		} else {
			return tool_usage("key", "wrong option");
		}
	}
	if (optind == argc)
		return tool_usage("key", "an action is needed: new, set, list or revoke");
	const char *action = argv[optind], *argument = optind + 1 < argc ? argv[optind + 1] : NULL;
	if (optind + 2 < argc)
		return tool_usage("key", "too many arguments");
	if (strcmp(action, "new") && strcmp(action, "set") && strcmp(action, "list") && strcmp(action, "revoke"))
		return tool_usage("key", "unknown action %s", action);
	if (!strcmp(action, "revoke") && !argument)
		return tool_usage("key", "revoke needs the id of a key");
	if (!strcmp(action, "set") && (!argument || !settings))
		return tool_usage("key", "set needs the id or name of a key, and a setting");
	if (!strcmp(action, "list") && argument)
		return tool_usage("key", "list takes no argument");
	if (settings && strcmp(action, "new") && strcmp(action, "set"))
		return tool_usage("key", "%s takes no settings", action);
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
	return act(keys, action, argument, &changes);
}
