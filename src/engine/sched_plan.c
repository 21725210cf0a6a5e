/* sched_plan.c: owns the making of one plan; the essay is at the head of sched.c.  Its cost is linear in the running
 * sequences and logarithmic in those who wait.
 *
 * Order of a plan: what expired; a look at all who run; evictions for better ones who wait, and for decodes that lack
 * blocks; decodes; guesses at what follows them; the long prompt's share; short prompts; what is left to long ones; and if all
 * that gave nothing although somebody could go on, evictions until one can.  Nobody is evicted once an item is planned.
 *
 * Invariant: at every moment `free` is what the engine can give for items of this plan, after its evictions. */
#include "engine/sched_internal.h"

enum {
	LONG_SHARE = 4,       /* a long prompt has one part in so many of the prompt budget */
	LONG_PLACES = 8,      /* so many times as many sequences may run as long prompts may be half computed */
	OWED_MUCH = 2,        /* long prompts by which a key is far behind */
	BUDGET_LEAST = 16,    /* the latency target leaves one part in so many of step_tokens to prompts */
	MARGIN = 8,           /* after a shortage one part in so many of the pool is left alone */
	PRESSED_PLANS = 32,   /* who did not fit so many plans ago says that others wait for places, too */
	PLACES_PART = 8,      /* places are scarce when so small a part of them is free */
	FORCE_PLANS = 4,      /* a better class waits for no fewer plans before others lose their work, */
	FORCE_PART = 64,      /* who lose one token in so many of all that are computed, */
	FORCE_STEPS = 4,      /* and as many as so many steps have, at once */
	TAIL_LEAST = 8, TAIL = 4 /* a running answer is expected to grow by so many tokens and one in so many of it */
};
static const uint64_t PAUSED_KEEP_NS = 2000000000; /* a paused sequence is safe from those who wait for so long */

struct pass {
	struct sched      *sched;
	struct sched_plan *plan;
	uint32_t           free;      /* blocks that may be given out */
	uint32_t           coming;    /* of evicted sequences that an outstanding plan names */
	uint64_t           committed; /* blocks the running sequences are expected to need */
	uint64_t           committed_long; /* of them those of long prompts */
	uint32_t           budget;    /* prompt rows left */
	uint32_t           decodes, demand; /* that run; of them those that need a block */
	uint64_t           reserved;  /* blocks kept for a long prompt whose turn it is */
	uint32_t           candidates[SCHED_KINDS], longs; /* longs: running ones whose long prompt is not computed */
	uint32_t           forced[SCHED_KINDS]; /* a head for which others were evicted */
	uint32_t           stuck;     /* the first that runs and finds no block */
	bool               squeezed;  /* decodes lacked blocks: nobody is admitted */
	bool               blocked[SCHED_KINDS];
};

/* ---- leaving ------------------------------------------------------------------------------------------------------ */

/* Blocks that come back when E loses its own; at once, or later when a plan is outstanding. */
static void give_back(struct pass *p, const struct sched_entry *e)
{
	if (e->outstanding)
		p->coming += e->held - e->kept;
	else
		p->free += e->held - e->kept;
}

static uint64_t commitment(const struct sched *s, const struct sched_entry *e)
{
	uint64_t tail = (uint64_t)e->length + (e->length - e->prompt) / TAIL + TAIL_LEAST, end, blocks;

	if (e->estimated)
		end = (uint64_t)e->prompt + estimate_total(&s->estimate, e->length - e->prompt, e->limit - e->prompt);
	else
		end = e->expected > tail ? e->expected : tail;
	blocks = sched_blocks_for(s, end < e->limit ? end : e->limit);
	return (blocks > e->held ? blocks : e->held) - e->shared;
}

/* Nothing can be planned for it before a plan that is outstanding has been confirmed: all its tokens are on their way, or it
 * depends on guesses how many there are. */
static bool ending(const struct sched_entry *e)
{
	return e->length >= e->limit || e->computed >= e->length || (e->outstanding && e->plans[e->outstanding - 1].drafts);
}

static bool is_decode(const struct sched_entry *e) { return e->computed > 0 && e->length - e->computed == 1; }

