/* main.c: penstock-front's main: the visible chain from the command line to the running master.  Owns nothing else.
 * Invariant: everything that can fail for a reason a person can mend fails before the first child is forked. */
#include "config.h"

#include "base/log.h"     /* uses: log_error, log_warn */
#include "base/program.h" /* uses: program_start, program_open_log, program_need_files, program_harden */
#include "front/listen.h" /* uses: listen_open, listen_is_served, listen_inherit */
#include "front/load.h"   /* uses: load_open, load_close */
#include "front/master.h" /* uses: master_run */

#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

/* Descriptors of a child beyond its clients': sockets, pipes, epoll, the memory file a head is parsed from. */
enum { FILES_MORE = 32 };

/* Buffers of long prompts are mapped, so they go back when freed; in arenas of threads malloc_trim would leave most of them.
 * Set, the threshold stays; otherwise it grows with what was freed. */
enum { MAPPED_BYTES = 64 << 10 };

int main(int argc, char **argv)
{
	static const struct program program = {
		.name = "penstock-front",
		.summary = "The FastCGI fronts of penstock: HTTP, JSON, keys and text on one side, token ids on the other.",
		.default_conf = PENSTOCK_CONF,
		.version = VERSION,
		.takes_listen_fd = true,
	};
	struct conf                 conf;
	struct load                 load = { 0 };
	struct error                error = { 0 };
	char                        path[CONF_TEXT_MAX + 16];
	int                         listen_fd = -1;
	enum status                 status;

	mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
	switch (program_start(&program, argc, argv, &conf, &listen_fd)) {
	case PROGRAM_DONE:
		return EXIT_SUCCESS;
	case PROGRAM_FAILED:
		return EXIT_FAILURE;
	case PROGRAM_RUN:
		break;
	}
	program_harden();
	status = program_open_log(&program, &conf, &error);
	if (!status)
		status = program_need_files((uint64_t)conf.front_streams_per_front + FILES_MORE, "front.streams_per_front", &error);
	if (!status)
		status = load_open(&conf, &load, &error);
	if (!status && listen_fd >= 0) {
		status = listen_inherit(listen_fd, &error);
	} else if (!status) {
		conf_front_socket(&conf, path, sizeof path);
		if (listen_is_served(path))
			log_warn("another process listens on %s: from now on connections come here; end the other one", path);
		status = listen_open(path, (int)conf.front_backlog, &listen_fd, &error);
	}
	if (!status) {
		malloc_trim(0); /* what loading left behind would be copied by every child that allocates into it */
		status = master_run(&(struct master_options){ &conf, &load, listen_fd, argv }, &error);
	}
	if (status)
		log_error("%s", error.message);
	load_close(&load);
	return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
