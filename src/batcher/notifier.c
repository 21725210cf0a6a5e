/* notifier.c: owns the notifier thread.  Does not own the decision to wake (front_waiting, lane.h).
 * Invariant: a wake asked for before a recycle of the same lane is sent before it. */
#include "batcher/notifier.h"

#include <string.h>

static bool empty(const struct notifier_set *set)
{
	for (unsigned i = 0; i < NOTIFIER_WORDS; i++)
		if (set->words[i])
			return false;
	return true;
}

static void *run(void *context)
{
	struct notifier *n = context;

	pthread_mutex_lock(&n->mutex);
	for (;;) {
		struct notifier_set children, retired;

		while (!n->stopping && empty(&n->children) && empty(&n->retired))
			pthread_cond_wait(&n->wake, &n->mutex);
		if (n->stopping && empty(&n->children) && empty(&n->retired))
			break;
		children = n->children;
		retired = n->retired;
		memset(&n->children, 0, sizeof n->children);
		memset(&n->retired, 0, sizeof n->retired);
		pthread_mutex_unlock(&n->mutex);

		for (unsigned w = 0; w < NOTIFIER_WORDS; w++)
			for (uint64_t bits = children.words[w]; bits; bits &= bits - 1) {
				wake_send(&n->lanes->entries[w * 64 + (unsigned)__builtin_ctzll(bits)].wake);
				metrics_add(n->metrics, METRIC_wakeups_total, 1);
			}
		for (unsigned w = 0; w < NOTIFIER_WORDS; w++)
			for (uint64_t bits = retired.words[w]; bits; bits &= bits - 1)
				lanes_recycle(&n->lanes->entries[w * 64 + (unsigned)__builtin_ctzll(bits)]);
		pthread_mutex_lock(&n->mutex);
	}
	pthread_mutex_unlock(&n->mutex);
	return NULL;
}

enum status notifier_start(struct notifier *notifier, struct lanes *lanes, struct metrics *metrics, struct error *error)
{
	*notifier = (struct notifier){ .lanes = lanes, .metrics = metrics };
	if (pthread_mutex_init(&notifier->mutex, NULL) || pthread_cond_init(&notifier->wake, NULL) ||
	    pthread_create(&notifier->thread, NULL, run, notifier))
		return error_set(error, STATUS_NOMEM, "cannot start the notifier thread");
	notifier->started = true;
	return STATUS_OK;
}

void notifier_stop(struct notifier *notifier)
{
	if (!notifier->started)
		return;
	pthread_mutex_lock(&notifier->mutex);
	notifier->stopping = true;
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->mutex);
	pthread_join(notifier->thread, NULL);
	pthread_cond_destroy(&notifier->wake);
	pthread_mutex_destroy(&notifier->mutex);
	notifier->started = false;
}

void notifier_wake(struct notifier *notifier, const struct notifier_set *children)
{
	if (empty(children))
		return;
	pthread_mutex_lock(&notifier->mutex);
	for (unsigned i = 0; i < NOTIFIER_WORDS; i++)
		notifier->children.words[i] |= children->words[i];
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->mutex);
}

void notifier_wake_one(struct notifier *notifier, uint32_t lane)
{
	pthread_mutex_lock(&notifier->mutex);
	notifier_set_add(&notifier->children, lane);
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->mutex);
}

void notifier_recycle(struct notifier *notifier, uint32_t lane)
{
	pthread_mutex_lock(&notifier->mutex);
	notifier_set_add(&notifier->retired, lane);
	pthread_cond_signal(&notifier->wake);
	pthread_mutex_unlock(&notifier->mutex);
}
