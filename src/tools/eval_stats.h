/* eval_stats.h: what the logits at positions of a text say, alone and beside those of a base model, and what is reported of
 * many of them.
 *
 * Standard errors are those of a mean of independent values, as llama.cpp's perplexity tool and others report them; tokens of
 * a text are not quite independent, so they are somewhat small. */
#ifndef PENSTOCK_TOOLS_EVAL_STATS_H
#define PENSTOCK_TOOLS_EVAL_STATS_H

#include <stdbool.h>
#include <stdint.h>

/* One position.  Natural logarithms; the base's, KL(base ‖ model) and AGREE (the same most likely token, the lower id among
 * equals) are 0 without a base. */
struct eval_position {
	double nll, base_nll, kl;
	bool   agree;
};
/* LOGITS and BASE (NULL: none), [vocab] each; TARGET is the token that stands there.  Log-softmax in float64 over the whole
 * vocabulary.  False when a logit is no finite number. */
bool eval_position(const float *logits, const float *base, uint32_t vocab, uint32_t target, struct eval_position *ret);

/* The first id of the largest of VOCAB ≥ 1 logits. */
uint32_t eval_best(const float *logits, uint32_t vocab);

/* Sums, and sums of squares. */
struct eval_sums {
	uint64_t count, agree;
	double   nll, nll2, base, base2, change, change2, kl, kl2, kl_max;
};
void eval_sums_add(struct eval_sums *sums, const struct eval_position *position);

/* A mean and its standard error. */
struct eval_mean {
	double mean, error;
};
struct eval_report {
	struct eval_mean nll, perplexity;             /* of the model */
	struct eval_mean base_nll, base_perplexity;
	struct eval_mean change, ratio;               /* of nll, by pairs; perplexity over that of the base */
	struct eval_mean kl, agree;                   /* agree: a share */
	double           kl_max;
};
/* COUNT ≥ 1. */
void eval_report(const struct eval_sums *sums, struct eval_report *ret);

#endif
