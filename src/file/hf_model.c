/* hf_model.c: owns what several keys of a model's configuration say together: its spellings of old and new, rotary
 * embedding, quantisation, and how to generate.  Single values are hf_config.c's.
 *
 * Where spellings contradict each other, transformers is followed, so that a checkpoint computes here what it computes
 * there; the one exception is noted at rope_object.
 */
#include "file/hf_config.h"
#include "base/bytes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status hf_config_text(const struct hf_config *config, struct hf_config *ret, struct error *error)
{
	struct hf_config text;
	enum status      status = hf_config_object(config, "text_config", &text, error);

	if (status)
		return status;
	if (!text.object) {
		text = *config;
		text.owner = false;
	}
	*ret = text;
	return STATUS_OK;
}

enum status hf_config_dtype(const struct hf_config *config, const char **ret, struct error *error)
{
	const char *key = hf_config_kind(config, "dtype") == HF_ABSENT ? "torch_dtype" : "dtype", *name;
	enum status status = hf_config_string_or(config, key, "", &name, error);

	if (!status)
		*ret = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
	return status;
}

enum status hf_config_quantization(const struct hf_config *config, struct hf_config *ret, const char **ret_method,
    struct error *error)
{
	struct hf_config quantization;
	const char      *method = "";
	enum status      status = hf_config_object(config, "quantization_config", &quantization, error);

	if (!status && quantization.object)
		status = hf_config_string(&quantization, "quant_method", &method, error);
	else if (!status) {
		status = hf_config_object(config, "compression_config", &quantization, error);
		if (!status && quantization.object)
			status = hf_config_string_or(&quantization, "quant_method", "compressed-tensors", &method, error);
	}
	if (status)
		return status;
	*ret = quantization;
	*ret_method = method;
	return STATUS_OK;
}

/* ---- rotary embedding --------------------------------------------------------------------------------------------- */

/* The object that counts, and the other one.  transformers forgets rope_parameters altogether once a rope_scaling is
 * there; here its theta and partial factor still stand behind the top-level ones, for that is what somebody who adds a
 * rope_scaling to a checkpoint of transformers 5 means. */
static enum status rope_object(const struct hf_config *config, struct hf_config *ret, struct hf_config *ret_other,
    struct error *error)
{
	struct hf_config scaling, parameters;
	enum status      status = hf_config_object(config, "rope_scaling", &scaling, error);

	if (!status)
		status = hf_config_object(config, "rope_parameters", &parameters, error);
	if (status)
		return status;
	bool use_scaling = hf_config_next_key(&scaling, NULL) != NULL;
	*ret = use_scaling ? scaling : parameters;
	*ret_other = use_scaling ? parameters : scaling;
	for (const char *key = NULL; (key = hf_config_next_key(ret, key));)
		if (hf_config_kind(ret, key) == HF_OBJECT)
			return error_set_param(error, STATUS_UNSUPPORTED, "rope_parameters",
			    "%s: %s%.60s: rotary parameters that differ by kind of layer are not supported", ret->label, ret->path, key);
	return STATUS_OK;
}

/* KEY from the rope object, else the top level, else the other object. */
static enum status rope_number(const struct hf_config *rope, const struct hf_config *config, const struct hf_config *other,
    const char *key, double min, double max, double fallback, double *ret, struct error *error)
{
	const struct hf_config *from = hf_config_kind(rope, key) != HF_ABSENT ? rope :
	    hf_config_kind(config, key) != HF_ABSENT ? config : other;
	return hf_config_f64_or(from, key, min, max, fallback, ret, error);
}

static enum status rope_original_context(const struct hf_config *rope, const struct hf_config *config, struct hf_rope *ret,
    struct error *error)
{
	static const char      key[] = "original_max_position_embeddings";
	const struct hf_config *from = hf_config_kind(config, key) != HF_ABSENT ? config : rope;

	if (ret->max_context)
		return hf_config_u32_or(from, key, 1, INT32_MAX, ret->max_context, &ret->original_context, error);
	return hf_config_u32(from, key, 1, INT32_MAX, &ret->original_context, error);
}

static enum status rope_llama3(const struct hf_config *rope, struct hf_rope *ret, struct error *error)
{
	enum status status = hf_config_f64(rope, "low_freq_factor", 1e-6, 1e6, &ret->low_freq_factor, error);

