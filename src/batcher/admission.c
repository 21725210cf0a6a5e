/* admission.c: owns the counts of what is inside and the measured drain rate.  Does not own the requests.
 * Invariant: inside ≤ max_running + max_queued, and inside, tokens and every account's requests are 0 when nothing is reserved,
 * queued or running. */
#include "batcher/admission.h"

#include "base/clock.h"

#include <math.h>

enum status admission_init(struct admission *admission, struct metrics *metrics, const struct admission_limits *limits)
{
	*admission = (struct admission){ .metrics = metrics, .limits = *limits, .kv_tokens = UINT64_MAX / 2 };
	estimate_init(&admission->answers);
	if (accounts_init(&admission->accounts))
		return STATUS_NOMEM;
	if (pthread_mutex_init(&admission->lock, NULL)) {
		accounts_free(&admission->accounts);
		return STATUS_NOMEM;
	}
	return STATUS_OK;
}

void admission_free(struct admission *admission)
{
	if (!admission->accounts.entries)
		return;
	pthread_mutex_destroy(&admission->lock);
	accounts_free(&admission->accounts);
}

/* ---- under the lock ------------------------------------------------------------------------------------------------ */

static uint64_t answer_tokens(const struct admission *admission, const struct admission_ask *ask)
{
	uint64_t room = admission->max_context > ask->prompt_tokens ? admission->max_context - ask->prompt_tokens : 1;
	uint64_t most = ask->max_tokens && (ask->max_tokens < room || !admission->max_context) ? ask->max_tokens : room;

	return (uint64_t)estimate_tokens(&admission->answers, (uint32_t)most) * (ask->choices ? ask->choices : 1);
}

static uint32_t retry_after(const struct admission *admission, uint64_t tokens)
{
	uint32_t inside = admission_inside(admission);
	double   seconds;

	if (tokens == 0 && inside > 0)
		tokens = admission->tokens / inside;
	if (admission->drained < 1)
		return 1;
	seconds = ceil((double)tokens * admission->drained_ns / admission->drained / (double)CLOCK_NS_PER_S);
	return seconds <= 1 ? 1 : seconds < ADMISSION_RETRY_MAX_S ? (uint32_t)seconds : ADMISSION_RETRY_MAX_S;
}

static uint32_t rejection(struct admission *admission, enum status reason, uint32_t seconds)
{
	enum metric id = METRIC_rejections_queue;

	if (reason == STATUS_QUEUE_TOKENS)
		id = METRIC_rejections_queue_tokens;
	else if (reason == STATUS_KEY_REQUESTS)
		id = METRIC_rejections_key_requests;
	else if (reason == STATUS_KEY_TOKENS)
		id = METRIC_rejections_key_tokens;
	else if (reason == STATUS_UNAVAILABLE)
		id = METRIC_rejections_unavailable;
	metrics_add(admission->metrics, METRIC_requests_rejected_total, 1);
	metrics_add(admission->metrics, id, 1);
	return LANE_REJECTION(reason, seconds);
}

static void set_gauges(struct admission *admission, int change)
{
	atomic_fetch_add_explicit(&admission->inside, (uint32_t)change, memory_order_relaxed);
	metrics_set(admission->metrics, METRIC_slots_in_use, admission_inside(admission));
	metrics_set(admission->metrics, METRIC_tokens_inside, admission->tokens);
}

/* The key's limits, then everybody's.  STATUS_OK, or the reason with *ret_seconds. */
static enum status check(const struct admission *admission, const struct account *account, const struct admission_ask *ask,
    uint64_t tokens, uint32_t *ret_seconds)
{
	const struct admission_limits *limits = &admission->limits;
	uint64_t                       wait_ns = 0, most;
	enum status                    status = account ? accounts_check(account, ask->key_requests, tokens, &wait_ns) : STATUS_OK;

	if (status == STATUS_KEY_TOKENS) {
		wait_ns = wait_ns / CLOCK_NS_PER_S + 1;
		*ret_seconds = wait_ns < ADMISSION_RETRY_MAX_S ? (uint32_t)wait_ns : ADMISSION_RETRY_MAX_S;
		return status;
	}
	*ret_seconds = retry_after(admission, 0);
	if (status)
		return status;
	if (admission_inside(admission) >= limits->max_running + limits->max_queued)
		return STATUS_FULL;
	most = admission->kv_tokens + limits->max_queued_tokens;
	if (limits->max_queued_tokens && admission->tokens > 0 && admission->tokens + tokens > most) {
		*ret_seconds = retry_after(admission, admission->tokens + tokens - most);
		return STATUS_QUEUE_TOKENS;
	}
	return STATUS_OK;
}

