/* Stored matrices on their way to a device that tests make up: what arrives, in which order, and what becomes of errors.  The
 * device is as late as it may be: copies happen when somebody waits for them, and not before. */
#include "file/map.h"
#include "gpu/upload.h"
#include "support/stored.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum { BUFFER = 64 << 10, SLOT = 4096, LANES = 4, PENDING_MAX = 1 << 14, POISON = 0xee, BROKEN = 77 };

struct pending {
	unsigned       lane, buffer;
	uint8_t       *to;
	const uint8_t *from;
	size_t         bytes;
};

/* The device. */
struct world {
	const struct weight_desc *w;
	struct upload_memory      memory;
	struct uploader          *uploader;
	pthread_mutex_t           lock;
	struct pending           *pending;
	size_t                    begin, end;
	unsigned                  calls, break_at; /* of the device; 0: none breaks */
	int                       opened[UPLOAD_SLOTS];
	uint8_t                  *covered; /* [rows][columns]: how often */
	unsigned                  pieces, order_errors;
	uint32_t                  stack_row;
	size_t                    cut_bytes;
	uint32_t                  unit;
};

static struct world world;

static int call(struct world *wo)
{
	wo->calls++;
	return wo->break_at && wo->calls >= wo->break_at ? BROKEN : 0;
}

/* Copies up to and including the last of BUFFER, or all. */
static void run_copies(struct world *wo, int all, unsigned lane, unsigned buffer)
{
	size_t last = all ? wo->end : wo->begin;

	for (size_t i = wo->begin; i < wo->end && !all; i++)
		if (wo->pending[i].lane == lane && wo->pending[i].buffer == buffer)
			last = i + 1;
	for (; wo->begin < last; wo->begin++)
		memcpy(wo->pending[wo->begin].to, wo->pending[wo->begin].from, wo->pending[wo->begin].bytes);
}

static int wait_buffer(void *context, unsigned lane, unsigned buffer)
{
	struct world *wo = context;
	int           code;

	pthread_mutex_lock(&wo->lock);
	code = call(wo);
	run_copies(wo, 0, lane, buffer);
	memset(wo->memory.buffers[lane][buffer], POISON, BUFFER);
	pthread_mutex_unlock(&wo->lock);
	return code;
}

static int copy_buffer(void *context, unsigned lane, unsigned buffer, uint8_t *to, size_t bytes)
{
	struct world *wo = context;
	int           code;

	pthread_mutex_lock(&wo->lock);
	code = call(wo);
	ck_assert_uint_lt(wo->end, PENDING_MAX);
	wo->pending[wo->end++] = (struct pending){ lane, buffer, to, wo->memory.buffers[lane][buffer], bytes };
	pthread_mutex_unlock(&wo->lock);
	return code;
}

static int open_slot(void *context, unsigned slot)
{
	struct world *wo = context;
	int           code;

	pthread_mutex_lock(&wo->lock);
	code = call(wo);
	wo->order_errors += wo->opened[slot];
	wo->opened[slot] = 1;
	pthread_mutex_unlock(&wo->lock);
	return code;
}

