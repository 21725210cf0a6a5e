/* Unit tests of src/ipc: the ring and the shape of records, with an honest peer and with a hostile one. */
#include "ipc/ring.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = RING_SIZE_MIN };

/* Both sides of one ring.  The area ends at a page nobody may touch, and starts after one. */
struct pair {
	struct ring_shared *shared;
	unsigned char      *data;
	struct ring         producer, consumer;
};

static struct pair make_pair(uint32_t start)
{
	size_t         page = (size_t)sysconf(_SC_PAGESIZE), area = SIZE > page ? SIZE : page;
	unsigned char *map = mmap(NULL, area + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pair    p = { .shared = aligned_alloc(RING_CACHE_LINE, sizeof *p.shared) };

	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_int_eq(mprotect(map + page, area, PROT_READ | PROT_WRITE), 0);
	p.data = map + page + area - SIZE;
	memset(p.shared, 0, sizeof *p.shared);
	ck_assert_int_eq(ring_init(&p.producer, p.shared, p.data, SIZE), STATUS_OK);
	ck_assert_int_eq(ring_init(&p.consumer, p.shared, p.data, SIZE), STATUS_OK);
	/* A ring that has moved START bytes already. */
	p.producer.own = p.producer.peer = p.consumer.own = p.consumer.peer = start;
	p.shared->tail = p.shared->head = start;
	return p;
}

static void free_pair(struct pair *p)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), area = SIZE > page ? SIZE : page;

	munmap(p->data + SIZE - area - page, area + 2 * page);
	free(p->shared);
}

/* One record of 8 + COUNT × 4 bytes whose ids are FIRST, FIRST + 1, … */
static enum status put(struct ring *ring, uint32_t first, size_t count)
{
	struct wire_header header = { .type = 7 };
	uint32_t           ids[SIZE / 4];

	for (size_t i = 0; i < count; i++)
		ids[i] = first + (uint32_t)i;
	return ring_write(ring, &header, sizeof header, ids, count * 4);
}

static bool is_record(const unsigned char *buffer, size_t bytes, uint32_t first, size_t count)
{
	struct wire_header header;
	uint32_t           id;

	memcpy(&header, buffer, sizeof header);
	if (bytes != sizeof header + count * 4 || header.bytes != bytes || header.type != 7)
		return false;
	for (size_t i = 0; i < count; i++) {
		memcpy(&id, buffer + sizeof header + i * 4, 4);
		if (id != first + i)
			return false;
	}
	return true;
}

START_TEST(init_refuses)
{
	struct ring_shared shared = { 0 };
	struct ring        ring;
	char               data[8];

	ck_assert_int_eq(ring_init(&ring, &shared, data, 0), STATUS_INVALID);
	ck_assert_int_eq(ring_init(&ring, &shared, data, RING_SIZE_MIN / 2), STATUS_INVALID);
	ck_assert_int_eq(ring_init(&ring, &shared, data, RING_SIZE_MIN + 8), STATUS_INVALID);
	ck_assert_int_eq(ring_init(&ring, &shared, data, UINT32_C(1) << 31), STATUS_INVALID);
}
END_TEST

