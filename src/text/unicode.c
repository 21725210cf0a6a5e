/* unicode.c: owns the table of properties and the places where utf8proc's Unicode version must not shine through.
 *
 * utf8proc (2.8: Unicode 15) does the normal forms and simple lower case.  The reference's normal forms are of an older Unicode,
 * 9.0: characters that got their decomposition later pass unchanged, and marks that came later are letters like others, neither
 * put in order nor composed across.  Its lower case is of a newer one.  The lists of characters are short and below;
 * make_unicode_ranges.py found the rest.
 *
 * Invariant: normalising never fails for want of anything but memory.
 */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
	OTHER = UNICODE_OTHER, UPPER = UNICODE_UPPER, LOWER = UNICODE_LOWER, LETTER = UNICODE_LETTER, MARK = UNICODE_MARK,
	NUMBER = UNICODE_NUMBER, SPACE = UNICODE_SPACE, PUNCTUATION = UNICODE_PUNCTUATION, NUMERIC = UNICODE_NUMERIC,
	WORD = UNICODE_WORD, ACCENT = UNICODE_ACCENT, CONTROL = UNICODE_CONTROL, NONSPACING = UNICODE_NONSPACING
};

static const struct range {
	uint32_t first, last;
	uint16_t properties;
} ranges[] = {
#define RANGE(first, last, properties) { first, last, properties },
#include "text/unicode_ranges.def"
#undef RANGE
};

/* Is the block from START to END − 1 of one property throughout?  RANGE is the first that ends behind its start. */
static int uniform(const struct range *range, const struct range *stop, uint32_t start, uint32_t end)
{
	if (range == stop || range->first >= end)
		return 0;
	return range->first <= start && range->last >= end - 1 ? range->properties : -1;
}

/* Blocks that are alike are stored once.  Nine in ten repeat the one before them, and need not be compared. */
enum status unicode_init(struct unicode *unicode)
{
	uint16_t block[UNICODE_BLOCK], *blocks = NULL;
	size_t   count = 0, capacity = 0, at = 0;
	int      before = -1;

	for (uint32_t i = 0; i < UNICODE_BLOCKS; i++) {
		uint32_t start = i * UNICODE_BLOCK, end = start + UNICODE_BLOCK;
		size_t   same = 0;
		int      here;
		while (at < sizeof ranges / sizeof ranges[0] && ranges[at].last < start)
			at++;
		here = uniform(ranges + at, ranges + sizeof ranges / sizeof ranges[0], start, end);
		if (here >= 0 && here == before) {
			unicode->index[i] = unicode->index[i - 1];
			continue;
		}
		before = here;
		memset(block, 0, sizeof block);
		for (size_t k = at; k < sizeof ranges / sizeof ranges[0] && ranges[k].first < end; k++)
			for (uint32_t code = ranges[k].first > start ? ranges[k].first : start; code < end && code <= ranges[k].last; code++)
				block[code - start] = ranges[k].properties;
		/* The latest ones first: long scripts repeat the block before. */
		for (same = count; same > 0 && memcmp(blocks + (same - 1) * UNICODE_BLOCK, block, sizeof block) != 0; same--)
			;
		if (same == 0) {
			if (count == capacity) {
				uint16_t *more;
				capacity = capacity ? capacity * 2 : 256;
				more = realloc(blocks, capacity * sizeof block);
				if (!more) {
					free(blocks);
					return STATUS_NOMEM;
				}
				blocks = more;
			}
			memcpy(blocks + count * UNICODE_BLOCK, block, sizeof block);
			same = ++count;
		}
		unicode->index[i] = (uint16_t)(same - 1);
	}
	unicode->blocks = blocks;
	return STATUS_OK;
}

void unicode_free(struct unicode *unicode)
{
	free(unicode->blocks);
	unicode->blocks = NULL;
}

