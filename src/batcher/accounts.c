/* accounts.c: owns what keys have running and have used.  Does not own their limits (the key file does) nor the decision what
 * to do about a full one.  Invariants: level ≤ tokens_limit; an account with requests is never given to another key. */
#include "batcher/accounts.h"

#include "base/clock.h"

#include <stdbool.h>
#include <stdlib.h>

enum { MINUTE_S = 60 };

enum status accounts_init(struct accounts *accounts)
{
	accounts->entries = calloc(ACCOUNTS_MAX, sizeof *accounts->entries);
	return accounts->entries ? STATUS_OK : STATUS_NOMEM;
}

void accounts_free(struct accounts *accounts)
{
	free(accounts->entries);
	accounts->entries = NULL;
}

static double rate_per_ns(const struct account *account)
{
	return (double)account->tokens_limit / ((double)MINUTE_S * (double)CLOCK_NS_PER_S);
}

static void fill(struct account *account, uint64_t now_ns)
{
	if (now_ns > account->updated_ns) {
		account->level += rate_per_ns(account) * (double)(now_ns - account->updated_ns);
		account->updated_ns = now_ns;
	}
	if (account->level > account->tokens_limit)
		account->level = account->tokens_limit;
}

/* Nobody misses it: it has nothing running and its bucket is full again. */
static bool forgotten(struct account *account, uint64_t now_ns)
{
	if (account->key == 0)
		return true;
	if (account->requests > 0)
		return false;
	fill(account, now_ns);
	return account->level >= account->tokens_limit;
}

struct account *accounts_find(struct accounts *accounts, uint64_t key, uint32_t tokens_limit, uint64_t now_ns)
{
	struct account *vacant = NULL, *account = NULL;

	for (unsigned i = 0; i < ACCOUNTS_PROBES; i++) {
		struct account *entry = &accounts->entries[(key + i) % ACCOUNTS_MAX];

		if (entry->key == key) {
			account = entry;
			break;
		}
		if (!vacant && forgotten(entry, now_ns))
			vacant = entry;
		if (entry->key == 0)
			break; /* it cannot be further on: entries are reused, never emptied */
	}
	if (!account && vacant) {
		account = vacant;
		*account = (struct account){ .key = key, .tokens_limit = tokens_limit, .level = tokens_limit, .updated_ns = now_ns };
	}
	if (!account)
		return NULL;
	if (account->tokens_limit != tokens_limit) { /* the key file has changed: a longer minute begins full, a shorter one is cut */
		account->level += (double)tokens_limit - (double)account->tokens_limit;
		account->tokens_limit = tokens_limit;
	}
	fill(account, now_ns);
	return account;
}

enum status accounts_check(const struct account *account, uint32_t requests_limit, uint64_t tokens, uint64_t *ret_wait_ns)
{
	double wanted = (double)tokens;

	if (requests_limit && account->requests >= requests_limit)
		return STATUS_KEY_REQUESTS;
	if (wanted > account->tokens_limit)
		wanted = account->tokens_limit;
	if (account->tokens_limit == 0 || account->level >= wanted)
		return STATUS_OK;
	*ret_wait_ns = (uint64_t)((wanted - account->level) / rate_per_ns(account));
	return STATUS_KEY_TOKENS;
}

void accounts_join(struct account *account, uint64_t tokens)
{
	account->requests++;
	account->level -= (double)tokens;
}

void accounts_correct(struct account *account, int64_t change, uint64_t now_ns)
{
	fill(account, now_ns);
	account->level -= (double)change;
	fill(account, now_ns); /* never more than full */
}

void accounts_leave(struct account *account) { account->requests--; }
