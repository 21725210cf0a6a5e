/* upload.c: owns the threads that read stored matrices, who reads what, and when a piece is complete.  Does not own how
 * matrices are cut (stored.c) nor the device.  Invariant: a slot is written only between `open` and the `place` of one piece,
 * and a buffer only after `wait`; bytes are read by lanes alone, everything else happens under the lock. */
#include "gpu/upload.h"

#include "base/clock.h"
#include "file/map.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK_LEAST = 1 << 20, CHUNKS_OF_A_LANE = 4 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* A run of bytes of the job: a side, or a piece. */
struct run {
	struct stored_bytes bytes;
	struct stored_piece piece;
	uint64_t            index, total; /* of the piece; bytes */
	int                 side;         /* −1: a piece */
};

struct chunk {
	struct run run;
	uint64_t   at, bytes;
};

struct slot {
	uint64_t next;   /* the piece that may use it */
	uint64_t left;   /* bytes of that piece which are not copied yet */
	int      opened;
};

struct job {
	const struct stored_cut *cut;
	uint8_t    *sides, *straight;
	uint32_t    stack_row;
	uint64_t    chunk_bytes;
	uint64_t    next_run;   /* sides, then pieces */
	struct run  run;        /* the one that chunks are taken from */
	uint64_t    run_at;
	uint64_t    sides_left; /* bytes that are not copied yet */
	struct slot slots[UPLOAD_SLOTS];
	int         failed, code; /* the device's code, or an errno of reading */
	int         reading;
};

struct lane {
	struct uploader   *u;
	unsigned           number, next_buffer;
	pthread_t          thread;
	struct upload_work work;
};

struct uploader {
	struct upload_device device;
	struct upload_memory memory;
	struct lane          lanes[UPLOAD_LANES_MAX];
	unsigned             count;
	pthread_mutex_t      lock;
	pthread_cond_t       begin, done, turn;
	struct job          *job;
	uint64_t             jobs;   /* begun so far */
	unsigned             active; /* threads that have not finished the job */
	int                  quit;
};

/* ---- Reading ---- */

/* Through the map: pages all at once instead of one fault for each. */
static int read_mapped(const uint8_t *from, size_t bytes, uint8_t *to)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)from / page * page;

	(void)madvise((void *)begin, (uintptr_t)from + bytes - begin, MADV_POPULATE_READ); /* anything but a file does not mind */
	memcpy(to, from, bytes);
	return 0;
}

/* 0, or an errno; ENODATA when the file has become shorter. */
static int read_run(const struct map *map, const uint8_t *from, size_t bytes, uint8_t *to)
{
	if (!map || map->size == 0 || map->fd < 0 || from < map->bytes || (size_t)(from - map->bytes) > map->size ||
	    bytes > map->size - (size_t)(from - map->bytes))
		return read_mapped(from, bytes, to);
	while (bytes) {
		ssize_t got = pread(map->fd, to, bytes, (off_t)(from - map->bytes));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? errno : ENODATA;
		to += got;
		from += got;
		bytes -= (size_t)got;
	}
	return 0;
}

/* Bytes [at, at + count) of what RUN looks like when it is packed. */
static int read_chunk(const struct chunk *chunk, uint8_t *to)
{
	const struct stored_bytes *b = &chunk->run.bytes;
	uint64_t                   at = chunk->at, left = chunk->bytes;
	int                        code = 0;

	while (left && !code) {
		uint64_t row = at / b->row_bytes, offset = at % b->row_bytes;
		uint64_t count = b->row_bytes - offset < left ? b->row_bytes - offset : left;

		code = read_run(b->map, b->from + row * b->stride + offset, count, to);
		to += count;
		at += count;
		left -= count;
	}
	return code;
}

/* ---- The job; all of it under the lock ---- */

/* The next run that has bytes; 0 when there is none. */
static int next_run(struct job *job)
{
	while (job->next_run < STORED_SIDES + job->cut->pieces) {
		struct run run = { .side = -1 };

		if (job->next_run < STORED_SIDES) {
			run.side = (int)job->next_run;
			run.bytes = stored_side_of(job->cut, (enum stored_side)run.side);
		} else {
			run.index = job->next_run - STORED_SIDES;
			stored_piece_of(job->cut, run.index, &run.piece, &run.bytes);
			run.piece.stack_row = job->stack_row;
		}
		job->next_run++;
		run.total = run.bytes.rows * run.bytes.row_bytes;
		if (run.total == 0)
			continue;
		job->run = run;
		job->run_at = 0;
		return 1;
	}
	return 0;
}

