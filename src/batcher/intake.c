/* intake.c: owns requests from their first record until they are whole, and the reservations.  Does not own events (a
 * refusal travels through the queue: the step thread is the only producer of event rings) nor sequences.
 *
 * A slot of a lane, as this thread sees it:
 *
 *   NONE ──RESERVE──► RESERVED ──SUBMIT──► ASSEMBLING ──last TOKENS──► DONE      (handed to the step thread)
 *     │                                     ▲    │
 *     └────────────────SUBMIT───────────────┘    └── anything wrong ─► DONE      (refused: one END with an error)
 *
 * Every state belongs to one generation of the slot.  When the control word shows another generation or CANCEL, or the
 * lane dies, what is RESERVED or ASSEMBLING is forgotten and its reservation returned; the child expects no answer.
 * Records of a generation that is not the control word's are stale and dropped without a sound.
 *
 * Invariant: a slot counts in admission exactly while it is RESERVED or ASSEMBLING; every SUBMIT that is current gets
 * exactly one answer: it is handed on, or refused. */
#include "batcher/intake.h"

#include "base/clock.h"
#include "base/log.h"
#include "batcher/batcher.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	RECORDS_PER_VISIT = 64, /* then the next lane has its turn */
	PENALTY_MAX = 100
};

_Static_assert((int)WIRE_BIAS_MAX == (int)SAMPLE_BIAS_MAX && (int)WIRE_TOP_MAX == (int)SAMPLE_TOP_MAX,
    "what a lane may ask for, a backend does");
_Static_assert(sizeof(struct sample_bias) == 8 && 2 * WIRE_BIAS_MAX <= WIRE_TOKENS_MAX, "all biases in one record");

enum phase { PHASE_NONE, PHASE_RESERVED, PHASE_ASSEMBLING, PHASE_DONE };

struct intake_slot {
	uint32_t              generation;
	enum phase            phase;
	uint64_t              req;
	struct admission_ask  ask;          /* as reserved */
	struct admission_ticket ticket;     /* RESERVED and ASSEMBLING */
	int32_t               priority;
	uint64_t              since_ns;     /* of the reservation */
	uint32_t              received;     /* ids so far */
	uint16_t              lists[WIRE_LIST_COUNT]; /* ASSEMBLING: entries that are still to come */
	struct queue_message *message;      /* ASSEMBLING: what will be handed on */
};

/* Anything a ring can hold.  Copied here, then looked at. */
union record {
	struct wire_header  header;
	struct wire_reserve reserve;
	struct wire_submit  submit;
	struct wire_list    list;
	struct wire_tokens  tokens;
	unsigned char       bytes[WIRE_RECORD_MAX];
};

/* The thread's own state. */
struct worker {
	struct batcher     *b;
	union record        record;
	struct notifier_set again; /* lanes with more records than one visit takes */
	uint32_t            pending; /* slots RESERVED or ASSEMBLING */
	bool                poke;    /* something happened that the step thread may wait for */
};

struct intake_slot *intake_slots_new(uint32_t count) { return calloc(count, sizeof(struct intake_slot)); }

/* What was in them has been forgotten by then (let_go), or the process ends. */
void intake_slots_free(struct intake_slot *slots) { free(slots); }

/* ---- one slot ----------------------------------------------------------------------------------------------------- */

static void set_pending(struct worker *w, int change)
{
	w->pending += (uint32_t)change;
	metrics_set(&w->b->metrics, METRIC_reservations, w->pending);
}

static void free_message(struct queue_message *message)
{
	if (message)
		engine_request_clear(&message->request);
	free(message);
}

/* Forgets a slot that was not handed on, and returns its reservation. */
static void forget(struct worker *w, struct intake_slot *slot)
{
	if (slot->phase == PHASE_RESERVED || slot->phase == PHASE_ASSEMBLING) {
		admission_release(&w->b->admission, &slot->ticket, 0, clock_now_ns());
		set_pending(w, -1);
	}
	free_message(slot->message);
	slot->message = NULL;
	slot->phase = PHASE_DONE;
}

/* Begins a generation of a slot; whatever it held before is over. */
static void begin(struct worker *w, struct intake_slot *slot, uint32_t generation, uint64_t req)
{
	forget(w, slot);
	*slot = (struct intake_slot){ .generation = generation, .req = req, .since_ns = clock_now_ns() };
}

