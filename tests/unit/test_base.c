/* Unit tests of src/base: status table, buffers, UTF-8, configuration. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/conf.h"
#include "base/random.h"
#include "base/utf8.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status load_bytes(const char *bytes, size_t len, struct conf *ret, struct error *error)
{
	char        path[] = "/tmp/penstock-test-conf-XXXXXX";
	int         fd = mkstemp(path);
	enum status status;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	close(fd);
	status = conf_load(path, ret, error);
	unlink(path);
	return status;
}

static enum status load_text(const char *text, struct conf *ret, struct error *error)
{
	return load_bytes(text, strlen(text), ret, error);
}

START_TEST(status_table)
{
	ck_assert_int_eq(status_http(STATUS_CONTEXT_LENGTH), 400);
	ck_assert_str_eq(status_api_code(STATUS_CONTEXT_LENGTH), "context_length_exceeded");
	ck_assert_int_eq(status_http((enum status)9999), 500);
	for (int s = 0; s < STATUS_COUNT; s++)
		ck_assert_int_ge(status_http((enum status)s), 200);
}
END_TEST

START_TEST(error_is_cut)
{
	struct error error;
	char         text[2000];

	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	ck_assert_int_eq(error_set_param(&error, STATUS_LIMIT, text, "%s", text), STATUS_LIMIT);
	ck_assert_uint_eq(strlen(error.message), ERROR_MESSAGE_MAX - 1);
	ck_assert_uint_eq(strlen(error.param), ERROR_PARAM_MAX - 1);
	ck_assert_int_eq(error_set(NULL, STATUS_IO, "nobody listens"), STATUS_IO);
}
END_TEST

START_TEST(buf_limits)
{
	struct buf buf;

	buf_init(&buf, 100);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(buf_append(&buf, "0123456789", 10), STATUS_OK);
	ck_assert_int_eq(buf_append(&buf, "x", 1), STATUS_LIMIT);
	ck_assert_uint_eq(buf.len, 100);
	buf_consume(&buf, 95);
	ck_assert_str_eq(buf.data, "56789");
	ck_assert_int_eq(buf_append_format(&buf, "%d", 42), STATUS_OK);
	ck_assert_str_eq(buf.data, "5678942");
	ck_assert_int_eq(buf_reserve(&buf, (size_t)-1), STATUS_LIMIT);
	buf_free(&buf);
	ck_assert_int_eq(buf_append_string(&buf, "again"), STATUS_OK);
	buf_free(&buf);
}
END_TEST

START_TEST(utf8_round_trip)
{
	unsigned wrong = 0;

	for (uint32_t code = 0; code <= 0x10ffff; code++) {
		bool     surrogate = code >= 0xd800 && code <= 0xdfff;
		char     bytes[4];
		uint32_t back = 0;
		size_t   n = utf8_encode(code, bytes);
		wrong += utf8_decode(bytes, n, &back) != (int)n || back != (surrogate ? 0xfffd : code);
		for (size_t cut = 0; cut < n; cut++)
			wrong += utf8_decode(bytes, cut, &back) != 0;
	}
	ck_assert_uint_eq(wrong, 0);
}
END_TEST

START_TEST(utf8_ill_formed)
{
	uint32_t code;
	size_t   at;

	ck_assert_int_eq(utf8_decode("\xc0\x80", 2, &code), -1);
	ck_assert_int_eq(utf8_decode("\xed\xa0\x80", 3, &code), -1);         /* a surrogate */
	ck_assert_int_eq(utf8_decode("\xe2\x98" "A", 3, &code), -2);         /* maximal part of two bytes */
	ck_assert_int_eq(utf8_decode("\xf4\x90\x80\x80", 4, &code), -1);     /* past U+10FFFF */
	ck_assert(!utf8_valid("ab\xff", 3, &at));
	ck_assert_uint_eq(at, 2);
}
END_TEST

START_TEST(checked)
{
	uint64_t r = 7;
	ck_assert(!checked_mul_u64(UINT64_MAX, 2, &r));
	ck_assert(!checked_align_up(UINT64_MAX, 32, &r));
	ck_assert(!checked_align_up(5, 3, &r));
	ck_assert_uint_eq(r, 7);
	ck_assert(checked_align_up(33, 32, &r));
	ck_assert_uint_eq(r, 64);
}
END_TEST

