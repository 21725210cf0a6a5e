/* config.c: `penstock config`: check, dump, sample, and the values that follow from others (for scripts that write
 * configuration of other programs, such as the nginx site).  The rules themselves are those of base/conf.c. */
#include "base/conf.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: penstock config ACTION [FILE]\n"
    "\n"
    "  check     read FILE, say what is wrong or nothing\n"
    "  dump      print every option with its value\n"
    "  derived   print what follows from FILE as NAME=VALUE lines\n"
    "  sample    print the commented sample file (takes no FILE)\n"
    "\n"
    "FILE is " PENSTOCK_CONF " unless given.\n";

static void print_derived(const struct conf *conf)
{
	char name[CONF_TEXT_MAX + 1], front[CONF_TEXT_MAX + 16], control[CONF_TEXT_MAX + 16];

	conf_model_name(conf, name, sizeof name);
	conf_front_socket(conf, front, sizeof front);
	conf_control_socket(conf, control, sizeof control);
	printf("instance=%s\n", conf->service_instance);
	printf("model_name=%s\n", name);
	printf("front_socket=%s\n", front);
	printf("control_socket=%s\n", control);
	printf("children=%lld\n", (long long)conf_children(conf));
	printf("streams=%lld\n", (long long)(conf_children(conf) * conf->front_streams_per_front));
	printf("request_limit=%lld\n", (long long)(conf->batcher_max_running + conf->batcher_max_queued));
	printf("max_body=%lld\n", (long long)conf->front_max_body);
	printf("max_queue_wait_s=%lld\n", (long long)(conf->batcher_max_queue_wait_ms + 999) / 1000);
	printf("slow_client_timeout_s=%lld\n", (long long)(conf->batcher_slow_client_timeout_ms + 999) / 1000);
	printf("keys_file=%s\n", conf->front_keys_file);
}

int tool_config(int argc, char **argv)
{
	static const struct option options[] = { { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };
	struct conf                conf;
	int                        c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (c != 'h')
			return tool_usage("config", "wrong option");
		fputs(help, stdout);
		return TOOL_OK;
	}
	if (optind == argc)
		return tool_usage("config", "an action is needed: check, dump, derived or sample");
	const char *action = argv[optind], *path = optind + 1 < argc ? argv[optind + 1] : NULL;
	if (optind + 2 < argc)
		return tool_usage("config", "too many arguments");
	if (!strcmp(action, "sample")) {
		if (path)
			return tool_usage("config", "sample takes no file");
		conf_sample(stdout);
		return TOOL_OK;
	}
	if (strcmp(action, "check") && strcmp(action, "dump") && strcmp(action, "derived"))
		return tool_usage("config", "unknown action %s", action);
	if (!tool_load_conf("config", path, &conf))
		return TOOL_FAILED;
	if (!strcmp(action, "dump"))
		conf_dump(&conf, stdout);
	else if (!strcmp(action, "derived"))
		print_derived(&conf);
	return TOOL_OK;
}
