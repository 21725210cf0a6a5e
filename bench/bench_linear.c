/* bench_linear: how fast the CPU backend multiplies with each stored format.
 *
 *   bench_linear [THREADS [MEGABYTES [FORMAT]]]        default: all processors, 128 MB of weights, all formats
 *
 * Weights [MEGABYTES' worth of rows, 4096] of random bits.  One row of activations reads the weights once: GB/s of the
 * re-packed bytes and the share of what the same threads reach by reading alone.  8 and 64 rows are bound by arithmetic:
 * 10⁹ multiply-adds per second.  Best of some rounds. */
#include "base/clock.h"
#include "cpu/cpu.h"
#include "model/weight.h"
#include "support/random.h"

#include <stdio.h>
#include <stdlib.h>

enum { INPUTS = 4096, ROWS_MAX = 64, ROUNDS = 7, GROUP = 128 };

struct reading {
	const uint8_t *from;
	size_t         piece;
	uint64_t       junk[CPU_THREADS_MAX][8];
};

static void read_pieces(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	struct reading *reading = context;
	const uint64_t *at = (const uint64_t *)(reading->from + first * reading->piece);

	for (size_t i = 0; i < count * reading->piece / 8; i += 8)
		for (int k = 0; k < 8; k++)
			reading->junk[thread][k] ^= at[i + (size_t)k];
}

/* Bytes per second. */
static double read_memory(struct cpu_backend *cpu, size_t bytes)
{
	uint8_t       *area = cpu_pages_alloc(bytes, true);
	struct reading reading = { area, 64 << 10, { { 0 } } };
	uint64_t       best = UINT64_MAX;

	if (!area)
		return 0;
	memset(area, 1, bytes);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t began = clock_now_ns(), took;

		team_run(cpu->team, read_pieces, &reading, (uint32_t)(bytes / reading.piece));
		took = clock_now_ns() - began;
		best = took < best ? took : best;
	}
	cpu_pages_free(area, bytes);
	return (double)bytes * 1e9 / (double)best;
}

static void run_format(struct cpu_backend *cpu, enum weight_format format, size_t bytes, double bandwidth, const float *x,
    float *y)
{
	static const uint32_t  counts[] = { 1, 8, ROWS_MAX };
	struct weight_desc     desc = { .name = weight_format_name(format), .format = format, .columns = INPUTS };
	struct backend_weight *w;
	struct random          random = { 1 };
	struct error           error;
	uint32_t               columns, block_bytes;
	uint8_t               *data, *scales;
	double                 weight_bytes;

	if (!weight_format_block(format, &columns, &block_bytes))
		return;
	desc.rows = bytes / (INPUTS / columns * block_bytes) / FORMAT_TILE * FORMAT_TILE;
	desc.bytes = desc.rows * INPUTS / columns * block_bytes;
	data = malloc(desc.bytes);
	scales = malloc(desc.rows * INPUTS / GROUP * 2);
	for (size_t i = 0; i < desc.bytes / 8; i++) { /* no value too large for a half, no NaN */
		uint64_t bits = random_u64(&random) & UINT64_C(0x3f3f3f3f3f3f3f3f);
		memcpy(data + 8 * i, &bits, 8);
	}
	for (size_t i = 0; i < desc.rows * INPUTS / GROUP; i++)
		memcpy(scales + 2 * i, &(uint16_t){ 0x2000 }, 2);
	desc.data = data;
	if (weight_format_has_scales(format)) {
		desc.scales = (struct weight_scales){ .data = scales, .type = WEIGHT_F16, .block_rows = 1,
			.block_columns = format == WEIGHT_I8 ? 0 : GROUP, .row_blocks = desc.rows,
			.column_blocks = format == WEIGHT_I8 ? 1 : INPUTS / GROUP };
		desc.scales.bytes = desc.scales.row_blocks * desc.scales.column_blocks * 2;
	}
	if (cpu->base.ops->weight_load(&cpu->base, &desc, 1, &w, &error)) {
		printf("%s\n", error.message);
		return;
	}
	weight_bytes = (double)cpu->base.ops->weight_bytes(&cpu->base, w);
	printf("%-8s", desc.name);
	for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
		uint64_t best = UINT64_MAX;

		for (int round = 0; round < (i == 2 ? 2 : ROUNDS); round++) {
			uint64_t began = clock_now_ns(), took;

			cpu_linear(cpu, w, NULL, x, INPUTS, counts[i], y, desc.rows);
			took = clock_now_ns() - began;
			best = took < best ? took : best;
		}
		if (i == 0)
			printf("  %5.1f GB/s %4.0f %%", weight_bytes / (double)best, 100e9 * weight_bytes / (double)best / bandwidth);
		printf("  %2u rows %5.1f", counts[i], (double)counts[i] * (double)desc.rows * INPUTS / (double)best);
		fflush(stdout);
	}
	printf("\n");
	cpu->base.ops->weight_free(&cpu->base, w);
	free(data);
	free(scales);
}

int main(int argc, char **argv)
{
	const struct backend_limits limits = { .rows = ROWS_MAX, .logit_rows = 1, .vocab = 32, .width = INPUTS, .q_heads = 1,
		.head_dim = 32 };
	unsigned        threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	size_t          bytes = (argc > 2 ? strtoul(argv[2], NULL, 10) : 128) << 20;
	struct backend *backend;
	struct error    error;
	double          bandwidth;
	float          *x, *y;

	if (cpu_backend_create(threads, &backend, &error) || backend->ops->scratch_alloc(backend, &limits, &error)) {
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	bandwidth = read_memory((struct cpu_backend *)backend, bytes);
	printf("%s; memory is read at %.1f GB/s\n", backend->ops->describe(backend), bandwidth / 1e9);
	x = malloc(sizeof *x * ROWS_MAX * INPUTS);
	y = malloc(sizeof *y * ROWS_MAX * (bytes / (INPUTS / 4)));
	for (unsigned i = 0; i < ROWS_MAX * INPUTS; i++)
		x[i] = (float)(i % 17) - 8;
	for (int f = 0; f < WEIGHT_FORMAT_COUNT; f++)
		if (argc < 4 || strcmp(argv[3], weight_format_name((enum weight_format)f)) == 0)
			run_format((struct cpu_backend *)backend, (enum weight_format)f, bytes, bandwidth, x, y);
	free(x);
	free(y);
	backend->ops->destroy(backend);
	return 0;
}
