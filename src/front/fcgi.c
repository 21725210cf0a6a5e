/* fcgi.c: owns a FastCGI connection and is the only file that knows libfcgi.  Does not own the event loop or the
 * meaning of requests.  Invariant: no call in here can wait for the peer.
 *
 * libfcgi waits in four places, and each is walked round:
 *
 *   FCGX_Accept_r   blocks in accept(), then up to 2 s for a first byte, then in read() for as long as a record is half
 *                   sent.  Here accept4 is ours; the head is peeked at until it is complete and every length in it is
 *                   under its cap; then a memfd with exactly those parameters is what libfcgi reads (ipcFd), which can
 *                   neither block nor hold more than was checked.  The socket itself will not do: libfcgi reads 8 KB at
 *                   a time and so swallows the beginning of the body into a buffer that nobody can look into.
 *   FCGX_GetStr     blocks in read() on a half-sent STDIN record and, on a non-blocking socket, forgets a half-read
 *                   record header.  The body is therefore read here, one recv per readiness, framed by records.c.
 *   FCGX_FFlush     blocks in write().  A record is at most 8 KB and is written only after POLLOUT, which a Unix stream
 *                   socket gives when at most a quarter of its send buffer is in use: one record always fits then.  The
 *                   descriptor is non-blocking all the same, so that a surprise costs this client and not its
 *                   neighbours.
 *   FCGX_Finish_r   waits up to 2 s for the peer to close.  FCGX_Detach first, always; keepConnection = 1 leaves the
 *                   descriptor to us. */
#include "front/fcgi.h"

#include "base/buf.h"

#include <errno.h>
#include <fcgiapp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Asked of the kernel, which doubles it; a record must fit into three quarters of it. */
enum { SEND_BUFFER = 65536, HEAD_PIECES_MAX = 4096 };

struct fcgi {
	int                 fd;
	bool                started; /* libfcgi's request is live */
	unsigned            pieces;  /* in which the head came: each is parsed anew, so their number is bounded */
	struct buf          head;    /* taken from the socket while it is incomplete */
	FCGX_Request        request;
	struct records_body body;
};

enum status fcgi_init(struct error *error)
{
	int code = FCGX_Init();
	return code ? error_set(error, STATUS_INTERNAL, "FCGX_Init: code %d", code) : STATUS_OK;
}

enum status fcgi_accept(int listen_fd, struct fcgi **ret)
{
	int size = SEND_BUFFER;
	int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ? STATUS_LIMIT : STATUS_AGAIN;
	struct fcgi *connection = calloc(1, sizeof *connection);
	if (!connection) {
		close(fd);
		return STATUS_LIMIT;
	}
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	connection->fd = fd;
	buf_init(&connection->head, RECORDS_HEAD_MAX);
	*ret = connection;
	return STATUS_OK;
}

int fcgi_fd(const struct fcgi *connection) { return connection->fd; }

