/* metrics.c: owns the metric table's words and the object that holds the values.  Does not own when a value changes.
 * Invariant: a reader's table is the writer's (the layout hash covers names and kinds in order). */
#include "ipc/metrics.h"

#include "base/hash.h"

#include <string.h>

#define METRICS_MAGIC UINT64_C(0x706e73746d657431)

static const struct row {
	const char *kind, *name, *help;
} rows[] = {
#define METRIC(kind, name, help) { #kind, #name, help },
#include "ipc/metrics.def"
#undef METRIC
};

static uint64_t layout_hash(void)
{
	uint64_t hash = HASH_FNV1A_START;

	for (size_t i = 0; i < METRIC_COUNT; i++) {
		hash = hash_fnv1a(hash, rows[i].kind, strlen(rows[i].kind) + 1);
		hash = hash_fnv1a(hash, rows[i].name, strlen(rows[i].name) + 1);
	}
	return hash;
}

enum status metrics_create(const char *instance, int gid, struct metrics *ret, struct error *error)
{
	struct metrics metrics = { 0 };
	void          *map = NULL;
	enum status    status = object_create(instance, "metrics", sizeof *metrics.shared, 0640, gid, metrics.name, &map,
	    error);

	if (status != STATUS_OK)
		return status;
	metrics.shared = map;
	object_publish(map, METRICS_MAGIC, layout_hash());
	*ret = metrics;
	return STATUS_OK;
}

enum status metrics_open(const char *instance, struct metrics *ret, struct error *error)
{
	void       *map = NULL;
	enum status status = object_open(instance, "metrics", sizeof *ret->shared, METRICS_MAGIC, layout_hash(),
	    &map, error);

	if (status == STATUS_OK)
		*ret = (struct metrics) { .shared = map };
	return status;
}

void metrics_close(struct metrics *metrics)
{
	if (!metrics)
		return;
	object_unmap(metrics->shared, sizeof *metrics->shared);
	object_unlink(metrics->name);
	*metrics = (struct metrics) { 0 };
}

const char *metrics_name(enum metric id) { return rows[id].name; }
const char *metrics_kind(enum metric id) { return rows[id].kind; }
const char *metrics_help(enum metric id) { return rows[id].help; }
