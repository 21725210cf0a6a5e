/* control.c: owns the control socket's framing, the passing of descriptors and the client's half of the handshake.
 * Does not own who may attach, lanes, or what a WELCOME grants (penstockd).
 * Invariant: no call blocks longer than it was told, no descriptor that arrives is ever lost, and a message is believed
 * only when its size, magic, layout hash and type are right. */
#include "ipc/control.h"

#include "base/clock.h"
#include "ipc/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONTROL_MAGIC UINT64_C(0x706e737463746c31)

_Static_assert(sizeof(struct control_message) == 4 * 8 + 6 * 4 + 256, "padding in struct control_message");

static enum status make_address(const char *path, struct sockaddr_un *ret, struct error *error)
{
	size_t len = strlen(path);

	if (len == 0 || len >= sizeof ret->sun_path)
		return error_set(error, STATUS_INVALID, "control socket path '%s' has %zu characters, 1 to %zu are allowed",
		    path, len,
		    sizeof ret->sun_path - 1);
	*ret = (struct sockaddr_un) { .sun_family = AF_UNIX };
	memcpy(ret->sun_path, path, len + 1);
	return STATUS_OK;
}

enum status control_listen(const char *path, int gid, int *ret_fd, struct error *error)
{
	struct sockaddr_un address;
	struct stat        old;
	enum status        status = make_address(path, &address, error);
	int                fd;

	if (status != STATUS_OK)
		return status;
	if (lstat(path, &old) == 0) {
		if (!S_ISSOCK(old.st_mode))
			return error_set(error, STATUS_INVALID, "%s exists and is no socket: remove it or set run_dir elsewhere",
			    path);
		if (unlink(path))
			return error_set(error, STATUS_IO, "cannot remove the old socket %s: %s", path, strerror(errno));
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_set(error, STATUS_IO, "cannot make the control socket: socket: %s", strerror(errno));
	/* The mode of the socket before bind limits that of the name: it is never open to more than the final 0660. */
	if (fchmod(fd, 0600) || bind(fd, (const struct sockaddr *)&address, sizeof address)) {
		status = error_set(error, STATUS_IO, "cannot bind the control socket %s: %s", path, strerror(errno));
		goto fail;
	}
	if ((gid >= 0 && chown(path, (uid_t)-1, (gid_t)gid)) || chmod(path, 0660) || listen(fd, CONTROL_BACKLOG)) {
		status = error_set(error, STATUS_IO, "cannot open the control socket %s to group %d: %s", path, gid,
		    strerror(errno));
		unlink(path);
		goto fail;
	}
	*ret_fd = fd;
	return STATUS_OK;
fail:
	close(fd);
	return status;
}

enum status control_accept(int fd, int *ret_fd, struct error *error)
{
	int connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (connection >= 0) {
		*ret_fd = connection;
		return STATUS_OK;
	}
	if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED)
		return STATUS_AGAIN;
	return error_set(error, STATUS_IO, "cannot accept on the control socket: %s", strerror(errno));
}

enum status control_connect(const char *path, int timeout_ms, int *ret_fd, struct error *error)
{
	struct sockaddr_un address;
	struct timeval     timeout = { .tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000 };
	enum status        status = make_address(path, &address, error);
	int                fd, flags;

	if (status != STATUS_OK)
		return status;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return error_set(error, STATUS_IO, "cannot make a socket: %s", strerror(errno));
	/* A full backlog makes connect wait for as long as the send time-out says (0 would be for ever). */
	if (timeout_ms <= 0)
		timeout.tv_usec = 1;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) ||
	    connect(fd, (const struct sockaddr *)&address, sizeof address)) {
		bool absent = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
		status = error_set(error, absent ? STATUS_UNAVAILABLE : STATUS_IO,
		    "cannot connect to %s: %s; is penstockd running?", path,
		    strerror(errno));
		goto fail;
	}
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK)) {
		status = error_set(error, STATUS_IO, "cannot make the control socket non-blocking: %s", strerror(errno));
		goto fail;
	}
	*ret_fd = fd;
	return STATUS_OK;
fail:
	close(fd);
	return status;
}

/* Room for the descriptors of one message, aligned as the kernel wants it. */
union control_ancillary {
	struct cmsghdr align;
	char           space[CMSG_SPACE(sizeof(int) * CONTROL_FDS_MAX)];
};