START_TEST(empty_and_full)
{
	struct pair   p = make_pair(0);
	_Alignas(8) unsigned char buffer[SIZE];
	size_t        bytes = 99;

	ck_assert_int_eq(ring_read(&p.consumer, buffer, sizeof buffer, &bytes), STATUS_AGAIN);
	ck_assert_uint_eq(bytes, 99); /* untouched */
	ck_assert(!ring_pending(&p.consumer) && !ring_pending_seq_cst(&p.consumer));
	ck_assert_uint_eq(ring_writable(&p.producer), SIZE);
	for (unsigned i = 0; i < SIZE / 16; i++)
		ck_assert_int_eq(put(&p.producer, i, 2), STATUS_OK);
	ck_assert_uint_eq(ring_writable(&p.producer), 0);
	ck_assert_int_eq(put(&p.producer, 0, 0), STATUS_FULL);
	ck_assert(ring_pending(&p.consumer) && ring_pending_seq_cst(&p.consumer));
	for (unsigned i = 0; i < SIZE / 16; i++) {
		ck_assert_int_eq(ring_read(&p.consumer, buffer, sizeof buffer, &bytes), STATUS_OK);
		ck_assert(is_record(buffer, bytes, i, 2));
	}
	ck_assert_int_eq(ring_read(&p.consumer, buffer, sizeof buffer, &bytes), STATUS_AGAIN);
	/* One record that fills the ring exactly, and one that never fits. */
	ck_assert_int_eq(put(&p.producer, 5, SIZE / 4 - 2), STATUS_OK);
	ck_assert_int_eq(ring_read(&p.consumer, buffer, sizeof buffer, &bytes), STATUS_OK);
	ck_assert(is_record(buffer, bytes, 5, SIZE / 4 - 2));
	ck_assert_int_eq(put(&p.producer, 5, SIZE / 4 - 1), STATUS_LIMIT);
	ck_assert_int_eq(ring_write(&p.producer, buffer, 4, NULL, 0), STATUS_LIMIT);
	ck_assert_int_eq(ring_write(&p.producer, buffer, 8, NULL, SIZE_MAX), STATUS_LIMIT);
	ck_assert_int_eq(ring_write(&p.producer, buffer, SIZE_MAX, NULL, SIZE_MAX), STATUS_LIMIT);
	free_pair(&p);
}
END_TEST

/* Random sizes, random fill, indices that pass 2^32: each record once, whole, in order. */
START_TEST(wraps_at_2_to_32)
{
	struct pair p = make_pair(UINT32_MAX - 3 * SIZE - 7); /* 7 less than a multiple of 8: 2^32 − 3 × size − 8 */
	_Alignas(8) unsigned char buffer[SIZE];
	size_t   sizes[64 * 1024], bytes;
	uint32_t written = 0, read = 0, wrong = 0;
	bool     wrapped = false;

	srand(1);
	while (written < 60000) {
		for (int burst = rand() % 40; burst >= 0; burst--) {
			size_t      count = (size_t)rand() % (rand() % 20 ? 12 : 900);
			enum status status = put(&p.producer, written, count);
			wrong += status != STATUS_OK && status != STATUS_FULL;
			if (status == STATUS_OK)
				sizes[written++] = count;
		}
		for (int burst = rand() % 40; burst >= 0 && read < written; burst--) {
			wrong += ring_read(&p.consumer, buffer, sizeof buffer, &bytes) != STATUS_OK;
			wrong += !is_record(buffer, bytes, read, sizes[read]);
			read++;
		}
		wrapped |= p.producer.own < UINT32_MAX / 2;
		wrong += p.producer.own - p.consumer.own > SIZE;
	}
	ck_assert_uint_eq(wrong, 0);
	ck_assert(wrapped);
	free_pair(&p);
}
END_TEST

START_TEST(padding_is_zeroed)
{
	struct pair        p = make_pair(0);
	struct wire_header header = { .type = 7 };

	memset(p.data, 0xee, SIZE);
	ck_assert_int_eq(ring_write(&p.producer, &header, sizeof header, "abc", 3), STATUS_OK);
	ck_assert_mem_eq(p.data + 8, "abc\0\0\0\0\0", 8);
	ck_assert_uint_eq(p.data[16], 0xee);
	free_pair(&p);
}
END_TEST

START_TEST(drop_counts)
{
	struct pair p = make_pair(UINT32_MAX - 63);
	_Alignas(8) unsigned char buffer[SIZE];
	size_t bytes;

	for (unsigned i = 0; i < 30; i++)
		ck_assert_int_eq(put(&p.producer, i, i), STATUS_OK);
	for (unsigned i = 0; i < 10; i++)
		ck_assert_int_eq(ring_read(&p.consumer, buffer, sizeof buffer, &bytes), STATUS_OK);
	ck_assert_uint_eq(ring_drop(&p.consumer), 20);
	ck_assert_uint_eq(ring_drop(&p.consumer), 0);
	ck_assert_int_eq(ring_read(&p.consumer, buffer, sizeof buffer, &bytes), STATUS_AGAIN);
	ck_assert_uint_eq(ring_writable(&p.producer), SIZE);
	free_pair(&p);
}
END_TEST

