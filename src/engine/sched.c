/* sched.c: first come, first served.  Owns the order of requests and each one's progress; does not own tokens, blocks or
 * time.  See sched.h for the contract every policy keeps.
 *
 * The policy:
 *   1. every running decode gets its row, so that no stream waits for somebody's prompt (max_running ≤ step_tokens makes
 *      them all fit);
 *   2. what is left of step_tokens goes to the prompts of running sequences in the order of their admission;
 *   3. then the head of the queue is admitted while there is a place, budget, and room for its worst case.  A head that
 *      does not fit waits and nobody overtakes it: a big request is never starved by small ones.  Only a paused one (its
 *      client takes nothing) is passed over.
 * Blocks for the worst case are reserved at admission, so a running sequence never has to be evicted.
 *
 * Invariant: an entry is on exactly the list its state says; computed ≤ length; running_count ≤ max_running. */
#include "engine/sched.h"

#include <stdlib.h>

enum state { STATE_FREE, STATE_WAITING, STATE_RUNNING };
enum { NONE = UINT32_MAX };

struct entry {
	enum state state;
	bool       paused;
	uint32_t   previous, next; /* on its list */
	uint32_t   length, computed, planned, blocks;
};

/* In order of arrival (waiting) or of admission (running). */
struct list {
	uint32_t head, tail, count;
};

struct sched {
	struct sched_options options;
	struct entry        *entries; /* [capacity] */
	struct list          waiting, running;
	struct sched_item   *items;   /* [max_running], of the last plan */
};

static void list_append(struct sched *sched, struct list *list, uint32_t handle)
{
	struct entry *entry = &sched->entries[handle];

	entry->previous = list->tail;
	entry->next = NONE;
	if (list->tail == NONE)
		list->head = handle;
	else
		sched->entries[list->tail].next = handle;
	list->tail = handle;
	list->count++;
}

static void list_remove(struct sched *sched, struct list *list, uint32_t handle)
{
	struct entry *entry = &sched->entries[handle];

	if (entry->previous == NONE)
		list->head = entry->next;
	else
		sched->entries[entry->previous].next = entry->next;
	if (entry->next == NONE)
		list->tail = entry->previous;
	else
		sched->entries[entry->next].previous = entry->previous;
	list->count--;
}

enum status sched_create(const struct sched_options *options, struct sched **ret)
{
	struct sched *sched;

	if (options->max_running == 0 || options->max_running > options->step_tokens || options->capacity < options->max_running ||
	    options->capacity == NONE)
		return STATUS_INVALID;
	sched = calloc(1, sizeof *sched);
	if (!sched)
		return STATUS_NOMEM;
	sched->options = *options;
	sched->entries = calloc(options->capacity, sizeof *sched->entries);
	sched->items = calloc(options->max_running, sizeof *sched->items);
	if (!sched->entries || !sched->items) {
		sched_destroy(sched);
		return STATUS_NOMEM;
	}
	sched->waiting = sched->running = (struct list){ NONE, NONE, 0 };
	*ret = sched;
	return STATUS_OK;
}

void sched_destroy(struct sched *sched)
{
	if (!sched)
		return;
	free(sched->entries);
	free(sched->items);
	free(sched);
}

void sched_add(struct sched *sched, uint32_t handle, const struct sched_job *job)
{
	sched->entries[handle] = (struct entry){ .state = STATE_WAITING, .length = job->length, .blocks = job->blocks };
	list_append(sched, &sched->waiting, handle);
}

void sched_remove(struct sched *sched, uint32_t handle)
{
	struct entry *entry = &sched->entries[handle];

	if (entry->state != STATE_FREE)
		list_remove(sched, entry->state == STATE_RUNNING ? &sched->running : &sched->waiting, handle);
	entry->state = STATE_FREE;
}

void sched_set_paused(struct sched *sched, uint32_t handle, bool paused) { sched->entries[handle].paused = paused; }

/* Plans as many of the pending tokens of HANDLE as *BUDGET allows. */
static void plan_rows(struct sched *sched, uint32_t handle, bool admitted, uint32_t *budget, struct sched_plan *plan)
{
	struct entry *entry = &sched->entries[handle];
	uint32_t      pending = entry->length - entry->computed;
	uint32_t      rows = pending < *budget ? pending : *budget;

	entry->planned = rows;
	sched->items[plan->count++] = (struct sched_item){
		.handle = handle, .start = entry->computed, .rows = rows, .admitted = admitted, .sampled = rows == pending
	};
	plan->rows += rows;
	plan->sampled += rows == pending;
	*budget -= rows;
}

static bool decodes(const struct entry *entry) { return entry->computed > 0 && entry->length - entry->computed == 1; }

void sched_plan(struct sched *sched, uint32_t free_blocks, uint64_t now_ns, struct sched_plan *ret)
{
	struct sched_plan plan = { .items = sched->items };
	uint32_t          budget = sched->options.step_tokens;

	(void)now_ns; /* first come, first served does not age */
	for (uint32_t h = sched->running.head; h != NONE; h = sched->entries[h].next)
		if (!sched->entries[h].paused && decodes(&sched->entries[h]))
			plan_rows(sched, h, false, &budget, &plan);
	for (uint32_t h = sched->running.head; h != NONE && budget > 0; h = sched->entries[h].next)
		if (!sched->entries[h].paused && !decodes(&sched->entries[h]))
			plan_rows(sched, h, false, &budget, &plan);
	for (uint32_t h = sched->waiting.head, next; h != NONE; h = next) {
		struct entry *entry = &sched->entries[h];

		next = entry->next;
		if (entry->paused)
			continue;
		if (sched->running.count == sched->options.max_running || budget == 0 || entry->blocks > free_blocks)
			break;
		free_blocks -= entry->blocks;
		list_remove(sched, &sched->waiting, h);
		list_append(sched, &sched->running, h);
		entry->state = STATE_RUNNING;
		plan_rows(sched, h, true, &budget, &plan);
	}
	*ret = plan;
}

void sched_confirm(struct sched *sched, uint32_t handle, uint32_t new_tokens)
{
	struct entry *entry = &sched->entries[handle];

	entry->computed += entry->planned;
	entry->planned = 0;
	entry->length += new_tokens;
}

uint32_t sched_running(const struct sched *sched) { return sched->running.count; }
uint32_t sched_waiting(const struct sched *sched) { return sched->waiting.count; }
