/* wire.h: the structs of wire.def.  No pointers, no self-describing formats; every field is range-checked by its
 * reader after it was copied out of the ring (a lane's bytes are hostile).
 */
#ifndef PENSTOCK_IPC_WIRE_H
#define PENSTOCK_IPC_WIRE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* First 8 bytes of everything in a ring. */
struct wire_header {
	uint32_t bytes; /* of the whole record with header and ids; the ring rounds the stored size up to 8 */
	uint16_t type;  /* enum wire_type */
	uint16_t reserved;
};

enum wire_type {
	WIRE_NONE,
#define WIRE(NAME, name, FIELDS) WIRE_##NAME,
#define F(type, name)
#include "ipc/wire.def"
#undef WIRE
#undef F
	WIRE_COUNT
};

#define WIRE(NAME, name, FIELDS) struct wire_##name { struct wire_header header; FIELDS };
#define F(type, name) type name;
#include "ipc/wire.def"
#undef WIRE
#undef F

enum {
	WIRE_TOKENS_MAX = 2048,           /* ids in one TOKENS record: 8 KB */
	WIRE_EVENT_IDS_MAX = 64,          /* words in one TOKEN event */
	WIRE_TOP_MAX = 20,                /* pairs of a token's log probabilities */
	WIRE_BIAS_MAX = 1024,
	WIRE_STOP_IDS_MAX = 64,
	WIRE_ALLOWED_IDS_MAX = 1024,
	WIRE_THINK_IDS_MAX = 16,          /* that open or close a thought */
	WIRE_PROMPT_TOKENS_MAX = 1 << 20, /* of one request */
	WIRE_CHOICES_MAX = 16,
	WIRE_PRIORITY_MAX = 100,
	WIRE_RECORD_MAX = (int)sizeof(struct wire_tokens) + WIRE_TOKENS_MAX * 4,
	WIRE_EVENT_MAX = (int)sizeof(struct wire_token) + WIRE_EVENT_IDS_MAX * 4 /* ≥ sizeof(struct wire_end) */
};

/* The LIST records, in this order between SUBMIT and TOKENS. */
enum wire_list_kind { WIRE_LIST_BIAS, WIRE_LIST_STOP_IDS, WIRE_LIST_ALLOWED_IDS, WIRE_LIST_THINK_OPEN, WIRE_LIST_THINK_CLOSE,
	WIRE_LIST_COUNT };

/* Words of one token in a TOKEN event. */
static inline uint32_t wire_token_words(uint32_t logprobs) { return logprobs ? 2 * logprobs : 1; }

/* Why a choice ended. */
enum wire_finish { WIRE_FINISH_STOP, WIRE_FINISH_LENGTH, WIRE_FINISH_CANCELLED, WIRE_FINISH_ERROR, WIRE_FINISH_COUNT };

enum { WIRE_FLAG_IGNORE_EOS = 1 << 0, WIRE_FLAG_ALL = (1 << 1) - 1 };

/* FNV-1a over names, types and sizes of the whole table and WIRE_VERSION: differs whenever the layout does. */
uint64_t wire_layout_hash(void);
enum { WIRE_VERSION = 5 };

/* Does a record (front → batcher) or an event (batcher → front) of BYTES bytes, already copied to private memory, have
 * the shape its type demands: a known type of the right direction, header.bytes = BYTES, a count within its limit that
 * explains the size exactly, reserved fields 0, a generation other than 0, and a slot below SLOT_COUNT?  STATUS_OK or
 * STATUS_INVALID.  What the values mean (a sequence of offsets, a temperature) is for the reader to judge.
 * BUFFER is 8-byte aligned. */
enum status wire_check_record(const void *buffer, size_t bytes, uint32_t slot_count);
enum status wire_check_event(const void *buffer, size_t bytes, uint32_t slot_count);

/* What a record of BYTES bytes takes up in a ring. */
static inline uint32_t wire_stored_bytes(uint32_t bytes) { return (bytes + 7) & ~UINT32_C(7); }

#endif
