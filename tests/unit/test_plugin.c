/* The loadable CUDA object: its entry point is found, versioned, and refuses with words where it cannot compute. */
#include "model/plugin.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(plugin_enters)
{
	struct plugin        *plugin = NULL;
	struct plugin_options options = { .device = "" };
	struct backend       *backend = NULL;
	struct error          error;

	ck_assert_msg(plugin_open(PLUGIN_PATH, &plugin, &error) == STATUS_OK, "%s", error.message);
	ck_assert_str_eq(plugin_entry_of(plugin)->name, "cuda");
	ck_assert_int_ne(plugin_entry_of(plugin)->create(&options, &backend, &error), STATUS_OK);
	ck_assert_uint_gt(strlen(error.message), 0);
	ck_assert_ptr_null(backend);
	plugin_close(plugin);
}
END_TEST

START_TEST(plugin_refuses_words)
{
	static const struct plugin_options wrong[] = { { "", "", "fast" }, { "", "float8", "auto" } };
	static const char *const           says[] = { "kernels fast: auto, library, own or portable", "dtype float8" };
	struct plugin                     *plugin = NULL;
	struct backend                    *backend = NULL;
	struct error                       error;

	ck_assert_msg(plugin_open(PLUGIN_PATH, &plugin, &error) == STATUS_OK, "%s", error.message);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		ck_assert_int_eq(plugin_entry_of(plugin)->create(&wrong[i], &backend, &error), STATUS_INVALID);
		ck_assert_msg(strstr(error.message, says[i]) != NULL, "%s", error.message);
		ck_assert_ptr_null(backend);
	}
	plugin_close(plugin);
}
END_TEST

START_TEST(plugin_refuses)
{
	struct plugin *plugin = NULL;
	struct error   error;

	ck_assert_int_eq(plugin_open("/nonexistent/penstock-cuda.so", &plugin, &error), STATUS_NOT_FOUND);
	ck_assert_int_eq(plugin_open("/etc/passwd", &plugin, &error), STATUS_INVALID);
	ck_assert_int_eq(plugin_open("libm.so.6", &plugin, &error), STATUS_NOT_FOUND);
	ck_assert_ptr_null(plugin);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("plugin");
	TCase   *tcase = tcase_create("plugin");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, plugin_enters);
	tcase_add_test(tcase, plugin_refuses_words);
	tcase_add_test(tcase, plugin_refuses);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
