/* What the load tool asks: lengths and seeds of synthetic prompts, JSON lines, traces; damaged files are refused with a place
 * and never do harm.  PENSTOCK_ROUNDS (default 3000) is the number of damaged files. */
#include "base/random.h"
#include "tools/bench_dataset_file.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rounds(void)
{
	const char *text = getenv("PENSTOCK_ROUNDS");

	return text ? strtoull(text, NULL, 10) : 3000;
}

static uint32_t word_count(const char *text)
{
	uint32_t count = *text != '\0';

	for (; *text; text++)
		count += *text == ' ';
	return count;
}

static enum status read_trace(struct bench_dataset *dataset, const char *bytes, size_t len, struct error *error)
{
	FILE       *stream = fmemopen((void *)bytes, len ? len : 1, "r");
	enum status status;

	ck_assert_ptr_nonnull(stream);
	if (!len)
		ck_assert_int_ge(getc(stream), 0);
	status = bench_dataset_read_trace(dataset, "f", stream, error);
	fclose(stream);
	return status;
}

/* The text of an item of a synthetic dataset or a trace; the caller frees it. */
static char *text_of(const struct bench_dataset *dataset, const struct bench_item *item)
{
	json_t *content = bench_dataset_content(dataset, item);
	char   *text;

	ck_assert_ptr_nonnull(content);
	if (dataset->options.chat)
		text = strdup(json_string_value(json_object_get(json_array_get(content, 0), "content")));
	else
		text = strdup(json_string_value(content));
	json_decref(content);
	return text;
}

static void draw(const struct bench_dataset *dataset, size_t count, uint64_t seed, struct bench_item **ret, size_t *ret_count)
{
	struct error error;

	ck_assert_int_eq(bench_dataset_draw(dataset, count, seed, ret, ret_count, &error), STATUS_OK);
}

START_TEST(random_lengths)
{
	struct bench_dataset dataset = { .options = { .kind = BENCH_DATASET_RANDOM, .input_tokens = 100, .output_tokens = 20,
		.range_ratio = 0.3, .prefix_tokens = 10 } };
	struct bench_item   *items, *again;
	size_t               count, other;
	uint32_t             low = UINT32_MAX, high = 0;

	draw(&dataset, 2000, 1, &items, &count);
	draw(&dataset, 2000, 1, &again, &other);
	ck_assert_uint_eq(count, 2000);
	for (size_t i = 0; i < count; i++) {
		ck_assert(items[i].input_tokens >= 80 && items[i].input_tokens <= 140);
		ck_assert(items[i].output_tokens >= 14 && items[i].output_tokens <= 26);
		low = items[i].input_tokens < low ? items[i].input_tokens : low;
		high = items[i].input_tokens > high ? items[i].input_tokens : high;
		ck_assert(items[i].stream == again[i].stream && items[i].input_tokens == again[i].input_tokens);
	}
	ck_assert(low == 80 && high == 140); /* both ends are reached */
	for (size_t i = 0; i < 3; i++) {
		char *text = text_of(&dataset, &items[i]), *same = text_of(&dataset, &again[i]), *next = text_of(&dataset, &items[i + 1]);
		ck_assert_uint_eq(word_count(text), items[i].input_tokens);
		ck_assert_str_eq(text, same);
		ck_assert_str_ne(text, next);
		free(text);
		free(same);
		free(next);
	}
	free(items);
	free(again);
	draw(&dataset, 1, 2, &items, &count);
	draw(&dataset, 1, 3, &again, &other);
	ck_assert(items[0].stream != again[0].stream);
	free(items);
	free(again);
	dataset.options.range_ratio = 0;
	draw(&dataset, 50, 1, &items, &count);
	for (size_t i = 0; i < count; i++)
		ck_assert(items[i].input_tokens == 110 && items[i].output_tokens == 20);
	free(items);
}
END_TEST

static void open_text(bool custom, const struct bench_dataset_options *options, const char *text, struct bench_dataset *ret)
{
	struct error error;
	enum status  status;

	*ret = (struct bench_dataset){ .options = *options };
	status = custom ? bench_dataset_read_custom(ret, "f", text, strlen(text), &error)
	                : read_trace(ret, text, strlen(text), &error);
	ck_assert_msg(!status, "%s", error.message);
}

static const struct bench_dataset_options custom = { .kind = BENCH_DATASET_CUSTOM, .chat = true, .output_tokens = 50,
	.shuffle = true, .oversample = true };
static const struct bench_dataset_options trace = { .kind = BENCH_DATASET_TRACE, .chat = true, .classes = true };