static unsigned nibble_of(const struct stored_piece *p, uint32_t row, uint32_t column)
{
	static const uint8_t awq[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
	uint64_t outer = p->packing == WEIGHT_PACKED_AWQ ? column : p->packing == WEIGHT_PACKED_GPTQ ? column / 8 : row;
	uint64_t inner = p->packing == WEIGHT_PACKED_AWQ ? row / 8 : p->packing == WEIGHT_PACKED_GPTQ ? row : column / 8;
	uint32_t word;

	memcpy(&word, p->values + (outer - p->first_line) * p->pitch + (inner - p->first_unit) * 4, 4);
	return word >> 4 * (p->packing == WEIGHT_PACKED_AWQ ? awq[row % 8] : column % 8) & 0xf;
}

/* Every value of the piece is that of the matrix. */
static void check_piece(struct world *wo, const struct stored_piece *p)
{
	const struct weight_desc *w = wo->w;
	uint32_t                  columns = 1, bytes = 1, wrong = 0;

	weight_format_block(w->format, &columns, &bytes);
	ck_assert_uint_le(p->first_row + p->rows, w->rows);
	ck_assert_uint_le(p->first_column + p->columns, w->columns);
	ck_assert_uint_eq(p->stack_row, wo->stack_row);
	ck_assert(p->first_row % wo->unit == 0 && p->first_column % wo->unit == 0);
	for (uint32_t r = p->first_row; r < p->first_row + p->rows; r++) {
		uint32_t row = (uint32_t)w->first_row + r;

		for (uint32_t k = p->first_column; k < p->first_column + p->columns; k++) {
			uint8_t q;

			wo->covered[r * w->columns + k]++;
			if (w->format != WEIGHT_I4)
				continue;
			weight_read_column(w, r, 1, k, &q);
			wrong += nibble_of(p, row, (uint32_t)w->first_column + k) != q;
		}
		if (w->format != WEIGHT_I4)
			wrong += memcmp(weight_row(w, r), p->values + (row - p->first_line) * p->pitch +
			    (w->first_column / columns - p->first_unit) * bytes, w->columns / columns * bytes) != 0;
	}
	ck_assert_uint_eq(wrong, 0);
	ck_assert_int_eq(p->scales != NULL, w->scales.data != NULL);
	ck_assert_int_eq(p->zeros != NULL, w->zeros.packing != WEIGHT_ZEROS_NONE);
	ck_assert_int_eq(p->index != NULL, w->group_index != NULL);
	ck_assert(!p->scales || memcmp(p->scales, w->scales.data, w->scales.bytes) == 0);
	ck_assert(!p->zeros || memcmp(p->zeros, w->zeros.data, w->zeros.bytes) == 0);
	ck_assert(!p->index || memcmp(p->index, w->group_index, 4 * weight_stored_columns(w)) == 0);
}

static int place_slot(void *context, unsigned slot, const struct stored_piece *piece)
{
	struct world *wo = context;
	int           code;

	pthread_mutex_lock(&wo->lock);
	code = call(wo);
	run_copies(wo, 1, 0, 0);
	wo->order_errors += !wo->opened[slot] || piece->values != wo->memory.slots[slot];
	wo->opened[slot] = 0;
	wo->pieces++;
	if (!code)
		check_piece(wo, piece);
	memset(wo->memory.slots[slot], POISON, SLOT);
	pthread_mutex_unlock(&wo->lock);
	return code;
}

static void setup(void)
{
	const struct upload_device device = { &world, wait_buffer, copy_buffer, open_slot, place_slot };

	memset(&world, 0, sizeof world);
	pthread_mutex_init(&world.lock, NULL);
	world.pending = malloc(PENDING_MAX * sizeof *world.pending);
	world.memory.lanes = LANES;
	world.memory.buffer_bytes = BUFFER;
	world.memory.slot_bytes = SLOT;
	for (unsigned i = 0; i < LANES * UPLOAD_BUFFERS; i++)
		world.memory.buffers[i / UPLOAD_BUFFERS][i % UPLOAD_BUFFERS] = malloc(BUFFER);
	for (unsigned i = 0; i < UPLOAD_SLOTS; i++)
		world.memory.slots[i] = malloc(SLOT);
	ck_assert_int_eq(upload_create(&device, &world.memory, &world.uploader), STATUS_OK);
	ck_assert_uint_eq(upload_lanes(world.uploader), LANES);
}

static void teardown(void)
{
	upload_free(world.uploader);
	for (unsigned i = 0; i < LANES * UPLOAD_BUFFERS; i++)
		free(world.memory.buffers[i / UPLOAD_BUFFERS][i % UPLOAD_BUFFERS]);
	for (unsigned i = 0; i < UPLOAD_SLOTS; i++)
		free(world.memory.slots[i]);
	free(world.pending);
	pthread_mutex_destroy(&world.lock);
}

/* Brings W over in pieces of at most CUT bytes; says what upload_matrix did. */
static enum status bring(const struct weight_desc *w, size_t cut_bytes, uint32_t unit, uint8_t *straight, int *ret_code,
    struct error *error)
{
	struct stored_cut cut;
	uint8_t          *sides;
	enum status       status = stored_plan(w, cut_bytes, unit, unit, &cut, error);

	*ret_code = 0;
	if (status)
		return status;
	world.w = w;
	world.begin = world.end = world.pieces = world.order_errors = 0;
	world.unit = unit;
	world.stack_row = 5;
	memset(world.opened, 0, sizeof world.opened);
	free(world.covered);
	world.covered = calloc(w->rows * w->columns, 1);
	sides = malloc(cut.side_total + 1);
	memset(sides, POISON, cut.side_total + 1);
	status = upload_matrix(world.uploader, &cut, world.stack_row, sides, straight, ret_code, error);
	run_copies(&world, 1, 0, 0);
	if (!status && !straight) {
		size_t once = 0;

		for (size_t i = 0; i < w->rows * w->columns; i++)
			once += world.covered[i] == 1;
		ck_assert_uint_eq(world.pieces, cut.pieces);
		ck_assert_uint_eq(once, w->rows * w->columns);
	}
	ck_assert(status || world.order_errors == 0);
	free(sides);
	free(world.covered);
	world.covered = NULL;
	return status;
}

START_TEST(every_value_arrives)
{
	struct stored_matrix m = stored_make(&stored_cases[_i], 7 + (unsigned)_i);
	static const size_t  cuts[] = { SLOT, 1100, 600 };
	struct error         error;
	char                 name[96];
	int                  code;

	ck_assert_msg(weight_check(&m.w, &error) == STATUS_OK, "%s", error.message);
	for (unsigned i = 0; i < sizeof cuts / sizeof *cuts; i++)
		for (uint32_t unit = 1; unit <= 8; unit *= 8) {
			enum status status = bring(&m.w, cuts[i], unit, NULL, &code, &error);

			ck_assert_msg(status == STATUS_OK || (status == STATUS_LIMIT && i > 0), "%s in %zu: %s",
			    stored_name(&stored_cases[_i], name), cuts[i], error.message);
		}
	free(m.bytes);
}
END_TEST

/* Many pieces, many chunks, every slot used again and again; the same from a file that is open. */
static const struct stored_case large = { .format = WEIGHT_F8_E4M3, .rows = 300, .columns = 1000, .scale_type = WEIGHT_F32,
	.block_rows = 128, .block_columns = 128 };

static void write_file(char *path, const struct stored_matrix *m, size_t size)
{
	int fd;

	strcpy(path, "/tmp/penstock-test-upload-XXXXXX");
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, m->bytes, size), (ssize_t)size);
	close(fd);
}

