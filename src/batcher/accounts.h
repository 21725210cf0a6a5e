/* accounts.h: what each API key has running and has used lately, for the limits that came with its reservations.
 *
 * Fronts are many, so the sums are kept here: a front says of every reservation whose it is and what that key may.  Tokens
 * are a bucket that holds a minute's worth and fills evenly:
 *
 *   level ≤ limit, + limit / 60 s;  a reservation takes its estimate, the end gives back what was not used or takes the rest
 *
 * A request that alone exceeds the limit is let through when the bucket is full, which it then overdraws.  One thread at a
 * time (admission.c holds its lock).
 */
#ifndef PENSTOCK_BATCHER_ACCOUNTS_H
#define PENSTOCK_BATCHER_ACCOUNTS_H

#include "base/status.h"

#include <stdint.h>

enum {
	ACCOUNTS_MAX = 1 << 17, /* twice as many as a key file may hold; only those in use take memory */
	ACCOUNTS_PROBES = 64
};

struct account {
	uint64_t key; /* 0 = free */
	uint32_t requests, tokens_limit;
	double   level; /* tokens */
	uint64_t updated_ns;
};

struct accounts {
	struct account *entries; /* [ACCOUNTS_MAX] */
};

enum status accounts_init(struct accounts *accounts);
void        accounts_free(struct accounts *accounts);

/* The account of KEY, whose bucket holds TOKENS_LIMIT (0 = no bucket), filled up to NOW_NS.  NULL when there is no room, which
 * honest fronts cannot bring about.  It stays where it is while it has requests. */
struct account *accounts_find(struct accounts *accounts, uint64_t key, uint32_t tokens_limit, uint64_t now_ns);

/* May a request of TOKENS join REQUESTS_LIMIT (0 = none)?  STATUS_OK, STATUS_KEY_REQUESTS or STATUS_KEY_TOKENS; the latter
 * with *ret_wait_ns until the bucket holds enough. */
enum status accounts_check(const struct account *account, uint32_t requests_limit, uint64_t tokens, uint64_t *ret_wait_ns);

void accounts_join(struct account *account, uint64_t tokens);
/* CHANGE more tokens (or fewer) are used than was said before. */
void accounts_correct(struct account *account, int64_t change, uint64_t now_ns);
void accounts_leave(struct account *account);

#endif
