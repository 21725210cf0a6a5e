/* Unit tests of src/text: unicode, pretokenizer, bpe, tokenizer.  The reference cases are made by tests/data/make_cases.py;
 * the pre-tokenizer is compared with its expression as PCRE2 runs it, the merging with a slow and simple one. */
#include "gguf_builder.h"
#include "text/bpe_whole.h"
#include "text/regex.h"
#include "text/scanner.h"
#include "text/unicode.h"
#include "text_cases.h"

#include <check.h>

static struct model model;

static void setup(void)
{
	struct error error;
	ck_assert_msg(model_load_tiny(&model, &error) == STATUS_OK, "%s", error.message);
}

static void teardown(void) { model_free(&model); }

static void encode(const char *bytes, size_t len, bool literal, struct token_list *list)
{
	struct text_span span = { bytes, len, literal };
	struct error     error;

	list->count = 0;
	ck_assert_msg(tokenizer_encode(model.tokenizer, &span, 1, SIZE_MAX, list, &error) == STATUS_OK, "%s", error.message);
}

START_TEST(reference_cases)
{
	unsigned cases;
	ck_assert_int_eq(cases_compare(model.tokenizer, "tiny_tokens.txt", &cases), 0);
	ck_assert_uint_gt(cases, 90);
}
END_TEST

START_TEST(unicode_classes)
{
	struct unicode unicode;
	unsigned       counts[UNICODE_CLASSES] = { 0 };

	ck_assert_int_eq(unicode_init(&unicode), STATUS_OK);
	for (uint32_t code = 0; code < 0x110000; code++)
		counts[unicode_properties(&unicode, code) & UNICODE_CLASS_MASK]++;
	/* Unicode 16.0 */
	ck_assert_uint_eq(counts[UNICODE_UPPER] + counts[UNICODE_LOWER] + counts[UNICODE_LETTER], 141028);
	ck_assert_uint_eq(counts[UNICODE_NUMBER], 1911);
	ck_assert_uint_eq(counts[UNICODE_SPACE], 25);
	ck_assert(!unicode_is_space(&unicode, 0x180e)); /* white space until Unicode 6.3 */
	ck_assert(!unicode_is_space(&unicode, 0x1c));
	ck_assert(unicode_is_space(&unicode, 0x85));
	ck_assert(!unicode_is_space(&unicode, 0x200b));
	ck_assert_uint_eq(unicode_properties(&unicode, 0x31350) & UNICODE_CLASS_MASK, UNICODE_LETTER); /* new in Unicode 15 */
	ck_assert_uint_eq(unicode_properties(&unicode, 0x10ffff), 0);
	unicode_free(&unicode);
}
END_TEST

static struct unicode forms;

static void same_form(enum unicode_form form, const char *text, const char *expected)
{
	struct buf out;

	buf_init(&out, 1 << 20);
	ck_assert_int_eq(unicode_normalize(&forms, form, text, strlen(text), &out), STATUS_OK);
	ck_assert_str_eq(out.len ? out.data : "", expected);
	buf_free(&out);
}

