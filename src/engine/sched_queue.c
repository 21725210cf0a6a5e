/* sched_queue.c: owns the order of those who wait.  Does not know blocks, budgets or the batch.
 *
 * Those who wait are in flows, and the flows are in a heap; both levels are leftist heaps, so every operation costs the
 * logarithm of the queue and none walks it:
 *
 *     heap of flows        by class, then resumed before others, then service counter
 *       │
 *       ├─ class −1  key A   counter 1200   heap of requests by score: arrival + weight · remaining
 *       ├─ class  0  resumed                (evicted ones: before everybody else of their class)
 *       ├─ class  0  key B   counter  900   heap of requests by score
 *       └─ class  0  key A   counter 4100   …
 *
 * The policies differ in nothing but the names they give to flows: under fair a flow is (class, key), under priority every
 * key is the same, under fcfs every class is, too, and the score is the number of the arrival.  There is one such heap for
 * short and one for long prompts; a flow can be in both, and its counter is one.
 *
 * The counter is that of virtual token counter fair queueing (Sheng et al. 2024): tokens of prompt and answer a key has
 * been served.  A prompt is charged at admission, so that a key cannot have ten of them admitted before the first counts, the
 * answer as it comes; what was not computed in the end is given back.  A key that comes back from idleness is lifted to the
 * counter of the one admitted last in its class: it has saved up no credit by being away.
 *
 * Ageing is a static score: a request that came `weight · remaining` earlier goes before one with nothing to do.  The
 * weight's part is capped at half of max_queue_wait, so whoever has waited that much longer than all others is first.
 *
 * Invariant: a flow is in the heap of a kind exactly while somebody waits in its heap of that kind; a flow that is neither
 * pinned nor idle is unused. */
#include "engine/sched_internal.h"

#include <stdlib.h>

/* ---- orders ------------------------------------------------------------------------------------------------------- */

static bool score_before(const void *context, uint32_t a, uint32_t b)
{
	const struct sched       *sched = context;
	const struct sched_entry *x = &sched->entries[a], *y = &sched->entries[b];

	return x->score != y->score ? x->score < y->score : x->serial < y->serial;
}

static bool expiry_before(const void *context, uint32_t a, uint32_t b)
{
	const struct sched *sched = context;
	return sched->entries[a].expiry_ns < sched->entries[b].expiry_ns;
}

static bool turn_before(const void *context, uint32_t a, uint32_t b)
{
	const struct sched_flow_order *order = context;
	const struct sched_flow       *x = &order->sched->flows[a], *y = &order->sched->flows[b];

	if (x->class != y->class)
		return x->class < y->class;
	if (x->type != y->type)
		return x->type < y->type;
	if (x->counter != y->counter)
		return x->counter < y->counter;
	return score_before(order->sched, x->waiting[order->kind], y->waiting[order->kind]);
}

/* ---- flows -------------------------------------------------------------------------------------------------------- */

static uint32_t bucket_of(const struct sched *sched, uint8_t type, int32_t class, uint64_t key)
{
	uint64_t h = (key ^ (uint64_t)(uint32_t)class << 3 ^ type) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(h >> 32) & (sched->bucket_count - 1);
}

static void idle_remove(struct sched *sched, uint32_t flow)
{
	struct sched_flow *f = &sched->flows[flow];

	if (f->older == SCHED_NONE)
		sched->oldest_idle = f->newer;
	else
		sched->flows[f->older].newer = f->newer;
	if (f->newer == SCHED_NONE)
		sched->newest_idle = f->older;
	else
		sched->flows[f->newer].older = f->older;
}

static void idle_append(struct sched *sched, uint32_t flow)
{
	struct sched_flow *f = &sched->flows[flow];

	f->older = sched->newest_idle;
	f->newer = SCHED_NONE;
	if (sched->newest_idle == SCHED_NONE)
		sched->oldest_idle = flow;
	else
		sched->flows[sched->newest_idle].newer = flow;
	sched->newest_idle = flow;
}

static void flow_unpin(struct sched *sched, uint32_t flow);

static void flow_forget(struct sched *sched, uint32_t flow)
{
	struct sched_flow *f = &sched->flows[flow];
	uint32_t          *at = &sched->buckets[bucket_of(sched, f->type, f->class, f->key)];

	while (*at != flow)
		at = &sched->flows[*at].chain;
	*at = f->chain;
	f->chain = sched->unused_flows;
	sched->unused_flows = flow;
	if (f->type == FLOW_KEY)
		flow_unpin(sched, f->class_flow);
}

