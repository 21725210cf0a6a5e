/* quantise_weight.c: owns rounding to nearest and the packings of four-bit formats.  Does not own files nor which layers are
 * rounded (quantise.c).  Invariant: a value is divided by the scale as it is stored, rounded, so that what is read back lies
 * within half a step of what went in, or at the end of the range. */
#include "tools/quantise_weight.h"

#include "base/checked.h"
#include "base/floats.h"
#include "model/weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct format_row {
	const char *name;
	bool        four_bit;
} formats[QUANTISE_FORMATS] = {
	[QUANTISE_F32] = { "f32", false }, [QUANTISE_F16] = { "f16", false }, [QUANTISE_BF16] = { "bf16", false },
	[QUANTISE_INT4] = { "int4", true }, [QUANTISE_GPTQ] = { "gptq", true }, [QUANTISE_AWQ] = { "awq", true },
	[QUANTISE_INT8] = { "int8", false }, [QUANTISE_FP8] = { "fp8", false }, [QUANTISE_FP8_BLOCK] = { "fp8-block", false },
};

const char *quantise_format_name(enum quantise_format format) { return formats[format].name; }
bool        quantise_is_four_bit(enum quantise_format format) { return formats[format].four_bit; }

bool quantise_format_by_name(const char *name, enum quantise_format *ret)
{
	for (unsigned i = 0; i < QUANTISE_FORMATS; i++)
		if (strcmp(formats[i].name, name) == 0) {
			*ret = (enum quantise_format)i;
			return true;
		}
	return false;
}

static uint64_t blocks_of(uint64_t length, uint64_t block) { return (length + block - 1) / block; }

/* ---- What the tensors are ---- */

static enum status check_four_bit(const struct quantise_kind *kind, const char *name, uint64_t rows, uint64_t columns,
    struct error *error)
{
	if (columns % kind->group || kind->group % 8)
		return error_set(error, STATUS_UNSUPPORTED, "%.160s has %llu inputs, which groups of %u do not divide: --keep leaves "
		    "layers in float, --group takes other sizes", name, (unsigned long long)columns, kind->group);
	if (rows % 8 && kind->format != QUANTISE_INT4)
		return error_set(error, STATUS_UNSUPPORTED, "%.160s has %llu outputs: %s packs eight to a word", name,
		    (unsigned long long)rows, formats[kind->format].name);
	return STATUS_OK;
}

enum status quantise_plan(const struct quantise_kind *kind, const char *name, uint64_t rows, uint64_t columns,
    struct quantise_part ret[QUANTISE_PARTS_MAX], unsigned *ret_count, struct error *error)
{
	struct quantise_part parts[QUANTISE_PARTS_MAX] = { 0 };
	unsigned             count = 0;
	uint64_t             groups = 1;
	enum status          status = STATUS_OK;

