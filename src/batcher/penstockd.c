/* penstockd.c: main: command line, log, the order of start and end.  Everything else is in the threads (batcher.h). */
#include "base/conf.h"
#include "base/log.h"
#include "base/program.h"
#include "batcher/batcher.h"
#include "batcher/intake.h"
#include "batcher/server.h"
#include "batcher/service.h"
#include "batcher/stepper.h"
#include "config.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* Descriptors: four per child (its lane, two ends of a pipe, its connection), and what else there is: tools, children that
 * knock, files, threads. */
enum { FILES_PER_CHILD = 4, FILES_MORE = 128 };

static int fail(struct batcher *batcher, const char *what, const struct error *error)
{
	log_error("%s%s", what, error->message);
	service_notify("STATUS=%s%s", what, error->message);
	batcher_close(batcher);
	free(batcher);
	return EXIT_FAILURE;
}

/* Ends the threads in the order in which they stop needing each other. */
static int finish(struct batcher *batcher, struct intake *intake, struct stepper *stepper, enum server_end end)
{
	if (end == SERVER_STUCK || end == SERVER_ABANDONED) { /* names are taken away, the rest goes with the process */
		if (end == SERVER_STUCK)
			log_error("a step does not end: leaving without it");
		batcher_unlink(batcher);
		_exit(end == SERVER_STUCK ? EXIT_FAILURE : EXIT_SUCCESS);
	}
	stepper_join(stepper);
	intake_stop(intake);
	notifier_stop(&batcher->notifier);
	if (end == SERVER_FAILED)
		return fail(batcher, "", &batcher->failure);
	log_info("stopped");
	batcher_close(batcher);
	free(batcher);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	static const struct program program = {
		.name = "penstockd",
		.summary = "Serves a language model to penstock-front through shared memory.",
		.default_conf = PENSTOCK_CONF,
		.version = PACKAGE_VERSION,
		.loads_model = true,
	};
	struct conf         conf;
	struct error        error;
	struct batcher     *batcher;
	struct intake       intake = { .started = false };
	struct stepper      stepper = { .started = false };
	enum server_end     end = SERVER_FAILED;
	enum program_action action = program_start(&program, argc, argv, &conf, NULL);

	if (action != PROGRAM_RUN)
		return action == PROGRAM_DONE ? EXIT_SUCCESS : EXIT_FAILURE;
	program_harden();
	if (program_open_log(&program, &conf, &error) ||
	    program_need_files((uint64_t)conf_children(&conf) * FILES_PER_CHILD + FILES_MORE, "the children of front.children",
	        &error)) {
		log_error("%s", error.message);
		return EXIT_FAILURE;
	}
	signal(SIGPIPE, SIG_IGN);
	server_block_signals();
	batcher = calloc(1, sizeof *batcher);
	if (!batcher) {
		log_error("no memory to start");
		return EXIT_FAILURE;
	}
	log_info("penstockd " PACKAGE_VERSION ", instance %s", conf.service_instance);
	if (batcher_open(batcher, &conf, &error))
		return fail(batcher, "", &error);
	if (notifier_start(&batcher->notifier, &batcher->lanes, &batcher->metrics, &error) ||
	    intake_start(&intake, batcher, &error) || stepper_start(&stepper, batcher, BACKEND_OBJECTS, &error) ||
	    server_run(batcher, &end, &error)) {
		/* Some threads run and others do not: the process is not worth a tidy end. */
		log_error("%s", error.message);
		_exit(EXIT_FAILURE);
	}
	return finish(batcher, &intake, &stepper, end);
}
