/* eval_stats.c: owns the arithmetic of perplexity, KL divergence and agreement.  Does not own logits.  Invariant: two equal
 * rows of logits have a divergence of exactly 0. */
#include "tools/eval_stats.h"

#include <math.h>

uint32_t eval_best(const float *logits, uint32_t vocab)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* Of finite numbers: their difference is not NaN. */
static bool all_finite(const float *logits, uint32_t vocab)
{
	float sum = 0;

	for (uint32_t i = 0; i < vocab; i++)
		sum += logits[i] - logits[i];
	return sum == 0;
}

bool eval_position(const float *logits, const float *base, uint32_t vocab, uint32_t target, struct eval_position *ret)
{
	struct eval_position position = { 0 };
	double               sum = 0, base_sum = 0, weighted = 0, largest, base_largest, log_sum, base_log_sum;
	uint32_t             best, base_best;

	if (!all_finite(logits, vocab) || (base && !all_finite(base, vocab)))
		return false;
	best = eval_best(logits, vocab);
	largest = (double)logits[best];
	for (uint32_t i = 0; i < vocab; i++)
		sum += exp((double)logits[i] - largest);
	log_sum = largest + log(sum);
	position.nll = log_sum - (double)logits[target];
	if (base) {
		base_best = eval_best(base, vocab);
		base_largest = (double)base[base_best];
		for (uint32_t i = 0; i < vocab; i++) {
			double e = exp((double)base[i] - base_largest);

			base_sum += e;
			weighted += e * ((double)base[i] - (double)logits[i]);
		}
		base_log_sum = base_largest + log(base_sum);
		position.base_nll = base_log_sum - (double)base[target];
		position.kl = weighted / base_sum - (base_log_sum - log_sum);
		position.agree = best == base_best;
	}
	*ret = position;
	return true;
}

void eval_sums_add(struct eval_sums *sums, const struct eval_position *position)
{
	double change = position->nll - position->base_nll;

	sums->count++;
	sums->agree += position->agree;
	sums->nll += position->nll;
	sums->nll2 += position->nll * position->nll;
	sums->base += position->base_nll;
	sums->base2 += position->base_nll * position->base_nll;
	sums->change += change;
	sums->change2 += change * change;
	sums->kl += position->kl;
	sums->kl2 += position->kl * position->kl;
	sums->kl_max = position->kl > sums->kl_max ? position->kl : sums->kl_max;
}

/* Of COUNT values from their sum and the sum of their squares; the error of one value is 0. */
static struct eval_mean mean_of(double sum, double squares, uint64_t count)
{
	double           n = (double)count, mean = sum / n, variance = count > 1 ? (squares - n * mean * mean) / (n - 1) : 0;
	struct eval_mean ret = { mean, variance > 0 ? sqrt(variance / n) : 0 };

	return ret;
}

static struct eval_mean exponential(struct eval_mean of)
{
	struct eval_mean ret = { exp(of.mean), of.error > 0 ? exp(of.mean) * of.error : 0 }; /* infinity times 0 is none */

	return ret;
}

void eval_report(const struct eval_sums *sums, struct eval_report *ret)
{
	*ret = (struct eval_report){
		.nll = mean_of(sums->nll, sums->nll2, sums->count), .base_nll = mean_of(sums->base, sums->base2, sums->count),
		.change = mean_of(sums->change, sums->change2, sums->count), .kl = mean_of(sums->kl, sums->kl2, sums->count),
		.agree = mean_of((double)sums->agree, (double)sums->agree, sums->count), .kl_max = sums->kl_max };
	ret->perplexity = exponential(ret->nll);
	ret->base_perplexity = exponential(ret->base_nll);
	ret->ratio = exponential(ret->change);
}
