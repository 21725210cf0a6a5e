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
}

/* Appends what HELD and BYTES complete to OUT; with OUT NULL only counts.  Returns the bytes; the rest stays in HELD. */
static size_t complete(char held[4], unsigned *held_len, const char *bytes, size_t len, struct buf *out)
{
	size_t   at = 0, written = 0;
	uint32_t code;

	while (at < len || *held_len) {
		const char *from = bytes + at;
		int         n;

		if (*held_len) {
			if (at == len)
				break;
			held[*held_len] = bytes[at];
			from = held;
			n = utf8_decode(held, *held_len + 1, &code);
			if (n == 0) {
				++*held_len;
				at++;
				continue;
			}
			at += n > 0; /* an ill-formed part is what was held: the new byte is looked at again */
			*held_len = 0;
		} else {
			n = utf8_decode(from, len - at, &code);
			if (n == 0) {
				*held_len = (unsigned)(len - at);
				memcpy(held, from, *held_len);
				break;
			}
			at += (size_t)(n > 0 ? n : -n);
		}
		written += n > 0 ? (size_t)n : REPLACEMENT_LEN;
		if (out) /* cannot fail: reserved by the caller */
			buf_append(out, n > 0 ? from : replacement, n > 0 ? (size_t)n : REPLACEMENT_LEN);
	}
	return written;
}

enum status detokenizer_push(struct detokenizer *detokenizer, int32_t id, struct buf *out)
{
	enum vocab_kind kind = id < 0 ? VOCAB_UNUSED : vocab_kind(detokenizer->vocab, (uint32_t)id);
	const char     *bytes;
	size_t          len;
	char            held[4];
	unsigned        held_len = detokenizer->held_len;
	enum status     status;

	if (kind == VOCAB_CONTROL || kind == VOCAB_UNUSED)
		return STATUS_OK;
	bytes = vocab_bytes(detokenizer->vocab, (uint32_t)id, &len);
	memcpy(held, detokenizer->held, sizeof held);
	status = buf_reserve(out, complete(held, &held_len, bytes, len, NULL));
	if (!status)
		complete(detokenizer->held, &detokenizer->held_len, bytes, len, out);
	return status;
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
