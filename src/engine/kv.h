/* kv.h: the block pool of the paged KV cache.  Pure: integers in, integers out, no clock, no backend.
 *
 * A sequence's table maps position / block_size to a block number.  With one KV group every group has the same number of
 * blocks and a table serves all of them.  A block is free or in one or more tables; retirement (the last step that names a
 * block has ended) is the engine's duty before it frees.
 *
 * Sharing.  Sequences with a common beginning hold the same blocks for it.  A block that only one sequence has filled is
 * never written by another: the last block of a shared beginning, if it is not full, is copied before its first write
 * (kv_table_own_last).
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

/* Makes room in TABLE (not in the pool) for TOKENS positions, so that growing up to there moves nothing. */
enum status kv_table_reserve(const struct kv_pool *pool, struct kv_table *table, uint64_t tokens);
/* Grows TABLE until it covers TOKENS positions; all or nothing.  STATUS_FULL when the pool has too few free blocks. */
enum status kv_table_grow(struct kv_pool *pool, struct kv_table *table, uint64_t tokens);
/* RET, which has no blocks, becomes a table of the blocks that cover the first TOKENS positions of TABLE: shared by both. */
enum status kv_table_share(struct kv_pool *pool, const struct kv_table *table, uint64_t tokens, struct kv_table *ret);
/* Makes the last block of TABLE its own if others hold it, too: *RET_FROM and *RET_TO are what must be copied then, equal
 * when nothing must.  STATUS_FULL when no block is free. */
enum status kv_table_own_last(struct kv_pool *pool, struct kv_table *table, int32_t *ret_from, int32_t *ret_to);
void        kv_table_free(struct kv_pool *pool, struct kv_table *table);
/* block × block_size + offset of POSITION, which must be covered. */
int32_t     kv_table_slot(const struct kv_pool *pool, const struct kv_table *table, uint64_t position);

#endif
