/* decoder.c: owns the decoding steps.  Does not put characters together (text/detokenizer.h).  Invariant: the bytes of a
 * token depend on the token and on whether it is the first of the text, on nothing else. */
#include "vocab/decoder.h"
#include "base/utf8.h"
#include "vocab/bytelevel.h"
#include "vocab/component.h"

#include <string.h>

enum { DECODER_BYTES_MAX = 1 << 20 };

static enum status affix(const struct json_t *component, const char *key, const char *fallback, char *ret, struct error *error)
{
	const char *text;
	size_t      len;
	enum status status = component_string(component, key, fallback, &text, &len, error);

	if (status)
		return status;
	if (len > DECODER_AFFIX_MAX || memchr(text, '\0', len))
		return error_set(error, STATUS_LIMIT, "the decoder %s: %s has %zu bytes or a NUL, the limit is %d",
		    component_type(component),
		    key, len, DECODER_AFFIX_MAX);
	memcpy(ret, text, len);
	ret[len] = '\0';
	return STATUS_OK;
}

static enum status init_replace(struct decoder *decoder, struct decoder_step *step, const struct json_t *component,
    struct error *error)
{
	const char *pattern;
	size_t      len;
	uint32_t    code;
	bool        regex;
	enum status status = component_pattern(component, &regex, &pattern, &len, error);

	if (status)
		return status;
	if (regex && len)
		return error_set(error, STATUS_UNSUPPORTED, "the decoder Replace with a regular expression is not known here");
	if (decoder->fused && (size_t)utf8_decode(pattern, len, &code) != len)
		return error_set(error, STATUS_UNSUPPORTED, "the decoder Replace after Fuse is known only for one character");
	if (len == 0 || len > DECODER_AFFIX_MAX || memchr(pattern, '\0', len))
		return error_set(error, STATUS_LIMIT, "the decoder Replace: its pattern has %zu bytes or a NUL, allowed are 1 to %d", len,
		    DECODER_AFFIX_MAX);
	memcpy(step->pattern, pattern, len);
	return affix(component, "content", NULL, step->content, error);
}

/* Behind ByteFallback a step that replaces one character finds it also where it was put together. */
static void note_joined(struct decoder *decoder, const struct decoder_step *step)
{
	uint32_t code;
	size_t   len = strlen(step->pattern);

	if (!decoder->bytes || *decoder->joined || len < 2 || (size_t)utf8_decode(step->pattern, len, &code) != len)
		return;
	memcpy(decoder->joined, step->pattern, len);
	memcpy(decoder->joined_content, step->type == DECODER_METASPACE ? " " : step->content,
	    step->type == DECODER_METASPACE ? 2 : strlen(step->content) + 1);
}

static enum status init_strip(struct decoder *decoder, struct decoder_step *step, const struct json_t *component,
    struct error *error)
{
	enum status status = affix(component, "content", NULL, step->pattern, error);

	if (!status)
		status = component_size(component, "start", 64, 0, &step->start, error);
	if (!status)
		status = component_size(component, "stop", 64, 0, &step->stop, error);
	if (status || !decoder->fused)
		return status;
	if (step->stop || strlen(step->pattern) != 1 || (unsigned char)step->pattern[0] >= 0x80 || decoder->strip_max)
		return error_set(error, STATUS_UNSUPPORTED, "the decoder Strip at the end of a whole text is not known here");
	decoder->strip = step->pattern[0];
	decoder->strip_max = (unsigned)step->start;
	decoder->count--; /* it is no step of single tokens */
	return STATUS_OK;
}

static enum status add_step(struct decoder *decoder, const struct json_t *component, unsigned depth, struct error *error)
{
	static const char *const schemes[] = { "always", "first", "never", NULL };
	static const char *const names[] = { "ByteLevel", "ByteFallback", "Metaspace", "Replace", "Strip", "WordPiece",
		"SentencePiece" };
	const char              *type = component_type(component);
	struct decoder_step     *step;
	size_t                   known = 0, count;
	unsigned                 scheme;
	bool                     space;
	enum status              status;

