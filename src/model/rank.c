/* rank.c: owns the division of a model's sizes among the ranks of tensor parallelism.  Does not own the cutting of tensors
 * (load.c) nor the sums over ranks (backend).
 *
 *      heads        a KV head and its group of query heads go to one rank; where ranks outnumber the KV heads, several
 *                   have the same one, each with its own share of the group
 *      FFN          its columns, in units that keep blocks and groups of scales whole; so those of an expert that all tokens
 *                   go through
 *      experts      whole ones, as equally as it goes
 *      vocabulary   rows of the output matrix, ceil(vocab / ranks) each but for the last
 *
 * Parts need not be equal: three KV heads on two ranks are two and one.  Rank 0 has the largest, so memory is planned there.
 * Invariant: the parts of all ranks, put end to end, are the whole, each once, but for KV heads that several have. */
#include "model/arch.h"

#include "base/checked.h"

#include <inttypes.h>
#include <string.h>

enum { TILE = 32 /* columns kernels like to see together */ };

/* Part RANK of COUNT things that come in units of UNIT; false when there are fewer units than RANKS. */
static bool share(uint32_t count, uint64_t unit, uint32_t rank, uint32_t ranks, uint32_t *ret_first, uint32_t *ret_count)
{
	uint64_t units = count / unit + (count % unit != 0);
	uint64_t from = (units * rank + ranks - 1) / ranks * unit, to = (units * (rank + 1) + ranks - 1) / ranks * unit;

	if (units < ranks)
		return false;
	*ret_first = (uint32_t)from;
	*ret_count = (uint32_t)((to < count ? to : count) - from);
	return true;
}

static void set_part(struct model *model, enum model_dim dim, uint32_t first, uint32_t count)
{
	model->first[dim] = first;
	model->dims[dim] = count;
}

/* KV heads, in units whose query heads are whole units of what reads them. */
static bool share_heads(struct model *model, const struct rank_units *units, uint32_t *ret_first_q, uint32_t *ret_first_kv)
{
	uint32_t rank = model->backend->rank, ranks = model->backend->ranks, kv = model->kv_heads, group = model->heads / kv;
	uint64_t columns = (uint64_t)group * (model->latent.desc.heads ? model->latent.desc.value : model->head_dim); /* of one */
	uint32_t same = ranks / kv;                           /* ranks that have the same one */

	if (kv >= ranks) {
		if (!share(kv, units->wanted / checked_gcd_u64(units->wanted, columns), rank, ranks, ret_first_kv, &model->kv_heads) &&
		    !share(kv, units->needed / checked_gcd_u64(units->needed, columns), rank, ranks, ret_first_kv, &model->kv_heads))
			return false;
		*ret_first_q = *ret_first_kv * group;
		model->heads = model->kv_heads * group;
		return true;
	}
	if (ranks % kv || group % same || columns / same % units->needed)
		return false;
	*ret_first_kv = rank / same;
	*ret_first_q = rank * (group / same);
	model->heads = group / same;
	model->kv_heads = 1;
	return true;
}

/* All that has something for each head; what the cache holds is whole on every rank. */
static void set_latent_parts(struct model *model, uint32_t first)
{
	struct latent_desc *latent = &model->latent.desc;

	latent->heads = model->heads;
	set_part(model, DIM_Q, first * (latent->nope + latent->rope), latent->heads * (latent->nope + latent->rope));
	set_part(model, DIM_LATENT_KV, first * (latent->nope + latent->value), latent->heads * (latent->nope + latent->value));
	set_part(model, DIM_VALUES, first * latent->value, latent->heads * latent->value);
	model->dims[DIM_ABSORBED_Q] = latent->heads * (latent->latent + latent->rope);
	model->dims[DIM_ABSORBED] = latent->heads * latent->latent;
}

static enum status cut_heads(struct model *model, const struct rank_units *units, struct error *error)
{
	uint32_t heads = model->heads, kv_heads = model->kv_heads, first_q = 0, first_kv = 0;
	bool     shared = share_heads(model, units, &first_q, &first_kv);

