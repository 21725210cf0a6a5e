/* checkpoint.h: the tensors of a model, whatever files they lie in: one view for the architectures.
 *
 * A checkpoint is a directory with model.safetensors, or with model.safetensors.index.json and the shards it names, or
 * one file, safetensors or GGUF (told apart by content).  Names are those of the file; shapes are in one order, the
 * contiguous dimension last, for GGUF too.
 *
 * An index and its shards must agree in both directions: every tensor of the index lies in the shard it names, every
 * tensor of a shard is in the index, and no other file of the directory looks like a shard of this model.  So a missing,
 * short, stale or stray shard is refused by name instead of giving wrong answers.
 *
 * Ledger.  The architecture takes each tensor by name exactly once; checkpoint_finish names what it did not take.  One
 * thread per handle.
 */
#ifndef PENSTOCK_FILE_CHECKPOINT_H
#define PENSTOCK_FILE_CHECKPOINT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;
struct map;

enum checkpoint_limits {
	CHECKPOINT_SHARDS_MAX = 4096,
	CHECKPOINT_DIMENSIONS_MAX = 8
};

enum checkpoint_dtype {
	CHECKPOINT_F32, CHECKPOINT_F16, CHECKPOINT_BF16, CHECKPOINT_F8_E4M3, CHECKPOINT_F8_E5M2,
	CHECKPOINT_I8, CHECKPOINT_U8, CHECKPOINT_I32, CHECKPOINT_I64,
	CHECKPOINT_Q4_0, CHECKPOINT_Q4_1, CHECKPOINT_Q5_0, CHECKPOINT_Q5_1, CHECKPOINT_Q8_0, CHECKPOINT_Q2_K, CHECKPOINT_Q3_K,
	CHECKPOINT_Q4_K, CHECKPOINT_Q5_K, CHECKPOINT_Q6_K, CHECKPOINT_IQ4_NL, CHECKPOINT_IQ4_XS,
	CHECKPOINT_DTYPE_COUNT
};

struct checkpoint_tensor {
	const char           *name;  /* terminated; owned by the handle, as all below */
	const char           *shard; /* file name, for messages */
	enum checkpoint_dtype dtype;
	unsigned              n_dims;
	uint64_t              dims[CHECKPOINT_DIMENSIONS_MAX]; /* the last one is contiguous; unused ones are 1 */
	const void           *data;                            /* mapped, at any address: read it with memcpy */
	size_t                bytes;
	const struct map     *map; /* the file that DATA lies in; NULL: none, it is only in memory */
};

struct checkpoint; /* opaque */

enum status checkpoint_open(const char *path, struct checkpoint **ret, struct error *error);
void        checkpoint_close(struct checkpoint *checkpoint);
/* The same handle for one more user: it stays open until each of them has closed it. */
struct checkpoint *checkpoint_share(struct checkpoint *checkpoint);
/* The view of a GGUF file that is already open; GGUF is borrowed. */
enum status checkpoint_from_gguf(const struct gguf *gguf, struct checkpoint **ret, struct error *error);

/* All tensors in the order of their names. */
size_t                          checkpoint_count(const struct checkpoint *checkpoint);
const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *checkpoint, size_t index);
/* Looks without taking; NULL when absent. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *checkpoint, const char *name);

/* Takes a tensor.  STATUS_NOT_FOUND when there is none of that name, STATUS_INVALID when it was taken before. */
enum status checkpoint_take(struct checkpoint *checkpoint, const char *name, const struct checkpoint_tensor **ret,
    struct error *error);
bool        checkpoint_taken(const struct checkpoint *checkpoint, size_t index);
/* STATUS_INVALID naming the first tensor that nobody took, and how many there are; STATUS_OK when there is none. */
enum status checkpoint_finish(const struct checkpoint *checkpoint, struct error *error);

/* BYTES of a tensor at DATA were copied: their pages may leave memory.  Reading them again is allowed. */
void checkpoint_release(const struct checkpoint *checkpoint, const void *data, size_t bytes);

/* STATUS_INVALID naming tensor, its shape and the one that is needed, unless they are equal. */
enum status checkpoint_check_shape(const struct checkpoint_tensor *tensor, const uint64_t *dims, unsigned n_dims,
    struct error *error);

/* The GGUF file behind the view, for its metadata; NULL when it is safetensors. */
const struct gguf *checkpoint_gguf(const struct checkpoint *checkpoint);

const char *checkpoint_dtype_name(enum checkpoint_dtype dtype); /* "BF16", "Q4_K" */

#endif