enum status control_send(int fd, struct control_message *message, enum control_type type, const int *fds, int fd_count)
{
	union control_ancillary ancillary = { .space = { 0 } };
	struct iovec            part = { .iov_base = message, .iov_len = sizeof *message };
	struct msghdr           packet = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t                 sent;
	size_t                  len;

	if (fd_count < 0 || fd_count > CONTROL_FDS_MAX)
		return STATUS_INVALID;
	message->magic = CONTROL_MAGIC;
	message->layout_hash = wire_layout_hash();
	message->type = (uint32_t)type;
	/* What stands behind the text is nobody's business. */
	len = strnlen(message->text, sizeof message->text - 1);
	memset(message->text + len, 0, sizeof message->text - len);
	if (fd_count) {
		size_t          bytes = sizeof(int) * (size_t)fd_count;
		struct cmsghdr *rights;

		packet.msg_control = ancillary.space;
		packet.msg_controllen = CMSG_SPACE(bytes);
		rights = CMSG_FIRSTHDR(&packet);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(rights), fds, bytes);
	}
	do
		sent = sendmsg(fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	if (sent == (ssize_t)sizeof *message)
		return STATUS_OK;
	if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS))
		return STATUS_FULL;
	return sent < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) ? STATUS_GONE : STATUS_IO;
}

/* Collects the descriptors of a received packet into FDS (CONTROL_FDS_MAX); returns how many, closing what is more. */
static int take_descriptors(struct msghdr *packet, int *fds)
{
	int count = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(packet); c; c = CMSG_NXTHDR(packet, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
			int fd;
			memcpy(&fd, (const char *)c + at, sizeof fd);
			if (count < CONTROL_FDS_MAX) {
				fds[count++] = fd;
				continue;
			}
			close(fd);
			packet->msg_flags |= MSG_CTRUNC; /* the alignment left room for more than was asked for */
		}
	}
	return count;
}

static enum status check_message(const struct control_message *m, ssize_t bytes, int flags, int fd_count,
    struct error *error)
{
	if (bytes != (ssize_t)sizeof *m || flags & MSG_TRUNC)
		return error_set(error, STATUS_INVALID,
		    "control message of %zd bytes%s, %zu were expected: the peer is of another build", bytes,
		    flags & MSG_TRUNC ? " and more" : "", sizeof *m);
	if (m->magic != CONTROL_MAGIC)
		return error_set(error, STATUS_INVALID, "control message has magic %016jx, %016jx was expected",
		    (uintmax_t)m->magic,
		    (uintmax_t)CONTROL_MAGIC);
	if (m->layout_hash != wire_layout_hash())
		return error_set(error, STATUS_INVALID,
		    "the peer's record layout is %016jx, ours %016jx: restart the older of the two programs",
		    (uintmax_t)m->layout_hash, (uintmax_t)wire_layout_hash());
	if (m->type < CONTROL_HELLO || m->type > CONTROL_DONE)
		return error_set(error, STATUS_INVALID, "control message of unknown type %u", m->type);
	if (flags & MSG_CTRUNC || fd_count != (m->type == CONTROL_WELCOME ? CONTROL_FDS_MAX : 0))
		return error_set(error, STATUS_INVALID, "control message of type %u carries %d%s descriptors", m->type,
		    fd_count,
		    flags & MSG_CTRUNC ? " or more" : "");
	return STATUS_OK;
}

enum status control_receive(int fd, struct control_message *ret, int *ret_fds, int *ret_fd_count, struct error *error)
{
	union control_ancillary ancillary = { .space = { 0 } };
	struct control_message  message;
	struct iovec            part = { .iov_base = &message, .iov_len = sizeof message };
	struct msghdr           packet = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = ancillary.space,
		.msg_controllen = sizeof ancillary.space };
	int                     fds[CONTROL_FDS_MAX], fd_count;
	enum status             status;
	ssize_t                 got;

	do
		got = recvmsg(fd, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return STATUS_AGAIN;
	if (got < 0 && errno != ECONNRESET)
		return error_set(error, STATUS_IO, "cannot receive a control message: %s", strerror(errno));
	fd_count = got < 0 ? 0 : take_descriptors(&packet, fds);
	if (got <= 0) {
		status = error_set(error, STATUS_GONE, "the peer closed the control connection");
		goto fail;
	}
	status = check_message(&message, got, packet.msg_flags, fd_count, error);
	if (status != STATUS_OK)
		goto fail;
	message.text[sizeof message.text - 1] = '\0';
	*ret = message;
	if (fd_count)
		memcpy(ret_fds, fds, sizeof(int) * (size_t)fd_count);
	*ret_fd_count = fd_count;
	return STATUS_OK;
fail:
	while (fd_count > 0)
		close(fds[--fd_count]);
	return status;
}

