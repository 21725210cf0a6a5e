/* A model and a backend that compute nothing but notice everything, and a sink that records: for tests of the engine.
 *
 * The fake cache holds token ids: forward writes each row's token to its slot, sample reads the whole history of a
 * sequence back through its block table and hashes it.  So the next id depends on every earlier token and on every block
 * being the right one, and a naive function over the plain token list (fake_answer) says what must come out, whatever
 * was batched, chunked, paged or computed twice on the way.  Requests whose seed is 1 mod 4 have a penalty, so that they need a
 * slot of the sampler: what the fake one has counted there must be that same history. */
#ifndef TEST_ENGINE_FAKE_H
#define TEST_ENGINE_FAKE_H

#include "engine/engine.h"

enum { FAKE_VOCAB = 97, FAKE_EOS = 96, FAKE_CONTEXT = 400, FAKE_TAGS = 4096, FAKE_SAMPLES = 4, FAKE_QUEUE = 256, FAKE_SLOTS = 256 };

/* What a choice draws with, as fake_answer wants it. */
#define FAKE_SEED(seed, choice) ((seed) ^ (uint64_t)(choice) << 32)
/* A seed with this bit gives answers most of whose ids are those FAKE_PERIOD tokens before. */
#define FAKE_REPEATS (UINT64_C(1) << 62)
enum { FAKE_PERIOD = 5 };

struct fake_sample {
	int32_t  ids[256];
	uint32_t logprobs[256]; /* that the row asked for */
	uint32_t count;
};

struct fake_op {
	enum { FAKE_FORWARD, FAKE_SAMPLE, FAKE_COPY, FAKE_SLOT } kind;
	struct batch             batch;
	const struct sample_row *rows;
	uint32_t                 count, vocab_limit;
	int32_t                  from, to;
	uint32_t                 slot, tokens_count;
	int32_t                 *tokens; /* owned: what a slot was set to */
};

struct fake_slot {
	int32_t  tokens[2 * FAKE_CONTEXT];
	uint32_t count;
	bool     lost; /* a draw failed: what follows is nobody's */
};

struct fake_backend {
	struct backend     base; /* first */
	bool               late;  /* nothing runs before somebody waits for it; what the caller keeps is read only then */
	struct fake_op     queue[FAKE_QUEUE];
	uint32_t           enqueued, done;
	struct fake_sample samples[FAKE_SAMPLES];
	uint32_t           draws_enqueued, sampled, waited; /* samples enqueued, run, given out */
	uint32_t           tokens_ahead, copies;            /* rows whose token was a draw; blocks copied */
	uint32_t           guesses;                         /* draws of rows before a sequence's last */
	int32_t           *draft_cache;                     /* [blocks × block_size] the token after that of the slot */
	int32_t            kept[2][512], kept_slots[512];   /* positions of the rows of the last forward and draft */
	uint32_t           kept_rows[2], drafts;            /* drafts: rows of the model's guesses */
	bool               drafting;                        /* the last step was a draft */
	struct batch       batch; /* that runs */
	int32_t           *cache; /* [blocks × block_size] token ids, −1 = never written */
	uint32_t           slots, block_size;
	struct fake_slot   sampler_slots[FAKE_SLOTS];
	uint32_t           slots_set;
	uint32_t           steps, rows_max;
	uint64_t           memory;   /* what `memory` says */
	uint64_t           nan_seed; /* draws of this seed are −1 */
	bool               broken;   /* the next wait fails */
	char               complaint[200]; /* the first thing that was not right, "" = none */
};

struct model {
	struct model_info    info;
	struct fake_backend *backend;
};

void fake_init(struct fake_backend *backend, struct model *model);
void fake_free(struct fake_backend *backend);

/* The id that follows TOKENS. */
int32_t fake_next(const int32_t *tokens, uint32_t count, uint64_t seed);
/* What a request for at most MAX tokens must give; returns how many, *ret_finish says why it stops. */
uint32_t fake_answer(const int32_t *prompt, uint32_t prompt_tokens, uint64_t seed, uint32_t max, bool ignore_eos,
    int32_t *ret_ids, enum wire_finish *ret_finish);

/* What the sink knows of one choice; the request's tag plus the choice is the index. */
struct fake_record {
	int32_t             ids[FAKE_CONTEXT];
	uint32_t            count, ends, with_logprobs;
	struct engine_end   end;
	enum engine_control control; /* set by the test */
	uint32_t            keep;
	bool                no_credit;
	uint32_t            granted;     /* tokens that may come */
	bool                told_last;   /* the last choice has ended */
	bool                used_at_end; /* the blocks gauge at end() */
};

struct fake_sink {
	struct engine_sink  sink;
	struct metrics      metrics;
	struct metrics_shared *shared;
	struct fake_record *records; /* [FAKE_TAGS] */
	uint32_t            launches;
	uint64_t            blocks_used_at_end; /* the gauge when the last end() came */
};

void fake_sink_init(struct fake_sink *sink);
void fake_sink_free(struct fake_sink *sink);

/* An engine over all three; OPTIONS NULL = 4 running, 8 waiting, 16 rows, blocks of 4, 200 tokens of cache. */
struct engine *fake_engine(struct fake_backend *backend, struct model *model, struct fake_sink *sink,
    const struct engine_options *options);
struct engine_options fake_options(void);

/* Submits PROMPT_TOKENS ids made from SEED (kept in ret_prompt); the request's tag and id are TAG. */
enum status fake_submit(struct engine *engine, uint32_t tag, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed,
    uint64_t now_ns, int32_t *ret_prompt);
enum status fake_submit_choices(struct engine *engine, uint32_t tag, uint32_t prompt_tokens, uint32_t max_tokens,
    uint32_t choices, uint64_t seed, uint64_t now_ns, int32_t *ret_prompt);

#endif
