/* sampling.h: the arithmetic of penalties, the same for all backends: compiles as C11, as C++17 and for a device.
 *
 * A slot's table has one entry for each id; model/backend.h says what is done with it, and in which order.  Sums in float64
 * of products that are exact there come out the same whether or not a compiler contracts them. */
#ifndef PENSTOCK_MODEL_SAMPLING_H
#define PENSTOCK_MODEL_SAMPLING_H

#include "model/backend.h"

#if defined __CUDACC__
#define SAMPLING_INLINE static __host__ __device__ inline
#else
#define SAMPLING_INLINE static inline
#endif

/* Bits of an entry; the rest is the number of times that the id was drawn. */
enum { SAMPLING_PROMPT = 0x8000, SAMPLING_BIASED = 0x4000, SAMPLING_BAN = 0x2000 };

static inline int sampling_ids_fit(const int32_t *ids, uint32_t count, uint32_t vocab)
{
	for (uint32_t i = 0; i < count; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
			return 0;
	return 1;
}

/* May FROM be put into a slot of a sampler for VOCAB ids? */
static inline int sampling_slot_is_valid(const struct sample_slot *from, uint32_t vocab)
{
	if (from->bias_count > SAMPLE_BIAS_MAX || from->ban_count > SAMPLE_BANS_MAX ||
	    !sampling_ids_fit(from->prompt, from->prompt_tokens, vocab) ||
	    !sampling_ids_fit(from->drawn, from->drawn_tokens, vocab) || !sampling_ids_fit(from->bans, from->ban_count, vocab))
		return 0;
	for (uint32_t i = 0; i < from->bias_count; i++)
		if (!sampling_ids_fit(&from->bias[i].id, 1, vocab) || !(from->bias[i].add - from->bias[i].add == 0)) /* finite */
			return 0;
	return 1;
}

/* The entry once its id was drawn one more time. */
SAMPLING_INLINE uint16_t sampling_count(uint16_t entry)
{
	return (entry & SAMPLE_COUNT_MAX) < SAMPLE_COUNT_MAX ? (uint16_t)(entry + 1) : entry;
}

/* Is the id's logit changed at all?  BANS: those of min_tokens hold. */
SAMPLING_INLINE int sampling_touches(uint16_t entry, int bans)
{
	return (entry & ~SAMPLING_BAN) || (entry && bans);
}

/* The logit of an id with ENTRY.  ADD: its bias, 0 without the bit. */
SAMPLING_INLINE float sampling_adjust(float logit, uint16_t entry, float add, int bans, const struct sample_params *params)
{
	uint32_t count = entry & SAMPLE_COUNT_MAX;

	if ((entry & SAMPLING_BAN) && bans)
		return SAMPLE_BANNED;
	if (entry & SAMPLING_BIASED)
		logit += add;
	if (params->repetition != 0 && (count || (entry & SAMPLING_PROMPT)))
		logit = logit > 0 ? logit / params->repetition : logit * params->repetition;
	if (count) {
		double less = (double)logit - (double)count * (double)params->frequency;
		logit = (float)(less - (double)params->presence);
	}
	return logit > SAMPLE_LOGIT_MAX ? SAMPLE_LOGIT_MAX : logit < -SAMPLE_LOGIT_MAX ? -SAMPLE_LOGIT_MAX : logit;
}

/* The bias of ID among COUNT entries in the order of ids. */
SAMPLING_INLINE float sampling_bias(const struct sample_bias *bias, uint32_t count, int32_t id)
{
	uint32_t low = 0;

	while (count > 0) {
		uint32_t half = count / 2;

		if (bias[low + half].id == id)
			return bias[low + half].add;
		if (bias[low + half].id < id) {
			low += half + 1;
			count -= half + 1;
		} else {
			count = half;
		}
	}
	return 0;
}

/* May ID be drawn by MASK (NULL: everything)? */
SAMPLING_INLINE int sampling_allows(const uint32_t *mask, uint32_t id)
{
	return !mask || (mask[id / 32] >> id % 32 & 1);
}

#endif
