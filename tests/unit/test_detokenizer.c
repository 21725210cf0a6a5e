/* Unit tests of src/text/detokenizer: joining the deltas of random token sequences equals decoding all bytes at once, on the
 * tiny model, on a vocabulary of random bytes (whose tokens begin, end and break characters anywhere) and on small ones with
 * the other decoders: ByteFallback with its marks replaced before and behind, Metaspace, WordPiece.
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

/* Decoders of tokenizer.json, and what they make of a whole list of spellings, written from their definition. */

#define MARK "\xe2\x96\x81"
static const char *const spellings[] = { "<s>", MARK, MARK MARK, MARK "a", "b" MARK, "c", "##d", "##", " ", "  e", "\xc3\xa9",
	"\xe6\xb0\xb4", "\xf0\x9f\x98\x80", "<0xE2>", "<0x96>", "<0x81>", "<0x20>", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x98>",
	"<0x80>", "<0xFF>", "<0x41>", "<0xED>", "<0xA0>", "<0x9>", "f", "##" MARK };
enum { SPELLINGS = sizeof spellings / sizeof spellings[0] };

#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},\"content\":\" \"}"
#define BYTES "{\"type\":\"ByteFallback\"}"
#define FUSE "{\"type\":\"Fuse\"}"
#define STRIP "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
static const struct family {
	const char *decoder;
	bool        bytes, pieces, marks_first, marks_last, drop_first, strip;
} families[] = {
	{ "{\"type\":\"Sequence\",\"decoders\":[" REPLACE "," BYTES "," FUSE "," STRIP "]}", .bytes = true, .marks_first = true,
	    .strip = true },
	{ "{\"type\":\"Sequence\",\"decoders\":[" BYTES "," FUSE "," REPLACE "," STRIP "]}", .bytes = true, .marks_last = true,
	    .strip = true },
	{ "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\"}", .marks_first = true,
	    .drop_first = true },
	{ "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false}", .pieces = true },
};

static struct vocab *family_vocab(const struct family *family)
{
	struct buf        json;
	struct token_file file;
	struct vocab     *vocab;
	struct error      error;
	char              item[64];

	buf_init(&json, 1 << 16);
	buf_append_string(&json, "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],\"decoder\":");
	buf_append_string(&json, family->decoder);
	buf_append_string(&json, ",\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"c\",\"vocab\":{");
	for (int i = 0; i < SPELLINGS; i++) {
		snprintf(item, sizeof item, "%s\"%s\":%d", i ? "," : "", spellings[i], i);
		buf_append_string(&json, item);
	}
	buf_append_string(&json, "}}}");
	ck_assert_msg(token_file_from_json(json.data, json.len, "mem", &file, &error) == STATUS_OK, "%s", error.message);
	ck_assert_msg(vocab_from_file(&file, &vocab, &error) == STATUS_OK, "%s", error.message);
	token_file_free(&file);
	buf_free(&json);
	return vocab;
}

/* Every U+2581 of TEXT becomes WITH. */
static void replace_marks(struct buf *text, const char *with)
{
	struct buf out;

	buf_init(&out, text->max);
	for (size_t at = 0; at < text->len;)
		if (text->len - at >= 3 && memcmp(text->data + at, MARK, 3) == 0) {
			buf_append_string(&out, with);
			at += 3;
		} else {
			buf_append(&out, text->data + at++, 1);
		}
	buf_free(text);
	*text = out;
}

static void family_token(const struct family *family, const char *spelling, bool first, struct buf *bytes)
{
	struct buf one;
	unsigned   byte;
	int        end = 0;

	buf_init(&one, 1000);
	buf_append_string(&one, spelling);
	if (family->marks_first)
		replace_marks(&one, first && family->drop_first ? "" : " ");
	if (family->bytes && strlen(spelling) == 6 && sscanf(spelling, "<0x%2X>%n", &byte, &end) == 1 && end == 6) {
		buf_clear(&one);
		buf_append(&one, &(char){ (char)byte }, 1);
	}
	if (family->pieces && !first && strncmp(spelling, "##", 2) == 0)
		buf_consume(&one, 2);
	else if (family->pieces && !first)
		buf_append_string(bytes, " ");
	if (one.len)
		buf_append(bytes, one.data, one.len);
	buf_free(&one);
}

