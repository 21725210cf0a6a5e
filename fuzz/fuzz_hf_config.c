/* fuzz_hf_config.c: hostile config.json, generation_config.json and tokenizer_config.json.  Every getter either refuses in
 * one line or returns a value inside the range it was asked for.
 *
 * Input: the three documents, separated by a byte 0xff (which JSON never holds); later ones may be missing.
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_hf_config -dict=tests/corpus/hf_config.dict -max_len=4096 CORPUS tests/corpus/hf_config
 *
 * make check replays tests/corpus/hf_config through the same function (fuzz/replay.c).
 */
#include "file/hf_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

/* Returns whether it is a success, having looked at the words of a refusal. */
static bool fine(enum status status, const struct error *error)
{
	if (status == STATUS_OK)
		return true;
	require(error->status == status && *error->message && !strchr(error->message, '\n'), "a bad refusal");
	return false;
}

/* Every getter on every key of an object, and into the objects inside. */
static void walk(const struct hf_config *config, unsigned depth)
{
	static const char *const words[] = { "silu", "gelu", NULL };

	for (const char *key = NULL; (key = hf_config_next_key(config, key));) {
		struct hf_config object;
		struct error     error;
		uint32_t         u32, list[8];
		int64_t          i64;
		double           f64;
		bool             boolean;
		const char      *string;
		unsigned         word;
		size_t           count;

		if (fine(hf_config_u32(config, key, 3, 70000, &u32, &error), &error))
			require(u32 >= 3 && u32 <= 70000, "u32 out of range");
		if (fine(hf_config_i64(config, key, -5, 5, &i64, &error), &error))
			require(i64 >= -5 && i64 <= 5, "i64 out of range");
		if (fine(hf_config_f64(config, key, -0.5, 1e6, &f64, &error), &error))
			require(f64 >= -0.5 && f64 <= 1e6, "f64 out of range");
		fine(hf_config_bool(config, key, &boolean, &error), &error);
		if (fine(hf_config_string(config, key, &string, &error), &error))
			require(strlen(string) < 1 << 24, "no string");
		if (fine(hf_config_word(config, key, words, &word, &error), &error))
			require(word < 2, "word out of range");
		if (fine(hf_config_u32_list(config, key, 0, 9, list, 8, &count, &error), &error))
			for (size_t i = 0; i < count; i++)
				require(list[i] <= 9, "item out of range");
		if (fine(hf_config_string_count(config, key, 16, &count, &error), &error))
			for (size_t i = 0; i < count; i++)
				fine(hf_config_string_at(config, key, i, &string, &error), &error);
		if (depth && fine(hf_config_object(config, key, &object, &error), &error) && object.object)
			walk(&object, depth - 1);
	}
}

static void check_config(const struct hf_config *config)
{
	struct hf_config text, quantization;
	struct hf_rope   rope;
	struct error     error;
	const char      *string;

	walk(config, 3);
	fine(hf_config_dtype(config, &string, &error), &error);
	if (fine(hf_config_quantization(config, &quantization, &string, &error), &error))
		walk(&quantization, 1);
	if (!fine(hf_config_text(config, &text, &error), &error))
		return;
	if (!fine(hf_config_rope(&text, 10000, 1, &rope, &error), &error))
		return;
	require(rope.theta >= 2 && rope.partial > 0 && rope.partial <= 1 && rope.factor >= 1, "rope out of range");
	require(isfinite(rope.attention_factor) && rope.attention_factor > 0, "attention_factor out of range");
	if (rope.type == HF_ROPE_LLAMA3)
		require(rope.original_context && rope.high_freq_factor > rope.low_freq_factor, "llama3 out of range");
	if (rope.type == HF_ROPE_YARN)
		require(rope.original_context && rope.beta_fast >= rope.beta_slow && rope.beta_slow > 0, "yarn out of range");
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const char *const names[] = { "config.json", "generation_config.json", "tokenizer_config.json" };
	struct hf_config         documents[3] = { { .object = NULL } };
	struct hf_generation     generation;
	struct error             error;
	const unsigned char     *end = data + size;

	for (int i = 0; i < 3 && data && data <= end; i++) {
		const unsigned char *stop = memchr(data, 0xff, (size_t)(end - data));
		size_t               len = (size_t)((stop ? stop : end) - data);
		char                *exact = malloc(len ? len : 1); /* so that a sanitizer sees a read past the end */
		if (!exact)
			break;
		memcpy(exact, data, len);
		fine(hf_config_parse(exact, len, names[i], &documents[i], &error), &error);
		free(exact);
		data = stop ? stop + 1 : NULL;
	}
	if (documents[0].object) {
		check_config(&documents[0]);
		if (fine(hf_generation_from(&documents[0], documents[1].object ? &documents[1] : NULL,
		             documents[2].object ? &documents[2] : NULL, 5000, &generation, &error), &error))
			for (size_t i = 0; i < generation.eos_count; i++)
				require(generation.eos[i] < 5000, "eos out of range");
	}
	for (int i = 0; i < 3; i++)
		hf_config_close(&documents[i]);
	return 0;
}
