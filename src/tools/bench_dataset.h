/* bench_dataset.h: what the load tool asks: synthetic prompts, prompts of a file, requests of a trace.
 *
 * Lengths are counted in words of a list whose words are one token each in common vocabularies; the true counts are the
 * server's (`usage`).  A drawn item is small: its text is made when it is sent, from its stream of random numbers, so that a
 * million requests of a hundred thousand words cost no memory before their turn.
 */
#ifndef PENSTOCK_TOOLS_BENCH_DATASET_H
#define PENSTOCK_TOOLS_BENCH_DATASET_H

#include "base/random.h"
#include "base/status.h"
#include "tools/sim_trace.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum bench_dataset_kind { BENCH_DATASET_RANDOM, BENCH_DATASET_PREFIX, BENCH_DATASET_CUSTOM, BENCH_DATASET_TRACE };

enum {
	BENCH_REQUESTS_MAX = 1000000,  /* of one run; lines of a file */
	BENCH_WORDS_MAX = 1 << 22,     /* of one prompt */
	BENCH_OUTPUT_MAX = 1 << 20,    /* max_tokens */
	BENCH_FILE_MAX = 1 << 30,      /* bytes of a dataset file */
	BENCH_LINE_DEPTH_MAX = 64      /* nesting of a line of a JSONL file */
};

struct bench_dataset_options {
	enum bench_dataset_kind kind;
	const char *path;                     /* custom, trace */
	bool        chat;                     /* messages, not a bare prompt, are what the server takes */
	uint32_t    input_tokens;             /* random, prefix (without the prefix) */
	uint32_t    output_tokens;            /* random, prefix, and custom where a line names none */
	uint32_t    prefix_tokens, prefixes;  /* the shared beginning (random: the same for all), how many different ones */
	double      range_ratio;              /* random: lengths uniform in length × (1 ± ratio) */
	bool        shuffle, oversample;      /* custom */
	bool        classes;                  /* trace: send the class as `priority` */
};

struct bench_item {
	double        arrival_s;      /* trace; else 0 */
	double        cancel_after_s; /* after its arrival; < 0 = never */
	uint64_t      prefix_stream, stream;
	uint32_t      prefix_tokens, input_tokens /* all of the prompt */, output_tokens;
	int32_t       priority;
	uint32_t      key;            /* trace: index into trace.keys */
	bool          has_priority;
	const json_t *content;        /* custom: the dataset's; NULL = made of words */
};

struct bench_dataset {
	struct bench_dataset_options options;
	struct bench_item           *rows; /* custom, trace: one per line */
	size_t                       row_count, row_capacity;
	struct sim_trace             trace; /* its keys */
};

/* Reads the file of a custom or trace dataset; errors name file, line and column or member.  bench_dataset_close takes a
 * zeroed one. */
enum status bench_dataset_open(const struct bench_dataset_options *options, struct bench_dataset *ret, struct error *error);
void        bench_dataset_close(struct bench_dataset *dataset);

/* Draws up to COUNT items, reproducibly from SEED; *ret_count is smaller for a trace with fewer rows, and for a custom file
 * that may not be oversampled.  The caller frees *ret_items. */
enum status bench_dataset_draw(const struct bench_dataset *dataset, size_t count, uint64_t seed, struct bench_item **ret_items,
    size_t *ret_count, struct error *error);

/* The prompt (a string) or the messages (an array), a new reference; NULL when out of memory. */
json_t *bench_dataset_content(const struct bench_dataset *dataset, const struct bench_item *item);

#endif
