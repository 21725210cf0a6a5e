/* The choice of a CUDA device, on machines that the test makes up: no driver, an old one, no device, several, one that no
 * binary fits, one without memory. */
#include "gpu/choose.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { NO_BINARY = 209, LOST = 999 };

/* What the driver of the test says; a table of functions has no room for a context. */
static struct machine {
	int      driver, devices, usable, failing;
	uint64_t available;
} machine;

static int versions(int *ret_driver, int *ret_runtime)
{
	*ret_driver = machine.driver;
	*ret_runtime = 13000;
	return machine.failing;
}

static int count(int *ret)
{
	*ret = machine.devices;
	return 0;
}

static int device(int index, struct choose_device *ret)
{
	static const char *const uuids[] = { "GPU-0a1b0000-1111-2222-3333-444444444444", "GPU-0a1b5555-1111-2222-3333-444444444444",
		"GPU-77770000-1111-2222-3333-444444444444" };

	*ret = (struct choose_device){ .name = "NVIDIA Test", .major = 9, .minor = index, .multiprocessors = 132 };
	strcpy(ret->uuid, uuids[index]);
	return 0;
}

static int memory(int index, uint64_t *ret_free, uint64_t *ret_total)
{
	(void)index;
	*ret_free = machine.available;
	*ret_total = UINT64_C(141) << 30;
	return 0;
}

static int         usable(int index) { return (void)index, machine.usable; }
static const char *failed(int code) { return code == NO_BINARY ? "no kernel image is available" : "unknown error"; }

static const struct choose_driver driver = { versions, count, device, memory, usable, failed };

static void reset(void) { machine = (struct machine){ 13000, 3, 0, 0, UINT64_C(100) << 30 }; }

static int choose(const char *wanted, enum status expected, const char *words)
{
	struct choose_device found;
	struct error         error = { .message = "" };
	int                  index = -1;
	enum status          status = choose_device(&driver, wanted, "sm_80, sm_90a", UINT64_C(1) << 30, &index, &found, &error);

	ck_assert_msg(status == expected, "%s: %s %s", wanted, status_name(status), error.message);
	if (status)
		ck_assert_msg(strstr(error.message, words) != NULL, "%s lacks %s", error.message, words);
	else
		ck_assert_str_eq(found.name, "NVIDIA Test");
	return index;
}

START_TEST(chosen)
{
	reset();
	ck_assert_int_eq(choose("", STATUS_OK, ""), 0);
	ck_assert_int_eq(choose("0", STATUS_OK, ""), 0);
	ck_assert_int_eq(choose("2", STATUS_OK, ""), 2);
	ck_assert_int_eq(choose("GPU-0a1b5555-1111-2222-3333-444444444444", STATUS_OK, ""), 1);
	ck_assert_int_eq(choose("gpu-7777", STATUS_OK, ""), 2);
	ck_assert_int_eq(choose("0A1B5", STATUS_OK, ""), 1);
}
END_TEST

START_TEST(refused)
{
	reset();
	choose("3", STATUS_NOT_FOUND, "2: NVIDIA Test GPU-77770000");
	choose("-1", STATUS_NOT_FOUND, "no such device");
	choose("GPU-0a1b", STATUS_NOT_FOUND, "several UUIDs begin so");
	choose("nothing", STATUS_NOT_FOUND, "no such device");
	machine.driver = 0;
	choose("", STATUS_UNAVAILABLE, "no CUDA driver");
	machine.driver = 12080;
	choose("", STATUS_UNAVAILABLE, "supports CUDA 12.8, this object was built for 13.0");
	reset();
	machine.devices = 0;
	choose("", STATUS_UNAVAILABLE, "no CUDA device");
	reset();
	machine.usable = NO_BINARY;
	choose("", STATUS_UNSUPPORTED, "compute capability 9.0; this object was built for sm_80, sm_90a: no kernel image");
	reset();
	machine.available = UINT64_C(300) << 20;
	choose("", STATUS_NOMEM, "300 MiB of 144384 MiB are free, 1024 MiB are needed");
	reset();
	machine.failing = LOST;
	choose("", STATUS_UNAVAILABLE, "unknown error");
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("choice of a device");
	TCase   *tcase = tcase_create("choice");
	SRunner *runner = srunner_create(suite);
	int      broken;

	tcase_add_test(tcase, chosen);
	tcase_add_test(tcase, refused);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	broken = srunner_ntests_failed(runner);
	srunner_free(runner);
	return broken ? EXIT_FAILURE : EXIT_SUCCESS;
}