static enum lane_reply reserve(struct admission *admission, const struct admission_ask *ask, uint64_t now_ns,
    struct admission_ticket *ret_ticket, uint32_t *ret_value)
{
	struct admission_ticket ticket = { .prompt = ask->prompt_tokens, .answer = answer_tokens(admission, ask) };
	uint64_t                tokens = ticket.prompt + ticket.answer, before = admission->tokens;
	uint32_t                inside = admission_inside(admission), seconds = 0;
	enum status             status = STATUS_OK;

	if (ask->key && (ask->key_requests || ask->key_tokens)) {
		ticket.account = accounts_find(&admission->accounts, ask->key, ask->key_tokens, now_ns);
		status = ticket.account ? STATUS_OK : STATUS_FULL;
	}
	if (!status)
		status = check(admission, ticket.account, ask, tokens, &seconds);
	if (status) {
		*ret_value = rejection(admission, status, seconds ? seconds : 1);
		return LANE_REPLY_REJECT;
	}
	if (ticket.account)
		accounts_join(ticket.account, tokens);
	admission->tokens += tokens;
	set_gauges(admission, 1);
	*ret_ticket = ticket;
	*ret_value = inside >= admission->limits.max_running ? inside - admission->limits.max_running : 0;
	if (inside >= admission->limits.max_running)
		return LANE_REPLY_WAIT;
	return before <= admission->kv_tokens && tokens <= admission->kv_tokens - before ? LANE_REPLY_ACCEPT : LANE_REPLY_WAIT;
}

static void leave(struct admission *admission, const struct admission_ticket *ticket, uint64_t used, uint64_t now_ns)
{
	uint64_t counted = ticket->prompt + ticket->answer;

	admission->tokens -= counted;
	set_gauges(admission, -1);
	if (!ticket->account)
		return;
	accounts_correct(ticket->account, (int64_t)used - (int64_t)counted, now_ns);
	accounts_leave(ticket->account);
}

/* ---- public --------------------------------------------------------------------------------------------------------- */

enum lane_reply admission_reserve(struct admission *admission, const struct admission_ask *ask, uint64_t now_ns,
    struct admission_ticket *ret_ticket, uint32_t *ret_value)
{
	enum lane_reply kind;

	pthread_mutex_lock(&admission->lock);
	kind = reserve(admission, ask, now_ns, ret_ticket, ret_value);
	pthread_mutex_unlock(&admission->lock);
	return kind;
}

uint32_t admission_reject(struct admission *admission, enum status reason)
{
	uint32_t value;

	pthread_mutex_lock(&admission->lock);
	value = rejection(admission, reason, retry_after(admission, 0));
	pthread_mutex_unlock(&admission->lock);
	return value;
}

void admission_correct(struct admission *admission, const struct admission_ask *ask, uint64_t now_ns,
    struct admission_ticket *ticket)
{
	uint64_t before = ticket->prompt + ticket->answer;

	pthread_mutex_lock(&admission->lock);
	ticket->prompt = ask->prompt_tokens;
	ticket->answer = answer_tokens(admission, ask);
	admission->tokens += ticket->prompt + ticket->answer - before;
	if (ticket->account)
		accounts_correct(ticket->account, (int64_t)(ticket->prompt + ticket->answer) - (int64_t)before, now_ns);
	set_gauges(admission, 0);
	pthread_mutex_unlock(&admission->lock);
}

void admission_release(struct admission *admission, const struct admission_ticket *ticket, uint64_t used, uint64_t now_ns)
{
	pthread_mutex_lock(&admission->lock);
	leave(admission, ticket, used, now_ns);
	pthread_mutex_unlock(&admission->lock);
}

void admission_learn(struct admission *admission, uint32_t answer_tokens)
{
	pthread_mutex_lock(&admission->lock);
	estimate_learn(&admission->answers, answer_tokens);
	pthread_mutex_unlock(&admission->lock);
}

void admission_drained(struct admission *admission, uint32_t rows, uint64_t step_ns)
{
	pthread_mutex_lock(&admission->lock);
	if (admission->drained_ns > (double)ADMISSION_WINDOW_S * (double)CLOCK_NS_PER_S) { /* the older half counts half */
		admission->drained /= 2;
		admission->drained_ns /= 2;
	}
	admission->drained += rows;
	admission->drained_ns += (double)step_ns;
	pthread_mutex_unlock(&admission->lock);
}

uint32_t admission_retry_after(struct admission *admission, uint64_t tokens)
{
	uint32_t seconds;

	pthread_mutex_lock(&admission->lock);
	seconds = retry_after(admission, tokens);
	pthread_mutex_unlock(&admission->lock);
	return seconds;
}
