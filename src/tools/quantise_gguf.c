/* quantise_gguf.c: owns the translation of a GGUF file's names, values and vocabulary into those of the hub.  Does not own
 * weights.  Invariant: what it cannot say exactly it refuses by name. */
#include "tools/quantise_gguf.h"

#include "vocab/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 128 };

static const struct {
	const char *gguf, *hub;
} names[] = {
	{ "token_embd", "model.embed_tokens" }, { "output_norm", "model.norm" }, { "output", "lm_head" },
	{ "attn_norm", "input_layernorm" }, { "attn_q", "self_attn.q_proj" }, { "attn_k", "self_attn.k_proj" },
	{ "attn_v", "self_attn.v_proj" }, { "attn_output", "self_attn.o_proj" }, { "attn_q_norm", "self_attn.q_norm" },
	{ "attn_k_norm", "self_attn.k_norm" }, { "ffn_norm", "post_attention_layernorm" }, { "ffn_gate", "mlp.gate_proj" },
	{ "ffn_up", "mlp.up_proj" }, { "ffn_down", "mlp.down_proj" },
};

enum status quantise_gguf_name(const struct model_info *info, const char *name, char ret[QUANTISE_NAME_MAX],
    uint32_t *ret_pairs, struct error *error)
{
	unsigned    layer = 0;
	int         taken = 0;
	bool        in_layer = sscanf(name, "blk.%u.%n", &layer, &taken) == 1 && taken;
	const char *base = name + (in_layer ? taken : 0), *ending = strrchr(base, '.');
	size_t      length = ending ? (size_t)(ending - base) : 0;

	for (size_t i = 0; i < sizeof names / sizeof *names && ending; i++) {
		bool rotated = strcmp(names[i].gguf, "attn_q") == 0 || strcmp(names[i].gguf, "attn_k") == 0;
		int  written;

		if (strlen(names[i].gguf) != length || memcmp(names[i].gguf, base, length) != 0)
			continue;
		written = in_layer ? snprintf(ret, QUANTISE_NAME_MAX, "model.layers.%u.%s%s", layer, names[i].hub, ending) :
		    snprintf(ret, QUANTISE_NAME_MAX, "%s%s", names[i].hub, ending);
		if (written < 0 || written >= QUANTISE_NAME_MAX)
			break;
		*ret_pairs = rotated && strcmp(info->architecture, "llama") == 0 ? info->kv_groups[0].head_dim : 0;
		return STATUS_OK;
	}
	return error_set(error, STATUS_UNSUPPORTED, "tensor %.160s has no name on the hub that is known here", name);
}

/* ---- config.json ---- */

static enum status integer(const struct gguf *gguf, const struct model_info *info, const char *key, bool required, json_t *config,
    const char *hub, struct error *error)
{
	char        name[KEY_MAX];
	uint64_t    value = 0;
	enum status status;

	snprintf(name, sizeof name, "%s.%s", info->architecture, key);
	status = gguf_get_u64(gguf, name, &value, error);
	if (status == STATUS_NOT_FOUND && !required)
		return STATUS_OK;
	if (!status)
		json_object_set_new(config, hub, json_integer((json_int_t)value));
	return status;
}

static enum status real(const struct gguf *gguf, const struct model_info *info, const char *key, double fallback, json_t *config,
    const char *hub, struct error *error)
{
	char        name[KEY_MAX];
	double      value = fallback;
	enum status status;

	snprintf(name, sizeof name, "%s.%s", info->architecture, key);
	status = gguf_get_f64(gguf, name, &value, error);
	if (status && status != STATUS_NOT_FOUND)
		return status;
	json_object_set_new(config, hub, json_real(value));
	return STATUS_OK;
}

/* Rotations that config.json would need more words for. */
static enum status refuse_scaling(const struct gguf *gguf, const struct model_info *info, struct error *error)
{
	char        name[KEY_MAX];
	const char *type = "";
	size_t      length = 0;
	uint64_t    dims = info->kv_groups[0].head_dim;

	snprintf(name, sizeof name, "%s.rope.scaling.type", info->architecture);
	gguf_get_string(gguf, name, &type, &length, NULL);
	if (gguf_tensor_find(gguf, "rope_freqs.weight") || (length && (length != 4 || memcmp(type, "none", 4) != 0)))
		return error_set(error, STATUS_UNSUPPORTED, "a GGUF file with scaled rotary embeddings (%s) cannot become a config.json "
		    "here", length ? name : "rope_freqs.weight");
	snprintf(name, sizeof name, "%s.rope.dimension_count", info->architecture);
	gguf_get_u64(gguf, name, &dims, NULL);
	if (dims != info->kv_groups[0].head_dim)
		return error_set(error, STATUS_UNSUPPORTED, "%s = %llu, not the %u of a head, cannot become a config.json here", name,
		    (unsigned long long)dims, info->kv_groups[0].head_dim);
	return STATUS_OK;
}