/* ---- a hostile producer --------------------------------------------------------------------------------------- */

START_TEST(hostile_tail)
{
	struct pair p = make_pair(800);
	_Alignas(8) unsigned char buffer[SIZE];
	size_t bytes;

	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(put(&p.producer, i, 2), STATUS_OK);
	ck_assert_int_eq(ring_read(&p.consumer, buffer, sizeof buffer, &bytes), STATUS_OK); /* has seen all three */
	const uint32_t own = p.consumer.own, bad[] = { own + SIZE + 8, own + 2 * SIZE, own - 8, 0, UINT32_MAX,
	    UINT32_MAX - 7,
		own + 1, own + 4, own + 7, own + 0x80000000u, own + 0x40000000u };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ring consumer = p.consumer;
		p.shared->tail = bad[i];
		/* What was seen before the peer went mad is still read … */
		ck_assert_int_eq(ring_read(&consumer, buffer, sizeof buffer, &bytes), STATUS_OK);
		ck_assert_int_eq(ring_read(&consumer, buffer, sizeof buffer, &bytes), STATUS_OK);
		/* … then the index is refused, again and again. */
		for (int again = 0; again < 3; again++)
			ck_assert_msg(ring_read(&consumer, buffer, sizeof buffer, &bytes) == STATUS_INVALID, "tail %u", bad[i]);
		ck_assert(ring_pending(&consumer) && ring_pending_seq_cst(&consumer));
		/* A drop leaves it where it was. */
		consumer = p.consumer;
		ck_assert_uint_eq(ring_drop(&consumer), 2);
		ck_assert_uint_eq(consumer.own, consumer.peer);
	}
	free_pair(&p);
}
END_TEST

START_TEST(hostile_sizes)
{
	const uint32_t bad[] = { 0, 1, 7, 17, 24, 4096, 4097, SIZE + 8, 0x7fffffff, 0x80000000, 0xfffffff8, UINT32_MAX };
	struct pair    p = make_pair(SIZE - 16);
	_Alignas(8) unsigned char buffer[SIZE];
	size_t         bytes = 77;

	ck_assert_int_eq(put(&p.producer, 1, 2), STATUS_OK); /* 16 bytes stored */
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ring consumer = p.consumer;
		memcpy(p.data + SIZE - 16, &bad[i], 4);
		ck_assert_msg(ring_read(&consumer, buffer, sizeof buffer, &bytes) == STATUS_INVALID, "size %u", bad[i]);
		ck_assert_uint_eq(bytes, 77);
		ck_assert_uint_eq(consumer.own, SIZE - 16);
		ck_assert_uint_eq(ring_drop(&consumer), 0);
		ck_assert_int_eq(ring_read(&consumer, buffer, sizeof buffer, &bytes), STATUS_AGAIN);
	}
	free_pair(&p);
}
END_TEST

START_TEST(record_over_capacity)
{
	struct pair p = make_pair(0);
	struct {
		_Alignas(8) unsigned char buffer[64];
		unsigned char after[8];
	} b;
	size_t bytes;

	memset(b.after, 0x5a, sizeof b.after);
	ck_assert_int_eq(put(&p.producer, 1, 15), STATUS_OK); /* 68 bytes */
	ck_assert_int_eq(ring_read(&p.consumer, b.buffer, sizeof b.buffer, &bytes), STATUS_INVALID);
	ck_assert_mem_eq(b.after, "\x5a\x5a\x5a\x5a\x5a\x5a\x5a\x5a", 8);
	free_pair(&p);
}
END_TEST

/* ---- a hostile consumer --------------------------------------------------------------------------------------- */

