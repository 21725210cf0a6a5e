/* admission.c: owns the count of requests inside.  Does not own the requests.
 * Invariant: inside ≤ max_inside, and 0 when nothing is reserved, queued or running. */
#include "batcher/admission.h"

#include "base/clock.h"

void admission_init(struct admission *admission, struct metrics *metrics, uint32_t max_running, uint32_t max_queued)
{
	*admission = (struct admission){
		.metrics = metrics, .max_running = max_running, .max_inside = max_running + max_queued, .kv_tokens = UINT64_MAX
	};
}

uint32_t admission_inside(const struct admission *admission)
{
	return atomic_load_explicit(&admission->inside, memory_order_relaxed);
}

enum lane_reply admission_reserve(struct admission *admission, uint64_t tokens, uint32_t *ret_value)
{
	uint32_t inside = admission_inside(admission);
	uint64_t before;

	if (inside >= admission->max_inside) {
		*ret_value = admission_retry_after(admission);
		return LANE_REPLY_REJECT;
	}
	atomic_fetch_add_explicit(&admission->inside, 1, memory_order_relaxed);
	before = atomic_fetch_add_explicit(&admission->tokens, tokens, memory_order_relaxed);
	metrics_add(admission->metrics, METRIC_slots_in_use, 1);
	if (inside >= admission->max_running) {
		*ret_value = inside - admission->max_running;
		return LANE_REPLY_WAIT;
	}
	*ret_value = 0;
	return before <= admission->kv_tokens && tokens <= admission->kv_tokens - before ? LANE_REPLY_ACCEPT : LANE_REPLY_WAIT;
}

void admission_correct(struct admission *admission, uint64_t guessed, uint64_t tokens)
{
	atomic_fetch_add_explicit(&admission->tokens, tokens - guessed, memory_order_relaxed);
}

void admission_release(struct admission *admission, uint64_t tokens)
{
	atomic_fetch_sub_explicit(&admission->tokens, tokens, memory_order_relaxed);
	atomic_fetch_sub_explicit(&admission->inside, 1, memory_order_relaxed);
	metrics_add(admission->metrics, METRIC_slots_in_use, UINT64_MAX); /* − 1 */
}

void admission_ended(struct admission *admission, uint64_t now_ns)
{
	uint64_t old = atomic_load_explicit(&admission->drain_ns, memory_order_relaxed), interval = now_ns - admission->last_end_ns;

	/* Time without load says nothing about how fast a full house drains. */
	if (admission->last_end_ns && admission_inside(admission) + 1 >= admission->max_running)
		atomic_store_explicit(&admission->drain_ns, old ? old - old / 8 + interval / 8 : interval, memory_order_relaxed);
	admission->last_end_ns = now_ns;
}

uint32_t admission_retry_after(const struct admission *admission)
{
	uint64_t seconds = atomic_load_explicit(&admission->drain_ns, memory_order_relaxed) / CLOCK_NS_PER_S + 1;
	return seconds < ADMISSION_RETRY_MAX_S ? (uint32_t)seconds : ADMISSION_RETRY_MAX_S;
}
