/* hf_config.h: typed, range-checked reading of config.json and its neighbours in a model directory (Hugging Face).
 *
 * A struct hf_config is a view of one JSON object and its path, so that every message says where: "DIR/config.json:
 * rope_parameters.factor = 0.5: a number in 1…1e+06 is needed".  hf_config_open makes the view of the whole document
 * and owns it; views of objects inside borrow from it.  Keys are plain names; a null counts as absent everywhere, and in
 * an absent object every key is absent.
 *
 * Getters come in pairs: NAME needs the key (STATUS_NOT_FOUND naming it when absent), NAME_or takes a fallback.  A key of
 * the wrong type or out of range is STATUS_INVALID.  Strings belong to the document.
 */
#ifndef PENSTOCK_FILE_HF_CONFIG_H
#define PENSTOCK_FILE_HF_CONFIG_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t; /* jansson's */

enum hf_config_limits {
	HF_CONFIG_LABEL_MAX = 160, HF_CONFIG_PATH_MAX = 128, /* bytes shown in messages; longer ones are cut */
	HF_CONFIG_LIST_MAX = 1 << 20,                        /* items of a list */
	HF_EOS_MAX = 64,
	HF_TEXT_MAX = 256                                    /* bytes of the spelling of a token */
};

struct hf_config {
	struct json_t *object;                      /* NULL: absent */
	bool           owner;
	char           label[HF_CONFIG_LABEL_MAX];  /* the file */
	char           path[HF_CONFIG_PATH_MAX];    /* "" at the top, else "a.b." */
};

enum status hf_config_open(const char *path, struct hf_config *ret, struct error *error);
enum status hf_config_parse(const void *bytes, size_t size, const char *label, struct hf_config *ret, struct error *error);
void        hf_config_close(struct hf_config *config); /* views need no closing; closing them does nothing */

enum hf_kind { HF_ABSENT, HF_BOOL, HF_NUMBER, HF_STRING, HF_LIST, HF_OBJECT };
enum hf_kind hf_config_kind(const struct hf_config *config, const char *key);

/* A number without a fraction, 8 or 8.0. */
enum status hf_config_u32(const struct hf_config *config, const char *key, uint32_t min, uint32_t max, uint32_t *ret,
    struct error *error);
enum status hf_config_u32_or(const struct hf_config *config, const char *key, uint32_t min, uint32_t max, uint32_t fallback,
    uint32_t *ret, struct error *error);
enum status hf_config_i64(const struct hf_config *config, const char *key, int64_t min, int64_t max, int64_t *ret,
    struct error *error);
enum status hf_config_i64_or(const struct hf_config *config, const char *key, int64_t min, int64_t max, int64_t fallback,
    int64_t *ret, struct error *error);
enum status hf_config_f64(const struct hf_config *config, const char *key, double min, double max, double *ret,
    struct error *error);
enum status hf_config_f64_or(const struct hf_config *config, const char *key, double min, double max, double fallback,
    double *ret, struct error *error);
enum status hf_config_bool(const struct hf_config *config, const char *key, bool *ret, struct error *error);
enum status hf_config_bool_or(const struct hf_config *config, const char *key, bool fallback, bool *ret, struct error *error);
enum status hf_config_string(const struct hf_config *config, const char *key, const char **ret, struct error *error);
enum status hf_config_string_or(const struct hf_config *config, const char *key, const char *fallback, const char **ret,
    struct error *error);
/* One of WORDS (ended by NULL); its index.  The message lists them. */
enum status hf_config_word(const struct hf_config *config, const char *key, const char *const *words, unsigned *ret,
    struct error *error);
enum status hf_config_word_or(const struct hf_config *config, const char *key, const char *const *words, unsigned fallback,
    unsigned *ret, struct error *error);

/* Lists.  A bare number or string counts as a list of one, an absent key as an empty list. */
enum status hf_config_u32_list(const struct hf_config *config, const char *key, uint32_t min, uint32_t max, uint32_t *ret_items,
    size_t capacity, size_t *ret_count, struct error *error);
