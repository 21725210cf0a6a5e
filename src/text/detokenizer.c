/* detokenizer.c: owns the bytes of a character that is not complete yet.  Does not look for stop strings.
 *
 * Invariant: `held` is a proper prefix of a well-formed character (0 to 3 bytes) and everything emitted is well-formed
 * UTF-8, so that a delta can be put into JSON as it is.  Control tokens are skipped as if they were not there, also in the
 * middle of a character: that is what decoding all ids at once does.
 */
#include "text/detokenizer.h"
#include "base/utf8.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
enum { REPLACEMENT_LEN = 3 };

void detokenizer_init(struct detokenizer *detokenizer, const struct vocab *vocab)
{
	*detokenizer = (struct detokenizer){ .vocab = vocab };
	vocab_strip(vocab, &detokenizer->strip);
}

void detokenizer_show_special(struct detokenizer *detokenizer) { detokenizer->with_special = true; }

/* What is carried from token to token. */
struct carry {
	char     held[4];
	unsigned held_len, strip;
};

/* A whole character, or an ill-formed part (LEN 0); JOINED: it is put together from several tokens.  Returns what to write,
 * *ret_len 0 for nothing. */
static const char *character(const struct vocab *vocab, struct carry *carry, const char *bytes, size_t len, bool joined,
    size_t *ret_len)
{
	const char *content, *pattern = joined ? vocab_joined(vocab, &content) : NULL;
	unsigned    ignored;

	if (!len) {
		bytes = replacement;
		len = REPLACEMENT_LEN;
	} else if (pattern && strlen(pattern) == len && memcmp(pattern, bytes, len) == 0) {
		bytes = content;
		len = strlen(content);
	}
	if (carry->strip && len == 1 && *bytes == vocab_strip(vocab, &ignored)) {
		carry->strip--;
		len = 0;
	} else if (len) {
		carry->strip = 0;
	}
	*ret_len = len;
	return bytes;
}

/* Appends what CARRY and BYTES complete to OUT; with OUT NULL only counts.  Returns the bytes; the rest stays in CARRY. */
static size_t complete(const struct vocab *vocab, struct carry *carry, const char *bytes, size_t len, struct buf *out)
{
	size_t   at = 0, written = 0;
	uint32_t code;

	while (at < len || carry->held_len) {
		const char *from = bytes + at, *text;
		bool        joined = carry->held_len > 0;
		size_t      text_len;
		int         n;

		if (joined) {
			if (at == len)
				break;
			carry->held[carry->held_len] = bytes[at];
			from = carry->held;
			n = utf8_decode(carry->held, carry->held_len + 1, &code);
			if (n == 0) {
				++carry->held_len;
				at++;
				continue;
			}
			at += n > 0; /* an ill-formed part is what was held: the new byte is looked at again */
			carry->held_len = 0;
		} else {
			n = utf8_decode(from, len - at, &code);
			if (n == 0) {
				carry->held_len = (unsigned)(len - at);
				memcpy(carry->held, from, carry->held_len);
				break;
			}
			at += (size_t)(n > 0 ? n : -n);
		}
		text = character(vocab, carry, from, n > 0 ? (size_t)n : 0, joined, &text_len);
		written += text_len;
		if (out && text_len) /* cannot fail: reserved by the caller */
			buf_append(out, text, text_len);
	}
	return written;
}

enum status detokenizer_push(struct detokenizer *detokenizer, int32_t id, struct buf *out)
{
	const struct vocab *vocab = detokenizer->vocab;
	enum vocab_kind     kind = id < 0 ? VOCAB_UNUSED : vocab_kind(vocab, (uint32_t)id);
	const char         *bytes;
	size_t              len;
	struct carry        carry = { .held_len = detokenizer->held_len, .strip = detokenizer->strip }, trial;
	size_t              written;
	enum status         status;

	if ((kind == VOCAB_CONTROL && !detokenizer->with_special) || kind == VOCAB_UNUSED)
		return STATUS_OK;
	bytes = detokenizer->begun ? vocab_bytes(vocab, (uint32_t)id, &len) : vocab_bytes_first(vocab, (uint32_t)id, &len);
	memcpy(carry.held, detokenizer->held, sizeof carry.held);
	trial = carry;
	written = complete(vocab, &trial, bytes, len, NULL);
	status = buf_reserve(out, written);
	if (status)
		return status;
	complete(vocab, &carry, bytes, len, out);
	memcpy(detokenizer->held, carry.held, sizeof carry.held);
	detokenizer->held_len = carry.held_len;
	detokenizer->begun = detokenizer->begun || written || carry.held_len || !vocab_first_lasts(vocab);
	detokenizer->strip = carry.strip;
	return STATUS_OK;
}

enum status detokenizer_finish(struct detokenizer *detokenizer, struct buf *out)
{
	enum status status = STATUS_OK;

	if (detokenizer->held_len)
		status = buf_append(out, replacement, REPLACEMENT_LEN);
	if (!status)
		detokenizer->held_len = 0;
	return status;
}
