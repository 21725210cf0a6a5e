/* listen.h: the FastCGI socket the web server connects to. */
#ifndef PENSTOCK_FRONT_LISTEN_H
#define PENSTOCK_FRONT_LISTEN_H

#include "base/status.h"

#include <stdbool.h>

/* Listens on PATH, mode 0660, non-blocking, close-on-exec.  The name is taken over from whoever had it in one step
 * (bind beside it, rename over it), so that a connection always finds either the old socket or the new one; and it is
 * never removed, so that an old master cannot remove its successor's. */
enum status listen_open(const char *path, int backlog, int *ret_fd, struct error *error);

/* Does somebody listen on PATH now?  To tell the operator who starts a second front by mistake what it does. */
bool listen_is_served(const char *path);

/* Takes FD over from the program that executed this one. */
enum status listen_inherit(int fd, struct error *error);

#endif
