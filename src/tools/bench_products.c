/* bench_products.c: owns the table of ways to multiply.  Does not own matrices, nor how one product is timed (the backend does it:
 * a recording of twelve, over matrices of the same shape).  Invariant: a way that does not suit a product is a dash, not a time. */
#include "tools/bench_products.h"

#include <stdio.h>
#include <string.h>

enum { BEST = 4, WAY_OWN = 0, WAY_LAST = 2 };

struct way {
	char   words[BACKEND_WAY_MAX];
	double seconds;
};

static void print_time(double seconds, double floor)
{
	if (seconds > 0 && floor > 0)
		printf(" %9.2f %5.1f %%", seconds * 1e6, 100 * floor / seconds);
	else if (seconds > 0)
		printf(" %9.2f %7s", seconds * 1e6, "-");
	else
		printf(" %9s %7s", "-", "-");
}

/* Keeps BEST, fastest first. */
static void remember(struct way best[BEST], const struct way *way)
{
	int at = BEST;

	while (at > 0 && (best[at - 1].seconds <= 0 || way->seconds < best[at - 1].seconds))
		at--;
	if (at == BEST)
		return;
	memmove(&best[at + 1], &best[at], (size_t)(BEST - 1 - at) * sizeof *best);
	best[at] = *way;
}

/* All ways, or those three that stand in the table. */
static enum status try_ways(struct backend *b, const struct bench_product *p, uint32_t rows, bool sweep, double ret[3],
    struct way best[BEST])
{
	for (uint32_t i = 0; sweep || i <= WAY_LAST; i++) {
		struct way  way = { .seconds = 0 };
		enum status status = b->ops->product_way(b, p->w, rows, p->to_float, i, way.words, &way.seconds);

		if (status == STATUS_NOT_FOUND)
			break;
		if (status == STATUS_UNSUPPORTED)
			continue;
		if (status)
			return status;
		if (i <= WAY_LAST)
			ret[i] = way.seconds;
		remember(best, &way);
	}
	return STATUS_OK;
}

static enum status one(struct backend *b, const struct bench_product *p, uint32_t rows, double bandwidth, bool sweep)
{
	struct way  best[BEST] = { { .seconds = 0 } };
	double      floor = bandwidth > 0 ? (double)p->rows * p->columns * p->weight_bytes / bandwidth : 0;
	double      library = 0, own[3] = { 0, 0, 0 };
	enum status status = b->ops->library ? b->ops->library(b, p->w, rows, p->to_float, &library) : STATUS_NOT_FOUND;

	if (!status || status == STATUS_NOT_FOUND)
		status = try_ways(b, p, rows, sweep, own, best);
	if (status)
		return status;
	printf("%-16s %6u x %-6u %4u", p->name, p->rows, p->columns, rows);
	print_time(library, floor);
	for (int i = WAY_OWN; i <= WAY_LAST; i++)
		print_time(own[i], floor);
	printf("\n");
	for (int i = 0; i < BEST && sweep && best[i].seconds > 0; i++) {
		printf("    %-62s", best[i].words);
		print_time(best[i].seconds, floor);
		printf("\n");
	}
	fflush(stdout);
	return STATUS_OK;
}

enum status bench_products(struct backend *b, const struct bench_product *products, uint32_t count, uint32_t rows, double bandwidth,
    bool sweep, struct error *error)
{
	static const uint32_t sizes[] = { 1, 4, 8, 16, 32, 64 };
	enum status           status = STATUS_OK;

	if (!b->ops->product_way)
		return error_set(error, STATUS_UNSUPPORTED, "the backend %s has no kernels to choose among", b->ops->name);
	printf("%-16s %-15s %4s %17s %17s %17s %17s\n", "product", "outputs, inputs", "rows", "library us", "own us", "dependent us",
	    count && products->rounds ? "rounded before us" : "portable us");
	for (uint32_t i = 0; i < count && !status; i++)
		for (size_t r = 0; r < (rows ? 1 : sizeof sizes / sizeof *sizes) && !status; r++)
			status = one(b, &products[i], rows ? rows : sizes[r], bandwidth, sweep);
	return status ? error_set(error, status, "a product: %s", status_text(status)) : STATUS_OK;
}
