/* sim_trace.h: request traces of the simulator: who asks for how many tokens, and when.
 *
 * A trace is CSV with a header line; columns in any order:
 *
 *   column                value                                              missing or empty
 *   arrival_s             seconds, 0 … 10^9; need not be sorted              an error
 *   prompt_tokens         1 … 16,777,216                                     an error
 *   output_tokens         1 … 16,777,216                                     an error
 *   key                   who pays: up to 64 bytes                           one key without a name
 *   class                 a whole number; lower is served first              0
 *   shared_prefix_id      prompts with the same one begin alike: 64 bytes    none
 *   shared_prefix_tokens  so many tokens, at most prompt_tokens              0
 *   cancel_after_s        the client leaves so long after its arrival        never
 *
 * Fields may be quoted ("a ""b"" c"); lines end with LF or CRLF; empty lines are skipped.
 */
#ifndef PENSTOCK_TOOLS_SIM_TRACE_H
#define PENSTOCK_TOOLS_SIM_TRACE_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

enum {
	SIM_REQUESTS_MAX = 1 << 24,
	SIM_TOKENS_MAX = 1 << 24, /* of one prompt, of one answer */
	SIM_NAMES_MAX = 1 << 16,  /* keys, and prefixes */
	SIM_NAME_MAX = 64,        /* bytes of one */
	SIM_LINE_MAX = 4096
};

#define SIM_SECONDS_MAX 1e9
#define SIM_NEVER       UINT64_MAX

struct sim_request {
	uint64_t arrival_ns;
	uint64_t cancel_ns;   /* after its arrival; SIM_NEVER = the client stays */
	uint32_t number;      /* in the order of the file */
	uint32_t key, prefix; /* indices of names; 0 is the empty one */
	uint32_t prompt_tokens, prefix_tokens, output_tokens;
	int32_t  class;
};

/* Names by number, 0 … count − 1. */
struct sim_names {
	char   **names;
	uint32_t count, capacity;
	uint32_t *slots; /* hash table of number + 1 */
	uint32_t slot_count;
};

struct sim_trace {
	struct sim_request *requests; /* by arrival, then number */
	uint32_t            count, capacity;
	struct sim_names    keys, prefixes;
};

/* An empty trace; number 0 of both names is "".  STATUS_NOMEM. */
enum status sim_trace_init(struct sim_trace *trace);
void        sim_trace_free(struct sim_trace *trace);

/* Number of the LEN bytes at NAME, a new one if need be.  STATUS_LIMIT beyond SIM_NAMES_MAX, STATUS_NOMEM. */
enum status sim_names_number(struct sim_names *names, const char *name, size_t len, uint32_t *ret);

/* Appends a copy of *REQUEST and numbers it.  STATUS_LIMIT beyond SIM_REQUESTS_MAX, STATUS_NOMEM. */
enum status sim_trace_append(struct sim_trace *trace, const struct sim_request *request);
/* Puts requests in order; after the last append. */
void sim_trace_sort(struct sim_trace *trace);

/* Reads STREAM to its end into *RET, which must be empty; NAME is for messages, which say line, column, value and limit. */
enum status sim_trace_read(FILE *stream, const char *name, struct sim_trace *ret, struct error *error);
enum status sim_trace_write(const struct sim_trace *trace, FILE *stream);

#endif