enum status hf_config_string_count(const struct hf_config *config, const char *key, size_t max, size_t *ret, struct error *error);
/* INDEX below what hf_config_string_count returned. */
enum status hf_config_string_at(const struct hf_config *config, const char *key, size_t index, const char **ret,
    struct error *error);

/* The object under KEY, absent or not. */
enum status hf_config_object(const struct hf_config *config, const char *key, struct hf_config *ret, struct error *error);
/* The keys of an object in file order: the one after KEY (NULL: the first), NULL at the end. */
const char *hf_config_next_key(const struct hf_config *config, const char *key);

/* text_config where there is one (multimodal checkpoints keep the language model's values there), else the same object. */
enum status hf_config_text(const struct hf_config *config, struct hf_config *ret, struct error *error);
/* "dtype" or the older "torch_dtype" without "torch."; "" when absent.  Says nothing about quantised tensors. */
enum status hf_config_dtype(const struct hf_config *config, const char **ret, struct error *error);
/* quantization_config (older compressed-tensors: compression_config) and its quant_method; an absent object and "" when
 * the checkpoint is not quantised. */
enum status hf_config_quantization(const struct hf_config *config, struct hf_config *ret, const char **ret_method,
    struct error *error);

/* Rotary position embedding, from any spelling: rope_scaling where it says something, else rope_parameters (transformers
 * 5); what the object lacks comes from the top-level rope_theta and partial_rotary_factor.  Other rope types are
 * STATUS_UNSUPPORTED. */
enum hf_rope_type { HF_ROPE_DEFAULT, HF_ROPE_LINEAR, HF_ROPE_DYNAMIC, HF_ROPE_LLAMA3, HF_ROPE_YARN };
struct hf_rope {
	enum hf_rope_type type;
	double            theta;
	double            partial;             /* share of the head's dimensions that is rotated, (0, 1] */
	double            factor;              /* 1 for default */
	uint32_t          original_context;    /* llama3, yarn; 0 otherwise */
	uint32_t          max_context;         /* max_position_embeddings: where dynamic begins to scale; 0 when absent */
	double            low_freq_factor, high_freq_factor;        /* llama3 */
	double            beta_fast, beta_slow, attention_factor;   /* yarn; attention_factor is 1 for the others */
	double            mscale_all_dim;      /* yarn, 0 when absent: some MLA models square it into the softmax scale */
	bool              truncate;            /* yarn: round the ramp's ends to whole dimensions */
};
enum status hf_config_rope(const struct hf_config *config, double default_theta, double default_partial, struct hf_rope *ret,
    struct error *error);

/* What a model says about generating with it. */
struct hf_generation {
	uint32_t eos[HF_EOS_MAX]; /* union over config, text_config, generation_config and tokenizer_config, each once */
	size_t   eos_count;
	char     eos_text[HF_TEXT_MAX]; /* tokenizer_config's eos token when only the vocabulary can say its id; "" else */
	/* Sampling defaults, below what a request says.  Each holds only if its flag is set. */
	bool     has_do_sample, has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty, has_max_new_tokens;
	bool     do_sample;
	double   temperature, top_p, min_p, repetition_penalty;
	uint32_t top_k; /* 0: off */
	uint32_t max_new_tokens;
	char     unapplied[HF_TEXT_MAX]; /* "no_repeat_ngram_size, suppress_tokens": set there, beyond this struct; "" for none */
};
/* Reads generation_config.json and tokenizer_config.json beside config.json in DIRECTORY, where they exist.  Token ids
 * must be below VOCAB. */
enum status hf_generation_read(const char *directory, const struct hf_config *config, uint32_t vocab,
    struct hf_generation *ret, struct error *error);
/* The same from documents at hand; NULL for those that do not exist. */
enum status hf_generation_from(const struct hf_config *config, const struct hf_config *generation,
    const struct hf_config *tokenizer, uint32_t vocab, struct hf_generation *ret, struct error *error);

#endif
