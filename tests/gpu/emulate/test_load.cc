/* The device's side of loading (load.cu) on a made-up runtime, in whose streams chance decides what runs when, with real threads:
 * weights are what the file means whatever the order, nothing is read or given back too early, and a call that fails anywhere
 * ends the load with words and without leaks. */
#define LOAD_BUFFER_BYTES 1024
#define LOAD_SLOT_BYTES 4096
#include "expect.h"
#include "gpu/load.cu"

#include "gpu/decode.cuh"
#include "support/stored.h"

enum { SEEDS = 12 };

/* ---- What load.cu has from the rest ---- */

enum status cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what)
{
	if (code == cudaSuccess || cuda->fault)
		return cuda->fault;
	cuda->fault = code == cudaErrorMemoryAllocation ? STATUS_NOMEM : STATUS_INTERNAL;
	error_set(&cuda->fault_error, cuda->fault, "error %d at %s", (int)code, what);
	return cuda->fault;
}

/* ---- A layout ---- */

/* float32 rows [rows][columns], in a kernel that runs whenever its stream has its turn. */
static cudaError_t place(struct cuda_backend *cuda, struct backend_weight *w, const struct stored_piece *piece)
{
	struct stored_piece p = *piece;
	float              *to = (float *)w->data;
	uint32_t            columns = w->columns;

	runtime_launch(cuda->stream, [=] {
		bool scaled = decode_is_scaled(p.format);

		for (uint32_t r = 0; r < p.rows; r++)
			for (uint32_t k = 0; k < p.columns; k++) {
				uint32_t row = p.corner_row + p.first_row + r, column = p.corner_column + p.first_column + k;
				uint32_t group = scaled ? decode_group(p, column) : 0;

				to[(size_t)(p.stack_row + p.first_row + r) * columns + p.first_column + k] = decode_value(p, row, column,
				    scaled ? decode_scale(p, row, group) : 1, p.format == WEIGHT_I4 ? decode_zero(p, row, group) : 0);
			}
	});
	return cudaSuccess;
}

static uint8_t *straight(const struct cuda_backend *, const struct backend_weight *w, const struct weight_desc *part,
    uint32_t stack_row)
{
	return part->format == WEIGHT_F32 ? (uint8_t *)w->data + (size_t)stack_row * w->columns * sizeof(float) : NULL;
}

static struct weight_layout layout;

/* ---- Loading ---- */

static struct cuda_backend *make_backend(void)
{
	static cudaStream_t  stream = runtime_stream_make(), copies = runtime_stream_make();
	struct cuda_backend *cuda = (struct cuda_backend *)calloc(1, sizeof *cuda);

	cuda->stream = stream;
	cuda->copies = copies;
	return cuda;
}

static void drop_backend(struct cuda_backend *cuda)
{
	load_destroy(cuda);
	free(cuda);
}

struct loaded {
	struct backend_weight w;
	enum status           status;
	struct error          error;
};

static struct loaded load_stack(struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	struct loaded l = {};

	for (uint32_t i = 0; i < count; i++)
		l.w.rows += (uint32_t)parts[i].rows;
	l.w.columns = (uint32_t)parts[0].columns;
	l.w.layout = &layout;
	if (cudaMalloc((void **)&l.w.data, (size_t)l.w.rows * l.w.columns * sizeof(float)))
		l.status = STATUS_NOMEM;
	else
		l.status = load_matrix(cuda, &l.w, parts, count, &l.error);
	return l;
}

/* Values that differ, when the stream has come so far. */
static unsigned differences(struct cuda_backend *cuda, const struct loaded *l, const struct weight_desc *parts, uint32_t count)
{
	std::vector<float> row(l->w.columns);
	const float       *got = (const float *)l->w.data;
	unsigned           different = 0;

	cudaStreamSynchronize(cuda->stream); /* only this one: what copies are under way must not be missed */
	for (uint32_t i = 0; i < count; i++)
		for (uint64_t r = 0; r < parts[i].rows; r++, got += l->w.columns) {
			weight_read_row(&parts[i], r, row.data());
			different += memcmp(got, row.data(), l->w.columns * sizeof(float)) != 0;
		}
	return different;
}

