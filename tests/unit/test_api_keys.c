/* API keys: what is generated passes, nothing else does; the file survives bad lines, two writers and bad permissions. */
#include "api/keys.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* SHA-256 of "abc" (FIPS 180-4, example). */
#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

static char directory[] = "/tmp/penstock-test-keys-XXXXXX";
static char path[64];

static void setup(void)
{
	strcpy(directory + strlen(directory) - 6, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(directory));
	snprintf(path, sizeof path, "%s/keys", directory);
}

static void teardown(void)
{
	unlink(path);
	ck_assert_int_eq(rmdir(directory), 0); /* no temporary file is left behind */
}

static void write_file(const char *text, size_t len)
{
	FILE *file = fopen(path, "we");

	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(text, 1, len, file), len);
	fclose(file);
	ck_assert_int_eq(chmod(path, 0640), 0);
}

START_TEST(generated_keys_pass)
{
	struct keys *keys = NULL;
	struct error error;
	struct stat  info;
	char         key[3][KEY_TEXT_MAX], id[3][KEY_ID_MAX + 1];
	uint64_t     hash[3] = { 0 }, unknown = 7;
	struct key_limits limits;

	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(keys_new(path, i == 1 ? "" : "a name", NULL, key[i], id[i], &error), STATUS_OK);
		ck_assert_uint_eq(strlen(key[i]), 46);
		ck_assert_int_eq(strncmp(key[i], "sk-", 3), 0);
	}
	ck_assert_int_eq(stat(path, &info), 0);
	ck_assert_uint_eq(info.st_mode & 07777, 0640);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_OK);
	ck_assert_uint_eq(keys_count(keys), 3);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(keys_check(keys, key[i], strlen(key[i]), &hash[i], &limits), STATUS_OK);
	ck_assert(hash[0] && hash[1] && hash[2] && hash[0] != hash[1] && hash[1] != hash[2] && hash[0] != hash[2]);
	for (size_t i = 0; i < strlen(key[0]); i++) {
		char wrong[KEY_TEXT_MAX];

		memcpy(wrong, key[0], sizeof wrong);
		wrong[i] ^= 1;
		ck_assert_int_eq(keys_check(keys, wrong, strlen(wrong), &unknown, &limits), STATUS_UNAUTHORIZED);
		ck_assert_int_eq(keys_check(keys, key[0], i, &unknown, &limits), STATUS_UNAUTHORIZED);
	}
	ck_assert_uint_eq(unknown, 7);
	keys_free(keys);

	ck_assert_int_eq(keys_revoke(path, id[0], &error), STATUS_OK);
	ck_assert_int_eq(keys_revoke(path, id[0], &error), STATUS_NOT_FOUND);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_OK);
	ck_assert_uint_eq(keys_count(keys), 2);
	ck_assert_int_eq(keys_check(keys, key[0], strlen(key[0]), &unknown, &limits), STATUS_UNAUTHORIZED);
	ck_assert_int_eq(keys_check(keys, key[2], strlen(key[2]), &unknown, &limits), STATUS_OK);
	ck_assert_uint_eq(unknown, hash[2]);
	keys_free(keys);
}
END_TEST

START_TEST(known_digest)
{
	static const char text[] = "# a comment\n\nadmin " ABC " 1700000000 the name of it";
	struct keys      *keys = NULL;
	struct error      error;
	uint64_t          id;
	struct key_limits limits;
	char             *list = NULL, key[KEY_TEXT_MAX], new_id[KEY_ID_MAX + 1], line[200];
	size_t            len;
	FILE             *stream;

	write_file(text, sizeof text - 1);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_OK);
	ck_assert_int_eq(keys_check(keys, "abc", 3, &id, &limits), STATUS_OK);
	ck_assert_int_eq(keys_check(keys, "abd", 3, &id, &limits), STATUS_UNAUTHORIZED);
	ck_assert_int_eq(keys_check(keys, "", 0, &id, &limits), STATUS_UNAUTHORIZED);
	keys_free(keys);

	/* Comments and other keys survive a change, a missing newline at the end does no harm. */
	ck_assert_int_eq(keys_new(path, "second", NULL, key, new_id, &error), STATUS_OK);
	stream = open_memstream(&list, &len);
	ck_assert_int_eq(keys_list(path, stream, &error), STATUS_OK);
	fclose(stream);
	ck_assert_ptr_nonnull(strstr(list, "admin         2023-11-14T22:13:20Z  the name of it\n"));
	ck_assert_ptr_nonnull(strstr(list, "  second\n"));
	ck_assert_ptr_null(strstr(list, key));
	free(list);
	FILE *file = fopen(path, "re");
	ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
	ck_assert_str_eq(line, "# a comment\n");
	fclose(file);
}
END_TEST

