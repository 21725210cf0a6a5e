/* fault.h: what the device was doing when it failed.
 *
 * After a fault nothing can be asked of a device any more, so it says beforehand what it begins: the first thread of a
 * kernel stores one word in host memory (a mark) and goes on without waiting.  Products of cuBLASLt have no mark: between
 * one mark and the next lies at most one of them, or two where nothing but products is launched. */
#ifndef PENSTOCK_GPU_FAULT_H
#define PENSTOCK_GPU_FAULT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAULT_STEPS = 4, FAULT_WORDS_MAX = 200 };

enum fault_kernel {
	FAULT_NOTHING, FAULT_TAKE, FAULT_EMBED, FAULT_NORM, FAULT_HEADS, FAULT_ATTENTION, FAULT_ATTENTION_PROMPTS,
	FAULT_ATTENTION_DECODES, FAULT_SILU, FAULT_GELU, FAULT_POOL, FAULT_ROUND, FAULT_SLOT, FAULT_SAMPLE, FAULT_LINEAR,
	FAULT_TRAP, FAULT_KERNELS
};

/* In host memory that the device writes. */
struct fault_marks {
	uint32_t step;  /* low bits of the number of the step that was taken last */
	uint32_t begun; /* fault_mark of the kernel that began last */
};

/* Steps that were enqueued last; number % FAULT_STEPS is the place. */
struct fault_step {
	uint64_t number;
	uint32_t rows, sequences;
};

/* LAUNCH: the how-manieth of its step, products counted. */
static inline uint32_t fault_mark(enum fault_kernel kernel, uint32_t launch)
{
	return (uint32_t)kernel << 24 | (launch < 0xffffff ? launch : 0xffffff);
}

/* "step 20 of 1 rows in 1 sequences, kernel rms_norm (launch 3 of the step) or the product after it" */
void fault_words(const struct fault_marks *marks, const struct fault_step steps[FAULT_STEPS], char ret[FAULT_WORDS_MAX]);

#ifdef __cplusplus
}
#endif
#endif
