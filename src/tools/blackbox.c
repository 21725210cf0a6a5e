/* blackbox.c: `penstock blackbox`: the last plans of a penstockd that runs or has died.  Reads one shared-memory object and
 * nothing else, so it works when nobody is left to ask. */
#include "base/conf.h"
#include "ipc/blackbox.h"
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LAST_DEFAULT = 20, ITEMS_SHOWN = 6, TIME_TEXT = 32 };

static const char help[] =
    "usage: penstock blackbox [--config FILE] [--last N] [--previous] [--json]\n"
    "\n"
    "Shows the last N step plans (default 20, at most 4096) of the penstockd of FILE (default " PENSTOCK_CONF "), oldest\n"
    "first, also after it was killed.  Numbers of requests and tokens only, no text.\n"
    "\n"
    "  -n, --last N      as many plans\n"
    "  -p, --previous    of the penstockd before the last start, if that one did not end in good order\n"
    "  -j, --json        one JSON object\n"
    "\n"
    "Columns: number and time of the plan, ms its step took (- did not end), rows, sequences (decodes + prefills), admitted,\n"
    "evicted, expired, running, waiting, paused, free KV blocks, and the first decisions: p request[start+rows] prefill,\n"
    "d request@position decode, evicted and expired requests; * admitted by this plan.\n";

static const char *const kinds[] = { [BLACKBOX_PREFILL] = "prefill", [BLACKBOX_DECODE] = "decode", [BLACKBOX_EVICTED] = "evicted",
	[BLACKBOX_EXPIRED] = "expired" };

static const char *kind_name(uint8_t kind) { return kind < sizeof kinds / sizeof *kinds ? kinds[kind] : "unknown"; }

static void time_text(uint64_t ns, char ret[TIME_TEXT])
{
	time_t    seconds = (time_t)(ns / 1000000000);
	struct tm parts;
	size_t    len;

	if (!gmtime_r(&seconds, &parts)) {
		snprintf(ret, TIME_TEXT, "?");
		return;
	}
	len = strftime(ret, TIME_TEXT, "%Y-%m-%dT%H:%M:%S", &parts);
	snprintf(ret + len, TIME_TEXT - len, ".%06uZ", (unsigned)(ns % 1000000000 / 1000));
}

static bool alive(const struct blackbox_shared *box)
{
	return box->pid > 0 && (kill((pid_t)box->pid, 0) == 0 || errno == EPERM);
}

/* ---- text ---------------------------------------------------------------------------------------------------------- */

static void print_item(const struct blackbox_item *item)
{
	const char *admitted = item->flags & BLACKBOX_ADMITTED ? "*" : "";

	switch (item->kind) {
	case BLACKBOX_PREFILL:
		printf(" p%s %" PRIx64 "[%u+%u]", admitted, item->request, item->start, item->rows);
		return;
	case BLACKBOX_DECODE:
		printf(" d%s %" PRIx64 "@%u", admitted, item->request, item->start);
		return;
	default:
		printf(" %s %" PRIx64, kind_name(item->kind), item->request);
	}
}

static void print_plan(uint64_t number, const struct blackbox_plan *plan, uint64_t step_ns)
{
	char when[TIME_TEXT], took[16] = "-";

	time_text(plan->time_ns, when);
	if (step_ns)
		snprintf(took, sizeof took, "%.2f", (double)step_ns / 1e6);
	printf("%8" PRIu64 " %s %8s %5u %4u (%u+%u) %3u %3u %3u %4u %4u %3u %6u ", number, when + 11, took, plan->rows,
	    plan->sequences, plan->decodes, plan->prefills, plan->admitted, plan->evicted, plan->expired, plan->running, plan->waiting,
	    plan->paused, plan->free_blocks);
	for (uint32_t i = 0; i < plan->item_count && i < ITEMS_SHOWN; i++)
		print_item(&plan->items[i]);
	if (plan->evicted + plan->expired + plan->sequences > ITEMS_SHOWN)
		fputs(" …", stdout);
	putchar('\n');
}