START_TEST(normal_forms)
{
	ck_assert_int_eq(unicode_init(&forms), STATUS_OK);
	same_form(UNICODE_NFC, "Cafe\xcc\x81 e\xcc\xa3\xcc\x87x", "Caf\xc3\xa9 \xe1\xba\xb9\xcc\x87x");
	same_form(UNICODE_NFC, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"); /* jamo */
	same_form(UNICODE_NFC, "a\xcc\x87\xcc\xa3", "\xe1\xba\xa1\xcc\x87"); /* marks are put in order */
	same_form(UNICODE_NFD, "\xc3\xa9", "e\xcc\x81");
	same_form(UNICODE_NFKC, "\xef\xac\x81 \xe2\x84\x8c \xe2\x91\xa0", "fi H 1");
	same_form(UNICODE_NFKC, "\xe3\x8b\xbf", "\xe3\x8b\xbf"); /* U+32FF: younger than the reference's tables */
	same_form(UNICODE_NFKD, "\xc2\xbd", "1\xe2\x81\x84" "2");
	same_form(UNICODE_NFC, "\xdf\xb3\xdf\xbd", "\xdf\xb3\xdf\xbd"); /* U+07FD: a mark below, but a younger one */
	same_form(UNICODE_NFC, "a\xdf\xbd\xcc\x81", "a\xdf\xbd\xcc\x81");
	same_form(UNICODE_NFC, "a\xdf\xb2\xcc\x81", "\xc3\xa1\xdf\xb2"); /* U+07F2: the same of old, below: in another order */
	unicode_free(&forms);
}
END_TEST

/* Many marks behind one letter: sorting them must not be quadratic. */
START_TEST(a_run_of_marks_is_not_slow)
{
	enum { MARKS = 300000 };
	char      *text = malloc(MARKS * 2 + 1);
	struct buf out;

	ck_assert_int_eq(unicode_init(&forms), STATUS_OK);
	text[0] = 'a';
	for (size_t i = 0; i < MARKS; i++)
		memcpy(text + 1 + 2 * i, i & 1 ? "\xcc\xa3" : "\xcc\x87", 2);
	buf_init(&out, 1 << 24);
	ck_assert_int_eq(unicode_normalize(&forms, UNICODE_NFD, text, MARKS * 2 + 1, &out), STATUS_OK);
	ck_assert_uint_eq(out.len, MARKS * 2 + 1);
	ck_assert_int_eq(memcmp(out.data + 1, "\xcc\xa3\xcc\xa3", 4), 0);
	ck_assert_int_eq(memcmp(out.data + out.len - 4, "\xcc\x87\xcc\x87", 4), 0);
	unicode_free(&forms);
	buf_free(&out);
	free(text);
}
END_TEST

/* Pieces of the alphabet of random texts; all long assigned, so that every Unicode version classes them alike. */
static const char *const alphabet[] = {
	" ", " ", "  ", "   ", "\n", "\r\n", "\t", "\v", "\xe3\x80\x80", "\xc2\xa0", "\xe2\x80\xa8", "\xc2\x85", "\x1c", "'", "'s",
	"'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "1", "23", "\xc2\xbd", "\xd9\xa3", "\xe2\x85\xa7", "a", "the", "B", "\xc3\xa9",
	"e\xcc\x81", "\xe4\xb8\xad", "\xe6\x96\x87", "\xd0\xb6", "\xe0\xa4\xa8\xe0\xa5\x8d", "\xed\x95\x9c", "\xf0\x9f\x98\x80",
	"\xe2\x98\x83", "\xe2\x82\xac", "'RE", "'\xc5\xbf", "\xc7\x85", "\xca\xb0", "/", "\xcc\x81", "AB", "-", "==", "(", "\"", "_",
	    "\\", "\x7f", "\xe2\x80\x8b", "\xf4\x8f\xbf\xbf", "<|im_end|>",
};
enum { ALPHABET = sizeof alphabet / sizeof alphabet[0] };

static size_t random_text(uint64_t *seed, char *text, size_t pieces)
{
	size_t len = 0;

	while (pieces--) {
		const char *piece = alphabet[random_next(seed) % ALPHABET];
		memcpy(text + len, piece, strlen(piece));
		len += strlen(piece);
	}
	return len;
}

/* The hand-written splits against the expressions they stand for. */
START_TEST(scanners_equal_their_expressions)
{
	const char    *expression = scanner_expression((enum scanner)_i);
	struct regex  *regex;
	struct error   error;
	struct unicode unicode;
	uint64_t       seed = 1;
	unsigned       pieces = 0;
	char           text[1024];

	ck_assert_msg(regex_compile(expression, strlen(expression), &regex, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(unicode_init(&unicode), STATUS_OK);
	for (int round = 0; round < 15000; round++) {
		size_t              len = random_text(&seed, text, 1 + random_next(&seed) % 30), at = 0, start, end;
		struct regex_search search;
		ck_assert_int_eq(regex_search_begin(&search, regex, text, len), STATUS_OK);
		while (at < len) {
			ck_assert_int_eq(regex_search_next(&search, &start, &end), STATUS_OK);
			ck_assert_msg(start == at && at + scanner_next((enum scanner)_i, &unicode, text + at, len - at) == end,
			    "\"%.*s\" at %zu: %zu, not %zu", (int)len, text, at, scanner_next((enum scanner)_i, &unicode, text + at, len - at),
			    end - at);
			at = end;
			pieces++;
		}
		regex_search_end(&search);
	}
	ck_assert_uint_gt(pieces, 40000);
	regex_free(regex);
	unicode_free(&unicode);
}
END_TEST

START_TEST(every_spelling_of_a_scanner_is_found)
{
	enum scanner found;

	for (int i = 0; i < SCANNER_COUNT; i++) {
		const char *expression = scanner_expression((enum scanner)i);
		ck_assert(scanner_find(expression, strlen(expression), &found));
		ck_assert_int_eq(found, i);
	}
	ck_assert(!scanner_find("\\p{L}+", 6, &found));
}
END_TEST

/* The definition: merge the neighbours of lowest rank, the leftmost of them, until nothing merges. */
static size_t slow_bpe(const struct bpe *bpe, const struct bpe_merge *merges, size_t merge_count, const char *text, size_t len,
    int32_t *ids)
{
	size_t count = len;

	for (size_t i = 0; i < len; i++)
		ids[i] = bpe->byte_ids[(unsigned char)text[i]];
	for (;;) {
		const struct bpe_merge *best = NULL;
		size_t                  place = 0;
		for (size_t i = 0; i + 1 < count; i++)
			for (size_t k = 0; k < merge_count; k++)
				if ((int32_t)merges[k].left == ids[i] && (int32_t)merges[k].right == ids[i + 1] &&
				    (!best || merges[k].rank < best->rank)) {
					best = &merges[k];
					place = i;
				}
		if (!best)
			return count;
		ids[place] = (int32_t)best->merged;
		memmove(ids + place + 1, ids + place + 2, (count - place - 2) * sizeof *ids);
		count--;
	}
}

/* A random vocabulary of merges over 4 letters: ids 0 … 255 are bytes, 256 … are merges. */
START_TEST(merging_equals_definition)
{
	uint64_t seed = 7;

	for (int round = 0; round < 60; round++) {
		struct bpe         bpe = { .table = NULL };
		struct bpe_scratch scratch = { 0 };
		struct bpe_merge   merges[40];
		struct token_list  list = { 0 };
		size_t             count = 0;

		ck_assert_int_eq(bpe_init(&bpe, 40), STATUS_OK);
		for (int i = 0; i < 256; i++)
			bpe.byte_ids[i] = i;
		bpe.longest = 1 << 20;
		for (uint32_t i = 0; i < 40; i++) {
			uint32_t         known = 4 + (uint32_t)count, left = random_next(&seed) % known, right = random_next(&seed) % known;
			struct bpe_merge merge = { left < 4 ? 'a' + left : 252 + left, right < 4 ? 'a' + right : 252 + right, i, 252 + known };
			if (bpe_add(&bpe, merge.left, merge.right, merge.rank, merge.merged, false) == STATUS_OK)
				merges[count++] = merge;
		}
		for (int text_round = 0; text_round < 20; text_round++) {
			char    text[60];
			int32_t expected[60];
			size_t  len = 1 + random_next(&seed) % 60, expected_count;
			for (size_t i = 0; i < len; i++)
				text[i] = (char)('a' + random_next(&seed) % (text_round < 5 ? 1 : 4));
			expected_count = slow_bpe(&bpe, merges, count, text, len, expected);
			list.count = 0;
			ck_assert_int_eq(bpe_encode(&bpe, &scratch, text, len, 1000, &list), STATUS_OK);
			ck_assert_uint_eq(list.count, expected_count);
			ck_assert_int_eq(memcmp(list.ids, expected, expected_count * sizeof *expected), 0);
		}
		token_list_free(&list);
		bpe_scratch_free(&scratch);
		bpe_free(&bpe);
	}
}
END_TEST

enum { WHOLE_RULES = 60, WHOLE_LETTERS = 3, WHOLE_TEXT = 24 };

struct spelled_token {
	char     text[WHOLE_TEXT];
	size_t   len;
	uint32_t id;
};

/* The token spelled as A and B together; a new one when there is none yet. */
static struct spelled_token *joined_token(struct spelled_token *tokens, size_t *count, const struct spelled_token *a,
    const struct spelled_token *b)
{
	struct spelled_token made = { .len = a->len + b->len, .id = (uint32_t)(256 + *count) };
	size_t               at;

	memcpy(made.text, a->text, a->len);
	memcpy(made.text + a->len, b->text, b->len);
	for (at = 0; at < *count; at++)
		if (tokens[at].len == made.len && memcmp(tokens[at].text, made.text, made.len) == 0)
			return &tokens[at];
	tokens[(*count)++] = made;
	return &tokens[at];
}

/* Random rules over few letters, several of them for one token; in every second round in an order in which no training would
 * find them.  Returns how many tokens there are; the first WHOLE_LETTERS are letters. */
static size_t random_rules(uint64_t *seed, bool in_order, struct spelled_token *tokens, struct bpe_merge *rules, size_t *rule_count)
{
	size_t count = 0;

	for (; count < WHOLE_LETTERS; count++)
		tokens[count] = (struct spelled_token){ { (char)('a' + count) }, 1, 'a' + (uint32_t)count };
	*rule_count = 0;
	for (unsigned i = 0; i < WHOLE_RULES; i++) {
		struct spelled_token *a = &tokens[random_next(seed) % count], *b = &tokens[random_next(seed) % count], *made;
		bool                  known = a->len + b->len > WHOLE_TEXT;
		for (size_t k = 0; k < *rule_count; k++)
			known = known || (rules[k].left == a->id && rules[k].right == b->id);
		if (known)
			continue;
		made = joined_token(tokens, &count, a, b);
		rules[(*rule_count)++] = (struct bpe_merge){ a->id, b->id, 0, made->id };
	}
	for (size_t i = 0; i < *rule_count; i++) {
		size_t           other = in_order ? i : random_next(seed) % (i + 1);
		struct bpe_merge rule = rules[i];
		rules[i] = rules[other];
		rules[other] = rule;
	}
	for (size_t i = 0; i < *rule_count; i++)
		rules[i].rank = (uint32_t)i;
	return count;
}

START_TEST(whole_tokens_are_those_that_merging_makes)
{
	uint64_t seed = 11;
	unsigned whole_tokens = 0, others = 0, doubtful = 0;

	for (int round = 0; round < 4000; round++) {
		struct bpe           bpe = { .table = NULL };
		struct bpe_whole     whole;
		struct spelled_token tokens[WHOLE_LETTERS + WHOLE_RULES];
		struct bpe_merge     rules[WHOLE_RULES];
		size_t               rule_count, count = random_rules(&seed, round % 2 == 0, tokens, rules, &rule_count);

		ck_assert_int_eq(bpe_init(&bpe, WHOLE_RULES), STATUS_OK);
		ck_assert_int_eq(bpe_whole_init(&whole, 256 + WHOLE_LETTERS + WHOLE_RULES), STATUS_OK);
		for (int i = 0; i < 256; i++) {
			bpe.byte_ids[i] = i;
			bpe_whole_symbol(&whole, (uint32_t)i);
		}
		for (size_t i = 0; i < rule_count; i++) {
			ck_assert_int_eq(bpe_add(&bpe, rules[i].left, rules[i].right, rules[i].rank, rules[i].merged, false), STATUS_OK);
			bpe_whole_rule(&whole, &bpe, rules[i].left, rules[i].right, rules[i].rank, rules[i].merged);
		}
		for (size_t i = 0; i < count; i++) {
			int32_t ids[WHOLE_TEXT];
			bool    is_whole = slow_bpe(&bpe, rules, rule_count, tokens[i].text, tokens[i].len, ids) == 1 &&
			    ids[0] == (int32_t)tokens[i].id;
			if (whole.all || bpe_whole_has(&whole, tokens[i].id))
				ck_assert_int_eq(bpe_whole_has(&whole, tokens[i].id), is_whole);
			whole_tokens += is_whole;
			others += !is_whole;
		}
		doubtful += !whole.all;
		bpe_whole_free(&whole);
		bpe_free(&bpe);
	}
	ck_assert_uint_gt(whole_tokens, 10000);
	ck_assert_uint_gt(others, 10000);
	ck_assert(doubtful > 100 && doubtful < 3900);
}
END_TEST

START_TEST(crafted_merges_cannot_make_lookups_slow)
{
	struct bpe  bpe = { .table = NULL };
	enum status status = STATUS_OK;
	uint32_t    added = 0;

	/* Multiples of the table size all hash to slot 0 when the other half of the pair is 0. */
	ck_assert_int_eq(bpe_init(&bpe, 5000), STATUS_OK);
	while (!status && added < 5000) {
		status = bpe_add(&bpe, added * (bpe.mask + 1), 0, added, 0, false);
		added++;
	}
	ck_assert_int_eq(status, STATUS_LIMIT);
	ck_assert_uint_lt(added, 1000);
	bpe_free(&bpe);
	ck_assert_int_eq(bpe_init(&bpe, BPE_MERGES_MAX + 1), STATUS_LIMIT);
}
END_TEST

/* Whatever the bytes, the ids spell them (this vocabulary has every byte). */
START_TEST(round_trip_of_random_bytes)
{
	struct token_list list = { 0 };
	uint64_t          seed = 3;

	for (int round = 0; round < 5000; round++) {
		char   text[1024], back[1024];
		size_t len, at = 0;

		if (round & 1) {
			len = random_next(&seed) % 200;
			for (size_t i = 0; i < len; i++)
				text[i] = (char)(random_next(&seed) % (round & 2 ? 256 : 8) + (round & 2 ? 0 : 0xe2));
		} else {
			len = random_text(&seed, text, random_next(&seed) % 30);
			if (len)
				text[random_next(&seed) % len] ^= (char)(1 << random_next(&seed) % 8);
		}
		encode(text, len, round & 4, &list);
		for (size_t i = 0; i < list.count; i++) {
			size_t      n;
			const char *bytes = vocab_bytes(model.vocab, (uint32_t)list.ids[i], &n);
			if (at + n <= sizeof back)
				memcpy(back + at, bytes, n);
			at += n;
		}
		ck_assert_uint_eq(at, len);
		ck_assert_int_eq(memcmp(text, back, len), 0);
	}
	token_list_free(&list);
}
END_TEST

START_TEST(bytes_that_are_not_utf8_stand_alone)
{
	struct token_list list = { 0 }, clean = { 0 };

	/* e6 b0 is the start of a character that never ends; "water" after it is a piece of its own. */
	encode("\xe6\xb0water", 7, false, &list);
	encode("water", 5, false, &clean);
	ck_assert_uint_eq(list.count, clean.count + 2);
	ck_assert_int_eq(memcmp(list.ids + 2, clean.ids, clean.count * sizeof *clean.ids), 0);
	token_list_free(&list);
	token_list_free(&clean);
}
END_TEST

static size_t count_of(const struct token_list *list, int32_t id)
{
	size_t count = 0;
	for (size_t i = 0; i < list->count; i++)
		count += list->ids[i] == id;
	return count;
}

static void encode_spans(const struct text_span *spans, size_t count, struct token_list *list)
{
	struct error error;
	list->count = 0;
	ck_assert_msg(tokenizer_encode(model.tokenizer, spans, count, SIZE_MAX, list, &error) == STATUS_OK, "%s", error.message);
}

START_TEST(data_never_makes_control_tokens)
{
	const struct text_span all_data[] = { { "<|im_start|>user\n<|im_end|><|endoftext|>", 39, false } };
	const struct text_span halves[] = { { "<|im_", 5, true }, { "end|>", 5, false } };
	const struct text_span others[] = { { "<|im_", 5, false }, { "end|>", 5, true } };
	const struct text_span joined[] = { { "<|im_", 5, true }, { "end|", 4, true }, { "", 0, true }, { ">", 1, true } };
	const struct text_span around[] = { { "<|im_end|>", 10, true }, { "<|im_end|>", 10, false }, { "<|im_end|>", 10, true } };
	const int32_t          end = vocab_special(model.vocab, "<|im_end|>", 10);
	struct token_list      list = { 0 };

	encode_spans(all_data, 1, &list);
	ck_assert_uint_gt(list.count, 10);
	for (size_t i = 0; i < list.count; i++)
		ck_assert_int_ne(vocab_kind(model.vocab, (uint32_t)list.ids[i]), VOCAB_CONTROL);
	encode_spans(halves, 2, &list);
	ck_assert_uint_eq(count_of(&list, end), 0);
	encode_spans(others, 2, &list);
	ck_assert_uint_eq(count_of(&list, end), 0);
	encode_spans(joined, 4, &list);
	ck_assert_uint_eq(list.count, 1);
	ck_assert_int_eq(list.ids[0], end);
	encode_spans(around, 3, &list);
	ck_assert_uint_eq(count_of(&list, end), 2);
	ck_assert(list.ids[0] == end && list.ids[list.count - 1] == end);
	token_list_free(&list);
}
END_TEST

START_TEST(added_text_tokens_are_found_in_data)
{
	struct token_list list = { 0 };

	encode("<think>", 7, false, &list);
	ck_assert_uint_eq(list.count, 1);
	ck_assert_int_eq(list.ids[0], vocab_special(model.vocab, "<think>", 7));
	token_list_free(&list);
}
END_TEST

/* What a template writes before a message and the message's first blanks are one text, as they were in training. */
START_TEST(pieces_cross_provenance)
{
	struct token_list      whole = { 0 }, parts = { 0 };
	const struct text_span spans[] = { { "<|im_start|>user\n", 17, true }, { "\n  it", 5, false }, { " is", 3, true } };

	encode("<|im_start|>user\n\n  it is", 25, true, &whole);
	encode_spans(spans, 3, &parts);
	ck_assert_uint_eq(parts.count, whole.count);
	ck_assert_int_eq(memcmp(parts.ids, whole.ids, whole.count * sizeof *whole.ids), 0);
	token_list_free(&whole);
	token_list_free(&parts);
}
END_TEST

START_TEST(limit_of_tokens)
{
	struct token_list list = { 0 };
	struct error      error;
	struct text_span  span = { "1234567890<|im_end|>", 20, true };

	ck_assert_int_eq(tokenizer_encode(model.tokenizer, &span, 1, 11, &list, &error), STATUS_OK);
	ck_assert_uint_eq(list.count, 11);
	/* Appends; what was there stays there on failure. */
	ck_assert_int_eq(tokenizer_encode(model.tokenizer, &span, 1, 21, &list, &error), STATUS_LIMIT);
	ck_assert_uint_eq(list.count, 11);
	ck_assert_str_eq(error.message, "the text has more than 21 tokens (21 after 10 of 20 bytes)");
	ck_assert_int_eq(tokenizer_encode(model.tokenizer, &span, 1, 3, &list, &error), STATUS_LIMIT);
	ck_assert_int_eq(tokenizer_encode(model.tokenizer, &span, 1, 22, &list, &error), STATUS_OK);
	ck_assert_uint_eq(list.count, 22);
	ck_assert_int_eq(tokenizer_encode(model.tokenizer, NULL, 0, 0, &list, &error), STATUS_OK);
	span.len = 0;
	ck_assert_int_eq(tokenizer_encode(model.tokenizer, &span, 1, 0, &list, &error), STATUS_OK);
	ck_assert_uint_eq(list.count, 22);
	token_list_free(&list);
	token_list_free(NULL);
}
END_TEST

/* A megabyte of one thing; a quadratic merge would run for hours. */
START_TEST(long_pieces)
{
	static const char *const units[] = { "a", " ", "=-", "\xe6\xb0\xb4", "water", "\xff", "1" };
	enum { BYTES = 1000000 };
	struct token_list list = { 0 };
	char             *text = malloc(BYTES);
	const char       *unit = units[_i];
	size_t            total = 0;

	for (size_t i = 0; i < BYTES; i++)
		text[i] = unit[i % strlen(unit)];
	encode(text, BYTES, true, &list);
	for (size_t i = 0; i < list.count; i++) {
		size_t n;
		vocab_bytes(model.vocab, (uint32_t)list.ids[i], &n);
		total += n;
	}
	ck_assert_uint_eq(total, BYTES);
	token_list_free(&list);
	free(text);
}
END_TEST

/* Files that are refused: each changes one thing of a vocabulary of "a", "b", "ab" and a control token. */
struct recipe {
	const char *model, *pre;
	size_t      count, merge_count;
	const char *tokens[8];
	int32_t     types[8];
	const char *merges[4];
};

static void other_model(struct recipe *r) { r->model = "rwkv"; }
static void other_pre(struct recipe *r) { r->pre = "default"; }
static void no_pre(struct recipe *r) { r->pre = NULL; }
static void one_part(struct recipe *r) { r->merges[0] = "ab"; }
static void three_parts(struct recipe *r) { r->merges[0] = "a b b"; }
static void empty_left(struct recipe *r) { r->merges[0] = " ab"; }
static void empty_right(struct recipe *r) { r->merges[0] = "ab "; }
static void empty_merge(struct recipe *r) { r->merges[0] = ""; }
static void unknown_left(struct recipe *r) { r->merges[0] = "x b"; }
static void unknown_right(struct recipe *r) { r->merges[0] = "a x"; }
static void unknown_result(struct recipe *r) { r->merges[0] = "b a"; }
static void unused_part(struct recipe *r) { r->types[1] = 5; }
static void token_twice(struct recipe *r) { r->tokens[4] = "ab"; r->types[4] = 1; r->count = 5; }

static const struct refused {
	void (*change)(struct recipe *recipe);
	const char *words;
} refused[] = {
	{ other_model, "tokenizer.ggml.model is \"rwkv\"" }, { other_pre,
	    "tokenizer.ggml.pre is \"default\", which is not known here" },
	{ no_pre, "\"tokenizer.ggml.pre\" is missing" },
	{ one_part, "merge 0 \"ab\" is not two parts" }, { three_parts, "is not two parts" }, { empty_left, "is not two parts" },
	{ empty_right, "is not two parts" }, { empty_merge, "merge 0 \"\" is not two parts" },
	{ unknown_left, "merge 0 \"x b\": its left part is not in the vocabulary" }, { unknown_right, "its right part is not" },
	{ unknown_result, "its result is not" }, { unused_part, "its right part is not" },
	{ token_twice, "tokens 2 and 4 are both spelled \"ab\"" },
};

static enum status load(const struct recipe *recipe, struct model *ret, struct error *error)
{
	struct buf  buf;
	enum status status;

	build_header(&buf, 3, 0, recipe->pre ? 5 : 4);
	build_key_text(&buf, "tokenizer.ggml.model", "gpt2");
	build_key_texts(&buf, "tokenizer.ggml.tokens", recipe->count, recipe->tokens);
	build_key_i32s(&buf, "tokenizer.ggml.token_type", recipe->count, recipe->types);
	build_key_texts(&buf, "tokenizer.ggml.merges", recipe->merge_count, recipe->merges);
	if (recipe->pre)
		build_key_text(&buf, "tokenizer.ggml.pre", recipe->pre);
	status = gguf_parse(buf.data, buf.len, "mem", &ret->gguf, error);
	if (!status)
		status = vocab_from_gguf(ret->gguf, &ret->vocab, error);
	if (!status && strcmp(recipe->model, "gpt2") != 0) { /* the vocabulary would refuse it first */
		size_t at = 24 + 8 + strlen("tokenizer.ggml.model") + 4 + 8;
		memcpy(buf.data + at, recipe->model, 4);
	}
	if (!status)
		status = tokenizer_from_gguf(ret->gguf, ret->vocab, &ret->tokenizer, error);
	if (status) {
		ck_assert_ptr_null(ret->tokenizer);
		model_free(ret);
	}
	gguf_close(ret->gguf); /* nothing may point into it */
	ret->gguf = NULL;
	buf_free(&buf);
	return status;
}

static const struct recipe small = { "gpt2", "gpt-2", 4, 1, { "a", "b", "ab", "<s>" }, { 1, 1, 1, 3 }, { "a b" } };

START_TEST(refuses)
{
	struct recipe recipe = small;
	struct model  made = { 0 };
	struct error  error;

	refused[_i].change(&recipe);
	ck_assert_int_ne(load(&recipe, &made, &error), STATUS_OK);
	ck_assert_msg(strstr(error.message, refused[_i].words) != NULL, "\"%s\" lacks \"%s\"", error.message, refused[_i].words);
}
END_TEST

/* What tokenizer.ggml.pre names, told by how digits are cut. */
START_TEST(names_of_splits)
{
	static const struct {
		const char *name;
		size_t      pieces; /* of 1234 */
	} splits[] = { { "gpt-2", 1 }, { "smollm", 4 }, { "qwen2", 4 }, { "glm4", 2 }, { "chatglm-bpe", 2 }, { "llama-bpe", 2 },
		{ "gpt-4o", 2 }, { "deepseek-v3", 2 } };
	struct text_span span = { "1234", 4, false };

	for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
		struct recipe recipe = { "gpt2", splits[i].name, 8, 3, { "1", "2", "3", "4", "12", "123", "1234", "<s>" },
			{ 1, 1, 1, 1, 1, 1, 1, 3 }, { "1 2", "12 3", "123 4" } };
		struct token_list list = { NULL, 0, 0 };
		struct model      made = { 0 };
		struct error      error;
		ck_assert_msg(load(&recipe, &made, &error) == STATUS_OK, "%s", error.message);
		ck_assert_int_eq(tokenizer_encode(made.tokenizer, &span, 1, 10, &list, &error), STATUS_OK);
		ck_assert_msg(list.count == splits[i].pieces, "%s: %zu", splits[i].name, list.count);
		token_list_free(&list);
		model_free(&made);
	}
}
END_TEST

/* A merge may lead through a control token, but text never becomes one. */
START_TEST(merges_never_make_control_tokens)
{
	struct recipe     recipe = small;
	struct model      made = { 0 };
	struct error      error;
	struct token_list list = { 0 };
	struct text_span  span = { "abba", 4, false };

	recipe.types[2] = 3;
	ck_assert_msg(load(&recipe, &made, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(tokenizer_encode(made.tokenizer, &span, 1, SIZE_MAX, &list, &error), STATUS_OK);
	ck_assert_uint_eq(list.count, 4);
	for (size_t i = 0; i < list.count; i++)
		ck_assert_int_ne(list.ids[i], 2);
	token_list_free(&list);
	model_free(&made);
}
END_TEST

/* Bytes a vocabulary lacks are left out and their neighbours meet, as in the reference. */
START_TEST(bytes_without_a_token)
{
	struct model      made = { 0 };
	struct error      error;
	struct token_list list = { 0 };
	struct text_span  span = { "a\xc2\xb7" "b<s>", 7, true };

	ck_assert_msg(load(&small, &made, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(tokenizer_encode(made.tokenizer, &span, 1, 10, &list, &error), STATUS_OK);
	ck_assert_uint_eq(list.count, 3); /* three pieces, since · is no letter */
	ck_assert(list.ids[0] == 0 && list.ids[1] == 1 && list.ids[2] == 3);
	span = (struct text_span){ "a\xc3\xa9" "b", 4, true };
	list.count = 0;
	ck_assert_int_eq(tokenizer_encode(made.tokenizer, &span, 1, 10, &list, &error), STATUS_OK);
	ck_assert_uint_eq(list.count, 1);
	ck_assert_int_eq(list.ids[0], 2);
	token_list_free(&list);
	model_free(&made);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("tokenizer");
	TCase   *tcase = tcase_create("tokenizer");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 300);
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, reference_cases);
	tcase_add_test(tcase, unicode_classes);
	tcase_add_loop_test(tcase, scanners_equal_their_expressions, 0, SCANNER_COUNT);
	tcase_add_test(tcase, every_spelling_of_a_scanner_is_found);
	tcase_add_test(tcase, normal_forms);
	tcase_add_test(tcase, a_run_of_marks_is_not_slow);
	tcase_add_test(tcase, names_of_splits);
	tcase_add_test(tcase, merges_never_make_control_tokens);
	tcase_add_test(tcase, merging_equals_definition);
	tcase_add_test(tcase, whole_tokens_are_those_that_merging_makes);
	tcase_add_test(tcase, crafted_merges_cannot_make_lookups_slow);
	tcase_add_test(tcase, round_trip_of_random_bytes);
	tcase_add_test(tcase, bytes_that_are_not_utf8_stand_alone);
	tcase_add_test(tcase, data_never_makes_control_tokens);
	tcase_add_test(tcase, added_text_tokens_are_found_in_data);
	tcase_add_test(tcase, pieces_cross_provenance);
	tcase_add_test(tcase, limit_of_tokens);
	tcase_add_loop_test(tcase, long_pieces, 0, 7);
	tcase_add_loop_test(tcase, refuses, 0, sizeof refused / sizeof refused[0]);
	tcase_add_test(tcase, bytes_without_a_token);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
