/* Unit tests of src/ipc/lane.c: the object and its seals, what attach refuses, slots, replies, waiting, hostile
 * fronts. */
#include "ipc/lane.h"
#include "ipc/wake.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Both ends of one lane. */
struct ends {
	struct lane batcher, front;
};

static struct ends make_ends(uint32_t slots, uint32_t window)
{
	struct ends          e = { 0 };
	struct lane_geometry geometry;
	struct error         error;

	ck_assert_int_eq(lane_geometry_plan(slots, window, &geometry), STATUS_OK);
	ck_assert_msg(lane_create(&geometry, &e.batcher, &error) == STATUS_OK, "%s", error.message);
	ck_assert_msg(lane_attach(e.batcher.fd, &e.front, &error) == STATUS_OK, "%s", error.message);
	return e;
}

static void free_ends(struct ends *e)
{
	lane_close(&e->front);
	lane_close(&e->batcher);
}

static enum status put_tokens(struct lane *lane, uint32_t slot, uint32_t generation, uint32_t count)
{
	struct wire_tokens record = { .header = { .type = WIRE_TOKENS }, .req = 5, .generation = generation,
	    .slot = (uint16_t)slot,
		.count = count };
	int32_t            ids[WIRE_TOKENS_MAX];

	for (uint32_t i = 0; i < count; i++)
		ids[i] = (int32_t)i;
	return lane_front_write(lane, &record, sizeof record, ids, count);
}

static enum status put_event(struct lane *lane, uint32_t slot, uint32_t generation)
{
	struct wire_token event = { .header = { .type = WIRE_TOKEN }, .req = 5, .generation = generation,
	    .slot = (uint16_t)slot,
		.count = 1 };
	const int32_t     id = 42;

	return lane_batcher_write(lane, &event, sizeof event, &id, 1);
}

START_TEST(geometry_limits)
{
	struct lane_geometry g = { 0 };

	ck_assert_int_eq(lane_geometry_plan(16, 32768, &g), STATUS_OK);
	ck_assert_uint_eq(g.event_ring_bytes, 16 * 32768);
	ck_assert_uint_eq(g.record_ring_bytes, LANE_RECORD_RING);
	ck_assert_int_eq(lane_geometry_plan(3, 5000, &g), STATUS_OK);
	ck_assert_uint_eq(g.event_ring_bytes, 16384);
	ck_assert_int_eq(lane_geometry_plan(LANE_SLOTS_MAX, LANE_WINDOW_MAX, &g), STATUS_OK);
	ck_assert_uint_eq(g.event_ring_bytes, 64u << 20);
	ck_assert_int_eq(lane_geometry_plan(0, 32768, &g), STATUS_LIMIT);
	ck_assert_int_eq(lane_geometry_plan(LANE_SLOTS_MAX + 1, 32768, &g), STATUS_LIMIT);
	ck_assert_int_eq(lane_geometry_plan(1, LANE_WINDOW_MIN - 1, &g), STATUS_LIMIT);
	ck_assert_int_eq(lane_geometry_plan(1, LANE_WINDOW_MAX + 1, &g), STATUS_LIMIT);
	ck_assert_int_eq(lane_geometry_plan(UINT32_MAX, UINT32_MAX, &g), STATUS_LIMIT);
	ck_assert_uint_eq(g.slot_count, LANE_SLOTS_MAX); /* untouched */
}
END_TEST

START_TEST(create_refuses_impossible)
{
	const struct lane_geometry bad[] = {
		{ 0, 4096, 4096, 4096 },    { 1, 4096, 4096, 5000 }, { 1, 4096, 0, 4096 },         { 2, 4096, 4096, 4096 },
		{ 65, 4096, 4096, 1 << 20 }, { 1, 0, 4096, 4096 },    { 1, 4096, UINT32_MAX, 4096 }, { 1, 4096, 1u << 31,
		    4096 },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct lane  lane;
		struct error error = { 0 };
		ck_assert_int_eq(lane_create(&bad[i], &lane, &error), STATUS_INVALID);
		ck_assert_ptr_nonnull(strstr(error.message, "impossible lane"));
	}
}
END_TEST

