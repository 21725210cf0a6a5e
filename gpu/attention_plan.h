/* attention_plan.h: into which parts decode attention cuts contexts, and which block of threads takes which part.
 *
 * A context is cut into runs, whose length depends on the context's length only (attention_run_own), so that a row's bits do not
 * depend on its neighbours.  Which block works on a run does depend on them, and changes no bit.
 *
 * Results of runs are put together in an order that is the context's, too: first those of a group of ATTENTION_GROUP runs, one
 * after the other, then those of the groups.  So a block may take a whole group and leave one result, or a whole context and
 * leave none but y, with the same bits.
 *
 * Results are put together by the block that leaves the last of them, which is busy with that for as long as there are many.
 * Where there are more than ATTENTION_FEW, or a quarter of that and no block has two units, or where no block has two runs, every
 * second unit's block puts together its share of the rows' columns instead, when it has done all its units: units are `shared`.
 *
 * A unit is a run, or where there is work enough for all blocks a group, or a whole context, of a KV head and a pass: as many rows
 * of (query, head of the group) as a block takes at once, or 16 of them, for all, where no block gets two units that way.  Units
 * are given out longest first, each to the block that has least to do (Graham 1969).  The unit at index b is the first of block b;
 * each names the next one of its block, so that a block finds its work with one load. */
#ifndef PENSTOCK_GPU_ATTENTION_PLAN_H
#define PENSTOCK_GPU_ATTENTION_PLAN_H

#include "base/status.h"

#include <stdint.h>

#ifdef __CUDACC__
#define ATTENTION_BOTH __host__ __device__
#else
#define ATTENTION_BOTH
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTENTION_PAGE = 64, ATTENTION_RUNS_MAX = 66, ATTENTION_GROUP = 4, ATTENTION_FEW = 16, ATTENTION_BLOCKS_MAX = 1024 };

struct attention_unit {
	int32_t begin, end;   /* tokens of the context */
	int32_t context, first_row;
	int32_t first;        /* where the sequence's results begin, in rows of a head */
	int32_t table;        /* where the page of BEGIN stands in the block tables */
	int32_t next;         /* index of the block's next unit; −1 = none */
	uint32_t rows : 8, head : 8, pass : 7;
	uint32_t wide : 1;    /* passes are of 32 rows, else of 16 */
	uint32_t results : 7; /* of the sequence for this head and pass, one for each unit; 0: the block has nothing to do */
	uint32_t shared : 1;  /* every second unit's block puts together a share of them */
};

/* A sequence of a step, for one group of layers; TABLE is where its block table begins. */
struct attention_part {
	int32_t first_row, rows, context, first, table;
};

struct attention_shape {
	uint32_t blocks, kv_heads, group; /* query heads of a KV head */
	uint32_t pass_rows;               /* rows of (query, head of the group) that a block can take in a pass: 16 or 32 */
	uint32_t whole;                   /* a unit may have more than a group of runs: a whole context */
};

/* Tokens of a run of a context of CONTEXT tokens, in attention_decode.cuh: at least as many runs as attention_run_own makes. */
ATTENTION_BOTH static inline uint32_t attention_run(uint32_t context)
{
	uint32_t run;

	if (context <= 2048)
		return 128;
	if (context <= 8192)
		return 256;
	if (context <= 32768)
		return 1024;
	run = (context + ATTENTION_RUNS_MAX - 1) / ATTENTION_RUNS_MAX;
	return (run + ATTENTION_PAGE - 1) / ATTENTION_PAGE * ATTENTION_PAGE;
}

/* The same for units: up to 256 tokens are one run, whose result needs no other. */
ATTENTION_BOTH static inline uint32_t attention_run_own(uint32_t context)
{
	return context <= 4096 ? 256 : context <= 8192 ? 512 : attention_run(context);
}

/* Tokens of a unit of a context whose results are RESULTS, more than one. */
ATTENTION_BOTH static inline uint32_t attention_span(uint32_t context, uint32_t results)
{
	uint32_t run = attention_run_own(context);

	return (context + run - 1) / run == results ? run : run * ATTENTION_GROUP;
}

struct attention_planner; /* opaque: what planning needs, taken once */

enum status attention_planner_create(uint32_t parts_max, struct attention_planner **ret);
void        attention_planner_destroy(struct attention_planner *planner);
struct attention_part *attention_planner_parts(struct attention_planner *planner); /* [parts_max], for the caller to fill */

/* Units of all blocks for the planner's first COUNT parts; returns how many there are, at least as many as blocks, or 0 when
 * they are more than MAX, or the shape or a part is beyond what a unit holds. */
uint32_t attention_plan(struct attention_planner *planner, const struct attention_shape *shape, uint32_t count,
    struct attention_unit *ret, uint32_t max);

#ifdef __cplusplus
}
#endif
#endif
