/* bench_products.h: the part of `penstock bench kernels` that compares ways to multiply. */
#ifndef PENSTOCK_TOOLS_BENCH_PRODUCTS_H
#define PENSTOCK_TOOLS_BENCH_PRODUCTS_H

#include "model/backend.h"

#include <stdbool.h>

/* A matrix of a decode step. */
struct bench_product {
	const char            *name;
	struct backend_weight *w;
	uint32_t               rows, columns;
	bool                   to_float;
	double                 weight_bytes; /* of a value */
	bool                   rounds;       /* its inputs are rounded for it */
};

/* Prints, for each product and 1, 4, 8, 16, 32 and 64 rows of x (ROWS > 0: that many only), what the library and the backend's own
 * kernels take, those of weights that want their inputs rounded with that and without (a step's norms and gates do it); SWEEP: the
 * best of all ways that there are below each line.  BANDWIDTH: bytes per second, of which shares are printed; 0: not known.
 * STATUS_UNSUPPORTED: the backend has no ways of its own. */
enum status bench_products(struct backend *b, const struct bench_product *products, uint32_t count, uint32_t rows, double bandwidth,
    bool sweep, struct error *error);

#endif
