/* decoder.h: from the spelling of a token to the bytes it stands for: the decoder of a tokenizer.json, token by token.
 *
 * Streaming needs bytes that do not depend on later tokens.  So decoders are accepted as far as they work on single tokens,
 * with one exception each decoder family makes: the first token of a text (or all up to the first that gives text) may read
 * differently, and spaces at its very beginning may be dropped.  Behind ByteFallback one character may still be replaced, whose
 * bytes are several tokens' (joined).
 * What else joins tokens before it looks at them is refused at load.
 */
#ifndef PENSTOCK_VOCAB_DECODER_H
#define PENSTOCK_VOCAB_DECODER_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>

struct json_t; /* jansson's */

enum { DECODER_STEPS_MAX = 16, DECODER_AFFIX_MAX = 64 };

enum decoder_type { DECODER_BYTE_LEVEL, DECODER_BYTE_FALLBACK, DECODER_METASPACE, DECODER_REPLACE, DECODER_STRIP, DECODER_WORDPIECE,
	DECODER_SENTENCEPIECE, /* a U+2581 that heads the first token is dropped */
	DECODER_JOIN /* no decoder: tokens are joined by spaces */ };

struct decoder_step {
	enum decoder_type type;
	char              pattern[DECODER_AFFIX_MAX + 1], content[DECODER_AFFIX_MAX + 1]; /* terminated, without NULs */
	size_t            start, stop; /* STRIP */
	bool              flag;        /* METASPACE: a space was prepended; WORDPIECE: clean up */
};

struct decoder {
	struct decoder_step steps[DECODER_STEPS_MAX];
	size_t              count;
	bool                first_differs; /* the first token of a text reads differently … */
	bool                first_lasts;   /* … and so do further ones while they give no text */
	bool                own;           /* while loading: SentencePiece's own step is known */
	bool                fused;         /* while loading: from here on the text is one string */
	bool                bytes;         /* while loading: tokens may be bytes of a character here */
	char                joined[5];     /* character that is replaced where it is put together from tokens, "": none … */
	char                joined_content[DECODER_AFFIX_MAX + 1]; /* … by this */
	char                strip;         /* ASCII character dropped at the very beginning of a text … */
	unsigned            strip_max;     /* … at most so often */
};

/* COMPONENT may be NULL.  Refuses by name what it does not know; {"type": "SentencePiece", "remove_extra_whitespaces": bool} is
 * known with OWN only, no tokenizer.json has it. */
enum status decoder_init(struct decoder *decoder, const struct json_t *component, bool own, struct error *error);
/* The bytes of SPELLING; OUT is overwritten. */
enum status decoder_apply(const struct decoder *decoder, const char *spelling, size_t len, bool first, struct buf *out);

#endif
