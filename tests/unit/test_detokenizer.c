/* Unit tests of src/text/detokenizer: joining the deltas of random token sequences equals decoding all bytes at once, on the
 * tiny model and on a vocabulary of random bytes (whose tokens begin, end and break characters anywhere).
 *
 * PENSTOCK_TEST_SEQUENCES sets how many random sequences are tried (default 100,000; the full run is 1,000,000). */
#include "text/detokenizer.h"
#include "base/utf8.h"
#include "gguf_builder.h"
#include "text_cases.h"
#include "vocab/bytelevel.h"

#include <check.h>

static struct model model;

static void setup(void)
{
	struct error error;
	ck_assert_msg(model_load_tiny(&model, &error) == STATUS_OK, "%s", error.message);
}

static void teardown(void) { model_free(&model); }

/* The id whose bytes are TEXT. */
static int32_t id_of(const char *text, size_t len)
{
	for (uint32_t id = 0; id < vocab_size(model.vocab); id++) {
		size_t      n;
		const char *bytes = vocab_bytes(model.vocab, id, &n);
		if (n == len && memcmp(bytes, text, n) == 0)
			return (int32_t)id;
	}
	return -1;
}

/* Decoding at once, written the plain way: a table of lead bytes, one U+FFFD per maximal ill-formed part. */
static void decode_all(const unsigned char *s, size_t len, struct buf *out)
{
	static const struct { unsigned char first, last, low, high; unsigned follow; } leads[] = {
		{ 0x00, 0x7f, 0x80, 0xbf, 0 }, { 0xc2, 0xdf, 0x80, 0xbf, 1 }, { 0xe0, 0xe0, 0xa0, 0xbf, 2 }, { 0xe1, 0xec, 0x80, 0xbf, 2 },
		{ 0xed, 0xed, 0x80, 0x9f, 2 }, { 0xee, 0xef, 0x80, 0xbf, 2 }, { 0xf0, 0xf0, 0x90, 0xbf, 3 }, { 0xf1, 0xf3, 0x80, 0xbf, 3 },
		{ 0xf4, 0xf4, 0x80, 0x8f, 3 },
	};

	for (size_t at = 0; at < len;) {
		size_t   n = 1;
		unsigned need = 0, got = 0;
		bool     lead = false;
		for (size_t i = 0; i < sizeof leads / sizeof leads[0]; i++)
			if (s[at] >= leads[i].first && s[at] <= leads[i].last) {
				lead = true;
				need = leads[i].follow;
				for (; got < need && at + n < len; got++, n++)
					if (s[at + n] < (got ? 0x80 : leads[i].low) || s[at + n] > (got ? 0xbf : leads[i].high))
						break;
			}
		if (lead && got == need)
			buf_append(out, s + at, n);
		else
			buf_append_string(out, "\xef\xbf\xbd");
		at += n;
	}
}

/* 500 tokens of 0 to 6 bytes that are likely to begin, continue or break a character. */
static struct vocab *random_vocab(void)
{
	static const unsigned char likely[] = { 0xe2, 0x98, 0x83, 0xf0, 0x9f, 0x98, 0x80, 0xc3, 0xa9, 0xed, 0xa0,
		0xe0, 0xf4, 0x90, 0xbf, 'a' };
	enum { COUNT = 500 };
	uint64_t      seed = 5;
	int32_t       types[COUNT];
	struct buf    buf;
	struct gguf  *gguf;
	struct vocab *vocab;
	struct error  error;

	build_header(&buf, 3, 0, 3);
	build_key_text(&buf, "tokenizer.ggml.model", "gpt2");
	build_array(&buf, "tokenizer.ggml.tokens", BUILD_STRING, COUNT);
	for (int i = 0; i < COUNT; i++) {
		char   spelled[64];
		size_t len = 0;
		for (uint32_t n = random_next(&seed) % 7; n > 0; n--) {
			unsigned char byte = (unsigned char)random_next(&seed);
			if (random_next(&seed) % 8)
				byte = likely[byte % sizeof likely];
			len += utf8_encode(bytelevel_char(byte), spelled + len);
		}
		spelled[len] = '\0';
		build_text(&buf, spelled);
		types[i] = 1;
	}
	build_key_i32s(&buf, "tokenizer.ggml.token_type", COUNT, types);
	ck_assert_msg(gguf_parse(buf.data, buf.len, "mem", &gguf, &error) == STATUS_OK, "%s", error.message);
	ck_assert_msg(vocab_from_gguf(gguf, &vocab, &error) == STATUS_OK, "%s", error.message);
	gguf_close(gguf);
	buf_free(&buf);
	return vocab;
}