static void hand_on(struct worker *w, struct lanes_entry *lane, struct queue_message *message)
{
	atomic_fetch_add_explicit(&lane->queued, 1, memory_order_relaxed);
	queue_push(&w->b->queue, message);
}

/* Ends a request before it began. */
static void refuse_until(struct worker *w, struct lanes_entry *lane, struct intake_slot *slot, uint16_t index, enum status status,
    uint32_t retry)
{
	struct queue_message *message = calloc(1, sizeof *message);

	forget(w, slot);
	metrics_add(&w->b->metrics, METRIC_requests_total, 1);
	metrics_add(&w->b->metrics, METRIC_requests_failed_total, 1);
	if (!message) { /* nobody can be told: that child must start anew */
		batcher_drop_lane(w->b, lane, "no memory to refuse a request");
		return;
	}
	message->kind = QUEUE_REFUSE;
	message->lane = lane;
	message->req = slot->req;
	message->generation = slot->generation;
	message->slot = index;
	message->status = status;
	message->retry_after_s = retry ? retry : status == STATUS_UNAVAILABLE ? admission_retry_after(&w->b->admission, 0) : 0;
	hand_on(w, lane, message);
}

static void refuse(struct worker *w, struct lanes_entry *lane, struct intake_slot *slot, uint16_t index, enum status status)
{
	refuse_until(w, lane, slot, index, status, 0);
}

static void invalid(struct worker *w) { metrics_add(&w->b->metrics, METRIC_records_invalid_total, 1); }

/* Is GENERATION what the child uses SLOT for now? */
static bool current(const struct lanes_entry *lane, uint32_t slot, uint32_t generation)
{
	uint64_t word = lane_batcher_control(&lane->lane, slot);
	return generation != 0 && lane_control_generation(word) == generation &&
	    !(lane_control_flags(word) & LANE_CONTROL_CANCEL);
}

/* ---- records ------------------------------------------------------------------------------------------------------ */

static void reply(struct worker *w, struct lanes_entry *lane, uint16_t slot, uint32_t generation, enum lane_reply kind,
    uint32_t value)
{
	lane_batcher_reply(&lane->lane, slot, generation, kind, value);
	if (lane_batcher_take_waiting(&lane->lane))
		notifier_wake_one(&w->b->notifier, lane->index);
}

bool intake_check_reserve(const struct wire_reserve *r)
{
	return r->priority >= -WIRE_PRIORITY_MAX && r->priority <= WIRE_PRIORITY_MAX && r->choices >= 1 &&
	    r->choices <= WIRE_CHOICES_MAX && r->reserved == 0 && r->reserved2 == 0;
}

static void on_reserve(struct worker *w, struct lanes_entry *lane, const struct wire_reserve *r)
{
	struct intake_slot *slot = &lane->slots[r->slot];
	enum lane_reply     kind;
	uint32_t            value;

	if (slot->generation == r->generation && slot->phase != PHASE_NONE) {
		invalid(w); /* twice */
		if (slot->phase != PHASE_DONE)
			refuse(w, lane, slot, r->slot, STATUS_INVALID);
		return;
	}
	begin(w, slot, r->generation, r->req);
	if (!intake_check_reserve(r)) {
		invalid(w);
		refuse(w, lane, slot, r->slot, STATUS_INVALID);
		return;
	}
	if (batcher_phase(w->b) != BATCHER_READY) {
		slot->phase = PHASE_DONE;
		reply(w, lane, r->slot, r->generation, LANE_REPLY_REJECT, admission_reject(&w->b->admission, STATUS_UNAVAILABLE));
		return;
	}
	slot->priority = r->priority;
	slot->ask = (struct admission_ask){
		.key = r->key,
		.key_requests = r->key_requests,
		.key_tokens = r->key_tokens,
		.prompt_tokens = r->prompt_bytes / ADMISSION_BYTES_PER_TOKEN,
		.max_tokens = r->max_tokens,
		.choices = r->choices,
	};
	kind = admission_reserve(&w->b->admission, &slot->ask, slot->since_ns, &slot->ticket, &value);
	if (kind == LANE_REPLY_REJECT) {
		slot->phase = PHASE_DONE;
	} else {
		slot->phase = PHASE_RESERVED;
		set_pending(w, 1);
	}
	reply(w, lane, r->slot, r->generation, kind, value);
}

