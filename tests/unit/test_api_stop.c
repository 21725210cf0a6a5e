/* Stop strings: the outcome depends on the text alone, is the one a search over the whole text finds, and nothing is held
 * back that could be shown.  Random texts over a two-letter alphabet, where strings overlap all the time.  PENSTOCK_ROUNDS
 * (default 20000) is the number of random texts. */
#include "api/stop.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 64, LIST_MAX = 4, LENGTH_MAX = 6 };

struct example {
	unsigned stop_count, token_count;
	char     stops[LIST_MAX][LENGTH_MAX + 1];
	char     text[TEXT_MAX + 1];
	unsigned token_len[TEXT_MAX]; /* zeros are tokens without text */
};

static unsigned draw(uint64_t *state, unsigned below)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (unsigned)(*state >> 33) % below;
}

/* The definition: the stop string that is complete first, of those the longest.  Returns where it begins, or −1. */
static int reference_cut(const struct example *e)
{
	size_t len = strlen(e->text);

	for (size_t end = 1; end <= len; end++) {
		int cut = -1;

		for (unsigned s = 0; s < e->stop_count; s++) {
			size_t n = strlen(e->stops[s]);
			if (n <= end && !memcmp(e->text + end - n, e->stops[s], n) && (cut < 0 || (int)(end - n) < cut))
				cut = (int)(end - n);
		}
		if (cut >= 0)
			return cut;
	}
	return -1;
}

/* Bytes at the end of the first LEN of the text that may still become a stop string. */
static size_t reference_held(const struct example *e, size_t len)
{
	size_t held = 0;

	for (unsigned s = 0; s < e->stop_count; s++)
		for (size_t n = 1; n < strlen(e->stops[s]) && n <= len; n++)
			if (n > held && !memcmp(e->text + len - n, e->stops[s], n))
				held = n;
	return held;
}

static void run_example(const struct example *e)
{
	struct stop_matcher matcher;
	struct buf          out;
	int                 cut = reference_cut(e);
	size_t              at = 0;
	uint32_t            keep = UINT32_MAX, expected = 0;

	stop_init(&matcher);
	buf_init(&out, TEXT_MAX);
	for (unsigned s = 0; s < e->stop_count; s++)
		ck_assert_int_eq(stop_add(&matcher, e->stops[s], strlen(e->stops[s])), STATUS_OK);
	for (unsigned t = 0; t < e->token_count && !matcher.matched; t++) {
		ck_assert_int_eq(stop_feed(&matcher, e->text + at, e->token_len[t], t + 1, &out, &keep), STATUS_OK);
		at += e->token_len[t];
		if (!matcher.matched)
			ck_assert_uint_eq(out.len, at - reference_held(e, at));
	}
	ck_assert_int_eq(stop_finish(&matcher, &out), STATUS_OK);
	ck_assert_int_eq(matcher.matched, cut >= 0);
	if (cut < 0) {
		ck_assert_uint_eq(out.len, strlen(e->text));
		ck_assert_uint_eq(keep, UINT32_MAX);
	} else {
		for (int covered = 0; covered < cut; expected++)
			covered += (int)e->token_len[expected];
		ck_assert_uint_eq(out.len, (size_t)cut);
		ck_assert_uint_eq(keep, expected);
		ck_assert_int_eq(stop_feed(&matcher, "later", 5, 99, &out, &keep), STATUS_OK);
		ck_assert_uint_eq(out.len, (size_t)cut);
	}
	if (out.len)
		ck_assert_int_eq(memcmp(out.data, e->text, out.len), 0);
	buf_free(&out);
	stop_free(&matcher);
}

START_TEST(any_split)
{
	const char *rounds = getenv("PENSTOCK_ROUNDS");
	long        count = rounds ? strtol(rounds, NULL, 10) : 20000;
	uint64_t    state = 7;

	for (long round = 0; round < count; round++) {
		struct example e = { .stop_count = 1 + draw(&state, LIST_MAX) };
		unsigned       len = draw(&state, TEXT_MAX + 1), at = 0;

		for (unsigned s = 0; s < e.stop_count; s++)
			for (unsigned i = 0, n = 1 + draw(&state, LENGTH_MAX); i < n; i++)
				e.stops[s][i] = (char)('a' + (draw(&state, 5) == 0));
		for (unsigned i = 0; i < len; i++)
			e.text[i] = (char)('a' + (draw(&state, 5) == 0));
		while (at < len && e.token_count < TEXT_MAX) {
			unsigned n = draw(&state, 5);
			if (n > len - at || e.token_count == TEXT_MAX - 1)
				n = len - at;
			e.token_len[e.token_count++] = n;
			at += n;
		}
		run_example(&e);
	}
}
END_TEST

