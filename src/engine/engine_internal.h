/* engine_internal.h: what engine.c and engine_step.c share; nobody else includes it. */
#ifndef PENSTOCK_ENGINE_ENGINE_INTERNAL_H
#define PENSTOCK_ENGINE_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/sched_trace.h"
#include "engine/speculate.h"

enum { ENGINE_NONE = UINT32_MAX };

/* One accepted request: its prompt, which its choices share, and what the world says of it. */
struct request {
	uint64_t id, tag, arrival_ns, deadline_ns, key;
	int32_t  priority;
	uint64_t paused_since_ns; /* while paused */
	uint64_t planned_ns;      /* first plan; 0 = not yet */
	int32_t *prompt;
	uint32_t prompt_tokens, max_tokens, choices;
	uint32_t counted;         /* prompt tokens that the metrics know: what is computed again counts once */
	uint32_t cached;          /* prompt tokens that choices found in the cache */
	uint32_t first;           /* its sequences, linked by next_choice: those that have begun and not ended */
	uint32_t forked;          /* choices that have sequences or had them */
	uint32_t ended;           /* choices that have ended */
	uint32_t active_at;       /* its place in engine.active */
	bool     paused, ignore_eos;
	bool     may_draft;       /* its credit is enough for tokens that were guessed */
	struct sample_params sampling;
	struct engine_lists  lists;
	uint32_t            *mask; /* of allowed_ids; NULL = none */
	uint32_t            *think_masks; /* [think_close_count]: each has one id */
};

/* Guesses at the tokens after the last one of a sequence. */
struct draft {
	int32_t ids[SPECULATE_MOST];
	uint8_t count, kind, grade; /* grade: tokens that agreed (n-gram) */
	uint8_t most;               /* so many the model is to make */
};

/* Where a sequence is with the thought that has a budget. */
struct think {
	uint32_t from;     /* tokens generated when it began; valid once `begun` */
	uint32_t forced;   /* 0, or 1 + the number of the token with which its end is drawn */
	uint32_t matched;  /* ids of the list that is looked for, at the end of what was generated */
	bool     begun, closed;
};

/* One choice of a request.  Its slot is the scheduler's handle. */
struct sequence {
	uint32_t request, choice;
	uint32_t next_choice;       /* of its request; of the unused ones */
	int32_t *ids;               /* generated; room for max_tokens */
	uint32_t generated;
	uint32_t computed, preemptions, preempted_tokens;
	uint64_t first_ns, last_ns; /* first and last token; 0 = not yet */
	uint32_t in_flight;         /* steps that name it and have not come back */
	uint32_t drawing;           /* tokens that they draw, at most */
	uint32_t drawn_at;          /* index of its draw in the last step that had one */
	uint32_t slot;              /* of the backend's sampler: 0 = none, else 1 + its number */
	struct think think;
	bool     ended;             /* told to the sink; waits for the steps that name it */
	bool     lost;              /* so do its blocks */
	struct kv_table table;
	struct draft draft;
	struct speculate_rate rates[SPECULATE_KINDS]; /* how often its guesses were right */
};

/* A step under way: what it was asked to do, and where its answer goes. */
struct step_item {
	uint32_t handle, start, rows; /* rows: guesses included */
	uint32_t draws, drafts;       /* draws: 0 or 1 + drafts */
	bool     stays;               /* has come back, and the sequence neither ended nor lost its blocks */
};

struct step {
	struct step_item      *items;                         /* [max_running] */
	int32_t               *tokens, *positions, *kv_slots; /* [step_tokens] */
	struct batch_sequence *parts;                         /* [max_running] */
	int32_t               *logit_rows, *ids;              /* [draws_max] */
	struct sample_row     *samples;                       /* [draws_max] */
	int32_t               *copy_from, *copy_to;           /* [max_running] blocks copied before it */
	uint32_t              *fresh;                         /* [max_running] sequences that got a slot in this step */
	uint32_t               count, rows, draws, fresh_count;
	uint64_t               launched_ns;
	struct batch           batch;
};

struct engine {
	struct model         *model;
	struct backend       *backend;
	struct engine_options options;
	struct engine_sink    sink;
	struct metrics       *metrics; /* may be NULL */
	struct sched         *sched;
	struct kv_pool       *pool;
	struct sched_trace   *record; /* may be NULL */
	uint32_t              max_context, vocab_limit, kv_groups, paused;
	uint64_t              retired;     /* steps that came back, the one whose ids are published included */
	uint64_t              bad_step;    /* while a choice ends whose logits were not finite: that step; else 0 */
	uint64_t              computed_ns; /* when the ids of the step that came back last were there */