	if (strcmp(type, "Sequence") == 0) {
		status = component_steps(component, "decoders", depth, &count, error);
		for (size_t i = 0; !status && i < count; i++)
			status = add_step(decoder, component_step(component, "decoders", i), depth + 1, error);
		return status;
	}
	if (strcmp(type, "Fuse") == 0) {
		decoder->fused = true;
		return STATUS_OK;
	}
	while (known < sizeof names / sizeof names[0] && strcmp(type, names[known]) != 0)
		known++;
	if (known == sizeof names / sizeof names[0] || (known == DECODER_SENTENCEPIECE && !decoder->own))
		return component_unknown(component, "decoder", error);
	if (decoder->count == DECODER_STEPS_MAX)
		return error_set(error, STATUS_LIMIT, "the decoder has more than %d steps", DECODER_STEPS_MAX);
	if (decoder->fused && known != DECODER_REPLACE && known != DECODER_STRIP)
		return error_set(error, STATUS_UNSUPPORTED, "the decoder %s after Fuse or ByteLevel is not known here", type);
	step = &decoder->steps[decoder->count++];
	*step = (struct decoder_step){ .type = (enum decoder_type)known };
	switch (step->type) {
	case DECODER_BYTE_LEVEL:
		decoder->fused = true;
		return STATUS_OK;
	case DECODER_BYTE_FALLBACK:
		decoder->bytes = true;
		return STATUS_OK;
	case DECODER_METASPACE:
		status = affix(component, "replacement", "\xe2\x96\x81", step->pattern, error);
		if (!status)
			status = component_bool(component, "add_prefix_space", true, &space, error);
		if (!status)
			status = component_word(component, "prepend_scheme", schemes, space ? 0 : 2, &scheme, error);
		if (!status) {
			decoder->first_differs = step->flag = scheme != 2;
			note_joined(decoder, step);
		}
		return status;
	case DECODER_REPLACE:
		status = init_replace(decoder, step, component, error);
		if (!status)
			note_joined(decoder, step);
		return status;
	case DECODER_STRIP:
		return init_strip(decoder, step, component, error);
	case DECODER_WORDPIECE:
		decoder->first_differs = true;
		status = affix(component, "prefix", "##", step->pattern, error);
		return status ? status : component_bool(component, "cleanup", true, &step->flag, error);
	case DECODER_SENTENCEPIECE:
		decoder->first_differs = true;
		return component_bool(component, "remove_extra_whitespaces", false, &decoder->first_lasts, error);
	default:
		return STATUS_OK;
	}
}

enum status decoder_init(struct decoder *decoder, const struct json_t *component, bool own, struct error *error)
{
	*decoder = (struct decoder){ .own = own };
	if (component)
		return add_step(decoder, component, 0, error);
	decoder->steps[decoder->count++].type = DECODER_JOIN;
	decoder->first_differs = true;
	return STATUS_OK;
}

/* Every PATTERN of TEXT becomes CONTENT. */
static enum status replace(struct buf *text, const char *pattern, const char *content)
{
	size_t      pattern_len = strlen(pattern), from = 0, at = 0;
	struct buf  out;
	enum status status = STATUS_OK;

	if (!pattern_len || text->len < pattern_len || !memmem(text->data, text->len, pattern, pattern_len))
		return STATUS_OK;
	buf_init(&out, text->max);
	while (!status && at + pattern_len <= text->len) {
		if (memcmp(text->data + at, pattern, pattern_len) != 0) {
			at++;
			continue;
		}
		status = buf_append(&out, text->data + from, at - from);
		if (!status)
			status = buf_append_string(&out, content);
		from = at = at + pattern_len;
	}
	if (!status)
		status = buf_append(&out, text->data + from, text->len - from);
	if (status) {
		buf_free(&out);
		return status;
	}
	buf_free(text);
	*text = out;
	return STATUS_OK;
}

