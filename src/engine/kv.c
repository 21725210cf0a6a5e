/* kv.c: owns which KV blocks are free.  Does not know what is in a block, who computes it, or when it may be reused:
 * the caller frees a table only after the last step that names its blocks has retired.
 *
 * Invariant: every block number 0 … total − 1 is either once on the free stack, with no holders, or in as many tables as it
 * has holders. */
#include "engine/kv.h"

#include "base/checked.h"

#include <stdlib.h>

/* A stack rather than a queue: a block that was just freed is the one most likely still warm in a cache. */
struct kv_pool {
	uint32_t total, block_size, free_count;
	int32_t  *free;    /* [total], the first free_count are free */
	uint32_t *holders; /* [total] tables a block is in */
};

enum status kv_pool_create(uint32_t blocks, uint32_t block_size, struct kv_pool **ret)
{
	struct kv_pool *pool;

	/* Slots are int32: block × block_size + offset must fit. */
	if (blocks == 0 || block_size == 0 || (uint64_t)blocks * block_size > INT32_MAX)
		return STATUS_LIMIT;
	pool = calloc(1, sizeof *pool);
	if (!pool)
		return STATUS_NOMEM;
	pool->free = malloc(blocks * sizeof *pool->free);
	pool->holders = calloc(blocks, sizeof *pool->holders);
	if (!pool->free || !pool->holders) {
		kv_pool_destroy(pool);
		return STATUS_NOMEM;
	}
	pool->total = pool->free_count = blocks;
	pool->block_size = block_size;
	for (uint32_t i = 0; i < blocks; i++) /* so that the lowest number is taken first */
		pool->free[i] = (int32_t)(blocks - 1 - i);
	*ret = pool;
	return STATUS_OK;
}

void kv_pool_destroy(struct kv_pool *pool)
{
	if (!pool)
		return;
	free(pool->free);
	free(pool->holders);
	free(pool);
}

uint32_t kv_pool_free_blocks(const struct kv_pool *pool) { return pool->free_count; }
uint32_t kv_pool_total_blocks(const struct kv_pool *pool) { return pool->total; }

uint32_t kv_pool_blocks_for(const struct kv_pool *pool, uint64_t tokens)
{
	uint64_t blocks = tokens / pool->block_size + (tokens % pool->block_size != 0);
	return blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)blocks;
}

enum status kv_table_reserve(const struct kv_pool *pool, struct kv_table *table, uint64_t tokens)
{
	uint32_t blocks = kv_pool_blocks_for(pool, tokens);
	size_t   bytes;
	int32_t *bigger;

	if (blocks <= table->capacity)
		return STATUS_OK;
	if (!checked_mul_size(blocks, sizeof *bigger, &bytes))
		return STATUS_NOMEM;
	bigger = realloc(table->blocks, bytes);
	if (!bigger)
		return STATUS_NOMEM;
	table->blocks = bigger;
	table->capacity = blocks;
	return STATUS_OK;
}

static int32_t take(struct kv_pool *pool)
{
	int32_t block = pool->free[--pool->free_count];
	pool->holders[block] = 1;
	return block;
}

static void drop(struct kv_pool *pool, int32_t block)
{
	if (--pool->holders[block] == 0)
		pool->free[pool->free_count++] = block;
}

enum status kv_table_grow(struct kv_pool *pool, struct kv_table *table, uint64_t tokens)
{
	uint32_t    need = kv_pool_blocks_for(pool, tokens);
	enum status status;

	if (need <= table->count)
		return STATUS_OK;
	if (need - table->count > pool->free_count)
		return STATUS_FULL;
	status = kv_table_reserve(pool, table, tokens);
	if (status)
		return status;
	while (table->count < need)
		table->blocks[table->count++] = take(pool);
	return STATUS_OK;
}

enum status kv_table_share(struct kv_pool *pool, const struct kv_table *table, uint64_t tokens, struct kv_table *ret)
{
	uint32_t    count = kv_pool_blocks_for(pool, tokens);
	enum status status = count > table->count ? STATUS_INVALID : kv_table_reserve(pool, ret, tokens);

	if (status)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		ret->blocks[i] = table->blocks[i];
		pool->holders[ret->blocks[i]]++;
	}
	ret->count = count;
	return STATUS_OK;
}

enum status kv_table_own_last(struct kv_pool *pool, struct kv_table *table, int32_t *ret_from, int32_t *ret_to)
{
	int32_t *last;

	*ret_from = *ret_to = -1;
	if (table->count == 0 || pool->holders[table->blocks[table->count - 1]] == 1)
		return STATUS_OK;
	if (pool->free_count == 0)
		return STATUS_FULL;
	last = &table->blocks[table->count - 1];
	*ret_from = *last;
	*last = *ret_to = take(pool);
	drop(pool, *ret_from);
	return STATUS_OK;
}

void kv_table_free(struct kv_pool *pool, struct kv_table *table)
{
	while (table->count > 0) /* backwards: a sequence that grows into them again gets them in order */
		drop(pool, table->blocks[--table->count]);
	free(table->blocks);
	*table = (struct kv_table){ 0 };
}

int32_t kv_table_slot(const struct kv_pool *pool, const struct kv_table *table, uint64_t position)
{
	return table->blocks[position / pool->block_size] * (int32_t)pool->block_size + (int32_t)(position % pool->block_size);
}
