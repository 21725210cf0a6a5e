/* sampling.c: owns the request fields that say how tokens are drawn, and what a job has of them.  Does not own their ranges,
 * where a row of params.def can express them, nor what they do (model/backend.h).
 * Invariant: a job's ids are in the vocabulary, its biases in the order of ids, and something may always be drawn. */
#include "api/call.h"
#include "api/json_text.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	BIAS_LIMIT = 100,
	EVENTS_AT_ONCE = 3 /* of one answer on their way at least: what penstockd needs room for before it draws another */
};

static uint32_t last_id(const struct api_call *call) { return vocab_size(call->api->vocab) - 1; }

/* ---- lists of ids ----------------------------------------------------------------------------------------------------- */

/* Ids of an array of LEAST to MOST whole numbers under the name FIELD. */
static enum status parse_ids(const struct api_call *call, const char *field, const json_t *array, size_t least, size_t most,
    int32_t **ret, struct error *error)
{
	size_t   count = json_array_size(array);
	int32_t *ids;

	if (!json_is_array(array))
		return error_set_param(error, STATUS_INVALID, field, "%s: an array of token ids is expected, not %s", field,
		    json_text_type(array));
	if (count < least || count > most)
		return error_set_param(error, STATUS_INVALID, field, "%s: %zu ids, %zu…%zu are allowed", field, count, least, most);
	ids = malloc((count ? count : 1) * sizeof *ids);
	if (!ids)
		return error_set(error, STATUS_NOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		const json_t *id = json_array_get(array, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > last_id(call)) {
			free(ids);
			if (!json_is_integer(id))
				return error_set_param(error, STATUS_INVALID, field, "%s[%zu]: a token id is expected, not %s", field, i,
				    json_text_type(id));
			return error_set_param(error, STATUS_INVALID, field, "%s[%zu] = %" JSON_INTEGER_FORMAT ": token ids are 0…%" PRIu32,
			    field, i, json_integer_value(id), last_id(call));
		}
		ids[i] = (int32_t)json_integer_value(id);
	}
	*ret = ids;
	return STATUS_OK;
}

static bool contains(const int32_t *ids, size_t count, int32_t id)
{
	for (size_t i = 0; i < count; i++)
		if (ids[i] == id)
			return true;
	return false;
}

/* While min_tokens bans what ends an answer, something else must be left. */
static enum status check_allowed(const struct api_call *call, struct error *error)
{
	const struct params *p = &call->params;
	size_t               allowed = json_array_size(p->allowed_token_ids), stops = json_array_size(p->stop_token_ids), eos_count;
	const int32_t       *eos = vocab_eos(call->api->vocab, &eos_count);

	if (!p->allowed_token_ids || p->min_tokens.value == 0)
		return STATUS_OK;
	for (size_t i = 0; i < allowed; i++)
		if (!contains(eos, eos_count, call->allowed_ids[i]) && !contains(call->stop_ids, stops, call->allowed_ids[i]))
			return STATUS_OK;
	return error_set_param(error, STATUS_INVALID, "allowed_token_ids",
	    "allowed_token_ids: all of them end the answer, which min_tokens = %" PRId64 " forbids", p->min_tokens.value);
}

/* ---- biases ----------------------------------------------------------------------------------------------------------- */

/* The number that KEY spells, as JSON would; −1 when it is none, or not below LIMIT. */
static int64_t key_id(const char *key, uint32_t limit)
{
	size_t  len = strlen(key);
	int64_t id = 0;

	if (len == 0 || len > 9 || strspn(key, "0123456789") != len || (len > 1 && key[0] == '0'))
		return -1;
	for (; *key; key++)
		id = id * 10 + (*key - '0');
	return id < limit ? id : -1;
}

static int compare_bias(const void *a, const void *b)
{
	const struct sample_bias *x = a, *y = b;
	return (x->id > y->id) - (x->id < y->id);
}

static enum status parse_bias(struct api_call *call, struct error *error)
{
	const json_t *object = call->params.logit_bias;
	size_t        count = json_object_size(object), at = 0;
	const char   *key;
	json_t       *value;

