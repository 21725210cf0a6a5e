/* scanner.c: owns the hand-written splits.  Knows no token ids.
 *
 * Each function tries the alternatives of its expression in order at the current place, as a backtracking matcher would, but
 * with each run of characters scanned once: a piece costs time linear in its length, and one look-up per character.
 * White space is the same everywhere but in GPT-2: up to the last line break; else all but the last character where something
 * follows.  A byte that is not UTF-8 ends what stands before it like an end of text.
 *
 * Invariant: pieces are not empty and their concatenation is the text.
 */
#include "text/scanner.h"

#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(contractions, numbers) \
	contractions "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define O200K(suffix, numbers) BEFORE UPPER "*" LOWER "+" suffix "|" BEFORE UPPER "+" LOWER "*" suffix "|" numbers \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES

/* The first of each scanner is the one that the tests compare with. */
static const struct {
	enum scanner scanner;
	const char  *expression;
} expressions[] = {
	{ SCANNER_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
	{ SCANNER_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
	{ SCANNER_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s" },
	{ SCANNER_CL100K_1, CL100K(CONTRACTIONS, "\\p{N}") },
	{ SCANNER_CL100K_1, CL100K("'(?i:[sdmt]|ll|ve|re)", "\\p{N}") },
	{ SCANNER_CL100K_3, CL100K(CONTRACTIONS, "\\p{N}{1,3}") },
	{ SCANNER_CL100K_3, CL100K("'(?i:[sdmt]|ll|ve|re)", "\\p{N}{1,3}") },
	{ SCANNER_CL100K_3,
	    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]"
	    "|\\s+(?!\\S)|\\s+" },
	{ SCANNER_O200K, O200K(CONTRACTIONS "?", "\\p{N}{1,3}") },
	{ SCANNER_TEKKEN, O200K("", "\\p{N}") },
};

bool scanner_find(const char *expression, size_t len, enum scanner *ret)
{
	for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++)
		if (strlen(expressions[i].expression) == len && memcmp(expressions[i].expression, expression, len) == 0) {
			*ret = expressions[i].scanner;
			return true;
		}
	return false;
}

const char *scanner_expression(enum scanner scanner)
{
	for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++)
		if (expressions[i].scanner == scanner)
			return expressions[i].expression;
	return "";
}

/* What stands at a place: a class, or this at the end of the text and at a byte that is no UTF-8. */
enum { END = UNICODE_CLASSES };

/* Sets of classes. */
#define IN(set, class) ((set) >> (class) & 1)
enum {
	LETTERS = 1 << UNICODE_UPPER | 1 << UNICODE_LOWER | 1 << UNICODE_LETTER,
	UPPERS = 1 << UNICODE_UPPER | 1 << UNICODE_LETTER | 1 << UNICODE_MARK,
	LOWERS = 1 << UNICODE_LOWER | 1 << UNICODE_LETTER | 1 << UNICODE_MARK,
	OTHERS = 1 << UNICODE_OTHER | 1 << UNICODE_MARK,
	NUMBERS = 1 << UNICODE_NUMBER,
	SPACES_SET = 1 << UNICODE_SPACE
};

#define O UNICODE_OTHER
#define S UNICODE_SPACE
#define N UNICODE_NUMBER
#define U UNICODE_UPPER
#define L UNICODE_LOWER
static const unsigned char ascii[128] = {
	O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
	S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
	O, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, O, O, O, O, O,
	O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};
#undef O
#undef S
#undef N
#undef U
#undef L

struct text {
	const struct unicode *unicode;
	const char           *bytes;
	size_t                len;
};

static unsigned wide_class(const struct text *text, size_t at, size_t *ret_bytes)
{
	uint32_t code;
	int      n = utf8_decode(text->bytes + at, text->len - at, &code);

	if (n <= 0) {
		*ret_bytes = 0;
		return END;
	}
	*ret_bytes = (size_t)n;
	return unicode_properties(text->unicode, code) & UNICODE_CLASS_MASK;
}

static inline unsigned class_at(const struct text *text, size_t at, size_t *ret_bytes)
{
	unsigned char c;

	*ret_bytes = 1;
	if (at >= text->len)
		return END;
	c = (unsigned char)text->bytes[at];
	return c < 0x80 ? ascii[c] : wide_class(text, at, ret_bytes);
}