	if (!status)
		status = hf_config_f64(rope, "high_freq_factor", 1e-6, 1e6, &ret->high_freq_factor, error);
	if (!status && ret->high_freq_factor <= ret->low_freq_factor)
		return error_set_param(error, STATUS_INVALID, "high_freq_factor",
		    "%s: %shigh_freq_factor = %g: must be over low_freq_factor = %g", rope->label, rope->path,
		    ret->high_freq_factor, ret->low_freq_factor);
	return status;
}

static double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

static enum status rope_yarn(const struct hf_config *rope, struct hf_rope *ret, struct error *error)
{
	double      mscale = 0, attention;
	enum status status = hf_config_f64_or(rope, "beta_fast", 0, 1e6, 0, &ret->beta_fast, error);

	if (!status)
		status = hf_config_f64_or(rope, "beta_slow", 0, 1e6, 0, &ret->beta_slow, error);
	if (!status)
		status = hf_config_f64_or(rope, "mscale", 0, 1e3, 0, &mscale, error);
	if (!status)
		status = hf_config_f64_or(rope, "mscale_all_dim", 0, 1e3, 0, &ret->mscale_all_dim, error);
	if (!status)
		status = hf_config_bool_or(rope, "truncate", true, &ret->truncate, error);
	if (status)
		return status;
	if (ret->beta_fast == 0)
		ret->beta_fast = 32;
	if (ret->beta_slow == 0)
		ret->beta_slow = 1;
	if (ret->beta_fast < ret->beta_slow)
		return error_set_param(error, STATUS_INVALID, "beta_fast",
		    "%s: %sbeta_fast = %g: must not be under beta_slow = %g", rope->label, rope->path, ret->beta_fast, ret->beta_slow);
	attention = mscale != 0 && ret->mscale_all_dim != 0 ?
	    yarn_mscale(ret->factor, mscale) / yarn_mscale(ret->factor, ret->mscale_all_dim) : yarn_mscale(ret->factor, 1);
	return hf_config_f64_or(rope, "attention_factor", 1e-3, 1e3, attention, &ret->attention_factor, error);
}

enum status hf_config_rope(const struct hf_config *config, double default_theta, double default_partial, struct hf_rope *ret,
    struct error *error)
{
	static const char *const types[] = { "default", "linear", "dynamic", "llama3", "yarn", NULL };
	struct hf_rope           rope = { .factor = 1, .attention_factor = 1, .truncate = true };
	struct hf_config         object, other;
	unsigned                 type = HF_ROPE_DEFAULT;
	enum status              status = rope_object(config, &object, &other, error);

	if (!status) {
		const char *key = hf_config_kind(&object, "rope_type") != HF_ABSENT ? "rope_type" : "type";
		status = hf_config_word_or(&object, key, types, HF_ROPE_DEFAULT, &type, error);
		if (status && hf_config_kind(&object, key) == HF_STRING) {
			status = STATUS_UNSUPPORTED;
			if (error)
				error->status = status;
		}
	}
	rope.type = (enum hf_rope_type)type;
	if (!status)
		status = rope_number(&object, config, &other, "rope_theta", 2, 1e15, default_theta, &rope.theta, error);
	if (!status)
		status = rope_number(&object, config, &other, "partial_rotary_factor", 1e-3, 1, default_partial, &rope.partial, error);
	if (!status)
		status = rope.type == HF_ROPE_DYNAMIC ?
		    hf_config_u32(config, "max_position_embeddings", 1, INT32_MAX, &rope.max_context, error) :
		    hf_config_u32_or(config, "max_position_embeddings", 1, INT32_MAX, 0, &rope.max_context, error);
	if (!status && (rope.type == HF_ROPE_LLAMA3 || rope.type == HF_ROPE_YARN))
		status = rope_original_context(&object, config, &rope, error);
	if (!status && rope.type == HF_ROPE_YARN && rope.max_context > rope.original_context) /* then factor may be left out */
		status = hf_config_f64_or(&object, "factor", 1, 1e6, (double)rope.max_context / rope.original_context, &rope.factor, error);
	else if (!status && rope.type != HF_ROPE_DEFAULT)
		status = hf_config_f64(&object, "factor", 1, 1e6, &rope.factor, error);
	if (!status && rope.type == HF_ROPE_LLAMA3)
		status = rope_llama3(&object, &rope, error);
	if (!status && rope.type == HF_ROPE_YARN)
		status = rope_yarn(&object, &rope, error);
	if (!status)
		*ret = rope;
	return status;
}

/* ---- generation --------------------------------------------------------------------------------------------------- */

