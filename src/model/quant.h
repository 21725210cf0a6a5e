/* quant.h: the tensors of one linear layer of a checkpoint, quantised or not, as one weight_desc.
 *
 * The tensors that are there decide, not lists of layers in the configuration: a layer may be float in a quantised
 * checkpoint, or of another precision than its neighbours.  For a weight "X.weight" of N outputs and K inputs:
 *
 *      X.weight           F32 F16 BF16      [N, K]
 *      X.weight           F8_E4M3           [N, K]        X.weight_scale_inv or X.weight_scale, if any
 *      X.weight           I8                [N, K]        X.weight_scale
 *      X.weight           U8 (NVFP4)        [N, K / 2]    X.weight_scale in F8_E4M3, X.weight_scale_2
 *      X.weight_packed    U8 (the same)     [N, K / 2]    X.weight_scale in F8_E4M3, X.weight_global_scale, which divides
 *      X.qweight          AWQ               [K, N / 8]    X.scales X.qzeros
 *      X.qweight          GPTQ              [K / 8, N]    X.scales X.qzeros X.g_idx
 *      X.weight_packed    compressed-tensors [N, K / 8]  X.weight_scale X.weight_zero_point X.weight_g_idx
 *                                                        X.weight_shape
 *
 * A scale may be one for all, one for each row, for each row and some inputs, or for each block; the shape tells.
 * X.input_scale or X.activation_scale may be beside any.  quantization_config adds what tensors cannot say: how many
 * inputs share a scale where that does not follow from shapes, the two conventions of GPTQ's zero points, and what
 * the checkpoint asks to be done to activations. */
#ifndef PENSTOCK_MODEL_QUANT_H
#define PENSTOCK_MODEL_QUANT_H

#include "file/checkpoint.h"
#include "model/backend.h"

#include <stdbool.h>

struct hf_config;

struct quant {
	uint32_t          block_rows, block_columns; /* of float8 scales; 0 = not said */
	uint32_t          group;                     /* inputs per scale of 4-bit and int8 weights; 0 = not said */
	unsigned          zero_add;                  /* to GPTQ's stored zero points */
	bool              by_block;                  /* float8 inputs are rounded by groups where weights have blocks */
	enum weight_input f8_input, i8_input, i4_input;
	bool               quantised; /* matrices of layers are WEIGHTS, if nothing but the configuration is there to tell */
	enum weight_format weights;
};

/* Reads quantization_config (absent: a struct quant that knows nothing).  ROUND_INPUTS: weights shall carry what the
 * checkpoint asks to be done to activations; STATUS_UNSUPPORTED where that is something backends do not do.  Else
 * activations stay float. */
enum status quant_read(const struct hf_config *config, bool round_inputs, struct quant *ret, struct error *error);

/* For weights that are made up: gives DESC, a matrix of a layer whose rows and columns are set, the format, the kind of scales
 * and the input that QUANT says, without values.  Leaves it as it is where QUANT knows of no quantised weights. */
void quant_describe(const struct quant *quant, struct weight_desc *desc);

/* Whether CHECKPOINT holds NAME, in any of the forms above. */
bool quant_has(const struct checkpoint *checkpoint, const char *name);

/* What a cut through the COLUMNS of NAME should be a multiple of, so that groups of scales stay whole, and what it must be,
 * because values lie in blocks.  1 and 1 for what is not there. */
void quant_units(const struct checkpoint *checkpoint, const struct quant *quant, const char *name, uint64_t columns,
    uint64_t *ret_wanted, uint64_t *ret_needed);

/* Takes all tensors of NAME, ROWS × COLUMNS (COLUMNS = 0: a vector of ROWS values).  STATUS_NOT_FOUND when there is
 * none; other errors name the tensor.  *ret points into the checkpoint and passed weight_check. */
enum status quant_take(struct checkpoint *checkpoint, const struct quant *quant, const char *name, uint64_t rows,
    uint64_t columns, struct weight_desc *ret, struct error *error);

/* The same for slice INDEX of a tensor NAME, [count, rows, columns] of floats or float8, whose scales, if any, are
 * NAME_scale_inv or NAME_scale with the same first dimension.  Its tensors are taken with INDEX 0. */
enum status quant_take_slice(struct checkpoint *checkpoint, const struct quant *quant, const char *name, uint32_t index,
    uint32_t count, uint64_t rows, uint64_t columns, struct weight_desc *ret, struct error *error);

#endif
