/* output_reader.h: an answer as a client puts it together from what is ready, piece by piece. */
#ifndef PENSTOCK_TESTS_OUTPUT_READER_H
#define PENSTOCK_TESTS_OUTPUT_READER_H

#include "api/answer.h"

struct output_said {
	struct buf thought, content, calls; /* calls: each "NAME ARGUMENTS\n" */
	unsigned   seen;                    /* calls whose name was read */
	size_t     arguments_at;            /* in calls: where those of the last call begin */
	bool       valid;                   /* arguments of all calls but the last one are JSON */
};

void output_said_init(struct output_said *said);
void output_said_free(struct output_said *said);
/* Takes what is ready, as a chunk of a stream would carry it.  NULL, or what is wrong with it. */
const char *output_said_take(struct output_said *said, struct answer *answer);
/* The answer has ended. */
void output_said_end(struct output_said *said);

#endif
