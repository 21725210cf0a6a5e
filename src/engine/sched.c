/* sched.c: owns each request's progress and where it stands.  Does not own tokens, blocks or time: see sched.h for what it
 * owes the engine.  sched_queue.c has the order of those who wait, sched_plan.c makes a plan, sched_cost.c knows what steps
 * cost.
 *
 * ---- The scheduler, in one picture
 *
 *      sched_add                                             ┌───────────── step_tokens rows ─────────────┐
 *          │                                                 │ decodes │    short prompts    │ long prompt │
 *          ▼                         admission               └────▲────┴──────────▲──────────┴──────▲──────┘
 *   ┌─ WAITING ────────────────┐    place, blocks  ┌─ RUNNING ─┐  │               │                 │
 *   │ short: flows by class,   ├──────────────────►│ decodes   ├──┘   budget − the share of a long  │
 *   │        counter, score    │                   │ prompts   ├──────┘   one   │                   │
 *   │ long:  the same, apart   ├──────────────────►│ (long)    ├────────────────┴───────────────────┘
 *   └───▲──────────────┬───────┘                   └─┬───┬─────┘
 *       │              │ max_queue_wait, deadline    │   │
 *       │              ▼                             │   └──► sched_remove
 *       │          EXPIRED ◄───── deadline ──────────┤
 *       └── SETTLING ◄── evicted: blocks are short, ─┘
 *        (until the      or a better class waits
 *         plans that
 *         name it are
 *         confirmed)
 *
 * Who runs first.  Every running decode has its row in every step, so no stream waits for somebody's prompt.  What is left
 * of the step is for prompts; itl_target_ns makes it smaller when decodes run, by the fitted cost of a row, but never less
 * than a sixteenth of step_tokens.  Prompts of running sequences and the heads of the queues are one order: class, then
 * score (arrival + weight · remaining).  So a short request overtakes a prompt that is half computed, and a head that does
 * not fit waits with nobody of its queue overtaking it: a big request is not starved by small ones.
 *
 * Long prompts (over long_prompt_tokens) wait in a queue of their own and are computed one after another.  Beside short
 * ones they have a quarter of the prompt budget for sure and all that the short ones leave; half of it before those of a
 * worse class, and all while their key is far behind (long_share in sched_plan.c).  A short request therefore
 * waits for the length of one step, not of 200,000 tokens, and a long one takes at most four times as long as it would
 * alone.  When short ones wait although there is budget, for a place or for blocks that other short ones hold, a long
 * one has no more rows than take a quarter of the step's time: every row beside decodes makes every answer longer, and
 * so the wait.  Under fair, a long one whose key has had less than theirs has what is left, too.  A long head that has
 * waited for as long as its score says, and does not fit the cache, makes a reservation: short ones are admitted only
 * beside the blocks it needs.
 *
 * Classes are strict: a worse one gets what the better ones leave, and max_queue_wait answers those who get nothing.
 * Ageing works inside a class, and under fair inside a key: if age went before class or key, a key that sends more than
 * its share would only have to wait to be served before everybody else.
 *
 * Blocks.  Admission asks whether the whole prompt and the expected answer fit beside what the running sequences are
 * expected to need; the blocks themselves are taken row by row.  What is expected is learned (estimate.h), looked up
 * anew in every plan: of an answer that has 500 tokens, what those that had 500 came to.  When a decode finds none, the
 * lowest class, then the paused, then the latest admitted, loses its blocks and is computed again later, before all
 * others of its class.  So that this does not go round in circles, nobody is admitted in a step that evicts, and an
 * eighth of the pool is left alone afterwards, halved with every sequence that ends.
 *
 * A waiting request of a better class may take place and blocks of running ones of worse classes, also when it is
 * max_running that stops it.  It waits for a few plans and for as long as what it would destroy takes to compute again:
 * many sequences end by themselves before. And no more than a 64th of all work is thrown away in this manner: under a
 * stream of such requests it would be half.  A sequence that has been paused for seconds gives way to anybody of its
 * class or a better one who cannot get in.
 *
 * Invariants: an entry is on the running list exactly while SCHED_RUNNING, in the queue exactly while SCHED_WAITING and not
 * paused; running_count ≤ max_running; computed ≤ length ≤ limit; only running entries have blocks, but for `shared`. */
#include "engine/sched_internal.h"

#include <stdlib.h>

uint32_t sched_blocks_for(const struct sched *sched, uint64_t tokens)
{
	return (uint32_t)((tokens + sched->options.block_size - 1) / sched->options.block_size);
}