START_TEST(hostile_head)
{
	struct pair p = make_pair(UINT32_MAX - 4095);

	while (put(&p.producer, 1, 30) == STATUS_OK)
		;
	ck_assert_int_eq(put(&p.producer, 1, 30), STATUS_FULL);
	const uint32_t own = p.producer.own, peer = p.producer.peer,
		bad[] = { own + 8, own + SIZE, peer - 8, peer - SIZE, peer + 4, own - 1, 0x12345678, own + 0x80000000u };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ring producer = p.producer;
		p.shared->head = bad[i];
		ck_assert_msg(put(&producer, 1, 30) == STATUS_INVALID, "head %u", bad[i]);
		ck_assert_uint_eq(ring_writable(&producer), 0);
		ck_assert_uint_eq(ring_writable_seq_cst(&producer), 0);
		ck_assert_uint_eq(producer.own, own);
	}
	p.shared->head = peer + 128;
	ck_assert_int_eq(put(&p.producer, 1, 30), STATUS_OK);
	free_pair(&p);
}
END_TEST

/* Garbage everywhere, changed between calls: nothing outside the area or the buffer is touched (the pages around the
 * area fault), the own index never runs away, and every answer is one of the three. */
START_TEST(garbage)
{
	enum { ROUNDS = 100000 };
	unsigned    wrong = 0, counts[STATUS_COUNT] = { 0 };
	struct pair p = make_pair(0);
	struct {
		_Alignas(8) unsigned char buffer[256];
		unsigned char after[8];
	} b;

	srand(2);
	memset(b.after, 0x5a, sizeof b.after);
	for (int round = 0; round < ROUNDS; round++) {
		size_t      bytes = 0;
		uint32_t    before = p.consumer.own;
		enum status status;

		if (round % 50 == 0)
			for (size_t i = 0; i < SIZE; i++)
				p.data[i] = (unsigned char)(rand() % 3 ? 0 : rand());
		/* Half of the time a plausible index. */
		p.shared->tail = rand() % 2 ? (uint32_t)rand() * 2u : p.consumer.own + (uint32_t)(rand() % (SIZE / 8 + 2)) * 8;
		p.shared->head = rand() % 2 ? (uint32_t)rand() * 2u : p.producer.own - (uint32_t)(rand() % (SIZE / 8 + 2)) * 8;
		status = ring_read(&p.consumer, b.buffer, sizeof b.buffer, &bytes);
		counts[status]++;
		wrong += status == STATUS_OK ? bytes < 8 || bytes > sizeof b.buffer : bytes != 0 || p.consumer.own != before;
		if (rand() % 16 == 0)
			wrong += ring_drop(&p.consumer) > SIZE / 8;
		status = put(&p.producer, 1, (size_t)rand() % 40);
		counts[status]++;
		wrong += p.producer.own - p.producer.peer > SIZE || p.consumer.peer - p.consumer.own > SIZE;
	}
	ck_assert_uint_eq(wrong, 0);
	ck_assert_uint_gt(counts[STATUS_OK], 0);
	ck_assert_uint_gt(counts[STATUS_INVALID], 0);
	ck_assert_uint_eq(counts[STATUS_OK] + counts[STATUS_AGAIN] + counts[STATUS_FULL] + counts[STATUS_INVALID],
	    2 * ROUNDS);
	ck_assert_mem_eq(b.after, "\x5a\x5a\x5a\x5a\x5a\x5a\x5a\x5a", 8);
	free_pair(&p);
}
END_TEST

/* ---- shapes --------------------------------------------------------------------------------------------------- */

