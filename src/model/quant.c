/* quant.c: owns the step from the tensors of one linear layer to a weight_desc: which of them belong together, their
 * shapes and types.  Does not own how values are read (weight.c) nor which weights a model has (load.c).  Invariant: a
 * descriptor that was returned names every tensor of its layer that has a say in the values, and none was taken
 * twice. */
#include "model/quant.h"

#include "file/hf_config.h"
#include "model/weight.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { NAME_MAX_BYTES = 256, GROUP_MAX = 1 << 20, BLOCK_MAX = 1 << 16, DEFAULT_BLOCK = 128 };

/* ---- Configuration ---- */

/* What to do to inputs, from an object input_activations of compressed-tensors. */
static enum status read_activations(const struct hf_config *inputs, enum weight_input *ret, struct error *error)
{
	static const char *const types[] = { "float", "int", NULL };
	static const char *const strategies[] = { "token", "tensor", "group", NULL };
	unsigned    type, strategy;
	uint32_t    bits, group;
	bool        dynamic, symmetric;
	enum status status = hf_config_word_or(inputs, "type", types, 1, &type, error);

	status = status ? status : hf_config_u32_or(inputs, "num_bits", 1, 16, 8, &bits, error);
	status = status ? status : hf_config_word_or(inputs, "strategy", strategies, 1, &strategy, error);
	status = status ? status : hf_config_bool_or(inputs, "dynamic", false, &dynamic, error);
	status = status ? status : hf_config_bool_or(inputs, "symmetric", true, &symmetric, error);
	status = status ? status : hf_config_u32_or(inputs, "group_size", 1, GROUP_MAX, DEFAULT_BLOCK, &group, error);
	if (status)
		return status;
	if (bits != 8 || !symmetric || (strategy == 1 && dynamic) ||
	    (strategy == 2 && (type == 1 || group != DEFAULT_BLOCK)))
		return error_set(error, STATUS_UNSUPPORTED,
		    "%s: %sactivations of %u bits (%s, by %s, %s): activations can be rounded to symmetric float8 or int8 "
		    "by token, float8 by groups of 128, or with a fixed scale",
		    inputs->label, inputs->path, bits, types[type], strategies[strategy], dynamic ? "dynamic" : "static");
	*ret = type == 1 ? WEIGHT_INPUT_I8_TOKEN : strategy == 2 ? WEIGHT_INPUT_F8_GROUP : WEIGHT_INPUT_F8_TOKEN;
	return STATUS_OK;
}

/* What the groups of compressed-tensors' config_groups are told apart by: what their weights are. */
enum group_kind { GROUP_F8, GROUP_I8, GROUP_I4, GROUP_KINDS };

static enum status read_weights(const struct hf_config *weights, struct quant *quant, enum group_kind *ret_kind,
    uint32_t *ret_group, struct error *error)
{
	static const char *const types[] = { "float", "int", NULL };
	unsigned    type;
	uint32_t    bits, block[2] = { 0, 0 };
	int64_t     group;
	size_t      blocks;
	enum status status = hf_config_word_or(weights, "type", types, 1, &type, error);

	status = status ? status : hf_config_u32_or(weights, "num_bits", 1, 16, 8, &bits, error);
	status = status ? status : hf_config_i64_or(weights, "group_size", -1, GROUP_MAX, 0, &group, error);
	status = status ? status : hf_config_u32_list(weights, "block_structure", 1, BLOCK_MAX, block, 2, &blocks, error);
	if (status)
		return status;
	if (blocks == 2) {
		quant->block_rows = block[0];
		quant->block_columns = block[1];
	}
	*ret_group = group > 0 ? (uint32_t)group : 0;
	*ret_kind = type == 0 ? GROUP_F8 : bits == 4 ? GROUP_I4 : GROUP_I8;
	return STATUS_OK;
}

static enum status read_groups(const struct hf_config *config, bool round_inputs, struct quant *quant,
    struct error *error)
{
	static const enum weight_format formats[GROUP_KINDS] = { WEIGHT_F8_E4M3, WEIGHT_I8, WEIGHT_I4 };
	enum weight_input *const places[GROUP_KINDS] = { &quant->f8_input, &quant->i8_input, &quant->i4_input };
	bool             seen[GROUP_KINDS] = { false }, differ = false;
	uint32_t         group = 0;
	struct hf_config groups;
	enum status      status = hf_config_object(config, "config_groups", &groups, error);