/* A front holds the same descriptor: it must not be able to pull the memory away from under the batcher. */
START_TEST(front_cannot_resize)
{
	struct ends e = make_ends(4, 4096);
	struct stat stat;
	int         fd = dup(e.batcher.fd);

	ck_assert_int_eq(ftruncate(fd, 0), -1);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(ftruncate(fd, 1 << 24), -1);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(fallocate(fd, 0, 0, 1 << 24), -1);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(fstat(fd, &stat), 0);
	ck_assert_uint_eq((size_t)stat.st_size, e.batcher.bytes);
	ck_assert_uint_ge((size_t)stat.st_blocks * 512, e.batcher.bytes); /* all of it is there */
	ck_assert_int_ne(fcntl(e.batcher.fd, F_GETFD) & FD_CLOEXEC, 0);
	close(fd);
	free_ends(&e);
}
END_TEST

/* Punching a hole is what the seals still allow: zeros, refused like any nonsense. */
START_TEST(punched_hole)
{
	struct ends e = make_ends(4, 4096);
	_Alignas(8) char buffer[WIRE_RECORD_MAX];
	size_t bytes;

	ck_assert_int_eq(put_tokens(&e.front, 0, 1, 3), STATUS_OK);
	ck_assert_int_eq(fallocate(e.batcher.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)e.batcher.bytes), 0);
	ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_AGAIN);
	ck_assert_int_eq(put_event(&e.batcher, 0, 1), STATUS_OK);
	ck_assert_int_eq(put_tokens(&e.front, 0, 1, 3), STATUS_OK);
	ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_INVALID);
	free_ends(&e);
}
END_TEST

/* An object like a lane's with one thing wrong. */
static void expect_refused(const char *words, size_t bytes, unsigned seals, void (*spoil)(struct lane_shared *))
{
	struct ends        e = make_ends(4, 4096);
	struct lane        lane = { 0 };
	struct error       error = { 0 };
	int                fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct lane_shared *map;

	bytes = bytes ? bytes : e.batcher.bytes;
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	if (bytes >= sizeof *map) {
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		ck_assert_ptr_ne(map, MAP_FAILED);
		memcpy((void *)map, e.batcher.shared, sizeof *map);
		if (spoil)
			spoil(map);
		munmap(map, bytes);
	}
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	ck_assert_int_eq(lane_attach(fd, &lane, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, words) != NULL, "'%s' lacks '%s'", error.message, words);
	ck_assert_ptr_null(lane.shared);
	close(fd);
	free_ends(&e);
}

static void spoil_magic(struct lane_shared *l) { l->magic++; }
static void spoil_hash(struct lane_shared *l) { l->layout_hash ^= 1; }
static void spoil_bytes(struct lane_shared *l) { l->bytes += 8; }
static void spoil_slots_none(struct lane_shared *l) { l->slot_count = 0; }
static void spoil_slots_many(struct lane_shared *l) { l->slot_count = 65; }
static void spoil_records(struct lane_shared *l) { l->record_ring_bytes = 1u << 31; }
static void spoil_records_small(struct lane_shared *l) { l->record_ring_bytes /= 2; }
static void spoil_events(struct lane_shared *l) { l->event_ring_bytes += 8; }
static void spoil_window(struct lane_shared *l) { l->stream_window = 5000; }
static void spoil_written(struct lane_shared *l) { l->records.tail = 64; }
static void spoil_read(struct lane_shared *l) { l->events.head = 64; }

START_TEST(attach_refuses)
{
	enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
	struct ends  e = make_ends(4, 4096);
	struct lane  lane = { 0 };
	struct error error = { 0 };
	int          ends[2];

	expect_refused("not a lane", 0, SEALS, spoil_magic);
	expect_refused("restart the older one", 0, SEALS, spoil_hash);
	expect_refused("claims", 0, SEALS, spoil_bytes);
	expect_refused("claims", 0, SEALS, spoil_slots_none);
	expect_refused("claims", 0, SEALS, spoil_slots_many);
	expect_refused("claims", 0, SEALS, spoil_records);
	expect_refused("claims", 0, SEALS, spoil_records_small);
	expect_refused("claims", 0, SEALS, spoil_events);
	expect_refused("claims", 0, SEALS, spoil_window);
	expect_refused("used before", 0, SEALS, spoil_written);
	expect_refused("used before", 0, SEALS, spoil_read);
	expect_refused("claims", e.batcher.bytes - 4096, SEALS, NULL);
	expect_refused("claims", e.batcher.bytes + 4096, SEALS, NULL);
	expect_refused("bytes", 64, SEALS, NULL);
	expect_refused("seals", 0, F_SEAL_SHRINK | F_SEAL_GROW, NULL);
	expect_refused("seals", 0, 0, NULL);
	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_int_eq(lane_attach(ends[0], &lane, &error), STATUS_INVALID);
	ck_assert_int_eq(lane_attach(-1, &lane, &error), STATUS_INVALID);
	ck_assert_ptr_null(lane.shared);
	close(ends[0]);
	close(ends[1]);
	free_ends(&e);
}
END_TEST