START_TEST(shapes_of_records)
{
	struct wire_reserve reserve = { .header = { sizeof reserve, WIRE_RESERVE, 0 }, .generation = 1, .slot = 3 };
	struct wire_submit  submit = { .header = { sizeof submit, WIRE_SUBMIT, 0 }, .generation = 1, .slot = 3 };
	struct {
		struct wire_tokens fixed;
		int32_t            ids[WIRE_TOKENS_MAX + 1];
	} tokens = { .fixed = { .header = { sizeof tokens.fixed + 8, WIRE_TOKENS, 0 }, .generation = 1, .slot = 3,
	    .count = 2 } };
	unsigned wrong = 0;

	ck_assert_int_eq(wire_check_record(&reserve, sizeof reserve, 4), STATUS_OK);
	ck_assert_int_eq(wire_check_record(&submit, sizeof submit, 4), STATUS_OK);
	ck_assert_int_eq(wire_check_record(&tokens, sizeof tokens.fixed + 8, 4), STATUS_OK);
	/* The wrong direction, unknown types, slots that are not there, generation 0. */
	ck_assert_int_eq(wire_check_event(&reserve, sizeof reserve, 4), STATUS_INVALID);
	ck_assert_int_eq(wire_check_record(&reserve, sizeof reserve, 3), STATUS_INVALID);
	reserve.generation = 0;
	ck_assert_int_eq(wire_check_record(&reserve, sizeof reserve, 4), STATUS_INVALID);
	for (unsigned type = 0; type <= UINT16_MAX; type++) {
		submit.header.type = (uint16_t)type;
		wrong += wire_check_record(&submit, sizeof submit, 4) != (type == WIRE_SUBMIT ? STATUS_OK : STATUS_INVALID);
	}
	ck_assert_uint_eq(wrong, 0);
	submit.header.type = WIRE_SUBMIT;
	/* Every size but the right one, told truly or not. */
	for (size_t bytes = 0; bytes <= sizeof submit + 16; bytes++) {
		struct wire_submit copy[2] = { submit, submit };
		ck_assert_int_eq(wire_check_record(copy, bytes, 4), bytes == sizeof submit ? STATUS_OK : STATUS_INVALID);
		copy[0].header.bytes = (uint32_t)bytes;
		ck_assert_int_eq(wire_check_record(copy, bytes, 4), bytes == sizeof submit ? STATUS_OK : STATUS_INVALID);
	}
	{
		struct {
			struct wire_list fixed;
			int32_t          words[4];
		} list = { .fixed = { .header = { sizeof list, WIRE_LIST, 0 }, .generation = 1, .slot = 3, .count = 4 } };

		ck_assert_int_eq(wire_check_record(&list, sizeof list, 4), STATUS_OK);
		ck_assert_int_eq(wire_check_event(&list, sizeof list, 4), STATUS_INVALID);
		list.fixed.kind = WIRE_LIST_COUNT;
		ck_assert_int_eq(wire_check_record(&list, sizeof list, 4), STATUS_INVALID);
		list.fixed.kind = 0;
		list.fixed.count = 3;
		ck_assert_int_eq(wire_check_record(&list, sizeof list, 4), STATUS_INVALID);
		list.fixed.count = 4;
		list.fixed.reserved = 1;
		ck_assert_int_eq(wire_check_record(&list, sizeof list, 4), STATUS_INVALID);
	}
	submit.flags = WIRE_FLAG_ALL + 1;
	ck_assert_int_eq(wire_check_record(&submit, sizeof submit, 4), STATUS_INVALID);
	submit.flags = 0;
	submit.header.reserved = 1;
	ck_assert_int_eq(wire_check_record(&submit, sizeof submit, 4), STATUS_INVALID);
	/* A count that does not explain the size, among them those that overflow 32 bits when multiplied. */
	const uint32_t counts[] = { 0, 1, 3, WIRE_TOKENS_MAX, 0x40000002, 0x80000002, UINT32_MAX };
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		tokens.fixed.count = counts[i];
		ck_assert_int_eq(wire_check_record(&tokens, sizeof tokens.fixed + 8, 4), STATUS_INVALID);
	}
	tokens.fixed.count = WIRE_TOKENS_MAX;
	tokens.fixed.header.bytes = WIRE_RECORD_MAX;
	ck_assert_int_eq(wire_check_record(&tokens, WIRE_RECORD_MAX, 4), STATUS_OK);
	tokens.fixed.count = WIRE_TOKENS_MAX + 1;
	tokens.fixed.header.bytes = WIRE_RECORD_MAX + 4;
	ck_assert_int_eq(wire_check_record(&tokens, WIRE_RECORD_MAX + 4, 4), STATUS_INVALID);
}
END_TEST

