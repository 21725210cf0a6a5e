/* normalizer.c: owns the loading of normalizer components and the order in which they run.  What SentencePiece does to a text
 * is in normalizer_spm.c, the Unicode tables are unicode.c's.
 *
 * Invariant: from well-formed UTF-8 every step makes well-formed UTF-8. */
#include "text/normalizer.h"
#include "base/bytes.h"
#include "text/normalizer_spm.h"
#include "vocab/bytelevel.h"
#include "vocab/component.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = { "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Replace", "Prepend",
    "Strip",
	"BertNormalizer", "Precompiled", "ByteLevel", "SentencePiece" };

/* A copy of a string of the component. */
static enum status copy_string(const json_t *component, const char *key, char **ret, size_t *ret_len, struct error *error)
{
	const char *text;
	enum status status = component_string(component, key, NULL, &text, ret_len, error);

	if (status)
		return status;
	*ret = malloc(*ret_len + 1);
	if (!*ret)
		return error_set(error, STATUS_NOMEM, "no memory for a normalizer");
	memcpy(*ret, text, *ret_len);
	return STATUS_OK;
}

static enum status init_replace(struct normalizer_step *step, const json_t *component, struct error *error)
{
	const char *pattern;
	size_t      len;
	bool        regex;
	enum status status = component_pattern(component, &regex, &pattern, &len, error);

	if (!status && regex)
		status = regex_compile(pattern, len, &step->regex, error);
	if (!status && !regex) {
		step->pattern = malloc(len + 1);
		if (!step->pattern)
			return error_set(error, STATUS_NOMEM, "no memory for a normalizer");
		memcpy(step->pattern, pattern, len);
		step->pattern_len = len;
	}
	return status ? status : copy_string(component, "content", &step->content, &step->content_len, error);
}

static enum status init_bert(struct normalizer_step *step, const json_t *component, struct error *error)
{
	enum status status = component_bool(component, "clean_text", true, &step->clean, error);

	if (!status)
		status = component_bool(component, "handle_chinese_chars", true, &step->chinese, error);
	if (!status)
		status = component_bool(component, "lowercase", true, &step->lowercase, error);
	return status ? status : component_bool(component, "strip_accents", step->lowercase, &step->accents, error);
}

static enum status init_precompiled(struct normalizer_step *step, const json_t *component, struct error *error)
{
	json_t     *map = json_object_get(component, "precompiled_charsmap");
	char       *bytes;
	size_t      len = json_string_length(map);
	enum status status;

	if (json_is_null(map) || (json_is_string(map) && json_string_length(map) == 0))
		return STATUS_OK; /* an empty map changes nothing */
	if (!json_is_string(map))
		return error_set(error, STATUS_INVALID, "the normalizer Precompiled: precompiled_charsmap is no string");
	bytes = malloc(len / 4 * 3 + 3);
	if (!bytes)
		return error_set(error, STATUS_NOMEM, "no memory for a character map");
	status = bytes_from_base64(json_string_value(map), len, bytes, &len) ? charsmap_init(&step->map, bytes, len, error) :
	    error_set(error, STATUS_INVALID, "the normalizer Precompiled: its character map is not base64");
	free(bytes);
	return status;
}

static enum status init_sentencepiece(struct normalizer_step *step, const json_t *component, const struct token_file *file,
    struct error *error)
{
	enum status status = component_bool(component, "add_dummy_prefix", true, &step->prefix, error);

	if (!status)
		status = component_bool(component, "remove_extra_whitespaces", true, &step->collapse, error);
	if (!status && file->charsmap)
		status = charsmap_init(&step->map, file->charsmap, file->charsmap_len, error);
	return status;
}

static enum status add_step(struct normalizer *normalizer, const json_t *component, const struct token_file *file, unsigned depth,
    struct error *error)
{
	const char             *type = component_type(component);
	struct normalizer_step *step;
	size_t                  known = 0, count;
	enum status             status;

