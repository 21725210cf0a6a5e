/* runtime.cc: owns streams, events and memory of the made-up runtime.  Invariant: an operation runs only when all before it in its
 * stream have run, and every record that a wait before it saw. */
#include "cuda_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <vector>

struct runtime_event {
	uint64_t recorded, done; /* records enqueued, records run */
};

struct operation {
	std::function<void()> run;
	runtime_event *event; /* NULL: it may run; else when so many records of the event have */
	uint64_t       records;
	const char    *to; /* of a copy */
	size_t         bytes;
};

struct runtime_stream {
	std::deque<operation> waiting;
};

static std::mutex                    lock;
static std::vector<runtime_stream *> streams;
static std::map<char *, size_t>      memory; /* that was taken, device's and pinned */
static std::set<runtime_event *>     events;
static uint64_t                      state = 1;
static size_t                        favourite;
static bool                          lazy;
static unsigned                      errors, until_failure;
static cudaError_t                   failure;

static uint64_t chance(void)
{
	uint64_t z = state += 0x9E3779B97F4A7C15ull;

	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
	return (z ^ z >> 27) * 0x94D049BB133111EBull >> 33;
}

static bool is_ready(const operation &next) { return !next.event || next.event->done >= next.records; }

/* One operation of some stream; false when none may run. */
static bool step(void)
{
	std::vector<runtime_stream *> ready;

	for (runtime_stream *s : streams)
		if (!s->waiting.empty() && is_ready(s->waiting.front()))
			ready.push_back(s);
	if (ready.empty())
		return false;
	runtime_stream *s = ready[chance() % ready.size()];
	for (runtime_stream *other : ready) /* one stream is far ahead of the others, as a rule */
		if (favourite < streams.size() && other == streams[favourite] && chance() % 8)
			s = other;
	operation       next = s->waiting.front();
	s->waiting.pop_front();
	if (next.run)
		next.run();
	return true;
}

/* A call: some of what may run does, or, on a lazy device, nothing that nobody waits for; and now and then the call fails. */
static cudaError_t called(void)
{
	for (uint64_t n = lazy ? 0 : chance() % 4; n && step(); n--)
		continue;
	if (until_failure && --until_failure == 0)
		return failure;
	return cudaSuccess;
}

static void wrong(const char *what)
{
	errors++;
	fprintf(stderr, "runtime: %s\n", what);
}

static bool is_taken(const void *at, size_t bytes)
{
	std::map<char *, size_t>::iterator next = memory.upper_bound((char *)at);

	if (next == memory.begin())
		return false;
	--next;
	return (char *)at + bytes <= next->first + next->second;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
	std::lock_guard<std::mutex> guard(lock);
	cudaError_t                 code = called();

	if (code)
		return code == cudaErrorUnknown ? cudaErrorMemoryAllocation : code;
	*ret = malloc(bytes + !bytes);
	memset(*ret, 0xcd, bytes);
	memory[(char *)*ret] = bytes;
	return cudaSuccess;
}

cudaError_t cudaFree(void *at)
{
	std::lock_guard<std::mutex> guard(lock);

	if (!at)
		return cudaSuccess;
	if (!memory.count((char *)at))
		return wrong("memory was given back that was not taken"), cudaErrorInvalidValue;
	for (runtime_stream *s : streams)
		for (const operation &o : s->waiting)
			if (o.to >= (char *)at && o.to < (char *)at + memory[(char *)at])
				wrong("memory was given back to which a copy is under way");
	memset(at, 0xdd, memory[(char *)at]);
	memory.erase((char *)at);
	free(at);
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned) { return cudaMalloc(ret, bytes); }
cudaError_t cudaFreeHost(void *at) { return cudaFree(at); }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
	std::lock_guard<std::mutex> guard(lock);
	cudaError_t                 code = called();

	if (code)
		return code;
	if (!is_taken(to, bytes) || !is_taken(from, bytes))
		return wrong("a copy from or to memory that was not taken"), cudaErrorInvalidValue;
	stream->waiting.push_back({ [=] { memcpy(to, from, bytes); }, NULL, 0, (const char *)to, bytes });
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *ret)
{
	std::lock_guard<std::mutex> guard(lock);
	cudaError_t                 code = called();

	if (code)
		return code;
	*ret = new runtime_event{ 0, 0 };
	events.insert(*ret);
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned) { return cudaEventCreate(ret); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	std::lock_guard<std::mutex> guard(lock);

	for (runtime_stream *s : streams)
		for (const operation &o : s->waiting)
			if (o.event == event)
				wrong("an event was destroyed that a stream waits for");
	if (!events.erase(event))
		wrong("an event was destroyed that is not there");
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	std::lock_guard<std::mutex> guard(lock);
	cudaError_t                 code = called();

	if (code)
		return code;
	uint64_t number = ++event->recorded;
	stream->waiting.push_back({ [=] { event->done = number > event->done ? number : event->done; }, NULL, 0, NULL, 0 });
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	std::lock_guard<std::mutex> guard(lock);
	cudaError_t                 code = called();
	uint64_t                    wanted = event->recorded;

	if (code)
		return code;
	while (event->done < wanted)
		if (!step())
			return wrong("an event is waited for that cannot come"), cudaErrorUnknown;
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ret, cudaEvent_t begin, cudaEvent_t end)
{
	std::lock_guard<std::mutex> guard(lock);

	if (begin->done < begin->recorded || end->done < end->recorded || !begin->recorded || !end->recorded)
		return wrong("the time between events that have not come"), cudaErrorInvalidValue;
	*ret = 0.5f;
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
	std::lock_guard<std::mutex> guard(lock);
	cudaError_t                 code = called();

	if (code)
		return code;
	stream->waiting.push_back({ NULL, event, event->recorded, NULL, 0 });
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	std::lock_guard<std::mutex> guard(lock);

	while (!stream->waiting.empty())
		if (!step())
			return wrong("a stream is waited for that cannot end"), cudaErrorUnknown;
	return cudaSuccess;
}

cudaStream_t runtime_stream_make(void)
{
	streams.push_back(new runtime_stream);
	return streams.back();
}

void runtime_launch(cudaStream_t stream, std::function<void()> kernel)
{
	std::lock_guard<std::mutex> guard(lock);

	stream->waiting.push_back({ kernel, NULL, 0, NULL, 0 });
}

void runtime_reset(uint64_t seed, unsigned count, cudaError_t code)
{
	std::lock_guard<std::mutex> guard(lock);

	state = seed;
	lazy = seed / 3 % 2;
	favourite = seed % 3; /* of two streams, or neither */
	until_failure = count;
	failure = code;
}

unsigned runtime_leaks(void) { return (unsigned)(memory.size() + events.size()); }
unsigned runtime_errors(void) { return errors; }
