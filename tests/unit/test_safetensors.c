/* Unit tests of the safetensors reader: crafted files, good and bad. */
#include "file/safetensors.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file of HEADER (its length written as it is) and DATA_BYTES counting bytes, in a block of exactly its size. */
static unsigned char *build(const char *header, size_t data_bytes, size_t *ret_size)
{
	uint64_t       len = strlen(header);
	unsigned char *file = malloc(8 + len + data_bytes);

	ck_assert_ptr_nonnull(file);
	memcpy(file, &len, 8);
	memcpy(file + 8, header, len);
	for (size_t i = 0; i < data_bytes; i++)
		file[8 + len + i] = (unsigned char)i;
	*ret_size = 8 + len + data_bytes;
	return file;
}

static const char good_header[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"scheme\":\"{\\\"bits\\\": 4}\"},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
    "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
    "\"none\":{\"dtype\":\"F16\",\"shape\":[4,0],\"data_offsets\":[20,20]},"
    "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[20,28]},"
    "\"odd\":{\"shape\":[1,1,1],\"data_offsets\":[28,29],\"dtype\":\"F8_E4M3\"}}   ";

START_TEST(reads_a_good_file)
{
	struct safetensors              *file = NULL;
	const struct safetensors_tensor *tensor;
	struct error                     error;
	size_t                           size;
	unsigned char                   *bytes = build(good_header, 29, &size);
	static const char *const         order[] = { "a.weight", "b", "none", "scalar", "odd" };

	ck_assert_msg(safetensors_parse(bytes, size, "t", &file, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(safetensors_count(file), 5);
	for (size_t i = 0; i < 5; i++)
		ck_assert_str_eq(safetensors_at(file, i)->name, order[i]);
	ck_assert_ptr_null(safetensors_at(file, 5));

	tensor = safetensors_find(file, "b");
	ck_assert_int_eq(tensor->dtype, SAFETENSORS_BF16);
	ck_assert_uint_eq(tensor->n_dims, 2);
	ck_assert_uint_eq(tensor->dims[0], 2);
	ck_assert_uint_eq(tensor->dims[1], 3);
	ck_assert_uint_eq(tensor->dims[2], 1);
	ck_assert_uint_eq(tensor->bytes, 12);
	ck_assert_int_eq(*(const unsigned char *)tensor->data, 8);
	ck_assert_uint_eq(safetensors_find(file, "none")->bytes, 0);
	ck_assert_uint_eq(safetensors_find(file, "scalar")->n_dims, 0);
	ck_assert_uint_eq(safetensors_find(file, "scalar")->bytes, 8);
	ck_assert_ptr_null(safetensors_find(file, "__metadata__"));
	ck_assert_ptr_null(safetensors_find(file, ""));
	ck_assert_str_eq(safetensors_metadata(file, "scheme"), "{\"bits\": 4}");
	ck_assert_ptr_null(safetensors_metadata(file, "Format"));
	safetensors_close(file);
	free(bytes);
}
END_TEST

START_TEST(reads_every_dtype)
{
	for (int dtype = 0; dtype < SAFETENSORS_DTYPE_COUNT; dtype++) {
		struct safetensors *file = NULL;
		struct error        error;
		char                header[200];
		size_t              bytes = 3 * safetensors_dtype_bytes((enum safetensors_dtype)dtype), size;
		unsigned char      *whole;

		snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}",
		    safetensors_dtype_name((enum safetensors_dtype)dtype), bytes);
		whole = build(header, bytes, &size);
		ck_assert_msg(safetensors_parse(whole, size, "t", &file, &error) == STATUS_OK, "%s", error.message);
		ck_assert_int_eq(safetensors_at(file, 0)->dtype, dtype);
		safetensors_close(file);
		free(whole);
	}
	ck_assert_str_eq(safetensors_dtype_name((enum safetensors_dtype)99), "unknown");
}
END_TEST

START_TEST(reads_an_empty_file_without_metadata)
{
	struct safetensors *file = NULL;
	size_t              size;
	unsigned char      *bytes = build("{}", 0, &size);

	ck_assert_int_eq(safetensors_parse(bytes, size, "t", &file, NULL), STATUS_OK);
	ck_assert_uint_eq(safetensors_count(file), 0);
	ck_assert_ptr_null(safetensors_find(file, "x"));
	ck_assert_ptr_null(safetensors_metadata(file, "format"));
	safetensors_close(file);
	safetensors_close(NULL);
	free(bytes);
}
END_TEST

#define F32(name, from, to, shape) "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static const struct bad {
	const char *header;
	size_t      data_bytes;
	const char *words;
} bad_files[] = {
	{ "", 4, "does not begin with '{'" },
	{ " {}", 0, "does not begin with '{'" },
	{ "[]", 0, "does not begin with '{'" },
	{ "{", 0, "t: line 1, column 1: string or '}' expected near end of file" },
	{ "{}{}", 0, "end of file expected" },
	{ "{" F32("x", 0, 4, "[1]") "," F32("x", 4, 8, "[1]") "}", 8, "duplicate object key near '\"x\"'" },
	{ "{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "duplicate object key" },
	{ "{\"x\":[]}", 0, "tensor \"x\": its entry is no object" },
	{ "{" F32("", 0, 4, "[1]") "}", 4, "a name of 0 bytes" },
	{ "{" F32("a\\u0000b", 0, 4, "[1]") "}", 4, "NUL byte in object key" },
	{ "{" F32("a\\nb", 0, 4, "[2]") "}", 4, "tensor \"a\\x0ab\": data_offsets [0, 4] hold 4 bytes, shape and dtype F32 need 8" },
	{ "{\"x\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor \"x\": \"dtype\" is missing" },
	{ "{\"x\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" is missing or no string" },
	{ "{\"x\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "dtype \"F64\" is not supported: store" },
	{ "{\"x\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	    "tensor \"x\": dtype \"F8_E8M0\" is not supported" },
	{ "{\"x\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"f32\" is not supported" },
	{ "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"scale\":2}}", 4, "unknown key \"scale\"" },
	{ "{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\" is missing or no list" },
	{ "{" F32("x", 0, 4, "[1.0]") "}", 4, "dimension 0 is no whole number" },
	{ "{" F32("x", 0, 4, "[1,-1]") "}", 4, "dimension 1 is no whole number" },
	{ "{" F32("x", 0, 4, "[1,1,1,1,1,1,1,1,1]") "}", 4, "9 dimensions, the limit is 8" },
	/* 2^62 · 4 bytes wraps to 0, as does 2^32 · 2^32 */
	{ "{" F32("x", 0, 0, "[4611686018427387904]") "}", 0, "the size overflows at dimension 0, 4611686018427387904" },
	{ "{" F32("x", 0, 0, "[4294967296,4294967296]") "}", 0, "the size overflows at dimension 1, 4294967296" },
	{ "{" F32("x", 0, 0, "[4294967296,4294967296,0]") "}", 0, "the size overflows" },
	{ "{" F32("x", 0, 0, "[99999999999999999999]") "}", 0, "too big integer" },
	{ "{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\" is no list of two" },
	{ "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "\"data_offsets\" is no list of two" },
	{ "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8, "\"data_offsets\" is no list of two" },
	{ "{" F32("x", -4, 0, "[1]") "}", 4, "\"data_offsets\" is no list of two whole numbers from 0" },
	{ "{" F32("x", 4, 0, "[1]") "}", 4, "data_offsets [4, 0], the data section has 4 bytes: they run backwards" },
	{ "{" F32("x", 0, 8, "[2]") "}", 7, "data_offsets [0, 8], the data section has 7 bytes: the file is too short" },
	{ "{" F32("x", 0, 8, "[1]") "}", 8, "hold 8 bytes, shape and dtype F32 need 4" },
	{ "{" F32("x", 0, 4, "[1]") "," F32("y", 8, 12, "[1]") "}", 12,
	    "\"y\" begins at byte 8 of the data section, the one before it ends at 4: a gap" },
	{ "{" F32("x", 4, 8, "[1]") "}", 8, "\"x\" begins at byte 4 of the data section, the one before it ends at 0: a gap" },
	{ "{" F32("x", 0, 8, "[2]") "," F32("y", 4, 12, "[2]") "}", 12,
	    "\"y\" begins at byte 4 of the data section, the one before it ends at 8: they overlap" },
	{ "{" F32("x", 0, 4, "[1]") "," F32("y", 0, 4, "[1]") "}", 4, "they overlap" },
	{ "{" F32("x", 0, 8, "[2]") "," F32("y", 4, 4, "[0]") "}", 8, "they overlap" },
	{ "{" F32("x", 0, 4, "[1]") "}", 5, "the tensors end at byte 4 of the data section, the file goes on to 5" },
	{ "{}", 1, "the tensors end at byte 0 of the data section, the file goes on to 1" },
	{ "{\"__metadata__\":[]}", 0, "__metadata__ is no object" },
	{ "{\"__metadata__\":null}", 0, "__metadata__ is no object" },
	{ "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: the value of \"a\" is no string" },
	{ "{\"\xff\":1}", 0, "t: line 1, column 2: unable to decode byte 0xff" },
};

START_TEST(refuses)
{
	const struct bad   *bad = &bad_files[_i];
	struct safetensors *file = (struct safetensors *)&bad_files;
	struct error        error;
	size_t              size;
	unsigned char      *bytes = build(bad->header, bad->data_bytes, &size);

	ck_assert_int_ne(safetensors_parse(bytes, size, "t", &file, &error), STATUS_OK);
	ck_assert_msg(strstr(error.message, bad->words), "\"%s\" lacks \"%s\"", error.message, bad->words);
	ck_assert(strncmp(error.message, "t: ", 3) == 0 && !strchr(error.message, '\n'));
	ck_assert_ptr_eq(file, &bad_files); /* untouched on failure */
	free(bytes);
}
END_TEST

/* Lengths of the header that pass the end of the file, wrap, or exceed the limit. */
START_TEST(refuses_header_lengths)
{
	static const struct {
		uint64_t    len;
		const char *words;
	} cases[] = {
		{ 3, "passes the end of the file after 10" },
		{ 0, "does not begin with '{'" },
		{ 100 * 1000 * 1000 + 1, "a header of 100000001 bytes, the limit is 100000000" },
		{ 99999999, "a header of 99999999 bytes passes the end" },
		{ UINT64_MAX - 7, "the limit is 100000000" },
		{ UINT64_MAX, "the limit is 100000000" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct safetensors *file = NULL;
		struct error        error;
		size_t              size;
		unsigned char      *bytes = build("{}", 0, &size);

		memcpy(bytes, &cases[i].len, 8);
		ck_assert_int_ne(safetensors_parse(bytes, size, "t", &file, &error), STATUS_OK);
		ck_assert_msg(strstr(error.message, cases[i].words), "\"%s\" lacks \"%s\"", error.message, cases[i].words);
		free(bytes);
	}
}
END_TEST

/* A file cut anywhere, and a file with anything appended, never loads. */
START_TEST(refuses_every_other_length)
{
	size_t         size;
	unsigned char *bytes = build(good_header, 29, &size);

	for (size_t len = 0; len < size; len++) {
		struct safetensors *file = NULL;
		struct error        error;
		unsigned char      *cut = malloc(len + 1);

		memcpy(cut, bytes, len);
		cut = realloc(cut, len ? len : 1); /* exactly LEN, so that a sanitizer sees a read past it */
		ck_assert_int_ne(safetensors_parse(cut, len, "t", &file, &error), STATUS_OK);
		free(cut);
	}
	bytes = realloc(bytes, size + 1);
	bytes[size] = 0;
	struct safetensors *file = NULL;
	ck_assert_int_eq(safetensors_parse(bytes, size + 1, "t", &file, NULL), STATUS_INVALID);
	free(bytes);
}
END_TEST

START_TEST(limits_of_names)
{
	for (int over = 0; over < 2; over++) {
		struct safetensors *file = NULL;
		struct error        error;
		char                name[SAFETENSORS_NAME_MAX + 2] = "", header[sizeof name + 100];
		size_t              size;
		unsigned char      *bytes;

		memset(name, 'n', SAFETENSORS_NAME_MAX + (size_t)over);
		snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", name);
		bytes = build(header, 0, &size);
		ck_assert_int_eq(safetensors_parse(bytes, size, "t", &file, &error), over ? STATUS_INVALID : STATUS_OK);
		safetensors_close(file);
		free(bytes);
	}
}
END_TEST

START_TEST(open_names_the_file)
{
	struct safetensors *file = NULL;
	struct error        error;

	ck_assert_int_eq(safetensors_open("/nonexistent/model.safetensors", &file, &error), STATUS_NOT_FOUND);
	ck_assert(strstr(error.message, "/nonexistent/model.safetensors: cannot open"));
	ck_assert_int_eq(safetensors_open("/", &file, &error), STATUS_INVALID);
	ck_assert(strstr(error.message, "/: not a regular file"));
}
END_TEST

START_TEST(writes_what_it_reads)
{
	static const float     values[6] = { 1, -2, 3.5f, 0, 1e-20f, 6 };
	static const int32_t   ids[3] = { 7, 0, -1 };
	struct safetensors_item items[] = {
		{ .name = "logits.0", .dtype = SAFETENSORS_F32, .n_dims = 2, .dims = { 2, 3 }, .data = values },
		{ .name = "greedy \"0\"", .dtype = SAFETENSORS_I32, .n_dims = 1, .dims = { 3 }, .data = ids },
		{ .name = "none", .dtype = SAFETENSORS_F32, .n_dims = 1, .dims = { 0 } },
	};
	char                             path[] = "/tmp/penstock-test-XXXXXX", wrong[64];
	int                              fd = mkstemp(path);
	struct safetensors              *file = NULL;
	const struct safetensors_tensor *tensor;
	struct error                     error;

	ck_assert_int_ge(fd, 0);
	close(fd);
	for (int pass = 0; pass < 2; pass++) /* the second replaces the first */
		ck_assert_msg(safetensors_write(path, items, 3, &error) == STATUS_OK, "%s", error.message);
	ck_assert_msg(safetensors_open(path, &file, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(safetensors_count(file), 3);
	tensor = safetensors_find(file, "logits.0");
	ck_assert(tensor && tensor->n_dims == 2 && tensor->dims[0] == 2 && tensor->dims[1] == 3);
	ck_assert_mem_eq(tensor->data, values, sizeof values);
	tensor = safetensors_find(file, "greedy \"0\"");
	ck_assert(tensor && tensor->dtype == SAFETENSORS_I32 && memcmp(tensor->data, ids, sizeof ids) == 0);
	safetensors_close(file);
	remove(path);
	snprintf(wrong, sizeof wrong, "%s/no", path);
	ck_assert_int_eq(safetensors_write(wrong, items, 3, &error), STATUS_IO);
	ck_assert(strstr(error.message, "cannot write"));
}
END_TEST

/* Tensor by tensor: nothing is there before the end, and nothing is left of what was abandoned. */
START_TEST(write_by_tensor)
{
	static const uint8_t     values[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct safetensors_item  items[] = { { .name = "a", .dtype = SAFETENSORS_U8, .n_dims = 1, .dims = { 8 } },
		{ .name = "b", .dtype = SAFETENSORS_I32, .n_dims = 2, .dims = { 1, 2 } } };
	char                       path[] = "/tmp/penstock-test-XXXXXX", file_path[64], new_path[80];
	struct safetensors_writer *writer = NULL;
	struct safetensors        *file = NULL;
	struct error               error;

	ck_assert(mkdtemp(path) != NULL);
	snprintf(file_path, sizeof file_path, "%s/file", path);
	snprintf(new_path, sizeof new_path, "%s.new", file_path);
	for (unsigned end = 0; end < 4; end++) {
		ck_assert_msg(!safetensors_writer_open(file_path, items, 2, &writer, &error), "%s", error.message);
		ck_assert_int_eq(access(new_path, F_OK), 0);
		ck_assert_int_eq(safetensors_writer_add(writer, values, 7, &error), STATUS_INTERNAL);
		ck_assert_int_eq(safetensors_writer_add(writer, values, 8, &error), STATUS_OK);
		if (end == 1)
			safetensors_writer_abandon(writer);
		else if (end == 2) { /* one is missing */
			ck_assert_int_eq(safetensors_writer_close(writer, &error), STATUS_INTERNAL);
			ck_assert(strstr(error.message, "1 of 2 items were written") != NULL);
		} else {
			ck_assert_int_eq(safetensors_writer_add(writer, values, 8, &error), STATUS_OK);
			ck_assert_int_eq(safetensors_writer_add(writer, values, 0, &error), STATUS_INTERNAL);
			ck_assert_int_eq(access(file_path, F_OK), end == 0 ? -1 : 0);
			ck_assert_int_eq(safetensors_writer_close(writer, &error), STATUS_OK);
		}
		ck_assert_int_eq(access(new_path, F_OK), -1);
		ck_assert_msg(!safetensors_open(file_path, &file, &error), "%s", error.message);
		ck_assert_mem_eq(safetensors_find(file, "b")->data, values, 8);
		safetensors_close(file);
	}
	safetensors_writer_abandon(NULL);
	remove(file_path);
	rmdir(path);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("safetensors");
	TCase   *tcase = tcase_create("safetensors");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, reads_a_good_file);
	tcase_add_test(tcase, reads_every_dtype);
	tcase_add_test(tcase, reads_an_empty_file_without_metadata);
	tcase_add_loop_test(tcase, refuses, 0, sizeof bad_files / sizeof bad_files[0]);
	tcase_add_test(tcase, refuses_header_lengths);
	tcase_add_test(tcase, refuses_every_other_length);
	tcase_add_test(tcase, limits_of_names);
	tcase_add_test(tcase, open_names_the_file);
	tcase_add_test(tcase, writes_what_it_reads);
	tcase_add_test(tcase, write_by_tensor);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
