/* kv.h: the block pool of the paged KV cache.  Pure: integers in, integers out, no clock, no backend.
 *
 * A sequence's table maps position / block_size to a block number.  With one KV group every group has the same number of
 * blocks and a table serves all of them.  A block is free or owned; retirement (the last step that names a block has
 * ended) is the engine's duty before it frees.
 */
#ifndef PENSTOCK_ENGINE_KV_H
#define PENSTOCK_ENGINE_KV_H

#include "base/status.h"

#include <stdint.h>

struct kv_pool; /* opaque */

struct kv_table {
	int32_t *blocks; /* owned; kv_table_free returns them */
	uint32_t count, capacity;
};

enum status kv_pool_create(uint32_t blocks, uint32_t block_size, struct kv_pool **ret);
void        kv_pool_destroy(struct kv_pool *pool);
uint32_t    kv_pool_free_blocks(const struct kv_pool *pool);
uint32_t    kv_pool_total_blocks(const struct kv_pool *pool);
uint32_t    kv_pool_blocks_for(const struct kv_pool *pool, uint64_t tokens);

/* Grows TABLE until it covers TOKENS positions; all or nothing.  STATUS_FULL when the pool has too few free blocks. */
enum status kv_table_grow(struct kv_pool *pool, struct kv_table *table, uint64_t tokens);
void        kv_table_free(struct kv_pool *pool, struct kv_table *table);
/* block × block_size + offset of POSITION, which must be covered. */
int32_t     kv_table_slot(const struct kv_pool *pool, const struct kv_table *table, uint64_t position);

#endif