/* Every split of one text into two and three pieces. */
START_TEST(every_cut)
{
	struct example e = { .stop_count = 2, .stops = { "beta g", "ta ga" }, .text = "alpha beta gamma" };
	unsigned       len = (unsigned)strlen(e.text);

	for (unsigned a = 0; a <= len; a++) {
		for (unsigned b = a; b <= len; b++) {
			e.token_count = 3;
			e.token_len[0] = a;
			e.token_len[1] = b - a;
			e.token_len[2] = len - b;
			run_example(&e);
		}
	}
}
END_TEST

START_TEST(cut_inside_a_token)
{
	struct stop_matcher matcher;
	struct buf          out;
	uint32_t            keep = 0;

	stop_init(&matcher);
	buf_init(&out, 100);
	ck_assert_int_eq(stop_add(&matcher, "ef", 2), STATUS_OK);
	ck_assert_int_eq(stop_feed(&matcher, "abc", 3, 1, &out, &keep), STATUS_OK);
	ck_assert_int_eq(stop_feed(&matcher, "defg", 4, 2, &out, &keep), STATUS_OK);
	ck_assert(matcher.matched);
	ck_assert_str_eq(out.data, "abcd");
	ck_assert_uint_eq(keep, 2); /* the cut token still shows its d */
	buf_free(&out);
	stop_free(&matcher);
}
END_TEST

START_TEST(stop_at_once_keeps_nothing)
{
	struct stop_matcher matcher;
	struct buf          out;
	uint32_t            keep = 9;

	stop_init(&matcher);
	buf_init(&out, 100);
	ck_assert_int_eq(stop_add(&matcher, "xy", 2), STATUS_OK);
	ck_assert_int_eq(stop_feed(&matcher, "x", 1, 1, &out, &keep), STATUS_OK);
	ck_assert_int_eq(stop_feed(&matcher, "yz", 2, 2, &out, &keep), STATUS_OK);
	ck_assert(matcher.matched);
	ck_assert_uint_eq(out.len, 0);
	ck_assert_uint_eq(keep, 0);
	buf_free(&out);
	stop_free(&matcher);
}
END_TEST

/* The longest string, one that is its own border everywhere, with more text behind it than it is long. */
START_TEST(longest_strings)
{
	struct stop_matcher matcher;
	struct buf          out;
	uint32_t            keep = 0;
	char                a[3 * STOP_BYTES_MAX];

	memset(a, 'a', sizeof a);
	stop_init(&matcher);
	buf_init(&out, sizeof a);
	ck_assert_int_eq(stop_add(&matcher, a, 0), STATUS_INVALID);
	ck_assert_int_eq(stop_add(&matcher, a, STOP_BYTES_MAX + 1), STATUS_INVALID);
	for (unsigned i = 0; i < STOP_STRINGS_MAX; i++)
		ck_assert_int_eq(stop_add(&matcher, a, STOP_BYTES_MAX), STATUS_OK);
	ck_assert_int_eq(stop_add(&matcher, a, 1), STATUS_LIMIT);
	ck_assert_int_eq(stop_feed(&matcher, a, STOP_BYTES_MAX - 1, 1, &out, &keep), STATUS_OK);
	ck_assert_uint_eq(out.len, 0);
	ck_assert_int_eq(stop_feed(&matcher, "b", 1, 2, &out, &keep), STATUS_OK);
	ck_assert_uint_eq(out.len, STOP_BYTES_MAX);
	ck_assert_int_eq(stop_feed(&matcher, a, sizeof a, 3, &out, &keep), STATUS_OK);
	ck_assert(matcher.matched);
	ck_assert_uint_eq(out.len, STOP_BYTES_MAX);
	ck_assert_uint_eq(keep, 2);
	buf_free(&out);
	stop_free(&matcher);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("api_stop");
	TCase   *tcase = tcase_create("api_stop");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 600);
	tcase_add_test(tcase, any_split);
	tcase_add_test(tcase, every_cut);
	tcase_add_test(tcase, cut_inside_a_token);
	tcase_add_test(tcase, stop_at_once_keeps_nothing);
	tcase_add_test(tcase, longest_strings);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
