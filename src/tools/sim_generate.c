/* sim_generate.c: owns the distributions of generated traces.  Does not own the format.
 *
 * Invariant: each column draws from a stream of its own, so that a trace with other lengths has the same arrivals. */
#include "tools/sim_generate.h"

#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ON_S 10.0 /* mean length of a burst of on-off arrivals */

enum { STREAM_ARRIVAL, STREAM_PROMPT, STREAM_OUTPUT, STREAM_LONG, STREAM_KEY, STREAM_CLASS, STREAM_PREFIX, STREAM_CANCEL,
    STREAM_COUNT };

static const struct preset {
	const char         *name;
	struct sim_generate values;
} presets[] = {
	{ "poisson", { .arrivals = SIM_POISSON, .prompt = { 256, 0.5 }, .output = { 128, 0.5 }, .keys = 1 } },
	{ "bursty", { .arrivals = SIM_GAMMA, .burst = 8, .prompt = { 256, 0.5 }, .output = { 128, 0.5 }, .keys = 1 } },
	{ "onoff", { .arrivals = SIM_ON_OFF, .burst = 0.3, .prompt = { 256, 0.5 }, .output = { 128, 0.5 }, .keys = 1 } },
	{ "chat",
	    { .arrivals = SIM_POISSON, .prompt = { 400, 1.1 }, .output = { 180, 0.9 }, .keys = 20, .key_skew = 1, .classes = 2,
	        .prefixes = 4, .prefix_tokens = 400, .cancel_share = 0.05, .cancel_s = 5 } },
	{ "mix",
	    { .arrivals = SIM_POISSON, .prompt = { 400, 0.8 }, .output = { 150, 0.8 }, .long_share = 0.05,
	        .long_prompt = { 32768, 0.4 }, .keys = 4 } },
	{ "backlog", { .arrivals = SIM_AT_ONCE, .prompt = { 400, 0.8 }, .output = { 150, 0.8 }, .keys = 2, .key_skew = 2 } },
};

bool sim_generate_preset(const char *name, struct sim_generate *ret)
{
	for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
		if (strcmp(presets[i].name, name) == 0) {
			*ret = presets[i].values;
			ret->requests = 10000;
			ret->rate = 10;
			ret->seed = 1;
			if (!ret->classes)
				ret->classes = 1;
			if (ret->long_prompt.median == 0)
				ret->long_prompt = (struct sim_length){ 32768, 0.4 };
			return true;
		}
	return false;
}

static double draw_length(struct random *random, struct sim_length length)
{
	double tokens = length.median * exp(length.sigma * random_normal(random));

	return tokens < 1 ? 1 : tokens > SIM_TOKENS_MAX ? SIM_TOKENS_MAX : floor(tokens);
}

/* Seconds until the next request; *ON is what is left of the burst. */
static double draw_gap(const struct sim_generate *options, struct random *random, double *on)
{
	double gap, busy;

	switch (options->arrivals) {
	case SIM_POISSON:
		return random_gamma(random, 1, 1 / options->rate);
	case SIM_GAMMA:
		return random_gamma(random, 1 / options->burst, options->burst / options->rate);
	case SIM_AT_ONCE:
		return 0;
	case SIM_ON_OFF:
		break;
	}
	busy = gap = random_gamma(random, 1, options->burst / options->rate); /* time that is on */
	while (busy > *on) {
		busy -= *on;
		gap += random_gamma(random, 1, ON_S * (1 - options->burst) / options->burst);
		*on = random_gamma(random, 1, ON_S);
	}
	*on -= busy;
	return gap;
}

/* Numbers of N names PREFIX1 … PREFIXn. */
static enum status make_names(struct sim_names *names, char prefix, uint32_t n, uint32_t **ret)
{
	uint32_t   *numbers = calloc(n + 1, sizeof *numbers);
	enum status status = numbers ? STATUS_OK : STATUS_NOMEM;

	for (uint32_t i = 0; i < n && !status; i++) {
		char name[SIM_NAME_MAX];
		int  len = snprintf(name, sizeof name, "%c%u", prefix, i + 1);
		status = sim_names_number(names, name, (size_t)len, &numbers[i]);
	}
	if (status) {
		free(numbers);
		return status;
	}
	*ret = numbers;
	return STATUS_OK;
}

/* cumulative[i] = weight of keys 0 … i. */
static double *key_weights(const struct sim_generate *options)
{
	double *cumulative = calloc(options->keys, sizeof *cumulative), sum = 0;

	for (uint32_t i = 0; cumulative && i < options->keys; i++)
		cumulative[i] = sum += pow(i + 1, -options->key_skew);
	return cumulative;
}

static uint32_t draw_key(const struct sim_generate *options, const double *cumulative, struct random *random)
{
	double   at = random_unit(random) * cumulative[options->keys - 1];
	uint32_t low = 0, high = options->keys - 1;

	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (cumulative[middle] > at)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

enum status sim_generate(const struct sim_generate *options, struct sim_trace *ret, struct error *error)
{
	struct random random[STREAM_COUNT];
	uint32_t     *keys = NULL, *prefixes = NULL;
	double       *weights = key_weights(options), now_s = 0, on = 0;
	enum status   status = weights ? STATUS_OK : STATUS_NOMEM;

	for (unsigned i = 0; i < STREAM_COUNT; i++)
		random[i] = random_stream(options->seed, i);
	if (!status)
		status = make_names(&ret->keys, 'k', options->keys, &keys);
	if (!status)
		status = make_names(&ret->prefixes, 'p', options->prefixes, &prefixes);
	for (uint32_t i = 0; i < options->requests && !status; i++) {
		bool   is_long = random_unit(&random[STREAM_LONG]) < options->long_share;
		double prompt = draw_length(&random[STREAM_PROMPT], is_long ? options->long_prompt : options->prompt);
		struct sim_request request = { .cancel_ns = SIM_NEVER };

		now_s += draw_gap(options, &random[STREAM_ARRIVAL], &on);
		if (now_s > SIM_SECONDS_MAX) {
			status = error_set(error, STATUS_LIMIT,
			    "request %u of %u would arrive after %g s, the limit; a higher --rate is needed", i + 1,
			    options->requests, SIM_SECONDS_MAX);
			break;
		}
		request.arrival_ns = (uint64_t)llround(now_s * 1e9);
		request.key = keys[draw_key(options, weights, &random[STREAM_KEY])];
		request.class = (int32_t)random_below(&random[STREAM_CLASS], options->classes);
		if (options->prefixes && options->prefix_tokens >= 1 && prompt + options->prefix_tokens <= SIM_TOKENS_MAX) {
			request.prefix = prefixes[random_below(&random[STREAM_PREFIX], options->prefixes)];
			request.prefix_tokens = (uint32_t)options->prefix_tokens;
			prompt += request.prefix_tokens;
		}
		request.prompt_tokens = (uint32_t)prompt;
		request.output_tokens = (uint32_t)draw_length(&random[STREAM_OUTPUT], options->output);
		if (random_unit(&random[STREAM_CANCEL]) < options->cancel_share)
			request.cancel_ns = (uint64_t)llround(random_gamma(&random[STREAM_CANCEL], 1, options->cancel_s) * 1e9);
		status = sim_trace_append(ret, &request);
	}
	free(weights);
	free(keys);
	free(prefixes);
	if (status == STATUS_NOMEM)
		return error_set(error, status, "no memory for a trace of %u requests", options->requests);
	return status;
}
