/* bench_tokenizer.c: load time of vocabulary and tokenizer, speed of encoding and decoding.
 *
 *     bench/bench_tokenizer TOKENIZER [TEXTFILE...]     (anything penstock tokenize takes; no text: only loads)
 *
 * Encodes each text once, cold, and then again and again for about a second of CPU time; decodes the last one's ids; encodes
 * 10 MB each of inputs made to be slow.  bench/compare_tokenizers.py runs it beside other implementations.
 */
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOW_BYTES = 10000000, TEXT_MAX = 1 << 26 };

/* CPU time of this process: other load on the machine counts less. */
static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void encode(const struct tokenizer *tokenizer, const char *name, const char *bytes, size_t len, struct token_list *list)
{
	struct text_span span = { bytes, len, false };
	struct error     error;
	unsigned         rounds = 0;
	double           start = seconds(), end, cold = 0;

	do {
		list->count = 0;
		if (tokenizer_encode(tokenizer, &span, 1, len + 1, list, &error)) {
			fprintf(stderr, "%s: %s\n", name, error.message);
			return;
		}
		end = seconds();
		if (rounds++ == 0)
			cold = end - start;
	} while (end - start < 1);
	printf("encode %-24s %9zu bytes %9zu tokens, cold %8.2f MB/s %6.2f M tokens/s %8.1f ms, then %8.2f MB/s\n", name, len,
	    list->count,
	    (double)len / cold * 1e-6, (double)list->count / cold * 1e-6, cold * 1e3, (double)len * rounds / (end - start) * 1e-6);
}

static void encode_repeated(const struct tokenizer *tokenizer, const char *name, const char *unit)
{
	struct token_list list = { 0 };
	char             *bytes = malloc(SLOW_BYTES);
	size_t            len = strlen(unit);

	for (size_t i = 0; bytes && i < SLOW_BYTES; i++)
		bytes[i] = unit[i % len];
	if (bytes)
		encode(tokenizer, name, bytes, SLOW_BYTES, &list);
	free(bytes);
	token_list_free(&list);
}

static void decode(const struct vocab *vocab, const struct token_list *list)
{
	struct detokenizer detokenizer;
	struct buf         out;
	size_t             bytes = 0;
	double             start = seconds();

	buf_init(&out, 1 << 20);
	detokenizer_init(&detokenizer, vocab);
	for (size_t i = 0; i < list->count; i++) {
		detokenizer_push(&detokenizer, list->ids[i], &out);
		bytes += out.len;
		buf_clear(&out);
	}
	buf_free(&out);
	printf("decode %zu tokens, %zu bytes: %.0f ns per token\n", list->count, bytes,
	    (seconds() - start) * 1e9 / (double)(list->count ? list->count : 1));
}

static char *read_text(const char *path, size_t *ret_len)
{
	char *text = malloc(TEXT_MAX);
	FILE *file = fopen(path, "rb");

	*ret_len = file && text ? fread(text, 1, TEXT_MAX, file) : 0;
	if (file)
		fclose(file);
	return text;
}

int main(int argc, char **argv)
{
	struct token_file file;
	struct vocab     *vocab = NULL;
	struct tokenizer *tokenizer = NULL;
	struct token_list list = { 0 };
	struct error      error;
	double            at[4];

	if (argc < 2) {
		fprintf(stderr, "usage: bench_tokenizer TOKENIZER [TEXTFILE...]\n");
		return 2;
	}
	at[0] = seconds();
	if (token_file_open(argv[1], &file, &error)) {
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	at[1] = seconds();
	if (vocab_from_file(&file, &vocab, &error))
		goto fail;
	at[2] = seconds();
	if (tokenizer_from_file(&file, &tokenizer, &error))
		goto fail;
	at[3] = seconds();
	printf("load: file %.2f ms, vocabulary %.2f ms, tokenizer %.2f ms, together %.2f ms\n", (at[1] - at[0]) * 1e3,
	    (at[2] - at[1]) * 1e3, (at[3] - at[2]) * 1e3, (at[3] - at[0]) * 1e3);
	fflush(stdout);
	for (int i = 2; i < argc; i++) {
		size_t len;
		char  *text = read_text(argv[i], &len);
		if (len)
			encode(tokenizer, argv[i], text, len, &list);
		free(text);
	}
	if (argc == 2)
		goto done;
	decode(vocab, &list);
	encode_repeated(tokenizer, "one letter", "a");
	encode_repeated(tokenizer, "spaces", " ");
	encode_repeated(tokenizer, "punctuation", "-=");
	encode_repeated(tokenizer, "one word", "internationalisation");
	encode_repeated(tokenizer, "Chinese, no break", "水从河里流到水轮机");
	encode_repeated(tokenizer, "not UTF-8", "\xff\xe6");
done:
	token_list_free(&list);
	tokenizer_free(tokenizer);
	vocab_free(vocab);
	token_file_free(&file);
	return 0;
fail:
	fprintf(stderr, "%s\n", error.message);
	tokenizer_free(tokenizer);
	vocab_free(vocab);
	token_file_free(&file);
	return 1;
}