START_TEST(shapes_of_events)
{
	struct {
		struct wire_token fixed;
		int32_t           ids[WIRE_EVENT_IDS_MAX + 1];
	} token = { .fixed = { .header = { WIRE_EVENT_MAX, WIRE_TOKEN, 0 }, .generation = 9,
	    .count = WIRE_EVENT_IDS_MAX } };
	struct wire_end end = { .header = { sizeof end, WIRE_END, 0 }, .generation = 9, .finish = WIRE_FINISH_LENGTH };

	ck_assert_uint_ge(WIRE_EVENT_MAX, sizeof(struct wire_end));
	ck_assert_int_eq(wire_check_event(&token, WIRE_EVENT_MAX, 1), STATUS_OK);
	ck_assert_int_eq(wire_check_record(&token, WIRE_EVENT_MAX, 1), STATUS_INVALID);
	token.fixed.choice = WIRE_CHOICES_MAX;
	ck_assert_int_eq(wire_check_event(&token, WIRE_EVENT_MAX, 1), STATUS_INVALID);
	token.fixed.choice = 0;
	token.fixed.count++;
	token.fixed.header.bytes += 4;
	ck_assert_int_eq(wire_check_event(&token, WIRE_EVENT_MAX + 4, 1), STATUS_INVALID);
	/* With log probabilities every token has more words. */
	for (unsigned logprobs = 0; logprobs <= WIRE_TOP_MAX + 2; logprobs++) {
		for (unsigned count = 0; count <= WIRE_EVENT_IDS_MAX + 1; count++) {
			for (unsigned words = 1; words <= WIRE_EVENT_IDS_MAX; words++) {
				bool fits = count > 0 && logprobs <= WIRE_TOP_MAX + 1 && words == count * (logprobs ? 2 * logprobs : 1);

				token.fixed.logprobs = (uint16_t)logprobs;
				token.fixed.count = (uint16_t)count;
				token.fixed.header.bytes = (uint32_t)sizeof token.fixed + words * 4;
				if ((wire_check_event(&token, token.fixed.header.bytes, 1) == STATUS_OK) != fits)
					ck_abort_msg("%u tokens with %u logprobs in %u words", count, logprobs, words);
			}
		}
	}
	ck_assert_int_eq(wire_check_event(&end, sizeof end, 1), STATUS_OK);
	end.finish = WIRE_FINISH_COUNT;
	ck_assert_int_eq(wire_check_event(&end, sizeof end, 1), STATUS_INVALID);
	end.finish = WIRE_FINISH_ERROR;
	end.status = STATUS_COUNT;
	ck_assert_int_eq(wire_check_event(&end, sizeof end, 1), STATUS_INVALID);
}
END_TEST

START_TEST(layout_hash)
{
	ck_assert_uint_ne(wire_layout_hash(), 0);
	ck_assert_uint_eq(wire_layout_hash(), wire_layout_hash());
	ck_assert_uint_eq(wire_stored_bytes(8), 8);
	ck_assert_uint_eq(wire_stored_bytes(36), 40);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("ipc ring");
	TCase   *tcase = tcase_create("ring");
	SRunner *runner = srunner_create(suite);
	int      failed;

	suite_add_tcase(suite, tcase);
	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, init_refuses);
	tcase_add_test(tcase, empty_and_full);
	tcase_add_test(tcase, wraps_at_2_to_32);
	tcase_add_test(tcase, padding_is_zeroed);
	tcase_add_test(tcase, drop_counts);
	tcase_add_test(tcase, hostile_tail);
	tcase_add_test(tcase, hostile_sizes);
	tcase_add_test(tcase, record_over_capacity);
	tcase_add_test(tcase, hostile_head);
	tcase_add_test(tcase, garbage);
	tcase_add_test(tcase, shapes_of_records);
	tcase_add_test(tcase, shapes_of_events);
	tcase_add_test(tcase, layout_hash);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