#define BAD(text, words) { text, sizeof text - 1, words }
static const struct {
	const char *text;
	size_t      len;
	const char *words;
} bad_files[] = {
	BAD("admin\n", ":1: the digest"),
	BAD("\n# x\nadmin " ABC "\n", ":3: the creation time is missing"),
	BAD("admin " ABC " \n", ":1: the creation time must"),
	BAD("admin " ABC " 12x\n", ":1: the creation time must"),
	BAD("admin " ABC " 12;\n", ":1: there is no such setting"),
	BAD("admin " ABC " 12;colour=5\n", ":1: there is no such setting"),
	BAD("admin " ABC " 12;priority\n", ":1: a setting reads"),
	BAD("admin " ABC " 12;priority=\n", ":1: a setting reads"),
	BAD("admin " ABC " 12;priority=5x\n", ":1: a setting reads"),
	BAD("admin " ABC " 12;priority=101 name\n", ":1: the number of a setting"),
	BAD("admin " ABC " 12;max_requests=99999999999999999999\n", ":1: a setting reads"),
	BAD("admin " ABC " 12;ceiling=3;priority=2 name\n", ":1: the ceiling"),
	BAD("admin " ABC " 1234567890123\n", ":1: the creation time must"),
	BAD("admin  " ABC " 1\n", ":1: the digest"),
	BAD("admin BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 1\n", ":1: the digest"),
	BAD("admin ba78 1\n", ":1: the digest"),
	BAD(" admin " ABC " 1\n", ":1: the id"),
	BAD("ad/min " ABC " 1\n", ":1: the id"),
	BAD("abcdefghijklmnopq " ABC " 1\n", ":1: the id"),
	BAD("admin " ABC " 1 a\tb\n", ":1: the name"),
	BAD("admin " ABC " 1 \n", ":1: the name"),
	BAD("admin " ABC " 1\r\n", ":1: the creation time must"),
	BAD("ok " ABC " 1\nadmin " ABC " 1 \0x\n", ":2: the line is longer"),
	BAD("admin " ABC " 1 0123456789012345678901234567890123456789012345678901234567890123456789\n", ":1: the name"),
	BAD("#0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
	    "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
	    "0123456789012345678901234567890123456789012345678901234567890123456789\n", ":1: the line is longer than 256"),
};

START_TEST(bad_lines)
{
	struct keys *keys = (struct keys *)directory;
	struct error error;
	char         key[KEY_TEXT_MAX] = "kept", id[KEY_ID_MAX + 1] = "kept";

	write_file(bad_files[_i].text, bad_files[_i].len);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, bad_files[_i].words), "\"%s\" lacks \"%s\"", error.message, bad_files[_i].words);
	ck_assert_ptr_eq(keys, directory);
	/* A file we cannot read is not replaced by one we can. */
	ck_assert_int_eq(keys_new(path, "n", NULL, key, id, &error), STATUS_INVALID);
	ck_assert_str_eq(key, "kept");
	ck_assert_int_eq(keys_revoke(path, "admin", &error), STATUS_INVALID);
}
END_TEST