/* A decode that runs and wants a row; *RET_BLOCK says whether it needs a block for it. */
static bool wants_row(const struct sched *s, const struct sched_entry *e, bool *ret_block)
{
	if (e->paused || ending(e) || !is_decode(e))
		return false;
	*ret_block = e->computed >= e->held * s->options.block_size;
	return true;
}

static void expire(struct pass *p, uint32_t handle)
{
	struct sched       *s = p->sched;
	struct sched_entry *e = &s->entries[handle];

	if (e->state == SCHED_RUNNING) {
		sched_run_remove(s, handle);
		give_back(p, e);
	} else {
		if (!e->paused)
			sched_queue_take(s, handle);
		sched_expiry_remove(s, handle);
		s->waiting_count--;
	}
	e->state = SCHED_EXPIRED;
	s->expired[p->plan->expired_count++] = handle;
	s->stats.expired++;
}

static void evict(struct pass *p, uint32_t handle)
{
	struct sched       *s = p->sched;
	struct sched_entry *e = &s->entries[handle];
	uint64_t            least;
	bool                block;

	sched_run_remove(s, handle);
	if (wants_row(s, e, &block)) {
		p->decodes--;
		p->demand -= block;
	}
	p->committed -= commitment(s, e);
	give_back(p, e);
	s->stats.preempted++;
	s->stats.preempted_tokens += e->computed;
	e->computed = e->held = e->shared = e->kept = e->drafts = 0;
	e->score = e->serial; /* of admission: who was in first, is in first again */
	e->kind = sched_kind_of(s, e->length);
	e->resumed = true;
	e->evicted_at = s->plan_number;
	e->expiry_ns = UINT64_MAX;
	if (e->deadline_ns) {
		least = sched_cost_least_ns(&s->cost, e->length);
		e->expiry_ns = least < e->deadline_ns ? e->deadline_ns - least : 0;
	}
	s->waiting_count++;
	if (e->outstanding) {
		e->state = SCHED_SETTLING;
	} else {
		e->state = SCHED_WAITING;
		if (!e->paused)
			sched_queue_push(s, handle);
		sched_expiry_add(s, handle);
	}
	s->evicted[p->plan->evicted_count++] = handle;
}

/* A loses its blocks rather than B. */
static bool gives_way(const struct sched_entry *a, const struct sched_entry *b)
{
	if (a->class != b->class)
		return a->class > b->class;
	if (a->paused != b->paused)
		return a->paused;
	return a->serial > b->serial;
}