static int take_chunk(struct job *job, struct chunk *ret)
{
	uint64_t left;

	if (job->failed || (job->run_at == job->run.total && !next_run(job)))
		return 0;
	left = job->run.total - job->run_at;
	*ret = (struct chunk){ job->run, job->run_at, left < job->chunk_bytes ? left : job->chunk_bytes };
	job->run_at += ret->bytes;
	return 1;
}

static void fail(struct uploader *u, struct job *job, int code, int reading)
{
	if (!job->failed) {
		job->failed = 1;
		job->code = code;
		job->reading = reading;
	}
	pthread_cond_broadcast(&u->turn);
}

/* The piece is whole: places it as soon as the sides are there too. */
static int place_piece(struct uploader *u, struct job *job, const struct chunk *chunk, unsigned number)
{
	struct slot        *slot = &job->slots[number];
	struct stored_piece piece = chunk->run.piece;
	int                 code;

	while (!job->failed && job->sides_left)
		pthread_cond_wait(&u->turn, &u->lock);
	if (job->failed)
		return 0;
	piece.values = u->memory.slots[number];
	stored_set_sides(job->cut, job->sides, &piece);
	code = u->device.place(u->device.context, number, &piece);
	slot->opened = 0;
	slot->next += UPLOAD_SLOTS;
	pthread_cond_broadcast(&u->turn);
	return code;
}

/* The chunk, which lies in a buffer, to the device. */
static int send_chunk(struct uploader *u, struct job *job, struct lane *lane, unsigned buffer, const struct chunk *chunk)
{
	const struct upload_device *device = &u->device;
	unsigned                    number = (unsigned)(chunk->run.index % UPLOAD_SLOTS);
	struct slot                *slot = &job->slots[number];
	int                         code = 0;

	if (chunk->run.side >= 0) {
		code = device->copy(device->context, lane->number, buffer, job->sides + job->cut->side_at[chunk->run.side] + chunk->at,
		    chunk->bytes);
		job->sides_left -= chunk->bytes;
		if (job->sides_left == 0)
			pthread_cond_broadcast(&u->turn);
		return code;
	}
	if (job->straight)
		return device->copy(device->context, lane->number, buffer,
		    job->straight + chunk->run.piece.first_row * chunk->run.piece.pitch + chunk->at, chunk->bytes);
	while (!job->failed && slot->next != chunk->run.index)
		pthread_cond_wait(&u->turn, &u->lock);
	if (job->failed)
		return 0;
	if (!slot->opened) {
		slot->opened = 1;
		slot->left = chunk->run.total;
		code = device->open(device->context, number);
	}
	if (!code)
		code = device->copy(device->context, lane->number, buffer, u->memory.slots[number] + chunk->at, chunk->bytes);
	slot->left -= chunk->bytes;
	return code || slot->left ? code : place_piece(u, job, chunk, number);
}

/* Chunk after chunk; holds the lock at both ends. */
static void work(struct uploader *u, struct job *job, struct lane *lane)
{
	struct chunk chunk;

	while (take_chunk(job, &chunk)) {
		unsigned buffer = lane->next_buffer++ % UPLOAD_BUFFERS;
		uint64_t start, waited, filled;
		int      code, read = 0;

		pthread_mutex_unlock(&u->lock);
		start = clock_now_ns();
		code = u->device.wait(u->device.context, lane->number, buffer);
		waited = clock_now_ns();
		if (!code)
			read = read_chunk(&chunk, u->memory.buffers[lane->number][buffer]);
		filled = clock_now_ns();
		pthread_mutex_lock(&u->lock);
		if (!code && !read)
			code = send_chunk(u, job, lane, buffer, &chunk);
		lane->work.read_ns += filled - waited;
		lane->work.wait_ns += waited - start + clock_now_ns() - filled;
		if (code || read)
			fail(u, job, code ? code : read, read != 0);
	}
}