static bool in_range(float value, float min, float max) { return isfinite(value) && value >= min && value <= max; }

enum status intake_check_submit(const struct wire_submit *s, uint32_t vocab, uint32_t max_context)
{
	if (s->choices == 0 || s->choices > WIRE_CHOICES_MAX)
		return STATUS_INVALID;
	if (s->flags & ~(uint32_t)WIRE_FLAG_ALL || s->reserved != 0 || s->prompt_tokens == 0 ||
	    s->priority < -WIRE_PRIORITY_MAX || s->priority > WIRE_PRIORITY_MAX ||
	    s->prompt_tokens > WIRE_PROMPT_TOKENS_MAX || !in_range(s->temperature, 0, 100) || !in_range(s->top_p, 0, 1) ||
	    !in_range(s->min_p, 0, 1) || s->top_p == 0 || s->top_k < 0 || (uint32_t)s->top_k > vocab)
		return STATUS_INVALID;
	if (!in_range(s->repetition, 0, PENALTY_MAX) || !in_range(s->presence, -PENALTY_MAX, PENALTY_MAX) ||
	    !in_range(s->frequency, -PENALTY_MAX, PENALTY_MAX) || s->logprobs > WIRE_TOP_MAX + 1 ||
	    s->bias_count > WIRE_BIAS_MAX || s->stop_count > WIRE_STOP_IDS_MAX || s->allowed_count > WIRE_ALLOWED_IDS_MAX ||
	    s->think_open_count > WIRE_THINK_IDS_MAX || s->think_close_count > WIRE_THINK_IDS_MAX)
		return STATUS_INVALID;
	if (s->prompt_tokens >= max_context || s->max_tokens > max_context - s->prompt_tokens)
		return STATUS_CONTEXT_LENGTH;
	return STATUS_OK;
}

static struct queue_message *make_message(struct lanes_entry *lane, const struct wire_submit *s)
{
	struct queue_message *message = calloc(1, sizeof *message);

	if (!message)
		return NULL;
	message->kind = QUEUE_SUBMIT;
	message->lane = lane;
	message->req = s->req;
	message->generation = s->generation;
	message->slot = s->slot;
	message->request = (struct engine_request){
		.id = s->req,
		.prompt = malloc((size_t)s->prompt_tokens * sizeof(int32_t)),
		.prompt_tokens = s->prompt_tokens,
		.max_tokens = s->max_tokens,
		.ignore_eos = s->flags & WIRE_FLAG_IGNORE_EOS,
		.deadline_ns = s->deadline_ns,
		.key = s->key,
		.priority = s->priority,
		.choices = s->choices,
		.sampling = { .temperature = s->temperature, .top_p = s->top_p, .min_p = s->min_p, .top_k = s->top_k, .seed = s->seed,
			.repetition = s->repetition, .presence = s->presence, .frequency = s->frequency, .min_tokens = s->min_tokens,
			.logprobs = s->logprobs },
		.lists.think_budget = s->think_budget,
	};
	if (!message->request.prompt) {
		free(message);
		return NULL;
	}
	return message;
}

/* Finds a place for a SUBMIT without a RESERVE, which no front of ours sends: its key has no limits here. */
static enum status reserve_late(struct worker *w, struct intake_slot *slot, const struct wire_submit *s, uint32_t *ret_retry)
{
	uint32_t value;

	if (batcher_phase(w->b) != BATCHER_READY)
		return STATUS_UNAVAILABLE;
	slot->priority = s->priority;
	slot->ask = (struct admission_ask){ .key = s->key, .max_tokens = s->max_tokens, .choices = s->choices };
	if (admission_reserve(&w->b->admission, &slot->ask, slot->since_ns, &slot->ticket, &value) == LANE_REPLY_REJECT) {
		*ret_retry = lane_rejection_seconds(value);
		return lane_rejection_status(value);
	}
	slot->phase = PHASE_RESERVED;
	set_pending(w, 1);
	return STATUS_OK;
}