	for (const char *key = NULL; !status && (key = hf_config_next_key(&groups, key)) != NULL;) {
		struct hf_config  one, weights, inputs;
		enum group_kind   kind = GROUP_F8;
		enum weight_input wanted = WEIGHT_INPUT_FLOAT;

		status = hf_config_object(&groups, key, &one, error);
		status = status ? status : hf_config_object(&one, "weights", &weights, error);
		status = status ? status : hf_config_object(&one, "input_activations", &inputs, error);
		if (status || !weights.object)
			continue;
		status = read_weights(&weights, quant, &kind, &group, error);
		differ = differ || (group && quant->group && group != quant->group);
		quant->group = group ? group : quant->group;
		if (!status && round_inputs && inputs.object)
			status = read_activations(&inputs, &wanted, error);
		if (!status && seen[kind] && *places[kind] != wanted)
			status = error_set(error, STATUS_UNSUPPORTED,
			    "%s: %s%s: groups of equal weights whose activations are to be rounded in different ways",
			    groups.label, groups.path, key);
		seen[kind] = true;
		*places[kind] = wanted;
		quant->quantised = true;
		quant->weights = formats[kind];
	}
	if (differ)
		quant->group = 0; /* shapes must tell */
	return status;
}

/* Quantisers of 4-bit integers: AWQ, GPTQ. */
static enum status read_int4(const struct hf_config *config, const char *method, struct quant *quant,
    struct error *error)
{
	static const char *const formats[] = { "gptq", "gptq_v2", NULL };
	const char *version = "gemm";
	int64_t     group = 0;
	unsigned    format = 0;
	uint32_t    bits;
	enum status status = hf_config_u32_or(config, hf_config_kind(config, "w_bit") ? "w_bit" : "bits", 1, 16, 4, &bits, error);

	if (!status && bits != 4)
		return error_set(error, STATUS_UNSUPPORTED, "%s: %sbits = %u: %s weights of 4 bits are known", config->label, config->path,
		    bits, method);
	status = status ? status : hf_config_i64_or(config, hf_config_kind(config, "q_group_size") ? "q_group_size" : "group_size", -1,
	    GROUP_MAX, 0, &group, error);
	if (!status && strcmp(method, "awq") == 0) {
		status = hf_config_string_or(config, "version", "gemm", &version, error);
		if (!status && strcasecmp(version, "gemm") != 0)
			return error_set(error, STATUS_UNSUPPORTED, "%s: %sversion = \"%.32s\": AWQ's gemm order is known",
			    config->label, config->path, version);
	} else if (!status && hf_config_kind(config, "checkpoint_format") == HF_STRING) {
		status = hf_config_word_or(config, "checkpoint_format", formats, 0, &format, error);
	}
	quant->group = group > 0 ? (uint32_t)group : 0;
	quant->zero_add = format == 0 ? 1 : 0;
	quant->quantised = true;
	quant->weights = WEIGHT_I4;
	return status;
}

static enum status read_fp8(const struct hf_config *config, bool round_inputs, struct quant *quant, struct error *error)
{
	uint32_t    block[2];
	size_t      blocks;
	enum status status = hf_config_u32_list(config, "weight_block_size", 1, BLOCK_MAX, block, 2, &blocks, error);

	if (status)
		return status;
	if (blocks == 2) {
		quant->block_rows = block[0];
		quant->block_columns = block[1];
	}
	if (round_inputs) {
		quant->f8_input = WEIGHT_INPUT_F8_TOKEN;
		quant->by_block = true;
	}
	quant->quantised = true;
	quant->weights = WEIGHT_F8_E4M3;
	return STATUS_OK;
}

enum status quant_read(const struct hf_config *config, bool round_inputs, struct quant *ret, struct error *error)
{
	struct quant     quant = { .zero_add = 1 };
	struct hf_config quantization;
	const char      *method;
	enum status      status = hf_config_quantization(config, &quantization, &method, error);

	if (status)
		return status;
	if (strcmp(method, "fp8") == 0 || strcmp(method, "fbgemm_fp8") == 0 || strcmp(method, "modelopt") == 0)
		status = read_fp8(&quantization, round_inputs, &quant, error);
	else if (strcmp(method, "awq") == 0 || strcmp(method, "gptq") == 0)
		status = read_int4(&quantization, method, &quant, error);
	else if (strcmp(method, "compressed-tensors") == 0)
		status = read_groups(&quantization, round_inputs, &quant, error);
	else if (*method)
		status = error_set(error, STATUS_UNSUPPORTED,
		    "%s: %squant_method = \"%.32s\" is not supported; fp8, fbgemm_fp8, modelopt (FP8), awq, gptq and "
		    "compressed-tensors are", quantization.label, quantization.path, method);
	if (status == STATUS_OK)
		*ret = quant;
	return status;
}