	if (quantise_is_four_bit(kind->format)) {
		status = check_four_bit(kind, name, rows, columns, error);
		groups = columns / (kind->group ? kind->group : 1);
	}
	if (status)
		return status;
#define PART(suffix, type, dimensions, ...) \
	parts[count++] = (struct quantise_part){ suffix, SAFETENSORS_##type, dimensions, { __VA_ARGS__ }, NULL, 0 }
	switch (kind->format) {
	case QUANTISE_F32: PART(".weight", F32, 2, rows, columns); break;
	case QUANTISE_F16: PART(".weight", F16, 2, rows, columns); break;
	case QUANTISE_BF16: PART(".weight", BF16, 2, rows, columns); break;
	case QUANTISE_INT4:
		PART(".weight_packed", I32, 2, rows, columns / 8);
		PART(".weight_scale", BF16, 2, rows, groups);
		PART(".weight_shape", I64, 1, 2);
		if (kind->asymmetric)
			PART(".weight_zero_point", I32, 2, blocks_of(rows, 8), groups);
		break;
	case QUANTISE_GPTQ:
		PART(".qweight", I32, 2, columns / 8, rows);
		PART(".scales", F16, 2, groups, rows);
		PART(".g_idx", I32, 1, columns);
		PART(".qzeros", I32, 2, groups, rows / 8);
		break;
	case QUANTISE_AWQ:
		PART(".qweight", I32, 2, columns, rows / 8);
		PART(".scales", F16, 2, groups, rows);
		PART(".qzeros", I32, 2, groups, rows / 8);
		break;
	case QUANTISE_INT8:
		PART(".weight", I8, 2, rows, columns);
		PART(".weight_scale", F32, 2, rows, 1);
		break;
	case QUANTISE_FP8:
		PART(".weight", F8_E4M3, 2, rows, columns);
		PART(".weight_scale", F32, 2, rows, 1);
		break;
	case QUANTISE_FP8_BLOCK:
		PART(".weight", F8_E4M3, 2, rows, columns);
		PART(".weight_scale_inv", F32, 2, blocks_of(rows, QUANTISE_BLOCK), blocks_of(columns, QUANTISE_BLOCK));
		break;
	case QUANTISE_FORMATS: break;
	}
#undef PART
	for (unsigned i = 0; i < count; i++) {
		uint64_t bytes = safetensors_dtype_bytes(parts[i].dtype);

		for (unsigned d = 0; d < parts[i].n_dims; d++)
			if (!checked_mul_u64(bytes, parts[i].dims[d], &bytes) || bytes > SIZE_MAX / 2)
				return error_set(error, STATUS_LIMIT, "%.160s is too large", name);
		parts[i].bytes = bytes;
	}
	memcpy(ret, parts, sizeof parts);
	*ret_count = count;
	return STATUS_OK;
}

void quantise_free(struct quantise_part parts[QUANTISE_PARTS_MAX])
{
	for (unsigned i = 0; i < QUANTISE_PARTS_MAX; i++) {
		free(parts[i].data);
		parts[i].data = NULL;
	}
}

/* ---- Rounding ---- */

/* The matrix that is being rounded. */
struct source {
	const struct quantise_kind *kind;
	const struct weight_desc   *w;
	uint32_t                    pairs;
	struct quantise_part       *parts;
	float                      *row; /* [columns] */
};

/* Row ROW of the result into source->row. */
static enum status read_row(const struct source *source, uint64_t row, struct error *error)
{
	uint64_t from = row, half = source->pairs / 2;
	float    sum = 0;

	if (half) {
		uint64_t in = row % source->pairs;
		from = row - in + in % half * 2 + in / half;
	}
	weight_read_row(source->w, from, source->row);
	for (uint64_t i = 0; i < source->w->columns; i++)
		sum += source->row[i] - source->row[i];
	if (sum == 0)
		return STATUS_OK;
	return error_set(error, STATUS_INVALID, "%.160s has a value in row %llu that is not finite", source->w->name,
	    (unsigned long long)from);
}

static float largest_of(const float *values, uint64_t count)
{
	float largest = 0;

	for (uint64_t i = 0; i < count; i++)
		largest = fmaxf(largest, fabsf(values[i]));
	return largest;
}

/* Of a range that is nothing: any scale will do. */
static float scale_or_one(float scale) { return scale > 0 ? scale : 1; }

static int clamp(float value, int low, int high) { return value < (float)low ? low : value > (float)high ? high : (int)value; }

static enum status round_floats(const struct source *source, struct error *error)
{
	struct quantise_part *part = &source->parts[0];
	uint64_t              columns = source->w->columns;
	enum status           status = STATUS_OK;

	for (uint64_t row = 0; row < source->w->rows && !status; row++) {
		status = read_row(source, row, error);
		if (!status && part->dtype == SAFETENSORS_F32)
			memcpy((float *)part->data + row * columns, source->row, columns * sizeof(float));
		for (uint64_t i = 0; i < columns && !status && part->dtype != SAFETENSORS_F32; i++) {
			bool     half = part->dtype == SAFETENSORS_F16;
			uint16_t bits = half ? floats_to_half(source->row[i]) : floats_to_bfloat(source->row[i]);

			if ((bits & 0x7fff) == (half ? 0x7c00 : 0x7f80))
				return error_set(error, STATUS_INVALID, "%.160s: %g is beyond %s", source->w->name, (double)source->row[i],
				    half ? "float16" : "bfloat16");
			((uint16_t *)part->data)[row * columns + i] = bits;
		}
	}
	return status;
}

/* int8 and float8 with a scale per output. */
static enum status round_by_row(const struct source *source, struct error *error)
{
	bool        f8 = source->kind->format == QUANTISE_FP8;
	uint64_t    columns = source->w->columns;
	float      *scales = source->parts[1].data;
	enum status status = STATUS_OK;