static long try_sequences(const struct vocab *vocab, long sequences)
{
	uint64_t           seed = 11;
	long               wrong = 0;
	struct detokenizer detokenizer;
	struct buf         bytes, whole, joined;

	buf_init(&bytes, 1 << 20);
	buf_init(&whole, 1 << 20);
	buf_init(&joined, 1 << 20);
	for (long round = 0; round < sequences; round++) {
		uint32_t first = round & 1 ? 97 : 0; /* of the tiny model, from 97 on: bytes of 0x80 and above are many */
		uint32_t count = round & 1 ? 162 : vocab_size(vocab) + 2;

		buf_clear(&bytes);
		buf_clear(&whole);
		buf_clear(&joined);
		detokenizer_init(&detokenizer, vocab);
		for (uint32_t left = 1 + random_next(&seed) % 40; left > 0; left--) {
			uint32_t        id = first + random_next(&seed) % count;
			size_t          len, before = joined.len;
			const char     *token = vocab_bytes(vocab, id, &len);
			enum vocab_kind kind = vocab_kind(vocab, id);
			wrong += detokenizer_push(&detokenizer, (int32_t)id, &joined) != STATUS_OK;
			wrong += detokenizer.held_len > 3;
			wrong += joined.len > before && !utf8_valid(joined.data + before, joined.len - before, NULL);
			if (kind == VOCAB_NORMAL || kind == VOCAB_USER)
				buf_append(&bytes, token, len);
		}
		wrong += detokenizer_finish(&detokenizer, &joined) != STATUS_OK;
		decode_all((const unsigned char *)bytes.data, bytes.len, &whole);
		wrong += joined.len != whole.len || (whole.len && memcmp(joined.data, whole.data, whole.len) != 0);
	}
	buf_free(&bytes);
	buf_free(&whole);
	buf_free(&joined);
	return wrong;
}

START_TEST(deltas_equal_the_whole)
{
	const char   *wanted = getenv("PENSTOCK_TEST_SEQUENCES");
	long          sequences = wanted ? strtol(wanted, NULL, 10) : 100000;
	struct vocab *vocab = random_vocab();

	ck_assert_int_eq(try_sequences(model.vocab, sequences), 0);
	ck_assert_int_eq(try_sequences(vocab, sequences), 0);
	vocab_free(vocab);
}
END_TEST

START_TEST(snowman_in_one_delta)
{
	static const char *const parts[] = { "\xe2", "\x98", "\x83" };
	struct detokenizer       detokenizer;
	struct buf               out;

	buf_init(&out, 100);
	detokenizer_init(&detokenizer, model.vocab);
	for (int i = 0; i < 3; i++) {
		ck_assert_uint_eq(out.len, 0);
		ck_assert_int_eq(detokenizer_push(&detokenizer, id_of(parts[i], 1), &out), STATUS_OK);
		ck_assert_int_eq(detokenizer_push(&detokenizer, 2 /* a control token in between */, &out), STATUS_OK);
		ck_assert_int_eq(detokenizer_push(&detokenizer, -5, &out), STATUS_OK);
	}
	ck_assert_str_eq(out.data, "\xe2\x98\x83");
	ck_assert_int_eq(detokenizer_finish(&detokenizer, &out), STATUS_OK);
	ck_assert_uint_eq(out.len, 3);
	buf_free(&out);
}
END_TEST

START_TEST(a_full_buffer_loses_nothing)
{
	struct detokenizer detokenizer;
	struct buf         out;

	buf_init(&out, 4);
	detokenizer_init(&detokenizer, model.vocab);
	ck_assert_int_eq(detokenizer_push(&detokenizer, id_of("\xe2", 1), &out), STATUS_OK);
	ck_assert_int_eq(detokenizer_push(&detokenizer, id_of(" the", 4), &out), STATUS_LIMIT); /* U+FFFD and 4 bytes */
	ck_assert_uint_eq(out.len, 0);
	ck_assert_int_eq(detokenizer_push(&detokenizer, id_of("a", 1), &out), STATUS_OK);
	ck_assert_str_eq(out.data, "\xef\xbf\xbd" "a");
	ck_assert_int_eq(detokenizer_push(&detokenizer, id_of("\xe2", 1), &out), STATUS_OK);
	ck_assert_int_eq(detokenizer_finish(&detokenizer, &out), STATUS_LIMIT);
	buf_clear(&out);
	ck_assert_int_eq(detokenizer_finish(&detokenizer, &out), STATUS_OK);
	ck_assert_str_eq(out.data, "\xef\xbf\xbd");
	buf_free(&out);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("detokenizer");
	TCase   *tcase = tcase_create("detokenizer");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 600);
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, deltas_equal_the_whole);
	tcase_add_test(tcase, snowman_in_one_delta);
	tcase_add_test(tcase, a_full_buffer_loses_nothing);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
