/* Unit tests of src/vocab: bytes, kinds, special ids, fingerprint, and what is refused. */
#include "gguf_builder.h"
#include "vocab/bytelevel.h"
#include "vocab/vocab.h"

#include <check.h>
#include <stdio.h>

/* A small vocabulary; the tests change one thing each. */
struct recipe {
	const char *model;
	size_t      count, type_count;
	const char *tokens[12];
	int32_t     types[12];
	int64_t     bos, eos, eot, eom, pad; /* −1: no key */
	int         add_bos;                 /* −1: no key */
};

static const struct recipe plain = {
	"gpt2", 9, 9,
	/* 0 … 8; "ĠĊ" is space, line feed; "äŃ" is bytes e4 ad; "€" is no byte and stands for itself */
	{ "<s>", "a", "Ġb", "ĠĊ", "äŃ", "<note>", "€x", "[PAD]", "</s>" },
	{ 3, 1, 1, 1, 1, 4, 1, 5, 3 },
	0, 8, -1, -1, -1, -1,
};

static enum status load(const struct recipe *recipe, struct vocab **ret, struct error *error)
{
	const char *const names[] = { "bos", "eos", "eot", "eom", "padding" };
	const int64_t     ids[] = { recipe->bos, recipe->eos, recipe->eot, recipe->eom, recipe->pad };
	unsigned          keys = 3 + (recipe->add_bos >= 0);
	struct gguf      *gguf = NULL;
	struct buf        buf;
	enum status       status;
	char              key[64];

	for (int i = 0; i < 5; i++)
		keys += ids[i] >= 0;
	build_header(&buf, 3, 0, keys);
	build_key_text(&buf, "tokenizer.ggml.model", recipe->model);
	build_key_texts(&buf, "tokenizer.ggml.tokens", recipe->count, recipe->tokens);
	build_key_i32s(&buf, "tokenizer.ggml.token_type", recipe->type_count, recipe->types);
	for (int i = 0; i < 5; i++)
		if (ids[i] >= 0) {
			snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", names[i]);
			build_key_u32(&buf, key, (uint32_t)ids[i]);
		}
	if (recipe->add_bos >= 0) {
		char yes = (char)recipe->add_bos;
		build_key(&buf, "tokenizer.ggml.add_bos_token", BUILD_BOOL, &yes, 1);
	}
	status = gguf_parse(buf.data, buf.len, "mem", &gguf, error);
	if (!status)
		status = vocab_from_gguf(gguf, ret, error);
	gguf_close(gguf);
	buf_free(&buf); /* the vocabulary keeps nothing of the file */
	return status;
}

START_TEST(byte_mapping)
{
	unsigned seen = 0;

	for (int byte = 0; byte < 256; byte++)
		ck_assert_int_eq(bytelevel_byte(bytelevel_char((unsigned char)byte)), byte);
	for (uint32_t code = 0; code < 0x300; code++)
		seen += bytelevel_byte(code) >= 0;
	ck_assert_uint_eq(seen, 256);
	ck_assert_uint_eq(bytelevel_char(' '), 0x120);
	ck_assert_uint_eq(bytelevel_char('\n'), 0x10a);
	ck_assert_uint_eq(bytelevel_char(0xad), 0x143);
}
END_TEST