/* A spelling with a character outside the mapping stands for itself as a whole, as in the reference. */
static void byte_level(struct buf *text)
{
	size_t len = 0, used;

	for (size_t at = 0; at < text->len; at += used)
		if (bytelevel_next(text->data + at, text->len - at, &used) < 0)
			return;
	for (size_t at = 0; at < text->len; at += used) { /* no byte needs more room than its character */
		int byte = bytelevel_next(text->data + at, text->len - at, &used);
		text->data[len++] = (char)byte;
	}
	text->data[len] = '\0';
	text->len = len;
}

static void byte_fallback(struct buf *text)
{
	int value = 0;

	if (text->len != 6 || memcmp(text->data, "<0x", 3) != 0 || text->data[5] != '>')
		return;
	for (int i = 3; i < 5; i++) {
		unsigned char c = (unsigned char)text->data[i];
		if (c >= '0' && c <= '9')
			value = value * 16 + c - '0';
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
			value = value * 16 + (c | 0x20) - 'a' + 10;
		else
			return;
	}
	text->data[0] = (char)value;
	text->len = 1;
}

static void strip(struct buf *text, const struct decoder_step *step)
{
	size_t unit = strlen(step->pattern), from = 0, to = text->len;

	for (size_t i = 0; unit && i < step->start && to - from >= unit && memcmp(text->data + from, step->pattern, unit) == 0; i++)
		from += unit;
	for (size_t i = 0; unit && i < step->stop && to - from >= unit && memcmp(text->data + to - unit, step->pattern, unit) == 0; i++)
		to -= unit;
	text->len = to;
	buf_consume(text, from);
}

static enum status wordpiece(struct buf *text, const struct decoder_step *step, bool first)
{
	static const struct {
		const char *from, *to;
	} cleanups[] = { { " .", "." }, { " ?", "?" }, { " !", "!" }, { " ,", "," }, { " ' ", "'" }, { " n't", "n't" }, { " 'm", "'m" },
		{ " do not", " don't" }, { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" } };
	size_t      prefix = strlen(step->pattern);
	enum status status = STATUS_OK;

	if (!first && prefix && text->len >= prefix && memcmp(text->data, step->pattern, prefix) == 0) {
		buf_consume(text, prefix);
	} else if (!first) {
		status = buf_append(text, " ", 1);
		if (!status) {
			memmove(text->data + 1, text->data, text->len - 1);
			text->data[0] = ' ';
		}
	}
	for (size_t i = 0; step->flag && !status && i < sizeof cleanups / sizeof cleanups[0]; i++)
		status = replace(text, cleanups[i].from, cleanups[i].to);
	return status;
}

enum status decoder_apply(const struct decoder *decoder, const char *spelling, size_t len, bool first, struct buf *out)
{
	static const char mark[] = "\xe2\x96\x81"; /* U+2581 */
	enum { MARK_LEN = 3 };
	enum status status = STATUS_OK;

	buf_clear(out);
	if (decoder->count && decoder->steps[0].type == DECODER_JOIN && !first)
		status = buf_append(out, " ", 1);
	if (!status && len)
		status = buf_append(out, spelling, len);
	for (size_t i = 0; !status && i < decoder->count && out->data; i++) { /* a step may leave nothing to the next: " " + "" */
		const struct decoder_step *step = &decoder->steps[i];
		switch (step->type) {
		case DECODER_BYTE_LEVEL:
			byte_level(out);
			break;
		case DECODER_BYTE_FALLBACK:
			byte_fallback(out);
			break;
		case DECODER_METASPACE:
			status = replace(out, step->pattern, first && step->flag ? "" : " ");
			break;
		case DECODER_REPLACE:
			status = replace(out, step->pattern, step->content);
			break;
		case DECODER_STRIP:
			strip(out, step);
			break;
		case DECODER_WORDPIECE:
			status = wordpiece(out, step, first);
			break;
		case DECODER_SENTENCEPIECE:
			if (first && out->len >= MARK_LEN && memcmp(out->data, mark, MARK_LEN) == 0)
				buf_consume(out, MARK_LEN);
			break;
		case DECODER_JOIN:
			break;
		}
	}
	return status;
}