/* In a process of its own: a file may not be longer than one page, so posix_fallocate fails. */
START_TEST(no_room_is_an_error)
{
	int   result = 0;
	pid_t child = fork();

	ck_assert_int_ge(child, 0);
	if (child == 0) {
		struct rlimit        limit = { 4096, 4096 };
		struct lane_geometry geometry;
		struct lane          lane = { .bytes = 99 };
		struct error         error = { 0 };
		int                  before = dup(0), after;
		enum status          status;

		signal(SIGXFSZ, SIG_IGN);
		if (setrlimit(RLIMIT_FSIZE, &limit) || lane_geometry_plan(16, 32768, &geometry) != STATUS_OK)
			_exit(2);
		close(before);
		status = lane_create(&geometry, &lane, &error);
		after = dup(0); /* the same number again: nothing was left open */
		_exit(status == STATUS_IO && strstr(error.message, "cannot reserve") && lane.bytes == 99 && before == after ?
		    0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &result, 0), child);
	ck_assert_int_eq(result, 0);
}
END_TEST

/* The batcher may write as soon as it has sent WELCOME, before the child has mapped anything. */
START_TEST(event_before_attach)
{
	struct ends          e = { 0 };
	struct lane_geometry geometry;
	struct error         error;
	_Alignas(8) char     buffer[WIRE_EVENT_MAX];
	size_t               bytes;

	ck_assert_int_eq(lane_geometry_plan(4, 4096, &geometry), STATUS_OK);
	ck_assert_int_eq(lane_create(&geometry, &e.batcher, &error), STATUS_OK);
	ck_assert_int_eq(put_event(&e.batcher, 0, 1), STATUS_OK);
	ck_assert_int_eq(lane_attach(e.batcher.fd, &e.front, &error), STATUS_OK);
	ck_assert_int_eq(lane_front_read(&e.front, buffer, sizeof buffer, &bytes), STATUS_OK);
	free_ends(&e);
}
END_TEST

START_TEST(records_and_events)
{
	struct ends        e = make_ends(4, 4096);
	_Alignas(8) char   buffer[WIRE_RECORD_MAX];
	struct wire_tokens tokens;
	struct wire_token  event;
	int32_t            id;
	size_t             bytes = 0;

	ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_AGAIN);
	ck_assert(!lane_batcher_pending_seq_cst(&e.batcher));
	ck_assert_int_eq(put_tokens(&e.front, 3, 7, WIRE_TOKENS_MAX), STATUS_OK);
	ck_assert(lane_batcher_pending_seq_cst(&e.batcher));
	ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_OK);
	ck_assert_uint_eq(bytes, WIRE_RECORD_MAX);
	memcpy(&tokens, buffer, sizeof tokens);
	ck_assert_uint_eq(tokens.slot, 3);
	ck_assert_uint_eq(tokens.generation, 7);
	ck_assert_uint_eq(tokens.count, WIRE_TOKENS_MAX);
	ck_assert_int_eq(put_event(&e.batcher, 2, 7), STATUS_OK);
	ck_assert_int_eq(lane_front_read(&e.front, buffer, WIRE_EVENT_MAX, &bytes), STATUS_OK);
	ck_assert_uint_eq(bytes, sizeof event + 4);
	memcpy(&event, buffer, sizeof event);
	memcpy(&id, buffer + sizeof event, sizeof id);
	ck_assert_uint_eq(event.slot, 2);
	ck_assert_int_eq(id, 42);
	ck_assert_int_eq(lane_front_read(&e.front, buffer, WIRE_EVENT_MAX, &bytes), STATUS_AGAIN);
	/* More ids than a record may have never reach the ring. */
	ck_assert_int_eq(lane_front_write(&e.front, &tokens, sizeof tokens, NULL, WIRE_TOKENS_MAX + 1), STATUS_LIMIT);
	ck_assert_int_eq(lane_batcher_write(&e.batcher, &event, sizeof event, NULL, WIRE_EVENT_IDS_MAX + 1), STATUS_LIMIT);
	free_ends(&e);
}
END_TEST