void quant_describe(const struct quant *quant, struct weight_desc *desc)
{
	if (!quant->quantised)
		return;
	desc->format = quant->weights;
	desc->scales = (struct weight_scales){ .type = WEIGHT_F32, .block_rows = 1 };
	if (desc->format == WEIGHT_I4) {
		desc->scales = (struct weight_scales){ .type = WEIGHT_F16, .block_rows = 1, .block_columns = quant->group };
		desc->input = quant->i4_input;
	} else if (desc->format == WEIGHT_I8) {
		desc->input = quant->i8_input;
	} else {
		desc->input = quant->f8_input == WEIGHT_INPUT_F8_TOKEN && quant->by_block && quant->block_columns == DEFAULT_BLOCK ?
		    WEIGHT_INPUT_F8_GROUP : quant->f8_input;
		desc->scales.block_rows = quant->block_rows ? quant->block_rows : 1;
		desc->scales.block_columns = quant->block_columns;
	}
}

/* ---- Tensors ---- */

/* The layer whose tensors are being taken. */
struct layer {
	struct checkpoint  *checkpoint;
	const struct quant *quant;
	const char         *name;        /* X.weight */
	int                 base_length; /* of X */
	uint64_t            rows, columns;
	struct error       *error;
};

/* X.SUFFIX; false when that would be too long or the layer has no such names. */
static bool sibling_name(const char *name, int base_length, const char *suffix, char ret[NAME_MAX_BYTES])
{
	int length = base_length < 0 ? -1 : snprintf(ret, NAME_MAX_BYTES, "%.*s.%s", base_length, name, suffix);
	return length >= 0 && length < NAME_MAX_BYTES;
}

/* Length of X in X.weight, −1 for other names. */
static int base_length_of(const char *name)
{
	static const char ending[] = ".weight";
	size_t            length = strlen(name), ending_length = sizeof ending - 1;

	return length > ending_length && length < NAME_MAX_BYTES && strcmp(name + length - ending_length, ending) == 0
	           ? (int)(length - ending_length) : -1;
}

static const struct checkpoint_tensor *find_sibling(const struct checkpoint *checkpoint, const char *name,
    const char *suffix)
{
	char sibling[NAME_MAX_BYTES];
	return sibling_name(name, base_length_of(name), suffix, sibling) ? checkpoint_find(checkpoint, sibling) : NULL;
}

bool quant_has(const struct checkpoint *checkpoint, const char *name)
{
	return checkpoint_find(checkpoint, name) || find_sibling(checkpoint, name, "qweight") ||
	       find_sibling(checkpoint, name, "weight_packed");
}

/* Takes X.SUFFIX; *ret is NULL when it is not there. */
static enum status take_optional(const struct layer *layer, const char *suffix, const struct checkpoint_tensor **ret)
{
	char sibling[NAME_MAX_BYTES];

	*ret = NULL;
	if (!sibling_name(layer->name, layer->base_length, suffix, sibling) || !checkpoint_find(layer->checkpoint, sibling))
		return STATUS_OK;
	return checkpoint_take(layer->checkpoint, sibling, ret, layer->error);
}

static enum status take_needed(const struct layer *layer, const char *suffix, const struct checkpoint_tensor **ret)
{
	enum status status = take_optional(layer, suffix, ret);

	if (!status && !*ret)
		status = error_set(layer->error, STATUS_INVALID, "tensor %.*s.%s is missing beside %.160s", layer->base_length,
		    layer->name, suffix, layer->name);
	return status;
}

static enum status check_type(const struct layer *layer, const struct checkpoint_tensor *tensor,
    enum checkpoint_dtype dtype)
{
	if (tensor->dtype == dtype)
		return STATUS_OK;
	return error_set(layer->error, STATUS_UNSUPPORTED, "tensor %.160s is %s, %s is needed", tensor->name,
	    checkpoint_dtype_name(tensor->dtype), checkpoint_dtype_name(dtype));
}

static enum status bad_shape(const struct layer *layer, const struct checkpoint_tensor *tensor, const char *what)
{
	return error_set(layer->error, STATUS_INVALID, "tensor %.160s has the shape [%" PRIu64 ", %" PRIu64
	    "], which is not that of %s of %" PRIu64 " × %" PRIu64 " weights", tensor->name, tensor->dims[0],
	    tensor->dims[1], what, layer->rows, layer->columns);
}

static bool float_format(enum checkpoint_dtype dtype, enum weight_format *ret)
{
	switch (dtype) {
	case CHECKPOINT_F32: *ret = WEIGHT_F32; return true;
	case CHECKPOINT_F16: *ret = WEIGHT_F16; return true;
	case CHECKPOINT_BF16: *ret = WEIGHT_BF16; return true;
	default: return false;
	}
}

