/* sim_generate.h: traces made up from distributions. */
#ifndef PENSTOCK_TOOLS_SIM_GENERATE_H
#define PENSTOCK_TOOLS_SIM_GENERATE_H

#include "tools/sim_trace.h"

#include <stdbool.h>

enum sim_arrivals { SIM_POISSON, SIM_GAMMA, SIM_ON_OFF, SIM_AT_ONCE };

/* A log-normal number of tokens, cut to 1 … SIM_TOKENS_MAX. */
struct sim_length {
	double median, sigma;
};

struct sim_generate {
	enum sim_arrivals arrivals;
	uint32_t requests;
	uint64_t seed;
	double   rate;              /* requests a second, on average */
	double   burst;             /* gamma: squared coefficient of variation; on-off: share of the time that is on */
	struct sim_length prompt, output;
	double   long_share;        /* of the requests */
	struct sim_length long_prompt;
	uint32_t keys, classes;     /* k1 … kN; 0 … N − 1, evenly */
	double   key_skew;          /* key i comes with weight i^−skew */
	uint32_t prefixes;          /* p1 … pN, evenly; 0 = none */
	double   prefix_tokens;     /* added to the prompt */
	double   cancel_share, cancel_s; /* of the requests; mean (exponential) */
};

enum { SIM_GENERATE_NAMES_MAX = 10000 }; /* keys, prefixes */

/* Values that go by NAME (poisson, bursty, onoff, chat, mix, backlog); false when it is none. */
bool sim_generate_preset(const char *name, struct sim_generate *ret);

/* Fills *RET, which must be empty.  The same options give the same trace; every column has random numbers of its own. */
enum status sim_generate(const struct sim_generate *options, struct sim_trace *ret, struct error *error);

#endif