START_TEST(conf_values)
{
	struct conf  conf;
	struct error error;

	ck_assert_int_eq(load_text("# c\n[batcher]\nmax_running = 8 ; inline\nkv_tokens = 64K\n\n[front]\nstrict_fields = on\n", &conf,
	                     &error), STATUS_OK);
	ck_assert_int_eq(conf.batcher_max_running, 8);
	ck_assert_int_eq(conf.batcher_kv_tokens, 65536);
	ck_assert(conf.front_strict_fields);
	ck_assert_int_eq(conf.batcher_block_size, 64);
}
END_TEST

static const struct bad {
	const char *text, *words;
} bad_files[] = {
	{ "[batcher]\nmax_running = 0\n", ":2: batcher.max_running = 0: not a whole number in the allowed range 1…4096" },
	{ "[batcher]\nmax_running = 99999999999999999999\n", "allowed range" },
	{ "[batcher]\nmax_running = 8x\n", "max_running = 8x" },
	{ "[batcher]\nmax_running = 9223372036854775807G\n", "allowed range" },
	{ "[batcher]\ncache_max_entry_count = nan\n", "0.01…0.95" },
	{ "[batcher]\nbackend = gpu\n", "cpu|cuda|script" },
	{ "[batcher]\nkernels = fast\n", "auto|library|portable|own" },
	{ "[batcher]\nmax_running = 8\nmax_running = 8\n", ":3: batcher.max_running is set twice" },
	{ "[batcher]\nno_such = 1\n", ":2: unknown option no_such" },
	{ "[nowhere]\n", ":1: unknown section [nowhere]" },
	{ "[batcher\nmax_running = 8\n", ":1: section names" },
	{ "[this_section_name_is_far_longer_than_the_forty_eight_bytes_inih_keeps]\n", ":1: section names" },
	{ "[batcher] max_running = 8\n", ":1: nothing may follow the section's name: \"max_running = 8\"" },
	{ "[batcher]\rmax_running = 8\r", ":1: nothing may follow" },
	{ "[batcher]\nnonsense\n", ":2: neither" },
	{ "[batcher]\n  max_running = 8\n", ":2: a line must not start" },
	{ "[front]\nchildren = 1\n", "less than" },
	{ "[batcher]\nblock_size = 17\n", "16, 32 and 64" },
	{ "[batcher]\nmax_running = 300\n", "at least batcher.max_running" },
	{ "[batcher]\nbackend = script\n", "script_file" },
	{ "[service]\ninstance = a/b\n", "letters, digits" },
	{ "[service]\nrun_dir = relative\n", "absolute path" },
	{ "[model]\nname = 0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
	  "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\n",
	  ":2: the line is longer" },
};

START_TEST(conf_refuses)
{
	struct conf  conf = { .batcher_max_running = -5 };
	struct error error;

	ck_assert_int_ne(load_text(bad_files[_i].text, &conf, &error), STATUS_OK);
	ck_assert_msg(strstr(error.message, bad_files[_i].words), "\"%s\" lacks \"%s\"", error.message, bad_files[_i].words);
	ck_assert_int_eq(conf.batcher_max_running, -5); /* untouched on failure */
}
END_TEST

/* What stood behind a NUL was silently left out, and a file of nothing else was read for ever. */
START_TEST(conf_refuses_nul_bytes)
{
	static const char hidden[] = "[batcher]\nmax_running = 8\0 000\n", first[] = "\0\n";
	struct conf       conf;
	struct error      error;

	ck_assert_int_eq(load_bytes(hidden, sizeof hidden - 1, &conf, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, ":2: the line holds a NUL byte"));
	ck_assert_int_eq(load_bytes(first, sizeof first - 1, &conf, &error), STATUS_INVALID);
	ck_assert_int_eq(conf_load("/dev/zero", &conf, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "/dev/zero:1: the line holds a NUL byte"));
	/* Windows' line ends and a comment behind a section's name are fine; the last line needs no newline. */
	ck_assert_int_eq(load_text("[batcher]  ; c\r\nmax_running = 8\r\n[front] # c\r\nmax_json_depth = 9", &conf, &error), STATUS_OK);
	ck_assert_int_eq(conf.front_max_json_depth, 9);
	ck_assert_int_eq(conf.batcher_max_running, 8);
}
END_TEST

