/* metrics.c: owns the metric table's words and the object that holds the values.  Does not own when a value changes.
 * Invariant: a reader's table is the writer's (the layout hash covers names and kinds in order). */
#include "ipc/metrics.h"

#include "base/hash.h"

#include <string.h>

#define METRICS_MAGIC UINT64_C(0x706e73746d657431)

static const struct row {
	const char *kind, *id, *name, *labels, *help;
} rows[] = {
#define METRIC(kind, name, help) { #kind, #name, #name, "", help },
#define METRIC_LABELLED(kind, id, name, labels, help) { #kind, #id, #name, labels, help },
#define HISTOGRAM(name, buckets, help)
#include "ipc/metrics.def"
#undef METRIC
#undef METRIC_LABELLED
#undef HISTOGRAM
};

enum { MS = 1000000 };
#define S UINT64_C(1000000000)

/* Edges as dashboards for other servers have them, so that theirs can be used. */
enum bucket_set { LATENCY, GAP, TOKENS, BATCH, RATIO };
static const struct metrics_buckets bucket_sets[] = {
	[LATENCY] = { S, 22, { 1 * MS, 5 * MS, 10 * MS, 20 * MS, 40 * MS, 60 * MS, 80 * MS, 100 * MS, 250 * MS, 500 * MS, 750 * MS,
	                         1 * S, 5 * S / 2, 5 * S, 15 * S / 2, 10 * S, 20 * S, 40 * S, 80 * S, 160 * S, 640 * S, 2560 * S } },
	[GAP] = { S, 22, { MS / 4, MS / 2, 1 * MS, 2 * MS, 4 * MS, 6 * MS, 8 * MS, 10 * MS, 15 * MS, 20 * MS, 25 * MS, 35 * MS, 50 * MS,
	                     75 * MS, 100 * MS, 150 * MS, 250 * MS, 500 * MS, 1 * S, 5 * S / 2, 5 * S, 40 * S } },
	[TOKENS] = { 1, 21, { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144,
	                        524288, 1048576 } },
	[BATCH] = { 1, 13, { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096 } },
	[RATIO] = { 100, 10, { 10, 20, 30, 40, 50, 60, 70, 80, 90, 100 } },
};

static const struct histogram_row {
	const char     *name;
	enum bucket_set buckets;
	const char     *help;
} histogram_rows[] = {
#define METRIC(kind, name, help)
#define METRIC_LABELLED(kind, id, name, labels, help)
#define HISTOGRAM(name, buckets, help) { #name, buckets, help },
#include "ipc/metrics.def"
#undef METRIC
#undef METRIC_LABELLED
#undef HISTOGRAM
};

static uint64_t layout_hash(void)
{
	const uint64_t census = sizeof(struct census);
	uint64_t       hash = hash_fnv1a(HASH_FNV1A_START, &census, sizeof census);

	for (size_t i = 0; i < METRIC_COUNT; i++) {
		hash = hash_fnv1a(hash, rows[i].kind, strlen(rows[i].kind) + 1);
		hash = hash_fnv1a(hash, rows[i].name, strlen(rows[i].name) + 1);
		hash = hash_fnv1a(hash, rows[i].labels, strlen(rows[i].labels) + 1);
	}
	for (size_t i = 0; i < HISTOGRAM_COUNT; i++) {
		hash = hash_fnv1a(hash, histogram_rows[i].name, strlen(histogram_rows[i].name) + 1);
		hash = hash_fnv1a(hash, &bucket_sets[histogram_rows[i].buckets], sizeof bucket_sets[0]);
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

void metrics_observe(struct metrics *m, enum histogram id, uint64_t value)
{
	const struct metrics_buckets *buckets = metrics_histogram_buckets(id);
	struct metrics_histogram     *histogram = &m->shared->histograms[id];
	uint32_t                      low = 0, high = buckets->edge_count;

	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (value <= buckets->edges[middle])
			high = middle;
		else
			low = middle + 1;
	}
	atomic_fetch_add_explicit(&histogram->counts[low], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&histogram->sum, value, memory_order_relaxed);
}

void metrics_read(const struct metrics *m, enum histogram id, struct metrics_reading *ret)
{
	const struct metrics_histogram *histogram = &m->shared->histograms[id];

	ret->sum = atomic_load_explicit(&histogram->sum, memory_order_relaxed);
	ret->total = 0;
	for (unsigned i = 0; i <= METRICS_EDGES_MAX; i++) {
		ret->counts[i] = atomic_load_explicit(&histogram->counts[i], memory_order_relaxed);
		ret->total += ret->counts[i];
	}
}

void metrics_since(const struct metrics_reading *before, const struct metrics_reading *after, struct metrics_reading *ret)
{
	struct metrics_reading change = { .sum = after->sum - before->sum, .total = after->total - before->total };

	for (unsigned i = 0; i <= METRICS_EDGES_MAX; i++)
		change.counts[i] = after->counts[i] - before->counts[i];
	*ret = change;
}

double metrics_quantile(enum histogram id, const struct metrics_reading *reading, double q)
{
	const struct metrics_buckets *buckets = metrics_histogram_buckets(id);
	double                        rank = q * (double)reading->total, below = 0;

	if (reading->total == 0)
		return 0;
	for (uint32_t i = 0; i < buckets->edge_count; i++) {
		double count = (double)reading->counts[i], low = i ? (double)buckets->edges[i - 1] : 0;

		if (count > 0 && below + count >= rank)
			return (low + ((double)buckets->edges[i] - low) * (rank - below) / count) / (double)buckets->divisor;
		below += count;
	}
	return (double)buckets->edges[buckets->edge_count - 1] / (double)buckets->divisor;
}

const char *metrics_name(enum metric id) { return rows[id].name; }
const char *metrics_id(enum metric id) { return rows[id].id; }
const char *metrics_labels(enum metric id) { return rows[id].labels; }
const char *metrics_kind(enum metric id) { return rows[id].kind; }
const char *metrics_help(enum metric id) { return rows[id].help; }
const char *metrics_histogram_name(enum histogram id) { return histogram_rows[id].name; }
const char *metrics_histogram_help(enum histogram id) { return histogram_rows[id].help; }
const struct metrics_buckets *metrics_histogram_buckets(enum histogram id) { return &bucket_sets[histogram_rows[id].buckets]; }
