/* vocab.h: token id → bytes, which ids are special, and a fingerprint.  Both sides of a lane load it: the front to turn
 * ids into text, the batcher to know end-of-sequence ids and to prove that both mean the same ids.
 */
#ifndef PENSTOCK_VOCAB_VOCAB_H
#define PENSTOCK_VOCAB_VOCAB_H

#include "base/status.h"
#include "file/gguf.h"
#include "vocab/token_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VOCAB_SIZE_MAX = TOKEN_FILE_IDS_MAX, VOCAB_TOKEN_MAX = TOKEN_FILE_TOKEN_MAX, VOCAB_SPECIAL_MAX = TOKEN_FILE_SPECIAL_MAX,
	VOCAB_EOS_MAX = TOKEN_FILE_EOS_MAX };

enum vocab_kind {
	VOCAB_NORMAL,  /* bytes are what the token stands for */
	VOCAB_CONTROL, /* special: ends turns, opens roles; never shown as text */
	VOCAB_USER,    /* added token that is shown as text */
	VOCAB_UNUSED   /* padding row: never sampled */
};

struct vocab; /* opaque, immutable after load, freely shared between threads */

/* Every token is turned into the bytes it stands for.  FILE may go afterwards. */
enum status vocab_from_file(const struct token_file *file, struct vocab **ret, struct error *error);
/* Of the model at PATH, as token_file_open takes it. */
enum status vocab_open(const char *path, struct vocab **ret, struct error *error);
/* The same from GGUF metadata (tokenizer.ggml.*). */
enum status vocab_from_gguf(const struct gguf *gguf, struct vocab **ret, struct error *error);
void        vocab_free(struct vocab *vocab);

uint32_t        vocab_size(const struct vocab *vocab);
enum vocab_kind vocab_kind(const struct vocab *vocab, uint32_t id); /* VOCAB_UNUSED for ids out of range */
/* Bytes of a token, owned by the vocabulary; NULL and 0 for ids out of range. */
const char *vocab_bytes(const struct vocab *vocab, uint32_t id, size_t *ret_len);
/* The same for the first token of a text, which reads differently in some vocabularies ("##ing", " word"). */
const char *vocab_bytes_first(const struct vocab *vocab, uint32_t id, size_t *ret_len);
/* Does every token count as the first while none gave text? */
bool        vocab_first_lasts(const struct vocab *vocab);
/* The character that is dropped at the very beginning of a text, and how often at most (0: never). */
char        vocab_strip(const struct vocab *vocab, unsigned *ret_max);
/* The character that is replaced where bytes of several tokens make it, NULL when there is none, and by what. */
const char *vocab_joined(const struct vocab *vocab, const char **ret_content);
/* ID, a special token, is shown as SPELLING from now on: the reference shows what its normalizer made of it.  Only before
 * anything else uses VOCAB; the fingerprint stays. */
enum status vocab_respell(struct vocab *vocab, uint32_t id, const char *spelling, size_t len, struct error *error);
/* Id of the special token spelled TEXT (control or user), −1 when there is none. */
int32_t     vocab_special(const struct vocab *vocab, const char *text, size_t len);
/* Ids that end a sequence (eos, eot, …), at most VOCAB_EOS_MAX; returned pointer is owned by the vocabulary. */
const int32_t *vocab_eos(const struct vocab *vocab, size_t *ret_count);
int32_t        vocab_bos(const struct vocab *vocab); /* −1 = none */
bool           vocab_add_bos(const struct vocab *vocab);

/* Hash over size, kinds, bytes and eos ids: equal fingerprints mean equal vocabularies. */
uint64_t vocab_fingerprint(const struct vocab *vocab);

#endif
