/* helper.c: owns the helper thread and its two queues.  Does not know what a job does.  Invariant: a job is in exactly
 * one place: the caller's, `waiting`, the thread's hands, or `done`. */
#include "front/helper.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

static const size_t helper_stack = 1 << 20;

enum { NICE = 10 }; /* a stream's next token goes before a prompt that takes a second anyway */

enum status helper_init(struct helper *helper, struct error *error)
{
	memset(helper, 0, sizeof *helper);
	helper->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (helper->event_fd < 0)
		return error_set(error, STATUS_IO, "eventfd: %s", strerror(errno));
	pthread_mutex_init(&helper->mutex, NULL);
	pthread_cond_init(&helper->wake, NULL);
	helper->waiting_end = &helper->waiting;
	helper->done_end = &helper->done;
	return STATUS_OK;
}

static void append(struct helper_job ***end, struct helper_job *job)
{
	job->next = NULL;
	**end = job;
	*end = &job->next;
}

static struct helper_job *take(struct helper_job **head, struct helper_job ***end)
{
	struct helper_job *job = *head;
	if (job) {
		*head = job->next;
		if (!*head)
			*end = head;
	}
	return job;
}

static void *work(void *context)
{
	struct helper *helper = context;

	setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* of this thread only, on Linux */
	pthread_mutex_lock(&helper->mutex);
	while (!helper->stop) {
		struct helper_job *job = take(&helper->waiting, &helper->waiting_end);
		if (!job) {
			pthread_cond_wait(&helper->wake, &helper->mutex);
			continue;
		}
		pthread_mutex_unlock(&helper->mutex);
		job->run(job);
		pthread_mutex_lock(&helper->mutex);
		append(&helper->done_end, job);
		eventfd_write(helper->event_fd, 1);
	}
	pthread_mutex_unlock(&helper->mutex);
	return NULL;
}

enum status helper_submit(struct helper *helper, struct helper_job *job)
{
	if (!helper->started) {
		pthread_attr_t attributes;
		pthread_attr_init(&attributes);
		pthread_attr_setstacksize(&attributes, helper_stack);
		int code = pthread_create(&helper->thread, &attributes, work, helper);
		pthread_attr_destroy(&attributes);
		if (code)
			return STATUS_NOMEM;
		helper->started = true;
	}
	pthread_mutex_lock(&helper->mutex);
	append(&helper->waiting_end, job);
	pthread_cond_signal(&helper->wake);
	pthread_mutex_unlock(&helper->mutex);
	helper->pending++;
	return STATUS_OK;
}

struct helper_job *helper_take(struct helper *helper)
{
	eventfd_t count;

	pthread_mutex_lock(&helper->mutex);
	struct helper_job *job = take(&helper->done, &helper->done_end);
	if (!job)
		(void)!eventfd_read(helper->event_fd, &count); /* under the mutex: a job finished later posts anew */
	pthread_mutex_unlock(&helper->mutex);
	if (job)
		helper->pending--;
	return job;
}

void helper_stop(struct helper *helper)
{
	if (helper->event_fd <= 0)
		return;
	pthread_mutex_lock(&helper->mutex);
	helper->stop = true;
	pthread_cond_signal(&helper->wake);
	pthread_mutex_unlock(&helper->mutex);
	if (helper->started)
		pthread_join(helper->thread, NULL);
	pthread_cond_destroy(&helper->wake);
	pthread_mutex_destroy(&helper->mutex);
	close(helper->event_fd);
	helper->event_fd = -1;
}