/* Blocks of GGUF files. */
static bool block_format(enum checkpoint_dtype dtype, enum weight_format *ret)
{
	static const struct { enum checkpoint_dtype dtype; enum weight_format format; } blocks[] = {
		{ CHECKPOINT_Q4_0, WEIGHT_Q4_0 }, { CHECKPOINT_Q4_1, WEIGHT_Q4_1 }, { CHECKPOINT_Q5_0, WEIGHT_Q5_0 },
		{ CHECKPOINT_Q5_1, WEIGHT_Q5_1 }, { CHECKPOINT_Q8_0, WEIGHT_Q8_0 }, { CHECKPOINT_Q2_K, WEIGHT_Q2_K },
		{ CHECKPOINT_Q3_K, WEIGHT_Q3_K }, { CHECKPOINT_Q4_K, WEIGHT_Q4_K }, { CHECKPOINT_Q5_K, WEIGHT_Q5_K },
		{ CHECKPOINT_Q6_K, WEIGHT_Q6_K }, { CHECKPOINT_IQ4_NL, WEIGHT_IQ4_NL }, { CHECKPOINT_IQ4_XS, WEIGHT_IQ4_XS },
	};

	for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
		if (blocks[i].dtype == dtype) {
			*ret = blocks[i].format;
			return true;
		}
	}
	return false;
}

static uint64_t blocks_of(uint64_t length, uint64_t block) { return length / block + (length % block != 0); }

/* Inputs per scale, when COUNT scales lie along the K inputs: what the configuration says if it fits, else what the
 * shape says.  0: all; UINT64_MAX: no answer. */
static uint64_t group_of(uint64_t columns, uint64_t count, uint32_t said)
{
	if (count == 1)
		return 0;
	if (said && blocks_of(columns, said) == count)
		return said;
	return count && columns % count == 0 ? columns / count : UINT64_MAX;
}

/* Scales of X.weight, by their shape: one, one for every row, groups of inputs, or blocks. */
static enum status set_scales(const struct layer *layer, const struct checkpoint_tensor *tensor,
    struct weight_desc *desc)
{
	struct weight_scales s = { .data = tensor->data, .bytes = tensor->bytes };
	const uint64_t      *count = tensor->dims; /* 1 beyond n_dims */

	if (!float_format(tensor->dtype, &s.type))
		return error_set(layer->error, STATUS_UNSUPPORTED, "tensor %.160s is %s, scales of F32, F16 or BF16 are known",
		    tensor->name, checkpoint_dtype_name(tensor->dtype));
	s.row_blocks = count[0];
	s.column_blocks = count[1];
	if (tensor->n_dims > 2)
		return bad_shape(layer, tensor, "scales");
	if (count[0] == 1 && count[1] == 1) {
		s.block_rows = s.block_columns = 0;
	} else if (count[0] == layer->rows) {
		s.block_rows = 1;
		s.block_columns = group_of(layer->columns, count[1], layer->quant->group);
		if (s.block_columns == UINT64_MAX)
			return bad_shape(layer, tensor, "scales");
	} else {
		s.block_rows = layer->quant->block_rows ? layer->quant->block_rows : DEFAULT_BLOCK;
		s.block_columns = layer->quant->block_columns ? layer->quant->block_columns : DEFAULT_BLOCK;
		if (count[0] != blocks_of(layer->rows, s.block_rows) || count[1] != blocks_of(layer->columns, s.block_columns))
			return bad_shape(layer, tensor, "scales");
	}
	desc->scales = s;
	return STATUS_OK;
}

/* Fixed scales of inputs count only where the checkpoint's rounding of inputs is wanted, but are taken always. */
static enum status take_input(const struct layer *layer, enum weight_input input, struct weight_desc *desc)
{
	const struct checkpoint_tensor *scale = NULL, *other = NULL;
	enum weight_format              type;
	enum status                     status = take_optional(layer, "input_scale", &scale);

	status = status ? status : take_optional(layer, "activation_scale", &other);
	if (status)
		return status;
	scale = scale ? scale : other;
	desc->input = input;
	if (!scale || input == WEIGHT_INPUT_FLOAT)
		return STATUS_OK;
	if (!float_format(scale->dtype, &type) || scale->bytes != (type == WEIGHT_F32 ? 4 : 2))
		return error_set(layer->error, STATUS_UNSUPPORTED, "tensor %.160s must be one number in F32, F16 or BF16",
		    scale->name);
	weight_read_row(&(struct weight_desc){ .format = type, .rows = 1, .columns = 1, .data = scale->data }, 0,
	    &desc->input_scale);
	return STATUS_OK;
}

/* float8 and int8 have no zero points here; a tensor of nothing but zeros says so. */
static enum status take_no_zeros(const struct layer *layer)
{
	const struct checkpoint_tensor *zeros;
	enum status                     status = take_optional(layer, "weight_zero_point", &zeros);