/* A front that writes records of slots it does not have, of the wrong direction, of no generation. */
START_TEST(hostile_records)
{
	for (int what = 0; what < 4; what++) {
		struct ends       e = make_ends(4, 4096);
		_Alignas(8) char  buffer[WIRE_RECORD_MAX];
		struct wire_token event = { .header = { .type = WIRE_TOKEN }, .generation = 1, .count = 1 };
		size_t            bytes = 55;
		int32_t           id = 1;

		if (what == 0)
			ck_assert_int_eq(put_tokens(&e.front, 4, 1, 1), STATUS_OK);
		else if (what == 1)
			ck_assert_int_eq(put_tokens(&e.front, 3, 0, 1), STATUS_OK);
		else if (what == 2)
			ck_assert_int_eq(lane_front_write(&e.front, &event, sizeof event, &id, 1), STATUS_OK);
		else
			e.front.shared->records.tail = 12;
		ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_INVALID);
		ck_assert_uint_eq(bytes, 55);
		free_ends(&e);
	}
}
END_TEST

/* The geometry on the batcher's side is private: a front that rewrites the shared words changes nothing. */
START_TEST(hostile_geometry)
{
	struct ends      e = make_ends(4, 4096);
	_Alignas(8) char buffer[WIRE_RECORD_MAX];
	size_t           bytes;

	memset((void *)e.front.shared, 0xff, offsetof(struct lane_shared, front_waiting));
	ck_assert_int_eq(put_tokens(&e.front, 1, 1, 9), STATUS_OK);
	ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_OK);
	ck_assert_int_eq(put_event(&e.batcher, 1, 1), STATUS_OK);
	ck_assert_uint_eq(lane_batcher_control(&e.batcher, LANE_SLOTS_MAX), 0);
	ck_assert_uint_eq(lane_batcher_control(&e.batcher, UINT32_MAX), 0);
	ck_assert_uint_eq(lane_batcher_consumed(&e.batcher, LANE_SLOTS_MAX, 0), 0);
	lane_batcher_reply(&e.batcher, LANE_SLOTS_MAX, 1, LANE_REPLY_ACCEPT, 0);
	free_ends(&e);
}
END_TEST

START_TEST(slots)
{
	struct ends e = make_ends(4, 4096);
	uint64_t    word;

	ck_assert_uint_eq(lane_batcher_control(&e.batcher, 2), 0);
	ck_assert_uint_eq(lane_front_open_slot(&e.front, 2), 1);
	ck_assert_uint_eq(lane_batcher_control(&e.batcher, 2), LANE_CONTROL(1, 0, 0));
	lane_front_consumed(&e.front, 2, 4000000000u);
	ck_assert_uint_eq(lane_batcher_consumed(&e.batcher, 2, 1), 4000000000u);
	ck_assert_uint_eq(lane_batcher_consumed(&e.batcher, 2, 2), 0);
	lane_front_stop(&e.front, 2, 0, 123);
	word = lane_batcher_control(&e.batcher, 2);
	ck_assert_uint_eq(lane_control_generation(word), 1);
	ck_assert_uint_eq(lane_control_flags(word), LANE_CONTROL_STOP);
	ck_assert_uint_eq(lane_control_keep(word), 123);
	lane_front_cancel(&e.front, 2);
	word = lane_batcher_control(&e.batcher, 2);
	ck_assert_uint_eq(lane_control_flags(word), LANE_CONTROL_STOP | LANE_CONTROL_CANCEL);
	ck_assert_uint_eq(lane_control_keep(word), 123);
	/* Further choices have words of their own, which end with the generation. */
	uint32_t keep = 7;
	ck_assert(!lane_batcher_stop(&e.batcher, 2, 1, 3, &keep));
	lane_front_stop(&e.front, 2, 3, 45);
	lane_front_stop(&e.front, 2, LANE_CHOICES_MAX, 1); /* nothing */
	ck_assert(!lane_batcher_stop(&e.batcher, 2, 1, 2, &keep) && !lane_batcher_stop(&e.batcher, 1, 1, 3, &keep));
	ck_assert(!lane_batcher_stop(&e.batcher, 2, 2, 3, &keep) && !lane_batcher_stop(&e.batcher, 2, 1, 0, &keep));
	ck_assert(!lane_batcher_stop(&e.batcher, LANE_SLOTS_MAX, 1, 3, &keep) && keep == 7);
	ck_assert(lane_batcher_stop(&e.batcher, 2, 1, 3, &keep) && keep == 45);
	/* A number that does not fit its bits must not reach into the flags. */
	ck_assert_uint_eq(lane_front_open_slot(&e.front, 2), 2);
	lane_front_stop(&e.front, 2, 0, UINT32_MAX);
	word = lane_batcher_control(&e.batcher, 2);
	ck_assert_uint_eq(lane_control_generation(word), 2);
	ck_assert_uint_eq(lane_control_flags(word), LANE_CONTROL_STOP);
	ck_assert_uint_eq(lane_control_keep(word), LANE_KEEP_MAX);
	ck_assert_uint_eq(lane_batcher_consumed(&e.batcher, 2, 2), 0);
	/* The other slots have noticed nothing; generation 0 is never used. */
	ck_assert_uint_eq(lane_batcher_control(&e.batcher, 1), 0);
	e.front.shared->slots[1].control = LANE_CONTROL(UINT32_MAX, 0, 0);
	ck_assert_uint_eq(lane_front_open_slot(&e.front, 1), 1);
	free_ends(&e);
}
END_TEST