/* Receives the one answer that is due before DEADLINE_NS. */
static enum status await_message(int fd, uint64_t deadline_ns, struct control_message *ret, int *ret_fds,
    int *ret_fd_count,
    struct error *error)
{
	for (;;) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };
		enum status   status = control_receive(fd, ret, ret_fds, ret_fd_count, error);
		uint64_t      now = clock_now_ns();

		if (status != STATUS_AGAIN)
			return status;
		if (now >= deadline_ns)
			return error_set(error, STATUS_TIMEOUT, "penstockd did not answer on the control socket in time");
		/* Rounded up: a wait of 0 ms would spin.  What poll says does not matter, the loop looks again. */
		(void)poll(&wait, 1, (int)((deadline_ns - now + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS));
	}
}

/* Connects, sends REQUEST and waits for the answer, all within TIMEOUT_MS.  *ret_fd stays open. */
static enum status converse(const char *path, struct control_message *request, enum control_type type, int timeout_ms,
    int *ret_fd,
    struct control_message *ret, int *ret_fds, int *ret_fd_count, struct error *error)
{
	uint64_t    deadline = clock_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * CLOCK_NS_PER_MS;
	int         fd;
	enum status status = control_connect(path, timeout_ms, &fd, error);

	if (status != STATUS_OK)
		return status;
	status = control_send(fd, request, type, NULL, 0);
	if (status != STATUS_OK)
		error_set(error, status, "cannot send to penstockd on %s: %s", path, status_text(status));
	else
		status = await_message(fd, deadline, ret, ret_fds, ret_fd_count, error);
	if (status != STATUS_OK) {
		close(fd);
		return status;
	}
	*ret_fd = fd;
	return STATUS_OK;
}

/* What a REFUSE (or a DONE) says as a status: never STATUS_OK for a refusal, never a number outside the table. */
static enum status refusal(const struct control_message *answer)
{
	return answer->status > STATUS_OK && answer->status < STATUS_COUNT ? (enum status)answer->status : STATUS_INVALID;
}

enum status control_attach(const char *path, const struct control_message *hello, int timeout_ms, int *ret_fd,
    struct control_message *ret_welcome, int ret_fds[CONTROL_FDS_MAX], struct error *error)
{
	struct control_message request = *hello, answer;
	int                    fd, fds[CONTROL_FDS_MAX], fd_count = 0;
	enum status            status = converse(path, &request, CONTROL_HELLO, timeout_ms, &fd, &answer, fds, &fd_count,
	    error);

	if (status != STATUS_OK)
		return status;
	if (answer.type == CONTROL_REFUSE) {
		status = error_set(error, refusal(&answer), "penstockd refused the connection: %s", answer.text);
	} else if (answer.type != CONTROL_WELCOME) {
		status = error_set(error, STATUS_INVALID, "penstockd answered HELLO with a message of type %u", answer.type);
	} else if (answer.vocab_fingerprint != hello->vocab_fingerprint) {
		status = error_set(error, STATUS_INVALID,
		    "penstockd's vocabulary is %016jx, ours %016jx: they serve different models",
		    (uintmax_t)answer.vocab_fingerprint, (uintmax_t)hello->vocab_fingerprint);
	}
	if (status != STATUS_OK) {
		while (fd_count > 0)
			close(fds[--fd_count]);
		close(fd);
		return status;
	}
	*ret_fd = fd;
	*ret_welcome = answer;
	memcpy(ret_fds, fds, sizeof fds);
	return STATUS_OK;
}

enum status control_ask(const char *path, enum control_type type, int timeout_ms, struct control_message *ret,
    struct error *error)
{
	struct control_message request = { .status = STATUS_OK }, answer;
	int                    fd, fds[CONTROL_FDS_MAX], fd_count = 0;
	enum status            status = converse(path, &request, type, timeout_ms, &fd, &answer, fds, &fd_count, error);

	if (status != STATUS_OK)
		return status;
	if (answer.type == CONTROL_REFUSE)
		status = error_set(error, refusal(&answer), "penstockd refused: %s", answer.text);
	else if (answer.type != CONTROL_DONE)
		status = error_set(error, STATUS_INVALID, "penstockd answered with a message of type %u", answer.type);
	while (fd_count > 0)
		close(fds[--fd_count]);
	close(fd);
	if (status == STATUS_OK)
		*ret = answer;
	return status;
}
