/* random.c: owns the distributions of random.h.  Invariant: a draw depends on the state alone. */
#include "base/random.h"

#include <math.h>

#define TWO_PI 6.283185307179586477

double random_normal(struct random *random)
{
	/* Box and Muller, the first of the pair: 1 − u is in (0, 1], so the logarithm is finite. */
	double radius = sqrt(-2 * log(1 - random_unit(random)));

	return radius * cos(TWO_PI * random_unit(random));
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), for shape ≥ 1; below it
 * gamma(shape) = gamma(shape + 1) × u^(1 / shape). */
double random_gamma(struct random *random, double shape, double scale)
{
	double boost = 1, d, c;

	if (shape < 1) {
		boost = pow(1 - random_unit(random), 1 / shape);
		shape += 1;
	}
	d = shape - 1.0 / 3;
	c = 1 / sqrt(9 * d);
	for (;;) {
		double x = random_normal(random), v = 1 + c * x, u;

		if (v <= 0)
			continue;
		v = v * v * v;
		u = 1 - random_unit(random);
		if (log(u) < 0.5 * x * x + d - d * v + d * log(v))
			return d * v * scale * boost;
	}
}