static bool has_tensor(const struct gguf *gguf, const char *name) { return gguf_tensor_find(gguf, name) != NULL; }

/* All tokens that end an answer: one, or a list. */
static void set_eos(const struct gguf *gguf, json_t *config)
{
	static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
		"tokenizer.ggml.eom_token_id" };
	json_t  *list = json_array();
	uint64_t id;

	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		size_t at = 0;

		if (gguf_get_u64(gguf, ends[i], &id, NULL))
			continue;
		while (at < json_array_size(list) && json_integer_value(json_array_get(list, at)) != (json_int_t)id)
			at++;
		if (at == json_array_size(list))
			json_array_append_new(list, json_integer((json_int_t)id));
	}
	if (json_array_size(list) == 1)
		json_object_set(config, "eos_token_id", json_array_get(list, 0));
	else if (json_array_size(list))
		json_object_set(config, "eos_token_id", list);
	json_decref(list);
}

enum status quantise_gguf_config(const struct gguf *gguf, const struct model_info *info, json_t **ret, struct error *error)
{
	static const struct {
		const char *name, *class;
	} known[] = { { "llama", "LlamaForCausalLM" }, { "qwen2", "Qwen2ForCausalLM" }, { "qwen3", "Qwen3ForCausalLM" } };
	static const struct {
		const char *key, *hub;
		bool        required;
	} integers[] = { { "block_count", "num_hidden_layers", true }, { "context_length", "max_position_embeddings", true },
		{ "embedding_length", "hidden_size", true }, { "feed_forward_length", "intermediate_size", true },
		{ "attention.head_count", "num_attention_heads", true }, { "attention.head_count_kv", "num_key_value_heads", false } };
	bool        bias = has_tensor(gguf, "blk.0.attn_q.bias"), output_bias = has_tensor(gguf, "blk.0.attn_output.bias");
	uint64_t    id;
	size_t      k = 0;
	json_t     *config;
	enum status status = refuse_scaling(gguf, info, error);

	while (k < sizeof known / sizeof *known && strcmp(known[k].name, info->architecture) != 0)
		k++;
	if (k == sizeof known / sizeof *known)
		return error_set(error, STATUS_UNSUPPORTED, "a GGUF file of %s cannot become a config.json here: llama, qwen2 and qwen3 "
		    "can", info->architecture);
	if (!status && k != 1 && bias != output_bias)
		status = error_set(error, STATUS_UNSUPPORTED, "a GGUF file of %s with %s alone cannot become a config.json here",
		    info->architecture, bias ? "attn_q.bias" : "attn_output.bias");
	if (status)
		return status;
	config = json_pack("{s:[s], s:s, s:s, s:s, s:i, s:i, s:b, s:b, s:b}", "architectures", known[k].class, "model_type",
	    known[k].name, "hidden_act", "silu", "torch_dtype", "bfloat16", "vocab_size", (int)info->vocab, "head_dim",
	    (int)info->kv_groups[0].head_dim, "tie_word_embeddings", !has_tensor(gguf, "output.weight"), "attention_bias", (int)bias,
	    "mlp_bias", has_tensor(gguf, "blk.0.ffn_down.bias"));
	if (!config)
		return error_set(error, STATUS_NOMEM, "no memory for a config.json");
	for (size_t i = 0; i < sizeof integers / sizeof *integers && !status; i++)
		status = integer(gguf, info, integers[i].key, integers[i].required, config, integers[i].hub, error);
	if (!status)
		status = real(gguf, info, "attention.layer_norm_rms_epsilon", 1e-5, config, "rms_norm_eps", error);
	if (!status)
		status = real(gguf, info, "rope.freq_base", 10000, config, "rope_theta", error);
	if (gguf_get_u64(gguf, "tokenizer.ggml.bos_token_id", &id, NULL) == STATUS_OK)
		json_object_set_new(config, "bos_token_id", json_integer((json_int_t)id));
	set_eos(gguf, config);
	if (status)
		json_decref(config);
	else
		*ret = config;
	return status;
}

/* ---- tokenizer.json ---- */

static json_t *spelling(const struct token_file *file, uint32_t id)
{
	size_t      length;
	const char *text = token_file_spelling(file, id, &length);

	return text ? json_stringn(text, length) : NULL;
}

/* What the tokenizers library needs and has no fallback for. */
static void complete_component(json_t *component)
{
	json_t     *value;
	const char *key, *type = json_string_value(json_object_get(component, "type"));
	size_t      i;

	if (type && strcmp(type, "ByteLevel") == 0)
		json_object_set_new(component, "trim_offsets", json_true());
	json_object_foreach(component, key, value) {
		json_t *item;

		json_array_foreach(value, i, item)
			complete_component(item);
	}
}