	for (uint64_t row = 0; row < source->w->rows && !(status = read_row(source, row, error)); row++) {
		uint8_t *to = (uint8_t *)source->parts[0].data + row * columns;
		float    scale = scale_or_one(largest_of(source->row, columns) / (f8 ? 448.0f : 127.0f));

		scales[row] = scale;
		for (uint64_t i = 0; i < columns; i++)
			to[i] = f8 ? floats_to_e4m3(source->row[i] / scale) : (uint8_t)clamp(rintf(source->row[i] / scale), -127, 127);
	}
	return status;
}

/* float8 with a scale for a block: each row is read twice. */
static enum status round_by_block(const struct source *source, struct error *error)
{
	uint64_t    rows = source->w->rows, columns = source->w->columns, across = source->parts[1].dims[1];
	float      *scales = source->parts[1].data;
	enum status status = STATUS_OK;

	for (uint64_t row = 0; row < rows && !(status = read_row(source, row, error)); row++)
		for (uint64_t b = 0; b < across; b++) {
			uint64_t first = b * QUANTISE_BLOCK, left = columns - first;
			float   *scale = &scales[row / QUANTISE_BLOCK * across + b];

			*scale = fmaxf(*scale, largest_of(source->row + first, left < QUANTISE_BLOCK ? left : QUANTISE_BLOCK));
		}
	for (uint64_t i = 0; i < source->parts[1].dims[0] * across; i++)
		scales[i] = scale_or_one(scales[i] / 448);
	for (uint64_t row = 0; row < rows && !status && !(status = read_row(source, row, error)); row++) {
		uint8_t     *to = (uint8_t *)source->parts[0].data + row * columns;
		const float *scale = scales + row / QUANTISE_BLOCK * across;

		for (uint64_t i = 0; i < columns; i++)
			to[i] = floats_to_e4m3(source->row[i] / scale[i / QUANTISE_BLOCK]);
	}
	return status;
}

/* ---- Four bits ---- */

static const unsigned awq_place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 }; /* nibble of row 8j + i */

/* Scale (as it will be stored: its bits, too) and zero point of a group. */
struct group {
	float    scale;
	uint16_t bits;
	unsigned zero;
};

static struct group group_of(const struct quantise_kind *kind, const float *values)
{
	struct group ret = { .zero = 8 };
	float        low = 0, high = 0, scale;
	bool         asymmetric = kind->format == QUANTISE_AWQ || (kind->format == QUANTISE_INT4 && kind->asymmetric);

	for (uint32_t i = 0; i < kind->group; i++) {
		low = fminf(low, values[i]);
		high = fmaxf(high, values[i]);
	}
	scale = asymmetric ? (high - low) / 15 : fmaxf(high, -low) / 7.5f;
	ret.bits = kind->format == QUANTISE_INT4 ? floats_to_bfloat(scale) : floats_to_half(scale);
	ret.scale = kind->format == QUANTISE_INT4 ? floats_from_bfloat(ret.bits) : floats_from_half(ret.bits);
	if (!(ret.scale > 0)) {
		ret.bits = kind->format == QUANTISE_INT4 ? 0x3f80 : 0x3c00;
		ret.scale = 1;
	}
	if (asymmetric)
		ret.zero = (unsigned)clamp(rintf(-low / ret.scale), 0, 15);
	return ret;
}