/* Bits below the lowest byte, in the order of memory, that is not zero. */
static inline unsigned ctz_low_byte_first(uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return (unsigned)__builtin_ctzll(word);
#else
	return (unsigned)__builtin_clzll(word);
#endif
}

/* The end of the ASCII letters that start at AT, eight at a time, so that no branch depends on a word's length; FOLD: of both
 * cases, else small ones.  It may stop early at the end of the text and at another character's first byte. */
static inline size_t skip_letters(const struct text *text, size_t at, bool fold)
{
	const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;

	while (text->len - at >= 8) {
		uint64_t word, low, letters;
		memcpy(&word, text->bytes + at, 8);
		low = (word | (fold ? ones * 0x20 : 0)) & ~tops;
		letters = (low + ones * (0x80 - 'a')) & ~(low + ones * (0x80 - 'z' - 1)) & ~word & tops;
		if (letters != tops)
			return at + (size_t)(ctz_low_byte_first(~letters & tops) / 8);
		at += 8;
	}
	return at;
}

/* The end of the run of characters in SET that starts at AT. */
static inline size_t run(const struct text *text, unsigned set, size_t at)
{
	size_t n;

	if (at < text->len && IN(set, UNICODE_LOWER) && !IN(set, UNICODE_OTHER))
		at = skip_letters(text, at, IN(set, UNICODE_UPPER));
	while (IN(set, class_at(text, at, &n)))
		at += n;
	return at;
}

static inline bool is_break(char c) { return c == '\r' || c == '\n'; }