/* The frame of a text, with what the tokenizers library wants to know beside it; null where there is none. */
static json_t *post_processor(const struct token_file *file)
{
	json_t     *frame = file->post_processor ? json_deep_copy(file->post_processor) : NULL, *special, *value, *pair;
	const char *key;

	special = json_object_get(frame, "special_tokens");
	if (!json_object_size(special)) {
		json_decref(frame);
		return json_null();
	}
	json_object_foreach(special, key, value)
		json_object_set_new(value, "tokens", json_pack("[O]", json_object_get(value, "id")));
	pair = json_deep_copy(json_object_get(frame, "single"));
	json_array_append_new(pair, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "B", "type_id", 1));
	json_object_set_new(frame, "pair", pair);
	return frame;
}

static json_t *added_tokens(const struct token_file *file)
{
	json_t *list = json_array();

	for (size_t i = 0; i < file->added_count; i++) {
		const struct token_added *added = &file->added[i];

		json_array_append_new(list, json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (int)added->id, "content",
		    spelling(file, added->id), "single_word", (int)added->single_word, "lstrip", (int)added->lstrip, "rstrip",
		    (int)added->rstrip, "normalized", (int)added->normalized, "special", (int)added->special));
	}
	return list;
}

static enum status bpe_model(const struct token_file *file, json_t **ret, struct error *error)
{
	json_t *vocab = json_object(), *merges = json_array();

	for (uint32_t id = 0; id < file->size; id++) {
		size_t      length;
		const char *text = token_file_spelling(file, id, &length);

		if (!text)
			continue;
		if (json_object_getn(vocab, text, length) || json_object_setn_new(vocab, text, length, json_integer(id))) {
			json_decref(vocab);
			json_decref(merges);
			return error_set(error, STATUS_UNSUPPORTED, "token %u is spelled as another one, or not in UTF-8: tokenizer.json "
			    "cannot say that", id);
		}
	}
	for (size_t i = 0; i < file->merge_count; i++) {
		const struct token_merge *merge = &file->merges[i];
		const char               *left = file->text.data + merge->at;

		json_array_append_new(merges, json_pack("[s%, s%]", left, (size_t)merge->left_len, left + merge->left_len,
		    (size_t)merge->right_len));
	}
	*ret = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
	    "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges",
	    (int)file->ignore_merges, "vocab", vocab, "merges", merges);
	return *ret ? STATUS_OK : error_set(error, STATUS_NOMEM, "no memory for a tokenizer.json");
}

static json_t *tokenizer_config(const struct gguf *gguf, const struct token_file *file)
{
	json_t     *config = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0);
	const char *template;
	size_t      length;
	uint64_t    eos;

	if (file->bos >= 0)
		json_object_set_new(config, "bos_token", spelling(file, (uint32_t)file->bos));
	if (gguf_get_u64(gguf, "tokenizer.ggml.eos_token_id", &eos, NULL) == STATUS_OK && eos < file->size)
		json_object_set_new(config, "eos_token", spelling(file, (uint32_t)eos));
	if (gguf_get_string(gguf, "tokenizer.chat_template", &template, &length, NULL) == STATUS_OK)
		json_object_set_new(config, "chat_template", json_stringn(template, length));
	return config;
}

enum status quantise_gguf_tokenizer(const struct gguf *gguf, json_t **ret_tokenizer, json_t **ret_config, struct error *error)
{
	struct token_file file;
	json_t           *model = NULL, *split, *decoder;
	enum status       status = token_file_from_gguf(gguf, false, &file, error);

	if (status)
		return status;
	if (file.model != TOKEN_BPE || file.merges_by_score || !token_file_is_byte_level(&file))
		status = error_set(error, STATUS_UNSUPPORTED, "only byte-level BPE vocabularies become a tokenizer.json here");
	if (!status)
		status = bpe_model(&file, &model, error);
	if (!status) {
		split = json_deep_copy(file.pre_tokenizer);
		decoder = json_deep_copy(file.decoder);
		complete_component(split);
		complete_component(decoder);
		*ret_tokenizer = json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
		    "added_tokens", added_tokens(&file), "normalizer", "pre_tokenizer", split, "post_processor", post_processor(&file),
		    "decoder", decoder, "model", model);
		*ret_config = tokenizer_config(gguf, &file);
		if (!*ret_tokenizer || !*ret_config)
			status = error_set(error, STATUS_NOMEM, "no memory for a tokenizer.json");
	}
	token_file_free(&file);
	return status;
}