/* The running sequence that loses its blocks first; not KEEP, nor one that is ending. */
static uint32_t victim(const struct sched *s, uint32_t keep)
{
	uint32_t worst = SCHED_NONE;

	for (uint32_t h = s->last; h != SCHED_NONE; h = s->entries[h].previous)
		if (h != keep && !ending(&s->entries[h]) && (worst == SCHED_NONE || gives_way(&s->entries[h], &s->entries[worst])))
			worst = h;
	return worst;
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

/* Positions that HANDLE can have with the blocks it holds and those that are free. */
static uint64_t reach(const struct pass *p, const struct sched_entry *e)
{
	return ((uint64_t)e->held + p->free) * p->sched->options.block_size;
}

static void take_rows(struct pass *p, struct sched_entry *e, struct sched_item *item, uint32_t rows)
{
	struct sched *s = p->sched;
	uint32_t      blocks = sched_blocks_for(s, (uint64_t)e->computed + rows);

	if (blocks > e->held) {
		p->free -= blocks - e->held;
		e->held = blocks;
	}
	e->computed += rows;
	if (e->computed > e->served)
		e->served = e->computed < e->prompt ? e->computed : e->prompt;
	item->rows += rows;
	item->blocks = blocks;
	item->sampled = e->computed == e->length;
	e->plans[e->outstanding - 1].rows = item->rows;
	e->plans[e->outstanding - 1].drafts = 0;
	e->plans[e->outstanding - 1].sampled = item->sampled;
	p->plan->rows += rows;
	s->planned_rows += rows;
	p->plan->sampled += item->sampled;
	e->length += item->sampled;
}

/* Plans up to ROWS rows of HANDLE; returns how many there are blocks for. */
static uint32_t plan_rows(struct pass *p, uint32_t handle, bool admitted, uint32_t rows)
{
	struct sched       *s = p->sched;
	struct sched_entry *e = &s->entries[handle];
	uint32_t            pending = e->length - e->computed;
	uint64_t            room = reach(p, e) - e->computed;
	struct sched_item  *item;

	rows = rows < pending ? rows : pending;
	rows = rows < room ? rows : (uint32_t)room;
	if (rows == 0)
		return 0;
	item = &s->items[p->plan->count++];
	*item = (struct sched_item){ .handle = handle, .start = e->computed, .admitted = admitted };
	e->outstanding++;
	s->outstanding++;
	take_rows(p, e, item, rows);
	return rows;
}

/* More rows for an item of this plan. */
static void extend(struct pass *p, uint32_t index, uint32_t rows)
{
	struct sched_item  *item = &p->sched->items[index];
	struct sched_entry *e = &p->sched->entries[item->handle];
	uint64_t            room = reach(p, e) - e->computed;

	if (item->sampled)
		return;
	rows = rows < e->length - e->computed ? rows : e->length - e->computed;
	rows = rows < room ? rows : (uint32_t)room;
	p->budget -= rows;
	take_rows(p, e, item, rows);
}

/* ---- running sequences whose prompts are not computed: a binary heap per kind ------------------------------------- */

static bool candidate_before(const struct sched_candidate *a, const struct sched_candidate *b)
{
	return a->class != b->class ? a->class < b->class : a->score < b->score;
}

static void sift(struct sched_candidate *heap, uint32_t count, uint32_t at)
{
	for (;;) {
		uint32_t               child = 2 * at + 1;
		struct sched_candidate other;

		if (child >= count)
			return;
		if (child + 1 < count && candidate_before(&heap[child + 1], &heap[child]))
			child++;
		if (!candidate_before(&heap[child], &heap[at]))
			return;
		other = heap[at];
		heap[at] = heap[child];
		heap[child] = other;
		at = child;
	}
}

static void candidate_pop(struct pass *p, enum sched_kind kind)
{
	struct sched_candidate *heap = p->sched->candidates[kind];

	heap[0] = heap[--p->candidates[kind]];
	sift(heap, p->candidates[kind], 0);
}

/* The score of a running prompt counts what is left of it. */
static uint64_t running_score(const struct sched *s, const struct sched_entry *e)
{
	uint64_t most = s->options.max_queue_wait_ns ? s->options.max_queue_wait_ns / 2 : UINT64_MAX / 4, weight;

	if (s->options.policy == SCHED_FCFS)
		return e->serial;
	weight = (uint64_t)(e->expected > e->computed ? e->expected - e->computed : 1) * sched_cost_token_ns(&s->cost);
	weight = weight < most ? weight : most;
	return e->arrival_ns > UINT64_MAX - weight ? UINT64_MAX : e->arrival_ns + weight;
}

static bool late(const struct sched *s, const struct sched_entry *e)
{
	if (!e->deadline_ns)
		return false;
	if (s->now_ns >= e->deadline_ns)
		return true;
	return !is_decode(e) && !ending(e) && sched_cost_least_ns(&s->cost, e->length - e->computed) > e->deadline_ns - s->now_ns;
}

/* One look at all who run: too late ones expire, decodes are counted, prompts become candidates. */
static void look(struct pass *p)
{
	struct sched *s = p->sched;

	for (uint32_t h = s->first, next; h != SCHED_NONE; h = next) {
		struct sched_entry *e = &s->entries[h];
		bool                block;

		next = e->next;
		if (late(s, e)) {
			expire(p, h);
			continue;
		}
		p->committed += commitment(s, e);
		if (e->kind == SCHED_LONG)
			p->committed_long += commitment(s, e);
		if (wants_row(s, e, &block)) {
			p->decodes++;
			p->demand += block;
		} else if (!e->paused && !ending(e)) {
			s->candidates[e->kind][p->candidates[e->kind]++] =
			    (struct sched_candidate){ e->class, running_score(s, e), h };
		}
	}
	p->longs = p->candidates[SCHED_LONG];
	for (int kind = 0; kind < SCHED_KINDS; kind++)
		for (uint32_t i = p->candidates[kind] / 2; i-- > 0;)
			sift(s->candidates[kind], p->candidates[kind], i);
}

/* Evicts until every decode that needs a block has one, or but one sequence runs. */
static void reclaim(struct pass *p)
{
	struct sched *s = p->sched;
	uint32_t      h;

	while (p->demand > p->free + p->coming && s->running_count > 1 && (h = victim(s, SCHED_NONE)) != SCHED_NONE) {
		evict(p, h);
		p->squeezed = true;
		s->margin = s->options.blocks / MARGIN;
	}
}

static void plan_decodes(struct pass *p)
{
	struct sched *s = p->sched;

	for (uint32_t h = s->first; h != SCHED_NONE; h = s->entries[h].next) {
		struct sched_entry *e = &s->entries[h];
		if (!e->paused && !ending(e) && is_decode(e) && plan_rows(p, h, false, 1) == 0 && p->stuck == SCHED_NONE)
			p->stuck = h;
	}
}

/* Guesses for the decodes of this plan, as far as rows and blocks go.  Those of sequences that were not planned are void. */
static void plan_drafts(struct pass *p)
{
	struct sched *s = p->sched;
	uint32_t      left = s->options.step_tokens - p->plan->rows;

	left = left < s->options.draft_rows ? left : s->options.draft_rows;
	for (uint32_t i = 0; i < p->plan->count && left > 0; i++) {
		struct sched_item  *item = &s->items[i];
		struct sched_entry *e = &s->entries[item->handle];
		uint64_t            room = p->squeezed ? (uint64_t)e->held * s->options.block_size : reach(p, e);
		uint32_t            drafts = e->drafts < left ? e->drafts : left, blocks;

		drafts = drafts < e->limit - e->length ? drafts : e->limit - e->length;
		drafts = drafts < room - e->computed ? drafts : (uint32_t)(room - e->computed);
		if (drafts == 0 || e->outstanding > 1)
			continue;
		blocks = sched_blocks_for(s, (uint64_t)e->computed + drafts);
		if (blocks > e->held) {
			p->free -= blocks - e->held;
			e->held = blocks;
		}
		e->computed += drafts;
		e->length += drafts;
		item->rows += drafts;
		item->drafts = drafts;
		item->blocks = blocks;
		e->plans[0].rows = item->rows;
		e->plans[0].drafts = drafts;
		p->plan->rows += drafts;
		p->plan->drafts += drafts;
		s->planned_rows += drafts;
		left -= drafts;
	}
	for (uint32_t h = s->first; h != SCHED_NONE; h = s->entries[h].next)
		s->entries[h].drafts = 0;
}

/* ---- admission ---------------------------------------------------------------------------------------------------- */

/* May the running V lose its place to W, who waits? */
static bool preemptable(const struct pass *p, const struct sched_entry *v, const struct sched_entry *w)
{
	if (ending(v))
		return false;
	if (p->sched->options.policy != SCHED_FCFS && v->class > w->class)
		return true;
	return v->paused && v->class >= w->class && p->sched->now_ns - v->paused_ns >= PAUSED_KEEP_NS;
}

/* Blocks that admission may commit to an entry of KIND. */
static uint64_t room_for(const struct pass *p, enum sched_kind kind)
{
	const struct sched *s = p->sched;
	uint64_t            room = s->options.blocks - s->margin;

	if (kind == SCHED_SHORT)
		room -= p->reserved < room ? p->reserved : room;
	return room;
}

/* Is there a place for E, who waits, and do its blocks fit beside those of the others? */
static bool fits(const struct pass *p, const struct sched_entry *e)
{
	const struct sched *s = p->sched;

	return s->running_count == 0 || (s->running_count < s->options.max_running &&
	    p->committed + commitment(s, e) <= room_for(p, (enum sched_kind)e->kind));
}

/* Has the head of KIND waited for as long as what V has computed takes to compute again?  Many end by themselves before.  And
 * in the long run no more than a small part of all work is thrown away. */
static bool worth_it(const struct pass *p, const struct sched_entry *v, enum sched_kind kind)
{
	const struct sched *s = p->sched;

	if (v->paused)
		return true;
	if (s->forced_tokens + v->computed > s->planned_rows / FORCE_PART + (uint64_t)FORCE_STEPS * s->options.step_tokens)
		return false;
	return s->now_ns - s->refused[kind].since_ns >= (uint64_t)(v->computed * s->cost.row);
}

/* V loses its place to a better class rather than U: the lowest class first, then the paused, then who loses least. */
static bool cheaper(const struct sched_entry *v, const struct sched_entry *u)
{
	if (v->class != u->class || v->paused != u->paused || v->computed == u->computed)
		return gives_way(v, u);
	return v->computed < u->computed;
}

/* Makes the head of KIND fit by evicting sequences that must give way to it; all or nothing. */
static void force(struct pass *p, enum sched_kind kind)
{
	struct sched             *s = p->sched;
	uint32_t                  head = sched_queue_head(s, kind), places = 0;
	const struct sched_entry *w;
	uint64_t                  gain = 0;

	p->forced[kind] = SCHED_NONE;
	if (head == SCHED_NONE || fits(p, &s->entries[head])) {
		s->refused[kind].plans = 0;
		return;
	}
	w = &s->entries[head];
	s->refused[kind].plan = s->plan_number;
	if (s->refused[kind].plans++ == 0)
		s->refused[kind].since_ns = s->now_ns;
	if (w->evicted_at == s->plan_number || s->refused[kind].plans < FORCE_PLANS)
		return;
	for (uint32_t h = s->first; h != SCHED_NONE; h = s->entries[h].next)
		if (preemptable(p, &s->entries[h], w)) {
			gain += commitment(s, &s->entries[h]);
			places++;
		}
	if (places == 0 || (places < s->running_count && p->committed + commitment(s, w) > room_for(p, kind) + gain))
		return;
	while (!fits(p, w)) {
		uint32_t worst = SCHED_NONE;
		for (uint32_t h = s->last; h != SCHED_NONE; h = s->entries[h].previous)
			if (preemptable(p, &s->entries[h], w) &&
			    (worst == SCHED_NONE || cheaper(&s->entries[h], &s->entries[worst])))
				worst = h;
		if (worst == SCHED_NONE || !worth_it(p, &s->entries[worst], kind))
			return;
		s->stats.preempted_for_others++;
		s->forced_tokens += s->entries[worst].computed;
		evict(p, worst);
	}
	p->forced[kind] = head;
}

/* Admits HANDLE, the head of its queue, if it may and fits. */
static bool admit(struct pass *p, uint32_t handle)
{
	struct sched       *s = p->sched;
	struct sched_entry *e = &s->entries[handle];
	uint32_t            shorter = sched_queue_head(s, SCHED_SHORT);

	/* Long prompts come first in a plan, but not before a better class: they would be evicted for it. */
	if (e->kind == SCHED_LONG && shorter != SCHED_NONE && s->entries[shorter].class < e->class)
		return false;
	if (e->evicted_at == s->plan_number || (p->squeezed && s->running_count > 0 && p->forced[e->kind] != handle))
		return false;
	if (!fits(p, e)) {
		if (e->kind == SCHED_LONG && e->score <= s->now_ns) /* its turn, as if nobody shorter had come */
			p->reserved = commitment(s, e);
		return false;
	}
	if (reach(p, e) <= e->computed)
		return false;
	sched_queue_take(s, handle);
	sched_expiry_remove(s, handle);
	s->waiting_count--;
	p->committed += commitment(s, e);
	e->state = SCHED_RUNNING;
	sched_run_append(s, handle);
	if (!e->charged) { /* the first time */
		e->serial = ++s->serial;
		if (e->estimated) /* more is known than when it came */
			e->expected = e->prompt + estimate_total(&s->estimate, 0, e->limit - e->prompt);
		e->charge = e->prompt - e->cached;
		if (e->charge > SCHED_CHARGE) /* so that answers are not all charged in the same step */
			e->charge -= (uint32_t)(e->serial % SCHED_CHARGE);
		e->charged = true;
		sched_queue_admitted(s, handle);
		sched_queue_charge(s, handle, e->charge);
	}
	s->stats.admitted++;
	return true;
}

/* Whose prompt of KIND is next: of the running ones, or the head of the queue, which is admitted then. */
static uint32_t next_prompt(struct pass *p, enum sched_kind kind, bool *ret_admitted)
{
	struct sched *s = p->sched;
	uint32_t      running = SCHED_NONE, waiting = p->blocked[kind] ? SCHED_NONE : sched_queue_head(s, kind);

	while (p->candidates[kind] > 0 && s->entries[s->candidates[kind][0].handle].state != SCHED_RUNNING)
		candidate_pop(p, kind); /* evicted meanwhile */
	if (p->candidates[kind] > 0)
		running = s->candidates[kind][0].handle;
	if (kind == SCHED_LONG && waiting != SCHED_NONE && running != SCHED_NONE &&
	    p->longs >= (s->options.max_running + LONG_PLACES - 1) / LONG_PLACES &&
	    s->entries[waiting].class >= s->candidates[kind][0].class)
		waiting = SCHED_NONE; /* one more half computed prompt would take a place from those who can end soon */
	if (waiting != SCHED_NONE && running != SCHED_NONE) {
		const struct sched_candidate *r = &s->candidates[kind][0];
		const struct sched_entry     *w = &s->entries[waiting];
		bool                          first = w->class != r->class ? w->class < r->class
			: w->resumed || w->score < r->score;
		waiting = first ? waiting : SCHED_NONE;
	}
	*ret_admitted = false;
	if (waiting != SCHED_NONE) {
		if (admit(p, waiting)) {
			*ret_admitted = true;
			p->longs += kind == SCHED_LONG;
			return waiting;
		}
		p->blocked[kind] = true;
	}
	if (running != SCHED_NONE)
		candidate_pop(p, kind);
	return running;
}

static void plan_prompts(struct pass *p, enum sched_kind kind, uint32_t limit)
{
	uint32_t left = limit < p->budget ? limit : p->budget;

	while (left > 0 && p->plan->count < p->sched->options.max_running) {
		bool     admitted;
		uint32_t h = next_prompt(p, kind, &admitted), rows;

		if (h == SCHED_NONE)
			return;
		rows = plan_rows(p, h, admitted, left);
		left -= rows;
		p->budget -= rows;
		if (rows == 0 && p->stuck == SCHED_NONE)
			p->stuck = h;
	}
}

/* Do short ones wait for a place, or for blocks that other short ones hold, now or a moment ago?  Then decodes should be
 * quick: rows of a long prompt beside them make every answer, and so the wait, longer.  Not so when the key of the long one,
 * LONGER, is behind. */
static bool short_ones_wait_for_decodes(const struct pass *p, uint32_t longer)
{
	const struct sched *s = p->sched;
	uint32_t            head = sched_queue_head(s, SCHED_SHORT);

	if (head == SCHED_NONE || p->decodes == 0)
		return false;
	if (longer != SCHED_NONE && sched_queue_owed(s, longer, head))
		return false;
	if (fits(p, &s->entries[head]) && s->plan_number - s->refused[SCHED_SHORT].plan > PRESSED_PLANS)
		return false;
	return p->committed_long <= p->committed / 2 ||
	    s->running_count + s->options.max_running / PLACES_PART >= s->options.max_running;
}

/* Whose prompt of KIND comes first, as far as class and service go; SCHED_NONE when there is none. */
static uint32_t first_prompt(const struct pass *p, enum sched_kind kind)
{
	return p->candidates[kind] > 0 ? p->sched->candidates[kind][0].handle : sched_queue_head(p->sched, kind);
}

/* A long prompt has a part of the budget, and half of it before short ones of a worse class.  Under fair it has everything
 * while its key has been served so much less than theirs that they could have been asked to wait several times over: only a
 * key that always wants more than its share gets so far behind, and then the short ones are no reason to leave it there. */
static uint32_t long_share(const struct pass *p)
{
	const struct sched *s = p->sched;
	uint32_t            big = first_prompt(p, SCHED_LONG), small = first_prompt(p, SCHED_SHORT);
	uint32_t            next = sched_queue_head(s, SCHED_LONG); /* waits for BIG, or is it */
	uint32_t            part = (p->budget + LONG_SHARE - 1) / LONG_SHARE;
	uint64_t            owed;

	if (big != SCHED_NONE && small != SCHED_NONE) {
		owed = sched_queue_owed(s, big, small);
		if (next != SCHED_NONE && sched_queue_owed(s, next, small) > owed)
			owed = sched_queue_owed(s, next, small);
		if (owed > OWED_MUCH * (uint64_t)s->entries[big].prompt)
			return p->budget;
		if (s->entries[big].class < s->entries[small].class)
			return (p->budget + 1) / 2;
	}
	if (short_ones_wait_for_decodes(p, big)) /* a part of the step's time, then */
		return sched_cost_beside(&s->cost, p->decodes, LONG_SHARE - 1, part);
	return part;
}

/* Short prompts beside the first long one, then what is left to long ones. */
static void plan_all_prompts(struct pass *p)
{
	uint32_t before = p->plan->count, longer = SCHED_NONE;

	plan_prompts(p, SCHED_LONG, long_share(p));
	if (p->plan->count > before)
		longer = p->sched->items[before].handle;
	plan_prompts(p, SCHED_SHORT, p->budget);
	if (short_ones_wait_for_decodes(p, longer))
		return;
	for (uint32_t i = before; i < p->plan->count && p->budget > 0; i++)
		if (p->sched->entries[p->sched->items[i].handle].kind == SCHED_LONG)
			extend(p, i, p->budget);
	plan_prompts(p, SCHED_LONG, p->budget);
}

/* ---- nothing goes on ---------------------------------------------------------------------------------------------- */

/* Blocks are all with sequences that cannot go on: one must.  Those who wait but still share blocks give theirs first; they
 * are looked for among all, which is long, but happens when nothing else does. */
static void break_tie(struct pass *p)
{
	struct sched       *s = p->sched;
	uint32_t            keep = p->stuck, h;
	struct sched_entry *e;

	if (keep == SCHED_NONE && sched_queue_head(s, SCHED_SHORT) == SCHED_NONE && sched_queue_head(s, SCHED_LONG) == SCHED_NONE)
		return;
	for (uint32_t i = 0; i < s->options.capacity; i++) {
		e = &s->entries[i];
		if (e->state != SCHED_WAITING || e->computed == 0)
			continue;
		if (!e->paused)
			sched_queue_take(s, i);
		e->computed = e->held = e->shared = e->kept = 0;
		e->kind = sched_kind_of(s, e->length);
		if (!e->paused)
			sched_queue_push(s, i);
		s->evicted[p->plan->evicted_count++] = i;
	}
	if (keep == SCHED_NONE || p->plan->evicted_count > 0)
		return; /* what comes back shows in free_blocks */
	while (reach(p, &s->entries[keep]) <= s->entries[keep].computed && (h = victim(s, keep)) != SCHED_NONE)
		evict(p, h);
	s->margin = s->options.blocks / MARGIN;
	p->budget = s->options.step_tokens;
	if (s->entries[keep].state == SCHED_RUNNING)
		plan_rows(p, keep, false, p->budget);
}

void sched_plan(struct sched *sched, uint32_t free_blocks, uint64_t now_ns, struct sched_plan *ret)
{
	struct sched_plan           plan = { .evicted = sched->evicted, .expired = sched->expired, .items = sched->items };
	struct pass                 pass = { .sched = sched, .plan = &plan, .free = free_blocks, .stuck = SCHED_NONE };
	const struct sched_options *o = &sched->options;
	uint32_t                    rows, least = (o->step_tokens + BUDGET_LEAST - 1) / BUDGET_LEAST;
	bool                        idle = sched->outstanding == 0;

	sched->now_ns = now_ns;
	sched->plan_number++;
	while (sched->expiring != SCHED_NONE && sched->entries[sched->expiring].expiry_ns <= now_ns)
		expire(&pass, sched->expiring);
	look(&pass);
	force(&pass, SCHED_LONG);
	force(&pass, SCHED_SHORT);
	reclaim(&pass);
	plan_decodes(&pass);
	if (o->draft_rows)
		plan_drafts(&pass);
	pass.budget = o->step_tokens - plan.rows;
	if (o->itl_target_ns && pass.decodes > 0) {
		rows = sched_cost_rows(&sched->cost, pass.decodes, o->itl_target_ns);
		rows -= rows != UINT32_MAX ? (plan.drafts < rows ? plan.drafts : rows) : 0;
		rows = rows > least ? rows : least;
		pass.budget = rows < pass.budget ? rows : pass.budget;
	}
	sched->stats.prompt_budget = pass.budget;
	plan_all_prompts(&pass);
	if (plan.count == 0 && idle && plan.expired_count == 0 && plan.evicted_count == 0)
		break_tie(&pass);
	*ret = plan;
}