START_TEST(deltas_equal_the_whole_of_every_decoder)
{
	const struct family *family = &families[_i];
	const char          *wanted = getenv("PENSTOCK_TEST_SEQUENCES");
	long                 sequences = wanted ? strtol(wanted, NULL, 10) : 20000, wrong = 0;
	struct vocab        *vocab = family_vocab(family);
	uint64_t             seed = 17;
	struct buf           bytes, whole, joined;

	buf_init(&bytes, 1 << 16);
	buf_init(&whole, 1 << 16);
	buf_init(&joined, 1 << 16);
	for (long round = 0; round < sequences; round++) {
		struct detokenizer detokenizer;
		bool               first = true;
		const char        *text;
		buf_clear(&bytes);
		buf_clear(&whole);
		buf_clear(&joined);
		detokenizer_init(&detokenizer, vocab);
		for (uint32_t left = 1 + random_next(&seed) % 24; left > 0; left--) {
			uint32_t id = random_next(&seed) % (SPELLINGS + 1); /* one too many */
			size_t   before = joined.len;
			wrong += detokenizer_push(&detokenizer, (int32_t)id, &joined) != STATUS_OK;
			wrong += detokenizer.held_len > 3;
			wrong += joined.len > before && !utf8_valid(joined.data + before, joined.len - before, NULL);
			if (id == 0 || id == SPELLINGS)
				continue;
			family_token(family, spellings[id], first, &bytes);
			first = false;
		}
		wrong += detokenizer_finish(&detokenizer, &joined) != STATUS_OK;
		decode_all((const unsigned char *)(bytes.len ? bytes.data : ""), bytes.len, &whole);
		if (family->marks_last)
			replace_marks(&whole, " ");
		if (family->strip && whole.len && *whole.data == ' ')
			buf_consume(&whole, 1);
		text = joined.len ? joined.data : "";
		wrong += joined.len != whole.len || (whole.len && memcmp(text, whole.data, whole.len) != 0);
	}
	ck_assert_int_eq(wrong, 0);
	buf_free(&bytes);
	buf_free(&whole);
	buf_free(&joined);
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

/* Text of IDS, a list that ends with -1, by a detokenizer that has pushed those of BEFORE: only what IDS add to it. */
static void push_behind(const struct vocab *vocab, const int32_t *before, const int32_t *ids, struct buf *ret)
{
	struct detokenizer detokenizer;

	buf_clear(ret);
	detokenizer_init(&detokenizer, vocab);
	for (; *before >= 0; before++)
		ck_assert_int_eq(detokenizer_push(&detokenizer, *before, ret), STATUS_OK);
	buf_clear(ret);
	for (; *ids >= 0; ids++)
		ck_assert_int_eq(detokenizer_push(&detokenizer, *ids, ret), STATUS_OK);
	ck_assert_int_eq(detokenizer_finish(&detokenizer, ret), STATUS_OK);
	ck_assert_int_eq(buf_append(ret, "", 1), STATUS_OK);
}

/* Answers whose first tokens mean something else behind the prompt's last ones.  A detokenizer never gets the prompt, so that
 * nothing of it can be in the first delta: neither its bytes nor that text stood before. */
START_TEST(no_prompt_in_the_first_delta)
{
	static const int32_t nothing[] = { -1 };
	const int32_t        cut[] = { id_of("a", 1), id_of("\xe2", 1), id_of("\x98", 1), -1 }; /* ends within a character */
	const int32_t        rest[] = { id_of("\x83", 1), id_of("b", 1), -1 };
	static const int32_t word[] = { 4 /* b and a mark */, -1 }, blank[] = { 3 /* a mark and a */, 5 /* c */, -1 };
	struct vocab        *metaspace = family_vocab(&families[2]);
	struct buf           out;

	buf_init(&out, 100);
	push_behind(model.vocab, cut, rest, &out);
	ck_assert_str_eq(out.data, "\xe2\x98\x83" "b");
	push_behind(model.vocab, nothing, rest, &out);
	ck_assert_str_eq(out.data, "\xef\xbf\xbd" "b");
	push_behind(metaspace, word, blank, &out);
	ck_assert_str_eq(out.data, " ac");
	push_behind(metaspace, nothing, blank, &out);
	ck_assert_str_eq(out.data, "ac");
	buf_free(&out);
	vocab_free(metaspace);
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
	tcase_add_loop_test(tcase, deltas_equal_the_whole_of_every_decoder, 0, sizeof families / sizeof families[0]);
	tcase_add_test(tcase, snowman_in_one_delta);
	tcase_add_test(tcase, no_prompt_in_the_first_delta);
	tcase_add_test(tcase, a_full_buffer_loses_nothing);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