static void rebase(struct stored_matrix *m, const struct map *map)
{
	m->w.map = map;
	m->w.data = map->bytes + ((const uint8_t *)m->w.data - m->bytes);
	m->w.scales.data = map->bytes + ((const uint8_t *)m->w.scales.data - m->bytes);
}

START_TEST(many_pieces)
{
	struct stored_matrix m = stored_make(&large, 3), mapped = m;
	struct error         error;
	struct map           map;
	char                 path[64];
	int                  code;

	ck_assert_int_eq(bring(&m.w, SLOT, 1, NULL, &code, &error), STATUS_OK);
	write_file(path, &m, m.size);
	ck_assert_int_eq(map_open(path, SIZE_MAX, &map, &error), STATUS_OK);
	ck_assert_int_ge(map.fd, 0);
	rebase(&mapped, &map);
	ck_assert_int_eq(bring(&mapped.w, SLOT, 1, NULL, &code, &error), STATUS_OK);
	/* Read again and again, so that threads meet in many orders. */
	for (unsigned i = 0; i < 20; i++)
		ck_assert_int_eq(bring(&mapped.w, 1000 + 100 * i, 1, NULL, &code, &error), STATUS_OK);
	map_close(&map);
	unlink(path);
	free(m.bytes);
}
END_TEST

START_TEST(straight)
{
	static const struct stored_case cases[] = { { .format = WEIGHT_BF16, .rows = 100, .columns = 256 },
		{ .format = WEIGHT_BF16, .rows = 90, .columns = 128, .more_rows = 10, .more_columns = 128, .first_row = 7,
			.first_column = 64 } };

	for (unsigned i = 0; i < 2; i++) {
		struct stored_matrix m = stored_make(&cases[i], 5);
		size_t               row = m.w.columns * 2;
		uint8_t             *to = malloc(m.w.rows * row);
		struct error         error;
		int                  code;

		memset(to, POISON, m.w.rows * row);
		ck_assert_int_eq(bring(&m.w, SLOT, 1, to, &code, &error), STATUS_OK);
		ck_assert_uint_eq(world.pieces, 0);
		for (uint64_t r = 0; r < m.w.rows; r++)
			ck_assert_int_eq(memcmp(to + r * row, weight_row(&m.w, r), row), 0);
		free(to);
		free(m.bytes);
	}
}
END_TEST