START_TEST(replies)
{
	struct ends e = make_ends(4, 4096);
	uint32_t    value = 77, generation = lane_front_open_slot(&e.front, 0);

	ck_assert_int_eq(lane_front_reply(&e.front, 0, &value), LANE_REPLY_NONE);
	ck_assert_uint_eq(value, 77);
	lane_batcher_reply(&e.batcher, 0, generation, LANE_REPLY_WAIT, 12);
	ck_assert_int_eq(lane_front_reply(&e.front, 0, &value), LANE_REPLY_WAIT);
	ck_assert_uint_eq(value, 12);
	lane_batcher_reply(&e.batcher, 0, generation, LANE_REPLY_REJECT, UINT32_MAX);
	ck_assert_int_eq(lane_front_reply(&e.front, 0, &value), LANE_REPLY_REJECT);
	ck_assert_uint_eq(value, LANE_REPLY_VALUE_MAX);
	/* A late reply to an old generation is no reply. */
	lane_front_open_slot(&e.front, 0);
	ck_assert_int_eq(lane_front_reply(&e.front, 0, &value), LANE_REPLY_NONE);
	lane_batcher_reply(&e.batcher, 0, generation, LANE_REPLY_ACCEPT, 0);
	ck_assert_int_eq(lane_front_reply(&e.front, 0, &value), LANE_REPLY_NONE);
	free_ends(&e);
}
END_TEST

START_TEST(waiting)
{
	struct ends      e = make_ends(4, 4096);
	_Alignas(8) char buffer[WIRE_RECORD_MAX];
	size_t           bytes;

	/* Nobody waits: nobody is woken. */
	ck_assert(!lane_batcher_take_waiting(&e.batcher));
	/* Waits for events: taken once. */
	ck_assert(lane_front_prepare_wait(&e.front));
	ck_assert(!lane_batcher_take_room_waiting(&e.batcher));
	ck_assert(lane_batcher_take_waiting(&e.batcher));
	ck_assert(!lane_batcher_take_waiting(&e.batcher));
	lane_front_end_wait(&e.front);
	/* An event that was there before: does not wait, and does not leave the wish behind. */
	ck_assert_int_eq(put_event(&e.batcher, 0, 1), STATUS_OK);
	ck_assert(!lane_front_prepare_wait(&e.front));
	ck_assert(!lane_batcher_take_waiting(&e.batcher));
	ck_assert_int_eq(lane_front_read(&e.front, buffer, sizeof buffer, &bytes), STATUS_OK);
	/* A reply, reported once. */
	lane_batcher_reply(&e.batcher, 0, 1, LANE_REPLY_ACCEPT, 0);
	ck_assert(!lane_front_prepare_wait(&e.front));
	ck_assert(lane_front_prepare_wait(&e.front));
	/* The wait ended for another reason. */
	lane_front_end_wait(&e.front);
	ck_assert(!lane_batcher_take_waiting(&e.batcher));
	free_ends(&e);
}
END_TEST