static void on_submit(struct worker *w, struct lanes_entry *lane, const struct wire_submit *s)
{
	struct intake_slot *slot = &lane->slots[s->slot];
	enum status         status = STATUS_OK;
	uint32_t            retry = 0;

	if (slot->generation != s->generation) {
		begin(w, slot, s->generation, s->req);
		status = reserve_late(w, slot, s, &retry);
	} else if (slot->phase != PHASE_RESERVED || slot->req != s->req || slot->ask.key != s->key ||
	    slot->priority != s->priority || slot->ask.choices != s->choices) {
		invalid(w); /* twice, or another request than the one reserved */
		if (slot->phase != PHASE_DONE)
			refuse(w, lane, slot, s->slot, STATUS_INVALID);
		return;
	}
	if (!status) {
		status = intake_check_submit(s, w->b->model.vocab, w->b->model.max_context);
		if (status == STATUS_INVALID)
			invalid(w);
	}
	if (!status && !(slot->message = make_message(lane, s)))
		status = STATUS_NOMEM;
	if (status) {
		refuse_until(w, lane, slot, s->slot, status, retry);
		return;
	}
	slot->ask.prompt_tokens = s->prompt_tokens;
	slot->ask.max_tokens = s->max_tokens;
	admission_correct(&w->b->admission, &slot->ask, clock_now_ns(), &slot->ticket);
	slot->message->ticket = slot->ticket;
	slot->message->arrival_ns = slot->since_ns;
	slot->lists[WIRE_LIST_BIAS] = s->bias_count;
	slot->lists[WIRE_LIST_STOP_IDS] = s->stop_count;
	slot->lists[WIRE_LIST_ALLOWED_IDS] = s->allowed_count;
	slot->lists[WIRE_LIST_THINK_OPEN] = s->think_open_count;
	slot->lists[WIRE_LIST_THINK_CLOSE] = s->think_close_count;
	slot->phase = PHASE_ASSEMBLING;
}

