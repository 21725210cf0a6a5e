/* sample_slots.c: owns the slots' tables, what they do to a row's logits, and log probabilities.  Does not own the draw
 * (sampler.c).  Invariant: a table says what its slot was set to and what was drawn since, nothing else; logits themselves
 * are never written. */
#include "cpu/cpu.h"

#include "model/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint16_t *table_of(const struct cpu_backend *cpu, uint32_t slot)
{
	return cpu->scratch.counts + (size_t)slot * cpu->scratch.limits.vocab;
}

static int compare_bias(const void *a, const void *b)
{
	const struct sample_bias *x = a, *y = b;
	return (x->id > y->id) - (x->id < y->id);
}

enum status cpu_sample_slot(struct backend *b, uint32_t slot, const struct sample_slot *from)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	uint32_t            vocab = cpu->scratch.limits.vocab;
	struct cpu_slot    *to;
	uint16_t           *table;

	if (slot >= cpu->scratch.limits.logit_rows || !sampling_slot_is_valid(from, vocab))
		return STATUS_INVALID;
	to = &cpu->scratch.slots[slot];
	table = table_of(cpu, slot);
	memset(table, 0, vocab * sizeof *table);
	for (uint32_t i = 0; i < from->prompt_tokens; i++)
		table[from->prompt[i]] = SAMPLING_PROMPT;
	for (uint32_t i = 0; i < from->drawn_tokens; i++)
		table[from->drawn[i]] = sampling_count(table[from->drawn[i]]);
	for (uint32_t i = 0; i < from->ban_count; i++)
		table[from->bans[i]] |= SAMPLING_BAN;
	for (uint32_t i = 0; i < from->bias_count; i++)
		table[from->bias[i].id] |= SAMPLING_BIASED;
	to->bias_count = from->bias_count;
	if (from->bias_count)
		memcpy(to->bias, from->bias, from->bias_count * sizeof *to->bias);
	qsort(to->bias, to->bias_count, sizeof *to->bias, compare_bias);
	return STATUS_OK;
}

enum { TABLE_BLOCK = 32 };

/* Most entries are zero, and so are most blocks of them. */
static bool block_is_zero(const uint16_t entries[TABLE_BLOCK])
{
	uint64_t words[TABLE_BLOCK / 4];

	memcpy(words, entries, sizeof words);
	return !(words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]);
}

static void adjust_by_table(const float *logits, uint32_t count, const struct sample_row *row, const struct cpu_slot *slot,
    const uint16_t *table, float *ret)
{
	bool bans = row->generated < row->params.min_tokens;

	memcpy(ret, logits, count * sizeof *ret);
	for (uint32_t first = 0; first < count; first += TABLE_BLOCK) {
		uint32_t end = first + TABLE_BLOCK < count ? first + TABLE_BLOCK : count;

		if (end - first == TABLE_BLOCK && block_is_zero(table + first))
			continue;
		for (uint32_t i = first; i < end; i++)
			if (sampling_touches(table[i], bans))
				ret[i] = sampling_adjust(logits[i], table[i],
				    table[i] & SAMPLING_BIASED ? sampling_bias(slot->bias, slot->bias_count, (int32_t)i) : 0, bans,
				    &row->params);
	}
	/* Guesses are few: their entries are looked at again, as if they had been drawn. */
	for (uint32_t g = 0; g < row->guess_count; g++) {
		uint32_t id = (uint32_t)row->guesses[g];
		uint16_t entry;

		if (id >= count)
			continue;
		entry = table[id];
		for (uint32_t i = 0; i < row->guess_count; i++)
			if (row->guesses[i] == row->guesses[g])
				entry = sampling_count(entry);
		ret[id] = sampling_adjust(logits[id], entry,
		    entry & SAMPLING_BIASED ? sampling_bias(slot->bias, slot->bias_count, (int32_t)id) : 0, bans, &row->params);
	}
}

void cpu_sample_adjust(const struct cpu_backend *cpu, const float *logits, uint32_t count, const struct sample_row *row, float *ret)
{
	if (row->slot)
		adjust_by_table(logits, count, row, &cpu->scratch.slots[row->slot - 1], table_of(cpu, row->slot - 1), ret);
	else
		memcpy(ret, logits, count * sizeof *ret);
	if (!row->mask)
		return;
	for (uint32_t first = 0; first < count; first += 32) {
		uint32_t end = first + 32 < count ? first + 32 : count;

		if (row->mask[first / 32] == UINT32_MAX)
			continue;
		for (uint32_t i = first; i < end; i++)
			if (!sampling_allows(row->mask, i))
				ret[i] = SAMPLE_BANNED;
	}
}

void cpu_sample_note(struct cpu_backend *cpu, uint32_t slot, int32_t id)
{
	uint16_t *entry = &table_of(cpu, slot)[id];
	*entry = sampling_count(*entry);
}

/* The K largest logits of RET->top in order, by insertion: few are larger than the least of those that are kept. */
static void find_top(const float *logits, uint32_t count, uint32_t k, struct sample_logprobs *ret)
{
	float least = -INFINITY;

	ret->count = 0;
	for (uint32_t i = 0; i < count && k > 0; i++) {
		uint32_t at;

		if (ret->count == k && logits[i] <= least)
			continue;
		at = ret->count < k ? ret->count++ : k - 1;
		for (; at > 0 && ret->top[at - 1].logprob < logits[i]; at--)
			ret->top[at] = ret->top[at - 1];
		ret->top[at].id = (int32_t)i;
		ret->top[at].logprob = logits[i];
		least = ret->top[ret->count - 1].logprob;
	}
}

void cpu_sample_logprobs(const struct cpu_kernels *kernels, const float *logits, uint32_t count, float max, uint32_t k,
    float *weights, int32_t drawn, struct sample_logprobs *ret)
{
	double sum[4] = { 0 }, log_sum;

	kernels->weights(logits, count, max, 1, weights);
	for (uint32_t i = 0; i < count; i++)
		sum[i % 4] += (double)weights[i];
	log_sum = (double)max + log((sum[0] + sum[2]) + (sum[1] + sum[3]));
	find_top(logits, count, k, ret);
	for (uint32_t i = 0; i < ret->count; i++)
		ret->top[i].logprob = (float)((double)ret->top[i].logprob - log_sum);
	ret->drawn = (float)((double)logits[drawn] - log_sum);
}

enum status cpu_read_logprobs(struct backend *b, uint32_t index, struct sample_logprobs *ret)
{
	struct cpu_backend           *cpu = (struct cpu_backend *)b;
	uint32_t                      part = (uint32_t)((cpu->waited + BACKEND_SAMPLES_MAX - 1) % BACKEND_SAMPLES_MAX);
	const struct sample_logprobs *from = &cpu->scratch.logprobs[(size_t)part * cpu->scratch.limits.logit_rows + index];

	if (cpu->waited == 0 || index >= cpu->sampled[part] || from->count > SAMPLE_TOP_MAX)
		return STATUS_INVALID;
	*ret = *from;
	return STATUS_OK;
}