/* Settings: written, read back, changed by id and by name; lines without them mean the defaults. */
START_TEST(settings_of_keys)
{
	struct key_changes changes = { .set = { [KEY_SETTING_priority] = true, [KEY_SETTING_max_requests] = true },
		.value = { [KEY_SETTING_priority] = 5, [KEY_SETTING_max_requests] = 3 } };
	struct key_limits  limits;
	struct keys       *keys = NULL;
	struct error       error;
	char               plain[KEY_TEXT_MAX], key[KEY_TEXT_MAX], id[KEY_ID_MAX + 1];
	uint64_t           hash;

	ck_assert_int_eq(keys_new(path, "plain", NULL, plain, id, &error), STATUS_OK);
	ck_assert_int_eq(keys_new(path, "the other one", &changes, key, id, &error), STATUS_OK);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_OK);
	ck_assert_int_eq(keys_check(keys, plain, strlen(plain), &hash, &limits), STATUS_OK);
	ck_assert(limits.priority == 0 && limits.ceiling == 0 && limits.max_requests == 0 && limits.tokens_per_minute == 0);
	ck_assert_int_eq(keys_check(keys, key, strlen(key), &hash, &limits), STATUS_OK);
	ck_assert(limits.priority == 5 && limits.ceiling == 5 && limits.max_requests == 3 && limits.tokens_per_minute == 0);
	ck_assert_uint_eq(hash, keys_hash(id));
	keys_free(keys);

	changes = (struct key_changes){ .set = { [KEY_SETTING_ceiling] = true, [KEY_SETTING_tokens_per_minute] = true },
		.value = { [KEY_SETTING_ceiling] = -7, [KEY_SETTING_tokens_per_minute] = 4000000000 } };
	ck_assert_int_eq(keys_set(path, "the other one", &changes, &error), STATUS_OK);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_OK);
	ck_assert_int_eq(keys_check(keys, key, strlen(key), &hash, &limits), STATUS_OK);
	ck_assert(limits.priority == 5 && limits.ceiling == -7 && limits.max_requests == 3 && limits.tokens_per_minute == 4000000000);
	ck_assert_uint_eq(keys_count(keys), 2);
	keys_free(keys);

	changes.value[KEY_SETTING_ceiling] = 6; /* above its own priority */
	ck_assert_int_eq(keys_set(path, id, &changes, &error), STATUS_INVALID);
	changes.value[KEY_SETTING_ceiling] = -101;
	ck_assert_int_eq(keys_set(path, id, &changes, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "ceiling = -101: outside the allowed range -100…100"), "%s", error.message);
	changes.value[KEY_SETTING_ceiling] = 0;
	ck_assert_int_eq(keys_set(path, "nobody", &changes, &error), STATUS_NOT_FOUND);
	ck_assert_int_eq(keys_set(path, "", &changes, &error), STATUS_INVALID);
	ck_assert_int_eq(keys_new(path, "plain", NULL, plain, id, &error), STATUS_OK);
	ck_assert_int_eq(keys_set(path, "plain", &changes, &error), STATUS_INVALID); /* two of that name */
	ck_assert_int_eq(keys_set(path, id, &changes, &error), STATUS_OK);
}
END_TEST

START_TEST(permissions)
{
	struct keys *keys = NULL;
	struct error error;
	char         key[KEY_TEXT_MAX], id[KEY_ID_MAX + 1];

	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_IO);
	ck_assert_int_eq(keys_revoke(path, "x", &error), STATUS_IO);
	ck_assert_int_ne(access(path, F_OK), 0);
	write_file("", 0);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_OK);
	ck_assert_uint_eq(keys_count(keys), 0);
	keys_free(keys);
	ck_assert_int_eq(chmod(path, 0660), 0);
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "chmod 0640"));
	ck_assert_int_eq(keys_new(path, "", NULL, key, id, &error), STATUS_INVALID);
	ck_assert_int_eq(keys_load(directory, &keys, &error), STATUS_INVALID);
	ck_assert_int_eq(keys_new(path, "a\nb", NULL, key, id, &error), STATUS_INVALID);
	ck_assert_str_eq(error.param, "name");
	ck_assert_int_eq(keys_new("/nonexistent/keys", "", NULL, key, id, &error), STATUS_IO);
}
END_TEST

/* Four processes add keys at once: none is lost. */
START_TEST(writers_do_not_lose_keys)
{
	struct keys *keys = NULL;
	struct error error;
	enum { WRITERS = 4, EACH = 8 };

	for (int w = 0; w < WRITERS; w++) {
		pid_t pid = fork();

		ck_assert_int_ge(pid, 0);
		if (pid == 0) {
			char key[KEY_TEXT_MAX], id[KEY_ID_MAX + 1];
			int  failed = 0;

			for (int i = 0; i < EACH; i++)
				failed |= keys_new(path, "", NULL, key, id, NULL) != STATUS_OK;
			_exit(failed);
		}
	}
	for (int w = 0; w < WRITERS; w++) {
		int result = -1;
		ck_assert_int_gt(wait(&result), 0);
		ck_assert_int_eq(result, 0);
	}
	ck_assert_int_eq(keys_load(path, &keys, &error), STATUS_OK);
	ck_assert_uint_eq(keys_count(keys), WRITERS * EACH);
	keys_free(keys);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("api_keys");
	TCase   *tcase = tcase_create("api_keys");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, generated_keys_pass);
	tcase_add_test(tcase, known_digest);
	tcase_add_loop_test(tcase, bad_lines, 0, sizeof bad_files / sizeof bad_files[0]);
	tcase_add_test(tcase, settings_of_keys);
	tcase_add_test(tcase, permissions);
	tcase_add_test(tcase, writers_do_not_lose_keys);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
