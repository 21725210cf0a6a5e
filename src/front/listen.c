/* listen.c: owns the name of the FastCGI socket in the file system.  Invariant: PATH is at no time absent once it was
 * there. */
#include "front/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum status listen_open(const char *path, int backlog, int *ret_fd, struct error *error)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat        old;
	enum status        status;
	int                fd;

	if (lstat(path, &old) == 0 && !S_ISSOCK(old.st_mode))
		return error_set(error, STATUS_INVALID, "%s exists and is no socket: remove it or set front.listen elsewhere",
		    path);
	int len = snprintf(address.sun_path, sizeof address.sun_path, "%s.%d", path, (int)getpid());
	if (len < 0 || (size_t)len >= sizeof address.sun_path)
		return error_set(error, STATUS_INVALID, "front.listen = %s: socket names are short, at most %zu bytes", path,
		    sizeof address.sun_path - 12);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_set(error, STATUS_IO, "cannot make a socket: %s", strerror(errno));
	unlink(address.sun_path); /* a crashed namesake's */
	/* The mode of the socket before bind limits that of the name: it is never open to more than the final 0660. */
	if (fchmod(fd, 0600) || bind(fd, (const struct sockaddr *)&address, sizeof address)) {
		status = error_set(error, STATUS_IO, "cannot bind %s: %s", address.sun_path, strerror(errno));
		goto fail;
	}
	if (chmod(address.sun_path, 0660) || listen(fd, backlog) || rename(address.sun_path, path)) {
		status = error_set(error, STATUS_IO, "cannot listen on %s: %s", path, strerror(errno));
		unlink(address.sun_path);
		goto fail;
	}
	*ret_fd = fd;
	return STATUS_OK;
fail:
	close(fd);
	return status;
}

bool listen_is_served(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int                len = snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	int                fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool               served = false;

	if (fd >= 0 && len >= 0 && (size_t)len < sizeof address.sun_path) /* EAGAIN: a listener whose backlog is full */
		served = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN;
	if (fd >= 0)
		close(fd);
	return served;
}

enum status listen_inherit(int fd, struct error *error)
{
	int       listening = 0;
	socklen_t size = sizeof listening;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) || !listening)
		return error_set(error, STATUS_INVALID, "--listen-fd %d is not a listening socket", fd);
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC))
		return error_set(error, STATUS_IO, "--listen-fd %d: %s", fd, strerror(errno));
	return STATUS_OK;
}
