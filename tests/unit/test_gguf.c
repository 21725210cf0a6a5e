/* Unit tests of src/file/gguf: what a good file yields, and that every damaged one is refused with words. */
#include "file/gguf.h"
#include "gguf_builder.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t row32[] = { 32, 2, 1, 1 };

/* One key of every type, two tensors (F32 [32, 2] and Q4_0 [32, 2]). */
static void good(struct buf *buf, uint32_t version)
{
	static const char *const strings[] = { "alpha", "", "gamma" };
	const int16_t  shorts[] = { -1, 2, 300 };
	const float    floats[] = { 0.5f, -2 };
	const uint8_t  u8 = 200, yes = 1;
	const int8_t   i8 = -3;
	const uint16_t u16 = 60000;
	const int16_t  i16 = -300;
	const int32_t  i32 = -70000;
	const uint64_t u64 = UINT64_MAX;
	const int64_t  i64 = 5000000000;
	const float    f32 = 1.5f;
	const double   f64 = -2.25, not_a_number = NAN;

	build_header(buf, version, 2, 17);
	build_key(buf, "u8", BUILD_U8, &u8, 1);
	build_key(buf, "i8", BUILD_I8, &i8, 1);
	build_key(buf, "u16", BUILD_U16, &u16, 2);
	build_key(buf, "i16", BUILD_I16, &i16, 2);
	build_key_u32(buf, "u32", 4000000000u);
	build_key(buf, "i32", BUILD_I32, &i32, 4);
	build_key(buf, "u64", BUILD_U64, &u64, 8);
	build_key(buf, "i64", BUILD_I64, &i64, 8);
	build_key(buf, "f32", BUILD_F32, &f32, 4);
	build_key(buf, "f64", BUILD_F64, &f64, 8);
	build_key(buf, "nan", BUILD_F64, &not_a_number, 8);
	build_key(buf, "bool", BUILD_BOOL, &yes, 1);
	build_key_text(buf, "text", "words");
	build_array(buf, "strings", BUILD_STRING, 3);
	for (int i = 0; i < 3; i++)
		build_text(buf, strings[i]);
	build_array(buf, "shorts", BUILD_I16, 3);
	build_bytes(buf, shorts, sizeof shorts);
	build_array(buf, "floats", BUILD_F32, 2);
	build_bytes(buf, floats, sizeof floats);
	build_array(buf, "big", BUILD_U32, 1);
	build_u32(buf, 3000000000u);
	build_tensor(buf, "weights", GGUF_F32, 2, row32, 64);
	build_tensor(buf, "quants", GGUF_Q4_0, 2, row32, 0);
	build_pad(buf, 32);
	build_zeros(buf, 64 + 256);
}

static enum status count_string(void *context, size_t index, const char *string, size_t len)
{
	size_t *total = context;
	*total += len + index;
	(void)string;
	return index == 2 && *total == 0 ? STATUS_INTERNAL : STATUS_OK;
}

static enum status stop_at_once(void *context, size_t index, const char *string, size_t len)
{
	(void)string, (void)len;
	*(size_t *)context = index;
	return STATUS_CANCELLED;
}