START_TEST(bytes_and_kinds)
{
	static const struct { const char *bytes; size_t len; enum vocab_kind kind; } expect[] = {
		{ "<s>", 3, VOCAB_CONTROL }, { "a", 1, VOCAB_NORMAL }, { " b", 2, VOCAB_NORMAL }, { " \n", 2, VOCAB_NORMAL },
		{ "\xe4\xad", 2, VOCAB_NORMAL }, { "<note>", 6, VOCAB_USER }, { "€x", 4, VOCAB_NORMAL },
		{ "[PAD]", 5, VOCAB_UNUSED }, { "</s>", 4, VOCAB_CONTROL },
	};
	struct vocab *vocab;
	struct error  error;
	size_t        len;

	ck_assert_msg(load(&plain, &vocab, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(vocab_size(vocab), 9);
	for (uint32_t id = 0; id < 9; id++) {
		const char *bytes = vocab_bytes(vocab, id, &len);
		ck_assert_int_eq(vocab_kind(vocab, id), expect[id].kind);
		ck_assert_uint_eq(len, expect[id].len);
		ck_assert_int_eq(memcmp(bytes, expect[id].bytes, len), 0);
	}
	ck_assert_ptr_null(vocab_bytes(vocab, 9, &len));
	ck_assert_uint_eq(len, 0);
	ck_assert_int_eq(vocab_kind(vocab, UINT32_MAX), VOCAB_UNUSED);
	ck_assert_int_eq(vocab_special(vocab, "</s>", 4), 8);
	ck_assert_int_eq(vocab_special(vocab, "<note>", 6), 5);
	ck_assert_int_eq(vocab_special(vocab, "<s", 2), -1);
	ck_assert_int_eq(vocab_special(vocab, "a", 1), -1);
	ck_assert_int_eq(vocab_special(vocab, "[PAD]", 5), -1);
	ck_assert_int_eq(vocab_bos(vocab), 0);
	ck_assert(!vocab_add_bos(vocab));
	ck_assert_int_eq(vocab_eos(vocab, &len)[0], 8);
	ck_assert_uint_eq(len, 1);
	vocab_free(vocab);
	vocab_free(NULL);
}
END_TEST

START_TEST(ends_are_united)
{
	struct recipe recipe = plain;
	struct vocab *vocab;
	struct error  error;
	const int32_t *eos;
	size_t        count;

	recipe.bos = -1;
	recipe.eot = 0;
	recipe.eom = 8; /* again */
	ck_assert_int_eq(load(&recipe, &vocab, &error), STATUS_OK);
	eos = vocab_eos(vocab, &count);
	ck_assert(count == 2 && eos[0] == 8 && eos[1] == 0);
	ck_assert_int_eq(vocab_bos(vocab), -1);
	vocab_free(vocab);
	recipe.eos = recipe.eot = recipe.eom = -1;
	ck_assert_int_eq(load(&recipe, &vocab, &error), STATUS_OK);
	vocab_eos(vocab, &count);
	ck_assert_uint_eq(count, 0);
	vocab_free(vocab);
}
END_TEST

static uint64_t fingerprint(const struct recipe *recipe)
{
	struct vocab *vocab;
	struct error  error;
	uint64_t      sum;

	ck_assert_msg(load(recipe, &vocab, &error) == STATUS_OK, "%s", error.message);
	sum = vocab_fingerprint(vocab);
	vocab_free(vocab);
	return sum;
}

START_TEST(fingerprints_differ)
{
	struct recipe recipe[6] = { plain, plain, plain, plain, plain, plain };
	uint64_t      sums[6];

	recipe[1].tokens[1] = "b";
	recipe[2].types[1] = 5;
	recipe[3].eos = 0;
	recipe[4].tokens[1] = "aĠ"; /* the same bytes, cut elsewhere */
	recipe[4].tokens[2] = "b";
	recipe[5].count = recipe[5].type_count = 8;
	recipe[5].eos = 0;
	for (int i = 0; i < 6; i++) {
		sums[i] = fingerprint(&recipe[i]);
		ck_assert_uint_eq(sums[i], fingerprint(&recipe[i]));
		for (int k = 0; k < i; k++)
			ck_assert_uint_ne(sums[i], sums[k]);
	}
}
END_TEST

static char long_token[70000], long_special[300];

static void model(struct recipe *r) { r->model = "rwkv"; }
static void no_tokens(struct recipe *r) { r->count = r->type_count = 0; r->bos = r->eos = -1; }
static void few_types(struct recipe *r) { r->type_count = 8; }
static void byte_type(struct recipe *r) { r->types[1] = 6; }
static void odd_type(struct recipe *r) { r->types[3] = -7; }
static void twice(struct recipe *r) { r->tokens[8] = "<s>"; }
static void twice_mixed(struct recipe *r) { r->tokens[5] = "<s>"; }
static void empty_special(struct recipe *r) { r->tokens[8] = ""; }
static void too_long_special(struct recipe *r) { r->tokens[8] = long_special; }
static void too_long(struct recipe *r) { r->tokens[1] = long_token; }
static void eos_outside(struct recipe *r) { r->eos = 9; }
static void bos_outside(struct recipe *r) { r->bos = 4294967295; }
static void pad_outside(struct recipe *r) { r->pad = 151643; }
static void bos_missing(struct recipe *r) { r->bos = -1; r->add_bos = 1; }

static const struct refused {
	void (*change)(struct recipe *recipe);
	const char *words;
} refused[] = {
	{ model, "tokenizer.ggml.model is \"rwkv\"" }, { no_tokens, "tokenizer.ggml.tokens has 0 elements" },
	{ few_types, "\"tokenizer.ggml.token_type\" has 8 elements, expected are 9" },
	{ byte_type, "token 1 \"a\" has type 6" }, { odd_type, "has type -7" },
	{ twice, "special tokens 0 and 8 are both spelled \"<s>\"" }, { twice_mixed, "special tokens 0 and 5 are both" },
	{ empty_special, "special token 8 \"\" has 0 bytes" }, { too_long_special, "has 299 bytes, allowed are 1 to 256" },
	{ too_long, "has 69999 bytes, the limit is 65536" },
	{ eos_outside, "eos_token_id is 9, but the vocabulary has 9 tokens" }, { bos_outside, "bos_token_id is 4294967295" },
	{ pad_outside, "padding_token_id is 151643" }, { bos_missing, "add_bos_token is true, but" },
};

START_TEST(refuses)
{
	struct recipe recipe = plain;
	struct vocab *vocab = (struct vocab *)&recipe;
	struct error  error;

	memset(long_token, 'x', sizeof long_token - 1);
	memset(long_special, 'x', sizeof long_special - 1);
	refused[_i].change(&recipe);
	ck_assert_int_ne(load(&recipe, &vocab, &error), STATUS_OK);
	ck_assert_msg(strstr(error.message, refused[_i].words) != NULL, "\"%s\" lacks \"%s\"", error.message, refused[_i].words);
	ck_assert_ptr_eq(vocab, &recipe);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("vocab");
	TCase   *tcase = tcase_create("vocab");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, byte_mapping);
	tcase_add_test(tcase, bytes_and_kinds);
	tcase_add_test(tcase, ends_are_united);
	tcase_add_test(tcase, fingerprints_differ);
	tcase_add_loop_test(tcase, refuses, 0, sizeof refused / sizeof refused[0]);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
