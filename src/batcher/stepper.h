/* stepper.h: the step thread: loads the model, then steps the engine until it is told to end or the backend fails.
 */
#ifndef PENSTOCK_BATCHER_STEPPER_H
#define PENSTOCK_BATCHER_STEPPER_H

#include "batcher/batcher.h"

struct stepper {
	struct batcher *batcher;
	const char     *backend_objects; /* directory of loadable backends */
	pthread_t       thread;
	bool            started;
};

/* From then on batcher.phase says how far it is; its last word is STOPPED or FAILED. */
enum status stepper_start(struct stepper *stepper, struct batcher *batcher, const char *backend_objects, struct error *error);
/* Waits for the last word. */
void stepper_join(struct stepper *stepper);

#endif