START_TEST(a_short_file)
{
	struct stored_matrix m = stored_make(&large, 3);
	struct error         error;
	struct map           map;
	char                 path[64];
	int                  code;

	write_file(path, &m, m.size);
	ck_assert_int_eq(map_open(path, SIZE_MAX, &map, &error), STATUS_OK);
	ck_assert_int_eq(truncate(path, 200000), 0);
	m.w.map = &map;
	m.w.data = map.bytes + ((const uint8_t *)m.w.data - m.bytes); /* scales stay in memory */
	ck_assert_int_eq(bring(&m.w, SLOT, 1, NULL, &code, &error), STATUS_IO);
	ck_assert_str_eq(error.message, "w: the file has become shorter while it was read");
	ck_assert_int_eq(code, 0);
	map_close(&map);
	unlink(path);
	free(m.bytes);
}
END_TEST

START_TEST(reading_fails)
{
	struct stored_matrix m = stored_make(&large, 3);
	struct map           map = { m.bytes, m.size, open("/proc/self/mem", 0) };
	struct error         error;
	int                  code;

	m.w.map = &map;
	ck_assert_int_ge(map.fd, 0);
	ck_assert_int_eq(bring(&m.w, SLOT, 1, NULL, &code, &error), STATUS_IO);
	ck_assert_str_eq(error.message, "w: reading failed: Input/output error");
	close(map.fd);
	free(m.bytes);
}
END_TEST

/* Whichever call to the device breaks, everybody comes back, and the next matrix arrives. */
START_TEST(the_device_breaks)
{
	struct stored_matrix m = stored_make(&large, 3);
	struct error         error;
	int                  code;

	for (unsigned at = 1; at < 200; at += 7) {
		world.calls = 0;
		world.break_at = at;
		ck_assert_int_eq(bring(&m.w, SLOT, 1, NULL, &code, &error), STATUS_INTERNAL);
		ck_assert_int_eq(code, BROKEN);
		world.break_at = 0;
		ck_assert_int_eq(bring(&m.w, SLOT, 1, NULL, &code, &error), STATUS_OK);
	}
	free(m.bytes);
}
END_TEST

START_TEST(limits_are_named)
{
	struct stored_matrix m = stored_make(&large, 3);
	struct error         error;
	int                  code;

	ck_assert_int_eq(bring(&m.w, 999, 1, NULL, &code, &error), STATUS_LIMIT);
	ck_assert_str_eq(error.message, "w: 1 rows of 1000 bytes in a piece of 999 bytes");
	ck_assert_int_eq(bring(&m.w, 4000, 8, NULL, &code, &error), STATUS_LIMIT);
	ck_assert_str_eq(error.message, "w: 8 rows of 1000 bytes in a piece of 4000 bytes");
	free(m.bytes);
}
END_TEST

START_TEST(work_is_counted)
{
	struct stored_matrix m = stored_make(&large, 3);
	struct upload_work   work;
	struct error         error;
	int                  code;

	ck_assert_int_eq(bring(&m.w, SLOT, 1, NULL, &code, &error), STATUS_OK);
	work = upload_take_work(world.uploader);
	ck_assert(work.read_ns > 0 && work.wait_ns > 0);
	work = upload_take_work(world.uploader);
	ck_assert(work.read_ns == 0 && work.wait_ns == 0);
	free(m.bytes);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("gpu_upload");
	TCase   *tcase = tcase_create("upload");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 60);
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_loop_test(tcase, every_value_arrives, 0, STORED_CASES);
	tcase_add_test(tcase, many_pieces);
	tcase_add_test(tcase, straight);
	tcase_add_test(tcase, a_short_file);
	tcase_add_test(tcase, reading_fails);
	tcase_add_test(tcase, the_device_breaks);
	tcase_add_test(tcase, limits_are_named);
	tcase_add_test(tcase, work_is_counted);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