	struct request  *requests; /* [request_count] */
	uint32_t        *active;   /* [request_count] accepted requests in no particular order, then the unused ones */
	uint32_t         request_count, active_count;
	struct sequence *sequences; /* [sequence_count] */
	uint32_t         sequence_count, unused, promised; /* promised: choices of accepted requests */

	uint32_t *unused_slots, unused_slot_count; /* [max_running], the last of them is the next to be taken */

	struct step steps[SCHED_DEPTH_MAX]; /* a ring */
	uint32_t    depth, oldest, outstanding;
	uint32_t    draws_max; /* of one step */

	/* engine_draft.c */
	uint32_t                draft_tokens, draft_rows; /* of a sequence and of a step; 0 = no guesses */
	struct speculate_cost   cost;
	struct speculate_rate   rates[SPECULATE_KINDS][SPECULATE_NGRAM_MOST + 1]; /* by grade */
	struct speculate_offer *offers;  /* [max_running] */
	uint32_t               *offered; /* [max_running] by whom */
	uint32_t                prompt_rows, unused_drafts; /* prompt rows of the last step; steps in a row that took no guess */
	bool                    mtp;         /* the model drafts, too */
	struct step             ahead;       /* its steps */
	int32_t                *hidden_rows; /* [step_tokens] */
	double                  ahead_ns;    /* what one more draft of the model takes, with its sample */
};

void engine_count(struct engine *engine, enum metric id, uint64_t n);
void engine_set_gauges(struct engine *engine);

/* The one place where a choice ends.  COMPLETION tokens are its own, of those generated. */
void engine_end_choice(struct engine *engine, uint32_t handle, enum wire_finish finish, enum status status,
    uint32_t completion);
/* Ends all choices of a request that have not ended, with what they have. */
void engine_end_request(struct engine *engine, uint32_t index, enum wire_finish finish, enum status status);
/* Makes the other choices of a request, now that the prompt is computed by the sequence HANDLE. */
void engine_fork(struct engine *engine, uint32_t handle);
/* HANDLE has ended and no step names it: its blocks and its number are free. */
void engine_release(struct engine *engine, uint32_t handle);

/* engine_slots.c: what the sampler keeps for sequences that need it */
enum status engine_slots_alloc(struct engine *engine);
void        engine_slots_free(struct engine *engine);
/* STATUS_OK, or what is wrong with a request's lists and sampling, with words. */
enum status engine_slots_check(const struct engine *engine, const struct engine_request *request, struct error *error);
enum status engine_slots_mask(const struct engine *engine, struct request *request); /* makes request->mask */
/* The slot for the next draw of HANDLE, as in sample_row; a new one is noted in STEP. */
uint32_t engine_slots_take(struct engine *engine, uint32_t handle, struct step *step);
void     engine_slots_leave(struct engine *engine, struct sequence *sequence);
/* Tells the backend what the new slots of STEP hold, before its sample. */
enum status engine_slots_fill(struct engine *engine, const struct step *step);
bool        engine_slots_is_stop(const struct request *request, int32_t id);

/* engine_draft.c */
enum status engine_drafts_alloc(struct engine *engine);
void        engine_drafts_free(struct engine *engine);
/* Before a plan: makes guesses for those who decode and offers the scheduler those that pay. */
void     engine_propose(struct engine *engine);
/* IDS were drawn for ITEM, one after each of its last rows.  Returns how many of them are tokens, at least one: those up to
 * the first that is not what the row after it guessed. */
uint32_t engine_verify(struct engine *engine, const struct step_item *item, const int32_t *ids);
/* STEP has come back and was published: lets the model's drafting layer see what it computed, and guess.  For a model that
 * drafts, where no steps overlap. */
enum status engine_draft_ahead(struct engine *engine, const struct step *step, struct error *error);

/* engine_think.c: the budget of thoughts */
enum status engine_think_masks(const struct engine *engine, struct request *request); /* makes request->think_masks */
/* The mask for token number GENERATED of the sequence, whose last GUESSES tokens before it are its draft's: the request's own, or
 * one that leaves what closes its thought. */
const uint32_t *engine_think_mask(const struct engine *engine, struct sequence *sequence, uint32_t generated, uint32_t guesses);
/* ID is token number GENERATED. */
void engine_think_take(const struct request *request, struct think *think, uint32_t generated, int32_t id);

/* engine_step.c */
enum status engine_step_alloc(const struct engine *engine, struct step *step);
void        engine_step_free(struct step *step);
/* The token of SEQUENCE at POSITION; a draw that has not come back is named by its number (struct batch). */
int32_t     engine_token_at(const struct request *request, const struct sequence *sequence, uint32_t position);
enum status engine_steps_alloc(struct engine *engine);
void        engine_steps_free(struct engine *engine);
/* Waits for the steps that are under way and forgets them. */
void        engine_steps_abandon(struct engine *engine);

#endif