static bool ids_valid(const int32_t *ids, uint32_t count, uint32_t vocab)
{
	for (uint32_t i = 0; i < count; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
			return false;
	return true;
}

/* The biases of a LIST record; each id once, in rising order. */
static bool biases_valid(const struct sample_bias *bias, uint32_t count, uint32_t vocab)
{
	for (uint32_t i = 0; i < count; i++)
		if (!ids_valid(&bias[i].id, 1, vocab) || !in_range(bias[i].add, -PENALTY_MAX, PENALTY_MAX) ||
		    (i > 0 && bias[i].id <= bias[i - 1].id))
			return false;
	return true;
}

/* A copy of the COUNT words of a list, in its place in LISTS. */
static enum status keep_list(struct engine_lists *lists, enum wire_list_kind kind, const void *words, uint32_t count,
    uint32_t vocab)
{
	bool  biases = kind == WIRE_LIST_BIAS;
	void *copy;

	if (biases ? !biases_valid(words, count / 2, vocab) : !ids_valid(words, count, vocab))
		return STATUS_INVALID;
	copy = malloc(count * sizeof(uint32_t));
	if (!copy)
		return STATUS_NOMEM;
	memcpy(copy, words, count * sizeof(uint32_t));
	switch (kind) {
	case WIRE_LIST_BIAS:
		lists->bias = copy;
		lists->bias_count = count / 2;
		break;
	case WIRE_LIST_STOP_IDS:
		lists->stop_ids = copy;
		lists->stop_count = count;
		break;
	case WIRE_LIST_ALLOWED_IDS:
		lists->allowed_ids = copy;
		lists->allowed_count = count;
		break;
	case WIRE_LIST_THINK_OPEN:
		lists->think_open = copy;
		lists->think_open_count = count;
		break;
	default:
		lists->think_close = copy;
		lists->think_close_count = count;
	}
	return STATUS_OK;
}

static void on_list(struct worker *w, struct lanes_entry *lane, const struct wire_list *l, const void *words)
{
	struct intake_slot *slot = &lane->slots[l->slot];
	enum status         status;

	if (slot->generation == l->generation && slot->phase == PHASE_DONE)
		return; /* the rest of what was refused */
	if (slot->generation != l->generation || slot->phase != PHASE_ASSEMBLING || l->req != slot->req || slot->received > 0 ||
	    l->count != slot->lists[l->kind] * (l->kind == WIRE_LIST_BIAS ? 2u : 1u)) {
		invalid(w);
		if (slot->generation != l->generation)
			begin(w, slot, l->generation, l->req);
		refuse(w, lane, slot, l->slot, STATUS_INVALID);
		return;
	}
	status = keep_list(&slot->message->request.lists, (enum wire_list_kind)l->kind, words, l->count, w->b->model.vocab);
	slot->lists[l->kind] = 0;
	if (status == STATUS_INVALID)
		invalid(w);
	if (status)
		refuse(w, lane, slot, l->slot, status);
}

static bool lists_are_missing(const struct intake_slot *slot)
{
	for (unsigned i = 0; i < WIRE_LIST_COUNT; i++)
		if (slot->lists[i] > 0)
			return true;
	return false;
}

static void on_tokens(struct worker *w, struct lanes_entry *lane, const struct wire_tokens *t, const int32_t *ids)
{
	struct intake_slot    *slot = &lane->slots[t->slot];
	struct engine_request *request;

	if (slot->generation == t->generation && slot->phase == PHASE_DONE)
		return; /* the rest of what was refused */
	if (slot->generation != t->generation || slot->phase != PHASE_ASSEMBLING) {
		invalid(w);
		if (slot->generation != t->generation)
			begin(w, slot, t->generation, t->req);
		refuse(w, lane, slot, t->slot, STATUS_INVALID);
		return;
	}
	request = &slot->message->request;
	if (t->req != slot->req || t->reserved != 0 || lists_are_missing(slot) || t->offset != slot->received || t->count == 0 ||
	    t->count > request->prompt_tokens - slot->received || !ids_valid(ids, t->count, w->b->model.vocab)) {
		invalid(w);
		refuse(w, lane, slot, t->slot, STATUS_INVALID);
		return;
	}
	memcpy(request->prompt + slot->received, ids, t->count * sizeof *ids);
	slot->received += t->count;
	if (slot->received < request->prompt_tokens)
		return;
	set_pending(w, -1);
	slot->phase = PHASE_DONE;
	hand_on(w, lane, slot->message);
	slot->message = NULL;
}

static void on_record(struct worker *w, struct lanes_entry *lane)
{
	const union record *r = &w->record;

	switch (r->header.type) {
	case WIRE_RESERVE:
		if (current(lane, r->reserve.slot, r->reserve.generation))
			on_reserve(w, lane, &r->reserve);
		return;
	case WIRE_SUBMIT:
		if (current(lane, r->submit.slot, r->submit.generation))
			on_submit(w, lane, &r->submit);
		return;
	case WIRE_LIST:
		if (current(lane, r->list.slot, r->list.generation))
			on_list(w, lane, &r->list, r->bytes + sizeof r->list);
		return;
	case WIRE_TOKENS:
		if (current(lane, r->tokens.slot, r->tokens.generation))
			on_tokens(w, lane, &r->tokens, (const int32_t *)(const void *)(r->bytes + sizeof r->tokens));
		return;
	default: /* wire_check_record lets nothing else pass */
		return;
	}
}

/* ---- lanes -------------------------------------------------------------------------------------------------------- */

/* Returns what its client has given up, and what was never submitted. */
static void look_at_slots(struct worker *w, struct lanes_entry *lane, uint64_t now_ns)
{
	uint64_t patience = (uint64_t)w->b->conf.batcher_max_queue_wait_ms * CLOCK_NS_PER_MS;

	for (uint32_t i = 0; i < lane->lane.geometry.slot_count; i++) {
		struct intake_slot *slot = &lane->slots[i];

		if (slot->phase != PHASE_RESERVED && slot->phase != PHASE_ASSEMBLING)
			continue;
		if (!current(lane, i, slot->generation))
			forget(w, slot);
		else if (now_ns > slot->since_ns && now_ns - slot->since_ns > patience) /* it may be younger than this visit */
			refuse(w, lane, slot, (uint16_t)i, STATUS_TIMEOUT);
	}
}

/* Reads no more of LANE; the step thread does the rest. */
static void let_go(struct worker *w, struct lanes_entry *lane)
{
	for (uint32_t i = 0; i < lane->lane.geometry.slot_count; i++)
		forget(w, &lane->slots[i]);
	lanes_let_go(lane);
	queue_push(&w->b->queue, &lane->farewell);
}

static bool blocked(const struct lanes_entry *lane)
{
	return atomic_load_explicit(&lane->queued, memory_order_relaxed) >= QUEUE_LANE_MAX;
}

/* True when it is this thread's to read. */
static bool readable(const struct lanes_entry *lane)
{
	enum lanes_state state = lanes_state(lane);
	return state == LANES_OPEN || state == LANES_CLOSING;
}

static void visit(struct worker *w, struct lanes_entry *lane, uint64_t now_ns)
{
	enum status status = STATUS_OK;
	size_t      bytes;
	unsigned    n = 0;

	if (!readable(lane))
		return;
	while (n < RECORDS_PER_VISIT && lanes_state(lane) == LANES_OPEN && !blocked(lane)) {
		status = lane_batcher_read(&lane->lane, &w->record, sizeof w->record, &bytes);
		if (status)
			break;
		on_record(w, lane);
		n++;
	}
	if (n == RECORDS_PER_VISIT)
		notifier_set_add(&w->again, lane->index);
	if (status == STATUS_INVALID) {
		invalid(w);
		batcher_drop_lane(w->b, lane, "its records make no sense");
	}
	if (lanes_state(lane) != LANES_OPEN) {
		let_go(w, lane);
		return;
	}
	look_at_slots(w, lane, now_ns);
	if (n > 0 && lane_batcher_take_room_waiting(&lane->lane))
		notifier_wake_one(&w->b->notifier, lane->index);
	w->poke = true;
}

/* S2 of the doorbell. */
static bool any_pending(void *context)
{
	struct worker *w = context;
	uint32_t       used = lanes_used(&w->b->lanes);

	if (atomic_load_explicit(&w->b->attention, memory_order_seq_cst))
		return true;
	for (uint32_t i = 0; i < used; i++) {
		const struct lanes_entry *lane = &w->b->lanes.entries[i];
		if (lanes_state(lane) == LANES_OPEN && !blocked(lane) && lane_batcher_pending_seq_cst(&lane->lane))
			return true;
	}
	return false;
}

static void *run(void *context)
{
	struct intake *intake = context;
	struct worker *w = calloc(1, sizeof *w);
	uint64_t       scanned_ns = 0, tick_ns = DOORBELL_TICK_MS * CLOCK_NS_PER_MS;

	if (!w) {
		log_error("intake: no memory");
		return NULL;
	}
	w->b = intake->batcher;
	while (!atomic_load_explicit(&intake->stopping, memory_order_acquire)) {
		uint64_t now = clock_now_ns();
		uint32_t used = lanes_used(&w->b->lanes);
		bool     all = atomic_exchange_explicit(&w->b->attention, false, memory_order_seq_cst) || now - scanned_ns >= tick_ns;
		bool     again = false;

		for (unsigned word = 0; word < NOTIFIER_WORDS; word++) {
			uint64_t bits = doorbell_take_ready(&w->b->doorbell, word) | w->again.words[word];

			w->again.words[word] = 0;
			if (all)
				bits = UINT64_MAX;
			for (; bits; bits &= bits - 1) {
				uint32_t index = word * 64 + (uint32_t)__builtin_ctzll(bits);
				if (index < used)
					visit(w, &w->b->lanes.entries[index], now);
			}
			again |= w->again.words[word] != 0;
		}
		if (all)
			scanned_ns = now;
		if (w->poke)
			queue_poke(&w->b->queue);
		w->poke = false;
		if (!again)
			doorbell_sleep(&w->b->doorbell, tick_ns, any_pending, w);
	}
	/* What is still on its way in goes with the process. */
	for (uint32_t i = 0; i < lanes_used(&w->b->lanes); i++)
		if (readable(&w->b->lanes.entries[i]))
			for (uint32_t s = 0; s < w->b->lanes.entries[i].lane.geometry.slot_count; s++)
				forget(w, &w->b->lanes.entries[i].slots[s]);
	free(w);
	return NULL;
}

enum status intake_start(struct intake *intake, struct batcher *batcher, struct error *error)
{
	*intake = (struct intake){ .batcher = batcher };
	if (pthread_create(&intake->thread, NULL, run, intake))
		return error_set(error, STATUS_NOMEM, "cannot start the intake thread");
	intake->started = true;
	return STATUS_OK;
}

void intake_stop(struct intake *intake)
{
	if (!intake->started)
		return;
	atomic_store_explicit(&intake->stopping, true, memory_order_release);
	batcher_wake_intake(intake->batcher);
	pthread_join(intake->thread, NULL);
	intake->started = false;
}
