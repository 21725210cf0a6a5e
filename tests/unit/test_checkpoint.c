/* Unit tests of checkpoints: one file, shards with an index and their disagreements, GGUF, and the ledger. */
#include "file/checkpoint.h"
#include "file/gguf.h"
#include "file/map.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A directory of its own for each test. */
static char directory[64];

static void setup(void)
{
	strcpy(directory, "/tmp/penstock-test-checkpoint-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(directory));
}

static const char *in_directory(const char *name)
{
	static char path[sizeof directory + 300];
	snprintf(path, sizeof path, "%s/%s", directory, name);
	return path;
}

static void teardown(void)
{
	DIR           *dir = opendir(directory);
	struct dirent *item;

	while ((item = readdir(dir)))
		if (item->d_name[0] != '.')
			unlink(in_directory(item->d_name));
	closedir(dir);
	rmdir(directory);
}

static void write_file(const char *name, const void *bytes, size_t len)
{
	FILE *stream = fopen(in_directory(name), "wb");

	ck_assert_ptr_nonnull(stream);
	ck_assert_uint_eq(fwrite(bytes, 1, len, stream), len);
	fclose(stream);
}

/* A shard with one U8 [2] tensor per name; NAMES is a list like "a b". */
static void write_shard(const char *file, const char *names)
{
	char     header[4096] = "{", data[128] = "", bytes[sizeof header + sizeof data + 8];
	size_t   at = 1, count = 0;
	uint64_t len;

	while (*names) {
		int n = (int)strcspn(names, " ");
		at += (size_t)snprintf(header + at, sizeof header - at,
		    "%s\"%.*s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[%zu,%zu]}",
		    count ? "," : "", n, names, 2 * count, 2 * count + 2);
		memset(data + 2 * count, names[0], 2);
		count++;
		names += n + (names[n] == ' ');
	}
	len = at += (size_t)snprintf(header + at, sizeof header - at, "}");
	memcpy(bytes, &len, 8);
	memcpy(bytes + 8, header, len);
	memcpy(bytes + 8 + len, data, 2 * count);
	write_file(file, bytes, 8 + len + 2 * count);
}

static void write_text(const char *name, const char *text) { write_file(name, text, strlen(text)); }

#define ONE "model-00001-of-00002.safetensors"
#define TWO "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define GOOD_INDEX "{\"metadata\":{\"total_size\":6},\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" ONE "\",\"c\":\"" TWO "\"}}"

START_TEST(single_file_and_ledger)
{
	struct checkpoint              *checkpoint = NULL;
	const struct checkpoint_tensor *tensor = NULL;
	struct error                    error;

	write_shard("model.safetensors", "b a c");
	write_shard("golden.safetensors", "x"); /* nothing of the model's */
	write_shard("adapter_model.safetensors", "y");
	ck_assert_msg(checkpoint_open(directory, &checkpoint, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(checkpoint_count(checkpoint), 3);
	ck_assert_str_eq(checkpoint_at(checkpoint, 0)->name, "a");
	ck_assert_ptr_null(checkpoint_at(checkpoint, 3));
	ck_assert_ptr_null(checkpoint_gguf(checkpoint));

	ck_assert_int_eq(checkpoint_take(checkpoint, "b", &tensor, &error), STATUS_OK);
	ck_assert_str_eq(tensor->shard, "model.safetensors");
	ck_assert_int_eq(tensor->dtype, CHECKPOINT_U8);
	ck_assert_uint_eq(tensor->bytes, 2);
	ck_assert_int_eq(memcmp(tensor->data, "bb", 2), 0);
	ck_assert_int_eq(checkpoint_take(checkpoint, "b", &tensor, &error), STATUS_INVALID);
	ck_assert(strstr(error.message, "tensor \"b\" is used twice"));
	ck_assert_int_eq(checkpoint_take(checkpoint, "d", &tensor, &error), STATUS_NOT_FOUND);
	ck_assert(strstr(error.message, "tensor \"d\" is missing"));

	ck_assert_int_eq(checkpoint_finish(checkpoint, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "tensor \"a\" (U8)") && strstr(error.message, "2 of 3 tensors are unused"),
	    "%s", error.message);
	ck_assert_ptr_nonnull(checkpoint_find(checkpoint, "a")); /* looking is not taking */
	ck_assert_int_eq(checkpoint_take(checkpoint, "a", &tensor, &error), STATUS_OK);
	ck_assert_int_eq(checkpoint_finish(checkpoint, &error), STATUS_INVALID);
	ck_assert_int_eq(checkpoint_take(checkpoint, "c", &tensor, &error), STATUS_OK);
	ck_assert_int_eq(checkpoint_finish(checkpoint, &error), STATUS_OK);
	checkpoint_close(checkpoint);

	ck_assert_int_eq(checkpoint_open(in_directory("golden.safetensors"), &checkpoint, &error), STATUS_OK);
	ck_assert_str_eq(checkpoint_at(checkpoint, 0)->shard, "golden.safetensors");
	checkpoint_close(checkpoint);
	checkpoint_close(NULL);
}
END_TEST

START_TEST(shapes)
{
	struct checkpoint              *checkpoint = NULL;
	const struct checkpoint_tensor *tensor;
	struct error                    error;
	const uint64_t                  right[] = { 2 }, wrong[] = { 2, 1 }, other[] = { 3 };

	write_shard("model.safetensors", "norm.weight");
	ck_assert_int_eq(checkpoint_open(directory, &checkpoint, &error), STATUS_OK);
	tensor = checkpoint_at(checkpoint, 0);
	ck_assert_int_eq(checkpoint_check_shape(tensor, right, 1, &error), STATUS_OK);
	ck_assert_int_eq(checkpoint_check_shape(tensor, other, 1, &error), STATUS_INVALID);
	ck_assert_str_eq(error.message, "model.safetensors: tensor \"norm.weight\" has the shape [2], [3] is needed");
	ck_assert_int_eq(checkpoint_check_shape(tensor, wrong, 2, &error), STATUS_INVALID);
	ck_assert(strstr(error.message, "has the shape [2], [2, 1] is needed"));
	ck_assert_int_eq(checkpoint_check_shape(tensor, NULL, 0, &error), STATUS_INVALID);
	checkpoint_close(checkpoint);
}
END_TEST

/* The file of a tensor has its bytes where the map has them, and is open as long as the checkpoint. */
static int reads_as_mapped(const struct checkpoint_tensor *tensor)
{
	char bytes[64];

	ck_assert_ptr_nonnull(tensor->map);
	ck_assert_uint_le(tensor->bytes, sizeof bytes);
	ck_assert_int_eq(pread(tensor->map->fd, bytes, tensor->bytes, (const unsigned char *)tensor->data - tensor->map->bytes),
	    (ssize_t)tensor->bytes);
	ck_assert_int_eq(memcmp(bytes, tensor->data, tensor->bytes), 0);
	return tensor->map->fd;
}

START_TEST(shards_with_an_index)
{
	struct checkpoint *checkpoint = NULL;
	struct error       error;
	int                fds[2];

	write_shard(ONE, "b a");
	write_shard(TWO, "c");
	write_text(INDEX, GOOD_INDEX);
	ck_assert_msg(checkpoint_open(directory, &checkpoint, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(checkpoint_count(checkpoint), 3);
	ck_assert_str_eq(checkpoint_find(checkpoint, "a")->shard, ONE);
	ck_assert_str_eq(checkpoint_find(checkpoint, "c")->shard, TWO);
	ck_assert_int_eq(memcmp(checkpoint_find(checkpoint, "c")->data, "cc", 2), 0);
	fds[0] = reads_as_mapped(checkpoint_find(checkpoint, "a"));
	fds[1] = reads_as_mapped(checkpoint_find(checkpoint, "c"));
	ck_assert_int_ne(fds[0], fds[1]);
	checkpoint_close(checkpoint);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(fcntl(fds[i], F_GETFD), -1);
}
END_TEST

/* What lies in the directory, and what the message must name.  NULL: the file is not there. */
static const struct bad {
	const char *one, *two, *single, *index, *words;
} bad_directories[] = {
	{ "a b", NULL, NULL, GOOD_INDEX, TWO " is missing" },
	{ "a b", "c d", NULL, GOOD_INDEX, "tensor \"d\" of " TWO " is not in " INDEX },
	{ "a", "c", NULL, GOOD_INDEX, "tensor \"b\" is not in " ONE ", where " INDEX " says it is" },
	{ "a b c", "c", NULL, GOOD_INDEX, "tensor \"c\" is both in " ONE " and in " TWO },
	{ "a c", "b", NULL, GOOD_INDEX, "tensor \"b\" is in " TWO ", " INDEX " says " ONE },
	{ "a b", "c", "a b c", GOOD_INDEX, "model.safetensors is not in " INDEX ": a stray shard" },
	{ "a b", "c", NULL, "{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" ONE "\"}}", TWO " is not in " INDEX },
	{ "a b", "c", NULL, NULL, ONE " is there, " INDEX " is missing" },
	{ "a b", NULL, "a b", NULL, "model.safetensors and " ONE " are there without " INDEX },
	{ NULL, NULL, NULL, NULL, "neither model.safetensors nor " INDEX " is there" },
	{ NULL, NULL, NULL, GOOD_INDEX, ONE " is missing" },
	{ "a b", "c", NULL, "{\"weight_map\":{}}", "weight_map is missing, empty or no object" },
	{ "a b", "c", NULL, "{\"weight_map\":[]}", "weight_map is missing, empty or no object" },
	{ "a b", "c", NULL, "{}", "weight_map is missing, empty or no object" },
	{ "a b", "c", NULL, "{\"weight_map\":{\"a\":1}}", "tensor \"a\" is in no string" },
	{ "a b", "c", NULL, "{\"weight_map\":{\"a\":\"../x.safetensors\"}}",
	    "tensor \"a\" is in \"../x.safetensors\", no file name" },
	{ "a b", "c", NULL, "{\"weight_map\":{\"a\":\"x.bin\"}}", "no file name *.safetensors" },
	{ "a b", "c", NULL, "{\"weight_map\":{\"a\":\".safetensors\"}}", "no file name *.safetensors" },
	{ "a b", "c", NULL, "{\"weight_map\":{\"a\":\"x\\ny.safetensors\"}}", "no file name *.safetensors" },
	{ "a b", "c", NULL, "{\"weight_map\":{\"a\":\"" ONE "\",\"a\":\"" TWO "\"}}", "duplicate object key" },
	{ "a b", "c", NULL, "", INDEX ": line 1" },
	{ NULL, NULL, "", NULL, "there is no tensor in it" },
};

START_TEST(refuses)
{
	const struct bad  *bad = &bad_directories[_i];
	struct checkpoint *checkpoint = (struct checkpoint *)&bad_directories;
	struct error       error;

	if (bad->one)
		write_shard(ONE, bad->one);
	if (bad->two)
		write_shard(TWO, bad->two);
	if (bad->single)
		write_shard("model.safetensors", bad->single);
	if (bad->index)
		write_text(INDEX, bad->index);
	ck_assert_int_ne(checkpoint_open(directory, &checkpoint, &error), STATUS_OK);
	ck_assert_msg(strstr(error.message, bad->words), "\"%s\" lacks \"%s\"", error.message, bad->words);
	ck_assert_msg(strstr(error.message, directory) && !strchr(error.message, '\n'), "%s", error.message);
	ck_assert_ptr_eq(checkpoint, &bad_directories); /* untouched on failure */
}
END_TEST

START_TEST(names_a_short_shard)
{
	struct checkpoint *checkpoint = NULL;
	struct error       error;

	write_shard(ONE, "a b");
	write_shard(TWO, "c");
	write_text(INDEX, GOOD_INDEX);
	ck_assert_int_eq(truncate(in_directory(ONE), 100), 0);
	ck_assert_int_eq(checkpoint_open(directory, &checkpoint, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, ONE), "%s", error.message);
	ck_assert_int_eq(truncate(in_directory(ONE), 0), 0);
	ck_assert_int_eq(checkpoint_open(directory, &checkpoint, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, ONE ": 0 bytes are no safetensors file"), "%s", error.message);
}
END_TEST

START_TEST(says_what_else_is_there)
{
	struct checkpoint *checkpoint = NULL;
	struct error       error;

	write_text("pytorch_model.bin", "x");
	ck_assert_int_eq(checkpoint_open(directory, &checkpoint, &error), STATUS_NOT_FOUND);
	ck_assert_msg(strstr(error.message, "there is \"pytorch_model.bin\": convert it"), "%s", error.message);
	ck_assert_int_eq(checkpoint_open(in_directory("nowhere"), &checkpoint, &error), STATUS_NOT_FOUND);
	ck_assert_msg(strstr(error.message, "nowhere: No such file"), "%s", error.message);
}
END_TEST

/* ---- GGUF --------------------------------------------------------------------------------------------------------- */

struct writer {
	unsigned char bytes[1 << 14];
	size_t        len;
};

static void put(struct writer *writer, const void *bytes, size_t len)
{
	ck_assert_uint_le(writer->len + len, sizeof writer->bytes);
	memcpy(writer->bytes + writer->len, bytes, len);
	writer->len += len;
}
static void put_u32(struct writer *writer, uint32_t value) { put(writer, &value, 4); }
static void put_u64(struct writer *writer, uint64_t value) { put(writer, &value, 8); }

/* A GGUF with one tensor [3 rows, 512 columns] of every type in TYPES. */
static void write_gguf(const char *name, const enum gguf_type *types, size_t count)
{
	struct writer writer = { .len = 0 };
	uint64_t      offset = 0;

	put(&writer, "GGUF", 4);
	put_u32(&writer, 3);
	put_u64(&writer, count);
	put_u64(&writer, 0);
	for (size_t i = 0; i < count; i++) {
		unsigned elements = 0, bytes = 0;
		char     tensor[24];
		ck_assert(gguf_type_block(types[i], &elements, &bytes));
		snprintf(tensor, sizeof tensor, "t%02zu", i);
		put_u64(&writer, strlen(tensor));
		put(&writer, tensor, strlen(tensor));
		put_u32(&writer, 2);
		put_u64(&writer, 512);
		put_u64(&writer, 3);
		put_u32(&writer, (uint32_t)types[i]);
		put_u64(&writer, offset);
		offset += (3 * 512 / elements * bytes + 31) & ~UINT64_C(31);
	}
	writer.len = (writer.len + 31) & ~(size_t)31;
	write_file(name, writer.bytes, writer.len);
	ck_assert_int_eq(truncate(in_directory(name), (off_t)(writer.len + offset)), 0);
}

START_TEST(views_gguf)
{
	static const enum gguf_type types[] = { GGUF_F32, GGUF_F16, GGUF_Q4_0, GGUF_Q4_1, GGUF_Q5_0, GGUF_Q5_1, GGUF_Q8_0, GGUF_Q2_K,
		GGUF_Q3_K, GGUF_Q4_K, GGUF_Q5_K, GGUF_Q6_K, GGUF_IQ4_NL, GGUF_IQ4_XS, GGUF_BF16 };
	const size_t                count = sizeof types / sizeof types[0];
	const uint64_t              shape[] = { 3, 512 };
	struct checkpoint          *checkpoint = NULL;
	struct error                error;

	write_gguf("any.name", types, count);
	ck_assert_msg(checkpoint_open(in_directory("any.name"), &checkpoint, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(checkpoint_count(checkpoint), count);
	ck_assert_ptr_nonnull(checkpoint_gguf(checkpoint));
	for (size_t i = 0; i < count; i++) {
		const struct checkpoint_tensor *tensor = NULL;
		char                            name[16];
		unsigned                        elements, bytes;
		snprintf(name, sizeof name, "t%02zu", i);
		ck_assert_int_eq(checkpoint_take(checkpoint, name, &tensor, &error), STATUS_OK);
		ck_assert_str_eq(checkpoint_dtype_name(tensor->dtype), gguf_type_name(types[i]));
		ck_assert_msg(checkpoint_check_shape(tensor, shape, 2, &error) == STATUS_OK, "%s", error.message);
		ck_assert(gguf_type_block(types[i], &elements, &bytes));
		ck_assert_uint_eq(tensor->bytes, 3 * 512 / elements * bytes);
		ck_assert_str_eq(tensor->shard, "any.name");
		ck_assert(tensor->map && tensor->map->fd >= 0 && (const unsigned char *)tensor->data > tensor->map->bytes);
	}
	ck_assert_int_eq(checkpoint_finish(checkpoint, &error), STATUS_OK);
	checkpoint_close(checkpoint);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("checkpoint");
	TCase   *tcase = tcase_create("checkpoint");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, single_file_and_ledger);
	tcase_add_test(tcase, shapes);
	tcase_add_test(tcase, shards_with_an_index);
	tcase_add_loop_test(tcase, refuses, 0, sizeof bad_directories / sizeof bad_directories[0]);
	tcase_add_test(tcase, names_a_short_shard);
	tcase_add_test(tcase, says_what_else_is_there);
	tcase_add_test(tcase, views_gguf);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