	for (size_t i = 0; !status && zeros && i < zeros->bytes; i++)
		if (((const uint8_t *)zeros->data)[i])
			return error_set(layer->error, STATUS_UNSUPPORTED, "tensor %.160s: zero points beside 8-bit weights",
			    zeros->name);
	return status;
}

/* X.weight of one byte per value. */
static enum status take_bytes(const struct layer *layer, const struct checkpoint_tensor *tensor,
    struct weight_desc *desc)
{
	const struct checkpoint_tensor *scales;
	enum weight_input               input = layer->quant->i8_input;
	enum status                     status;

	desc->format = tensor->dtype == CHECKPOINT_I8 ? WEIGHT_I8 : WEIGHT_F8_E4M3;
	status = take_optional(layer, "weight_scale_inv", &scales);
	if (!status && !scales)
		status = desc->format == WEIGHT_I8 ? take_needed(layer, "weight_scale", &scales) :
		    take_optional(layer, "weight_scale", &scales);
	if (!status && scales)
		status = set_scales(layer, scales, desc);
	if (!status)
		status = take_no_zeros(layer);
	if (desc->format == WEIGHT_F8_E4M3) {
		input = layer->quant->f8_input;
		if (input == WEIGHT_INPUT_F8_TOKEN && layer->quant->by_block && desc->scales.block_columns == DEFAULT_BLOCK)
			input = WEIGHT_INPUT_F8_GROUP;
	}
	return status ? status : take_input(layer, input, desc);
}

/* Four-bit floats VALUES, two to a byte: a scale in e4m3 for so many inputs, and one for all. */
static enum status take_f4(const struct layer *layer, const struct checkpoint_tensor *values, const char *common_name,
    struct weight_desc *desc)
{
	const struct checkpoint_tensor *scales, *common;
	enum weight_format              type = WEIGHT_F32;
	struct weight_scales            s = { .type = WEIGHT_F8_E4M3, .block_rows = 1, .row_blocks = layer->rows };
	enum status                     status = take_needed(layer, "weight_scale", &scales);

	status = status ? status : check_type(layer, scales, CHECKPOINT_F8_E4M3);
	status = status ? status : take_needed(layer, common_name, &common);
	if (status)
		return status;
	if (values->n_dims != 2 || values->dims[0] != layer->rows || values->dims[1] != blocks_of(layer->columns, 2) ||
	    layer->columns % 2)
		return bad_shape(layer, values, "two 4-bit values per byte");
	s.block_columns = group_of(layer->columns, scales->dims[1], 16);
	if (scales->n_dims != 2 || scales->dims[0] != layer->rows || s.block_columns == UINT64_MAX)
		return bad_shape(layer, scales, "scales");
	if (!float_format(common->dtype, &type) || common->bytes != (type == WEIGHT_F32 ? 4 : 2))
		return error_set(layer->error, STATUS_UNSUPPORTED, "tensor %.160s must be one number in F32, F16 or BF16", common->name);
	weight_read_row(&(struct weight_desc){ .format = type, .rows = 1, .columns = 1, .data = common->data }, 0, &s.common);
	if (!(s.common > 0 && s.common < INFINITY))
		return error_set(layer->error, STATUS_INVALID, "tensor %.160s = %g: a positive number is needed", common->name,
		    (double)s.common);
	if (strcmp(common_name, "weight_global_scale") == 0)
		s.common = 1 / s.common;
	s.data = scales->data;
	s.bytes = scales->bytes;
	s.column_blocks = scales->dims[1];
	desc->name = values->name;
	desc->data = values->data;
	desc->map = values->map;
	desc->bytes = values->bytes;
	desc->format = WEIGHT_F4_E2M1;
	desc->scales = s;
	status = take_optional(layer, "input_global_scale", &common);
	return status ? status : take_input(layer, WEIGHT_INPUT_FLOAT, desc);
}

/* X.weight as it is. */
static enum status take_plain(const struct layer *layer, bool vector, struct weight_desc *desc)
{
	const struct checkpoint_tensor *tensor;
	uint64_t                        dims[2] = { vector ? layer->columns : layer->rows, layer->columns };
	enum status status = checkpoint_take(layer->checkpoint, layer->name, &tensor, layer->error);

	if (!status && tensor->dtype == CHECKPOINT_U8 && !vector)
		return take_f4(layer, tensor, "weight_scale_2", desc);
	if (!status)
		status = checkpoint_check_shape(tensor, dims, vector ? 1 : 2, layer->error);
	if (status)
		return status;
	desc->name = tensor->name;
	desc->data = tensor->data;
	desc->map = tensor->map;
	desc->bytes = tensor->bytes;
	if (float_format(tensor->dtype, &desc->format))
		return STATUS_OK;
	if (!vector && (tensor->dtype == CHECKPOINT_F8_E4M3 || tensor->dtype == CHECKPOINT_I8))
		return take_bytes(layer, tensor, desc);
	if (block_format(tensor->dtype, &desc->format))
		return STATUS_OK;
	return error_set(layer->error, STATUS_UNSUPPORTED, "tensor %.160s is %s, which is not a known format of a %s",
	    tensor->name, checkpoint_dtype_name(tensor->dtype), vector ? "vector" : "weight");
}