START_TEST(waiting_for_room)
{
	struct ends      e = make_ends(4, 4096);
	_Alignas(8) char buffer[WIRE_RECORD_MAX];
	size_t           bytes;

	while (put_tokens(&e.front, 0, 1, 500) == STATUS_OK)
		;
	ck_assert_uint_gt(e.front.room_wanted, 2000);
	ck_assert(lane_front_prepare_wait(&e.front));
	ck_assert(lane_batcher_take_room_waiting(&e.batcher));
	ck_assert(!lane_batcher_take_room_waiting(&e.batcher));
	ck_assert(lane_front_prepare_wait(&e.front));
	lane_front_end_wait(&e.front);
	/* Room that came before the wait. */
	ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_OK);
	ck_assert(!lane_front_prepare_wait(&e.front));
	ck_assert(!lane_batcher_take_room_waiting(&e.batcher));
	ck_assert_int_eq(put_tokens(&e.front, 0, 1, 500), STATUS_OK);
	ck_assert(lane_front_prepare_wait(&e.front));
	ck_assert(!lane_batcher_take_room_waiting(&e.batcher)); /* wants events only again */
	/* An event wakes one that waits for room as well. */
	ck_assert_int_eq(put_tokens(&e.front, 0, 1, 500), STATUS_FULL);
	ck_assert(lane_front_prepare_wait(&e.front));
	ck_assert(lane_batcher_take_waiting(&e.batcher));
	/* The child gave the record up. */
	lane_front_forget_room(&e.front);
	ck_assert(lane_front_prepare_wait(&e.front));
	ck_assert(!lane_batcher_take_room_waiting(&e.batcher));
	free_ends(&e);
}
END_TEST

START_TEST(drop_counts_records)
{
	struct ends      e = make_ends(4, 4096);
	_Alignas(8) char buffer[WIRE_RECORD_MAX];
	size_t           bytes;

	for (uint32_t i = 0; i < 12; i++)
		ck_assert_int_eq(put_tokens(&e.front, 0, 1, 1 + i), STATUS_OK);
	ck_assert_int_eq(lane_batcher_read(&e.batcher, buffer, sizeof buffer, &bytes), STATUS_OK);
	ck_assert_uint_eq(lane_batcher_drop_records(&e.batcher), 11);
	ck_assert_uint_eq(lane_batcher_drop_records(&e.batcher), 0);
	free_ends(&e);
}
END_TEST

START_TEST(close_takes_anything)
{
	struct lane zero = { 0 };
	int         probe = dup(0), again;

	lane_close(NULL);
	lane_close(&zero);
	lane_close(&zero);
	close(probe);
	again = dup(0);
	ck_assert_int_eq(probe, again); /* descriptor 0 is still open, none was closed */
	close(again);
}
END_TEST

/* ---- wake ------------------------------------------------------------------------------------------------------ */

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

START_TEST(wakes_run_together)
{
	struct wake  wake;
	struct error error;

	ck_assert_int_eq(wake_create(&wake, &error), STATUS_OK);
	ck_assert(!readable(wake.wait_fd));
	wake_drain(wake.wait_fd); /* nothing there: does not block */
	for (int i = 0; i < 1000; i++)
		wake_send(&wake);
	ck_assert(readable(wake.wait_fd));
	wake_drain(wake.wait_fd);
	ck_assert(!readable(wake.wait_fd));
	wake_close(&wake);
	wake_close(&wake);
	wake_close(NULL);
}
END_TEST

/* What a mad child can do to its end: clear O_NONBLOCK, never read, close it.  The sender neither blocks nor dies. */
START_TEST(mad_child_cannot_block_the_sender)
{
	struct wake  wake;
	struct error error;
	int          child_end;

	ck_assert_int_eq(wake_create(&wake, &error), STATUS_OK);
	child_end = dup(wake.wait_fd); /* what SCM_RIGHTS does */
	ck_assert_int_eq(fcntl(child_end, F_SETFL, 0), 0);
	for (int i = 0; i < 70000; i++)
		wake_send(&wake);
	close(child_end);
	wake_send(&wake);
	wake_close(&wake);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("ipc lane");
	TCase   *tcase = tcase_create("lane");
	SRunner *runner = srunner_create(suite);
	int      failed;

	suite_add_tcase(suite, tcase);
	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, geometry_limits);
	tcase_add_test(tcase, create_refuses_impossible);
	tcase_add_test(tcase, front_cannot_resize);
	tcase_add_test(tcase, punched_hole);
	tcase_add_test(tcase, attach_refuses);
	tcase_add_test(tcase, no_room_is_an_error);
	tcase_add_test(tcase, event_before_attach);
	tcase_add_test(tcase, records_and_events);
	tcase_add_test(tcase, hostile_records);
	tcase_add_test(tcase, hostile_geometry);
	tcase_add_test(tcase, slots);
	tcase_add_test(tcase, replies);
	tcase_add_test(tcase, waiting);
	tcase_add_test(tcase, waiting_for_room);
	tcase_add_test(tcase, drop_counts_records);
	tcase_add_test(tcase, close_takes_anything);
	tcase_add_test(tcase, wakes_run_together);
	tcase_add_test(tcase, mad_child_cannot_block_the_sender);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
