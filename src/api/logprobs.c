/* logprobs.c: owns the entries of log probabilities and their shape in JSON.  Does not know which tokens are kept.
 * Invariant: `ends` has one number for each entry of `text`, rising; whole entries are given out, in order. */
#include "api/logprobs.h"

#include "api/json_text.h"

#include <string.h>

enum { ENTRY_BYTES_MIN = 40 }; /* of an entry: bounds their number by that of bytes */

/* What a token that is (nearly) impossible has: JSON has no infinity, and clients know this number. */
#define LOGPROB_LEAST (-9999.0)

void logprobs_init(struct logprobs *logprobs, size_t max_bytes)
{
	*logprobs = (struct logprobs){ 0 };
	buf_init(&logprobs->text, max_bytes);
	buf_init(&logprobs->ends, max_bytes / ENTRY_BYTES_MIN * sizeof(uint32_t));
}

void logprobs_free(struct logprobs *logprobs)
{
	buf_free(&logprobs->text);
	buf_free(&logprobs->ends);
}

static uint32_t count_of(const struct logprobs *logprobs) { return (uint32_t)(logprobs->ends.len / sizeof(uint32_t)); }

static uint32_t end_of(const struct logprobs *logprobs, uint32_t index)
{
	uint32_t end;

	memcpy(&end, logprobs->ends.data + index * sizeof end, sizeof end);
	return end;
}

/* "token":…,"logprob":…,"bytes":[…]: half a character is U+FFFD in the text, and itself among the bytes. */
static enum status append_token(struct buf *out, const struct vocab *vocab, int32_t id, double logprob)
{
	size_t      len;
	const char *bytes = vocab_bytes(vocab, (uint32_t)id, &len);
	enum status status = buf_append_string(out, "{\"token\":");

	if (!status)
		status = json_text_append_string(out, bytes, len);
	if (!status)
		status = buf_append_format(out, ",\"logprob\":%.9g,\"bytes\":[", logprob > LOGPROB_LEAST ? logprob : LOGPROB_LEAST);
	for (size_t i = 0; i < len && !status; i++)
		status = buf_append_format(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)bytes[i]);
	return status ? status : buf_append_string(out, "]");
}

static enum status append_entry(struct buf *out, const struct vocab *vocab, int32_t id, const struct sample_logprobs *from)
{
	enum status status = buf_append_string(out, ",");

	if (!status)
		status = append_token(out, vocab, id, (double)from->drawn);
	if (!status)
		status = buf_append_string(out, ",\"top_logprobs\":[");
	for (uint32_t i = 0; i < from->count && !status; i++) {
		if (i)
			status = buf_append_string(out, ",");
		if (!status)
			status = append_token(out, vocab, from->top[i].id, (double)from->top[i].logprob);
		if (!status)
			status = buf_append_string(out, "}");
	}
	return status ? status : buf_append_string(out, "]}");
}

enum status logprobs_add(struct logprobs *logprobs, const struct vocab *vocab, int32_t id, const struct sample_logprobs *from)
{
	size_t      before = logprobs->text.len;
	enum status status = append_entry(&logprobs->text, vocab, id, from);
	uint32_t    end = (uint32_t)logprobs->text.len;

	if (!status)
		status = buf_append(&logprobs->ends, &end, sizeof end);
	if (status)
		logprobs->text.len = before;
	return status;
}

/* Entries that wait of the first TOKENS tokens. */
static uint32_t ready(const struct logprobs *logprobs, uint32_t tokens)
{
	uint32_t count = count_of(logprobs);

	if (tokens <= logprobs->taken)
		return 0;
	return tokens - logprobs->taken < count ? tokens - logprobs->taken : count;
}

enum status logprobs_put(const struct logprobs *logprobs, uint32_t tokens, struct buf *out)
{
	uint32_t    count = ready(logprobs, tokens);
	enum status status;

	if (count == 0)
		return buf_append_string(out, "null");
	status = buf_append_string(out, "{\"content\":[");
	if (!status)
		status = buf_append(out, logprobs->text.data + 1, end_of(logprobs, count - 1) - 1);
	return status ? status : buf_append_string(out, "],\"refusal\":null}");
}

void logprobs_taken(struct logprobs *logprobs, uint32_t tokens)
{
	uint32_t count = ready(logprobs, tokens), left = count_of(logprobs) - count, bytes;

	if (count == 0)
		return;
	bytes = end_of(logprobs, count - 1);
	buf_consume(&logprobs->text, bytes);
	for (uint32_t i = 0; i < left; i++) {
		uint32_t end = end_of(logprobs, count + i) - bytes;
		memcpy(logprobs->ends.data + i * sizeof end, &end, sizeof end);
	}
	logprobs->ends.len = left * sizeof(uint32_t);
	logprobs->taken += count;
}