/* A key's counter is remembered while there is room, for when it comes back. */
static void flow_unpin(struct sched *sched, uint32_t flow)
{
	struct sched_flow *f = &sched->flows[flow];

	if (--f->pins > 0)
		return;
	if (f->type == FLOW_KEY)
		idle_append(sched, flow);
	else
		flow_forget(sched, flow);
}

/* The flow of (type, class, key), pinned once more.  There always is room: see sched_queue_init. */
static uint32_t flow_pin(struct sched *sched, uint8_t type, int32_t class, uint64_t key)
{
	uint32_t           bucket = bucket_of(sched, type, class, key), flow = sched->buckets[bucket];
	struct sched_flow *f;

	for (; flow != SCHED_NONE; flow = f->chain) {
		f = &sched->flows[flow];
		if (f->type == type && f->class == class && f->key == key) {
			if (f->pins++ == 0)
				idle_remove(sched, flow);
			return flow;
		}
	}
	if (sched->unused_flows == SCHED_NONE) {
		uint32_t oldest = sched->oldest_idle;
		idle_remove(sched, oldest);
		flow_forget(sched, oldest);
	}
	flow = sched->unused_flows;
	f = &sched->flows[flow];
	sched->unused_flows = f->chain;
	*f = (struct sched_flow){ .type = type, .class = class, .key = key, .pins = 1, .chain = sched->buckets[bucket] };
	f->waiting[SCHED_SHORT] = f->waiting[SCHED_LONG] = SCHED_NONE;
	sched->buckets[bucket] = flow;
	return flow;
}

void sched_queue_join(struct sched *sched, uint32_t handle, uint64_t key)
{
	struct sched_entry *e = &sched->entries[handle];
	uint32_t            flow = flow_pin(sched, FLOW_KEY, e->class, sched->options.policy == SCHED_FAIR ? key : 0);
	struct sched_flow  *f = &sched->flows[flow];

	if (f->class_flow == 0) { /* a new one; numbers begin at 1 */
		uint32_t class_flow = flow_pin(sched, FLOW_CLASS, e->class, 0);
		f->class_flow = class_flow;
	}
	e->flow = flow;
}

void sched_queue_leave(struct sched *sched, uint32_t handle) { flow_unpin(sched, sched->entries[handle].flow); }

/* ---- waiting ------------------------------------------------------------------------------------------------------ */

void sched_queue_push(struct sched *sched, uint32_t handle)
{
	struct sched_entry *e = &sched->entries[handle];
	struct sched_flow  *f;

	e->queue = e->resumed ? flow_pin(sched, FLOW_RESUMED, e->class, 0) : e->flow;
	f = &sched->flows[e->queue];
	if (f->waiting[e->kind] != SCHED_NONE) {
		sched_heap_remove(&sched->by_turn[e->kind], &sched->turn[e->kind], e->queue);
	} else if (!e->resumed && f->waiting[!e->kind] == SCHED_NONE) { /* back from idleness; in no heap, so this is in order */
		uint64_t least = sched->flows[f->class_flow].counter;
		f->counter = f->counter > least ? f->counter : least;
	}
	sched_heap_insert(&sched->by_score, &f->waiting[e->kind], handle);
	sched_heap_insert(&sched->by_turn[e->kind], &sched->turn[e->kind], e->queue);
}

void sched_queue_take(struct sched *sched, uint32_t handle)
{
	struct sched_entry *e = &sched->entries[handle];
	struct sched_flow  *f = &sched->flows[e->queue];

	sched_heap_remove(&sched->by_turn[e->kind], &sched->turn[e->kind], e->queue);
	sched_heap_remove(&sched->by_score, &f->waiting[e->kind], handle);
	if (f->waiting[e->kind] != SCHED_NONE)
		sched_heap_insert(&sched->by_turn[e->kind], &sched->turn[e->kind], e->queue);
	if (f->type == FLOW_RESUMED)
		flow_unpin(sched, e->queue);
}

uint32_t sched_queue_head(const struct sched *sched, enum sched_kind kind)
{
	uint32_t flow = sched->turn[kind];
	return flow == SCHED_NONE ? SCHED_NONE : sched->flows[flow].waiting[kind];
}

