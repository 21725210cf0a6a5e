/* metadata.h: a step's metadata as kernels read it: plain structs, for the device and for emulated tests. */
#ifndef PENSTOCK_GPU_METADATA_H
#define PENSTOCK_GPU_METADATA_H

#include "gpu/attention_plan.h"
#include "model/backend.h"

#include <stdint.h>

enum {
	CUDA_HEAD_DIM_MAX = 512,
	CUDA_TILE = ATTENTION_PAGE,         /* rows of a prefill tile; tokens of a step of attention */
	CUDA_RUNS_MAX = ATTENTION_RUNS_MAX  /* parts into which a context is cut for decode attention */
};

struct step_sequence {
	int32_t first_row, rows, context;
	int32_t table[BACKEND_KV_GROUPS_MAX]; /* where its block table begins */
	int32_t first_item, items;            /* of decode attention */
};

/* Tokens [begin, end) of a sequence's context, for all heads of its rows. */
struct step_item {
	int32_t sequence, begin, end;
	int32_t partial; /* where its partial results begin, in rows of a head */
};

/* CUDA_TILE rows of a sequence, for prefill attention. */
struct step_tile {
	int32_t sequence, first_row;
};

/* Logits of a row are looked at in pieces. */
enum { SAMPLE_PIECE = 256 };
static inline uint32_t sample_pieces(uint32_t vocab) { return (vocab + SAMPLE_PIECE - 1) / SAMPLE_PIECE; }

/* A row to sample, as the kernel reads it. */
struct sample_job {
	struct sample_params params;
	uint64_t position;
	uint32_t choice, logit_row;
	uint32_t slot, bias_count; /* as in sample_row; of its slot */
	int32_t  mask, bans;       /* its number among the masks of the sample, −1 = none; those of min_tokens hold */
	uint32_t guess_count;
	int32_t  guesses[BACKEND_DECODE_QUERIES_MAX - 1]; /* as in sample_row */
};

/* What a kernel stores when it begins: VALUE at AT (struct fault_marks, in host memory). */
struct step_mark {
	uint32_t *at;
	uint32_t  value;
};

#endif
