/* layout.c: owns the choice of groups and of the order of columns for weights of quantised checkpoints.  Does not own
 * how a group lies in a tile (fmt_byte.c, fmt_i4.c).  Invariant: in the order returned, columns of one group of
 * scales lie together and every group begins at a multiple of `group`. */
#include "cpu/cpu.h"

#include "base/checked.h"
#include "model/weight.h"

#include <stdlib.h>

/* Columns by group, in the file's order inside a group (GPTQ with act-order: g_idx).  The greatest common divisor of
 * the places where groups begin is *ret_group, 0 when there is but one. */
static enum status sort_columns(const struct weight_desc *w, uint32_t *order, uint64_t *ret_group, struct error *error)
{
	uint64_t  groups = w->scales.column_blocks, at = 0;
	uint32_t *next = calloc(groups, sizeof *next);

	if (!next)
		return error_set(error, STATUS_NOMEM, "%s: out of memory for %llu groups", w->name, (unsigned long long)groups);
	*ret_group = 0;
	for (uint64_t k = 0; k < w->columns; k++)
		next[weight_group_of(w, k)]++;
	for (uint64_t g = 0; g < groups; g++) {
		uint32_t count = next[g];

		if (count)
			*ret_group = checked_gcd_u64(*ret_group, at);
		next[g] = (uint32_t)at;
		at += count;
	}
	for (uint32_t k = 0; k < w->columns; k++)
		order[next[weight_group_of(w, k)]++] = k;
	free(next);
	return STATUS_OK;
}

static bool is_ascending(const uint32_t *order, uint64_t count)
{
	for (uint64_t k = 0; k < count; k++)
		if (order[k] != k)
			return false;
	return true;
}

enum status cpu_layout_choose(const struct weight_desc *w, struct format_layout *ret, uint32_t **ret_order,
    struct error *error)
{
	struct format_layout layout = { .columns = cpu_input_padded((uint32_t)w->columns), .scale_type = w->scales.type,
		.zeros = w->zeros.packing != WEIGHT_ZEROS_NONE };
	uint32_t            *order = NULL;
	uint64_t             group = 0;
	enum status          status;

	if (w->group_index) {
		order = malloc(w->columns * sizeof *order);
		if (!order)
			return error_set(error, STATUS_NOMEM, "%s: out of memory for the order of its columns", w->name);
		status = sort_columns(w, order, &group, error);
		if (status) {
			free(order);
			return status;
		}
		if (is_ascending(order, w->columns)) {
			free(order);
			order = NULL;
		}
	} else if (w->scales.data && weight_group_of(w, 0) != weight_group_of(w, w->columns - 1)) {
		group = checked_gcd_u64(w->scales.block_columns, w->first_column);
	}
	if (group == 0)
		group = layout.columns;
	layout.group = group % FORMAT_GROUP_MAX ? 0 : (uint32_t)(group > layout.columns ? layout.columns : group);
	*ret_order = order;
	*ret = layout;
	return STATUS_OK;
}
