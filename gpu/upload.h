/* upload.h: stored matrices from files to the device, at the speed of the link.
 *
 *      file ──pread──► pinned buffer ──copy──► slot on the device ──place──► the weight, as its kernels read it
 *             lanes: threads with UPLOAD_BUFFERS each        UPLOAD_SLOTS pieces
 *
 * Lanes take chunks of a matrix one after the other: each reads the next chunk into a buffer of its own that is free, and has
 * it copied to where it belongs in the piece's slot.  Whoever has the last chunk of a piece copied has the piece placed: a
 * kernel that decodes or re-packs it.  A slot is used again when its piece was placed.  So disk or page cache, link and
 * kernels work at once, on several pieces; nobody waits but for what it needs.
 *
 * The device is a table of actions, so that tests do without one.
 */
#ifndef PENSTOCK_GPU_UPLOAD_H
#define PENSTOCK_GPU_UPLOAD_H

#include "gpu/stored.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { UPLOAD_LANES_MAX = 32, UPLOAD_BUFFERS = 2, UPLOAD_SLOTS = 4 };

/* Each returns 0 or a code of its own, which ends the job and comes back from upload_matrix. */
struct upload_device {
	void *context;
	/* By any lane: returns when BUFFER of LANE may be written. */
	int (*wait)(void *context, unsigned lane, unsigned buffer);
	/* By one thread at a time, in the order that the device keeps: */
	int (*copy)(void *context, unsigned lane, unsigned buffer, uint8_t *to, size_t bytes);
	int (*open)(void *context, unsigned slot);  /* copies from now on may overwrite the slot: when its last piece was placed */
	int (*place)(void *context, unsigned slot, const struct stored_piece *piece); /* when the copies so far are done */
};

struct upload_memory {
	unsigned lanes;
	uint8_t *buffers[UPLOAD_LANES_MAX][UPLOAD_BUFFERS];
	size_t   buffer_bytes;
	uint8_t *slots[UPLOAD_SLOTS]; /* the device's */
	size_t   slot_bytes;
};

/* Of all lanes together, in nanoseconds of threads. */
struct upload_work {
	uint64_t read_ns, wait_ns; /* until bytes were there; until a buffer or slot was free */
};

struct uploader; /* opaque */

/* STATUS_NOMEM.  Starts LANES − 1 threads, or as many as the system gives; MEMORY and what it names stay the caller's. */
enum status upload_create(const struct upload_device *device, const struct upload_memory *memory, struct uploader **ret);
void        upload_free(struct uploader *u);
unsigned    upload_lanes(const struct uploader *u);

/* Brings the matrix of CUT to the device: sides to SIDES, values through the slots, or, with STRAIGHT, there as they are.
 * STACK_ROW is the row of the stack where its first one goes.  Returns when every byte was read; copies and kernels may be
 * under way.  *RET_CODE is what the device said, STATUS_INTERNAL then. */
enum status upload_matrix(struct uploader *u, const struct stored_cut *cut, uint32_t stack_row, uint8_t *sides, uint8_t *straight,
    int *ret_code, struct error *error);
/* What lanes did since it was asked last. */
struct upload_work upload_take_work(struct uploader *u);

#ifdef __cplusplus
}
#endif
#endif