static enum status set_zeros(const struct layer *layer, const struct checkpoint_tensor *zeros,
    enum weight_zero_packing packing, struct weight_desc *desc)
{
	enum status status = zeros ? check_type(layer, zeros, CHECKPOINT_I32) : STATUS_OK;

	if (zeros && !status)
		desc->zeros = (struct weight_zeros){ .data = zeros->data, .bytes = zeros->bytes, .packing = packing,
			.add = packing == WEIGHT_ZEROS_GPTQ ? layer->quant->zero_add : 0 };
	return status;
}

/* compressed-tensors fills an index that it has no use for with −1. */
static bool index_is_unset(const struct checkpoint_tensor *index)
{
	for (size_t i = 0; i < index->bytes; i++)
		if (((const uint8_t *)index->data)[i] != 0xff)
			return false;
	return true;
}

/* g_idx, left out where it says no more than the group size. */
static enum status set_index(const struct layer *layer, const struct checkpoint_tensor *index, struct weight_desc *desc)
{
	bool        needed = false;
	enum status status;

	if (!index)
		return STATUS_OK;
	status = check_type(layer, index, CHECKPOINT_I32);
	if (status)
		return status;
	if (index->n_dims != 1 || index->dims[0] != layer->columns)
		return bad_shape(layer, index, "the groups");
	if (desc->packing == WEIGHT_PACKED_COLUMNS && index_is_unset(index))
		return STATUS_OK;
	for (uint64_t k = 0; k < layer->columns && !needed; k++) {
		int32_t group;
		memcpy(&group, (const uint8_t *)index->data + 4 * k, 4);
		needed = group < 0 || (uint64_t)group != (desc->scales.block_columns ? k / desc->scales.block_columns : 0);
	}
	desc->group_index = needed ? index->data : NULL;
	return STATUS_OK;
}

/* Scales [G, N] of AWQ and GPTQ. */
static enum status set_group_scales(const struct layer *layer, const struct checkpoint_tensor *scales, bool by_index,
    struct weight_desc *desc)
{
	struct weight_scales s = { .data = scales->data, .bytes = scales->bytes, .block_rows = 1, .row_blocks = layer->rows,
		.column_blocks = scales->dims[0], .transposed = 1 };

	if (!float_format(scales->dtype, &s.type))
		return error_set(layer->error, STATUS_UNSUPPORTED, "tensor %.160s is %s, scales of F32, F16 or BF16 are known",
		    scales->name, checkpoint_dtype_name(scales->dtype));
	s.block_columns = group_of(layer->columns, scales->dims[0], layer->quant->group);
	if (s.block_columns == UINT64_MAX && by_index)
		s.block_columns = 0;
	if (scales->n_dims != 2 || scales->dims[1] != layer->rows || s.block_columns == UINT64_MAX || scales->dims[0] < 1)
		return bad_shape(layer, scales, "scales");
	desc->scales = s;
	return STATUS_OK;
}

/* X.qweight: AWQ or GPTQ, by its shape. */
static enum status take_qweight(const struct layer *layer, struct weight_desc *desc)
{
	const struct checkpoint_tensor *values, *scales, *zeros, *index = NULL;
	bool                            awq;
	enum status                     status = take_needed(layer, "qweight", &values);

	status = status ? status : check_type(layer, values, CHECKPOINT_I32);
	status = status ? status : take_needed(layer, "scales", &scales);
	status = status ? status : take_optional(layer, "qzeros", &zeros);
	if (status)
		return status;
	awq = values->dims[0] == layer->columns && values->dims[1] == layer->rows / 8;
	if (values->n_dims != 2 ||
	    (!awq && (values->dims[0] != blocks_of(layer->columns, 8) || values->dims[1] != layer->rows)))
		return bad_shape(layer, values, "eight 4-bit values per word");
	desc->name = values->name;
	desc->data = values->data;
	desc->map = values->map;
	desc->bytes = values->bytes;
	desc->format = WEIGHT_I4;
	desc->packing = awq ? WEIGHT_PACKED_AWQ : WEIGHT_PACKED_GPTQ;
	status = awq ? STATUS_OK : take_optional(layer, "g_idx", &index);
	status = status ? status : set_group_scales(layer, scales, index != NULL, desc);
	status = status ? status : set_zeros(layer, zeros, awq ? WEIGHT_ZEROS_AWQ : WEIGHT_ZEROS_GPTQ, desc);
	status = status ? status : set_index(layer, index, desc);
	return status ? status : take_input(layer, layer->quant->i4_input, desc);
}