static void *lane_run(void *argument)
{
	struct lane     *lane = argument;
	struct uploader *u = lane->u;
	uint64_t         seen = 0;

	pthread_mutex_lock(&u->lock);
	while (!u->quit) {
		if (u->jobs == seen) {
			pthread_cond_wait(&u->begin, &u->lock);
			continue;
		}
		seen = u->jobs;
		work(u, u->job, lane);
		if (--u->active == 0)
			pthread_cond_signal(&u->done);
	}
	pthread_mutex_unlock(&u->lock);
	return NULL;
}

/* ---- From outside ---- */

enum status upload_create(const struct upload_device *device, const struct upload_memory *memory, struct uploader **ret)
{
	struct uploader *u = calloc(1, sizeof *u);
	sigset_t         all, before;

	if (!u)
		return STATUS_NOMEM;
	u->device = *device;
	u->memory = *memory;
	pthread_mutex_init(&u->lock, NULL);
	pthread_cond_init(&u->begin, NULL);
	pthread_cond_init(&u->done, NULL);
	pthread_cond_init(&u->turn, NULL);
	u->lanes[0] = (struct lane){ .u = u }; /* the caller's */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (u->count = 1; u->count < memory->lanes && u->count < UPLOAD_LANES_MAX; u->count++) {
		struct lane *lane = &u->lanes[u->count];

		*lane = (struct lane){ .u = u, .number = u->count };
		if (pthread_create(&lane->thread, NULL, lane_run, lane))
			break;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	*ret = u;
	return STATUS_OK;
}

void upload_free(struct uploader *u)
{
	if (!u)
		return;
	pthread_mutex_lock(&u->lock);
	u->quit = 1;
	pthread_cond_broadcast(&u->begin);
	pthread_mutex_unlock(&u->lock);
	for (unsigned i = 1; i < u->count; i++)
		pthread_join(u->lanes[i].thread, NULL);
	pthread_mutex_destroy(&u->lock);
	pthread_cond_destroy(&u->begin);
	pthread_cond_destroy(&u->done);
	pthread_cond_destroy(&u->turn);
	free(u);
}

unsigned upload_lanes(const struct uploader *u) { return u->count; }

enum status upload_matrix(struct uploader *u, const struct stored_cut *cut, uint32_t stack_row, uint8_t *sides, uint8_t *straight,
    int *ret_code, struct error *error)
{
	struct job job = { .cut = cut, .sides = sides, .straight = straight, .stack_row = stack_row };
	uint64_t   share = cut->w->bytes / u->count / CHUNKS_OF_A_LANE;

	*ret_code = 0;
	for (unsigned s = 0; s < UPLOAD_SLOTS; s++)
		job.slots[s].next = s;
	for (int s = 0; s < STORED_SIDES; s++)
		job.sides_left += cut->side_bytes[s];
	job.chunk_bytes = share < CHUNK_LEAST ? (uint64_t)CHUNK_LEAST : (share + STORED_ALIGN - 1) / STORED_ALIGN * STORED_ALIGN;
	job.chunk_bytes = job.chunk_bytes < u->memory.buffer_bytes ? job.chunk_bytes : u->memory.buffer_bytes;
	pthread_mutex_lock(&u->lock);
	u->job = &job;
	u->jobs++;
	u->active = u->count - 1;
	pthread_cond_broadcast(&u->begin);
	work(u, &job, &u->lanes[0]);
	while (u->active)
		pthread_cond_wait(&u->done, &u->lock);
	u->job = NULL;
	pthread_mutex_unlock(&u->lock);
	if (!job.failed)
		return STATUS_OK;
	if (!job.reading) {
		*ret_code = job.code;
		return STATUS_INTERNAL;
	}
	if (job.code == ENODATA)
		return error_set(error, STATUS_IO, "%s: the file has become shorter while it was read", cut->w->name);
	return error_set(error, STATUS_IO, "%s: reading failed: %s", cut->w->name, strerror(job.code));
}

struct upload_work upload_take_work(struct uploader *u)
{
	struct upload_work sum = { 0, 0 };

	for (unsigned i = 0; i < u->count; i++) { /* no job is under way */
		sum.read_ns += u->lanes[i].work.read_ns;
		sum.wait_ns += u->lanes[i].work.wait_ns;
		u->lanes[i].work = (struct upload_work){ 0, 0 };
	}
	return sum;
}
