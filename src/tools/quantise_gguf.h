/* quantise_gguf.h: what a GGUF file becomes in a directory of the hub: names of tensors, config.json, tokenizer.  For plain
 * decoders: llama, qwen2, qwen3. */
#ifndef PENSTOCK_TOOLS_QUANTISE_GGUF_H
#define PENSTOCK_TOOLS_QUANTISE_GGUF_H

#include "file/gguf.h"
#include "model/model.h"

#include <jansson.h>

enum { QUANTISE_NAME_MAX = 256 };

/* "blk.3.attn_q.weight" → "model.layers.3.self_attn.q_proj.weight"; STATUS_UNSUPPORTED for a name that is not known.
 * *ret_pairs: rows of so many lie as struct quantise_weight's PAIRS says; 0 = they do not. */
enum status quantise_gguf_name(const struct model_info *info, const char *name, char ret[QUANTISE_NAME_MAX],
    uint32_t *ret_pairs, struct error *error);

/* STATUS_UNSUPPORTED for architectures and values that it cannot say. */
enum status quantise_gguf_config(const struct gguf *gguf, const struct model_info *info, json_t **ret, struct error *error);

/* tokenizer.json and tokenizer_config.json (special tokens, chat template).  STATUS_UNSUPPORTED for vocabularies that are not
 * byte-level BPE. */
enum status quantise_gguf_tokenizer(const struct gguf *gguf, json_t **ret_tokenizer, json_t **ret_config, struct error *error);

#endif