/* A memfd that holds the head in its plainest form: BEGIN, one PARAMS record, the empty PARAMS record. */
static int make_head(const struct records_head *head, unsigned char *params)
{
	unsigned char begin[2 * RECORDS_HEADER], open[RECORDS_HEADER], end[RECORDS_HEADER];
	struct iovec  parts[] = { { begin, sizeof begin }, { open, head->params_bytes ? sizeof open : 0 },
		 { params, head->params_bytes }, { end, sizeof end } };
	ssize_t       total = 0;

	_Static_assert(RECORDS_PARAMS_MAX <= 65535, "the parameters fit one record");
	records_put_header(begin, RECORDS_BEGIN, head->request_id, 8);
	memset(begin + RECORDS_HEADER, 0, 8);
	begin[RECORDS_HEADER + 1] = 1; /* responder; FCGI_KEEP_CONN is not honoured: the connection ends with its request */
	records_put_header(open, RECORDS_PARAMS, head->request_id, head->params_bytes);
	records_put_header(end, RECORDS_PARAMS, head->request_id, 0);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		total += (ssize_t)parts[i].iov_len;

	int fd = memfd_create("fcgi-head", MFD_CLOEXEC);
	if (fd >= 0 && (writev(fd, parts, 4) != total || lseek(fd, 0, SEEK_SET) != 0)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Lets libfcgi parse the checked head. */
static enum status start_request(struct fcgi *connection, const struct records_head *head, unsigned char *params,
    struct error *error)
{
	FCGX_Request *request = &connection->request;
	int           fd = make_head(head, params);

	if (fd < 0)
		return error_set(error, STATUS_LIMIT, "no memory file for the parameters: %s", strerror(errno));
	FCGX_InitRequest(request, -1, 0);
	request->ipcFd = fd;
	request->keepConnection = 1;
	if (FCGX_Accept_r(request))
		return error_set(error, STATUS_INTERNAL, "libfcgi refuses a checked head"); /* it has closed fd */
	close(fd);
	request->ipcFd = connection->fd;
	request->keepConnection = 1;
	FCGX_Detach(request);
	connection->started = true;
	connection->body.request_id = head->request_id;
	return STATUS_OK;
}

/* Takes the next LEN bytes off the socket; they are there. */
static enum status discard(const struct fcgi *connection, unsigned char *scratch, size_t len)
{
	while (len > 0) {
		ssize_t n = recv(connection->fd, scratch, len, MSG_DONTWAIT);
		if (n <= 0)
			return STATUS_GONE;
		len -= (size_t)n;
	}
	return STATUS_OK;
}

/* Peeks first: bytes of an incomplete head all belong to it and are taken, of a complete one only its own; the body's
 * stay. (Leaving them in the socket until all are there would not do: the sender may not be able to send the rest, a
 * queue of seventy one-byte writes already makes its socket unwritable.) */
enum status fcgi_read_head(struct fcgi *connection, unsigned char scratch[RECORDS_HEAD_MAX], struct error *error)
{
	struct buf         *held = &connection->head;
	size_t              before = held->len, room = RECORDS_HEAD_MAX - before;
	unsigned char      *bytes = scratch;
	struct records_head head;
	enum status         status;
	ssize_t             n = recv(connection->fd, scratch, room, MSG_PEEK | MSG_DONTWAIT);

	if (n == 0)
		return STATUS_GONE;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? STATUS_AGAIN : STATUS_GONE;
	if (++connection->pieces > HEAD_PIECES_MAX)
		return error_set(error, STATUS_INVALID, "FastCGI: the head came in more than %d pieces", HEAD_PIECES_MAX);
	if (before > 0) {
		if (buf_append(held, scratch, (size_t)n))
			return error_set(error, STATUS_NOMEM, "no memory for the head");
		bytes = (unsigned char *)held->data;
	}
	status = records_check_head(bytes, before + (size_t)n, &head, error);
	if (status == STATUS_AGAIN) {
		if (before == 0 && buf_append(held, scratch, (size_t)n))
			return error_set(error, STATUS_NOMEM, "no memory for the head");
		return discard(connection, scratch, (size_t)n) ? STATUS_GONE : STATUS_AGAIN;
	}
	if (!status)
		status = start_request(connection, &head, bytes, error);
	if (!status)
		status = discard(connection, scratch, head.bytes - before);
	buf_free(held);
	return status;
}

const char *fcgi_param(const struct fcgi *connection, const char *name, unsigned *ret_count)
{
	size_t      len = strlen(name);
	const char *value = NULL;
	unsigned    count = 0;

	if (!connection->started)
		return NULL;
	for (char **pair = connection->request.envp; *pair; pair++)
		if (!strncmp(*pair, name, len) && (*pair)[len] == '=') {
			if (count++ == 0)
				value = *pair + len + 1;
		}
	if (ret_count)
		*ret_count = count;
	return value;
}

enum status fcgi_read_body(struct fcgi *connection, unsigned char buffer[FCGI_PIECE], size_t *ret_len,
    struct error *error)
{
	enum status status;
	size_t      content = 0;
	ssize_t     n = recv(connection->fd, buffer, FCGI_PIECE, MSG_DONTWAIT);

	if (n == 0)
		return STATUS_GONE;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? STATUS_AGAIN : STATUS_GONE;
	status = records_push_body(&connection->body, buffer, (size_t)n, &content, error);
	if (status)
		return status;
	if (connection->body.aborted)
		return STATUS_GONE;
	*ret_len = content;
	return STATUS_OK;
}

bool fcgi_body_ended(const struct fcgi *connection) { return connection->body.ended; }

bool fcgi_writable(const struct fcgi *connection)
{
	struct pollfd p = { .fd = connection->fd, .events = POLLOUT };
	return poll(&p, 1, 0) == 1; /* also on a hang-up: the write will say so */
}

bool fcgi_gone(const struct fcgi *connection)
{
	struct pollfd p = { .fd = connection->fd, .events = POLLRDHUP };
	return poll(&p, 1, 0) == 1;
}

enum status fcgi_write(struct fcgi *connection, const char *bytes, size_t len)
{
	FCGX_Stream *out = connection->request.out;

	if (!connection->started || len > FCGI_WRITE_MAX)
		return STATUS_INTERNAL;
	if (FCGX_PutStr(bytes, (int)len, out) != (int)len || FCGX_FFlush(out))
		return STATUS_GONE;
	return STATUS_OK;
}

enum status fcgi_finish(struct fcgi *connection)
{
	if (!connection->started)
		return STATUS_INTERNAL;
	connection->started = false;
	FCGX_Detach(&connection->request);
	FCGX_Finish_r(&connection->request);
	if (connection->request.ipcFd < 0) { /* libfcgi closes on a write error whatever keepConnection says */
		connection->fd = -1;
		return STATUS_GONE;
	}
	shutdown(connection->fd, SHUT_WR);
	return STATUS_OK;
}

void fcgi_close(struct fcgi *connection)
{
	if (!connection)
		return;
	if (connection->started) {
		FCGX_Detach(&connection->request);
		FCGX_Free(&connection->request, 0); /* unlike Finish it writes nothing */
	}
	if (connection->fd >= 0)
		close(connection->fd);
	buf_free(&connection->head);
	free(connection);
}