/* The queue of a sequence that has PENDING tokens to compute before its next one. */
enum sched_kind sched_kind_of(const struct sched *sched, uint32_t pending)
{
	const struct sched_options *o = &sched->options;
	return o->policy != SCHED_FCFS && o->long_prompt_tokens && pending > o->long_prompt_tokens ? SCHED_LONG : SCHED_SHORT;
}

void sched_run_append(struct sched *sched, uint32_t handle)
{
	struct sched_entry *e = &sched->entries[handle];

	e->previous = sched->last;
	e->next = SCHED_NONE;
	if (sched->last == SCHED_NONE)
		sched->first = handle;
	else
		sched->entries[sched->last].next = handle;
	sched->last = handle;
	sched->running_count++;
}

void sched_run_remove(struct sched *sched, uint32_t handle)
{
	const struct sched_entry *e = &sched->entries[handle];

	if (e->previous == SCHED_NONE)
		sched->first = e->next;
	else
		sched->entries[e->previous].next = e->next;
	if (e->next == SCHED_NONE)
		sched->last = e->previous;
	else
		sched->entries[e->next].previous = e->previous;
	sched->running_count--;
}

enum status sched_create(const struct sched_options *options, struct sched **ret)
{
	struct sched *sched;
	enum status   status = STATUS_NOMEM;

	if (options->max_running == 0 || options->max_running > options->step_tokens || options->capacity < options->max_running ||
	    options->capacity == SCHED_NONE || options->block_size == 0 || options->blocks == 0 || options->depth > SCHED_DEPTH_MAX ||
	    options->policy > SCHED_FAIR)
		return STATUS_INVALID;
	sched = calloc(1, sizeof *sched);
	if (!sched)
		return STATUS_NOMEM;
	sched->options = *options;
	sched->first = sched->last = SCHED_NONE;
	sched->entries = calloc(options->capacity, sizeof *sched->entries);
	sched->items = calloc(options->max_running, sizeof *sched->items);
	sched->evicted = calloc(options->capacity, sizeof *sched->evicted);
	sched->expired = calloc(options->capacity, sizeof *sched->expired);
	for (int kind = 0; kind < SCHED_KINDS; kind++)
		sched->candidates[kind] = calloc(options->max_running, sizeof *sched->candidates[kind]);
	sched_cost_init(&sched->cost);
	estimate_init(&sched->estimate);
	if (sched->entries && sched->items && sched->evicted && sched->expired && sched->candidates[SCHED_SHORT] &&
	    sched->candidates[SCHED_LONG])
		status = sched_queue_init(sched);
	if (status) {
		sched_destroy(sched);
		return status;
	}
	*ret = sched;
	return STATUS_OK;
}

void sched_destroy(struct sched *sched)
{
	if (!sched)
		return;
	sched_queue_free(sched);
	free(sched->entries);
	free(sched->items);
	free(sched->evicted);
	free(sched->expired);
	free(sched->candidates[SCHED_SHORT]);
	free(sched->candidates[SCHED_LONG]);
	free(sched);
}

