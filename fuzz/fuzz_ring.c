/* fuzz_ring.c: a hostile peer on both sides of a ring.  Whatever it writes into the shared words and bytes, and
 * whenever, nothing outside the area or the buffer is touched (a sanitizer sees to that), the private indices stay
 * within one ring of each other, and what passes wire_check_* has the shape that its readers rely on.
 *
 * Input: a list of moves, each one byte and its arguments:
 *   0 tail = u32        1 head = u32        2 bytes: u16 offset, u8 count, then the bytes      3 tail = own + 8 × u16
 *   4 head = own − 8 × u16                  5 read         6 drop        7 write a record of u8 × 8 bytes
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_ring -max_len=4096 CORPUS tests/corpus/ring
 *
 * make check replays tests/corpus/ring through the same function (fuzz/replay.c).
 */
#include "ipc/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { SIZE = RING_SIZE_MIN, SLOTS = 8, BUFFER = 512 };

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

struct input {
	const unsigned char *data;
	size_t               size;
};

/* The next COUNT bytes as a little-endian number; 0 beyond the end. */
static uint32_t take(struct input *in, size_t count)
{
	uint32_t value = 0;

	for (size_t i = 0; i < count && in->size; i++, in->size--)
		value |= (uint32_t)*in->data++ << 8 * i;
	return value;
}

static void check_record(const unsigned char *buffer, size_t bytes)
{
	struct wire_header header;
	struct wire_tokens tokens;

	memcpy(&header, buffer, sizeof header);
	require(header.bytes == bytes, "the header tells another size");
	if (wire_check_record(buffer, bytes, SLOTS) == STATUS_OK) {
		require(header.type == WIRE_RESERVE || header.type == WIRE_SUBMIT || header.type == WIRE_LIST || header.type == WIRE_TOKENS,
		    "type of a record");
		require(wire_check_event(buffer, bytes, SLOTS) != STATUS_OK, "a record and an event");
		if (header.type == WIRE_TOKENS) {
			memcpy(&tokens, buffer, sizeof tokens);
			require(tokens.count <= WIRE_TOKENS_MAX && sizeof tokens + tokens.count * 4 == bytes, "count");
			require(tokens.slot < SLOTS && tokens.generation, "slot");
		}
	}
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct input        in = { data, size };
	struct ring_shared *shared = aligned_alloc(RING_CACHE_LINE, sizeof *shared);
	unsigned char      *area = calloc(1, SIZE), *buffer = aligned_alloc(8, BUFFER);
	struct ring         reader, writer;

	if (!shared || !area || !buffer)
		abort();
	memset(shared, 0, sizeof *shared);
	require(ring_init(&reader, shared, area, SIZE) == STATUS_OK && ring_init(&writer, shared, area, SIZE) == STATUS_OK,
	    "init");
	while (in.size) {
		uint32_t    move = take(&in, 1) % 8, at, count;
		size_t      bytes = 0;
		enum status status;

		switch (move) {
		case 0: atomic_store(&shared->tail, take(&in, 4)); break;
		case 1: atomic_store(&shared->head, take(&in, 4)); break;
		case 2:
			at = take(&in, 2) % SIZE;
			for (count = take(&in, 1); count && in.size; count--)
				area[at++ % SIZE] = (unsigned char)take(&in, 1);
			break;
		case 3: atomic_store(&shared->tail, reader.own + 8 * take(&in, 2)); break;
		case 4: atomic_store(&shared->head, writer.own - 8 * take(&in, 2)); break;
		case 5:
			status = ring_read(&reader, buffer, BUFFER, &bytes);
			require(status == STATUS_OK || status == STATUS_AGAIN || status == STATUS_INVALID, "answer of read");
			require(status == STATUS_OK ? bytes >= 8 && bytes <= BUFFER : bytes == 0, "bytes of read");
			if (status == STATUS_OK)
				check_record(buffer, bytes);
			break;
		case 6: require(ring_drop(&reader) <= SIZE / 8, "dropped more than fits"); break;
		case 7:
			bytes = 8 + 8 * (size_t)(take(&in, 1) % (BUFFER / 8));
			memset(buffer, 0, BUFFER);
			status = ring_write(&writer, buffer, bytes < BUFFER ? bytes : BUFFER, NULL, 0);
			require(status == STATUS_OK || status == STATUS_FULL || status == STATUS_INVALID, "answer of write");
			break;
		}
		require(reader.peer - reader.own <= SIZE && (reader.peer - reader.own) % 8 == 0, "the reader's indices");
		require(writer.own - writer.peer <= SIZE && (writer.own - writer.peer) % 8 == 0, "the writer's indices");
		(void)ring_pending(&reader);
		require(ring_writable(&writer) <= SIZE, "writable");
	}
	free(buffer);
	free(area);
	free(shared);
	return 0;
}
