/* bench_body.c: owns the members of a request's body.  Invariant: every request asks for a stream with usage. */
#include "tools/bench_body.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool set_number(json_t *root, const char *name, double value)
{
	if (isnan(value))
		return true;
	return !json_object_set_new(root, name, floor(value) < value ? json_real(value) : json_integer((json_int_t)value));
}

enum status bench_body_make(const struct bench_options *options, const struct bench_dataset *dataset,
    const struct bench_item *item, const char *model, char **ret_text, size_t *ret_len, struct error *error)
{
	json_t *content = bench_dataset_content(dataset, item), *root = NULL;
	char   *text = NULL;
	bool    good;

	if (content)
		root = json_pack("{s:s, s:o, s:I, s:b, s:{s:b}}", "model", model, options->chat ? "messages" : "prompt", content,
		    "max_tokens", (json_int_t)item->output_tokens, "stream", 1, "stream_options", "include_usage", 1);
	if (!root)
		return error_set(error, STATUS_NOMEM, "out of memory");
	good = set_number(root, "temperature", options->server_temperature ? NAN : options->temperature) &&
	    set_number(root, "top_p", options->top_p) && set_number(root, "top_k", options->top_k) &&
	    set_number(root, "min_p", options->min_p) && set_number(root, "frequency_penalty", options->frequency_penalty) &&
	    set_number(root, "presence_penalty", options->presence_penalty) &&
	    set_number(root, "repetition_penalty", options->repetition_penalty);
	if (good && options->ignore_eos)
		good = !json_object_set_new(root, "ignore_eos", json_true());
	if (good && item->has_priority)
		good = !json_object_set_new(root, "priority", json_integer(item->priority));
	if (good && options->extra_body)
		good = !json_object_update(root, options->extra_body);
	if (good)
		text = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	if (!text)
		return error_set(error, STATUS_NOMEM, "out of memory");
	*ret_text = text;
	*ret_len = strlen(text);
	return STATUS_OK;
}
