/* queue.c: owns the messages on their way from intake to step.  Does not own their meaning.
 * Invariant: a message pushed or a poke given before queue_take is seen by it. */
#include "batcher/queue.h"

#include "base/clock.h"

#include <stdlib.h>

enum status queue_init(struct queue *queue)
{
	pthread_condattr_t attributes;

	*queue = (struct queue){ .first = NULL };
	if (pthread_condattr_init(&attributes))
		return STATUS_NOMEM;
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	if (pthread_mutex_init(&queue->mutex, NULL) || pthread_cond_init(&queue->wake, &attributes)) {
		pthread_condattr_destroy(&attributes);
		return STATUS_NOMEM;
	}
	pthread_condattr_destroy(&attributes);
	return STATUS_OK;
}

void queue_free(struct queue *queue)
{
	struct queue_message *next;

	for (struct queue_message *m = queue->first; m; m = next) {
		next = m->next;
		if (m->kind == QUEUE_FAREWELL) /* part of its lane's entry */
			continue;
		engine_request_clear(&m->request);
		free(m);
	}
	queue->first = queue->last = NULL;
	pthread_cond_destroy(&queue->wake);
	pthread_mutex_destroy(&queue->mutex);
}

void queue_push(struct queue *queue, struct queue_message *message)
{
	message->next = NULL;
	pthread_mutex_lock(&queue->mutex);
	if (queue->last)
		queue->last->next = message;
	else
		queue->first = message;
	queue->last = message;
	pthread_cond_signal(&queue->wake);
	pthread_mutex_unlock(&queue->mutex);
}

void queue_poke(struct queue *queue)
{
	pthread_mutex_lock(&queue->mutex);
	queue->poked = true;
	pthread_cond_signal(&queue->wake);
	pthread_mutex_unlock(&queue->mutex);
}

struct queue_message *queue_take(struct queue *queue, uint64_t timeout_ns)
{
	struct queue_message *list;

	pthread_mutex_lock(&queue->mutex);
	if (timeout_ns > 0 && !queue->first && !queue->poked) {
		uint64_t        until = clock_now_ns() + timeout_ns;
		struct timespec time = { (time_t)(until / CLOCK_NS_PER_S), (long)(until % CLOCK_NS_PER_S) };

		while (!queue->first && !queue->poked && pthread_cond_timedwait(&queue->wake, &queue->mutex, &time) == 0)
			;
	}
	list = queue->first;
	queue->first = queue->last = NULL;
	queue->poked = false;
	pthread_mutex_unlock(&queue->mutex);
	return list;
}
