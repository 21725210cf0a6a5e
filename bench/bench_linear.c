/* bench_linear: how fast the CPU backend multiplies with each stored format.
 *
 *   bench_linear [-k KERNELS] [THREADS [MEGABYTES [FORMAT]]]
 *
 * Default: the best kernels (generic, avx2, avx512), all processors, 128 MB of weights, all formats; I8 a second time with
 * inputs rounded to int8.  Weights [MEGABYTES' worth of rows, 4096] of random bits.  One row of activations reads the
 * weights once: GB/s of the re-packed bytes and the share of what the same threads reach by reading alone.  8 and 64 rows
 * are bound by arithmetic: 10⁹ multiply-adds per second.  Best of some rounds.  Loading: 10⁶ weights re-packed per
 * second. */
#include "model/weight.h"
#include "read_memory.h"
#include "support/random.h"

#include <stdlib.h>
#include <unistd.h>

enum { INPUTS = 4096, ROWS_MAX = 64, ROUNDS = 7, GROUP = 128 };

static void run_format(struct cpu_backend *cpu, enum weight_format format, enum weight_input input, size_t bytes,
    double bandwidth, const float *x, float *y)
{
	static const uint32_t  counts[] = { 1, 8, ROWS_MAX };
	struct weight_desc     desc = { .name = weight_format_name(format), .format = format, .columns = INPUTS,
	    .input = input };
	struct backend_weight *w;
	struct random          random = { 1 };
	struct error           error;
	uint32_t               columns, block_bytes;
	uint8_t               *data, *scales;
	double                 weight_bytes;
	uint64_t               began;

	if (!weight_format_block(format, &columns, &block_bytes))
		return;
	desc.rows = bytes / (INPUTS / columns * block_bytes) / FORMAT_TILE * FORMAT_TILE;
	desc.bytes = desc.rows * INPUTS / columns * block_bytes;
	data = malloc(desc.bytes);
	scales = malloc(desc.rows * INPUTS / GROUP * 2);
	for (size_t i = 0; i < desc.bytes / 8; i++) { /* no value too large for a half, no NaN, no tiny floats: they are slow */
		uint64_t bits = (random_u64(&random) & UINT64_C(0x3f3f3f3f3f3f3f3f)) |
		    (format == WEIGHT_F32 ? UINT64_C(0x3c0000003c000000) : format == WEIGHT_BF16 ? UINT64_C(0x3c003c003c003c00) : 0);
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
	began = clock_now_ns();
	if (cpu->base.ops->weight_load(&cpu->base, &desc, 1, &w, &error)) {
		printf("%s\n", error.message);
		return;
	}
	printf("%-8s%s load %6.1f M/s", desc.name, input == WEIGHT_INPUT_FLOAT ? " " : "i",
	    (double)desc.rows * INPUTS * 1e3 / (double)(clock_now_ns() - began));
	weight_bytes = (double)cpu->base.ops->weight_bytes(&cpu->base, w);
	for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
		uint64_t best = UINT64_MAX;

		for (int round = 0; round < (i == 2 ? 2 : ROUNDS); round++) {
			uint64_t took;

			began = clock_now_ns();
			cpu_linear(cpu, w, NULL, x, INPUTS, counts[i], y, desc.rows);
			took = clock_now_ns() - began;
			best = took < best ? took : best;
		}
		if (i == 0)
			printf("  %5.1f GB/s %4.0f %%", weight_bytes / (double)best,
			    100e9 * weight_bytes / (double)best / bandwidth);
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
	const struct backend_limits limits = { .rows = ROWS_MAX, .logit_rows = 1, .vocab = 32, .width = INPUTS,
	    .q_heads = 1,
		.head_dim = 32 };
	enum cpu_isa    isa = CPU_ISA_BEST;
	struct backend *backend;
	struct error    error;
	unsigned        threads;
	size_t          bytes;
	double          bandwidth;
	const char     *pattern = "nothing";
	float          *x, *y;

	for (int option; (option = getopt(argc, argv, "k:")) != -1;) {
		for (isa = CPU_ISA_BEST; option == 'k' && isa < CPU_ISA_COUNT && strcmp(optarg, cpu_isa_name(isa)); isa++)
			;
		if (option != 'k' || isa == CPU_ISA_COUNT) {
			fprintf(stderr, "usage: bench_linear [-k generic|avx2|avx512] [THREADS [MEGABYTES [FORMAT]]]\n");
			return 2;
		}
	}
	argv += optind;
	argc -= optind;
	threads = argc > 0 ? (unsigned)strtoul(argv[0], NULL, 10) : 0;
	bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 128) << 20;
	if (cpu_backend_create_isa(threads, isa, &backend, &error) || backend->ops->scratch_alloc(backend, &limits, &error)) {
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	bandwidth = read_memory((struct cpu_backend *)backend, bytes, &pattern);
	printf("%s; memory is read at %.1f GB/s (%s)\n", backend->ops->describe(backend), bandwidth / 1e9, pattern);
	x = malloc(sizeof *x * ROWS_MAX * INPUTS);
	y = malloc(sizeof *y * ROWS_MAX * (bytes / (INPUTS / 4)));
	for (unsigned i = 0; i < ROWS_MAX * INPUTS; i++)
		x[i] = (float)(i % 17) - 8;
	for (int f = 0; f < WEIGHT_FORMAT_COUNT; f++) {
		if (argc > 2 && strcmp(argv[2], weight_format_name((enum weight_format)f)))
			continue;
		run_format((struct cpu_backend *)backend, (enum weight_format)f, WEIGHT_INPUT_FLOAT, bytes, bandwidth, x, y);
		if (f == WEIGHT_I8)
			run_format((struct cpu_backend *)backend, WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, bytes, bandwidth, x, y);
	}
	free(x);
	free(y);
	backend->ops->destroy(backend);
	return 0;
}