	if (strcmp(type, "Sequence") == 0) {
		status = component_steps(component, "normalizers", depth, &count, error);
		for (size_t i = 0; !status && i < count; i++)
			status = add_step(normalizer, component_step(component, "normalizers", i), file, depth + 1, error);
		return status;
	}
	while (known < sizeof names / sizeof names[0] && strcmp(type, names[known]) != 0)
		known++;
	if (known == sizeof names / sizeof names[0] || (known == NORMALIZER_SENTENCEPIECE && !file->sentencepiece))
		return component_unknown(component, "normalizer", error);
	if (normalizer->count == NORMALIZER_STEPS_MAX)
		return error_set(error, STATUS_LIMIT, "the normalizer has more than %d steps", NORMALIZER_STEPS_MAX);
	step = &normalizer->steps[normalizer->count++];
	*step = (struct normalizer_step){ .type = (enum normalizer_type)known };
	switch (step->type) {
	case NORMALIZER_REPLACE:
		return init_replace(step, component, error);
	case NORMALIZER_PREPEND:
		return copy_string(component, "prepend", &step->content, &step->content_len, error);
	case NORMALIZER_STRIP:
		status = component_bool(component, "strip_left", true, &step->left, error);
		return status ? status : component_bool(component, "strip_right", true, &step->right, error);
	case NORMALIZER_BERT:
		return init_bert(step, component, error);
	case NORMALIZER_PRECOMPILED:
		return init_precompiled(step, component, error);
	case NORMALIZER_SENTENCEPIECE:
		return init_sentencepiece(step, component, file, error);
	default:
		return STATUS_OK;
	}
}

enum status normalizer_init(struct normalizer *normalizer, const struct token_file *file, const struct unicode *unicode,
    struct error *error)
{
	*normalizer = (struct normalizer){ .unicode = unicode };
	return file->normalizer ? add_step(normalizer, file->normalizer, file, 0, error) : STATUS_OK;
}

void normalizer_free(struct normalizer *normalizer)
{
	for (size_t i = 0; i < normalizer->count; i++) {
		struct normalizer_step *step = &normalizer->steps[i];
		free(step->pattern);
		free(step->content);
		regex_free(step->regex);
		charsmap_free(&step->map);
	}
	normalizer->count = 0;
}

static enum status put(struct buf *out, uint32_t code)
{
	char bytes[4];

	return buf_append(out, bytes, utf8_encode(code, bytes));
}