void sched_queue_charge(struct sched *sched, uint32_t handle, int64_t tokens)
{
	uint32_t           flow = sched->entries[handle].flow;
	struct sched_flow *f = &sched->flows[flow];

	for (int kind = 0; kind < SCHED_KINDS; kind++)
		if (f->waiting[kind] != SCHED_NONE)
			sched_heap_remove(&sched->by_turn[kind], &sched->turn[kind], flow);
	f->counter = tokens < 0 && (uint64_t)-tokens > f->counter ? 0 : f->counter + (uint64_t)tokens;
	for (int kind = 0; kind < SCHED_KINDS; kind++)
		if (f->waiting[kind] != SCHED_NONE)
			sched_heap_insert(&sched->by_turn[kind], &sched->turn[kind], flow);
}

uint64_t sched_queue_owed(const struct sched *sched, uint32_t a, uint32_t b)
{
	const struct sched_flow *x = &sched->flows[sched->entries[a].flow], *y = &sched->flows[sched->entries[b].flow];
	return x->class == y->class && x->counter < y->counter ? y->counter - x->counter : 0;
}

void sched_queue_admitted(struct sched *sched, uint32_t handle)
{
	const struct sched_flow *f = &sched->flows[sched->entries[handle].flow];
	struct sched_flow       *class_flow = &sched->flows[f->class_flow];

	if (f->counter > class_flow->counter)
		class_flow->counter = f->counter;
}

void sched_expiry_add(struct sched *sched, uint32_t handle)
{
	if (sched->entries[handle].expiry_ns != UINT64_MAX)
		sched_heap_insert(&sched->by_expiry, &sched->expiring, handle);
}

void sched_expiry_remove(struct sched *sched, uint32_t handle)
{
	if (sched->entries[handle].expiry_ns != UINT64_MAX)
		sched_heap_remove(&sched->by_expiry, &sched->expiring, handle);
}

/* ---- making one --------------------------------------------------------------------------------------------------- */

/* A waiting or running entry pins at most the flow of its key and that of the resumed, and each of these the one of its
 * class: 4 × capacity flows are pinned at most, and the rest are unused or idle.  Number 0 stays free: it means none. */
enum status sched_queue_init(struct sched *sched)
{
	uint64_t flows = sched->options.policy == SCHED_FCFS ? 8 : 4 * (uint64_t)sched->options.capacity + 8;

	if (flows > UINT32_MAX / 2)
		return STATUS_LIMIT;
	sched->flow_count = (uint32_t)flows;
	sched->bucket_count = 8;
	while (sched->bucket_count < sched->flow_count)
		sched->bucket_count *= 2;
	sched->entry_nodes = calloc(sched->options.capacity, sizeof *sched->entry_nodes);
	sched->expiry_nodes = calloc(sched->options.capacity, sizeof *sched->expiry_nodes);
	sched->flow_nodes[SCHED_SHORT] = calloc(sched->flow_count, sizeof *sched->flow_nodes[0]);
	sched->flow_nodes[SCHED_LONG] = calloc(sched->flow_count, sizeof *sched->flow_nodes[0]);
	sched->flows = calloc(sched->flow_count, sizeof *sched->flows);
	sched->buckets = malloc(sched->bucket_count * sizeof *sched->buckets);
	if (!sched->entry_nodes || !sched->expiry_nodes || !sched->flow_nodes[SCHED_SHORT] || !sched->flow_nodes[SCHED_LONG] ||
	    !sched->flows || !sched->buckets)
		return STATUS_NOMEM;
	for (uint32_t i = 0; i < sched->bucket_count; i++)
		sched->buckets[i] = SCHED_NONE;
	sched->unused_flows = SCHED_NONE;
	for (uint32_t i = sched->flow_count; i-- > 1;) {
		sched->flows[i].chain = sched->unused_flows;
		sched->unused_flows = i;
	}
	sched->oldest_idle = sched->newest_idle = sched->expiring = SCHED_NONE;
	sched->by_score = (struct sched_heaps){ sched->entry_nodes, score_before, sched };
	sched->by_expiry = (struct sched_heaps){ sched->expiry_nodes, expiry_before, sched };
	for (int kind = 0; kind < SCHED_KINDS; kind++) {
		sched->turn[kind] = SCHED_NONE;
		sched->flow_order[kind] = (struct sched_flow_order){ sched, (enum sched_kind)kind };
		sched->by_turn[kind] = (struct sched_heaps){ sched->flow_nodes[kind], turn_before, &sched->flow_order[kind] };
	}
	return STATUS_OK;
}

void sched_queue_free(struct sched *sched)
{
	free(sched->entry_nodes);
	free(sched->expiry_nodes);
	free(sched->flow_nodes[SCHED_SHORT]);
	free(sched->flow_nodes[SCHED_LONG]);
	free(sched->flows);
	free(sched->buckets);
}