START_TEST(custom_draws_every_line_equally)
{
	struct bench_dataset dataset;
	struct bench_item   *items;
	size_t               count;
	unsigned             firsts[5] = { 0 };

	open_text(true, &custom, "{\"prompt\": \"a a\", \"max_tokens\": 1}\n\n{\"prompt\": \"b\", \"max_tokens\": 2}\r\n"
	    "{\"prompt\": \"c\", \"max_tokens\": 3}\n"
	    "{\"messages\": [{\"role\": \"user\", \"content\": 5}], \"max_tokens\": 4}\n"
	    "{\"prompt\": \"no end of line\", \"output_tokens\": 5}", &dataset);
	ck_assert_uint_eq(dataset.row_count, 5);
	ck_assert_uint_eq(dataset.rows[0].input_tokens, 2);
	for (uint64_t seed = 0; seed < 500; seed++) {
		unsigned seen[6] = { 0 };

		draw(&dataset, 13, seed, &items, &count);
		ck_assert_uint_eq(count, 13);
		for (size_t i = 0; i < count; i++)
			seen[items[i].output_tokens]++;
		for (unsigned i = 1; i <= 5; i++)
			ck_assert(seen[i] == 2 || seen[i] == 3); /* none a third time before all came twice */
		firsts[items[0].output_tokens - 1]++;
		free(items);
		draw(&dataset, 2, seed, &items, &count);
		ck_assert(count == 2 && items[0].content != items[1].content);
		firsts[items[0].output_tokens - 1]++;
		free(items);
	}
	for (unsigned i = 0; i < 5; i++)
		ck_assert(firsts[i] > 120 && firsts[i] < 280); /* 200 wanted, standard deviation 13 */
	dataset.options.oversample = false;
	draw(&dataset, 13, 0, &items, &count);
	ck_assert_uint_eq(count, 5);
	free(items);
	bench_dataset_close(&dataset);
}
END_TEST

START_TEST(trace_rows)
{
	struct bench_dataset dataset;
	struct bench_item   *items;
	size_t               count;
	char                *texts[5];

	open_text(false, &trace, "prompt_tokens,arrival_s,output_tokens,key,class,shared_prefix_id,shared_prefix_tokens,"
	    "cancel_after_s\n"
	    "20,1.5,5,\"b, \"\"q\"\"\",-3,x,12,\n"
	    "20,0.5,6,a,,x,12,0.25\r\n"
	    "20,0.5,7,a,4,y,12,\n"
	    "9,2,8,,,,,\n"
	    "20,3,9,a,0,,12,\n", &dataset);
	ck_assert_uint_eq(dataset.row_count, 5);
	ck_assert_uint_eq(dataset.trace.keys.count, 3);
	draw(&dataset, 100, 9, &items, &count);
	ck_assert_uint_eq(count, 5);
	for (size_t i = 0; i < 5; i++) {
		static const uint32_t outputs[] = { 6, 7, 5, 8, 9 };
		ck_assert_uint_eq(items[i].output_tokens, outputs[i]); /* sorted, equal arrivals in order */
		texts[i] = text_of(&dataset, &items[i]);
		ck_assert_uint_eq(word_count(texts[i]), items[i].input_tokens);
	}
	ck_assert(items[0].cancel_after_s == 0.25 && items[1].cancel_after_s < 0);
	ck_assert(items[0].has_priority && items[0].priority == 0 && items[1].priority == 4 && items[2].priority == -3);
	ck_assert_str_eq(dataset.trace.keys.names[items[2].key], "b, \"q\"");
	ck_assert_str_eq(dataset.trace.keys.names[items[1].key], "a");
	ck_assert_str_eq(dataset.trace.keys.names[items[3].key], "");
	ck_assert(items[0].prefix_stream == items[2].prefix_stream && items[0].prefix_stream != items[1].prefix_stream);
	ck_assert(items[4].prefix_tokens == 0); /* a prefix that has no name is shared with nobody */
	ck_assert(strncmp(texts[0], texts[2], 20) == 0 && strncmp(texts[0], texts[1], 60) != 0);
	for (size_t i = 0; i < 5; i++)
		free(texts[i]);
	free(items);
	bench_dataset_close(&dataset);
}
END_TEST