START_TEST(conf_round_trip)
{
	struct conf  conf, again;
	struct error error;
	char        *text = NULL;
	size_t       len;
	FILE        *stream = open_memstream(&text, &len);

	conf_defaults(&conf);
	ck_assert_int_eq(conf_set(&conf, "model.path", "/x/y.gguf", &error), STATUS_OK);
	ck_assert_int_eq(conf_set(&conf, "batcher.cache_max_entry_count", "0.3", &error), STATUS_OK);
	ck_assert_int_eq(conf_set(&conf, "batcher.nothing", "1", &error), STATUS_INVALID);
	conf_dump(&conf, stream);
	fclose(stream);
	ck_assert_int_eq(load_text(text, &again, &error), STATUS_OK);
	ck_assert_int_eq(memcmp(&conf, &again, sizeof conf), 0);
	free(text);

	stream = open_memstream(&text, &len);
	conf_sample(stream);
	fclose(stream);
	conf_defaults(&conf);
	ck_assert_msg(load_text(text, &again, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(memcmp(&conf, &again, sizeof conf), 0);
	free(text);
}
END_TEST

START_TEST(conf_derived)
{
	struct conf conf;
	char        text[200];

	conf_defaults(&conf);
	ck_assert_int_eq(conf_children(&conf), 6); /* 16 + 64 + 10 % = 88 over 16 */
	strcpy(conf.model_path, "/models/Some-Model.Q4_1.gguf");
	conf_model_name(&conf, text, sizeof text);
	ck_assert_str_eq(text, "Some-Model.Q4_1");
	conf_front_socket(&conf, text, sizeof text);
	ck_assert_str_eq(text, "/run/penstock/front.sock");
}
END_TEST

/* Mean and variance within five standard errors of a fixed seed's draw, and never a value outside the range. */
START_TEST(random_distributions)
{
	static const double shapes[] = { 0.25, 0.5, 1, 2, 10 };
	enum { DRAWS = 200000 };

	for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
		struct random random = random_stream(7, s), again = random_stream(7, s);
		double        sum = 0, squares = 0, scale = 3, shape = shapes[s], mean = shape * scale, variance = shape * scale * scale;
		bool          good = true; /* an assertion writes to a file: not in the loop */

		for (int i = 0; i < DRAWS; i++) {
			double x = random_gamma(&random, shape, scale);
			good &= x >= 0 && isfinite(x);
			if (i < 100)
				good &= !(x < random_gamma(&again, shape, scale)) && again.state == random.state;
			sum += x;
			squares += (x - mean) * (x - mean);
		}
		ck_assert(good);
		ck_assert_double_eq_tol(sum / DRAWS, mean, 5 * sqrt(variance / DRAWS));
		/* The variance of the squared deviation is variance² × (2 + 6 / shape). */
		ck_assert_double_eq_tol(squares / DRAWS, variance, 5 * variance * sqrt((2 + 6 / shape) / DRAWS));
	}
	for (uint64_t seed = 0; seed < 1000; seed++) {
		struct random a = random_stream(seed, 0), b = random_stream(seed, 1), c = random_stream(seed + 1, 0);
		uint64_t      first = random_u64(&a);
		ck_assert(first != random_u64(&b) && first != random_u64(&c));
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("base");
	TCase   *tcase = tcase_create("base");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, status_table);
	tcase_add_test(tcase, error_is_cut);
	tcase_add_test(tcase, buf_limits);
	tcase_add_test(tcase, utf8_round_trip);
	tcase_add_test(tcase, utf8_ill_formed);
	tcase_add_test(tcase, checked);
	tcase_add_test(tcase, random_distributions);
	tcase_add_test(tcase, conf_values);
	tcase_add_loop_test(tcase, conf_refuses, 0, sizeof bad_files / sizeof bad_files[0]);
	tcase_add_test(tcase, conf_refuses_nul_bytes);
	tcase_add_test(tcase, conf_round_trip);
	tcase_add_test(tcase, conf_derived);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