/* X.weight_shape must say what the model expects. */
static enum status check_stored_shape(const struct layer *layer, const struct checkpoint_tensor *shape)
{
	uint64_t said[2] = { 0, 0 };

	if (!shape)
		return STATUS_OK;
	if (shape->bytes == 16 && shape->dtype == CHECKPOINT_I64) {
		memcpy(said, shape->data, sizeof said);
	} else if (shape->bytes == 8 && shape->dtype == CHECKPOINT_I32) {
		uint32_t narrow[2];
		memcpy(narrow, shape->data, sizeof narrow);
		said[0] = narrow[0];
		said[1] = narrow[1];
	}
	if (said[0] != layer->rows || said[1] != layer->columns)
		return error_set(layer->error, STATUS_INVALID,
		    "tensor %.160s says %" PRIu64 " × %" PRIu64 ", %" PRIu64 " × %" PRIu64
		    " is needed", shape->name, said[0], said[1], layer->rows, layer->columns);
	return STATUS_OK;
}

/* X.weight_packed of compressed-tensors. */
static enum status take_packed(const struct layer *layer, struct weight_desc *desc)
{
	const struct checkpoint_tensor *values, *scales, *zeros, *index, *shape;
	enum status                     status = take_needed(layer, "weight_packed", &values);

	if (!status && values->dtype == CHECKPOINT_U8)
		return take_f4(layer, values, "weight_global_scale", desc);
	status = status ? status : check_type(layer, values, CHECKPOINT_I32);
	status = status ? status : take_needed(layer, "weight_scale", &scales);
	status = status ? status : take_optional(layer, "weight_zero_point", &zeros);
	status = status ? status : take_optional(layer, "weight_g_idx", &index);
	status = status ? status : take_optional(layer, "weight_shape", &shape);
	status = status ? status : check_stored_shape(layer, shape);
	if (status)
		return status;
	if (values->n_dims != 2 || values->dims[0] != layer->rows || values->dims[1] != blocks_of(layer->columns, 8))
		return bad_shape(layer, values, "eight 4-bit values per word");
	desc->name = values->name;
	desc->data = values->data;
	desc->map = values->map;
	desc->bytes = values->bytes;
	desc->format = WEIGHT_I4;
	desc->packing = WEIGHT_PACKED_COLUMNS;
	status = set_scales(layer, scales, desc);
	if (!status && zeros && zeros->dtype == CHECKPOINT_I8)
		desc->zeros = (struct weight_zeros){ .data = zeros->data, .bytes = zeros->bytes, .packing = WEIGHT_ZEROS_I8 };
	else if (!status)
		status = set_zeros(layer, zeros, WEIGHT_ZEROS_ROWS, desc);
	status = status ? status : set_index(layer, index, desc);
	return status ? status : take_input(layer, layer->quant->i4_input, desc);
}

enum status quant_take(struct checkpoint *checkpoint, const struct quant *quant, const char *name, uint64_t rows,
    uint64_t columns, struct weight_desc *ret, struct error *error)
{
	struct layer layer = { .checkpoint = checkpoint, .quant = quant, .name = name, .base_length = base_length_of(name),
		.rows = columns ? rows : 1, .columns = columns ? columns : rows, .error = error };
	struct weight_desc desc = { .rows = layer.rows, .columns = layer.columns };
	enum status        status;

	if (checkpoint_find(checkpoint, name) || !quant_has(checkpoint, name))
		status = take_plain(&layer, columns == 0, &desc);
	else if (find_sibling(checkpoint, name, "qweight"))
		status = take_qweight(&layer, &desc);
	else
		status = take_packed(&layer, &desc);
	if (status == STATUS_OK)
		status = weight_check(&desc, error);
	if (status == STATUS_OK)
		*ret = desc;
	return status;
}

/* Slice INDEX of COUNT of TENSOR, as a tensor of its own. */
static enum status slice_of(const struct layer *layer, const struct checkpoint_tensor *tensor, uint32_t index, uint32_t count,
    struct checkpoint_tensor *ret)
{
	if (tensor->n_dims < 2 || tensor->dims[0] != count)
		return error_set(layer->error, STATUS_INVALID, "tensor %.160s has %u dimensions, the first of %" PRIu64
		    "; it must hold something for each of %u experts", tensor->name, tensor->n_dims, tensor->dims[0], count);
	*ret = *tensor;
	ret->n_dims--;
	memmove(ret->dims, ret->dims + 1, (CHECKPOINT_DIMENSIONS_MAX - 1) * sizeof ret->dims[0]);
	ret->dims[CHECKPOINT_DIMENSIONS_MAX - 1] = 1;
	ret->bytes /= count;
	ret->data = (const uint8_t *)tensor->data + index * ret->bytes;
	return STATUS_OK;
}

