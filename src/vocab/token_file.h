/* token_file.h: what a tokenizer's file says, in one form whatever its format: tokenizer.json, tokenizer.model
 * (SentencePiece, or a rank file of tiktoken), the metadata of a GGUF file.
 *
 * The components around the model (normalizer, pre-tokenizer, post-processor, decoder) are JSON objects as tokenizer.json
 * spells them; the other formats are translated into it, so that each component exists once.  Nothing here is trusted:
 * counts, lengths and ids are checked while reading.  The file may be closed afterwards.
 */
#ifndef PENSTOCK_VOCAB_TOKEN_FILE_H
#define PENSTOCK_VOCAB_TOKEN_FILE_H

#include "base/buf.h"
#include "base/status.h"
#include "file/gguf.h"
#include "vocab/token_index.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t; /* jansson's */

enum token_file_limits {
	TOKEN_FILE_IDS_MAX = 1 << 20, TOKEN_FILE_MERGES_MAX = 1 << 21,
	TOKEN_FILE_TOKEN_MAX = 1 << 16,          /* bytes of one token */
	TOKEN_FILE_TEXT_MAX = 1 << 28,           /* bytes of all tokens and merges */
	TOKEN_FILE_BYTES_MAX = 1 << 28,          /* of a file */
	TOKEN_FILE_SPECIAL_MAX = 256,            /* bytes of an added token */
	TOKEN_FILE_ADDED_MAX = 1 << 16,
	TOKEN_FILE_EOS_MAX = 16,
	TOKEN_FILE_AFFIX_MAX = 32                /* bytes of a continuing prefix or end-of-word suffix */
};

enum token_model { TOKEN_BPE, TOKEN_WORDPIECE, TOKEN_UNIGRAM, TOKEN_WORDLEVEL };

enum token_kind {
	TOKEN_ABSENT,  /* no token has this id */
	TOKEN_PADDING, /* a spelling that nothing ever stands for */
	TOKEN_NORMAL,
	TOKEN_CONTROL, /* exists as an id; in text only where it is an added token too */
	TOKEN_USER,    /* a token that is text and found in text before the model looks at it */
	TOKEN_BYTE     /* spelled <0xXX>, stands for that byte */
};

struct token_spelling {
	uint32_t at, len; /* in text */
};

struct token_merge {
	uint32_t at, left_len, right_len; /* in text: the left part, then the right one */
};

struct token_added {
	uint32_t id;
	bool     special, single_word, lstrip, rstrip, normalized;
};

struct token_file {
	enum token_model       model;
	struct buf             text;
	uint32_t               size;       /* ids are below it */
	uint32_t               model_size; /* the ids of the model itself, before added tokens */
	struct token_spelling *spellings; /* [size] */
	unsigned char         *kinds;     /* [size] of enum token_kind */
	double                *scores;    /* [size] for Unigram and for BPE by scores; else NULL */
	struct token_merge    *merges;    /* lower index merges first */
	size_t                 merge_count;
	struct token_added    *added;     /* ascending ids, each at most once */
	size_t                 added_count;
	uint32_t               ids_capacity;
	size_t                 merge_capacity, added_capacity;
	struct token_index     index; /* of the model's spellings, where the reader made one; else entries is NULL */

	/* The model. */
	bool    merges_by_score; /* every pair whose concatenation is a token merges, the highest score first */
	bool    byte_fallback, fuse_unk, ignore_merges;
	int32_t unk;             /* −1: none */
	char    prefix[TOKEN_FILE_AFFIX_MAX + 1], suffix[TOKEN_FILE_AFFIX_MAX + 1];
	size_t  max_word_chars;  /* WordPiece */

	/* The components; NULL: none. */
	struct json_t *normalizer, *pre_tokenizer, *post_processor, *decoder;
	bool           sentencepiece; /* the normalizer is SentencePiece's own: {"type": "SentencePiece"}, with this table: */
	char          *charsmap;      /* owned; NULL: none */
	size_t         charsmap_len;

	int32_t eos[TOKEN_FILE_EOS_MAX];
	size_t  eos_count;
	int32_t bos; /* −1: none */
	bool    add_bos;
};

/* PATH: a model directory (tokenizer.json, else tokenizer.model; its configuration says which ids end a sequence), a
 * tokenizer.json, a tokenizer.model, or a GGUF file.  Told apart by content. */
enum status token_file_open(const char *path, struct token_file *ret, struct error *error);
/* VOCABULARY_ONLY: without what only encoding needs (merges, pre-tokenizer), which then need not be known here. */
enum status token_file_from_gguf(const struct gguf *gguf, bool vocabulary_only, struct token_file *ret, struct error *error);
/* From bytes, which may go afterwards.  LABEL begins messages. */
enum status token_file_from_json(const char *bytes, size_t len, const char *label, struct token_file *ret, struct error *error);
enum status token_file_from_spm(const char *bytes, size_t len, const char *label, struct token_file *ret, struct error *error);
/* SPLIT: what tokenizer.ggml.pre calls the split of text, which a rank file does not say; "": the one of the well-known file
 * that has as many ranks, STATUS_UNSUPPORTED when none has. */
enum status token_file_from_tiktoken(const char *bytes, size_t len, const char *label, const char *split, struct token_file *ret,
    struct error *error);
bool        token_file_is_tiktoken(const char *bytes, size_t len); /* do they begin like a rank file? */
void        token_file_free(struct token_file *file); /* NULL and half-built ones are fine */

const char *token_file_spelling(const struct token_file *file, uint32_t id, size_t *ret_len);
/* Is the pre-tokenizer's last step ByteLevel?  Then the model sees bytes, each spelled as one character (bytelevel.h). */
bool token_file_is_byte_level(const struct token_file *file);

/* What lies beside the file in a model directory: the objects (NULL: absent) of tokenizer_config.json, special_tokens_map.json and
 * added_tokens.json.  A token that is only named gets an id of its own if one below ROWS is left. */
struct token_names {
	int32_t bos, eos; /* −1: not named */
};
enum status token_file_merge_special(struct token_file *file, const struct json_t *tokenizer, const struct json_t *special,
    const struct json_t *added, uint32_t rows, struct token_names *ret, struct error *error);
/* Only the ids that DECODER, an added_tokens_decoder, states: control tokens, which text never spells. */
enum status token_file_add_stated(struct token_file *file, const struct json_t *decoder, struct error *error);

/* For the readers. */
void        token_file_init(struct token_file *file);
enum status token_file_add_text(struct token_file *file, const char *bytes, size_t len, uint32_t *ret_at);
/* STATUS_INVALID when ID has a token already, STATUS_LIMIT; *error is filled. */
enum status token_file_add(struct token_file *file, uint32_t id, const char *bytes, size_t len, enum token_kind kind,
    struct error *error);
enum status token_file_add_merge(struct token_file *file, const char *left, size_t left_len, const char *right,
    size_t right_len, struct error *error);
enum status token_file_add_added(struct token_file *file, const struct token_added *added, struct error *error);
enum status token_file_add_eos(struct token_file *file, int64_t id, struct error *error);
/* The pre-tokenizer that tokenizer.ggml.pre calls NAME. */
enum status token_file_set_split(struct token_file *file, const char *name, size_t len, struct error *error);
enum status token_file_finish(struct token_file *file, struct error *error); /* sorts, checks, sizes */

#endif