/* Where a value's four bits lie: word and shift. */
static void put_value(const struct source *source, uint64_t row, uint64_t column, unsigned q)
{
	uint64_t              rows = source->w->rows, columns = source->w->columns;
	uint32_t             *words = source->parts[0].data;

	switch (source->kind->format) {
	case QUANTISE_GPTQ: words[column / 8 * rows + row] |= q << 4 * (column % 8); break;
	case QUANTISE_AWQ: words[column * (rows / 8) + row / 8] |= q << 4 * awq_place[row % 8]; break;
	default: words[row * (columns / 8) + column / 8] |= q << 4 * (column % 8);
	}
}

static void put_group(const struct source *source, uint64_t row, uint64_t g, const struct group *group)
{
	uint64_t              rows = source->w->rows, groups = source->w->columns / source->kind->group;
	uint16_t             *scales = source->parts[1].data;

	switch (source->kind->format) {
	case QUANTISE_GPTQ: /* one less is stored */
		scales[g * rows + row] = group->bits;
		((uint32_t *)source->parts[3].data)[g * (rows / 8) + row / 8] |= (group->zero - 1) << 4 * (row % 8);
		break;
	case QUANTISE_AWQ:
		scales[g * rows + row] = group->bits;
		((uint32_t *)source->parts[2].data)[g * (rows / 8) + row / 8] |= group->zero << 4 * awq_place[row % 8];
		break;
	default:
		scales[row * groups + g] = group->bits;
		if (source->kind->asymmetric)
			((uint32_t *)source->parts[3].data)[row / 8 * groups + g] |= group->zero << 4 * (row % 8);
	}
}

static enum status round_four_bit(const struct source *source, struct error *error)
{
	const struct quantise_kind *kind = source->kind;
	enum status                 status = STATUS_OK;

	for (uint64_t row = 0; row < source->w->rows && !(status = read_row(source, row, error)); row++)
		for (uint64_t g = 0; g < source->w->columns / kind->group; g++) {
			const float *values = source->row + g * kind->group;
			struct group group = group_of(kind, values);

			if (!isfinite(group.scale))
				return error_set(error, STATUS_INVALID, "%.160s: the scale of row %llu is beyond %s", source->w->name,
				    (unsigned long long)row, kind->format == QUANTISE_INT4 ? "bfloat16" : "float16");
			put_group(source, row, g, &group);
			for (uint32_t i = 0; i < kind->group; i++)
				put_value(source, row, g * kind->group + i,
				    (unsigned)clamp(rintf(values[i] / group.scale) + (float)group.zero, 0, 15));
		}
	if (!status && kind->format == QUANTISE_INT4)
		memcpy(source->parts[2].data, (const int64_t[2]){ (int64_t)source->w->rows, (int64_t)source->w->columns }, 16);
	for (uint64_t i = 0; i < source->w->columns && !status && kind->format == QUANTISE_GPTQ; i++)
		((int32_t *)source->parts[2].data)[i] = (int32_t)(i / kind->group);
	return status;
}

enum status quantise_weight(const struct quantise_kind *kind, const struct weight_desc *w, uint32_t pairs,
    struct quantise_part parts[QUANTISE_PARTS_MAX], unsigned count, struct error *error)
{
	struct source source = { .kind = kind, .w = w, .pairs = pairs, .parts = parts };
	enum status   status = STATUS_OK;

	source.row = malloc(w->columns * sizeof *source.row);
	for (unsigned i = 0; i < count; i++) {
		parts[i].data = calloc(1, parts[i].bytes + 1);
		status = source.row && parts[i].data ? status : STATUS_NOMEM;
	}
	if (status)
		error_set(error, status, "%.160s: out of memory", w->name);
	else if (quantise_is_four_bit(kind->format))
		status = round_four_bit(&source, error);
	else if (kind->format == QUANTISE_FP8_BLOCK)
		status = round_by_block(&source, error);
	else if (kind->format == QUANTISE_FP8 || kind->format == QUANTISE_INT8)
		status = round_by_row(&source, error);
	else
		status = round_floats(&source, error);
	free(source.row);
	if (status)
		quantise_free(parts);
	return status;
}