START_TEST(good_file)
{
	struct buf                buf;
	struct gguf              *gguf;
	struct error              error;
	const struct gguf_tensor *tensor;
	uint64_t                  number;
	double                    real;
	bool                      flag;
	const char               *text;
	size_t                    len, total = 0;
	int32_t                   integers[3];
	float                     floats[2];

	good(&buf, (uint32_t)_i);
	ck_assert_msg(gguf_parse(buf.data, buf.len, "mem", &gguf, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(gguf_tensor_count(gguf), 2);
	ck_assert_uint_eq(gguf_data_bytes(gguf), 256 + 36);
	ck_assert_str_eq(gguf_tensor_at(gguf, 0)->name, "weights");
	ck_assert_ptr_null(gguf_tensor_at(gguf, 2));
	ck_assert_ptr_null(gguf_tensor_find(gguf, "weight"));
	tensor = gguf_tensor_find(gguf, "quants");
	ck_assert_ptr_eq(tensor, gguf_tensor_at(gguf, 1));
	ck_assert_uint_eq(tensor->dims[0], 32);
	ck_assert_uint_eq(tensor->dims[3], 1);
	ck_assert_uint_eq(tensor->bytes, 36);
	ck_assert_ptr_eq(tensor->data, buf.data + buf.len - 320);
	ck_assert_str_eq(gguf_type_name(tensor->type), "Q4_0");

	ck_assert_int_eq(gguf_get_u64(gguf, "u8", &number, &error), STATUS_OK);
	ck_assert_uint_eq(number, 200);
	ck_assert_int_eq(gguf_get_u64(gguf, "u16", &number, &error), STATUS_OK);
	ck_assert_uint_eq(number, 60000);
	ck_assert_int_eq(gguf_get_u64(gguf, "u32", &number, &error), STATUS_OK);
	ck_assert_uint_eq(number, 4000000000u);
	ck_assert_int_eq(gguf_get_u64(gguf, "i64", &number, &error), STATUS_OK);
	ck_assert_uint_eq(number, 5000000000);
	ck_assert_int_eq(gguf_get_u64(gguf, "u64", &number, &error), STATUS_OK);
	ck_assert_uint_eq(number, UINT64_MAX);
	ck_assert_int_eq(gguf_get_u64(gguf, "i32", &number, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "\"i32\" is -70000") != NULL, "%s", error.message);
	ck_assert_uint_eq(number, UINT64_MAX); /* untouched */
	ck_assert_int_eq(gguf_get_u64(gguf, "i8", &number, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_get_u64(gguf, "text", &number, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "of type string, not an integer") != NULL, "%s", error.message);
	ck_assert_int_eq(gguf_get_u64(gguf, "shorts", &number, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "array of i16, not an integer") != NULL, "%s", error.message);
	ck_assert_int_eq(gguf_get_u64(gguf, "nothing\n", &number, &error), STATUS_NOT_FOUND);
	ck_assert_str_eq(error.message, "mem: key \"nothing\\x0a\" is missing");
	ck_assert_int_eq(gguf_get_f64(gguf, "f32", &real, &error), STATUS_OK);
	ck_assert_double_eq(real, 1.5);
	ck_assert_int_eq(gguf_get_f64(gguf, "f64", &real, &error), STATUS_OK);
	ck_assert_double_eq(real, -2.25);
	ck_assert_int_eq(gguf_get_f64(gguf, "nan", &real, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_get_f64(gguf, "u32", &real, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_get_bool(gguf, "bool", &flag, &error), STATUS_OK);
	ck_assert(flag);
	ck_assert_int_eq(gguf_get_bool(gguf, "u8", &flag, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_get_string(gguf, "text", &text, &len, &error), STATUS_OK);
	ck_assert(len == 5 && memcmp(text, "words", 5) == 0);

	ck_assert_int_eq(gguf_array_count(gguf, "strings", &len, &error), STATUS_OK);
	ck_assert_uint_eq(len, 3);
	ck_assert_int_eq(gguf_array_count(gguf, "text", &len, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_array_strings(gguf, "strings", count_string, &total, &error), STATUS_OK);
	ck_assert_uint_eq(total, 5 + 0 + 5 + 0 + 1 + 2);
	ck_assert_int_eq(gguf_array_strings(gguf, "strings", stop_at_once, &total, &error), STATUS_CANCELLED);
	ck_assert_uint_eq(total, 0);
	ck_assert_int_eq(gguf_array_strings(gguf, "shorts", count_string, &total, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_array_i32(gguf, "shorts", integers, 3, &error), STATUS_OK);
	ck_assert(integers[0] == -1 && integers[1] == 2 && integers[2] == 300);
	ck_assert_int_eq(gguf_array_i32(gguf, "shorts", integers, 2, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "has 3 elements, expected are 2") != NULL, "%s", error.message);
	ck_assert_int_eq(gguf_array_i32(gguf, "big", integers, 1, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_array_i32(gguf, "floats", integers, 2, &error), STATUS_INVALID);
	ck_assert_int_eq(gguf_array_f32(gguf, "floats", floats, 2, &error), STATUS_OK);
	ck_assert(floats[0] == 0.5f && floats[1] == -2);
	ck_assert_int_eq(gguf_array_f32(gguf, "shorts", floats, 3, &error), STATUS_INVALID);
	gguf_close(gguf);
	buf_free(&buf);
}
END_TEST

/* Damaged files.  Each function builds one; `words` must be in the message, which must name a byte offset. */
static void magic(struct buf *b) { build_header(b, 3, 0, 0); b->data[3] = 'X'; }
static void version1(struct buf *b) { build_header(b, 1, 0, 0); }
static void big_endian(struct buf *b) { build_header(b, 0x03000000, 0, 0); }
static void short_header(struct buf *b) { build_header(b, 3, 0, 0); b->len = 20; }
static void many_keys(struct buf *b) { build_header(b, 3, 0, UINT64_MAX); }
static void keys_past_end(struct buf *b) { build_header(b, 3, 0, 60000); build_zeros(b, 100); }
static void many_tensors(struct buf *b) { build_header(b, 3, UINT64_MAX / 8, 0); }
static void tensors_past_end(struct buf *b) { build_header(b, 3, 1 << 20, 0); build_zeros(b, 100); }

static void key_length(struct buf *b)
{
	build_header(b, 3, 0, 1);
	build_u64(b, UINT64_MAX - 7); /* wraps when 8 is added */
	build_zeros(b, 64);
}

static void key_length_past_end(struct buf *b)
{
	build_header(b, 3, 0, 1);
	build_u64(b, 200);
	build_zeros(b, 64);
}

static void key_empty(struct buf *b) { build_header(b, 3, 0, 1); build_key_u32(b, "", 1); build_zeros(b, 8); }

static void key_nul(struct buf *b)
{
	build_header(b, 3, 0, 1);
	build_u64(b, 3);
	build_bytes(b, "a\0b", 3);
	build_u32(b, BUILD_U32);
	build_u32(b, 1);
}

static void key_twice(struct buf *b)
{
	build_header(b, 3, 0, 3);
	build_key_u32(b, "one\n", 1);
	build_key_u32(b, "two", 1);
	build_key_u32(b, "one\n", 2);
}

static void value_type(struct buf *b) { build_header(b, 3, 0, 1); build_key(b, "k", 13, "12345678", 8); }
static void value_cut(struct buf *b) { build_header(b, 3, 0, 1); build_key(b, "key", BUILD_U64, "1234567", 7); }
static void bool_two(struct buf *b) { build_header(b, 3, 0, 1); build_key(b, "k", BUILD_BOOL, "\2padding", 8); }

static void string_length(struct buf *b)
{
	uint64_t len = 1 << 24;
	build_header(b, 3, 0, 1);
	build_key(b, "k", BUILD_STRING, &len, 8);
}

static void string_huge(struct buf *b)
{
	uint64_t len = 1ull << 60;
	build_header(b, 3, 0, 1);
	build_key(b, "k", BUILD_STRING, &len, 8);
}

static void array_type(struct buf *b) { build_header(b, 3, 0, 1); build_array(b, "k", 77, 1); build_zeros(b, 8); }
static void array_nested(struct buf *b) { build_header(b, 3, 0, 1); build_array(b, "k", BUILD_ARRAY, 1); build_zeros(b, 8); }
static void array_huge(struct buf *b) { build_header(b, 3, 0, 1); build_array(b, "k", BUILD_U64, 1ull << 61); build_zeros(b, 8); }
static void array_cut(struct buf *b) { build_header(b, 3, 0, 1); build_array(b, "k", BUILD_U16, 5); build_zeros(b, 8); }
static void array_strings(struct buf *b)
{
	build_header(b, 3, 0, 1);
	build_array(b, "k", BUILD_STRING, 1 << 20);
	build_zeros(b, 99);
}

static void array_string_cut(struct buf *b)
{
	build_header(b, 3, 0, 1);
	build_array(b, "k", BUILD_STRING, 2);
	build_text(b, "fine");
	build_u64(b, 9);
	build_zeros(b, 8);
}

static void alignment(struct buf *b, uint32_t value)
{
	build_header(b, 3, 1, 1);
	build_key_u32(b, "general.alignment", value);
	build_tensor(b, "t", GGUF_F32, 2, row32, 0);
	build_pad(b, 32);
	build_zeros(b, 256);
}

static void alignment_zero(struct buf *b) { alignment(b, 0); }
static void alignment_odd(struct buf *b) { alignment(b, 24); }
static void alignment_huge(struct buf *b) { alignment(b, 0x80000000u); }
static void alignment_text(struct buf *b) { build_header(b, 3, 0, 1); build_key_text(b, "general.alignment", "32"); }

/* A file with up to two tensors. */
static void tensors(struct buf *b, uint32_t type, uint32_t n_dims, const uint64_t *dims, uint64_t at, const char *second,
    uint64_t second_at)
{
	build_header(b, 3, second ? 2 : 1, 0);
	build_tensor(b, "first", type, n_dims, dims, at);
	if (second)
		build_tensor(b, second, GGUF_F32, 2, row32, second_at);
	build_pad(b, 32);
	build_zeros(b, 512);
}

static void dims_none(struct buf *b) { tensors(b, GGUF_F32, 0, row32, 0, NULL, 0); }
static void dims_five(struct buf *b) { tensors(b, GGUF_F32, 5, (const uint64_t[]){ 1, 1, 1, 1, 1 }, 0, NULL, 0); }
static void dims_zero(struct buf *b) { tensors(b, GGUF_F32, 2, (const uint64_t[]){ 32, 0 }, 0, NULL, 0); }
static void dims_wrap(struct buf *b) { tensors(b, GGUF_F32, 2, (const uint64_t[]){ 1ull << 32, 1ull << 32 }, 0, NULL, 0); }
static void size_wrap(struct buf *b) { tensors(b, GGUF_F32, 2, (const uint64_t[]){ 1ull << 31, 1ull << 31 }, 0, NULL, 0); }
static void dims_wrap_small(struct buf *b)
{
	tensors(b, GGUF_F32, 4, (const uint64_t[]){ (1ull << 42) + 1, 1ull << 22, 2, 1 }, 0, NULL, 0);
}
static void block_row(struct buf *b) { tensors(b, GGUF_Q4_0, 2, (const uint64_t[]){ 48, 2 }, 0, NULL, 0); }
static void tensor_type(struct buf *b) { tensors(b, 16, 2, row32, 0, NULL, 0); }
static void past_end(struct buf *b) { tensors(b, GGUF_F32, 2, row32, 288, NULL, 0); }
static void offset_past_end(struct buf *b) { tensors(b, GGUF_F32, 2, row32, 1024, NULL, 0); }
static void offset_wrap(struct buf *b) { tensors(b, GGUF_F32, 2, row32, UINT64_MAX - 31, NULL, 0); }
static void misaligned(struct buf *b) { tensors(b, GGUF_F32, 2, row32, 16, NULL, 0); }
static void name_twice(struct buf *b) { tensors(b, GGUF_F32, 2, row32, 0, "first", 256); }
static void overlap(struct buf *b) { tensors(b, GGUF_F32, 2, row32, 256, "second", 32); }
static void same_place(struct buf *b) { tensors(b, GGUF_F32, 2, row32, 0, "second", 0); }
static void name_long(struct buf *b)
{
	char name[300];
	memset(name, 'n', sizeof name - 1);
	name[sizeof name - 1] = '\0';
	tensors(b, GGUF_F32, 2, row32, 0, name, 256);
}
static void table_cut(struct buf *b) { build_header(b, 3, 1, 0); build_tensor(b, "t", GGUF_F32, 4, row32, 0); b->len -= 9; }
static void no_data(struct buf *b) { build_header(b, 3, 1, 0); build_tensor(b, "t", GGUF_F32, 2, row32, 0); }

static const struct damaged {
	void (*build)(struct buf *buf);
	const char *words;
} damaged[] = {
	{ magic, "not a GGUF file" }, { version1, "GGUF version 1" }, { big_endian, "big-endian" },
	{ short_header, "ends inside the header, at byte 16" },
	{ many_keys, "18446744073709551615 metadata keys, the limit is 65536, at byte 16" },
	{ keys_past_end, "60000 metadata keys do not fit into the file, at byte 16" },
	{ many_tensors, "tensors, the limit is 1048576, at byte 8" },
	{ tensors_past_end, "1048576 tensors do not fit into the file, at byte 8" },
	{ key_length, "a key has 18446744073709551608 bytes, the limit is 256, at byte 24" },
	{ key_length_past_end, "a key has 200 bytes but the file ends after 64, at byte 24" },
	{ key_empty, "a key is empty" }, { key_nul, "contains a NUL" },
	{ key_twice, "key \"one\\x0a\" appears twice, at byte 63" },
	{ value_type, "unknown value type 13, at byte 33" }, { value_cut, "ends inside a value" },
	{ bool_two, "a bool is 2" }, { string_length, "a string value has 16777216 bytes but the file ends after 0, at byte 37" },
	{ string_huge, "the limit is 16777216, at byte 37" },
	{ array_type, "unknown element type 77" }, { array_nested, "arrays of arrays" },
	{ array_huge, "2305843009213693952 elements, the limit is 16777216" },
	{ array_cut, "an array of 5 elements passes the end" }, { array_strings, "passes the end" },
	{ array_string_cut, "a string of an array has 9 bytes but the file ends after 8, at byte 61" },
	{ alignment_zero, "general.alignment is 0" }, { alignment_odd, "general.alignment is 24" },
	{ alignment_huge, "general.alignment is 2147483648" }, { alignment_text, "general.alignment is not an integer" },
	{ dims_none, "0 dimensions" }, { dims_five, "5 dimensions" }, { dims_zero, "dimension 1 of tensor \"first\" is 0" },
	{ dims_wrap, "dimensions of tensor \"first\" overflow" }, { dims_wrap_small, "overflow" },
	{ size_wrap, "size of tensor \"first\" overflows" },
	{ block_row, "rows of 48 elements of tensor \"first\" are no multiple of the Q4_0 block, 32, at byte 24" },
	{ tensor_type, "type 16, which this program does not read" },
	{ past_end, "tensor \"first\" (offset 288, 256 bytes) passes the end of the data section of 512 bytes, at byte 24" },
	{ offset_past_end, "passes the end" }, { offset_wrap, "passes the end" },
	{ misaligned, "offset 16 of tensor \"first\" is no multiple of the alignment, 32" },
	{ name_twice, "tensor \"first\" appears twice, at byte 69" },
	{ overlap, "tensors \"second\" and \"first\" overlap" }, { same_place, "overlap" },
	{ name_long, "a tensor name has 299 bytes, the limit is 256" },
	{ table_cut, "ends inside a tensor's type" }, { no_data, "passes the end" },
};

START_TEST(damaged_file)
{
	struct buf   buf;
	struct gguf *gguf = (struct gguf *)&buf;
	struct error error;

	damaged[_i].build(&buf);
	ck_assert_int_ne(gguf_parse(buf.data, buf.len, "mem", &gguf, &error), STATUS_OK);
	ck_assert_msg(strstr(error.message, damaged[_i].words) != NULL, "\"%s\" lacks \"%s\"", error.message, damaged[_i].words);
	ck_assert_msg(strstr(error.message, ", at byte ") != NULL && !strchr(error.message, '\n'), "%s", error.message);
	ck_assert_ptr_eq(gguf, &buf); /* untouched on failure */
	buf_free(&buf);
}
END_TEST

/* Opens the bytes from memory of exactly their size, so that a sanitizer sees any step outside. */
static bool opens(const char *bytes, size_t len)
{
	char        *copy = malloc(len ? len : 1);
	struct gguf *gguf;
	bool         ok;

	memcpy(copy, bytes, len);
	ok = gguf_parse(copy, len, "mem", &gguf, NULL) == STATUS_OK;
	if (ok)
		gguf_close(gguf);
	free(copy);
	return ok;
}

START_TEST(every_prefix_is_refused)
{
	struct buf buf;
	unsigned   wrong = 0;

	good(&buf, 3);
	for (size_t len = 0; len < buf.len; len++)
		wrong += opens(buf.data, len);
	ck_assert_uint_eq(wrong, 0); /* the last tensor ends with the file */
	ck_assert(opens(buf.data, buf.len));
	buf_free(&buf);
}
END_TEST

START_TEST(every_byte_changed)
{
	struct buf buf;
	unsigned   opened = 0;

	good(&buf, 3);
	for (size_t at = 0; at < buf.len - 320; at++)
		for (int bit = 0; bit <= 8; bit++) {
			char was = buf.data[at];
			buf.data[at] = (char)(bit == 8 ? 0xff : was ^ 1 << bit);
			opened += opens(buf.data, buf.len);
			buf.data[at] = was;
		}
	ck_assert_uint_gt(opened, 0); /* letters of names may change */
	buf_free(&buf);
}
END_TEST

START_TEST(open_refuses_what_is_no_file)
{
	char         directory[] = "/tmp/penstock-test-gguf-XXXXXX", path[100];
	struct gguf *gguf;
	struct error error;
	int          fd;

	ck_assert_ptr_nonnull(mkdtemp(directory));
	ck_assert_int_eq(gguf_open(directory, &gguf, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "not a regular file") != NULL, "%s", error.message);
	snprintf(path, sizeof path, "%s/fifo", directory);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	ck_assert_int_eq(gguf_open(path, &gguf, &error), STATUS_INVALID); /* and does not wait for a writer */
	unlink(path);
	ck_assert_int_eq(gguf_open(path, &gguf, &error), STATUS_NOT_FOUND);
	ck_assert_msg(strstr(error.message, "No such file") != NULL, "%s", error.message);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(gguf_open(path, &gguf, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "the file ends inside the header, at byte 0") != NULL, "%s", error.message);
	ck_assert_int_eq(write(fd, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24), 24);
	close(fd);
	ck_assert_int_eq(gguf_open(path, &gguf, &error), STATUS_OK); /* empty, but well-formed */
	ck_assert_uint_eq(gguf_tensor_count(gguf), 0);
	gguf_close(gguf);
	gguf_close(NULL);
	unlink(path);
	rmdir(directory);
}
END_TEST

START_TEST(tiny_model)
{
	const char  *root = getenv("abs_top_srcdir");
	char         path[4096];
	struct gguf *gguf;
	struct error error;
	unsigned     seen = 0;

	snprintf(path, sizeof path, "%s/tests/data/tiny.gguf", root ? root : ".");
	ck_assert_msg(gguf_open(path, &gguf, &error) == STATUS_OK, "%s", error.message);
	for (size_t i = 0; i < gguf_tensor_count(gguf); i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
		ck_assert_ptr_eq(gguf_tensor_find(gguf, tensor->name), tensor);
		ck_assert_uint_eq((uintptr_t)tensor->data % 32, 0);
		seen |= 1u << tensor->type;
	}
	ck_assert_uint_eq(seen, 1u << GGUF_F32 | 1u << GGUF_F16 | 1u << GGUF_BF16 | 1u << GGUF_Q4_0 | 1u << GGUF_Q4_1 |
	    1u << GGUF_Q8_0 | 1u << GGUF_Q6_K);
	gguf_close(gguf);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("gguf");
	TCase   *tcase = tcase_create("gguf");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, good_file, 2, 4); /* versions 2 and 3 */
	tcase_add_loop_test(tcase, damaged_file, 0, sizeof damaged / sizeof damaged[0]);
	tcase_add_test(tcase, every_prefix_is_refused);
	tcase_add_test(tcase, every_byte_changed);
	tcase_add_test(tcase, open_refuses_what_is_no_file);
	tcase_add_test(tcase, tiny_model);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