static uint64_t add_ns(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* Where HANDLE stands in its flow. */
static uint64_t first_score(const struct sched *sched, const struct sched_entry *e, uint64_t arrival_ns)
{
	uint64_t most = sched->options.max_queue_wait_ns ? sched->options.max_queue_wait_ns / 2 : UINT64_MAX / 4;
	uint64_t weight = (uint64_t)(e->expected - e->computed) * sched_cost_token_ns(&sched->cost);

	if (sched->options.policy == SCHED_FCFS)
		return e->serial;
	return add_ns(arrival_ns, weight < most ? weight : most);
}

void sched_add(struct sched *sched, uint32_t handle, const struct sched_job *job)
{
	struct sched_entry         *e = &sched->entries[handle];
	const struct sched_options *o = &sched->options;
	uint64_t                    limit = (uint64_t)job->length + job->max_new, expected = job->expected, latest;

	if (expected == 0)
		expected = estimate_total(&sched->estimate, 0, job->max_new);
	if (expected > job->max_new)
		expected = job->max_new;
	limit = limit > UINT32_MAX ? UINT32_MAX : limit;
	*e = (struct sched_entry){
		.state = SCHED_WAITING,
		.class = o->policy == SCHED_FCFS ? 0 : job->class,
		.estimated = job->expected == 0,
		.length = job->length,
		.computed = job->cached,
		.cached = job->cached,
		.prompt = job->length,
		.served = job->cached,
		.limit = (uint32_t)limit,
		.expected = (uint32_t)(job->length + expected < limit ? job->length + expected : limit),
		.resumed = job->begun,
		.arrival_ns = job->arrival_ns,
		.deadline_ns = job->deadline_ns,
		.expiry_ns = UINT64_MAX,
		.serial = ++sched->serial,
	};
	e->shared = e->kept = e->held = job->cached / o->block_size; /* the last one, if begun, becomes the sequence's own */
	e->kind = sched_kind_of(sched, job->length - job->cached);
	e->score = e->resumed ? e->serial : first_score(sched, e, job->arrival_ns);
	if (o->max_queue_wait_ns && !e->resumed)
		e->expiry_ns = add_ns(job->arrival_ns, o->max_queue_wait_ns);
	if (job->deadline_ns) {
		latest = sched_cost_least_ns(&sched->cost, job->length - job->cached);
		latest = latest < job->deadline_ns ? job->deadline_ns - latest : 0;
		e->expiry_ns = latest < e->expiry_ns ? latest : e->expiry_ns;
	}
	sched_queue_join(sched, handle, job->key);
	sched_queue_push(sched, handle);
	sched_expiry_add(sched, handle);
	sched->waiting_count++;
}

/* Tokens of prompt and answer that the key of E has had. */
static uint64_t service(const struct sched_entry *e) { return (uint64_t)(e->served - e->cached) + (e->length - e->prompt); }

void sched_remove(struct sched *sched, uint32_t handle)
{
	struct sched_entry *e = &sched->entries[handle];

	switch (e->state) {
	case SCHED_FREE:
		return;
	case SCHED_WAITING:
		if (!e->paused)
			sched_queue_take(sched, handle);
		sched_expiry_remove(sched, handle);
		sched->waiting_count--;
		break;
	case SCHED_SETTLING:
		sched->waiting_count--;
		break;
	case SCHED_RUNNING:
		sched_run_remove(sched, handle);
		sched->margin /= 2;
		break;
	default: /* SCHED_EXPIRED is nowhere */
		break;
	}
	if (e->charged) /* what it was in the end */
		sched_queue_charge(sched, handle, (int64_t)service(e) - e->charge);
	sched->outstanding -= e->outstanding;
	sched_queue_leave(sched, handle);
	*e = (struct sched_entry){ .state = SCHED_FREE };
}

void sched_share(struct sched *sched, uint32_t handle, uint32_t tokens)
{
	struct sched_entry *e = &sched->entries[handle];
	uint32_t            blocks = sched_blocks_for(sched, tokens);

	if (e->state == SCHED_RUNNING && blocks > e->kept)
		e->kept = blocks < e->held ? blocks : e->held;
}

void sched_set_paused(struct sched *sched, uint32_t handle, bool paused)
{
	struct sched_entry *e = &sched->entries[handle];

	if (e->paused == paused)
		return;
	if (e->state == SCHED_WAITING) {
		if (paused)
			sched_queue_take(sched, handle);
		else
			sched_queue_push(sched, handle);
	}
	e->paused = paused;
	e->paused_ns = sched->now_ns;
}

void sched_set_drafts(struct sched *sched, uint32_t handle, uint32_t drafts)
{
	struct sched_entry *e = &sched->entries[handle];

	if (e->state == SCHED_RUNNING)
		e->drafts = drafts;
}

void sched_confirm(struct sched *sched, uint32_t handle, uint32_t new_tokens)
{
	struct sched_entry *e = &sched->entries[handle];

	if (e->outstanding == 0)
		return;
	e->length = e->length - e->plans[0].sampled - e->plans[0].drafts + new_tokens;
	if (e->plans[0].drafts && e->state == SCHED_RUNNING) /* rows of wrong guesses are not in the cache */
		e->computed -= e->plans[0].drafts + 1 - new_tokens;
	e->plans[0] = e->plans[1];
	e->outstanding--;
	sched->outstanding--;
	if (e->charged && service(e) >= (uint64_t)e->charge + SCHED_CHARGE) {
		e->charge += SCHED_CHARGE;
		sched_queue_charge(sched, handle, SCHED_CHARGE);
	}
	if (e->state == SCHED_SETTLING && e->outstanding == 0) {
		e->state = SCHED_WAITING;
		if (!e->paused)
			sched_queue_push(sched, handle);
		sched_expiry_add(sched, handle);
	}
}

void sched_learn(struct sched *sched, uint32_t generated) { estimate_learn(&sched->estimate, generated); }

void sched_feedback(struct sched *sched, uint32_t rows, uint32_t sequences, uint64_t step_ns)
{
	sched_cost_add(&sched->cost, rows, sequences, step_ns);
}

uint32_t sched_running(const struct sched *sched) { return sched->running_count; }
uint32_t sched_waiting(const struct sched *sched) { return sched->waiting_count; }

void sched_stats(const struct sched *sched, struct sched_stats *ret)
{
	*ret = sched->stats;
	ret->step_ns = (uint64_t)sched->cost.step;
	ret->row_ns = (uint64_t)sched->cost.row;
	ret->sequence_ns = (uint64_t)sched->cost.sequence;
}
