/* fault.c: owns the words about what a device was doing.  Does not own the marks (kernels store them) nor the steps' list.
 * Invariant: whatever the marks hold, the words name only what was enqueued. */
#include "gpu/fault.h"

#include <stdio.h>

static const char *const names[FAULT_KERNELS] = { "nothing", "take", "embed", "norm", "rope_kv_write", "attention",
	"attention of prompts", "attention of decodes", "silu_gate", "gelu", "pool", "rounding of inputs", "sampler slot",
	"sample", "linear", "trap" };

void fault_words(const struct fault_marks *marks, const struct fault_step steps[FAULT_STEPS], char ret[FAULT_WORDS_MAX])
{
	const struct fault_step *step = &steps[marks->step % FAULT_STEPS];
	uint32_t                 kernel = marks->begun >> 24, launch = marks->begun & 0xffffff;

	if (kernel == FAULT_NOTHING || kernel >= FAULT_KERNELS || (uint32_t)step->number != marks->step)
		snprintf(ret, FAULT_WORDS_MAX, "no kernel of a step had begun");
	else
		snprintf(ret, FAULT_WORDS_MAX,
		    "step %llu of %u rows in %u sequences, kernel %s (launch %u of the step) or a product after it",
		    (unsigned long long)step->number, step->rows, step->sequences, names[kernel], launch);
}
