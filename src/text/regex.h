/* regex.h: the regular expressions of tokenizer.json (Oniguruma's Ruby syntax), run by PCRE2. */
#ifndef PENSTOCK_TEXT_REGEX_H
#define PENSTOCK_TEXT_REGEX_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { REGEX_MAX = 1 << 14 /* bytes of an expression */ };

struct regex; /* opaque, immutable: threads may share it */

/* STATUS_UNSUPPORTED for what the two dialects mean differently and is not translated here. */
enum status regex_compile(const char *expression, size_t len, struct regex **ret, struct error *error);
void        regex_free(struct regex *regex);

/* One search through a text. */
struct regex_search {
	const struct regex *regex;
	const char         *text; /* well-formed UTF-8 */
	size_t              len, at, last_end;
	bool                matched; /* something, last at last_end */
	void               *match; /* owned */
};
enum status regex_search_begin(struct regex_search *search, const struct regex *regex, const char *text, size_t len);
/* The next match from where the last one ended, possibly of no bytes: STATUS_OK, STATUS_NOT_FOUND when there is none,
 * STATUS_LIMIT when the expression gave up (a pattern that backtracks without end). */
enum status regex_search_next(struct regex_search *search, size_t *ret_start, size_t *ret_end);
void        regex_search_end(struct regex_search *search);

#endif
