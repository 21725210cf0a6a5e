/* normalizer_spm.h: what SentencePiece's normalizer does to a text, as tokenizer.json has it (Precompiled) and as
 * SentencePiece itself does. */
#ifndef PENSTOCK_TEXT_NORMALIZER_SPM_H
#define PENSTOCK_TEXT_NORMALIZER_SPM_H

#include "base/buf.h"
#include "text/added.h"
#include "text/charsmap.h"

#include <stdbool.h>

/* The reference maps grapheme clusters shorter than six bytes as a whole (by the shortest key they begin with), the rest
 * character by character. */
enum status normalizer_precompiled(const struct charsmap *map, const char *text, size_t len, struct buf *out);

/* The longest key at each place; then spaces become U+2581.  PREFIX: one stands before the text.  COLLAPSE: runs of spaces
 * become one, those at both ends go.  Tokens of VERBATIM (NULL: none) are left as they are. */
enum status normalizer_sentencepiece(const struct charsmap *map, const struct added_set *verbatim, bool prefix, bool collapse,
    const char *text, size_t len, struct buf *out);

#endif
