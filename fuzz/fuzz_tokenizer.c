/* fuzz_tokenizer.c: hostile tokenizer.json files with what lies beside them in a model directory, SentencePiece models and rank
 * files of tiktoken.  Each is either refused in one line, or its vocabulary and tokenizer keep their promises: ids below the
 * size, no control token for data, text that is UTF-8.
 *
 * Input: the file; it is JSON where it begins with "{", a rank file where it begins like one.  Behind a tokenizer.json may stand,
 * each after a NUL, tokenizer_config.json, special_tokens_map.json and added_tokens.json.  To try one format, give a corpus of it.
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_tokenizer -dict=tests/corpus/tokenizer.dict -max_len=20000 CORPUS tests/corpus/tokenizer
 *
 * make check replays tests/corpus/tokenizer through the same function (fuzz/replay.c).
 */
#include "base/utf8.h"
#include "file/hf_config.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { TOKENS_MAX = 100000, TEXT_MAX = 1 << 22 };

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static int refuse(enum status status, const struct error *error)
{
	if (error->status != status || !*error->message || strchr(error->message, '\n'))
		fprintf(stderr, "status %d, in words %d: %s\n", (int)status, (int)error->status, error->message);
	require(error->status == status && *error->message && !strchr(error->message, '\n'), "a bad refusal");
	return 0;
}

static void decode(const struct vocab *vocab, const struct token_list *list, bool special)
{
	struct detokenizer detokenizer;
	struct buf         out;

	buf_init(&out, TEXT_MAX);
	detokenizer_init(&detokenizer, vocab);
	if (special)
		detokenizer_show_special(&detokenizer);
	for (size_t i = 0; i < list->count; i++) {
		require(detokenizer.held_len <= 3, "more than three bytes are held back");
		if (detokenizer_push(&detokenizer, list->ids[i], &out))
			break;
	}
	detokenizer_finish(&detokenizer, &out);
	require(utf8_valid(out.data ? out.data : "", out.len, NULL), "the text is not UTF-8");
	buf_free(&out);
}

static void encode(const struct tokenizer *tokenizer, const struct vocab *vocab, const char *text, size_t len, bool literal)
{
	struct text_span  span = { text, len, literal };
	struct token_list list = { NULL, 0, 0 };
	struct error      error = { .message = "" };
	enum status       status = tokenizer_encode(tokenizer, &span, 1, TOKENS_MAX, &list, &error);

	if (status)
		refuse(status, &error);
	for (size_t i = 0; i < list.count; i++) {
		enum vocab_kind kind = vocab_kind(vocab, (uint32_t)list.ids[i]);
		require(list.ids[i] >= 0 && (uint32_t)list.ids[i] < vocab_size(vocab) && kind != VOCAB_UNUSED, "an id that is none");
	}
	decode(vocab, &list, false);
	decode(vocab, &list, true);
	token_list_free(&list);
}

/* tokenizer.json, and the neighbours that follow it. */
static enum status open_json(const char *bytes, size_t size, struct token_file *file, struct error *error)
{
	enum { NEIGHBOURS = 3 };
	struct hf_config   configs[NEIGHBOURS] = { { .object = NULL } };
	struct token_names names = { .bos = -1, .eos = -1 };
	const char        *end = memchr(bytes, '\0', size), *at = end ? end + 1 : bytes + size;
	enum status        status = token_file_from_json(bytes, end ? (size_t)(end - bytes) : size, "input", file, error);

	if (status || !end)
		return status;
	for (size_t i = 0; i < NEIGHBOURS && !status && at < bytes + size; i++) {
		const char *stop = memchr(at, '\0', (size_t)(bytes + size - at));
		size_t      len = stop ? (size_t)(stop - at) : (size_t)(bytes + size - at);
		if (len)
			status = hf_config_parse(at, len, "beside", &configs[i], error);
		at += len + (stop != NULL);
	}
	if (!status)
		status = token_file_merge_special(file, configs[0].object, configs[1].object, configs[2].object, 4096, &names, error);
	if (!status)
		require(names.bos < (int32_t)file->size && names.eos < (int32_t)file->size, "a named token that is none");
	for (size_t i = 0; i < NEIGHBOURS; i++)
		hf_config_close(&configs[i]);
	if (status)
		token_file_free(file);
	return status;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const char text[] = "Hello,  world! It's 12345 x\xcc\x81 caf\xc3\xa9 \xe6\xb0\xb4\xe8\xbd\xae\n\n<s> [MASK] \xe2\x96\x81"
		"w \xf0\x9f\x98\x80 \xff\xe2\x98 ab aab bb  \t<0x41>";
	struct token_file file;
	struct vocab     *vocab = NULL;
	struct tokenizer *tokenizer = NULL;
	struct error      error = { .message = "" };
	enum status       status;

	if (size && data[0] == '{')
		status = open_json((const char *)data, size, &file, &error);
	else if (token_file_is_tiktoken((const char *)data, size))
		status = token_file_from_tiktoken((const char *)data, size, "input", "glm4", &file, &error);
	else
		status = token_file_from_spm((const char *)data, size, "input", &file, &error);
	if (status)
		return refuse(status, &error);
	status = vocab_from_file(&file, &vocab, &error);
	if (!status)
		status = tokenizer_from_file(&file, &tokenizer, &error);
	if (!status)
		status = tokenizer_respell(tokenizer, &file, vocab, &error);
	token_file_free(&file);
	if (status) {
		refuse(status, &error);
	} else {
		encode(tokenizer, vocab, text, sizeof text - 1, true);
		encode(tokenizer, vocab, text, sizeof text - 1, false);
		encode(tokenizer, vocab, (const char *)data, size < 300 ? size : 300, true);
	}
	tokenizer_free(tokenizer);
	vocab_free(vocab);
	return 0;
}