	if (!object)
		return STATUS_OK;
	if (!json_is_object(object))
		return error_set_param(error, STATUS_INVALID, "logit_bias", "logit_bias: an object is expected, not %s",
		    json_text_type(object));
	if (count > WIRE_BIAS_MAX)
		return error_set_param(error, STATUS_INVALID, "logit_bias", "logit_bias: %zu tokens, at most %d are allowed", count,
		    WIRE_BIAS_MAX);
	call->bias = malloc((count ? count : 1) * sizeof *call->bias);
	if (!call->bias)
		return error_set(error, STATUS_NOMEM, "out of memory");
	json_object_foreach((json_t *)(uintptr_t)object, key, value) {
		int64_t id = key_id(key, vocab_size(call->api->vocab));
		double  add = json_number_value(value);

		if (id < 0)
			return error_set_param(error, STATUS_INVALID, "logit_bias", "logit_bias: \"%.40s\" is not a token id 0…%" PRIu32, key,
			    last_id(call));
		if (!json_is_number(value))
			return error_set_param(error, STATUS_INVALID, "logit_bias", "logit_bias[\"%.40s\"]: a number is expected, not %s", key,
			    json_text_type(value));
		if (!(add >= -BIAS_LIMIT && add <= BIAS_LIMIT))
			return error_set_param(error, STATUS_INVALID, "logit_bias",
			    "logit_bias[\"%.40s\"] = %.10g: outside the allowed range %d…%d", key, add, -BIAS_LIMIT, BIAS_LIMIT);
		call->bias[at++] = (struct sample_bias){ (int32_t)id, (float)add };
	}
	qsort(call->bias, count, sizeof *call->bias, compare_bias);
	return STATUS_OK;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

static uint32_t wanted_logprobs(const struct params *p)
{
	return p->logprobs.value ? 1 + (uint32_t)p->top_logprobs.value : 0;
}

/* A token with its log probabilities is a large event, and those of all answers must find room on their way. */
static enum status check_logprobs(const struct api_call *call, struct error *error)
{
	const struct params *p = &call->params;
	int64_t              event = (int64_t)sizeof(struct wire_token) + 4 * (int64_t)wire_token_words(wanted_logprobs(p));
	int64_t              needed = p->n.value * (EVENTS_AT_ONCE * event + (int64_t)sizeof(struct wire_end));

	if (!p->logprobs.value && p->top_logprobs.value > 0)
		return error_set_param(error, STATUS_INVALID, "top_logprobs",
		    "top_logprobs = %" PRId64 ": allowed only with logprobs = true", p->top_logprobs.value);
	if (p->logprobs.value && needed > call->api->conf->front_stream_window)
		return error_set_param(error, STATUS_INVALID, "top_logprobs", "top_logprobs = %" PRId64 " with n = %" PRId64
		    ": such answers need front.stream_window = %" PRId64 ", this server has %" PRId64, p->top_logprobs.value, p->n.value,
		    needed, call->api->conf->front_stream_window);
	return STATUS_OK;
}

static enum status check_min_tokens(const struct api_call *call, struct error *error)
{
	const struct params    *p = &call->params;
	const struct param_int *limit = p->max_completion_tokens.set ? &p->max_completion_tokens : &p->max_tokens;

	if (!limit->set || p->min_tokens.value <= limit->value)
		return STATUS_OK;
	return error_set_param(error, STATUS_INVALID, "min_tokens", "min_tokens = %" PRId64 ": more than %s = %" PRId64,
	    p->min_tokens.value, p->max_completion_tokens.set ? "max_completion_tokens" : "max_tokens", limit->value);
}

enum status call_parse_sampling(struct api_call *call, struct error *error)
{
	const struct params *p = &call->params;
	enum status          status = parse_bias(call, error);

	if (!status && p->stop_token_ids)
		status = parse_ids(call, "stop_token_ids", p->stop_token_ids, 0, WIRE_STOP_IDS_MAX, &call->stop_ids, error);
	if (!status && p->allowed_token_ids)
		status = parse_ids(call, "allowed_token_ids", p->allowed_token_ids, 1, WIRE_ALLOWED_IDS_MAX, &call->allowed_ids, error);
	if (!status)
		status = check_allowed(call, error);
	if (!status)
		status = check_min_tokens(call, error);
	if (!status)
		status = check_logprobs(call, error);
	for (uint32_t i = 0; i < call->job.choices && !status && !p->skip_special_tokens.value; i++)
		detokenizer_show_special(&call->choices[i].detokenizer);
	return status;
}

/* The sampler's (0, 1]: a top_p of zero, or one that a float cannot hold, keeps the most likely token alone. */
static float positive(double value) { return (float)value >= FLT_MIN ? (float)value : FLT_MIN; }

void call_fill_sampling(const struct api_call *call, struct api_job *job)
{
	const struct params *p = &call->params;

	job->bias = call->bias;
	job->bias_count = (uint32_t)json_object_size(p->logit_bias);
	job->stop_ids = call->stop_ids;
	job->stop_count = (uint32_t)json_array_size(p->stop_token_ids);
	job->allowed_ids = call->allowed_ids;
	job->allowed_count = (uint32_t)json_array_size(p->allowed_token_ids);
	job->sampling = (struct sample_params){
		.temperature = (float)p->temperature.value,
		.top_p = positive(p->top_p.value),
		.min_p = (float)p->min_p.value,
		.top_k = p->top_k.value > 0 && p->top_k.value < vocab_size(call->api->vocab) ? (int32_t)p->top_k.value : 0,
		.seed = p->seed.set ? (uint64_t)p->seed.value : call->seed,
		.repetition = p->repetition_penalty.value == 1 ? 0 : (float)p->repetition_penalty.value,
		.presence = (float)p->presence_penalty.value,
		.frequency = (float)p->frequency_penalty.value,
		.min_tokens = (uint32_t)p->min_tokens.value,
		.logprobs = wanted_logprobs(p),
	};
}