static enum status add_eos(struct hf_generation *generation, const struct hf_config *from, uint32_t id, struct error *error)
{
	for (size_t i = 0; i < generation->eos_count; i++)
		if (generation->eos[i] == id)
			return STATUS_OK;
	if (generation->eos_count == HF_EOS_MAX)
		return error_set_param(error, STATUS_LIMIT, "eos_token_id", "%s: more than %d end-of-sequence tokens in all",
		    from->label, HF_EOS_MAX);
	generation->eos[generation->eos_count++] = id;
	return STATUS_OK;
}

static enum status add_eos_ids(struct hf_generation *generation, const struct hf_config *from, uint32_t vocab, struct error *error)
{
	uint32_t    ids[HF_EOS_MAX];
	size_t      count = 0;
	enum status status = hf_config_u32_list(from, "eos_token_id", 0, vocab - 1, ids, HF_EOS_MAX, &count, error);

	for (size_t i = 0; !status && i < count; i++)
		status = add_eos(generation, from, ids[i], error);
	return status;
}

/* A token is spelled "text" or {"content": "text"}; "" when absent. */
static enum status token_text(const struct hf_config *config, const char *key, const char **ret, struct error *error)
{
	struct hf_config object;
	enum status      status;

	if (hf_config_kind(config, key) != HF_OBJECT)
		return hf_config_string_or(config, key, "", ret, error);
	status = hf_config_object(config, key, &object, error);
	return status ? status : hf_config_string(&object, "content", ret, error);
}

/* The id of TEXT in added_tokens_decoder {"id": {"content": "text"}}; −1 when it is not there. */
static enum status added_token(const struct hf_config *tokenizer, const char *text, uint32_t vocab, int64_t *ret,
    struct error *error)
{
	struct hf_config added;
	const char      *content;
	enum status      status = hf_config_object(tokenizer, "added_tokens_decoder", &added, error);
	int64_t          id = -1;

	for (const char *key = NULL; !status && id < 0 && (key = hf_config_next_key(&added, key));) {
		status = token_text(&added, key, &content, error);
		if (status || strcmp(content, text) != 0)
			continue;
		size_t digits = strspn(key, "0123456789");
		if (digits == 0 || digits > 9 || key[digits] || strtol(key, NULL, 10) >= (long)vocab)
			return error_set_param(error, STATUS_INVALID, "added_tokens_decoder", "%s: %s%.40s: a token id in 0…%u is needed",
			    tokenizer->label, added.path, key, vocab - 1);
		id = strtol(key, NULL, 10);
	}
	if (!status)
		*ret = id;
	return status;
}

static enum status read_tokenizer(const struct hf_config *tokenizer, uint32_t vocab, struct hf_generation *ret, struct error *error)
{
	const char *text = "";
	int64_t     id = -1;
	enum status status = token_text(tokenizer, "eos_token", &text, error);

	if (status || !*text)
		return status;
	if (strlen(text) >= sizeof ret->eos_text)
		return error_set_param(error, STATUS_LIMIT, "eos_token", "%s: eos_token has %zu bytes, the limit is %zu", tokenizer->label,
		    strlen(text), sizeof ret->eos_text - 1);
	status = added_token(tokenizer, text, vocab, &id, error);
	if (!status && id >= 0)
		return add_eos(ret, tokenizer, (uint32_t)id, error);
	if (!status)
		snprintf(ret->eos_text, sizeof ret->eos_text, "%s", text);
	return status;
}

/* Keys that change what is drawn and are not in struct hf_generation, with the value at which they do nothing. */
static void list_unapplied(const struct hf_config *generation, char *ret_text, size_t size)
{
	static const struct {
		const char *key;
		double      neutral;
	} keys[] = {
		{ "typical_p", 1 }, { "no_repeat_ngram_size", 0 }, { "num_beams", 1 }, { "min_length", 0 }, { "min_new_tokens", 0 },
		{ "bad_words_ids", 0 }, { "suppress_tokens", 0 }, { "begin_suppress_tokens", 0 }, { "forced_bos_token_id", -1 },
		{ "forced_eos_token_id", -1 }, { "sequence_bias", 0 }, { "guidance_scale", 1 }, { "top_h", 1 }, { "epsilon_cutoff", 0 },
		{ "eta_cutoff", 0 }, { "exponential_decay_length_penalty", 0 }, { "stop_strings", 0 }, { "penalty_alpha", 0 },
		{ "presence_penalty", 0 }, { "frequency_penalty", 0 },
	};
	size_t at = 0;

	ret_text[0] = '\0';
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		enum hf_kind kind = hf_config_kind(generation, keys[i].key);
		size_t       count = 0;
		double       number = 0;
		bool         on = false;

		if (kind == HF_LIST) /* the count fails only over the limit */
			on = hf_config_string_count(generation, keys[i].key, HF_CONFIG_LIST_MAX, &count, NULL) || count;
		else if (kind == HF_NUMBER)
			on = hf_config_f64(generation, keys[i].key, -INFINITY, INFINITY, &number, NULL) || number != keys[i].neutral;
		else
			on = kind == HF_STRING || kind == HF_OBJECT;
		if (on && at < size)
			at += (size_t)snprintf(ret_text + at, size - at, at ? ", %s" : "%s", keys[i].key);
	}
}