/* Bytes of the contraction whose apostrophe stands at AT, 0 when there is none.  FOLD: any case, and U+017F is an s. */
static size_t contraction(const struct text *text, size_t at, bool fold)
{
	const unsigned char *s = (const unsigned char *)text->bytes + at;
	size_t               left = text->len - at;
	unsigned char        a, b, bit = fold ? 0x20 : 0;

	if (left < 2)
		return 0;
	a = s[1] | bit;
	if (a == 's' || a == 't' || a == 'm' || a == 'd')
		return 2;
	if (fold && left >= 3 && s[1] == 0xc5 && s[2] == 0xbf)
		return 3;
	if (left < 3)
		return 0;
	b = s[2] | bit;
	return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+, or with BREAKS \s*[\r\n]+|\s+(?!\S)|\s+, where white space stands at 0. */
static size_t spaces(const struct text *text, bool breaks)
{
	size_t   at = 0, last = 0, behind_break = 0, n;
	unsigned class;

	while ((class = class_at(text, at, &n)) == UNICODE_SPACE) {
		last = at;
		at += n;
		if (is_break(text->bytes[last]))
			behind_break = at;
	}
	if (breaks && behind_break)
		return behind_break;
	return class != END && last > 0 ? last : at;
}

static size_t gpt2(const struct text *text)
{
	size_t   n, start = 0;
	unsigned class = class_at(text, 0, &n);

	if (text->bytes[0] == '\'') {
		size_t len = contraction(text, 0, false);
		if (len)
			return len;
	}
	if (text->bytes[0] == ' ') { /* " ?": joins what follows unless that is white space */
		unsigned next = class_at(text, 1, &n);
		if (next != END && next != UNICODE_SPACE) {
			class = next;
			start = 1;
		}
	}
	if (class == UNICODE_SPACE)
		return spaces(text, false);
	return run(text, IN(LETTERS, class) ? LETTERS : class == UNICODE_NUMBER ? NUMBERS : OTHERS, start);
}

/* \p{N}{1,MAX} */
static size_t numbers(const struct text *text, unsigned max)
{
	size_t at = 0, n;

	for (unsigned i = 0; i < max && class_at(text, at, &n) == UNICODE_NUMBER; i++)
		at += n;
	return at;
}

/* " ?[^\s\p{L}\p{N}]+[\r\n]*", with SLASH also "/" behind it; 0 when it does not match. */
static size_t others(const struct text *text, bool slash)
{
	size_t from = text->bytes[0] == ' ', at = run(text, OTHERS, from);

	if (at == from)
		return 0;
	while (at < text->len && (is_break(text->bytes[at]) || (slash && text->bytes[at] == '/')))
		at++;
	return at;
}

static inline size_t cl100k(const struct text *text, unsigned digits)
{
	size_t   n, next_bytes, len;
	unsigned class = class_at(text, 0, &n);

	if (IN(LETTERS, class))
		return run(text, LETTERS, n);
	if (class == UNICODE_NUMBER)
		return numbers(text, digits);
	if (text->bytes[0] == '\'') {
		len = contraction(text, 0, true);
		if (len)
			return len;
	}
	if (!is_break(text->bytes[0]) && IN(LETTERS, class_at(text, n, &next_bytes)))
		return run(text, LETTERS, n + next_bytes);
	len = others(text, false);
	return len ? len : spaces(text, true);
}

/* UPPER* LOWER+ from AT as a backtracking matcher finds it: the end, 0 when it does not match. */
static size_t lower_word(const struct text *text, size_t at)
{
	size_t   n, lower_start = 0;
	unsigned class;

	/* The longest run of UPPER gives back from its end until a character is in LOWER too; LOWER+ then takes that and what
	 * follows it of LOWER: the start of the last stretch of those. */
	while (IN(UPPERS, class = class_at(text, at, &n))) {
		if (IN(LOWERS, class))
			lower_start = at + n;
		at += n;
	}
	if (class == UNICODE_LOWER)
		return run(text, LOWERS, at);
	return lower_start;
}

static size_t suffix(const struct text *text, size_t at, bool contractions)
{
	return contractions && at < text->len && text->bytes[at] == '\'' ? at + contraction(text, at, true) : at;
}

static size_t o200k(const struct text *text, bool contractions, unsigned digits)
{
	size_t   n, end = 0;
	unsigned class = class_at(text, 0, &n);
	bool     prefix = !IN(LETTERS, class) && class != UNICODE_NUMBER && !is_break(text->bytes[0]);

	if (prefix)
		end = lower_word(text, n);
	if (!end && class != UNICODE_NUMBER && (!prefix || class == UNICODE_MARK))
		end = lower_word(text, 0);
	if (!end && prefix) {
		size_t upper = run(text, UPPERS, n);
		end = upper > n ? run(text, LOWERS, upper) : 0;
	}
	if (!end && IN(UPPERS, class))
		end = run(text, LOWERS, run(text, UPPERS, 0));
	if (end)
		return suffix(text, end, contractions);
	if (class == UNICODE_NUMBER)
		return numbers(text, digits);
	end = others(text, true);
	return end ? end : spaces(text, true);
}

static inline size_t next(enum scanner scanner, const struct text *text)
{
	size_t n;

	if ((unsigned char)text->bytes[0] >= 0x80 && class_at(text, 0, &n) == END)
		return 1;
	switch (scanner) {
	case SCANNER_GPT2:
		return gpt2(text);
	case SCANNER_CL100K_1:
		return cl100k(text, 1);
	case SCANNER_CL100K_3:
		return cl100k(text, 3);
	case SCANNER_O200K:
		return o200k(text, true, 3);
	default:
		return o200k(text, false, 1);
	}
}

size_t scanner_next(enum scanner scanner, const struct unicode *unicode, const char *bytes, size_t len)
{
	return next(scanner, &(struct text){ unicode, bytes, len });
}

typedef enum status sink_function(void *context, const char *piece, size_t len);

static inline __attribute__((always_inline)) enum status split(enum scanner scanner, struct text text, sink_function *sink,
    void *context)
{
	enum status status = STATUS_OK;

	while (text.len && !status) {
		size_t n = next(scanner, &text);
		status = sink(context, text.bytes, n);
		text.bytes += n;
		text.len -= n;
	}
	return status;
}

/* A loop for each scanner, so that which one it is is not asked for every piece. */
enum status scanner_split(enum scanner scanner, const struct unicode *unicode, const char *bytes, size_t len, sink_function *sink,
    void *context)
{
	struct text text = { unicode, bytes, len };

	switch (scanner) {
	case SCANNER_GPT2:
		return split(SCANNER_GPT2, text, sink, context);
	case SCANNER_CL100K_1:
		return split(SCANNER_CL100K_1, text, sink, context);
	case SCANNER_CL100K_3:
		return split(SCANNER_CL100K_3, text, sink, context);
	case SCANNER_O200K:
		return split(SCANNER_O200K, text, sink, context);
	default:
		return split(SCANNER_TEKKEN, text, sink, context);
	}
}
