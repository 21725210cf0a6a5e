/* hash.h: FNV-1a, 64 bits: layout hashes and fingerprints.  Not for hash tables fed by strangers. */
#ifndef PENSTOCK_BASE_HASH_H
#define PENSTOCK_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_FNV1A_START UINT64_C(0xcbf29ce484222325)

/* Continues HASH (start with HASH_FNV1A_START) over BYTES. */
static inline uint64_t hash_fnv1a(uint64_t hash, const void *bytes, size_t len)
{
	const unsigned char *p = bytes;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
	return hash;
}

#endif
