/* int4_choose.h: which stacks of stored weights lie on the device as slabs, and how.  Host code, without values: only the
 * index of act-order is read.  Parts were checked by weight_check. */
#ifndef PENSTOCK_GPU_INT4_CHOOSE_H
#define PENSTOCK_GPU_INT4_CHOOSE_H

#include "base/checked.h"
#include "gpu/fmt_int4.cuh"
#include "model/weight.h"

#include <stdlib.h>
#include <string.h>

/* Groups of so many columns, the largest that there is a kernel for. */
static inline uint32_t int4_group_of(uint64_t multiple)
{
	return multiple % INT4_UNIT == 0 ? INT4_UNIT : multiple % INT4_GROUP_MIN == 0 ? INT4_GROUP_MIN : 0;
}

/* Columns of W group by group, in the file's order inside one.  *ret_begins: a number that divides every column at which a group
 * begins then; 0 = there is but one group.  NULL: out of memory. */
static inline int32_t *int4_sorted_columns(const struct weight_desc *w, uint64_t *ret_begins)
{
	uint64_t  groups = w->scales.column_blocks, at = 0;
	uint64_t *next = (uint64_t *)calloc(groups, sizeof *next);
	int32_t  *order = (int32_t *)malloc(w->columns * sizeof *order);

	*ret_begins = 0;
	for (uint64_t k = 0; next && k < w->columns; k++)
		next[weight_group_of(w, k)]++;
	for (uint64_t g = 0; next && g < groups; g++) {
		uint64_t count = next[g];

		if (count)
			*ret_begins = checked_gcd_u64(*ret_begins, at);
		next[g] = at;
		at += count;
	}
	for (uint64_t k = 0; next && order && k < w->columns; k++)
		order[next[weight_group_of(w, k)]++] = (int32_t)k;
	if (!next) {
		free(order);
		order = NULL;
	}
	free(next);
	return order;
}

/* What of a slab one part asks for: scales, zeros, group, and the order of its columns, to be freed. */
static inline const char *int4_choose_part(const struct weight_desc *w, struct int4_slab *ret, int32_t **ret_order)
{
	uint64_t begins = 0;

	*ret_order = NULL;
	*ret = {};
	switch (w->format) {
	case WEIGHT_Q4_0: ret->scales = INT4_F16; ret->group = 32; return NULL;
	case WEIGHT_Q4_1: ret->scales = INT4_F16_PAIR; ret->group = 32; return NULL;
	case WEIGHT_Q4_K: ret->scales = INT4_K; ret->group = 32; return NULL;
	case WEIGHT_Q5_0:
	case WEIGHT_Q8_0: ret->scales = INT4_F16; ret->group = 32; ret->eight = 1; return NULL;
	case WEIGHT_Q5_1: ret->scales = INT4_F16_PAIR; ret->group = 32; ret->eight = 1; return NULL;
	case WEIGHT_Q5_K: ret->scales = INT4_K; ret->group = 32; ret->eight = 1; return NULL;
	case WEIGHT_Q6_K: ret->scales = INT4_SIX; ret->group = 16; ret->eight = 1; return NULL;
	case WEIGHT_I4: break;
	default: return "its format has no kernel";
	}
	if (w->scales.common > 0)
		return "its scales have a common factor";
	ret->scales = w->scales.type == WEIGHT_F16 ? INT4_F16 : w->scales.type == WEIGHT_BF16 ? INT4_BF16 : INT4_F32;
	ret->zeros = w->zeros.packing != WEIGHT_ZEROS_NONE;
	if (w->group_index && w->input != WEIGHT_INPUT_FLOAT)
		return "its inputs are rounded and reordered"; /* both use the room for rounded rows */
	if (w->group_index) {
		*ret_order = int4_sorted_columns(w, &begins);
		if (!*ret_order)
			return "there is no memory for the order of its columns";
	} else if (weight_group_of(w, 0) != weight_group_of(w, w->columns - 1)) {
		begins = checked_gcd_u64(w->scales.block_columns, w->first_column);
	}
	ret->group = int4_group_of(begins);
	return ret->group ? NULL : "its groups begin at columns that are no multiples of 32";
}

/* NULL and the slab of COUNT parts, for BLOCKS that run at once, without its memory; or why there is none.  *ret_order: [columns],
 * to be freed, or NULL. */
static inline const char *int4_choose(const struct weight_desc *parts, uint32_t count, uint32_t blocks, struct int4_slab *ret,
    int32_t **ret_order)
{
	const char *why = NULL;
	uint64_t    rows = 0;

	*ret_order = NULL;
	if (parts[0].rows == 1)
		return "it is a vector";
	for (uint32_t i = 0; i < count && !why; i++) {
		struct int4_slab part;
		int32_t         *order;

		why = int4_choose_part(&parts[i], &part, &order);
		if (!why && i > 0 && (part.scales != ret->scales || part.eight != ret->eight || !order != !*ret_order ||
		    (order && memcmp(order, *ret_order, parts[0].columns * sizeof *order) != 0)))
			why = "its parts are stored in different ways";
		if (!why && i == 0) {
			*ret = part;
			*ret_order = order;
			order = NULL;
		} else if (!why) {
			ret->group = part.group < ret->group ? part.group : ret->group;
			ret->zeros = ret->zeros || part.zeros;
		}
		free(order);
		rows += parts[i].rows;
	}
	ret->rows = (uint32_t)(rows < INT32_MAX ? rows : INT32_MAX);
	if (why || int4_panels_for(ret->rows, blocks) > INT4_PANELS_MAX) {
		free(*ret_order);
		*ret_order = NULL;
		return why ? why : "it has too many rows";
	}
	int4_divide(ret, int4_panels_for(ret->rows, blocks));
	ret->columns = (uint32_t)parts[0].columns;
	ret->half = count == 2 && parts[0].rows == parts[1].rows && parts[0].rows % INT4_TILE == 0 ? (uint32_t)parts[0].rows : 0;
	return NULL;
}

#endif