static const struct {
	bool        custom;
	const char *text, *says;
} bad_files[] = {
	{ true, "{\"prompt\": \"a\"}\nnonsense\n", "f:2: " },
	{ true, "[]\n", "f:1: " },
	{ true, "{}\n", "f:1: a line holds either" },
	{ true, "{\"prompt\": \"a\", \"messages\": []}\n", "f:1: a line holds either" },
	{ true, "{\"prompt\": 5}\n", "f:1: prompt is an integer" },
	{ true, "{\"messages\": []}\n", "f:1: messages is not" },
	{ true, "{\"messages\": [{\"content\": \"x\"}]}\n", "f:1: messages is not" },
	{ true, "{\"prompt\": \"a\", \"max_tokens\": 0}\n", "f:1: max_tokens is not a whole number in 1…1048576" },
	{ true, "{\"prompt\": \"a\", \"output_tokens\": \"5\"}\n", "f:1: output_tokens" },
	{ true, "{\"prompt\": \"\\ud800\"}\n", "f:1: " },
	{ false, "", "f: the file is empty" },
	{ false, "arrival_s,prompt_tokens,output_tokens\n1,0,3\n", "f: line 2, column prompt_tokens" },
	{ false, "arrival_s,prompt_tokens,output_tokens\n1,2,3\n1,4194305,3\n", "f: request 2: prompt_tokens = 4194305" },
	{ false, "arrival_s,prompt_tokens,output_tokens\n1,2,1048577\n",
	    "f: request 1: prompt_tokens = 2 and output_tokens = 1048577" },
};

START_TEST(bad_file)
{
	struct bench_dataset dataset = { .options = bad_files[_i].custom ? custom : trace };
	struct error         error;
	size_t               len = strlen(bad_files[_i].text);
	enum status          status = bad_files[_i].custom ? bench_dataset_read_custom(&dataset, "f", bad_files[_i].text, len, &error)
	                                                   : read_trace(&dataset, bad_files[_i].text, len, &error);

	ck_assert_int_ne(status, STATUS_OK);
	ck_assert_msg(strstr(error.message, bad_files[_i].says) != NULL, "%s", error.message);
	bench_dataset_close(&dataset);
}
END_TEST

/* A good file with a few bytes changed, added or cut is read or refused in words; what was read keeps every promise. */
START_TEST(damaged_files)
{
	static const char *const good[] = {
		"{\"prompt\": \"a b\", \"max_tokens\": 3}\n"
		"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n{\"prompt\": \"\"}\n",
		"arrival_s,key,class,prompt_tokens,shared_prefix_id,shared_prefix_tokens,output_tokens,cancel_after_s\n"
		"0.5,a,1,30,p,10,5,\n0.1,\"b\",,7,,,9,2.5\n1,c,0,8,p,8,9,0\n",
	};
	static const char letters[] = "\",\n\r{}[]:0123456789.-eE \\\x00\xff\xc3" "ap";
	struct random     random = { 11 };

	for (uint64_t round = 0; round < rounds(); round++) {
		unsigned             which = random_below(&random, 2);
		struct bench_dataset dataset = { .options = which ? trace : custom };
		struct error         error = { .message = "" };
		char                 bytes[512];
		size_t               len = strlen(good[which]);
		enum status          status;

		memcpy(bytes, good[which], len);
		for (uint32_t n = 1 + random_below(&random, 4); n > 0; n--) {
			size_t at = random_below(&random, (uint32_t)len);
			char   letter = letters[random_below(&random, sizeof letters - 1)];

			switch (random_below(&random, 3)) {
			case 0:
				bytes[at] = letter;
				break;
			case 1:
				memmove(bytes + at + 1, bytes + at, len - at);
				bytes[at] = letter;
				len++;
				break;
			default:
				memmove(bytes + at, bytes + at + 1, len - at - 1);
				len--;
			}
		}
		status = which ? read_trace(&dataset, bytes, len, &error)
		               : bench_dataset_read_custom(&dataset, "f", bytes, len, &error);
		ck_assert(!status == !*error.message);
		for (size_t i = 0; !status && i < dataset.row_count; i++) {
			const struct bench_item *row = &dataset.rows[i];
			ck_assert(row->output_tokens >= 1 && row->output_tokens <= BENCH_OUTPUT_MAX);
			if (!which) {
				ck_assert_ptr_nonnull(row->content);
				continue;
			}
			ck_assert(row->arrival_s >= 0 && row->prefix_tokens <= row->input_tokens && row->input_tokens <= BENCH_WORDS_MAX);
			ck_assert(row->key < dataset.trace.keys.count && (!i || row->arrival_s >= dataset.rows[i - 1].arrival_s));
		}
		bench_dataset_close(&dataset);
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("bench_dataset");
	TCase   *tcase = tcase_create("core");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, random_lengths);
	tcase_add_test(tcase, custom_draws_every_line_equally);
	tcase_add_test(tcase, trace_rows);
	tcase_add_loop_test(tcase, bad_file, 0, sizeof bad_files / sizeof bad_files[0]);
	tcase_add_test(tcase, damaged_files);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
