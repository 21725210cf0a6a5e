/* intake.h: the intake thread: the only reader of record rings, and the sleeper of the doorbell.
 *
 * Whatever a child writes is copied, checked field by field, and only then believed.  A record that is wrong but says
 * whose it is ends that request with an error; one that does not costs the child its lane.
 */
#ifndef PENSTOCK_BATCHER_INTAKE_H
#define PENSTOCK_BATCHER_INTAKE_H

#include "base/status.h"
#include "ipc/wire.h"

#include <pthread.h>
#include <stdbool.h>

struct batcher;
struct intake_slot; /* a request on its way in; one per slot of a lane */

struct intake_slot *intake_slots_new(uint32_t count);
void                intake_slots_free(struct intake_slot *slots);

struct intake {
	struct batcher *batcher;
	pthread_t       thread;
	bool            started;
	_Atomic bool    stopping;
};

enum status intake_start(struct intake *intake, struct batcher *batcher, struct error *error);
void        intake_stop(struct intake *intake);

/* The ranges of a RESERVE.  Pure. */
bool        intake_check_reserve(const struct wire_reserve *reserve);
/* The ranges of a SUBMIT, for VOCAB ids and MAX_CONTEXT tokens.  Pure. */
enum status intake_check_submit(const struct wire_submit *submit, uint32_t vocab, uint32_t max_context);

#endif
