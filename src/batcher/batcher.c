/* batcher.c: owns what is made before there are threads: lock, shared objects, control socket, queue.  Does not own the
 * threads.  Invariant: batcher_close undoes exactly what batcher_open did, however far it came; the named objects are
 * unlinked while the lock is still held, so that they are never a successor's. */
#include "batcher/batcher.h"

#include "base/clock.h"
#include "base/log.h"
#include "batcher/service.h"
#include "ipc/control.h"
#include "ipc/object.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The lock guards the run directory; the names of the shared objects come from the instance.  Two daemons with different
 * directories and one instance would take each other's objects away: the header of a living one shows it. */
static enum status check_instance(const struct conf *conf, struct error *error)
{
	struct header header = { NULL, "" };
	uint64_t      watchdog_ns = (uint64_t)conf->batcher_watchdog_ms * CLOCK_NS_PER_MS;
	enum status   status = STATUS_OK;
	pid_t         pid;

	if (header_open(conf->service_instance, &header, NULL))
		return STATUS_OK; /* none there, or one that nobody could use */
	pid = (pid_t)header.shared->pid;
	if (header_alive(header.shared, clock_now_ns(), watchdog_ns) && pid > 0 && pid != getpid() &&
	    (kill(pid, 0) == 0 || errno == EPERM))
		status = error_set(error, STATUS_FULL,
		    "instance %s is served by process %d: stop it, or set service.instance to another name", conf->service_instance,
		    (int)pid);
	header_close(&header);
	return status;
}

static enum status find_group(const struct conf *conf, int *ret_gid, struct error *error)
{
	const struct group *group;

	*ret_gid = -1;
	if (!*conf->service_front_group)
		return STATUS_OK;
	group = getgrnam(conf->service_front_group);
	if (!group)
		return error_set_param(error, STATUS_INVALID, "front_group", "service.front_group = %s: there is no such group",
		    conf->service_front_group);
	*ret_gid = (int)group->gr_gid;
	return STATUS_OK;
}

enum status batcher_open(struct batcher *b, const struct conf *conf, struct error *error)
{
	char        path[2 * CONF_TEXT_MAX];
	int         gid;
	enum status status;

	b->conf = *conf;
	b->lock_fd = b->listen_fd = b->control_fd = -1;
	lanes_init(&b->lanes);
	status = queue_init(&b->queue);
	if (status)
		return error_set(error, status, "cannot make the queue");
	status = service_lock(conf->service_run_dir, &b->lock_fd, error);
	if (!status)
		status = check_instance(conf, error);
	if (!status)
		status = find_group(conf, &gid, error);
	if (!status)
		status = header_create(conf->service_instance, gid, &b->header, error);
	if (!status)
		status = metrics_create(conf->service_instance, gid, &b->metrics, error);
	if (!status)
		status = blackbox_create(conf->service_instance, gid, &b->blackbox, error);
	if (!status)
		status = doorbell_create(&b->doorbell, error);
	if (status)
		return status;
	status = admission_init(&b->admission, &b->metrics,
	    &(struct admission_limits){ .max_running = (uint32_t)conf->batcher_max_running,
	        .max_queued = (uint32_t)conf->batcher_max_queued, .max_queued_tokens = (uint64_t)conf->batcher_max_queued_tokens });
	if (status)
		return error_set(error, status, "no memory for the accounts of keys");
	b->control_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->control_fd < 0)
		return error_set(error, STATUS_IO, "cannot make an eventfd: %s", strerror(errno));
	conf_control_socket(conf, path, sizeof path);
	return control_listen(path, gid, &b->listen_fd, error);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void unlink_socket(const struct batcher *b)
{
	char path[2 * CONF_TEXT_MAX];

	if (b->listen_fd < 0)
		return;
	conf_control_socket(&b->conf, path, sizeof path);
	unlink(path);
}

void batcher_unlink(struct batcher *b)
{
	unlink_socket(b);
	object_unlink(b->metrics.name);
	object_unlink(b->header.name);
}

void batcher_close(struct batcher *b)
{
	unlink_socket(b);
	close_fd(&b->listen_fd);
	close_fd(&b->control_fd);
	queue_free(&b->queue);
	lanes_free(&b->lanes);
	admission_free(&b->admission);
	doorbell_close(&b->doorbell);
	if (batcher_phase(b) == BATCHER_FAILED && b->blackbox.shared && atomic_load(&b->blackbox.shared->count) > 0)
		blackbox_leave(&b->blackbox);
	else
		blackbox_close(&b->blackbox);
	metrics_close(&b->metrics);
	header_close(&b->header);
	close_fd(&b->lock_fd);
}

void batcher_wake_control(struct batcher *b)
{
	uint64_t one = 1;
	/* Full means that it is awake anyway. */
	while (write(b->control_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
}

void batcher_wake_intake(struct batcher *b)
{
	atomic_store_explicit(&b->attention, true, memory_order_seq_cst);
	doorbell_ring(&b->doorbell, -1);
}

void batcher_drop_lane(struct batcher *b, struct lanes_entry *lane, const char *reason)
{
	uint32_t pid = lane->pid, index = lane->index;

	if (!lanes_close(lane))
		return;
	log_warn("lane %u of child %u is closed: %s", index, pid, reason);
	batcher_wake_intake(b);
	batcher_wake_control(b);
}