	if (!shared && units->needed > 1)
		return error_set(error, STATUS_UNSUPPORTED, "tensor %.120s: %u columns in blocks of %" PRIu64
		    ", which are %u heads over %u KV heads, cannot be shared out to %u ranks", units->name, model->whole[DIM_Q],
		    units->needed, heads, kv_heads, model->backend->ranks);
	if (!shared)
		return error_set(error, STATUS_UNSUPPORTED,
		    "%u heads over %u KV heads cannot be shared out to %u ranks: these must be no more than KV heads, or a multiple of "
		    "them that divides the heads", heads, kv_heads, model->backend->ranks);
	if (model->latent.desc.heads) {
		set_latent_parts(model, first_q);
		return STATUS_OK;
	}
	set_part(model, DIM_Q, first_q * model->head_dim, model->heads * model->head_dim);
	set_part(model, DIM_KV, first_kv * model->head_dim, model->kv_heads * model->head_dim);
	model->dims[DIM_QKV] = model->dims[DIM_Q] + 2 * model->dims[DIM_KV];
	for (uint32_t g = 0; g < model->info.kv_group_count; g++)
		model->info.kv_groups[g].kv_heads = model->kv_heads;
	return STATUS_OK;
}

static enum status cut_ffn(struct model *model, enum model_dim dim, enum model_dim twice, const struct rank_units *units,
    struct error *error)
{
	uint64_t tile = units->wanted / checked_gcd_u64(units->wanted, TILE) * TILE;
	uint32_t rank = model->backend->rank, ranks = model->backend->ranks, first = 0, count = 0;

	if (!share(model->whole[dim], tile, rank, ranks, &first, &count) &&
	    !share(model->whole[dim], units->wanted, rank, ranks, &first, &count) &&
	    !share(model->whole[dim], units->needed, rank, ranks, &first, &count))
		return error_set(error, STATUS_UNSUPPORTED, "tensor %.120s: %u columns in blocks of %" PRIu64
		    " cannot be shared out to %u ranks", units->name, model->whole[dim], units->needed, ranks);
	set_part(model, dim, first, count);
	model->dims[twice] = 2 * count;
	return STATUS_OK;
}

static enum status cut_experts(struct model *model, struct error *error)
{
	uint32_t experts = model->moe.router.experts, ranks = model->backend->ranks;

	if (experts && !share(experts, 1, model->backend->rank, ranks, &model->moe.first, &model->moe.count))
		return error_set(error, STATUS_UNSUPPORTED, "%u experts cannot be shared out to %u ranks", experts, ranks);
	return STATUS_OK;
}

static enum status cut_vocab(struct model *model, struct error *error)
{
	uint32_t vocab = model->whole[DIM_VOCAB], ranks = model->backend->ranks, each = (vocab + ranks - 1) / ranks;
	uint32_t first = each * model->backend->rank;

	if ((uint64_t)each * (ranks - 1) >= vocab)
		return error_set(error, STATUS_UNSUPPORTED, "a vocabulary of %u tokens cannot be shared out to %u ranks", vocab, ranks);
	set_part(model, DIM_VOCAB, first, vocab - first < each ? vocab - first : each);
	return STATUS_OK;
}

enum status rank_cut(struct model *model, const struct rank_units *attention, const struct rank_units *ffn,
    const struct rank_units *shared, struct error *error)
{
	const struct backend *b = model->backend;
	enum status           status;

	memcpy(model->whole, model->dims, sizeof model->whole);
	memset(model->first, 0, sizeof model->first);
	if (b->ranks <= 1)
		return STATUS_OK;
	if (!b->ops->all_reduce || b->rank >= b->ranks)
		return error_set(error, STATUS_UNSUPPORTED, "rank %u of %u: the backend %s computes alone", b->rank, b->ranks,
		    b->ops->name);
	status = cut_heads(model, attention, error);
	status = status ? status : cut_ffn(model, DIM_FFN, DIM_GATE_UP, ffn, error);
	if (!status && model->whole[DIM_SHARED])
		status = cut_ffn(model, DIM_SHARED, DIM_SHARED_GATE_UP, shared, error);
	status = status ? status : cut_experts(model, error);
	return status ? status : cut_vocab(model, error);
}