static bool is_chinese(uint32_t code)
{
	return (code >= 0x3400 && code <= 0x4dbf) || (code >= 0x4e00 && code <= 0x9fff) || (code >= 0xf900 && code <= 0xfaff) ||
	       (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
	       (code >= 0x2f800 && code <= 0x2fa1f);
}

static enum status lowercase(const char *text, size_t len, struct buf *out)
{
	enum status status = STATUS_OK;
	uint32_t    code, lower[2];

	for (size_t at = 0; at < len && !status;) {
		at += (size_t)utf8_decode(text + at, len - at, &code);
		unsigned n = unicode_lower(code, lower);
		for (unsigned i = 0; i < n && !status; i++)
			status = put(out, lower[i]);
	}
	return status;
}

/* Copies what has none of PROPERTIES. */
static enum status without(const struct unicode *unicode, unsigned properties, const char *text, size_t len, struct buf *out)
{
	enum status status = STATUS_OK;
	uint32_t    code;

	for (size_t at = 0; at < len && !status;) {
		size_t n = (size_t)utf8_decode(text + at, len - at, &code);
		if (!(unicode_properties(unicode, code) & properties))
			status = buf_append(out, text + at, n);
		at += n;
	}
	return status;
}

/* Clean text and spaces round Chinese characters; the other two parts of BertNormalizer are steps of their own. */
static enum status bert_first(const struct normalizer *normalizer, const struct normalizer_step *step, const char *text, size_t len,
    struct buf *out)
{
	enum status status = STATUS_OK;
	uint32_t    code;

	for (size_t at = 0; at < len && !status;) {
		size_t n = (size_t)utf8_decode(text + at, len - at, &code);
		if (step->clean && unicode_properties(normalizer->unicode, code) & UNICODE_CONTROL)
			; /* gone */
		else if (step->clean && unicode_is_space(normalizer->unicode, code))
			status = buf_append(out, " ", 1);
		else if (step->chinese && is_chinese(code)) {
			char spaced[6] = " ";
			memcpy(spaced + 1, text + at, n);
			spaced[n + 1] = ' ';
			status = buf_append(out, spaced, n + 2);
		} else
			status = buf_append(out, text + at, n);
		at += n;
	}
	return status;
}

static enum status bert(const struct normalizer *normalizer, const struct normalizer_step *step, const char *text, size_t len,
    struct buf *out)
{
	struct buf  a, b;
	enum status status;

	buf_init(&a, NORMALIZER_TEXT_MAX);
	buf_init(&b, NORMALIZER_TEXT_MAX);
	status = bert_first(normalizer, step, text, len, step->accents || step->lowercase ? &a : out);
	if (!status && step->accents) {
		status = unicode_normalize(normalizer->unicode, UNICODE_NFD, a.data, a.len, &b);
		if (!step->lowercase) {
			if (!status)
				status = without(normalizer->unicode, UNICODE_NONSPACING, b.data, b.len, out);
		} else {
			buf_clear(&a);
			if (!status)
				status = without(normalizer->unicode, UNICODE_NONSPACING, b.data, b.len, &a);
		}
	}
	if (!status && step->lowercase)
		status = lowercase(a.data, a.len, out);
	buf_free(&a);
	buf_free(&b);
	return status;
}

static enum status nmt(const char *text, size_t len, struct buf *out)
{
	enum status status = STATUS_OK;
	uint32_t    code;

	for (size_t at = 0; at < len && !status;) {
		size_t n = (size_t)utf8_decode(text + at, len - at, &code);
		if ((code >= 1 && code <= 8) || code == 0xb || (code >= 0xe && code <= 0x1f) || code == 0x7f || code == 0x8f ||
		    code == 0x9f)
			; /* gone */
		else if (code == 9 || code == 0xa || code == 0xc || code == 0xd || code == 0x1680 || (code >= 0x200b && code <= 0x200f) ||
		         code == 0x2028 || code == 0x2029 || code == 0x2581 || code == 0xfeff || code == 0xfffd)
			status = buf_append(out, " ", 1);
		else
			status = buf_append(out, text + at, n);
		at += n;
	}
	return status;
}

static enum status replace_string(const struct normalizer_step *step, const char *text, size_t len, struct buf *out)
{
	const char *end = text + len;
	enum status status = STATUS_OK;

	while (!status) {
		const char *found = step->pattern_len ? memmem(text, (size_t)(end - text), step->pattern, step->pattern_len) : NULL;
		if (!found)
			break;
		status = buf_append(out, text, (size_t)(found - text));
		if (!status)
			status = buf_append(out, step->content, step->content_len);
		text = found + step->pattern_len;
	}
	return status ? status : buf_append(out, text, (size_t)(end - text));
}

static enum status replace_regex(const struct normalizer_step *step, const char *text, size_t len, struct buf *out)
{
	struct regex_search search;
	size_t              start, end, done = 0;
	enum status         status = regex_search_begin(&search, step->regex, text, len);

	while (!status && !(status = regex_search_next(&search, &start, &end))) {
		status = buf_append(out, text + done, start - done);
		if (!status)
			status = buf_append(out, step->content, step->content_len);
		done = end;
	}
	regex_search_end(&search);
	return status == STATUS_NOT_FOUND ? buf_append(out, text + done, len - done) : status;
}

static enum status strip(const struct normalizer *normalizer, const struct normalizer_step *step, const char *text, size_t len,
    struct buf *out)
{
	size_t   from = 0;
	uint32_t code;

	while (step->left && from < len) {
		size_t n = (size_t)utf8_decode(text + from, len - from, &code);
		if (!unicode_is_space(normalizer->unicode, code))
			break;
		from += n;
	}
	while (step->right && len > from) {
		size_t n = 1;
		while (n < 4 && ((unsigned char)text[len - n] & 0xc0) == 0x80)
			n++;
		utf8_decode(text + len - n, n, &code);
		if (!unicode_is_space(normalizer->unicode, code))
			break;
		len -= n;
	}
	return buf_append(out, text + from, len - from);
}

static enum status byte_level(const char *text, size_t len, struct buf *out)
{
	enum status status = STATUS_OK;

	for (size_t at = 0; at < len && !status; at++)
		status = put(out, bytelevel_char((unsigned char)text[at]));
	return status;
}

static enum status run_step(const struct normalizer *normalizer, const struct normalizer_step *step, const char *text, size_t len,
    struct buf *out)
{
	switch (step->type) {
	case NORMALIZER_NFC: return unicode_normalize(normalizer->unicode, UNICODE_NFC, text, len, out);
	case NORMALIZER_NFD: return unicode_normalize(normalizer->unicode, UNICODE_NFD, text, len, out);
	case NORMALIZER_NFKC: return unicode_normalize(normalizer->unicode, UNICODE_NFKC, text, len, out);
	case NORMALIZER_NFKD: return unicode_normalize(normalizer->unicode, UNICODE_NFKD, text, len, out);
	case NORMALIZER_LOWERCASE: return lowercase(text, len, out);
	case NORMALIZER_STRIP_ACCENTS: return without(normalizer->unicode, UNICODE_ACCENT, text, len, out);
	case NORMALIZER_NMT: return nmt(text, len, out);
	case NORMALIZER_REPLACE:
		return step->regex ? replace_regex(step, text, len, out) : replace_string(step, text, len, out);
	case NORMALIZER_PREPEND: {
		enum status status = buf_append(out, step->content, step->content_len);
		return status ? status : buf_append(out, text, len);
	}
	case NORMALIZER_STRIP: return strip(normalizer, step, text, len, out);
	case NORMALIZER_BERT: return bert(normalizer, step, text, len, out);
	case NORMALIZER_PRECOMPILED: return normalizer_precompiled(&step->map, text, len, out);
	case NORMALIZER_BYTE_LEVEL: return byte_level(text, len, out);
	case NORMALIZER_SENTENCEPIECE:
		return normalizer_sentencepiece(&step->map, normalizer->verbatim, step->prefix, step->collapse, text, len, out);
	}
	return STATUS_INTERNAL;
}

static bool is_ascii(const char *text, size_t len)
{
	unsigned char high = 0;

	for (size_t i = 0; i < len; i++)
		high |= (unsigned char)text[i];
	return high < 0x80;
}

/* What becomes of the first *HEAD bytes of TEXT: steps work from left to right, so it is what they make of these alone, unless
 * a step removes more at once. */
static enum status follow_head(const struct normalizer *normalizer, const struct normalizer_step *step, const char *text,
    size_t len, size_t *head)
{
	struct buf  out;
	size_t      start = 0, end = 0;
	enum status status = STATUS_OK;

	if (*head == 0)
		return STATUS_OK;
	buf_init(&out, NORMALIZER_TEXT_MAX);
	if (step->type == NORMALIZER_STRIP) {
		struct normalizer_step left = { .type = NORMALIZER_STRIP, .left = step->left };
		status = strip(normalizer, &left, text, len, &out);
		*head -= len - out.len < *head ? len - out.len : *head;
		buf_free(&out);
		return status;
	}
	if (step->regex) {
		struct regex_search search;
		status = regex_search_begin(&search, step->regex, text, len);
		if (!status && regex_search_next(&search, &start, &end))
			start = 1; /* none, or given up */
		regex_search_end(&search);
	} else if (step->pattern_len && step->pattern_len <= len && memcmp(text, step->pattern, step->pattern_len) == 0) {
		end = step->pattern_len;
	}
	if (!status && start == 0 && end > *head) {
		*head = step->content_len;
	} else if (!status) {
		status = run_step(normalizer, step, text, *head, &out);
		*head = out.len;
	}
	buf_free(&out);
	return status;
}

enum status normalizer_apply(const struct normalizer *normalizer, const char *text, size_t len, struct buf scratch[2],
    size_t *head, const char **ret, size_t *ret_len)
{
	unsigned target = 0;

	for (size_t i = 0; i < normalizer->count && len; i++) {
		const struct normalizer_step *step = &normalizer->steps[i];
		enum status                   status;
		if (step->type <= NORMALIZER_NFKD && is_ascii(text, len))
			continue;
		buf_clear(&scratch[target]);
		status = run_step(normalizer, step, text, len, &scratch[target]);
		if (!status && head)
			status = follow_head(normalizer, step, text, len, head);
		if (status)
			return status;
		text = scratch[target].len ? scratch[target].data : "";
		len = scratch[target].len;
		target = !target;
		if (head) { /* what the first character became may be composed with what follows it */
			*head = *head < len ? *head : len;
			while (*head && *head < len && ((unsigned char)text[*head] & 0xc0) == 0x80)
				++*head;
		}
	}
	*ret = text;
	*ret_len = len;
	return STATUS_OK;
}
