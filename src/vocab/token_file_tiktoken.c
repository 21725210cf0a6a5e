/* token_file_tiktoken.c: owns the reading of rank files of tiktoken: a line "BASE64 RANK" for each token, as the first GLM-4
 * ships them under the name tokenizer.model.  What the file does not say, the split of text and the special tokens, comes from
 * its neighbours (token_file_open.c); without them the number of ranks tells the well-known files apart.
 *
 * The rank of a token is its id and its place in the order of merging: of all neighbours whose concatenation is a token, the
 * pair with the lowest rank merges.  In this library's words: a byte-level BPE by scores, where a piece that is a token is one.
 *
 * Invariant: every byte has a token, so nothing is ever lost. */
#include "base/bytes.h"
#include "base/utf8.h"
#include "vocab/bytelevel.h"
#include "vocab/token_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_MAX = TOKEN_FILE_TOKEN_MAX / 2, RANK_DIGITS_MAX = 7 };

struct reading {
	struct token_file *file;
	const char        *label;
	struct error      *error;
	bool               bytes[256]; /* that have a token */
	char               raw[BYTES_MAX], spelled[TOKEN_FILE_TOKEN_MAX];
};

static bool is_base64(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/' || c == '=';
}

bool token_file_is_tiktoken(const char *bytes, size_t len)
{
	size_t at = 0;

	while (at < len && is_base64(bytes[at]))
		at++;
	return at >= 2 && len - at > 1 && bytes[at] == ' ' && bytes[at + 1] >= '0' && bytes[at + 1] <= '9';
}

static enum status add_line(struct reading *reading, const char *line, size_t len, size_t number)
{
	const char *space = memchr(line, ' ', len);
	size_t      text = space ? (size_t)(space - line) : 0, digits = space ? len - text - 1 : 0, raw = 0, spelled = 0;
	uint32_t    rank = 0;
	char        message[ERROR_MESSAGE_MAX], quoted[BYTES_QUOTE_MAX];
	enum status status;

	for (size_t i = 0; i < digits && digits <= RANK_DIGITS_MAX; i++)
		if (space[1 + i] >= '0' && space[1 + i] <= '9')
			rank = rank * 10 + (uint32_t)(space[1 + i] - '0');
		else
			digits = 0;
	/* Whisper's file ends with "= 50256": a token of nothing. */
	if (!text || !digits || digits > RANK_DIGITS_MAX || text / 4 * 3 + 3 > BYTES_MAX ||
	    (!(text == 1 && *line == '=') && (!bytes_from_base64(line, text, reading->raw, &raw) || !raw)))
		return error_set(reading->error, STATUS_INVALID, "%.160s: line %zu %s is not a token in base64 and its rank",
		    reading->label, number, bytes_quote(quoted, line, len));
	for (size_t i = 0; i < raw; i++)
		spelled += utf8_encode(bytelevel_char((unsigned char)reading->raw[i]), reading->spelled + spelled);
	status = token_file_add(reading->file, rank, reading->spelled, spelled, TOKEN_NORMAL, reading->error);
	if (status && reading->error) {
		memcpy(message, reading->error->message, sizeof message);
		return error_set(reading->error, status, "%.160s: line %zu: %s", reading->label, number, message);
	}
	if (raw == 1)
		reading->bytes[(unsigned char)reading->raw[0]] = true;
	return status;
}

static enum status add_lines(struct reading *reading, const char *bytes, size_t len)
{
	enum status status = STATUS_OK;
	size_t      number = 1;

	for (size_t at = 0; at < len && !status; number++) {
		const char *stop = memchr(bytes + at, '\n', len - at);
		size_t      line = stop ? (size_t)(stop - bytes) - at : len - at, next = at + line + 1;
		if (line && bytes[at + line - 1] == '\r')
			line--;
		if (line)
			status = add_line(reading, bytes + at, line, number);
		at = next;
	}
	for (unsigned byte = 0; byte < 256 && !status; byte++)
		if (!reading->bytes[byte])
			status = error_set(reading->error, STATUS_INVALID, "%.160s: the byte 0x%02x has no token", reading->label, byte);
	return status;
}

static enum status translate(struct reading *reading, const char *split)
{
	struct token_file *file = reading->file;

	static const struct {
		uint32_t    ranks;
		const char *split;
	} known[] = {
		{ 50256, "gpt-2" }, { 50257, "gpt-2" }, { 50280, "gpt-2" }, /* r50k_base, Whisper's, p50k_base */
		{ 100256, "dbrx" }, { 199998, "gpt-4o" },                   /* cl100k_base, o200k_base */
		{ 128000, "llama-bpe" }, { 151329, "glm4" }, { 151643, "qwen2" }, { 163584, "kimi-k2" },
	};
	enum status status;

	for (size_t i = 0; !*split && i < sizeof known / sizeof known[0]; i++)
		if (known[i].ranks == file->size)
			split = known[i].split;
	if (!*split)
		return error_set(reading->error, STATUS_UNSUPPORTED, "%.160s: a rank file of tiktoken does not say how text is split, its "
		    "%u ranks are no well-known file's, and no tokenizer_config.json or config.json beside it names a family known here "
		    "(glm4, qwen, llama, gpt_oss, kimi_k2, whisper and others)", reading->label, file->size);
	file->scores = malloc(file->size * sizeof *file->scores);
	file->decoder = json_pack("{s:s}", "type", "ByteLevel");
	if (!file->scores || !file->decoder)
		return error_set(reading->error, STATUS_NOMEM, "%.160s: no memory for %u ranks", reading->label, file->size);
	for (uint32_t id = 0; id < file->size; id++)
		file->scores[id] = -(double)id;
	file->model = TOKEN_BPE;
	file->model_size = file->size;
	file->merges_by_score = true;
	status = token_file_set_split(file, split, strlen(split), reading->error);
	file->ignore_merges = true; /* tiktoken looks for the whole piece first, whatever the family */
	return status;
}

enum status token_file_from_tiktoken(const char *bytes, size_t len, const char *label, const char *split, struct token_file *ret,
    struct error *error)
{
	struct token_file file;
	struct reading   *reading = calloc(1, sizeof *reading);
	enum status       status;

	if (!reading)
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", label);
	token_file_init(&file);
	reading->file = &file;
	reading->label = label;
	reading->error = error;
	status = add_lines(reading, bytes, len);
	if (!status)
		status = translate(reading, split);
	if (!status)
		status = token_file_finish(&file, error);
	free(reading);
	if (status)
		token_file_free(&file);
	else
		*ret = file;
	return status;
}
