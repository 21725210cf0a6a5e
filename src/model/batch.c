/* batch.c: owns the check of a step's input.  Does not own the input.  Invariant: what passes names no row, block or slot
 * that does not exist. */
#include "model/batch.h"

static bool sequence_is_valid(const struct batch *batch, const struct batch_sequence *sequence, uint32_t next_row,
    const struct kv_group_desc *const groups[BACKEND_KV_GROUPS_MAX])
{
	if (sequence->first_row < next_row || sequence->first_row > batch->rows ||
	    sequence->rows > batch->rows - sequence->first_row || sequence->rows < 1 || sequence->context < sequence->rows ||
	    sequence->context > INT32_MAX)
		return false;
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		if (!groups[g])
			continue;
		if ((uint64_t)sequence->blocks * groups[g]->block_size < sequence->context)
			return false;
		for (uint32_t i = 0; i < (sequence->context + groups[g]->block_size - 1) / groups[g]->block_size; i++)
			if ((uint32_t)sequence->block_table[g][i] >= groups[g]->blocks)
				return false;
	}
	return true;
}

bool batch_is_valid(const struct batch *batch, const struct backend_limits *limits,
    const struct kv_group_desc *const groups[BACKEND_KV_GROUPS_MAX])
{
	uint32_t next_row = 0;

	if (batch->rows > limits->rows || batch->logit_row_count > limits->logit_rows)
		return false;
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		if (!sequence_is_valid(batch, &batch->sequences[s], next_row, groups))
			return false;
		next_row = batch->sequences[s].first_row + batch->sequences[s].rows;
	}
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		int64_t slots = groups[g] ? (int64_t)groups[g]->blocks * groups[g]->block_size : 0;

		for (uint32_t row = 0; groups[g] && row < batch->rows; row++)
			if (batch->kv_slots[g][row] < -1 || batch->kv_slots[g][row] >= slots)
				return false;
	}
	for (uint32_t i = 0; i < batch->logit_row_count; i++)
		if ((uint32_t)batch->logit_rows[i] >= batch->rows)
			return false;
	return true;
}
