/* wire.c: owns what wire.def says about layout: the compile-time proof that no struct has padding, the layout hash, and
 * the check of a record's shape.  Does not own the meaning of values, nor rings.
 * Invariant: what passes wire_check_* has exactly the bytes its type and count explain; no reader needs to bound an
 * array index by anything but `count`. */
#include "ipc/wire.h"

#include "base/hash.h"

#include <stdbool.h>

/* Padding would be bytes nobody wrote: stale memory for the other side to read, and a layout that depends on the
 * compiler. */
#define WIRE(NAME, name, FIELDS) \
	_Static_assert(sizeof(struct wire_##name) == sizeof(struct wire_header) FIELDS, "padding in struct wire_" #name); \
	_Static_assert(sizeof(struct wire_##name) % 8 == 0, "struct wire_" #name " is not a multiple of 8 bytes");
#define F(type, name) +sizeof(type)
#include "ipc/wire.def"
#undef WIRE
#undef F

/* The whole table as text, and its sizes: what the layout hash covers. */
static const char layout_text[] =
#define WIRE(NAME, name, FIELDS) #NAME "{" FIELDS "}"
#define F(type, name) #type " " #name ";"
#include "ipc/wire.def"
#undef WIRE
#undef F
;

static const uint32_t layout_sizes[] = {
	WIRE_VERSION, WIRE_TOKENS_MAX, WIRE_EVENT_IDS_MAX, WIRE_PROMPT_TOKENS_MAX, WIRE_CHOICES_MAX, WIRE_TOP_MAX, WIRE_BIAS_MAX,
	WIRE_STOP_IDS_MAX, WIRE_ALLOWED_IDS_MAX, WIRE_THINK_IDS_MAX,
#define WIRE(NAME, name, FIELDS) sizeof(struct wire_##name),
#define F(type, name)
#include "ipc/wire.def"
#undef WIRE
#undef F
};

uint64_t wire_layout_hash(void)
{
	uint64_t hash = hash_fnv1a(HASH_FNV1A_START, layout_text, sizeof layout_text);

	return hash_fnv1a(hash, layout_sizes, sizeof layout_sizes);
}

static bool header_fits(const struct wire_header *header, size_t bytes)
{
	return bytes >= sizeof *header && header->bytes == bytes && header->reserved == 0;
}

static bool slot_fits(uint32_t slot, uint32_t slot_count, uint32_t generation)
{
	return slot < slot_count && generation != 0;
}

/* COUNT ids follow the FIXED bytes and nothing else does. */
static bool ids_fit(size_t bytes, size_t fixed, uint32_t count, uint32_t count_max)
{
	return count >= 1 && count <= count_max && bytes == fixed + (size_t)count * 4;
}

enum status wire_check_record(const void *buffer, size_t bytes, uint32_t slot_count)
{
	const struct wire_header *header = buffer;
	bool                      fits = false;

	if (!header_fits(header, bytes))
		return STATUS_INVALID;
	switch (header->type) {
	case WIRE_RESERVE: {
		const struct wire_reserve *r = buffer;
		fits = bytes == sizeof *r && slot_fits(r->slot, slot_count, r->generation);
		break;
	}
	case WIRE_SUBMIT: {
		const struct wire_submit *r = buffer;
		fits = bytes == sizeof *r && slot_fits(r->slot, slot_count, r->generation) && r->reserved == 0 &&
		    (r->flags & ~(uint32_t)WIRE_FLAG_ALL) == 0;
		break;
	}
	case WIRE_LIST: {
		const struct wire_list *r = buffer;
		fits = bytes >= sizeof *r && ids_fit(bytes, sizeof *r, r->count, WIRE_TOKENS_MAX) &&
		    slot_fits(r->slot, slot_count, r->generation) && r->kind < WIRE_LIST_COUNT && r->reserved == 0;
		break;
	}
	case WIRE_TOKENS: {
		const struct wire_tokens *r = buffer;
		fits = bytes >= sizeof *r && ids_fit(bytes, sizeof *r, r->count, WIRE_TOKENS_MAX) &&
		    slot_fits(r->slot, slot_count, r->generation) && r->reserved == 0;
		break;
	}
	default:
		break;
	}
	return fits ? STATUS_OK : STATUS_INVALID;
}

enum status wire_check_event(const void *buffer, size_t bytes, uint32_t slot_count)
{
	const struct wire_header *header = buffer;
	bool                      fits = false;

	if (!header_fits(header, bytes))
		return STATUS_INVALID;
	switch (header->type) {
	case WIRE_TOKEN: {
		const struct wire_token *e = buffer;
		fits = bytes >= sizeof *e && e->logprobs <= WIRE_TOP_MAX + 1 &&
		    ids_fit(bytes, sizeof *e, e->count * wire_token_words(e->logprobs), WIRE_EVENT_IDS_MAX) &&
		    slot_fits(e->slot, slot_count, e->generation) && e->choice < WIRE_CHOICES_MAX;
		break;
	}
	case WIRE_END: {
		const struct wire_end *e = buffer;
		fits = bytes == sizeof *e && slot_fits(e->slot, slot_count, e->generation) && e->choice < WIRE_CHOICES_MAX &&
		    e->finish < WIRE_FINISH_COUNT && e->status < STATUS_COUNT;
		break;
	}
	default:
		break;
	}
	return fits ? STATUS_OK : STATUS_INVALID;
}
