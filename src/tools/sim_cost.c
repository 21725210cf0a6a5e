/* sim_cost.c: owns the format of cost files and the model of time.  Does not own what is planned.
 *
 * Invariant: what sim_cost_parse accepts is a machine that the scheduler and the block pool accept. */
#include "tools/sim_cost.h"

#include "base/bytes.h"
#include "file/jsonfile.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define STEP_NS_MIN 1000.0

/* `initial` is NAN where the file must say it. */
static const struct field {
	const char *name;
	size_t      offset;
	bool        real;
	double      min, max, initial;
} fields[] = {
	{ "fixed_us", offsetof(struct sim_cost, fixed_us), true, 0, 1e7, 0 },
	{ "prefill_us_per_token", offsetof(struct sim_cost, prefill_us_per_token), true, 0, 1e6, NAN },
	{ "decode_us_per_seq", offsetof(struct sim_cost, decode_us_per_seq), true, 0, 1e6, NAN },
	{ "context_us_per_ktoken", offsetof(struct sim_cost, context_us_per_ktoken), true, 0, 1e6, 0 },
	{ "kv_tokens", offsetof(struct sim_cost, kv_tokens), false, 1, 1 << 30, NAN },
	{ "block", offsetof(struct sim_cost, block), false, 1, 1024, 64 },
	{ "max_batch", offsetof(struct sim_cost, max_batch), false, 1, 65536, 64 },
	{ "step_tokens", offsetof(struct sim_cost, step_tokens), false, 1, 1 << 20, 2048 },
	{ "long_prompt_tokens", offsetof(struct sim_cost, long_prompt_tokens), false, 0, 1 << 24, 8192 },
	{ "max_queue_wait_s", offsetof(struct sim_cost, max_queue_wait_s), true, 0, 1e6, 300 },
	{ "itl_target_ms", offsetof(struct sim_cost, itl_target_ms), true, 0, 1e6, 0 },
};
enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

static void store(struct sim_cost *cost, const struct field *field, double value)
{
	char *at = (char *)cost + field->offset;

	if (field->real)
		memcpy(at, &value, sizeof value);
	else
		memcpy(at, &(uint32_t){ (uint32_t)value }, sizeof(uint32_t));
}

static enum status take_field(const char *label, const struct field *field, const json_t *json, struct sim_cost *cost,
    struct error *error)
{
	double value;

	if (!json && isnan(field->initial))
		return error_set_param(error, STATUS_INVALID, field->name, "%.160s: %s is missing", label, field->name);
	if (!json) {
		store(cost, field, field->initial);
		return STATUS_OK;
	}
	if (field->real ? !json_is_number(json) : !json_is_integer(json))
		return error_set_param(error, STATUS_INVALID, field->name, "%.160s: %s is not %s", label, field->name,
		    field->real ? "a number" : "a whole number");
	value = json_number_value(json);
	if (!(value >= field->min && value <= field->max))
		return error_set_param(error, STATUS_INVALID, field->name, "%.160s: %s = %.15g is not in %.15g…%.15g", label, field->name,
		    value, field->min, field->max);
	store(cost, field, value);
	return STATUS_OK;
}

static enum status take_object(const char *label, json_t *root, struct sim_cost *ret, struct error *error)
{
	struct sim_cost cost;
	const char     *key;
	json_t         *value;

	json_object_foreach(root, key, value) {
		char     quoted[BYTES_QUOTE_MAX];
		unsigned i = 0;

		while (i < FIELD_COUNT && strcmp(fields[i].name, key))
			i++;
		if (i == FIELD_COUNT)
			return error_set(error, STATUS_INVALID, "%.160s: %s is no field of a cost file (penstock sim --help lists them)",
			    label, bytes_quote(quoted, key, strlen(key)));
	}
	for (unsigned i = 0; i < FIELD_COUNT; i++) {
		enum status status = take_field(label, &fields[i], json_object_get(root, fields[i].name), &cost, error);
		if (status)
			return status;
	}
	if (cost.max_batch > cost.step_tokens)
		return error_set_param(error, STATUS_INVALID, "max_batch",
		    "%.160s: max_batch = %u is more than step_tokens = %u, but every sequence needs a row of the step", label,
		    cost.max_batch, cost.step_tokens);
	if (cost.kv_tokens < cost.block)
		return error_set_param(error, STATUS_INVALID, "kv_tokens", "%.160s: kv_tokens = %u is less than one block of %u", label,
		    cost.kv_tokens, cost.block);
	*ret = cost;
	return STATUS_OK;
}

enum status sim_cost_parse(const char *label, const void *bytes, size_t size, struct sim_cost *ret, struct error *error)
{
	json_t     *root;
	enum status status = jsonfile_parse(label, bytes, size, &root, error);

	if (status)
		return status;
	status = take_object(label, root, ret, error);
	json_decref(root);
	return status;
}

enum status sim_cost_open(const char *path, struct sim_cost *ret, struct error *error)
{
	json_t     *root;
	enum status status = jsonfile_open(path, &root, error);

	if (status)
		return status;
	status = take_object(path, root, ret, error);
	json_decref(root);
	return status;
}

uint64_t sim_cost_step_ns(const struct sim_cost *cost, uint64_t prefill_rows, uint64_t decodes, uint64_t context_tokens)
{
	double ns = cost->fixed_us * 1e3 + cost->prefill_us_per_token * 1e3 * (double)prefill_rows +
	    cost->decode_us_per_seq * 1e3 * (double)decodes + cost->context_us_per_ktoken * (double)context_tokens;

	return (uint64_t)llround(ns > STEP_NS_MIN ? ns : STEP_NS_MIN);
}
