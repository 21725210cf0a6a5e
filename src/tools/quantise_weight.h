/* quantise_weight.h: one matrix of a linear layer, rounded to nearest to the formats that quantised checkpoints have
 * (model/quant.h lists their tensors).
 *
 *      f32 f16 bf16   X.weight                                            as it is, or rounded
 *      int4           X.weight_packed X.weight_scale X.weight_shape       groups of inputs; scale bfloat16 = largest / 7.5
 *      int4, asymmetric  the same, X.weight_zero_point                    scale = (largest − smallest) / 15
 *      gptq           X.qweight X.qzeros X.scales X.g_idx                 the same as int4, scales float16
 *      awq            X.qweight X.qzeros X.scales                         the same as int4 asymmetric, scales float16
 *      int8           X.weight X.weight_scale                             a scale per output, float32 = largest / 127
 *      fp8            X.weight X.weight_scale                             a scale per output, float32 = largest / 448
 *      fp8-block      X.weight X.weight_scale_inv                         a scale for 128 × 128, the last ones for the rest
 */
#ifndef PENSTOCK_TOOLS_QUANTISE_WEIGHT_H
#define PENSTOCK_TOOLS_QUANTISE_WEIGHT_H

#include "file/safetensors.h"
#include "model/backend.h"

#include <stdbool.h>

enum quantise_format { QUANTISE_F32, QUANTISE_F16, QUANTISE_BF16, QUANTISE_INT4, QUANTISE_GPTQ, QUANTISE_AWQ, QUANTISE_INT8,
	QUANTISE_FP8, QUANTISE_FP8_BLOCK, QUANTISE_FORMATS };
enum { QUANTISE_PARTS_MAX = 4, QUANTISE_BLOCK = 128 };

struct quantise_kind {
	enum quantise_format format;
	uint32_t             group; /* inputs that share a scale, of four-bit formats */
	bool                 asymmetric;
};

const char *quantise_format_name(enum quantise_format format);
bool        quantise_format_by_name(const char *name, enum quantise_format *ret);
bool        quantise_is_four_bit(enum quantise_format format);

/* A tensor of a layer in its new format; DATA and BYTES once it was rounded. */
struct quantise_part {
	const char            *suffix; /* ".weight" */
	enum safetensors_dtype dtype;
	unsigned               n_dims;
	uint64_t               dims[2];
	void                  *data; /* owned */
	size_t                 bytes;
};

/* What the tensors of ROWS × COLUMNS will be; *ret_count of them.  STATUS_UNSUPPORTED, naming NAME, where the format does not
 * divide it. */
enum status quantise_plan(const struct quantise_kind *kind, const char *name, uint64_t rows, uint64_t columns,
    struct quantise_part ret[QUANTISE_PARTS_MAX], unsigned *ret_count, struct error *error);

/* Makes the data of PARTS, as planned, of W.  PAIRS: rows of each PAIRS have those of two halves side by side, as llama's
 * GGUF files have them, and are taken apart; 0: they stay.  STATUS_INVALID where a value is not finite. */
enum status quantise_weight(const struct quantise_kind *kind, const struct weight_desc *w, uint32_t pairs,
    struct quantise_part parts[QUANTISE_PARTS_MAX], unsigned count, struct error *error);
void        quantise_free(struct quantise_part parts[QUANTISE_PARTS_MAX]);

#endif
