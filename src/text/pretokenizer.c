/* pretokenizer.c: owns the splitting rules.  Knows no token ids.
 *
 * The rule of GPT-2, first alternative that matches at the current place:
 *
 *     's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
 *
 * smollm first isolates every number character; what lies between is split by the rule above, each stretch as a text of its
 * own.  A byte that is not UTF-8 ends a stretch in the same way.  Written by hand because a stretch can then be cut while
 * it is scanned, the character tables are ours, and every piece costs time linear in its length; tests/unit/test_tokenizer
 * compares it with the expression itself.
 *
 * Invariant: pieces are not empty and their concatenation is the text.
 */
#include "text/pretokenizer.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <string.h>

/* What stands at a place: a class of character, or the end of the stretch. */
enum { END = -1 };

static int class_at(enum pretokenizer type, const char *text, size_t len, size_t *ret_bytes)
{
	uint32_t code = 0;
	int      n, class;

	if (len == 0)
		return END;
	n = utf8_decode(text, len, &code);
	if (n <= 0)
		return END;
	*ret_bytes = (size_t)n;
	class = (int)unicode_class_of(code);
	return type == PRETOKENIZER_SMOLLM && class == UNICODE_NUMBER ? END : class;
}

bool pretokenizer_find(const char *name, size_t len, enum pretokenizer *ret)
{
	static const struct {
		const char       *name;
		enum pretokenizer type;
	} known[] = { { "gpt-2", PRETOKENIZER_GPT2 }, { "smollm", PRETOKENIZER_SMOLLM } };

	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strlen(known[i].name) == len && memcmp(known[i].name, name, len) == 0) {
			*ret = known[i].type;
			return true;
		}
	return false;
}

/* Bytes of the contraction at TEXT, 0 when there is none. */
static size_t contraction(const char *text, size_t len)
{
	static const char *const suffixes[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };

	for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
		size_t n = strlen(suffixes[i]);
		if (len >= n && memcmp(text, suffixes[i], n) == 0)
			return n;
	}
	return 0;
}

/* Bytes of the run of CLASS that starts at AT; *ret_last: bytes of its last character; *ret_next: what ends it. */
static size_t run(enum pretokenizer type, int class, const char *text, size_t len, size_t at, size_t *ret_last, int *ret_next)
{
	size_t bytes = 0, last = 0;
	int    next;

	for (;;) {
		next = class_at(type, text + at, len - at, &bytes);
		if (next != class)
			break;
		last = bytes;
		at += bytes;
	}
	*ret_last = last;
	*ret_next = next;
	return at;
}

size_t pretokenizer_next(enum pretokenizer type, const char *text, size_t len)
{
	size_t   bytes = 0, last, end, start;
	int      class = class_at(type, text, len, &bytes), next;
	uint32_t code;

	if (class == END) { /* a number that stands alone, or a byte that is no UTF-8 */
		int n = utf8_decode(text, len, &code);
		return n > 0 ? (size_t)n : 1;
	}
	if (text[0] == '\'') {
		size_t n = contraction(text, len);
		if (n)
			return n;
	}
	start = 0;
	if (text[0] == ' ') { /* " ?": joins what follows unless that is white space */
		next = class_at(type, text + 1, len - 1, &bytes);
		if (next != END && next != UNICODE_SPACE) {
			class = next;
			start = 1;
		}
	}
	end = run(type, class, text, len, start, &last, &next);
	/* White space before something else leaves its last character to it, unless it has only one. */
	if (class == UNICODE_SPACE && next != END && end > last)
		end -= last;
	return end;
}