unsigned unicode_lower(uint32_t code, uint32_t ret[2])
{
	static const struct {
		uint32_t first, last;
		int32_t  step;
	} younger[] = { /* than Unicode 15 */
		{ 0x1c89, 0x1c89, 1 }, { 0xa7cb, 0xa7cb, 0x264 - 0xa7cb }, { 0xa7cc, 0xa7cc, 1 }, { 0xa7ce, 0xa7ce, 1 }, { 0xa7d2, 0xa7d2,
		    1 },
		{ 0xa7d4, 0xa7d4, 1 }, { 0xa7da, 0xa7da, 1 }, { 0xa7dc, 0xa7dc, 0x19b - 0xa7dc }, { 0x10d50, 0x10d65, 0x20 },
		{ 0x16ea0, 0x16eb8, 0x1b },
	};

	if (code < 0x80) {
		ret[0] = code >= 'A' && code <= 'Z' ? code + 0x20 : code;
		return 1;
	}
	if (code == 0x130) { /* the only one that becomes two */
		ret[0] = 'i';
		ret[1] = 0x307;
		return 2;
	}
	for (size_t i = 0; i < sizeof younger / sizeof younger[0]; i++)
		if (code >= younger[i].first && code <= younger[i].last) {
			ret[0] = (uint32_t)((int32_t)code + younger[i].step);
			return 1;
		}
	ret[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
	return 1;
}

static int class_of(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

/* Characters that are younger than the reference's tables of normal forms, or whose decomposition is.  The same tables say which
 * marks are accents. */
static bool passes(const struct unicode *unicode, enum unicode_form form, uint32_t code)
{
	static const struct {
		uint32_t first, last;
	} compatible[] = {
		{ 0x32ff, 0x32ff }, { 0xa7f2, 0xa7f4 }, { 0xab69, 0xab69 }, { 0x10781, 0x107ba }, { 0x1e030, 0x1e06d }, { 0x1f16c,
		    0x1f16c },
		{ 0x1fbf0, 0x1fbf9 },
	};

	if (class_of((utf8proc_int32_t)code) && !(unicode_properties(unicode, code) & UNICODE_ACCENT))
		return true;
	if (code < 0x32ff)
		return false;
	if (code == 0x11938 || code == 0x11935) /* the one is the other and U+11930 */
		return true;
	if (form == UNICODE_NFC || form == UNICODE_NFD)
		return false;
	for (size_t i = 0; i < sizeof compatible / sizeof compatible[0]; i++)
		if (code >= compatible[i].first && code <= compatible[i].last)
			return true;
	return false;
}

struct chars {
	utf8proc_int32_t *codes;
	size_t            count, capacity;
};

enum { CHARS_START = 64, CHARS_MAX = 1 << 28, DECOMPOSED_MAX = 32 };

static enum status grow(struct chars *chars)
{
	size_t            capacity = chars->capacity ? chars->capacity * 2 : CHARS_START;
	utf8proc_int32_t *codes;

	if (chars->count + DECOMPOSED_MAX <= chars->capacity)
		return STATUS_OK;
	if (capacity > CHARS_MAX)
		return STATUS_LIMIT;
	codes = realloc(chars->codes, capacity * sizeof *codes);
	if (!codes)
		return STATUS_NOMEM;
	chars->codes = codes;
	chars->capacity = capacity;
	return STATUS_OK;
}

struct mark {
	utf8proc_int32_t code;
	uint32_t         order; /* class, then place */
};

static int by_order(const void *a, const void *b)
{
	const struct mark *x = a, *y = b;
	return (x->order > y->order) - (x->order < y->order);
}

/* Marks behind a starter are sorted by class, stably: a few by insertion, many by merging, so that nobody can make it slow. */
static enum status sort_marks(utf8proc_int32_t *codes, size_t count)
{
	enum { FEW = 32 };
	struct mark *marks;

	if (count <= FEW) {
		for (size_t i = 1; i < count; i++) {
			utf8proc_int32_t code = codes[i];
			size_t           at = i;
			for (; at > 0 && class_of(codes[at - 1]) > class_of(code); at--)
				codes[at] = codes[at - 1];
			codes[at] = code;
		}
		return STATUS_OK;
	}
	if (count >= 1 << 24)
		return STATUS_LIMIT;
	marks = malloc(count * sizeof *marks);
	if (!marks)
		return STATUS_NOMEM;
	for (size_t i = 0; i < count; i++)
		marks[i] = (struct mark){ codes[i], (uint32_t)class_of(codes[i]) << 24 | (uint32_t)i };
	qsort(marks, count, sizeof *marks, by_order);
	for (size_t i = 0; i < count; i++)
		codes[i] = marks[i].code;
	free(marks);
	return STATUS_OK;
}

/* Writes the characters gathered so far: one starter and what follows it up to the next one that cannot combine. */
static enum status flush(struct chars *chars, bool compose, struct buf *out)
{
	size_t      from = 0, count = chars->count;
	enum status status = STATUS_OK;

	while (from < count && !status) { /* runs of marks */
		size_t to = from;
		while (to < count && class_of(chars->codes[to]))
			to++;
		if (to - from > 1)
			status = sort_marks(chars->codes + from, to - from);
		from = to + 1;
	}
	if (compose && count > 1 && !status)
		count = (size_t)utf8proc_normalize_utf32(chars->codes, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
	for (size_t i = 0; i < count && !status; i++) {
		char   bytes[4];
		size_t len = utf8_encode((uint32_t)chars->codes[i], bytes);
		status = buf_append(out, bytes, len);
	}
	chars->count = 0;
	return status;
}

/* Can CODE be glued to what stands before it? */
static bool joins(uint32_t code)
{
	return class_of((utf8proc_int32_t)code) != 0 || (code >= 0x1161 && code <= 0x11c2) /* conjoining jamo */ ||
	       utf8proc_get_property((utf8proc_int32_t)code)->comb_index != UINT16_MAX;
}

/* Is CODE the same in every form, whatever stands beside it? */
static bool inert(uint32_t code)
{
	const utf8proc_property_t *property = utf8proc_get_property((utf8proc_int32_t)code);

	return property->combining_class == 0 && property->comb_index == UINT16_MAX && property->decomp_seqindex == UINT16_MAX &&
	       (code < 0xac00 || code > 0xd7a3) && (code < 0x1100 || code > 0x11ff);
}

/* Bytes at the start of TEXT that are their own normal form, whatever follows. */
static size_t plain_length(const char *text, size_t len)
{
	size_t   at = 0, last = 0; /* the last character, when it may have marks behind it */
	bool     open = false;
	uint32_t code;

	while (at < len) {
		int n = 1;
		if ((unsigned char)text[at] < 0x80) {
			last = at;
			open = true;
		} else {
			n = utf8_decode(text + at, len - at, &code);
			if (n <= 0 || !inert(code))
				return open ? last : at;
			open = false;
		}
		at += (size_t)n;
	}
	return at;
}

enum status unicode_normalize(const struct unicode *unicode, enum unicode_form form, const char *text, size_t len,
    struct buf *out)
{
	bool             compose = form == UNICODE_NFC || form == UNICODE_NFKC;
	utf8proc_option_t how = form == UNICODE_NFKC || form == UNICODE_NFKD ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT :
	    UTF8PROC_DECOMPOSE;
	struct chars     chars = { NULL, 0, 0 };
	enum status      status = STATUS_OK;
	size_t           at = 0, plain;
	uint32_t         code;

	while (at < len && !status) {
		utf8proc_int32_t parts[DECOMPOSED_MAX];
		utf8proc_ssize_t got;
		int              n, boundary = 0;
		plain = plain_length(text + at, len - at);
		if (plain) {
			status = flush(&chars, compose, out);
			if (!status)
				status = buf_append(out, text + at, plain);
			at += plain;
			continue;
		}
		n = utf8_decode(text + at, len - at, &code);
		if (n <= 0) { /* the caller promised otherwise */
			status = STATUS_INVALID;
			break;
		}
		at += (size_t)n;
		if (passes(unicode, form, code)) {
			status = flush(&chars, compose, out);
			if (!status)
				status = buf_append(out, text + at - n, (size_t)n);
			continue;
		}
		got = utf8proc_decompose_char((utf8proc_int32_t)code, parts, DECOMPOSED_MAX, how, &boundary);
		if (got <= 0 || got > DECOMPOSED_MAX) {
			status = STATUS_INVALID;
			break;
		}
		/* U+FFC5 joins nothing, the vowel that it stands for does. */
		if (chars.count && !joins(code) && !joins((uint32_t)parts[0]))
			status = flush(&chars, compose, out);
		if (!status)
			status = grow(&chars);
		if (status)
			break;
		memcpy(chars.codes + chars.count, parts, (size_t)got * sizeof *parts);
		chars.count += (size_t)got;
	}
	if (!status)
		status = flush(&chars, compose, out);
	free(chars.codes);
	return status;
}