static enum status optional_f64(const struct hf_config *config, const char *key, double min, double max, bool *ret_has,
    double *ret, struct error *error)
{
	*ret_has = hf_config_kind(config, key) != HF_ABSENT;
	return *ret_has ? hf_config_f64(config, key, min, max, ret, error) : STATUS_OK;
}

static enum status read_generation(const struct hf_config *from, struct hf_generation *ret, struct error *error)
{
	int64_t     top_k = 0;
	enum status status = optional_f64(from, "temperature", 0, 100, &ret->has_temperature, &ret->temperature, error);

	if (!status)
		status = optional_f64(from, "top_p", 1e-9, 1, &ret->has_top_p, &ret->top_p, error);
	if (!status)
		status = optional_f64(from, "min_p", 0, 1, &ret->has_min_p, &ret->min_p, error);
	if (!status)
		status = optional_f64(from, "repetition_penalty", 1e-3, 1e3, &ret->has_repetition_penalty, &ret->repetition_penalty, error);
	ret->has_top_k = hf_config_kind(from, "top_k") != HF_ABSENT;
	if (!status)
		status = hf_config_i64_or(from, "top_k", -1, INT32_MAX, 0, &top_k, error);
	ret->top_k = top_k > 0 ? (uint32_t)top_k : 0; /* some write −1 for off */
	ret->has_max_new_tokens = hf_config_kind(from, "max_new_tokens") != HF_ABSENT;
	if (!status)
		status = hf_config_u32_or(from, "max_new_tokens", 1, INT32_MAX, 0, &ret->max_new_tokens, error);
	ret->has_do_sample = hf_config_kind(from, "do_sample") != HF_ABSENT;
	if (!status)
		status = hf_config_bool_or(from, "do_sample", false, &ret->do_sample, error);
	if (!status)
		list_unapplied(from, ret->unapplied, sizeof ret->unapplied);
	return status;
}

enum status hf_generation_from(const struct hf_config *config, const struct hf_config *generation,
    const struct hf_config *tokenizer, uint32_t vocab, struct hf_generation *ret, struct error *error)
{
	struct hf_generation result = { .eos_count = 0 };
	struct hf_config     text;
	enum status          status = hf_config_text(config, &text, error);

	if (!status && vocab == 0)
		return error_set(error, STATUS_INVALID, "%s: a vocabulary without tokens", config->label);
	if (!status)
		status = add_eos_ids(&result, config, vocab, error);
	if (!status)
		status = add_eos_ids(&result, &text, vocab, error);
	if (!status && generation)
		status = add_eos_ids(&result, generation, vocab, error);
	if (!status && generation)
		status = read_generation(generation, &result, error);
	if (!status && tokenizer)
		status = read_tokenizer(tokenizer, vocab, &result, error);
	if (!status)
		*ret = result;
	return status;
}

/* Opens DIRECTORY/NAME; an absent file leaves *ret as it is. */
static enum status open_optional(const char *directory, const char *name, struct hf_config *ret, struct error *error)
{
	char       *path;
	enum status status;

	if (asprintf(&path, "%s/%s", directory, name) < 0)
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", directory);
	status = hf_config_open(path, ret, error);
	free(path);
	return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

enum status hf_generation_read(const char *directory, const struct hf_config *config, uint32_t vocab,
    struct hf_generation *ret, struct error *error)
{
	struct hf_config generation = { .object = NULL }, tokenizer = { .object = NULL };
	enum status      status = open_optional(directory, "generation_config.json", &generation, error);

	if (!status)
		status = open_optional(directory, "tokenizer_config.json", &tokenizer, error);
	if (!status)
		status = hf_generation_from(config, generation.object ? &generation : NULL,
		    tokenizer.object ? &tokenizer : NULL, vocab, ret, error);
	hf_config_close(&generation);
	hf_config_close(&tokenizer);
	return status;
}