static void print_text(const struct blackbox *box, uint64_t first, uint64_t count)
{
	const struct blackbox_shared *shared = box->shared;
	struct blackbox_plan          plan;
	char                          when[TIME_TEXT];
	uint64_t                      step_ns;

	time_text(shared->start_ns, when);
	printf("penstockd %" PRId64 " (%s), started %s, %" PRIu64 " plans; %u tokens a step, %u running, %u blocks of %u\n",
	    shared->pid, alive(shared) ? "alive" : "dead", when, count, shared->step_tokens, shared->max_running, shared->blocks,
	    shared->block_size);
	printf("    plan            time       ms  rows  seqs       adm evi exp  run wait pau   free\n");
	for (uint64_t number = first; number < count; number++)
		if (blackbox_read(box, number, &plan, &step_ns))
			print_plan(number, &plan, step_ns);
		else
			printf("%8" PRIu64 " was being written\n", number);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */

static json_t *item_json(const struct blackbox_item *item)
{
	char request[24];

	snprintf(request, sizeof request, "%" PRIx64, item->request);
	return json_pack("{s:s, s:s, s:I, s:I, s:b, s:b}", "request", request, "kind", kind_name(item->kind), "start",
	    (json_int_t)item->start, "rows", (json_int_t)item->rows, "admitted", (item->flags & BLACKBOX_ADMITTED) != 0, "sampled",
	    (item->flags & BLACKBOX_SAMPLED) != 0);
}

static json_t *plan_json(uint64_t number, const struct blackbox_plan *plan, uint64_t step_ns)
{
	json_t *items = json_array();

	for (uint32_t i = 0; i < plan->item_count; i++)
		json_array_append_new(items, item_json(&plan->items[i]));
	return json_pack("{s:I, s:f, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "plan", (json_int_t)number,
	    "time_s", (double)plan->time_ns / 1e9, "step_ms", step_ns ? json_real((double)step_ns / 1e6) : json_null(), "rows",
	    (json_int_t)plan->rows, "sequences", (json_int_t)plan->sequences, "decodes", (json_int_t)plan->decodes, "prefills",
	    (json_int_t)plan->prefills, "sampled", (json_int_t)plan->sampled, "admitted", (json_int_t)plan->admitted, "evicted",
	    (json_int_t)plan->evicted, "expired", (json_int_t)plan->expired, "running", (json_int_t)plan->running, "waiting",
	    (json_int_t)plan->waiting, "paused", (json_int_t)plan->paused, "free_blocks", (json_int_t)plan->free_blocks, "items",
	    items);
}

static void print_json(const struct blackbox *box, uint64_t first, uint64_t count)
{
	const struct blackbox_shared *shared = box->shared;
	json_t                       *plans = json_array(), *root;
	struct blackbox_plan          plan;
	uint64_t                      step_ns;

	for (uint64_t number = first; number < count; number++)
		if (blackbox_read(box, number, &plan, &step_ns))
			json_array_append_new(plans, plan_json(number, &plan, step_ns));
	root = json_pack("{s:I, s:b, s:f, s:I, s:I, s:I, s:I, s:I, s:o}", "pid", (json_int_t)shared->pid, "alive", alive(shared),
	    "start_time_s", (double)shared->start_ns / 1e9, "plans_total", (json_int_t)count, "step_tokens",
	    (json_int_t)shared->step_tokens, "max_running", (json_int_t)shared->max_running, "blocks", (json_int_t)shared->blocks,
	    "block_size", (json_int_t)shared->block_size, "plans", plans);
	json_dumpf(root, stdout, JSON_INDENT(1));
	putchar('\n');
	json_decref(root);
}

int tool_blackbox(int argc, char **argv)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "last", required_argument, NULL, 'n' },
		{ "previous", no_argument, NULL, 'p' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char     *path = NULL;
	int64_t         last = LAST_DEFAULT;
	bool            previous = false, json = false;
	struct blackbox box;
	struct conf     conf;
	struct error    error;
	uint64_t        count, first;
	int             c;

	while ((c = getopt_long(argc, argv, "c:n:pjh", options, NULL)) != -1) {
		switch (c) {
		case 'c':
			path = optarg;
			break;
		case 'n':
			if (!tool_int("blackbox", "--last", optarg, 1, BLACKBOX_PLANS, &last))
				return TOOL_USAGE;
			break;
		case 'p':
			previous = true;
			break;
		case 'j':
			json = true;
			break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		default:
			return tool_usage("blackbox", "wrong option");
		}
	}
	if (optind < argc)
		return tool_usage("blackbox", "unexpected argument %s", argv[optind]);
	if (!tool_load_conf("blackbox", path, &conf))
		return TOOL_FAILED;
	if (blackbox_open(conf.service_instance, previous, &box, &error))
		return tool_fail("blackbox", &error);
	count = atomic_load_explicit(&box.shared->count, memory_order_acquire);
	first = count > (uint64_t)last ? count - (uint64_t)last : 0;
	if (json)
		print_json(&box, first, count);
	else
		print_text(&box, first, count);
	blackbox_close(&box);
	return TOOL_OK;
}
