/* penstockd.c: main: command line, log, the order of start and end.  Everything else is in the threads (batcher.h). */
#include "base/log.h"
#include "base/program.h"
#include "batcher/batcher.h"
#include "batcher/intake.h"
#include "batcher/server.h"
#include "batcher/service.h"
#include "batcher/stepper.h"
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum log_level log_level(const char *word)
{
	return !strcmp(word, "error")  ? LOG_LEVEL_ERROR
	    : !strcmp(word, "warn")    ? LOG_LEVEL_WARN
	    : !strcmp(word, "debug")   ? LOG_LEVEL_DEBUG
	                               : LOG_LEVEL_INFO;
}

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
	log_init("penstockd", log_level(conf.service_log_level));
	if (*conf.service_log_file && log_open(conf.service_log_file, &error)) {
		log_error("%s", error.message);
		return EXIT_FAILURE;
	}
	service_prepare();
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