/* One after the other, without waiting between them, as a model is loaded. */
static void loads(uint64_t seed)
{
	static const struct stored_case big[] = {
		{ .format = WEIGHT_F8_E4M3, .rows = 150, .columns = 200, .scale_type = WEIGHT_F32, .block_rows = 16, .block_columns = 32 },
		{ .format = WEIGHT_F32, .rows = 60, .columns = 200 }, { .format = WEIGHT_BF16, .rows = 90, .columns = 200 } };
	static const struct stored_case turns[] = {
		{ .format = WEIGHT_I8, .rows = 78, .columns = 200, .scale_type = WEIGHT_F32, .block_rows = 1 },
		{ .format = WEIGHT_I8, .rows = 12, .columns = 200, .scale_type = WEIGHT_F32, .block_rows = 1 } };
	struct cuda_backend              *cuda = make_backend();
	std::vector<struct stored_matrix> made;
	std::vector<struct loaded>        all;

	runtime_reset(seed, 0, cudaSuccess);
	for (unsigned i = 0; i < STORED_CASES; i++)
		made.push_back(stored_make(&stored_cases[i], seed + i));
	for (unsigned i = 0; i < 24; i++) /* four pieces and one, in turns: slots alone would not keep scales apart */
		made.push_back(stored_make(&turns[i % 2], seed * 5 + i));
	for (unsigned i = 0; i < 24; i++) /* runs of the same, so that what belongs to one meets the next but one */
		made.push_back(stored_make(&big[i / 8], seed * 7 + i));
	for (size_t i = 0; i < made.size(); i++)
		all.push_back(load_stack(cuda, &made[i].w, 1));
	struct weight_desc stack[] = { made[made.size() - 1].w, made[made.size() - 9].w, made[made.size() - 24].w };
	struct loaded      stacked = load_stack(cuda, stack, 3);
	for (size_t i = 0; i < made.size(); i++) {
		expect(all[i].status == STATUS_OK, "seed %d, matrix %zu: %s", (int)seed, i, all[i].error.message);
		expect(differences(cuda, &all[i], &made[i].w, 1) == 0, "seed %d, matrix %zu: values differ", (int)seed, i);
		cudaFree(all[i].w.data);
	}
	expect(differences(cuda, &stacked, stack, 3) == 0, "seed %d: values of a stack differ", (int)seed);
	cudaFree(stacked.w.data);
	load_destroy(cuda);
	expect(cuda->uploaded.fill_ns && cuda->uploaded.link_ns && cuda->uploaded.place_ns && cuda->uploaded.threads &&
	    cuda->uploaded.on_device, "seed %d: stages were not counted", (int)seed);
	for (struct stored_matrix &m : made)
		free(m.bytes);
	drop_backend(cuda);
}

/* Read as soon as the compute stream has come so far. */
static void at_once(uint64_t seed)
{
	static const struct stored_case c = { .format = WEIGHT_F32, .rows = 60, .columns = 200 };
	struct cuda_backend            *cuda = make_backend();
	struct stored_matrix            m = stored_make(&c, seed);

	runtime_reset(seed, 0, cudaSuccess);
	for (unsigned i = 0; i < 4; i++) {
		struct loaded l = load_stack(cuda, &m.w, 1);

		expect(differences(cuda, &l, &m.w, 1) == 0, "seed %d: values differ when they are read at once", (int)seed);
		cudaStreamSynchronize(cuda->copies);
		cudaFree(l.w.data);
	}
	free(m.bytes);
	drop_backend(cuda);
}

/* Call AT fails. */
static bool fails(unsigned at)
{
	static const struct stored_case c = { .format = WEIGHT_I8, .rows = 60, .columns = 200, .scale_type = WEIGHT_F32,
		.block_rows = 1 };
	struct cuda_backend *cuda = make_backend();
	struct stored_matrix m = stored_make(&c, at);
	bool                 failed;

	runtime_reset(at, at, cudaErrorUnknown);
	struct loaded l = load_stack(cuda, &m.w, 1);
	runtime_reset(at, 0, cudaSuccess);
	failed = l.status != STATUS_OK;
	expect(!failed || !l.w.data || l.error.message[0], "call %u: no words", at);
	expect(failed || differences(cuda, &l, &m.w, 1) == 0, "call %u: values differ", at);
	if (failed && !cuda->fault && l.w.data) { /* there was no memory: now there is */
		struct loaded again = load_stack(cuda, &m.w, 1);

		expect(again.status == STATUS_OK && differences(cuda, &again, &m.w, 1) == 0, "call %u: not loaded when there is memory",
		    at);
		cudaStreamSynchronize(cuda->copies);
		cudaFree(again.w.data);
	}
	cudaStreamSynchronize(cuda->copies);
	cudaStreamSynchronize(cuda->stream);
	cudaFree(l.w.data);
	drop_backend(cuda);
	free(m.bytes);
	expect(runtime_leaks() == 0, "call %u: %u things were not given back", at, runtime_leaks());
	return failed;
}

int main(void)
{
	unsigned at = 1, failed = 0;

	SKIP_UNDER_THREAD_SANITIZER;
	layout.row_unit = 1;
	layout.column_unit = 8;
	layout.place = place;
	layout.straight = straight;
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		loads(seed), at_once(seed);
	expect(runtime_leaks() == 0, "%u things were not given back", runtime_leaks());
	while (at < 2000 && fails(at)) {
		failed++;
		at += at < 40 ? 1 : 17;
	}
	expect(failed > 40, "only %u calls failed", failed);
	expect(runtime_errors() == 0, "%u errors of the runtime", runtime_errors());
	return finish("load");
}