/* NAME, taken with the first slice. */
static enum status take_for_slice(const struct layer *layer, const char *name, uint32_t index,
    const struct checkpoint_tensor **ret)
{
	*ret = checkpoint_find(layer->checkpoint, name);
	return *ret && index == 0 ? checkpoint_take(layer->checkpoint, name, ret, layer->error) : STATUS_OK;
}

enum status quant_take_slice(struct checkpoint *checkpoint, const struct quant *quant, const char *name, uint32_t index,
    uint32_t count, uint64_t rows, uint64_t columns, struct weight_desc *ret, struct error *error)
{
	static const char *const        endings[] = { "_scale_inv", "_scale" };
	struct layer                    layer = { .checkpoint = checkpoint, .quant = quant, .name = name, .base_length = -1,
		.rows = rows, .columns = columns, .error = error };
	struct weight_desc              desc = { .rows = rows, .columns = columns };
	const struct checkpoint_tensor *tensor = NULL, *scales = NULL;
	struct checkpoint_tensor        slice;
	uint64_t                        dims[2] = { rows, columns };
	enum status                     status = take_for_slice(&layer, name, index, &tensor);

	if (!status && !tensor)
		return STATUS_NOT_FOUND;
	status = status ? status : slice_of(&layer, tensor, index, count, &slice);
	status = status ? status : checkpoint_check_shape(&slice, dims, 2, error);
	if (status)
		return status;
	desc.name = tensor->name;
	desc.data = slice.data;
	desc.map = slice.map;
	desc.bytes = slice.bytes;
	for (unsigned i = 0; i < 2 && !status && !scales && tensor->dtype == CHECKPOINT_F8_E4M3; i++) {
		char scale_name[NAME_MAX_BYTES];
		int  length = snprintf(scale_name, sizeof scale_name, "%s%s", name, endings[i]);

		if (length >= 0 && length < NAME_MAX_BYTES)
			status = take_for_slice(&layer, scale_name, index, &scales);
	}
	if (!status && tensor->dtype == CHECKPOINT_F8_E4M3) {
		desc.format = WEIGHT_F8_E4M3;
		desc.input = quant->f8_input;
		status = scales ? slice_of(&layer, scales, index, count, &slice) : STATUS_OK;
		status = status || !scales ? status : set_scales(&layer, &slice, &desc);
		if (desc.input == WEIGHT_INPUT_F8_TOKEN && quant->by_block && desc.scales.block_columns == DEFAULT_BLOCK)
			desc.input = WEIGHT_INPUT_F8_GROUP;
	} else if (!status && !float_format(tensor->dtype, &desc.format)) {
		status = error_set(error, STATUS_UNSUPPORTED, "tensor %.160s is %s: of all experts together F32, F16, BF16 and F8_E4M3 "
		    "are known", tensor->name, checkpoint_dtype_name(tensor->dtype));
	}
	if (status == STATUS_OK)
		status = weight_check(&desc, error);
	if (status == STATUS_OK)
		*ret = desc;
	return status;
}

void quant_units(const struct checkpoint *checkpoint, const struct quant *quant, const char *name, uint64_t columns,
    uint64_t *ret_wanted, uint64_t *ret_needed)
{
	const struct checkpoint_tensor *values = checkpoint_find(checkpoint, name), *scales;
	enum weight_format              format;
	uint32_t                        block = 1, bytes, said = quant->group;
	uint64_t                        groups = 1, group;

	*ret_wanted = *ret_needed = 1;
	if (values && block_format(values->dtype, &format) && weight_format_block(format, &block, &bytes)) {
		*ret_wanted = *ret_needed = block;
		return;
	}
	if (values && values->dtype != CHECKPOINT_F8_E4M3 && values->dtype != CHECKPOINT_I8)
		return;
	if (!values)
		*ret_wanted = 8; /* to a word */
	if ((scales = find_sibling(checkpoint, name, "scales")) != NULL) {
		groups = find_sibling(checkpoint, name, "g_idx") ? 1 : scales->dims[0];
	} else if ((scales = find_sibling(checkpoint, name, "weight_scale_inv")) != NULL ||
	           (scales = find_sibling(checkpoint, name, "weight_scale")) != NULL) {
		groups = scales->dims[1];
		if (values && values->dtype == CHECKPOINT_F8_E4M3)
			said = quant->block_columns ? quant->block_columns : DEFAULT_BLOCK;
	}
	group = groups > 1 ? group_of(columns, groups, said) : 0;
	if (group && group != UINT64_MAX)
		*ret_wanted = group;
}
