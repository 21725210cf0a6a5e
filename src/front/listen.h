/* listen.h: the FastCGI socket the web server connects to. */
#ifndef PENSTOCK_FRONT_LISTEN_H
#define PENSTOCK_FRONT_LISTEN_H

#include "base/status.h"

/* Listens on PATH, mode 0660, non-blocking, close-on-exec.  The name is taken over from whoever had it in one step
 * (bind beside it, rename over it), so that a connection always finds either the old socket or the new one; and it is
 * never removed, so that an old master cannot remove its successor's. */
enum status listen_open(const char *path, int backlog, int *ret_fd, struct error *error);

/* Takes FD over from the program that executed this one. */
enum status listen_inherit(int fd, struct error *error);

#endif
